//! Which handles end with which: both sides of a connection keep the same book.

use std::collections::{HashMap, HashSet};

/// Handles that end with others, by the number that its side knows a handle by. An entry costs nothing where no
/// handle ends with another.
///
/// ```
/// use aviary_wire::Ends;
///
/// let mut ends = Ends::default();
/// let (context, queue, event) = (1, 2, 3);
/// ends.tie(queue, context);
/// ends.tie(event, queue);
/// assert_eq!(ends.end(context), [queue, event]);
/// ```
#[derive(Default, Debug)]
pub struct Ends {
    /// By owner: what ends with it.
    owned: HashMap<u64, HashSet<u64>>,
    /// By handle: what it ends with.
    owners: HashMap<u64, Vec<u64>>,
}

impl Ends {
    /// From now on `handle` ends when `owner` ends. With several owners it ends with the first of them.
    pub fn tie(&mut self, handle: u64, owner: u64) {
        if handle != owner && self.owned.entry(owner).or_default().insert(handle) {
            self.owners.entry(handle).or_default().push(owner);
        }
    }

    /// The direct owners of the handle, without their owners.
    pub fn owners(&self, handle: u64) -> &[u64] {
        self.owners.get(&handle).map_or(&[], Vec::as_slice)
    }

    /// The handles that would end with this one, directly or not: each once, owners first.
    pub fn below(&self, handle: u64) -> Vec<u64> {
        let mut found = Vec::new();
        let mut seen = HashSet::from([handle]);
        let mut next = Some(handle);
        let mut at = 0;
        while let Some(owner) = next {
            let owned = self.owned.get(&owner).into_iter().flatten().copied();
            found.extend(owned.filter(|handle| seen.insert(*handle)));
            next = found.get(at).copied();
            at += 1;
        }
        found
    }

    /// The handle has ended. Answers what ends with it, directly or not: each once, owners first.
    pub fn end(&mut self, handle: u64) -> Vec<u64> {
        let mut ended = Vec::new();
        if self.owners.is_empty() {
            return ended;
        }
        self.untie(handle);
        let mut next = Some(handle);
        let mut at = 0;
        while let Some(owner) = next {
            for handle in self.owned.remove(&owner).unwrap_or_default() {
                self.untie(handle);
                ended.push(handle);
            }
            next = ended.get(at).copied();
            at += 1;
        }
        ended
    }

    fn untie(&mut self, handle: u64) {
        for owner in self.owners.remove(&handle).unwrap_or_default() {
            if let Some(owned) = self.owned.get_mut(&owner) {
                owned.remove(&handle);
                if owned.is_empty() {
                    self.owned.remove(&owner);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(mut handles: Vec<u64>) -> Vec<u64> {
        handles.sort_unstable();
        handles
    }

    #[test]
    fn everything_below_an_owner_ends_with_it() {
        let mut ends = Ends::default();
        ends.tie(2, 1);
        ends.tie(3, 1);
        ends.tie(4, 3);
        ends.tie(5, 9);
        ends.tie(3, 1);
        assert_eq!(ends.owners(4), [3]);
        assert_eq!((sorted(ends.below(1)), ends.below(4)), (vec![2, 3, 4], vec![]));
        let ended = ends.end(1);
        assert_eq!(ended.last(), Some(&4), "owners first");
        assert_eq!(sorted(ended), [2, 3, 4]);
        assert!(ends.end(1).is_empty() && ends.end(3).is_empty());
        assert_eq!(ends.end(9), [5]);
        assert!(ends.owned.is_empty() && ends.owners.is_empty());
    }

    #[test]
    fn handle_that_ended_by_itself_is_forgotten() {
        let mut ends = Ends::default();
        for handle in 2..if cfg!(miri) { 100 } else { 1000 } {
            ends.tie(handle, 1);
            assert!(ends.end(handle).is_empty());
        }
        assert!(ends.owned.is_empty() && ends.owners.is_empty());
    }

    #[test]
    fn the_first_of_several_owners_decides() {
        let mut ends = Ends::default();
        ends.tie(3, 1);
        ends.tie(3, 2);
        assert_eq!(ends.end(2), [3]);
        assert!(ends.end(1).is_empty());
        ends.tie(2, 1);
        ends.tie(3, 1);
        ends.tie(3, 2);
        assert_eq!(sorted(ends.end(1)), [2, 3], "once");
        assert!(ends.owned.is_empty() && ends.owners.is_empty());
    }

    #[test]
    fn circles_end() {
        let mut ends = Ends::default();
        ends.tie(1, 1);
        ends.tie(1, 2);
        ends.tie(2, 1);
        assert_eq!(ends.end(1), [2]);
        assert!(ends.owned.is_empty() && ends.owners.is_empty());
    }
}
