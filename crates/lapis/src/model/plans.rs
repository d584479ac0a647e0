//! How values cross.

use super::expressions::Expr;
use super::memory::{Access, FunctionName, HandleMemory, RowShape};
use super::types::{Field, Signature, Sized, Type};
use crate::syntax::source::Span;

/// Indices of utility functions of the server that save and restore a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateFunctions {
    pub write: usize,
    pub read: usize,
}

/// How a value crosses: a decision tree over conditions that both sides evaluate.
#[derive(Debug, Clone)]
pub enum Rule {
    Plan(Box<Plan>),
    If { condition: Expr, then: Box<Rule>, otherwise: Box<Rule> },
}

impl Rule {
    /// Every plan of it, those of elements and fields among them; those of callbacks' parameters not.
    pub fn each_plan(&self, visit: &mut dyn FnMut(&Plan)) {
        match self {
            Rule::If { then, otherwise, .. } => {
                then.each_plan(visit);
                otherwise.each_plan(visit);
            }
            Rule::Plan(plan) => {
                visit(plan);
                match &plan.kind {
                    Kind::Buffer(buffer) => buffer.element.each_plan(visit),
                    Kind::Struct { fields, .. } => fields.iter().for_each(|(_, rule)| rule.each_plan(visit)),
                    _ => {}
                }
            }
        }
    }
}

/// How a value crosses, without conditions.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The type after `type_cast`.
    pub ty: Type,
    pub kind: Kind,
    pub hidden: Option<Hidden>,
    pub input: bool,
    pub output: bool,
    pub lifetime: Lifetime,
    pub object: ObjectUse,
    pub span: Span,
}

/// What a call does to the object that a value stands for: of a handle all of it, of a buffer only whether it begins or ends.
#[derive(Debug, Clone, Default)]
pub struct ObjectUse {
    pub allocate: bool,
    pub deallocate: bool,
    /// `obj_record`: its keys.
    pub record: Option<Vec<Expr>>,
    pub depends_on: Vec<Expr>,
    /// Handles with which this one ends.
    pub ends_with: Vec<Expr>,
    pub referring: Option<Referring>,
    /// The relation of the call to memory that is bound to this handle.
    pub memory: HandleMemory,
    /// `tells`: the utility function of the server that fills the guest's metadata of a new object.
    pub tells: Option<usize>,
    /// `obj_state_cbs`
    pub state: Option<StateFunctions>,
}

/// The relation of a call to the objects that were set on a handle, to be used through it.
#[derive(Debug, Clone)]
pub enum Referring {
    /// `refers`: it sets its other handles on this one, in that place.
    Sets { place: Expr },
    /// `refers_as`: on the handle that it creates the same is set as on that one.
    Copies { from: Expr },
    /// `through`: it uses them; the value is its failure where one has ended.
    Uses { failure: Expr },
}

impl Referring {
    pub fn expr(&self) -> &Expr {
        match self {
            Referring::Sets { place: e } | Referring::Copies { from: e } | Referring::Uses { failure: e } => e,
        }
    }
}

#[derive(Debug, Clone)]
pub enum Kind {
    /// Crosses as it is: numbers, and structs without pointers or handles.
    Scalar,
    /// A struct by value, or as a buffer's element, with members that need translation.
    Struct {
        fields: Vec<(Field, Rule)>,
        /// The caller has only the first bytes of it.
        sized: Option<Sized>,
        /// Some of its members never cross: the server keeps the struct.
        state: Option<StateStruct>,
    },
    Handle {
        handle: usize,
        retain: bool,
        release: bool,
    },
    Buffer(Box<Buffer>),
    String,
    /// Memory that the library has handed out and that this call frees.
    Frees,
    /// Memory of the library's of that many bytes, which the application uses as long as the object that owns it.
    Resident {
        bytes: Expr,
    },
    Callback(Box<Callback>),
    Userdata,
    Chain(Box<Chain>),
    Zerocopy {
        count: Option<Expr>,
    },
    Mapped(Box<Mapped>),
    Unmap,
    /// A number as wide as a pointer that crosses as it is: neither side follows it.
    Number(Number),
    /// One of these values, which mean the same on both sides although the type is a pointer.
    Constant {
        values: Vec<u64>,
    },
    /// A callback's parameter that has what the application passed as an argument of that name when it registered the
    /// callback.
    Given {
        name: String,
        /// Index of the function's argument, if it has such a one.
        argument: Option<usize>,
    },
    /// An address in the memory of that argument of the function: how far in travels.
    Within {
        argument: usize,
    },
    /// A pointer that does not cross: the other side gets NULL, whatever it was.
    Null,
    /// A pointer without a description. It is an error where the value crosses.
    Unknown,
    FunctionPointer {
        name: Expr,
    },
    Table(usize),
    /// A `void` result.
    Nothing,
}

/// A member that begins a list of structs: each says what it is, and where the next one is. They flow as the struct does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// Place and width in bytes of the member that says what a link is, in every link.
    pub kind: (usize, usize),
    /// Place of the pointer to the next link.
    pub next: usize,
    pub links: Vec<Link>,
    /// A link that no description names makes the call fail; else it is left out.
    pub refuse: bool,
}

/// One struct that a chain may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    pub kind: u64,
    /// In bytes.
    pub size: usize,
}

/// The pointers and handles of the declared type that a `type_cast` makes plain bytes.
#[derive(Debug, Clone)]
pub struct Hidden {
    /// Their names, from outside in.
    pub members: Vec<String>,
    /// The `type_cast`.
    pub span: Span,
}

