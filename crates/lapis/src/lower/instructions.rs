//! The instructions that a function is lowered to.

use crate::model::*;

/// Everything the printers need beyond the [`Model`].
#[derive(Debug, Clone)]
pub struct Program {
    /// Same order and index as [`Model::functions`].
    pub functions: Vec<Lowered>,
    /// Callback kinds, numbered over all functions.
    pub callbacks: Vec<LoweredCallback>,
}

/// One function, lowered.
#[derive(Debug, Clone)]
pub struct Lowered {
    /// Arguments and contextual arguments, in an order in which every
    /// expression only uses what came before it.
    pub arguments: Vec<Instruction>,
    /// The returned value; it travels at the head of the reply.
    pub result: Instruction,
    /// True if this call belongs to an object's log.
    pub recorded: bool,
    /// Conditions that only the guest can evaluate, and the sites at which their values travel:
    /// there the server finds them when it needs them again.
    pub carried: Vec<(Expr, Site)>,
    /// Arguments that may name the same memory.
    pub overlapping: Overlapping,
}

/// One kind of callback: how its parameters reach the guest.
#[derive(Debug, Clone)]
pub struct LoweredCallback {
    pub callback: Callback,
    pub arguments: Vec<Instruction>,
    pub result: Instruction,
    /// The type of the handle that it hands back: an argument of the function that registers it.
    pub hands_back: Option<usize>,
}

/// Where a value lives while an instruction works on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueLocation {
    Argument(usize),
    Contextual(usize),
    /// In the element that the loop at this depth (0 is the outermost) is at, `offset` bytes in.
    Element {
        depth: usize,
        offset: usize,
    },
    Result,
}

#[derive(Debug, Clone)]
pub struct Instruction {
    pub at: ValueLocation,
    pub ty: Type,
    pub operation: Operation,
}

#[derive(Debug, Clone)]
pub enum Operation {
    /// Crosses as it is.
    Scalar,
    /// A pointer of which only the presence crosses, and that for arguments only: the server has NULL. `cleared`: the
    /// guest gets NULL, too, instead of keeping what is there.
    Null {
        cleared: bool,
    },
    /// One of these values crosses as it is.
    Constant {
        values: Vec<u64>,
    },
    /// An address in the memory of that argument, as far in as it is on the server.
    Within {
        argument: usize,
    },
    /// A struct whose bytes cross and whose listed members are then translated.
    Struct {
        fields: Vec<Instruction>,
        /// Only in the element of an argument: the guest works on a whole copy, the server checks the size.
        sized: Option<Sized>,
        /// Only in the element of an argument: the server has the struct, whatever the guest sends.
        state: Option<StateStruct>,
    },
    Handle(HandleUse),
    /// A NUL-terminated string. `output`: the library may have put one of its own there.
    Text {
        output: bool,
        lifetime: Lifetime,
    },
    /// A pointer to bytes that need no translation.
    Bytes(Bytes),
    /// A pointer to elements that are translated one by one.
    Elements(Elements),
    Callback {
        kind: usize,
        once: bool,
        userdata: Option<usize>,
        keeps: Option<KeptHandle>,
        /// Arguments of the function that the callback hands back as they were.
        gives: Vec<usize>,
    },
    /// In a callback: one of these, by its place among them.
    Given {
        place: usize,
    },
    /// A list of structs, which come back where the struct does in which it begins.
    Chain(Chain),
    /// Nothing crosses: the server substitutes the callback's closure.
    Userdata,
    Zerocopy {
        bytes: Option<Expr>,
    },
    /// The poll function says when its content is there.
    Mapped {
        mapped: Mapped,
        until: Option<(Expr, usize)>,
    },
    Unmap,
    /// Memory that the library has handed out, and that the guest knows by its copy.
    Frees,
    /// Memory of the library's of which the guest has a copy as long as the owner, exchanged with calls that use it.
    Resident {
        bytes: Expr,
        owner: Expr,
    },
    FunctionPointer {
        name: Expr,
    },
    Table(usize),
    Nothing,
    /// The value takes one of two ways.
    Choice {
        site: Site,
        condition: Expr,
        then: Vec<Instruction>,
        otherwise: Vec<Instruction>,
    },
}

