//! States: structs of the application of which the API server keeps the library's part.
//!
//! The application's struct has a key in place of the first member that it does not see: the server's id of the state, the
//! address of the struct, and a check of both. So a copy of the struct is told from the struct, and memory that was used for
//! something else from a state.

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
}

impl Default for States {
    fn default() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let number = u64::from(NEXT.fetch_add(1, Ordering::Relaxed));
        States { made: Mutex::default(), nonce: u64::from(std::process::id()) << 32 | number, copy_told: false.into() }
    }
}

/// The content of a key: id, address, check.
type Key = [u64; 3];

impl States {
    /// The id of the state at an address. `None`: it was not made there.
    ///
    /// # Safety
    /// The struct's key at `at + key` can be read.
    pub unsafe fn find(&self, at: usize, key: usize) -> Option<u64> {
        // SAFETY: the caller's promise; a key is three words at any alignment.
        let [id, place, check] = unsafe { ((at + key) as *const Key).read_unaligned() };
        if id == 0 || check != self.check(id, place) {
            return None;
        }
        if place != at as u64 {
            if !self.copy_told.swap(true, Ordering::Relaxed) {
                crate::log::line("a copy of a stream's struct cannot be used: its state belongs to the original");
            }
            return None;
        }
        Some(id)
    }

    /// A state is about to be made at an address. Returns the ids of those that have ended by that: whose memory it
    /// takes, or whose memory has been used for something else.
    ///
    /// # Safety
    /// The struct of `size` bytes at `at`, which contains the key, can be written.
    pub unsafe fn begin(&self, at: usize, size: usize, key: usize) -> Vec<u64> {
        // SAFETY: the caller's promise.
        unsafe { ((at + key) as *mut Key).write_unaligned([0; 3]) };
        let mut made = self.made();
        // Structs do not overlap: of those that begin before, only the last can reach here.
        let before = made.range(..at).next_back().filter(|(begin, m)| **begin + m.size > at).map(|(begin, _)| *begin);
        let within = made.range(at..at.saturating_add(size)).map(|(begin, _)| *begin);
        let mut ended: Vec<usize> = before.into_iter().chain(within).collect();
        if made.len() >= FIRST_SWEEP && made.len().is_power_of_two() {
            ended.extend(made.iter().filter(|(begin, m)| !self.is_there(**begin, m)).map(|(begin, _)| *begin));
        }
        ended.iter().filter_map(|begin| made.remove(begin)).map(|m| m.id).collect()
    }

    /// The call has made the state at an address, or (`id` 0) has ended it.
    ///
    /// # Safety
    /// As for [`States::begin`].
    pub unsafe fn bind(&self, at: usize, size: usize, key: usize, id: u64) {
        let wanted = if id == 0 { [0; 3] } else { [id, at as u64, self.check(id, at as u64)] };
        let place = (at + key) as *mut Key;
        // SAFETY: the caller's promise.
        if unsafe { place.read_unaligned() } == wanted {
            return;
        }
        // SAFETY: the caller's promise.
        unsafe { place.write_unaligned(wanted) };
        match id {
            0 => drop(self.made().remove(&at)),
            id => drop(self.made().insert(at, Made { id, size, key })),
        }
    }

    /// True if the memory of a state still has its key. The memory may be gone: the kernel reads it.
    fn is_there(&self, at: usize, made: &Made) -> bool {
        let mut found: Key = [0; 3];
        let local = libc::iovec { iov_base: found.as_mut_ptr().cast(), iov_len: size_of::<Key>() };
        let remote = libc::iovec { iov_base: (at + made.key) as *mut libc::c_void, iov_len: size_of::<Key>() };
        // SAFETY: `local` is this function's own; the kernel checks `remote`.
        let read = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
        match read {
            n if n == size_of::<Key>() as isize => found == [made.id, at as u64, self.check(made.id, at as u64)],
            // A filter of system calls forbids to ask: it stays.
            -1 => std::io::Error::last_os_error().raw_os_error() != Some(libc::EFAULT),
            _ => false,
        }
    }

    fn check(&self, id: u64, at: u64) -> u64 {
        let mixed = (id ^ self.nonce).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ at).wrapping_mul(0xd6e8_feb8_6659_fd93) | 1
    }

    fn made(&self) -> MutexGuard<'_, BTreeMap<usize, Made>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
            states.bind(at, SIZE, KEY, id);
            ended
        }
    }

    fn find(states: &States, at: usize) -> Option<u64> {
        // SAFETY: as above.
        unsafe { states.find(at, KEY) }
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
        unsafe { states.bind(at, SIZE, KEY, 0) };
        assert_eq!(find(&states, at), None);
        assert_eq!(make(&states, at, 5), [], "it was ended before");
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
