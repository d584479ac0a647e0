//! Functions whose arguments are members of one struct: the members are what the specification describes.

use crate::model::{Function, Signature, Sized, Type};

/// How the parameters of such a function lie in the struct that its caller passes.
#[derive(Debug, Clone, PartialEq)]
pub struct Unpacked {
    /// The function as the header has it: one pointer to the struct.
    pub declared: Signature,
    /// All bytes of the struct, as the header has it.
    pub bytes: usize,
    /// The member that says how many bytes of it the caller has.
    pub sized: Option<Sized>,
    /// In the order of the parameters.
    pub members: Vec<Member>,
}

/// A member of the struct, which is a parameter.
#[derive(Debug, Clone, PartialEq)]
pub struct Member {
    /// In bytes.
    pub offset: usize,
    pub ty: Type,
    /// The parameter points to the member; otherwise it has its value.
    pub pointed_to: bool,
    /// The call sets the member.
    pub set: bool,
}

impl Function {
    /// The function as the header has it, and as it is called.
    pub fn declared(&self) -> &Signature {
        self.unpacked.as_ref().map_or(&self.signature, |unpacked| &unpacked.declared)
    }
}
