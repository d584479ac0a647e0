//! Memory of the vendor's library that the guest knows by numbers, as what a session's object log knows.
//!
//! The call that told the guest of such memory is made again where the session moves, and the memory gets its number
//! again. The log knows it by a word that is the id of no object.

use std::collections::VecDeque;

use aviary_state::Owner;

/// Behind the number: below are all values that a specification predefines, and the ids of objects have a generation there.
const NUMBER_BITS: u32 = 32;
/// Where ids of objects have their type.
const KIND_SHIFT: u32 = 56;

/// Memory that the guest has a number for, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LibraryMemory {
    /// The application frees it (`freed_by`).
    Freed(u64),
    /// The application uses it as long as an object exists (`resident`).
    Resident(u64),
}

impl LibraryMemory {
    fn number(self) -> u64 {
        let (LibraryMemory::Freed(number) | LibraryMemory::Resident(number)) = self;
        number
    }

    /// The word for it in the log. `None`: a session that has handed out so much is not moved.
    pub fn word(self) -> Option<u64> {
        let kind = match self {
            LibraryMemory::Freed(_) => 1u64,
            LibraryMemory::Resident(_) => 2,
        };
        let number = self.number();
        (number != 0 && number >> NUMBER_BITS == 0).then_some(kind << KIND_SHIFT | number)
    }

    fn of_word(word: u64) -> Option<LibraryMemory> {
        let number = word & ((1 << KIND_SHIFT) - 1);
        let memory = match word >> KIND_SHIFT {
            1 => LibraryMemory::Freed(number),
            2 => LibraryMemory::Resident(number),
            _ => return None,
        };
        memory.word().map(|_| memory)
    }
}

/// The memory that a call which is made again has to tell of, in the order in which it did.
pub(crate) struct MemoryAgain(VecDeque<LibraryMemory>);

impl MemoryAgain {
    /// `owners`: of the call's record, in ascending order, as numbers are.
    pub fn of(owners: &[Owner]) -> MemoryAgain {
        MemoryAgain(owners.iter().filter_map(|owner| LibraryMemory::of_word(owner.object()?)).collect())
    }

    /// The number of the next memory that the application frees.
    pub fn freed(&mut self) -> Option<u64> {
        self.next(|memory| matches!(memory, LibraryMemory::Freed(_)))
    }

    /// The number of the next resident memory.
    pub fn resident(&mut self) -> Option<u64> {
        self.next(|memory| matches!(memory, LibraryMemory::Resident(_)))
    }

    fn next(&mut self, is_wanted: impl Fn(&LibraryMemory) -> bool) -> Option<u64> {
        let at = self.0.iter().position(is_wanted)?;
        self.0.remove(at).map(LibraryMemory::number)
    }

    /// True if the call has told of all.
    pub fn is_complete(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use aviary_wire::HandleId;

    use super::*;

    #[test]
    fn memory_has_words_of_its_own() {
        for memory in [LibraryMemory::Freed(1), LibraryMemory::Resident(7), LibraryMemory::Freed(u32::MAX.into())] {
            let word = memory.word().unwrap();
            assert_eq!(LibraryMemory::of_word(word), Some(memory));
            assert_eq!(HandleId::from_word(word), None);
        }
        assert_eq!(LibraryMemory::Freed(0).word(), None);
        assert_eq!(LibraryMemory::Freed(1 << 32).word(), None);
        let object = HandleId { ty: 1, generation: 1, index: 0 }.to_word();
        assert_eq!(LibraryMemory::of_word(object), None);
        assert_eq!(LibraryMemory::of_word(5), None);
    }

    #[test]
    fn memory_is_told_of_in_its_order() {
        let words = [LibraryMemory::Freed(3), LibraryMemory::Freed(5), LibraryMemory::Resident(4)];
        let owners: Vec<Owner> = words.iter().filter_map(|memory| memory.word()).map(Owner::Object).collect();
        let mut again = MemoryAgain::of(&owners);
        assert_eq!((again.resident(), again.freed(), again.resident()), (Some(4), Some(3), None));
        assert!(!again.is_complete());
        assert_eq!((again.freed(), again.freed()), (Some(5), None));
        assert!(again.is_complete());
    }
}
