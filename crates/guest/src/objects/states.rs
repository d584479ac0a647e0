//! States: structs of the application of which the API server keeps the library's part.
//!
//! The application's struct has a key in place of something that it does not see: the server's id of the state, its version
//! (each call makes the next), the address of the struct, and a check of all. So a copy of the struct is told from the struct,
//! at the version that it had when it was copied, and memory that was used for something else from a state.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Number of states at which the memory of all is looked at for the first time.
const FIRST_SWEEP: usize = 64;

/// A state that this process has made.
#[derive(Clone, Copy)]
struct Made {
    id: u64,
    /// Bytes of the struct.
    size: usize,
    /// Offset of the key in it.
    key: usize,
}

/// The states of one connection.
pub(crate) struct States {
    /// By address of the struct.
    made: Mutex<BTreeMap<usize, Made>>,
    /// Tells the keys of this connection from those that a forked process has inherited.
    nonce: u64,
    copy_told: AtomicBool,
    /// States that have no struct any more, as another has taken its place; the server is told with the next one.
    displaced: Mutex<Vec<u64>>,
}

/// What the key of a struct says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    pub id: u64,
    pub version: u64,
    /// The struct is a copy of the one at this address, or that one has moved here.
    pub copied: bool,
    place: usize,
}

impl Default for States {
    fn default() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let number = u64::from(NEXT.fetch_add(1, Ordering::Relaxed));
        States {
            made: Mutex::default(),
            nonce: u64::from(std::process::id()) << 32 | number,
            copy_told: false.into(),
            displaced: Mutex::default(),
        }
    }
}

/// The content of a key: id, version, address, check.
type Key = [u64; 4];

impl States {
    /// The state whose key is in the struct at an address. `None`: there is no key of this connection.
    ///
    /// # Safety
    /// The struct's key at `at + key` can be read.
    pub unsafe fn find(&self, at: usize, key: usize) -> Option<Found> {
        // SAFETY: the caller's promise; a key is four words at any alignment.
        let [id, version, place, check] = unsafe { ((at + key) as *const Key).read_unaligned() };
        if id == 0 || check != self.check(id, version, place) {
            return None;
        }
        Some(Found { id, version, copied: place != at as u64, place: place as usize })
    }

    pub fn tell_of_copy(&self) {
        if !self.copy_told.swap(true, Ordering::Relaxed) {
            crate::process::log::line("a copy of a stream's struct cannot be used: its state belongs to the original");
        }
    }

    /// A copied struct is about to get a state of its own. Returns the ids of states that have no struct any more: whose
    /// memory it has taken, and the one that it was copied from, if that has gone.
    pub fn displaced(&self, at: usize, size: usize, copied: &Found) -> Vec<u64> {
        let mut made = self.made();
        let mut ended = overlapping(&made, at, size);
        if made.get(&copied.place).is_some_and(|m| m.id == copied.id && !self.is_there(copied.place, m)) {
            ended.push(copied.place);
        }
        let mut ids: Vec<u64> = ended.iter().filter_map(|begin| made.remove(begin)).map(|m| m.id).collect();
        ids.append(&mut self.displaced.lock().unwrap_or_else(PoisonError::into_inner));
        ids
    }

    /// A state is about to be made at an address. Returns the ids of those that have ended by that: whose memory it
    /// takes, or whose memory has been used for something else.
    ///
    /// # Safety
    /// The struct of `size` bytes at `at`, which contains the key, can be written.
    pub unsafe fn begin(&self, at: usize, size: usize, key: usize) -> Vec<u64> {
        // SAFETY: the caller's promise.
        unsafe { ((at + key) as *mut Key).write_unaligned([0; 4]) };
        let mut made = self.made();
        let mut ended = overlapping(&made, at, size);
        if made.len() >= FIRST_SWEEP && made.len().is_power_of_two() {
            ended.extend(made.iter().filter(|(begin, m)| !self.is_there(**begin, m)).map(|(begin, _)| *begin));
        }
        let mut ids: Vec<u64> = ended.iter().filter_map(|begin| made.remove(begin)).map(|m| m.id).collect();
        ids.append(&mut self.displaced.lock().unwrap_or_else(PoisonError::into_inner));
        ids
    }

    /// The call has left the state at an address at this version, or (`id` 0) has ended it.
    ///
    /// # Safety
    /// As for [`States::begin`].
    pub unsafe fn bind(&self, at: usize, size: usize, key: usize, id: u64, version: u64) {
        let wanted = if id == 0 { [0; 4] } else { [id, version, at as u64, self.check(id, version, at as u64)] };
        let place = (at + key) as *mut Key;
        // SAFETY: the caller's promise.
        let [before, _, begin, _] = unsafe { place.read_unaligned() };
        // SAFETY: the caller's promise.
        unsafe { place.write_unaligned(wanted) };
        if before == id && begin == at as u64 {
            return;
        }
        let displaced = match id {
            0 => {
                self.made().remove(&at);
                None
            }
            id => self.made().insert(at, Made { id, size, key }).filter(|m| m.id != id),
        };
        if let Some(made) = displaced {
            self.displaced.lock().unwrap_or_else(PoisonError::into_inner).push(made.id);
        }
    }

