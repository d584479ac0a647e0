//! Buffers in flight: the application's buffers under each key.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};

#[derive(Clone, Copy, PartialEq, Eq)]
struct BufferInFlight {
    address: usize,
    bytes: usize,
}

#[derive(Default)]
pub(crate) struct Registries {
    entries: Mutex<HashMap<(u32, u64), Vec<BufferInFlight>>>,
}

/// A thread's snapshot of the buffers. A stub asks for the array, its length and its sizes one
/// after the other, while other threads register more; all three answers come from one snapshot.
#[derive(Default)]
pub(crate) struct Snapshot {
    key: Option<(u32, u64)>,
    addresses: Vec<*mut c_void>,
    sizes: Vec<usize>,
    count: usize,
}

impl Registries {
    fn entries(&self) -> MutexGuard<'_, HashMap<(u32, u64), Vec<BufferInFlight>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a buffer; a buffer registered twice is one entry with the larger size.
    pub fn register(&self, registry: u32, key: u64, p: *mut u8, bytes: usize) {
        let mut entries = self.entries();
        let list = entries.entry((registry, key)).or_default();
        match list.iter_mut().find(|e| e.address == p as usize) {
            Some(entry) => entry.bytes = entry.bytes.max(bytes),
            None => list.push(BufferInFlight { address: p as usize, bytes }),
        }
    }

    /// Forgets a buffer whose shadow has ended.
    pub fn forget(&self, p: *mut u8) {
        let mut entries = self.entries();
        entries.retain(|_, list| {
            list.retain(|e| e.address != p as usize);
            !list.is_empty()
        });
    }

    /// The buffers under a key. Valid until the snapshot is taken again; never shorter than an earlier
    /// answer, so that a count read before the array is safe as well (surplus elements are NULL).
    pub fn buffers(&self, snapshot: &mut Snapshot, registry: u32, key: u64) -> *const *mut c_void {
        self.look(snapshot, registry, key);
        snapshot.addresses.as_ptr()
    }

    pub fn count(&self, snapshot: &mut Snapshot, registry: u32, key: u64) -> usize {
        self.look_once(snapshot, registry, key);
        snapshot.count
    }

    pub fn size(&self, snapshot: &mut Snapshot, registry: u32, key: u64, index: usize) -> usize {
        self.look_once(snapshot, registry, key);
        snapshot.sizes.get(index).copied().unwrap_or(0)
    }

    fn look_once(&self, snapshot: &mut Snapshot, registry: u32, key: u64) {
        if snapshot.key != Some((registry, key)) {
            self.look(snapshot, registry, key);
        }
    }

    fn look(&self, s: &mut Snapshot, registry: u32, key: u64) {
        let longest = s.addresses.len();
        s.addresses.clear();
        s.sizes.clear();
        if let Some(list) = self.entries().get(&(registry, key)) {
            s.addresses.extend(list.iter().map(|e| e.address as *mut c_void));
            s.sizes.extend(list.iter().map(|e| e.bytes));
        }
        s.key = Some((registry, key));
        s.count = s.sizes.len();
        let length = longest.max(s.count).max(1);
        s.addresses.resize(length, std::ptr::null_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_found_by_key() {
        let (r, mut s) = (Registries::default(), Snapshot::default());
        let p = |n: usize| (n * 16) as *mut u8;
        r.register(0, 7, p(1), 10);
        r.register(0, 7, p(2), 20);
        r.register(0, 7, p(1), 15);
        r.register(0, 8, p(3), 30);
        let buffers = r.buffers(&mut s, 0, 7);
        assert_eq!(
            (r.count(&mut s, 0, 7), r.size(&mut s, 0, 7, 0), r.size(&mut s, 0, 7, 1), r.size(&mut s, 0, 7, 2)),
            (2, 15, 20, 0)
        );
        // SAFETY: two elements, as counted.
        unsafe { assert_eq!((*buffers, *buffers.add(1)), (p(1).cast(), p(2).cast())) };
        r.forget(p(2));
        let buffers = r.buffers(&mut s, 0, 7);
        assert_eq!(r.count(&mut s, 0, 7), 1);
        // SAFETY: the array never becomes shorter than it was.
        unsafe { assert!((*buffers.add(1)).is_null()) };
        assert_eq!(r.count(&mut s, 1, 7), 0);
        assert!(!r.buffers(&mut s, 1, 7).is_null());
    }
}