/// A value computed in the request pass that the reply pass needs again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Site {
    pub number: usize,
    /// Inside a loop the value is kept in a queue instead of a variable.
    pub nested: bool,
    /// The guest computes it and sends it; otherwise both sides compute it.
    pub carried: bool,
}

/// A handle that a callback hands back: the application finds its own value, whatever it has released.
#[derive(Debug, Clone, Copy)]
pub struct KeptHandle {
    /// Index of the function's argument.
    pub argument: usize,
    /// Index of the handle type.
    pub handle: usize,
    /// Utility functions that keep the object alive on the server until the callback has run.
    pub held_by: Option<(usize, usize)>,
}

#[derive(Debug, Clone)]
pub struct HandleUse {
    pub handle: usize,
    /// Where the call is asynchronous the guest chooses the id of the object that it creates.
    pub minted: bool,
    pub retain: bool,
    pub release: bool,
    pub object: ObjectUse,
}

#[derive(Debug, Clone)]
pub struct Extent {
    pub site: Site,
    pub count: Count,
    /// Size of an element in bytes.
    pub stride: usize,
    /// Under which condition the server provides storage although the guest passed NULL.
    pub forced: When,
}

#[derive(Debug, Clone)]
pub struct Bytes {
    pub extent: Extent,
    pub mode: Mode,
    pub returned: Option<Expr>,
    /// An output of a type that depends on what was asked: no address of the server's process may be among it.
    pub answer: bool,
    /// All that counts of an output is written by the library. Of others what it leaves alone stays as the application has
    /// it, for which their content travels.
    pub written: bool,
    pub rows: Option<Box<RowShape>>,
    /// The server must work on a private copy because it evaluates expressions over the contents.
    pub private: bool,
    /// The library advances the pointer; how far, comes back.
    pub cursor: bool,
    /// Bytes before the pointer that the library still reads, of those that it has consumed.
    pub history: usize,
    /// The address is a multiple of this.
    pub align: usize,
    pub lifetime: Lifetime,
}

#[derive(Debug, Clone)]
pub enum Mode {
    Copy {
        input: bool,
        output: bool,
    },
    Until {
        input: bool,
        output: bool,
        token: Expr,
        poll: usize,
    },
    /// A shadow buffer that outlives the call, until a `deallocate` or as long as a handle.
    Shadow {
        input: bool,
        coupled: Option<Expr>,
    },
    /// A shadow as long as that object, exchanged with calls that use it.
    Bound {
        object: Expr,
    },
    /// Copies an existing shadow back; `end` also frees it.
    ShadowBack {
        end: bool,
    },
    /// Only an address with room behind it.
    Room,
    /// A member of a state in a call that leaves its memory alone: nothing is sent, the library may change the pointer.
    Resting,
    /// Memory that the server keeps with a state; the address and size in the guest tell one from another.
    /// `resource`: the account, an index into [`Model::resources`].
    Scratch {
        resource: Option<usize>,
    },
}

#[derive(Debug, Clone)]
pub struct Elements {
    pub extent: Extent,
    pub input: bool,
    pub output: bool,
    pub returned: Option<Expr>,
    pub element: Vec<Instruction>,
    pub element_type: Type,
    /// The call makes the state that is the element, or ends it.
    pub makes: bool,
    pub ends: bool,
    pub lifetime: Lifetime,
}

impl Elements {
    /// The state that an argument points to, and its members.
    pub fn state(&self) -> Option<(&StateStruct, &[Instruction])> {
        match &self.element.first()?.operation {
            Operation::Struct { fields, state: Some(state), .. } => Some((state, fields)),
            _ => None,
        }
    }

    /// True if the server keeps what it passed beside what the vendor's function left: pointers among the elements
    /// that are looked at again after the call, and what goes back only as far as it has changed.
    pub fn kept_twice(&self) -> bool {
        let passed = self.input && self.element.iter().any(|i| i.holds_pointer() && i.replies());
        passed || self.output && self.element.iter().any(|i| i.holds_pointer() || i.holds_bytes())
    }

