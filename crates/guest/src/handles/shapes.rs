//! Objects that are tables of functions themselves: a handle is the address of a copy of the guest's table, whose functions
//! the application calls with it.
//!
//! A copy is written once, before the application has its address. Copies of ended objects rest a while: an application
//! that calls a function of one gets the function's error, and does not jump to anything.

use std::collections::{HashMap, VecDeque};

/// Copies of ended objects that are kept before the oldest is freed.
const RESTING: usize = 1024;

#[derive(Default)]
pub(crate) struct Shapes {
    /// By address.
    live: HashMap<u64, Box<[usize]>>,
    resting: VecDeque<Box<[usize]>>,
}

impl Shapes {
    /// The address of a new copy.
    pub fn make(&mut self, words: &[usize]) -> u64 {
        // One word at least, so that every copy has an address of its own.
        let copy: Box<[usize]> = if words.is_empty() { Box::new([0]) } else { words.into() };
        let address = copy.as_ptr() as u64;
        self.live.insert(address, copy);
        address
    }

    /// False: there is no copy at the address.
    pub fn end(&mut self, address: u64) -> bool {
        let Some(copy) = self.live.remove(&address) else { return false };
        self.resting.push_back(copy);
        if self.resting.len() > RESTING {
            self.resting.pop_front();
        }
        true
    }
}

/// The words of a generated table.
pub(crate) fn copied((table, words): (fn() -> usize, usize)) -> Vec<usize> {
    let at = table();
    // SAFETY: a generated table has so many words, for as long as the process; its functions are written before its address
    // is known, and its numbers are read as they are at the moment.
    (0..words).map(|n| unsafe { (at as *const usize).add(n).read_volatile() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_have_addresses_of_their_own_and_rest() {
        let mut shapes = Shapes::default();
        let (one, other) = (shapes.make(&[1, 2]), shapes.make(&[1, 2]));
        assert_ne!(one, other);
        assert!(shapes.end(one) && !shapes.end(one));
        // SAFETY: it rests.
        assert_eq!(unsafe { (one as *const [usize; 2]).read() }, [1, 2]);
        for _ in 0..2 * RESTING {
            let address = shapes.make(&[]);
            assert!(shapes.end(address));
        }
        assert_eq!(shapes.resting.len(), RESTING);
        assert!(shapes.end(other));
    }
}
