//! The resolved specification: what the front end hands to the lowering.
//!
//! Names are resolved against the header, expressions are typed, conditional
//! descriptors are folded into decision trees ([`Rule`]). Nothing here refers
//! to source text except through [`Span`], which diagnostics need.

mod expressions;
mod functions;
mod memory;
mod plans;
mod types;
mod variables;

pub use expressions::*;
pub use functions::*;
pub use memory::*;
pub use plans::*;
pub use types::*;
pub use variables::*;

use crate::syntax::source::Span;

/// One API: everything a generator may know.
#[derive(Debug, Clone, Default)]
pub struct Model {
    pub api: Api,
    /// `#define`, `#include` and `#support` lines, in order, as C text for the
    /// parts of the generated code that are C.
    pub preamble: Vec<String>,
    /// C declarations written in the specification (structs, typedefs, enums).
    pub declarations: Vec<String>,
    /// Utility code that stands in the specification itself.
    pub utilities: Vec<Utility>,
    /// Files of utility code: translation units.
    pub utility_files: Vec<UtilityFile>,
    pub handle_types: Vec<HandleType>,
    pub resources: Vec<Resource>,
    pub policy: Option<Policy>,
    /// The structures that handles carry, as the specification spells them. Their kinds are numbered from 1 in this order.
    pub metadata: Vec<String>,
    pub registries: Vec<String>,
    /// The structs that the server keeps, by name. Their kinds are numbered from 1 in this order.
    pub states: Vec<String>,
    pub tables: Vec<Table>,
    pub launch: Vec<Launch>,
    /// Needs of the vendor's library in a sandbox; `None`: the specification does not say.
    pub sandbox: Option<Sandbox>,
    /// Names of the variables that steer the vendor's library and that an application may set for itself, each once.
    pub passed_variables: Vec<String>,
    /// Variables of the vendor's library that the guest library has, too.
    pub exported: Vec<ExportedVariable>,
    /// Functions that the vendor's library exports and no header of the API declares.
    pub undeclared: Vec<String>,
    pub error: Option<ErrorType>,
    pub statuses: Vec<StatusType>,
    /// Every function of the header, then table members described as `table.member`.
    pub functions: Vec<Function>,
    /// Utility functions that expressions call, by index of [`Callee::Utility`].
    pub utility_functions: Vec<UtilityFunction>,
    /// Utility function that waits until the vendor's library has finished what it was given.
    pub quiesce: Option<usize>,
    /// Utility function of the server that answers why the session cannot move now.
    pub stays: Option<usize>,
    /// Utility function of the server that answers how many bytes of content a state would have now, beside its pieces.
    pub contents: Option<usize>,
    /// Functions for the state that the library and utility code keep for the process, beside objects.
    pub state: Option<StateFunctions>,
    /// The functions that free memory of the library's, by index of [`Lifetime::FreedBy`].
    pub freed: Vec<FreeingFunctions>,
    /// Directories for `#include`, as given on the command line or by the specification's place.
    pub include_dirs: Vec<std::path::PathBuf>,
    /// Macros of the command line: `NAME` or `NAME=VALUE`.
    pub defines: Vec<String>,
}

#[derive(Debug, Clone, Default)]
pub struct Api {
    pub name: String,
    pub version: String,
    pub soname: String,
    /// Further files of the vendor's library: what the first one lacks is looked for there.
    pub libraries: Vec<String>,
    /// Symbol versions of other releases of the library, to which the guest library answers as well.
    pub versions: Vec<String>,
    /// To all that differ from the library's own in their later numbers.
    pub any_version: bool,
}

/// Which side of the connection something lives on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Guest,
    Server,
    Both,
}

impl Side {
    /// Code of this side is part of `side`'s library.
    pub fn includes(self, side: Side) -> bool {
        self == Side::Both || self == side
    }
}

/// C in the specification.
#[derive(Debug, Clone)]
pub struct Utility {
    pub side: Side,
    pub code: String,
    pub span: Span,
}

