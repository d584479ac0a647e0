//! The possible content of registers and stack at one point of one path.

use super::range::Range;
use crate::execute::instruction::Register;
use crate::limits;

/// Memory that a policy's own object declares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Region {
    /// One value of a map.
    Entry(usize),
    /// A section of global variables.
    Data(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// Never written, or no longer readable.
    Unset,
    /// A number. Numbers with equal links (not 0) are equal: knowledge of one holds for all.
    Number {
        range: Range,
        link: u32,
    },
    Context {
        offset: i64,
    },
    /// An address on the stack, as an offset from the frame pointer.
    Stack {
        offset: i64,
    },
    Map(usize),
    /// An address between two offsets of a region. With a link (not 0) it may be NULL instead: all
    /// addresses of the link are NULL, or none.
    Block {
        region: Region,
        low: i64,
        high: i64,
        maybe_null: u32,
    },
}

impl Value {
    pub const ANY: Self = Self::number(Range::ANY);

    pub const fn number(range: Range) -> Self {
        Self::Number { range, link: 0 }
    }

    pub fn describe(&self) -> &'static str {
        match self {
            Self::Unset => "never set",
            Self::Number { .. } => "a number",
            Self::Context { .. } => "the address of the context",
            Self::Stack { .. } => "an address on the stack",
            Self::Map(_) => "a map",
            Self::Block { region: Region::Entry(_), maybe_null: 0, .. } => "the address of a map's value",
            Self::Block { region: Region::Entry(_), .. } => "the address of a map's value or NULL",
            Self::Block { region: Region::Data(_), .. } => "the address of a global variable",
        }
    }
}

/// Eight bytes of the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// Parts of numbers: a bit for each byte that was written, and the ranges of the halves when
    /// read as 32 bits.
    Parts {
        present: u8,
        halves: [Range; 2],
    },
    Whole(Value),
}

impl Slot {
    const HALF: Range = Range::WORD;
    const EMPTY: Self = Self::Parts { present: 0, halves: [Self::HALF; 2] };
}

#[derive(Clone, Debug)]
pub struct State {
    pub registers: [Value; 11],
    /// The used slots, from the frame pointer down.
    stack: Vec<Slot>,
    next_link: u32,
}

/// The slot and the byte in it for an offset from the frame pointer (-512..0).
fn place(offset: i64) -> (usize, u32) {
    let slot = (-offset - 1) / 8;
    (slot as usize, (offset + 8 * (slot + 1)) as u32)
}

impl State {
    pub fn at_entry() -> Self {
        let mut registers = [Value::Unset; 11];
        registers[1] = Value::Context { offset: 0 };
        registers[10] = Value::Stack { offset: 0 };
        Self { registers, stack: Vec::new(), next_link: 1 }
    }

    pub fn get(&self, register: Register) -> Value {
        self.registers[usize::from(register)]
    }

    pub fn set(&mut self, register: Register, value: Value) {
        self.registers[usize::from(register)] = value;
    }

    pub fn new_link(&mut self) -> u32 {
        self.next_link += 1;
        self.next_link
    }

    pub fn slot(&self, offset: i64) -> Slot {
        self.stack.get(place(offset).0).copied().unwrap_or(Slot::EMPTY)
    }

    fn slot_mut(&mut self, offset: i64) -> &mut Slot {
        let (slot, _) = place(offset);
        if self.stack.len() <= slot {
            self.stack.resize(slot + 1, Slot::EMPTY);
        }
        &mut self.stack[slot]
    }

    /// Stores an aligned value; the caller has checked offset and alignment.
    pub fn store(&mut self, offset: i64, bytes: u8, value: Value) {
        let slot = self.slot_mut(offset);
        if bytes == 8 {
            *slot = Slot::Whole(value);
            return;
        }
        let (present, mut halves) = match slot {
            Slot::Parts { present, halves } => (*present, *halves),
            Slot::Whole(Value::Number { .. }) => (0xff, [Slot::HALF; 2]),
            // The rest of an overwritten address is useless and must not be readable.
            Slot::Whole(_) => (0, [Slot::HALF; 2]),
        };
        halves[half(offset)] = match value {
            Value::Number { range, .. } if bytes == 4 => range.low(),
            _ => Slot::HALF,
        };
        *slot = Slot::Parts { present: present | mask(offset, bytes), halves };
    }

