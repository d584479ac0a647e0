//! Memory of the vendor's library for which the application has an address: copies of what the library has handed out, and
//! blocks for what it has mapped.
//!
//! | memory | when it ends |
//! |---|---|
//! | copy, [`Keep::Session`] | with the session |
//! | copy, [`Keep::Object`] | with the handle |
//! | copy, [`Keep::Until`] | when the function is called the next time |
//! | copy, [`Keep::Freed`] | when the application frees it by its address |
//! | copy, [`Keep::Allocated`] | when the application frees it; it is not known here |
//! | mapped | when the application unmaps it by its address |
//!
//! Written by the threads that read replies, read by the application. Memory that ends by its address has the server's id: an
//! address that is not known here is never passed on. It is removed once the server has ended it, or when the call that ends
//! it is sent, if that has no answer. A lying server can give the same id to several addresses, and misleads this guest only.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::memory::block::{Block, lock};

/// How long the application may use a copy.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum Keep {
    Session,
    /// As long as the handle of this value.
    Object(u64),
    /// Until the function of this number is called.
    Until(u32),
    /// Until a function frees it that frees what belongs to this group.
    Freed(u32),
    /// The application's own, of its C library's `malloc`.
    Allocated,
}

/// One mapping of memory outside the arena.
#[derive(Clone, Copy)]
pub(crate) struct Mapping {
    /// The server's id of the mapping.
    pub id: u64,
    pub block: Block,
    pub bytes: usize,
    /// Address at which the application asked for the content; 0: it works in the block itself.
    pub at: usize,
    /// True if the application may have changed the content.
    pub write: bool,
}

/// Memory that ends by its address.
enum Known {
    Copy { group: u32, _memory: Box<[u128]> },
    Mapped(Mapping),
}

/// A copy, in 16-byte units so that any C type is aligned, and its length.
#[derive(PartialEq, Eq, Hash)]
struct Datum {
    units: Box<[u128]>,
    length: usize,
}

/// Copies with one lifetime. Equal content is kept once, so that repeated queries of an application need no further memory.
#[derive(Default)]
struct Interned(HashSet<Datum>);

#[derive(Default)]
pub(crate) struct ForeignTable {
    session: Mutex<Interned>,
    /// Copies that end with a handle, or until a function is called.
    copies: Mutex<HashMap<Keep, Interned>>,
    /// True once there was one that ends with a handle: handles end without a look at the others.
    any_owned: AtomicBool,
    /// By address and the server's id: one address can be mapped several times, the last time with the highest id.
    by_address: Mutex<BTreeMap<(usize, u64), Known>>,
}

/// Copies bytes into 16-byte units, with at least one zero byte behind them.
pub(crate) fn units(bytes: &[u8]) -> Box<[u128]> {
    let mut units: Vec<u128> = Vec::with_capacity(bytes.len() / 16 + 1);
    let (whole, rest) = bytes.as_chunks::<16>();
    units.extend(whole.iter().map(|c| u128::from_ne_bytes(*c)));
    let mut last = [0; 16];
    last[..rest.len()].copy_from_slice(rest);
    units.push(u128::from_ne_bytes(last));
    units.into_boxed_slice()
}

/// A copy that the application frees without us, with a zero byte behind it; NULL: there is no memory.
fn allocated(bytes: &[u8]) -> *mut u8 {
    // SAFETY: any size may be asked for.
    let memory: *mut u8 = unsafe { libc::malloc(bytes.len() + 1) }.cast();
    if !memory.is_null() {
        // SAFETY: `memory` has room for one byte more than `bytes`, and nobody else has its address.
        unsafe {
            memory.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            memory.add(bytes.len()).write(0);
        }
    }
    memory
}

impl Interned {
    /// The address stays valid as long as the set; the zero byte behind the data terminates a string without a NUL.
    fn intern(&mut self, bytes: &[u8]) -> *mut u8 {
        let datum = Datum { units: units(bytes), length: bytes.len() };
        if let Some(known) = self.0.get(&datum) {
            return known.units.as_ptr().cast_mut().cast();
        }
        let address = datum.units.as_ptr().cast_mut().cast();
        self.0.insert(datum);
        address
    }
}

impl ForeignTable {
    /// The address of a copy. `id`: under which the server frees the original; 0: it will not, and the copy stays.
    pub fn keep(&self, bytes: &[u8], how: Keep, id: u64) -> *mut u8 {
        match how {
            Keep::Object(_) | Keep::Until(_) => {
                if matches!(how, Keep::Object(_)) {
                    self.any_owned.store(true, Ordering::Release);
                }
                lock(&self.copies).entry(how).or_default().intern(bytes)
            }
            Keep::Freed(group) if id != 0 => {
                let memory = units(bytes);
                let address = memory.as_ptr().cast_mut().cast::<u8>();
                lock(&self.by_address).insert((address as usize, id), Known::Copy { group, _memory: memory });
                address
            }
            Keep::Allocated => allocated(bytes),
            Keep::Session | Keep::Freed(_) => lock(&self.session).intern(bytes),
        }
    }

