//! Copies of the vendor library's memory that end before the session does: with a handle, with the next call of a function,
//! or when the application frees them.
//!
//! Written by the threads that read replies, read by the application. Memory that the application frees is known here by the
//! copy's address: what is not is never passed on.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::objects::interned::{Interned, units};

/// How long the application may use a copy.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// As long as the handle of this value.
    Object(u64),
    /// Until the function of this number is called.
    Until(u32),
    /// Until a function frees it that frees what belongs to this group.
    Freed(u32),
}

/// A copy of memory that the application frees.
struct FreedCopy {
    /// The server's id of the memory.
    id: u64,
    group: u32,
    _memory: Box<[u128]>,
}

#[derive(Default)]
pub(crate) struct Kept {
    /// By value of the handle.
    owned: Mutex<HashMap<u64, Interned>>,
    /// True once there was one: handles end without a look at the others.
    any_owned: AtomicBool,
    /// By number of the function.
    until: Mutex<HashMap<u32, Interned>>,
    /// By address of the copy.
    freed: Mutex<HashMap<usize, FreedCopy>>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Kept {
    pub fn own(&self, value: u64, bytes: &[u8]) -> *mut u8 {
        self.any_owned.store(true, Ordering::Release);
        lock(&self.owned).entry(value).or_default().intern(bytes)
    }

    pub fn hold_until(&self, function: u32, bytes: &[u8]) -> *mut u8 {
        lock(&self.until).entry(function).or_default().intern(bytes)
    }

    pub fn lend(&self, id: u64, group: u32, bytes: &[u8]) -> *mut u8 {
        let memory = units(bytes);
        let address = memory.as_ptr().cast_mut().cast::<u8>();
        lock(&self.freed).insert(address as usize, FreedCopy { id, group, _memory: memory });
        address
    }

    /// The id of the copy at an address, if it belongs to one of the groups.
    pub fn find(&self, address: usize, groups: &[u32]) -> Option<u64> {
        lock(&self.freed).get(&address).filter(|copy| groups.contains(&copy.group)).map(|copy| copy.id)
    }

    /// The application has freed a copy.
    pub fn free(&self, address: usize) {
        lock(&self.freed).remove(&address);
    }

    /// The handle of this value has ended.
    pub fn owner_ended(&self, value: u64) {
        if self.any_owned.load(Ordering::Acquire) {
            lock(&self.owned).remove(&value);
        }
    }

    pub fn function_called(&self, function: u32) {
        lock(&self.until).remove(&function);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(at: *mut u8) -> String {
        // SAFETY: a copy has a zero byte behind it.
        unsafe { std::ffi::CStr::from_ptr(at.cast()) }.to_string_lossy().into_owned()
    }

    #[test]
    fn a_copy_is_freed_once_and_by_a_function_of_its_group() {
        let kept = Kept::default();
        let first = kept.lend(7, 1, b"name\0");
        let second = kept.lend(8, 1, b"name\0");
        assert!(first != second, "each value has a copy of its own");
        assert_eq!(text(first), "name");
        assert_eq!(kept.find(first as usize, &[0, 2]), None, "another function");
        assert_eq!(kept.find(first as usize + 1, &[1]), None, "inside of it");
        assert_eq!(kept.find(first as usize, &[0, 1]), Some(7));
        kept.free(first as usize);
        assert_eq!(kept.find(first as usize, &[1]), None);
        assert_eq!(kept.find(second as usize, &[1]), Some(8));
        assert_eq!(text(second), "name");
    }

    #[test]
    fn copies_end_with_their_owner_and_with_the_next_call() {
        let kept = Kept::default();
        let one = kept.own(5, b"one\0");
        assert_eq!(kept.own(5, b"one\0"), one, "asked again");
        let other = kept.own(6, b"one\0");
        kept.owner_ended(5);
        assert_eq!(text(other), "one");
        assert_eq!(lock(&kept.owned).len(), 1);
        let until = kept.hold_until(3, b"error\0");
        kept.function_called(4);
        assert_eq!(text(until), "error");
        kept.function_called(3);
        assert!(lock(&kept.until).is_empty());
    }
}
