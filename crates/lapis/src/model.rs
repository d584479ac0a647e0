//! The resolved specification: what the front end hands to the lowering.
//!
//! Names are resolved against the header, expressions are typed, conditional
//! descriptors are folded into decision trees ([`Rule`]). Nothing here refers
//! to source text except through [`Span`], which diagnostics need.

use crate::source::Span;

mod memory;

pub use memory::*;

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
    pub exported: Vec<crate::exported::ExportedVariable>,
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
            if let (Kind::Handle { handle, .. }, Some(_)) = (&plan.kind, plan.state) {
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

/// A C type as far as marshalling needs it.
#[derive(Debug, Clone, PartialEq)]
pub struct Type {
    pub kind: TypeKind,
    /// As written in the header (`cl_mem`, `const char *`).
    pub spelling: String,
    /// Index into [`Model::handle_types`] if values of this type are handles.
    pub handle: Option<usize>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum TypeKind {
    Void,
    Int {
        bytes: usize,
        signed: bool,
    },
    Float {
        bytes: usize,
    },
    /// `constant`: the pointee is const.
    Pointer {
        to: Box<Type>,
        constant: bool,
    },
    FunctionPointer(Box<Signature>),
    Struct(Struct),
    Array {
        of: Box<Type>,
        count: usize,
    },
    /// An incomplete struct, seen only behind pointers.
    Incomplete,
}

/// A complete struct or union; anonymous members are flattened into their parent.
#[derive(Debug, Clone, PartialEq)]
pub struct Struct {
    pub name: String,
    pub size: usize,
    pub align: usize,
    pub union: bool,
    pub fields: Vec<Field>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Field {
    pub name: String,
    /// Offset in bytes.
    pub offset: usize,
    pub ty: Type,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Signature {
    pub parameters: Vec<(String, Type)>,
    pub result: Type,
    pub variadic: bool,
    /// The calling convention, where it is not C's: no generated code can make such a call.
    pub foreign: Option<String>,
}

impl Signature {
    /// True if Rust passes all of its values as C does: numbers of up to eight bytes and addresses.
    pub fn is_plain(&self) -> bool {
        self.parameters.iter().all(|(_, ty)| ty.is_plain()) && self.result.is_plain()
    }
}

impl Type {
    /// True if values are numbers of up to eight bytes or addresses, or there are none.
    pub fn is_plain(&self) -> bool {
        !matches!(self.kind, TypeKind::Struct(_) | TypeKind::Array { .. } | TypeKind::Incomplete)
    }

    /// True if a value can be passed at all: all that is in it is known.
    pub fn is_value(&self) -> bool {
        !matches!(self.kind, TypeKind::Array { .. }) && self.is_known()
    }

    fn is_known(&self) -> bool {
        match &self.kind {
            TypeKind::Incomplete => false,
            TypeKind::Struct(s) => s.fields.iter().all(|f| f.ty.is_known()),
            TypeKind::Array { of, .. } => of.is_known(),
            _ => true,
        }
    }

    /// The members through which a value of this type leads elsewhere: pointers and functions that are no handles, by
    /// their names from outside in; one unnamed if it is such a pointer itself.
    pub fn pointers(&self) -> Vec<String> {
        let mut found = Vec::new();
        self.find_pointers(String::new(), false, &mut found);
        found
    }

    /// [`Type::pointers`], and the handles as well.
    pub fn translated(&self) -> Vec<String> {
        let mut found = Vec::new();
        self.find_pointers(String::new(), true, &mut found);
        found
    }

    fn find_pointers(&self, path: String, handles: bool, found: &mut Vec<String>) {
        match &self.kind {
            _ if self.handle.is_some() => found.extend(handles.then_some(path)),
            TypeKind::Pointer { .. } | TypeKind::FunctionPointer(_) => found.push(path),
            TypeKind::Struct(s) => s.fields.iter().for_each(|f| {
                let dot = if path.is_empty() { "" } else { "." };
                f.ty.find_pointers(format!("{path}{dot}{}", f.name), handles, found);
            }),
            TypeKind::Array { of, .. } => of.find_pointers(path, handles, found),
            _ => {}
        }
    }

    /// Size in bytes of one value (`void` counts as a byte, as in `buffer` of `void *`).
    pub fn size(&self) -> usize {
        match &self.kind {
            TypeKind::Void | TypeKind::Incomplete => 1,
            TypeKind::Int { bytes, .. } | TypeKind::Float { bytes } => *bytes,
            TypeKind::Pointer { .. } | TypeKind::FunctionPointer(_) => 8,
            TypeKind::Struct(s) => s.size,
            TypeKind::Array { of, count } => of.size() * count,
        }
    }

    pub fn pointee(&self) -> Option<&Type> {
        match &self.kind {
            TypeKind::Pointer { to, .. } => Some(to),
            _ => None,
        }
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
    pub unpacked: Option<Box<crate::unpacked::Unpacked>>,
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
    pub lost: Option<Expr>,
    pub error: ErrorPlace,
    /// A pure query, whatever the arguments are.
    pub cache: bool,
    /// A pure query where this is true (`cache` is false then).
    pub cache_if: Option<Expr>,
    /// Answered in the guest where the condition is true: the first that holds.
    pub local_if: Vec<Guarded>,
    pub flush: bool,
    pub requirements: Vec<Requirement>,
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
    /// Its calls are kept for the session, the thread, or the object that is current there.
    pub records: Vec<StateRecord>,
    /// Server expressions whose values must come out equal when the call is made again.
    pub same: Vec<Guarded>,
    pub stateless: Option<Stateless>,
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

/// Indices of utility functions of the server that save and restore a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateFunctions {
    pub write: usize,
    pub read: usize,
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
    /// It returns an object of this type: index into [`Model::statuses`].
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
    /// Index into [`Model::resources`].
    pub resource: usize,
    pub amount: Expr,
    /// Server expression, evaluated before the amount: a number that stands for devices, 0 for none.
    pub place: Option<Expr>,
}

#[derive(Debug, Clone)]
pub struct Registered {
    pub condition: Option<Expr>,
    /// Index into [`Model::registries`].
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
    /// `obj_state_cbs`
    pub state: Option<StateFunctions>,
    pub span: Span,
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

/// A struct whose member says how many bytes of it the caller has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sized {
    /// Of that member, in bytes.
    pub offset: usize,
    pub width: usize,
    /// The fewest bytes that a caller may have.
    pub required: usize,
    /// All bytes of the struct, as the header has it.
    pub total: usize,
}

/// A struct that the application allocates and whose hidden members are the library's. The server has the whole struct, from
/// the call that makes it to its end; the application's has the key to it in place of the first hidden member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateStruct {
    /// Number of the type among all such structs of the API, from 1.
    pub kind: u32,
    /// Bytes of the struct.
    pub size: usize,
    /// Offset of the first hidden member.
    pub key: usize,
    /// The bytes that cross: offset and length of each run between hidden members.
    pub visible: Vec<(usize, usize)>,
}

/// Bytes of the key in the application's struct.
pub const STATE_KEY: usize = 24;

/// Library memory that the application reads and writes until it is unmapped.
#[derive(Debug, Clone)]
pub struct Mapped {
    pub bytes: Expr,
    /// The guest address where it must appear, unless that is NULL.
    pub at: Option<Expr>,
    /// True if the application may have changed it.
    pub write: Option<Expr>,
    /// True if its old content matters.
    pub read: Option<Expr>,
}

#[derive(Debug, Clone)]
pub struct Buffer {
    /// Rule of one element; its type's size is the stride.
    pub element: Rule,
    pub element_type: Type,
    pub count: Count,
    pub returned: Option<Expr>,
    pub no_copy: bool,
    pub zerocopy: bool,
    pub way: BufferWay,
    /// The library may work on it in the application's memory, which other threads of the application can change meanwhile.
    pub in_place: bool,
    /// The library needs it at a multiple of this.
    pub align: usize,
    /// Of memory that is kept with a state: index into [`Model::resources`].
    pub scratch_resource: Option<usize>,
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
    /// Memory of the library's, until the application frees it: index into [`Model::freed`].
    FreedBy(usize),
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

/// A typed expression.
#[derive(Debug, Clone, PartialEq)]
pub struct Expr {
    pub kind: ExprKind,
    pub ty: Type,
    pub span: Span,
}

#[derive(Debug, Clone, PartialEq)]
pub enum ExprKind {
    /// Also characters, enum constants, macros, `sizeof`.
    Int(i128),
    Float(f64),
    String(String),
    Null,
    Parameter(usize),
    /// A contextual argument.
    Contextual(usize),
    /// The value that the function returned.
    Ret,
    /// True if the user allows more errors to be reported late; known in the guest only.
    Relaxed,
    /// Index of the element at hand; 0 is the innermost enclosing `element`.
    Index(usize),
    /// The element at hand itself, of memory that the library hands out; counted as `Index` is. Always under a `Field`.
    Here(usize),
    Unary(Unary, Box<Expr>),
    Binary(Binary, Box<Expr>, Box<Expr>),
    Conditional(Box<Expr>, Box<Expr>, Box<Expr>),
    Cast(Box<Expr>),
    /// `*p` and `p[i]`; `*p` is `p[0]`.
    Element(Box<Expr>, Box<Expr>),
    /// `s.f` (`p->f` is `p[0].f`), by offset in bytes.
    Field(Box<Expr>, usize),
    /// The metadata structure of this kind that a handle carries; always under a `Field`.
    Metadata(Box<Expr>, u32),
    /// The address of a function table in the guest, by its name.
    Table(usize),
    Call(Callee, Vec<Expr>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unary {
    Negate,
    Not,
    Complement,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Binary {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
    ShiftLeft,
    ShiftRight,
    And,
    Or,
    Xor,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    Equal,
    NotEqual,
    LogicalAnd,
    LogicalOr,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Callee {
    /// Index into [`Model::utility_functions`].
    Utility(usize),
    Min,
    Max,
    Strlen,
    Present,
    IsHandle,
    /// Arguments: registry (an `Int` index), key.
    GetBufs,
    GetNBufs,
    GetBufSize,
    ZerocopyAlloc,
    ZerocopyFree,
}

impl Expr {
    /// Visits this expression and all below it.
    pub fn walk(&self, visit: &mut dyn FnMut(&Expr)) {
        visit(self);
        match &self.kind {
            ExprKind::Unary(_, a) | ExprKind::Cast(a) | ExprKind::Field(a, _) | ExprKind::Metadata(a, _) => {
                a.walk(visit)
            }
            ExprKind::Binary(_, a, b) | ExprKind::Element(a, b) => {
                a.walk(visit);
                b.walk(visit);
            }
            ExprKind::Conditional(a, b, c) => {
                a.walk(visit);
                b.walk(visit);
                c.walk(visit);
            }
            ExprKind::Call(_, arguments) => arguments.iter().for_each(|a| a.walk(visit)),
            _ => {}
        }
    }
}