    pub fn map(&self, pointer: usize, mapping: Mapping) {
        lock(&self.by_address).insert((pointer, mapping.id), Known::Mapped(mapping));
    }

    /// The newest mapping at the pointer.
    pub fn mapping(&self, pointer: usize) -> Option<Mapping> {
        match lock(&self.by_address).range((pointer, 0)..=(pointer, u64::MAX)).next_back()?.1 {
            Known::Mapped(mapping) => Some(*mapping),
            Known::Copy { .. } => None,
        }
    }

    /// The id of the copy at an address, if it belongs to one of the groups.
    pub fn freed(&self, address: usize, groups: &[u32]) -> Option<u64> {
        match lock(&self.by_address).range((address, 0)..=(address, u64::MAX)).next_back()? {
            ((_, id), Known::Copy { group, .. }) if groups.contains(group) => Some(*id),
            _ => None,
        }
    }

    /// The application has freed a copy, or unmapped memory; the block of that. `None` also if another thread has ended it.
    pub fn end(&self, address: usize, id: u64) -> Option<Block> {
        match lock(&self.by_address).remove(&(address, id))? {
            Known::Mapped(mapping) => Some(mapping.block),
            Known::Copy { .. } => None,
        }
    }

    /// The handle of this value has ended.
    pub fn owner_ended(&self, value: u64) {
        if self.any_owned.load(Ordering::Acquire) {
            lock(&self.copies).remove(&Keep::Object(value));
        }
    }

    pub fn function_called(&self, function: u32) {
        lock(&self.copies).remove(&Keep::Until(function));
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
        let foreign = ForeignTable::default();
        let first = foreign.keep(b"name\0", Keep::Freed(1), 7);
        let second = foreign.keep(b"name\0", Keep::Freed(1), 8);
        assert!(first != second, "each value has a copy of its own");
        assert_eq!(text(first), "name");
        assert_eq!(foreign.freed(first as usize, &[0, 2]), None, "another function");
        assert_eq!(foreign.freed(first as usize + 1, &[1]), None, "inside of it");
        assert_eq!(foreign.freed(first as usize, &[0, 1]), Some(7));
        assert!(foreign.mapping(first as usize).is_none(), "a copy is not unmapped");
        assert_eq!(foreign.end(first as usize, 7), None);
        assert_eq!(foreign.freed(first as usize, &[1]), None);
        assert_eq!(foreign.freed(second as usize, &[1]), Some(8));
        assert_eq!(text(second), "name");
        let lasting = foreign.keep(b"name\0", Keep::Freed(1), 0);
        assert_eq!(foreign.freed(lasting as usize, &[1]), None, "the server does not free it");
    }

    #[test]
    fn copies_end_with_their_owner_and_with_the_next_call() {
        let foreign = ForeignTable::default();
        let one = foreign.keep(b"one\0", Keep::Object(5), 0);
        assert_eq!(foreign.keep(b"one\0", Keep::Object(5), 0), one, "asked again");
        let other = foreign.keep(b"one\0", Keep::Object(6), 0);
        foreign.owner_ended(5);
        assert_eq!(text(other), "one");
        assert_eq!(lock(&foreign.copies).len(), 1);
        let until = foreign.keep(b"error\0", Keep::Until(3), 0);
        foreign.function_called(4);
        foreign.function_called(6);
        assert_eq!(text(until), "error");
        foreign.function_called(3);
        assert_eq!(lock(&foreign.copies).len(), 1, "the other object's");
    }

    #[test]
    fn the_newest_mapping_at_an_address_ends_first_and_once() {
        let foreign = ForeignTable::default();
        let mapping = |id| Mapping { id, block: Block { offset: id << 12, size: 64 }, bytes: 64, at: 0, write: true };
        foreign.map(0x1000, mapping(3));
        foreign.map(0x1000, mapping(9));
        foreign.map(0x1008, mapping(12));
        let newest = || foreign.mapping(0x1000).map(|mapping| mapping.id);
        assert_eq!(newest(), Some(9));
        assert_eq!(foreign.freed(0x1000, &[0]), None, "mapped memory is not freed");
        assert_eq!(foreign.end(0x1000, 9).map(|block| block.offset), Some(9 << 12));
        assert!(foreign.end(0x1000, 9).is_none() && foreign.end(0x1000, 12).is_none());
        assert_eq!(newest(), Some(3));
        assert!(foreign.end(0x1000, 3).is_some() && newest().is_none());
    }

    #[test]
    fn equal_data_is_kept_once_and_terminated() {
        let foreign = ForeignTable::default();
        for length in 0..40 {
            let bytes = vec![b'x'; length];
            let p = foreign.keep(&bytes, Keep::Session, 0);
            assert_eq!(p, foreign.keep(&bytes, Keep::Session, 0));
            assert_eq!(p as usize % 16, 0);
            // SAFETY: the datum has length + 1 bytes at least.
            unsafe {
                assert_eq!(std::slice::from_raw_parts(p, length), bytes);
                assert_eq!(p.add(length).read(), 0);
            }
        }
    }
}
