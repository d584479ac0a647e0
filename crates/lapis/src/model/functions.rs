//! Functions of the API.

use super::expressions::Expr;
use super::memory::FunctionName;
use super::plans::{Kind, Plan, Rule};
use super::types::{Signature, Sized, Type};
use crate::syntax::source::Span;

impl Function {
    /// Every plan in the rules of its arguments and its result, those of elements and fields among them.
    pub fn each_plan(&self, visit: &mut dyn FnMut(&Plan)) {
        let contextual = self.contextual.iter().map(|contextual| &contextual.rule);
        self.arguments.iter().chain([&self.result]).chain(contextual).for_each(|rule| rule.each_plan(visit));
    }

    /// Handle types of objects that it makes with a state that is saved.
    pub fn stated_types(&self) -> Vec<usize> {
        let mut types = Vec::new();
        self.each_plan(&mut |plan| {
            if let (Kind::Handle { handle, .. }, Some(_)) = (&plan.kind, plan.object.state) {
                types.push(*handle);
            }
        });
        types
    }

    /// The name under which the vendor's library exports it.
    pub fn symbol(&self) -> &str {
        self.label.as_ref().unwrap_or(&self.name)
    }
}

/// One function of the API.
#[derive(Debug, Clone)]
pub struct Function {
    pub name: String,
    /// Name for the linker, if that is another one.
    pub label: Option<String>,
    /// Set for a function that is only reached through a table: `(table, member)`.
    pub member_of: Option<(usize, String)>,
    /// As the specification describes it.
    pub signature: Signature,
    /// Its parameters are members of one struct.
    pub unpacked: Option<Box<Unpacked>>,
    /// What it is given in the place of `...`, which is its last parameter here.
    pub varargs: Option<Box<Varargs>>,
    /// Names used by the specification for the parameters, by position.
    pub parameters: Vec<String>,
    pub support: Support,
    /// One rule per parameter.
    pub arguments: Vec<Rule>,
    pub result: Rule,
    /// Contextual arguments: evaluated in the guest, transported, not passed to the vendor.
    pub contextual: Vec<Contextual>,
    /// True where the call is asynchronous (`None`: never).
    pub asynchronous: Option<Expr>,
    /// Overrides of the error type's codes.
    pub success: Option<Expr>,
    pub failure: Option<Expr>,
    pub unsupported: Option<Expr>,
    pub absent: Option<Expr>,
    pub lost: Option<Expr>,
    /// True of what a call returns that failed: an expression of `ret`, where no error type says it.
    pub fails: Option<Expr>,
    pub error: ErrorPlace,
    /// A pure query, whatever the arguments are.
    pub cache: bool,
    /// A pure query where this is true (`cache` is false then).
    pub cache_if: Option<Expr>,
    /// What stands for its arguments there: a number, and the handle with which the answers are forgotten.
    pub cache_key: Option<(Expr, Expr)>,
    /// Answered in the guest where the condition is true: the first that holds.
    pub local_if: Vec<Guarded>,
    pub flush: bool,
    pub requirements: Vec<Requirement>,
    /// Pairs of parameters whose memory does not overlap.
    pub apart: Vec<(usize, usize)>,
    /// Server expression that evaluates to the vendor's function pointer.
    pub address: Option<Expr>,
    /// Values that the function there takes behind the call's own arguments.
    pub address_values: Vec<Expr>,
    pub device_time: Option<Expr>,
    pub occupies: Option<Occupies>,
    pub charges: Vec<Charge>,
    /// `register_buf` statements.
    pub registered: Vec<Registered>,
    /// Guest expressions evaluated after a successful reply.
    pub after: Vec<Guarded>,
    /// Guest expressions evaluated when the call is over, however it ended.
    pub finally: Vec<Guarded>,
    /// Server expressions evaluated after the vendor's function succeeded.
    pub after_server: Vec<Guarded>,
    /// Server expression evaluated where an asynchronous call was refused or failed.
    pub late: Option<Expr>,
    /// The functions for which the guest calls it: what tenants may do is said of those.
    pub on_behalf_of: Vec<FunctionName>,
    /// Its calls are kept for the session, the thread, or the object that is current there.
    pub records: Vec<StateRecord>,
    /// Server expressions whose values must come out equal when the call is made again.
    pub same: Vec<Guarded>,
    pub stateless: Option<Stateless>,
    /// It only waits: a call that has not come back may be given up and made again in another process.
    pub waits: bool,
    /// Why a session that has called it cannot be moved.
    pub blocker: Option<String>,
    pub span: Span,
}