/// A file of C beside the specification.
#[derive(Debug, Clone)]
pub struct UtilityFile {
    pub side: Side,
    /// Absolute.
    pub path: std::path::PathBuf,
    pub span: Span,
}

/// A C function defined in a utility block.
#[derive(Debug, Clone)]
pub struct UtilityFunction {
    pub name: String,
    pub side: Side,
    /// A function of the API itself: the guest's own stub.
    pub stub: bool,
    pub parameters: Vec<Type>,
    pub result: Type,
}

impl UtilityFunction {
    /// See [`Signature::is_plain`].
    pub fn is_plain(&self) -> bool {
        self.parameters.iter().chain([&self.result]).all(Type::is_plain)
    }
}

/// The largest predefined handle: what the runtimes (aviary-wire) can tell from the id of an object.
pub const MAX_PREDEFINED: u64 = 0xffff;

#[derive(Debug, Clone)]
pub struct HandleType {
    pub name: String,
    /// Size in bytes of a value of the type: 4 or 8.
    pub size: usize,
    /// First word of the block a guest handle points to (evaluated in the guest).
    pub boxed: Option<Expr>,
    /// The table of which a guest handle has a copy: index into [`Model::tables`].
    pub shape: Option<usize>,
    /// Error code for a handle that does not exist.
    pub invalid: Option<Expr>,
    /// Values that are no created objects and cross as they are: small and not 0.
    pub predefined: Vec<u64>,
    pub metadata: Option<Metadata>,
    /// Utility function that answers the name by which another process finds an object.
    pub identity: Option<usize>,
    /// Why a session with such an object cannot be moved.
    pub blocker: Option<String>,
    /// Objects that no record makes again.
    pub remade: Option<RemadeFunctions>,
    /// Objects with device memory that can leave the device.
    pub evictable: Option<EvictFunctions>,
    /// Utility function that releases an object whose memory leaves: its recorded calls make it again.
    pub dropped: Option<usize>,
    /// An object of the type is current on each thread, and calls depend on it.
    pub current: Option<CurrentFunctions>,
}

/// Utility functions that tell and set the object that is current on the calling thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CurrentFunctions {
    pub get: usize,
    pub set: usize,
}

/// Utility functions that save an object of a type and make it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemadeFunctions {
    pub save: usize,
    pub make: usize,
    pub load: usize,
}

/// Utility functions that take the device memory of an object away and bring it back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EvictFunctions {
    pub bytes: usize,
    pub out: usize,
    pub back: usize,
    /// Tells on which device the memory is, where the objects are charged for none.
    pub device: Option<usize>,
}

impl HandleType {
    /// A type of which nothing else is said.
    pub fn plain(name: String, size: usize) -> HandleType {
        HandleType {
            name,
            size,
            boxed: None,
            shape: None,
            invalid: None,
            predefined: Vec::new(),
            metadata: None,
            identity: None,
            blocker: None,
            remade: None,
            evictable: None,
            dropped: None,
            current: None,
        }
    }
}

/// The structure that each handle of a type carries, zero-initialised, on either side its own.
#[derive(Debug, Clone, PartialEq)]
pub struct Metadata {
    /// From 1: the place of the structure in [`Model::metadata`].
    pub kind: u32,
    pub ty: Type,
}

