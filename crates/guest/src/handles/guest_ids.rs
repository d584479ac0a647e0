//! Guest-allocated ids, for objects whose creation is asynchronous.
//!
//! They have the upper half of the indices, so they never collide with an id that the server chose.

use std::collections::VecDeque;

use aviary_wire::HandleId;

/// The ids in use. `generations[n]` is the present generation of the index `n`; `live[n]` is true
/// if an object has it.
#[derive(Default)]
pub(crate) struct GuestIdAllocator {
    generations: Vec<u32>,
    live: Vec<bool>,
    /// Indices whose object has ended, in the order in which they ended.
    free: VecDeque<u32>,
}

impl GuestIdAllocator {
    /// An id that was never in use. `fresh`: its index was not in use either. `None`: there are too
    /// many objects.
    ///
    /// An index may be reused as soon as its object has ended in this guest. The call that ended it
    /// has then been answered, or it is asynchronous and has its ticket; the call that creates the
    /// next object takes its ticket afterwards, and the server executes in the order of tickets: it
    /// finds the slot vacant. Only a call outside this order (from a signal handler that
    /// interrupted this library) needs an index that was never used.
    pub fn allocate(&mut self, ty: u32, fresh: bool) -> Option<u64> {
        let reused = if fresh { None } else { self.free.pop_front() };
        let index = match reused {
            Some(index) => {
                let generation = &mut self.generations[index as usize];
                *generation = HandleId::later_generation(*generation);
                index
            }
            None if self.generations.len() < HandleId::MAX_GUEST_IDS as usize => {
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

    /// Ends an object's id. An id that the server chose, or that has ended before, is ignored.
    pub fn end(&mut self, id: u64) {
        let Some(id) = HandleId::from_word(id).filter(|id| id.is_minted()) else { return };
        let index = id.index & !HandleId::MINTED;
        let at = index as usize;
        if self.generations.get(at) != Some(&id.generation) || !std::mem::take(&mut self.live[at]) {
            return;
        }
        // An index without further generations is never reused: an old id must never become valid
        // again.
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
    fn ids_are_unique_and_indices_are_reused() {
        let mut allocator = GuestIdAllocator::default();
        let mut seen = HashSet::new();
        let mut live = VecDeque::new();
        for n in 0..20_000u32 {
            let id = allocator.allocate(n % 3, false).unwrap();
            assert!(seen.insert(id & 0x00ff_ffff_ffff_ffff), "ids differ in more than their type");
            assert!(HandleId::from_word(id).unwrap().is_minted());
            live.push_back(id);
            if live.len() > 10 {
                let id = live.pop_front().unwrap();
                allocator.end(id);
                allocator.end(id);
            }
        }
        assert_eq!(allocator.generations.len(), 11);
    }

    #[test]
    fn only_live_guest_ids_end() {
        let mut allocator = GuestIdAllocator::default();
        let old = allocator.allocate(0, false).unwrap();
        allocator.end(old);
        let new = allocator.allocate(0, false).unwrap();
        assert_ne!(old, new);
        allocator.end(old);
        allocator.end(1 << 32 | 1);
        allocator.end(0);
        assert!(allocator.free.is_empty());
        allocator.end(new);
        let fresh = allocator.allocate(0, true).unwrap();
        assert_ne!(fresh as u32, new as u32, "a fresh index is one that no other call may still end");
    }

    #[test]
    fn index_without_generations_is_not_reused() {
        let mut allocator = GuestIdAllocator::default();
        allocator.allocate(0, false).unwrap();
        allocator.generations[0] = HandleId::MAX_GENERATION;
        allocator.end(HandleId { ty: 0, generation: HandleId::MAX_GENERATION, index: HandleId::MINTED }.to_word());
        assert_eq!(allocator.allocate(0, false).unwrap() as u32, HandleId::MINTED + 2);
    }
}