/// `session_record(key...)`, `thread_record(key...)`, `current_record(key...)`
#[derive(Debug, Clone)]
pub struct StateRecord {
    pub condition: Option<Expr>,
    pub owner: RecordOwner,
    pub keys: Vec<Expr>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordOwner {
    Session,
    Thread,
    /// The object that is current on the thread.
    Current,
}

/// The reason why a call need not be made again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stateless {
    /// It changes nothing.
    Nothing,
    /// It changes what the state functions of objects of this type save; where the specification says so.
    StateOf(usize, Span),
}

/// `occupies(device, drain, name)`: the call gives a device work.
#[derive(Debug, Clone, PartialEq)]
pub struct Occupies {
    /// Server expression: a number that stands for the device, 0 for none.
    pub device: Expr,
    /// Utility function that waits until the device has done what this process gave it.
    pub drain: usize,
    /// Utility function that answers the device's name.
    pub name: usize,
    /// Server expression, evaluated when the call may give the device work.
    pub begin: Option<Expr>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Support {
    Remote,
    /// Answered in the guest.
    Local(Expr),
    Unsupported,
}

/// Where a function reports an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorPlace {
    /// It returns the error type.
    Return,
    /// Through this pointer parameter.
    Parameter(usize),
    /// It returns an object of this type: index into [`super::Model::statuses`].
    Status(usize),
    /// It is given an object of this type, by this parameter.
    Given { status: usize, parameter: usize },
    /// Nowhere: a failed call returns zero or its own `failure` value.
    Nowhere,
}

#[derive(Debug, Clone)]
pub struct Contextual {
    pub name: String,
    pub ty: Type,
    pub value: Expr,
    pub rule: Rule,
}

/// A server-side check before the call.
#[derive(Debug, Clone)]
pub struct Requirement {
    pub condition: Option<Expr>,
    pub holds: Expr,
    pub otherwise: Expr,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChargeKind {
    Allocate,
    Deallocate,
    Consume,
}

#[derive(Debug, Clone)]
pub struct Charge {
    pub condition: Option<Expr>,
    pub kind: ChargeKind,
    /// Index into [`super::Model::resources`].
    pub resource: usize,
    pub amount: Expr,
    /// Server expression, evaluated before the amount: a number that stands for devices, 0 for none.
    pub place: Option<Expr>,
}

#[derive(Debug, Clone)]
pub struct Registered {
    pub condition: Option<Expr>,
    /// Index into [`super::Model::registries`].
    pub registry: usize,
    pub key: Expr,
    pub buffer: Expr,
    /// In elements of the buffer's type.
    pub count: Expr,
}

#[derive(Debug, Clone)]
pub struct Guarded {
    pub condition: Option<Expr>,
    pub value: Expr,
}

impl Function {
    /// True if the guest has numbers for memory of the library's that a call tells of.
    pub fn hands_out_memory(&self) -> bool {
        let mut hands_out = false;
        self.each_plan(&mut |plan| hands_out |= plan.is_numbered_memory());
        hands_out
    }
}

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

/// The last parameter of a function that its header declares with `...`: a word whose type another one tells.
#[derive(Debug, Clone, PartialEq)]
pub struct Varargs {
    /// The parameter that tells it, a number.
    pub selector: usize,
    /// The header has a `va_list` there.
    pub list: bool,
    pub cases: Vec<VarargCase>,
    /// Instead: as many as the selector says follow, each a word. The parameter is a pointer to all of them.
    pub each: bool,
}

/// The most that follow where a number says how many.
pub const MOST_VARARGS: usize = 32;

/// What follows where the selector has this value; `void`: nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct VarargCase {
    pub value: i128,
    pub ty: Type,
}
