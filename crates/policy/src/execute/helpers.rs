//! The helpers that programs can call, and their arguments.

use crate::execute::instruction::Instruction;

/// The kind of argument that a helper expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Argument {
    Map,
    /// Readable memory of the map's key size; the map is the first argument.
    Key,
    /// Readable memory of the map's value size.
    Value,
    Context,
    Number,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The address of a value of the map in the first argument, or NULL.
    Entry,
    Number,
}

pub struct Helper {
    pub number: u32,
    pub name: &'static str,
    pub arguments: &'static [Argument],
    pub answer: Answer,
}

pub const LOOKUP: u32 = 1;
pub const UPDATE: u32 = 2;
pub const DELETE: u32 = 3;
pub const TIME: u32 = 5;
pub const AMOUNT: u32 = 100;

use Argument::{Context, Key, Map, Number, Value};

/// All helpers. Numbers below 100 are those of the kernel's helpers.
pub const HELPERS: [Helper; 5] = [
    Helper { number: LOOKUP, name: "map_lookup_elem", arguments: &[Map, Key], answer: Answer::Entry },
    Helper { number: UPDATE, name: "map_update_elem", arguments: &[Map, Key, Value, Number], answer: Answer::Number },
    Helper { number: DELETE, name: "map_delete_elem", arguments: &[Map, Key], answer: Answer::Number },
    Helper { number: TIME, name: "ktime_get_ns", arguments: &[], answer: Answer::Number },
    Helper { number: AMOUNT, name: "load_ava_rc_amount", arguments: &[Context, Number], answer: Answer::Number },
];

pub fn find(number: u32) -> Option<&'static Helper> {
    HELPERS.iter().find(|helper| helper.number == number)
}

/// The helpers that a program calls, each once, in the order of [`HELPERS`].
pub fn used(programs: &[&[Instruction]]) -> Vec<&'static str> {
    let calls = |number| {
        programs.iter().flat_map(|program| program.iter()).any(|one| *one == Instruction::Call { helper: number })
    };
    HELPERS.iter().filter(|helper| calls(helper.number)).map(|helper| helper.name).collect()
}