    /// Loads an aligned value; the caller has checked offset and alignment.
    pub fn load(&self, offset: i64, bytes: u8) -> Result<Value, &'static str> {
        match self.slot(offset) {
            Slot::Parts { present, halves } if present & mask(offset, bytes) == mask(offset, bytes) => {
                Ok(Value::number(if bytes == 4 { halves[half(offset)] } else { Range::of_bytes(bytes) }))
            }
            Slot::Parts { .. } | Slot::Whole(Value::Unset) => Err("reads stack memory that was never written"),
            Slot::Whole(value) if bytes == 8 => Ok(value),
            Slot::Whole(Value::Number { .. }) => Ok(Value::number(Range::of_bytes(bytes))),
            Slot::Whole(_) => Err("reads a part of an address"),
        }
    }

    /// Checks that all bytes are parts of numbers.
    pub fn numbers(&self, offset: i64, bytes: i64) -> Result<(), &'static str> {
        (offset..offset + bytes).try_for_each(|at| match self.load(at, 1) {
            Ok(_) => Ok(()),
            Err(problem) => Err(problem),
        })
    }

    /// Replaces every number with this link.
    pub fn learn(&mut self, link: u32, range: Range) {
        for value in self.values_mut() {
            if let Value::Number { range: old, link: other } = value
                && *other == link
            {
                *old = range;
            }
        }
    }

    /// Applies a NULL test: the addresses of this link are addresses, or 0.
    pub fn resolve(&mut self, link: u32, null: bool) {
        for value in self.values_mut() {
            if let Value::Block { maybe_null, .. } = value
                && *maybe_null == link
            {
                if null {
                    *value = Value::number(Range::constant(0));
                } else {
                    *maybe_null = 0;
                }
            }
        }
    }

    fn values_mut(&mut self) -> impl Iterator<Item = &mut Value> {
        let stack = self.stack.iter_mut().filter_map(|slot| match slot {
            Slot::Whole(value) => Some(value),
            Slot::Parts { .. } => None,
        });
        self.registers.iter_mut().chain(stack)
    }

    /// Forgets registers that no path from here reads, so that more states are equal.
    pub fn keep(&mut self, live: u16) {
        for (number, value) in self.registers.iter_mut().enumerate() {
            if live >> number & 1 == 0 {
                *value = Value::Unset;
            }
        }
    }

    /// True if both states are equal.
    pub fn same(&self, other: &Self) -> bool {
        self.registers == other.registers && self.stack == other.stack
    }

    /// True if everything possible in `other` is possible in this state: a proof for this state
    /// then holds for `other`.
    pub fn covers(&self, other: &Self) -> bool {
        let mut links = Vec::new();
        let registers = self.registers.iter().zip(&other.registers).all(|(a, b)| covers(a, b, &mut links));
        registers
            && self
                .stack
                .iter()
                .enumerate()
                .all(|(at, slot)| slot_covers(slot, other.stack.get(at).unwrap_or(&Slot::EMPTY), &mut links))
    }
}

fn slot_covers(mine: &Slot, theirs: &Slot, links: &mut Vec<(u32, u32)>) -> bool {
    let full = Slot::Parts { present: 0xff, halves: [Slot::HALF; 2] };
    match (mine, theirs) {
        (Slot::Parts { present: a, halves: ha }, Slot::Parts { present: b, halves: hb }) => {
            // The range of a half counts only if the half may be read.
            let half = |at: usize| a >> (4 * at) & 15 != 15 || ha[at].contains(&hb[at]);
            a & b == *a && half(0) && half(1)
        }
        (Slot::Parts { .. }, Slot::Whole(Value::Number { .. })) => slot_covers(mine, &full, links),
        (Slot::Parts { present, .. }, Slot::Whole(_)) => *present == 0,
        (Slot::Whole(a), Slot::Whole(b)) => covers(a, b, links),
        (Slot::Whole(Value::Unset), Slot::Parts { .. }) => true,
        (Slot::Whole(Value::Number { range, link: 0 }), Slot::Parts { present: 0xff, .. }) => {
            range.contains(&Range::ANY)
        }
        (Slot::Whole(_), Slot::Parts { .. }) => false,
    }
}

/// Checks that equal links in one state are equal in the other.
fn same_link(mine: u32, theirs: u32, links: &mut Vec<(u32, u32)>) -> bool {
    if mine == 0 {
        return true;
    }
    match links.iter().find(|(known, _)| *known == mine) {
        Some((_, expected)) => *expected == theirs,
        None => {
            links.push((mine, theirs));
            true
        }
    }
}

fn covers(mine: &Value, theirs: &Value, links: &mut Vec<(u32, u32)>) -> bool {
    match (mine, theirs) {
        (Value::Unset, _) => true,
        (Value::Number { range: a, link: la }, Value::Number { range: b, link: lb }) => {
            // Numbers without a link may differ; two addresses without a link are both not NULL.
            a.contains(b) && (*la == 0 || *lb != 0) && same_link(*la, *lb, links)
        }
        (
            Value::Block { region: a, low: al, high: ah, maybe_null: an },
            Value::Block { region: b, low: bl, high: bh, maybe_null: bn },
        ) => a == b && al <= bl && ah >= bh && (*an != 0 || *bn == 0) && same_link(*an, *bn, links),
        (a, b) => a == b,
    }
}

/// The half of its slot in which an offset lies.
fn half(offset: i64) -> usize {
    (place(offset).1 / 4) as usize
}

fn mask(offset: i64, bytes: u8) -> u8 {
    let (_, byte) = place(offset);
    ((((1u16 << bytes) - 1) << byte) & 0xff) as u8
}

/// True if the bytes lie in the frame.
pub fn in_frame(offset: i64, bytes: i64) -> bool {
    offset >= -limits::MAX_STACK_BYTES && bytes >= 0 && offset.checked_add(bytes).is_some_and(|end| end <= 0)
}
