//! Foreign memory as a session's object log knows it.
//!
//! The call that gave memory out is repeated where the session moves, and the memory gets its id again. The log knows it by a
//! word that is the id of no object.

use std::collections::VecDeque;

use aviary_state::Owner;

use crate::tables::foreign::kind::Kind;

/// Behind the id: below are all values that a specification predefines, and the ids of objects have a generation there.
const ID_BITS: u32 = 32;
/// Where ids of objects have their type.
const KIND_SHIFT: u32 = 56;

/// Kinds that a repeated call gives out again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Logged {
    Lent = 1,
    Resident,
}

impl Logged {
    pub fn of(kind: Kind) -> Option<Logged> {
        match kind {
            Kind::Lent { .. } => Some(Logged::Lent),
            Kind::Resident { .. } => Some(Logged::Resident),
            Kind::Mapped | Kind::State { .. } => None,
        }
    }

    /// The word for memory with this id. `None`: a session that has given out so much is not moved.
    pub fn word(self, id: u64) -> Option<u64> {
        (id != 0 && id >> ID_BITS == 0).then_some((self as u64) << KIND_SHIFT | id)
    }

    fn of_word(word: u64) -> Option<(Logged, u64)> {
        let kind = [Logged::Lent, Logged::Resident].into_iter().find(|kind| *kind as u64 == word >> KIND_SHIFT)?;
        let id = word & ((1 << KIND_SHIFT) - 1);
        kind.word(id).map(|_| (kind, id))
    }
}

/// The memory that a repeated call has to give out, in the order in which it did.
pub(crate) struct MemoryAgain(VecDeque<(Logged, u64)>);

impl MemoryAgain {
    /// `owners`: of the call's record, in ascending order, as ids are.
    pub fn of(owners: &[Owner]) -> MemoryAgain {
        MemoryAgain(owners.iter().filter_map(|owner| Logged::of_word(owner.object()?)).collect())
    }

    /// The id of the next memory of a kind.
    pub fn next(&mut self, kind: Kind) -> Option<u64> {
        let at = self.0.iter().position(|(logged, _)| Some(*logged) == Logged::of(kind))?;
        self.0.remove(at).map(|(_, id)| id)
    }

    /// True if the call has given out all.
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
        for (kind, id) in [(Logged::Lent, 1), (Logged::Resident, 7), (Logged::Lent, u32::MAX.into())] {
            let word = kind.word(id).unwrap();
            assert_eq!(Logged::of_word(word), Some((kind, id)));
            assert_eq!(HandleId::from_word(word), None);
        }
        assert_eq!(Logged::Lent.word(0), None);
        assert_eq!(Logged::Lent.word(1 << 32), None);
        let object = HandleId { ty: 1, generation: 1, index: 0 }.to_word();
        assert_eq!(Logged::of_word(object), None);
        assert_eq!(Logged::of_word(5), None);
    }

    #[test]
    fn memory_is_given_out_in_its_order() {
        let words = [Logged::Lent.word(3), Logged::Lent.word(5), Logged::Resident.word(4)];
        let owners: Vec<Owner> = words.into_iter().flatten().map(Owner::Object).collect();
        let mut again = MemoryAgain::of(&owners);
        let (lent, resident) = (Kind::Lent { group: 1 }, Kind::Resident { owner: 9 });
        assert_eq!((again.next(resident), again.next(lent), again.next(resident)), (Some(4), Some(3), None));
        assert!(!again.is_complete());
        assert_eq!((again.next(lent), again.next(lent), again.next(Kind::Mapped)), (Some(5), None, None));
        assert!(again.is_complete());
    }
}
