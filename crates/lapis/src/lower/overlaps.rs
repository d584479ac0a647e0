//! Arguments that may name the same memory.

use super::instructions::{Instruction, Mode, Operation, Overlapping, ValueLocation};
use crate::model::{Count, Function};

/// The memory that a value names: how many pieces, and what they are.
#[derive(Default, Clone, Copy)]
struct Named {
    pieces: usize,
    written: bool,
    /// The server has a copy of its own, or one at an address of its own choice.
    private: bool,
    bound: bool,
}

impl Named {
    fn and(self, other: Named) -> Named {
        Named {
            pieces: self.pieces + other.pieces,
            written: self.written || other.written,
            private: self.private || other.private,
            bound: self.bound || other.bound,
        }
    }

    fn all<'a>(parts: impl IntoIterator<Item = &'a Instruction>) -> Named {
        parts.into_iter().map(named).fold(Named::default(), Named::and)
    }
}

fn named(instruction: &Instruction) -> Named {
    match &instruction.operation {
        Operation::Bytes(bytes) => match bytes.mode {
            Mode::Copy { output, .. } => {
                let private = bytes.private && !output
                    || bytes.align > 1
                    || matches!(bytes.extent.count, Count::Terminated { .. });
                Named { pieces: 1, written: output, private, bound: false }
            }
            Mode::Bound { .. } => Named { pieces: 1, written: true, private: false, bound: true },
            _ => Named::default(),
        },
        Operation::Text { .. } => Named { pieces: 1, private: true, ..Named::default() },
        Operation::Zerocopy { .. } => Named { pieces: 1, written: true, ..Named::default() },
        Operation::Elements(elements) if elements.input => {
            let inner = Named::all(&elements.element);
            Named { pieces: 2 * inner.pieces, ..inner }
        }
        Operation::Struct { fields, .. } => Named::all(fields),
        Operation::Choice { then, otherwise, .. } => {
            let (then, otherwise) = (Named::all(then), Named::all(otherwise));
            Named { pieces: then.pieces.max(otherwise.pieces), ..then.and(otherwise) }
        }
        _ => Named::default(),
    }
}

impl Overlapping {
    pub fn of(function: &Function, arguments: &[Instruction]) -> Overlapping {
        let naming: Vec<(usize, Named)> = arguments
            .iter()
            .filter_map(|instruction| match instruction.at {
                ValueLocation::Argument(i) => Some((i, named(instruction))),
                _ => None,
            })
            .filter(|(_, named)| named.pieces > 0)
            .collect();
        let lies_apart = |i: usize| {
            let pair =
                |other: usize| function.apart.iter().any(|(a, b)| (*a, *b) == (i, other) || (*b, *a) == (i, other));
            naming.iter().all(|(other, named)| if *other == i { named.pieces == 1 } else { pair(*other) })
        };
        let apart: Vec<usize> = naming.iter().map(|(i, _)| *i).filter(|i| lies_apart(*i)).collect();
        let rest = naming.iter().filter(|(i, _)| !apart.contains(i)).map(|(_, named)| *named);
        let rest = rest.fold(Named::default(), Named::and);
        // Memory that is only read is equal to the library wherever it is.
        let watched = rest.pieces > 1 && rest.written;
        Overlapping {
            watched,
            apart: if watched { apart } else { Vec::new() },
            private: watched && rest.private && !rest.bound,
        }
    }
}