/// The policy that schedules devices where a node's configuration says `ebpf` and no more.
#[derive(Debug, Clone)]
pub struct Policy {
    /// As the specification names it.
    pub file: String,
    /// The verified object, or why there is none: no compiler.
    pub object: Result<Vec<u8>, String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResourceKind {
    Continuous,
    Instantaneous,
}

#[derive(Debug, Clone)]
pub struct Resource {
    pub name: String,
    pub kind: ResourceKind,
    /// Utility function that names the devices that it lies on: every charge says on which.
    pub devices: Option<usize>,
}

/// A struct of function pointers that the guest library fills.
#[derive(Debug, Clone)]
pub struct Table {
    pub name: String,
    /// Size in bytes of the C struct.
    pub size: usize,
    /// Member offset in bytes and the index of its function in [`Model::functions`], if it has one.
    pub members: Vec<TableMember>,
    /// The vendor's table, of which the members are taken.
    pub source: Option<TableSource>,
}

/// A table of the vendor's library, and what the guest's copy of it has beside functions.
#[derive(Debug, Clone)]
pub struct TableSource {
    /// Server expression: the address of the table, or NULL.
    pub address: Expr,
    /// The member that says how many bytes of the table there are; without it there are all that the header has.
    pub sized: Option<TableValue>,
    /// Numbers, which have the vendor's values; in order of their places.
    pub values: Vec<TableValue>,
    /// Functions behind the header's, of later versions of the table: none is virtualized.
    pub longer: usize,
    pub chain: Option<TableChain>,
}

/// Tables that a pointer of another one leads to, each with a pointer to the next one: those of them that the vendor has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableChain {
    /// Place of the pointer to the first one, in bytes.
    pub head: usize,
    /// Each by its index in [`Model::tables`], and the place of its pointer to the next one.
    pub links: Vec<(usize, usize)>,
}

/// A number in a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableValue {
    /// In bytes.
    pub offset: usize,
    pub width: usize,
    /// The largest value that the guest's table may have, which is what the header has.
    pub most: Option<u64>,
}

#[derive(Debug, Clone)]
pub struct TableMember {
    pub name: String,
    pub offset: usize,
    pub function: Option<usize>,
}

/// The steps of `aviary run` and `aviary spec build` so that programs find the guest library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Launch {
    Environment { name: String, value: String },
    File { path: String, content: String },
    DropIn { soname: String, only_if_missing: bool },
    Program { name: String },
}

/// Needs of API servers of this API in a sandbox, beside what all API servers have. Checked, as the specification spells it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sandbox {
    /// Absolute paths of files and directories that they read.
    pub read: Vec<String>,
    /// Paths of device nodes; `*` may end one.
    pub devices: Vec<String>,
    /// Names of system calls.
    pub system_calls: Vec<String>,
    /// Requests of `ioctl`: the letter of a type, a number or two.
    pub ioctls: Vec<String>,
}

/// The type with which functions report errors, and its codes.
#[derive(Debug, Clone)]
pub struct ErrorType {
    pub ty: Type,
    /// Canonical typedef name, e.g. `cl_int`: functions returning exactly this type report by return value.
    pub name: String,
    pub success: Expr,
    pub failure: Option<Expr>,
    pub unsupported: Option<Expr>,
    /// Of what the vendor's library lacks; None: as `unsupported`.
    pub absent: Option<Expr>,
    pub lost: Option<Expr>,
}

/// A type of objects that tell how a call ended: functions that return one, or are given one to fill in, report by it.
#[derive(Debug, Clone)]
pub struct StatusType {
    /// Index into [`Model::handle_types`].
    pub handle: usize,
    /// True: calls are given an object. Then the others are codes, and `success` is 0.
    pub given: bool,
    /// A constant, mostly NULL: no object.
    pub success: Expr,
    /// Guest expressions: they make an object, or name one.
    pub failure: Expr,
    pub unsupported: Expr,
    pub absent: Expr,
    pub lost: Expr,
    pub text: Option<StatusText>,
}

/// Code and text of an object go along with the reply of the call that has filled it: indices of utility functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatusText {
    /// Server: the code of an object.
    pub code: usize,
    /// Server: its text, or NULL.
    pub text: usize,
    /// Guest: is told both.
    pub told: usize,
}

impl Model {
    /// The indices in [`Model::freed`] of what a function frees.
    pub fn freed_by(&self, function: &str) -> Vec<usize> {
        let names = |group: &FreeingFunctions| group.functions.iter().any(|known| known.name == function);
        (0..self.freed.len()).filter(|index| names(&self.freed[*index])).collect()
    }

    /// True if a call of the function ends memory that another one has handed out until then.
    pub fn ends_memory(&self, function: &str) -> bool {
        let mut ends = false;
        for other in &self.functions {
            other.each_plan(&mut |plan| {
                ends |= matches!(&plan.lifetime, Lifetime::OwnedUntil(until) if until.name == function);
            });
        }
        ends
    }
}