    /// True if the memory of a state still has its key. The memory may be gone: the kernel reads it.
    fn is_there(&self, at: usize, made: &Made) -> bool {
        let mut found: Key = [0; 4];
        let local = libc::iovec { iov_base: found.as_mut_ptr().cast(), iov_len: size_of::<Key>() };
        let remote = libc::iovec { iov_base: (at + made.key) as *mut libc::c_void, iov_len: size_of::<Key>() };
        // SAFETY: `local` is this function's own; the kernel checks `remote`.
        let read = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
        match read {
            n if n == size_of::<Key>() as isize => {
                let [id, version, place, check] = found;
                (id, place, check) == (made.id, at as u64, self.check(id, version, place))
            }
            // A filter of system calls forbids to ask: it stays.
            -1 => std::io::Error::last_os_error().raw_os_error() != Some(libc::EFAULT),
            _ => false,
        }
    }

    fn check(&self, id: u64, version: u64, at: u64) -> u64 {
        let mixed = (id ^ self.nonce).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ version).wrapping_mul(0xa076_1d64_78bd_642f);
        (mixed ^ at).wrapping_mul(0xd6e8_feb8_6659_fd93) | 1
    }

    fn made(&self) -> MutexGuard<'_, BTreeMap<usize, Made>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where states begin whose structs overlap these bytes.
fn overlapping(made: &BTreeMap<usize, Made>, at: usize, size: usize) -> Vec<usize> {
    // Structs do not overlap: of those that begin before, only the last can reach here.
    let before = made.range(..at).next_back().filter(|(begin, m)| **begin + m.size > at).map(|(begin, _)| *begin);
    let within = made.range(at..at.saturating_add(size)).map(|(begin, _)| *begin);
    before.into_iter().chain(within).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: usize = 64;
    const KEY: usize = 16;

    fn place() -> Box<[u64; SIZE / 8]> {
        Box::new([0xa5; SIZE / 8])
    }

    fn make(states: &States, at: usize, id: u64) -> Vec<u64> {
        // SAFETY: tests pass structs of SIZE bytes.
        unsafe {
            let ended = states.begin(at, SIZE, KEY);
            states.bind(at, SIZE, KEY, id, 1);
            ended
        }
    }

    fn found(states: &States, at: usize) -> Option<Found> {
        // SAFETY: as above.
        unsafe { states.find(at, KEY) }
    }

    /// The id of the state that was made there.
    fn find(states: &States, at: usize) -> Option<u64> {
        found(states, at).filter(|found| !found.copied).map(|found| found.id)
    }

    #[test]
    fn state_is_found_where_it_was_made_and_not_in_a_copy() {
        let states = States::default();
        let mut original = place();
        let at = original.as_mut_ptr() as usize;
        assert_eq!(find(&states, at), None, "garbage is no key");
        assert_eq!(make(&states, at, 7), []);
        assert_eq!(find(&states, at), Some(7));
        let copy = original.clone();
        assert_eq!(find(&states, copy.as_ptr() as usize), None);
        assert_eq!(find(&States::default(), at), None, "another connection's key");
    }

    #[test]
    fn memory_that_is_used_again_ends_the_state_that_was_there() {
        let states = States::default();
        let mut memory = Box::new([0u64; 2 * SIZE / 8]);
        let at = memory.as_mut_ptr() as usize;
        assert_eq!(make(&states, at, 1), []);
        assert_eq!(make(&states, at, 2), [1], "the same place");
        assert_eq!(make(&states, at + 8, 3), [2], "it begins before");
        assert_eq!(make(&states, at, 4), [3], "it begins within");
        // SAFETY: as above.
        unsafe { states.bind(at, SIZE, KEY, 0, 0) };
        assert_eq!(find(&states, at), None);
        assert_eq!(make(&states, at, 5), [], "it was ended before");
    }

    #[test]
    fn copy_has_the_version_that_it_was_copied_at() {
        let states = States::default();
        let mut original = place();
        let at = original.as_mut_ptr() as usize;
        make(&states, at, 7);
        // SAFETY: as above.
        unsafe { states.bind(at, SIZE, KEY, 7, 4) };
        let mut copy = original.clone();
        // SAFETY: as above.
        unsafe { states.bind(at, SIZE, KEY, 7, 5) };
        let there = copy.as_mut_ptr() as usize;
        let told = found(&states, there).unwrap();
        assert_eq!((told.id, told.version, told.copied), (7, 4, true));
        assert_eq!(found(&states, at).map(|found| (found.version, found.copied)), Some((5, false)));
        assert_eq!(states.displaced(there, SIZE, &told), [], "the original is there");
        // SAFETY: as above.
        unsafe { states.bind(there, SIZE, KEY, 8, 5) };
        assert_eq!(find(&states, there), Some(8));
        // It moves: its old memory is used for something else.
        let moved = copy.clone();
        copy.fill(0);
        let told = found(&states, moved.as_ptr() as usize).unwrap();
        assert_eq!(states.displaced(moved.as_ptr() as usize, SIZE, &told), [8]);
        // An older version in place of the newer one gets a state of its own.
        // SAFETY: as above.
        unsafe { states.bind(at, SIZE, KEY, 9, 6) };
        assert_eq!(make(&states, there, 10), [7], "told with the next one");
    }

    #[test]
    fn memory_that_was_given_back_ends_its_states() {
        let states = States::default();
        let mut kept: Vec<_> = (0..FIRST_SWEEP).map(|_| place()).collect();
        for (id, place) in kept.iter_mut().enumerate() {
            make(&states, place.as_mut_ptr() as usize, id as u64 + 1);
        }
        kept[3].fill(0);
        let mut another = place();
        assert_eq!(make(&states, another.as_mut_ptr() as usize, 99), [4]);
    }
}