/// The meaning of a [`Kind::Number`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Number {
    /// An integer of no handle type, although its type says that it is something else.
    Opaque,
    /// An address of device memory: the vendor's library checks it before it uses it.
    DeviceAddress,
    /// The vendor's library keeps it for the application and never follows it.
    Token,
}

/// A struct that the application allocates and whose hidden members are the library's. The server has the whole struct, from
/// the call that makes it to its end; the application's has the key to it in place of the first hidden member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateStruct {
    /// Number of the type among all such structs of the API, from 1.
    pub kind: u32,
    /// Bytes of the struct.
    pub size: usize,
    /// Offset of the key, in bytes that the application does not see.
    pub key: usize,
    /// The bytes that cross: offset and length of each run between hidden members.
    pub visible: Vec<(usize, usize)>,
    /// Offset and length of parts of hidden members that the application reads: they come back after each call.
    pub shown: Vec<(usize, usize)>,
    /// A copy of the struct is a second state.
    pub copies: bool,
}

/// Bytes of the key in the application's struct.
pub const STATE_KEY: usize = 32;

/// Library memory that the application reads and writes until it is unmapped.
#[derive(Debug, Clone)]
pub struct Mapped {
    pub bytes: Expr,
    /// The guest address where it must appear, unless that is NULL.
    pub at: Option<Expr>,
    /// Whether its old content matters, and whether the application may have changed it.
    pub access: Access,
}

#[derive(Debug, Clone)]
pub struct Buffer {
    /// Rule of one element; its type's size is the stride.
    pub element: Rule,
    pub element_type: Type,
    pub count: Count,
    pub returned: Option<Expr>,
    /// The library writes all of it.
    pub written: bool,
    /// Only rows of it travel.
    pub rows: Option<Box<RowShape>>,
    pub no_copy: bool,
    pub zerocopy: bool,
    pub way: BufferWay,
    /// The library may work on it in the application's memory, which other threads of the application can change meanwhile.
    pub in_place: bool,
    /// The library needs it at a multiple of this.
    pub align: usize,
    /// Of memory that is kept with a state: index into [`super::Model::resources`].
    pub scratch_resource: Option<usize>,
    /// Of an input that the library consumes piece by piece: elements before the pointer that it still reads.
    pub history: usize,
}

/// How the library treats the pointer to a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BufferWay {
    /// Data behind it is read or written.
    #[default]
    Fixed,
    /// The pointer is advanced by what was read or written; another member counts what remains.
    Cursor,
    /// Data of the library's own lies there between the calls of a state; the application never looks at it.
    Scratch,
    /// A state, and the call leaves what its members lead to alone.
    Resting,
}

#[derive(Debug, Clone)]
pub enum Count {
    One,
    Elements(Expr),
    /// Ends with a zero element at an index divisible by the step.
    Terminated {
        step: usize,
    },
}

#[derive(Debug, Clone)]
pub enum Lifetime {
    Call,
    Manual,
    Coupled(Expr),
    Until {
        token: Expr,
        poll: usize,
    },
    /// Memory of the application's that the library uses as long as that handle.
    Bound(Expr),
    /// Memory of the library's, as long as that handle.
    Owned(Expr),
    /// Memory of the library's, until the application calls the function of that name.
    OwnedUntil(FunctionName),
    /// Memory of the library's, until the application frees it: index into [`super::Model::freed`].
    FreedBy(usize),
    /// Memory that the library has from an allocator which is not its own, until the application frees it with that
    /// allocator's function, in its own process.
    Allocated {
        free: String,
    },
}

#[derive(Debug, Clone)]
pub struct Callback {
    pub signature: Signature,
    pub parameters: Vec<String>,
    pub arguments: Vec<Rule>,
    pub result: Rule,
    /// Parameter of the *callback* that hands the context back.
    pub userdata: Option<usize>,
    /// Parameter of the *function* that supplies it.
    pub userdata_argument: Option<usize>,
    /// Parameters of the *callback* that have the error type.
    pub errors: Vec<usize>,
    pub once: bool,
    /// The vendor's library does not wait for the application.
    pub posted: bool,
    /// It is not called where it is pending when the session is lost.
    pub unless_lost: bool,
    /// Utility functions that retain and release the object that the callback hands back.
    pub held_by: Option<(usize, usize)>,
}

impl Buffer {
    /// One element of which nothing else is said.
    pub fn one(element: Rule, element_type: Type) -> Buffer {
        Buffer {
            element,
            element_type,
            count: Count::One,
            returned: None,
            written: false,
            rows: None,
            no_copy: false,
            zerocopy: false,
            way: BufferWay::Fixed,
            in_place: false,
            align: 1,
            scratch_resource: None,
            history: 0,
        }
    }
}

impl Plan {
    /// True of memory of the library's for which the guest has a number.
    pub fn is_numbered_memory(&self) -> bool {
        matches!(self.kind, Kind::Resident { .. }) || matches!(self.lifetime, Lifetime::FreedBy(_))
    }
}

impl Lifetime {
    /// True of memory that the library hands out.
    pub fn is_of_library(&self) -> bool {
        matches!(self, Lifetime::Owned(_) | Lifetime::OwnedUntil(_) | Lifetime::FreedBy(_) | Lifetime::Allocated { .. })
    }
}

impl Kind {
    /// True of what may be a piece of memory that the library hands out.
    pub fn is_given_memory(&self) -> bool {
        matches!(self, Kind::String | Kind::Buffer(_) | Kind::Resident { .. })
    }
}