    /// True if the content of what only flows out travels, because the library may leave a part of it alone.
    pub fn shows_content(&self) -> bool {
        self.output && !self.input && self.element.iter().any(Instruction::holds_bytes)
    }
}

impl Instruction {
    /// True if bytes of the value cross as they are.
    fn holds_bytes(&self) -> bool {
        match &self.operation {
            Operation::Scalar | Operation::Struct { .. } => true,
            Operation::Choice { then, otherwise, .. } => then.iter().chain(otherwise).any(Instruction::holds_bytes),
            _ => false,
        }
    }

    /// True if the value is, or has as a member, the address of memory that the server provides.
    fn holds_pointer(&self) -> bool {
        match &self.operation {
            Operation::Text { .. } | Operation::Bytes(_) | Operation::Elements(_) | Operation::Chain(_) => true,
            Operation::Null { cleared: true } | Operation::Resident { .. } | Operation::Within { .. } => true,
            Operation::Struct { fields, .. } => fields.iter().any(Instruction::holds_pointer),
            Operation::Choice { then, otherwise, .. } => then.iter().chain(otherwise).any(Instruction::holds_pointer),
            _ => false,
        }
    }

    /// True if the reply pass has something to do for this value.
    pub fn replies(&self) -> bool {
        match &self.operation {
            Operation::Bytes(b) => {
                b.cursor
                    || !matches!(
                        b.mode,
                        Mode::Copy { output: false, .. } | Mode::Shadow { .. } | Mode::Bound { .. } | Mode::Room
                    )
            }
            Operation::Elements(e) => e.output || e.element.iter().any(Instruction::replies),
            Operation::Struct { fields, .. } => fields.iter().any(Instruction::replies),
            Operation::Choice { then, otherwise, .. } => then.iter().chain(otherwise).any(Instruction::replies),
            _ => false,
        }
    }

    /// True if the guest may choose the ids of what the call creates here.
    pub fn mints(&self) -> bool {
        match &self.operation {
            Operation::Handle(h) => h.minted,
            Operation::Elements(e) => e.element.iter().any(Instruction::mints),
            Operation::Choice { then, otherwise, .. } => then.iter().chain(otherwise).any(Instruction::mints),
            _ => false,
        }
    }

    /// True if a successful call changes the life of handles or shadows passed here.
    pub fn has_effects(&self) -> bool {
        match &self.operation {
            Operation::Handle(h) => {
                let object = &h.object;
                let sets = matches!(object.referring, Some(Referring::Sets { .. }));
                !object.allocate && !object.memory.shares.is_empty()
                    || object.deallocate
                    || h.retain
                    || h.release
                    || object.record.is_some()
                    || sets
            }
            Operation::Bytes(b) => matches!(b.mode, Mode::Shadow { coupled: Some(_), .. } | Mode::Bound { .. }),
            Operation::Elements(e) => e.input && e.element.iter().any(Instruction::has_effects),
            Operation::Choice { then, otherwise, .. } => then.iter().chain(otherwise).any(Instruction::has_effects),
            _ => false,
        }
    }
}

/// Which arguments of a call may name the same memory.
#[derive(Debug, Clone, Default)]
pub struct Overlapping {
    /// The request notes what memory it names.
    pub watched: bool,
    /// Arguments that lie apart from all others.
    pub apart: Vec<usize>,
    /// The server works on a copy of memory that is named twice.
    pub private: bool,
}

impl Instruction {
    /// True if the call may change memory that is bound to a handle here.
    pub fn uses_memory(&self) -> bool {
        match &self.operation {
            Operation::Handle(h) => h.object.memory.used.write.is_possible(),
            Operation::Elements(e) => e.element.iter().any(Instruction::uses_memory),
            Operation::Struct { fields, .. } => fields.iter().any(Instruction::uses_memory),
            Operation::Choice { then, otherwise, .. } => then.iter().chain(otherwise).any(Instruction::uses_memory),
            _ => false,
        }
    }
}
