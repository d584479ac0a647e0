//! Ids that the guest chooses, for objects whose creation nobody waits for.
//!
//! They have the upper half of the indices to themselves, so they never meet an id that the server chose.

use std::collections::VecDeque;

use aviary_wire::HandleId;

/// Which ids are in use. `generations[n]` is that of the index `n` now, `live[n]` whether an object has it.
#[derive(Default)]
pub(crate) struct Minter {
    generations: Vec<u32>,
    live: Vec<bool>,
    /// Indices whose object has ended, the one that ended first in front.
    free: VecDeque<u32>,
}

impl Minter {
    /// An id that was never in use. `fresh`: also its index was not. `None`: there are too many objects.
    ///
    /// An index may be used again as soon as its object has ended here. The call that ended it has then been answered,
    /// or it is asynchronous and has its ticket; the call that creates the next object takes its ticket afterwards, and
    /// the server executes in the order of tickets: it finds the slot vacant. Only a call out of that order (from a
    /// signal handler that interrupted this library) needs an index that nobody had.
    pub fn mint(&mut self, ty: u32, fresh: bool) -> Option<u64> {
        let reused = if fresh { None } else { self.free.pop_front() };
        let index = match reused {
            Some(index) => {
                let generation = &mut self.generations[index as usize];
                *generation = HandleId::later_generation(*generation);
                index
            }
            None if self.generations.len() < HandleId::MOST_MINTED as usize => {
                self.generations.push(1);
                self.live.push(false);
                self.generations.len() as u32 - 1
            }
            None => return None,
        };
        self.live[index as usize] = true;
        let generation = self.generations[index as usize];
        Some(HandleId { ty: u8::try_from(ty).ok()?, generation, index: HandleId::MINTED | index }.to_word())
    }

    /// The object has ended. An id that the server chose, or that ended before, is no concern of this.
    pub fn end(&mut self, id: u64) {
        let Some(id) = HandleId::from_word(id).filter(|id| id.is_minted()) else { return };
        let index = id.index & !HandleId::MINTED;
        let at = index as usize;
        if self.generations.get(at) != Some(&id.generation) || !std::mem::take(&mut self.live[at]) {
            return;
        }
        // An index whose generations are used up rests for ever: an old id must never become valid again.
        if HandleId::later_generation(id.generation) <= HandleId::MAX_GENERATION {
            self.free.push_back(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_id_is_minted_twice_and_indices_are_used_again() {
        let mut minter = Minter::default();
        let mut seen = HashSet::new();
        let mut live = VecDeque::new();
        for n in 0..20_000u32 {
            let id = minter.mint(n % 3, false).unwrap();
            assert!(seen.insert(id & 0x00ff_ffff_ffff_ffff), "whatever its type");
            assert!(HandleId::from_word(id).unwrap().is_minted());
            live.push_back(id);
            if live.len() > 10 {
                let id = live.pop_front().unwrap();
                minter.end(id);
                minter.end(id);
            }
        }
        assert_eq!(minter.generations.len(), 11);
    }

    #[test]
    fn only_a_live_id_of_its_own_ends() {
        let mut minter = Minter::default();
        let old = minter.mint(0, false).unwrap();
        minter.end(old);
        let new = minter.mint(0, false).unwrap();
        assert_ne!(old, new);
        minter.end(old);
        minter.end(1 << 32 | 1);
        minter.end(0);
        assert!(minter.free.is_empty());
        minter.end(new);
        let fresh = minter.mint(0, true).unwrap();
        assert_ne!(fresh as u32, new as u32, "not an index that another call may still end");
    }

    #[test]
    fn generations_end() {
        let mut minter = Minter::default();
        minter.mint(0, false).unwrap();
        minter.generations[0] = HandleId::MAX_GENERATION;
        minter.end(HandleId { ty: 0, generation: HandleId::MAX_GENERATION, index: HandleId::MINTED }.to_word());
        assert_eq!(minter.mint(0, false).unwrap() as u32, HandleId::MINTED + 2);
    }
}
