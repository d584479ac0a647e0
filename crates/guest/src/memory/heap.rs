//! The application's large allocations, which `aviary run --share-heap` puts into a file that API
//! servers map, too: a message names the offset of such a buffer, and its bytes are not copied.

use std::ffi::c_int;
use std::os::fd::{FromRawFd, OwnedFd};

/// Smallest input in bytes that is not copied. An asynchronous call with such an input waits until
/// the server has read it.
const MIN_LENT_INPUT_BYTES: usize = 64 << 10;

/// The answer of the preloaded library. The layout is part of the interface: crates/heap has an
/// equal struct.
#[repr(C)]
struct SharedHeap {
    base: usize,
    size: usize,
    file: c_int,
}

/// Addresses of the heap in this process, and its offset in the arena of the API server.
#[derive(Clone, Copy)]
pub(crate) struct Heap {
    base: usize,
    pub size: usize,
    pub offset: u64,
}

impl Heap {
    /// Finds the heap. `None`: the program was not started with `--share-heap`, or there is no
    /// memory for a heap.
    pub fn find() -> Option<(Heap, OwnedFd)> {
        // SAFETY: a NUL-terminated name; a function of this name has this type in every version. It
        // fills the structure in and hands over a descriptor without another owner.
        unsafe {
            let symbol = libc::dlsym(libc::RTLD_DEFAULT, c"aviary_shared_heap".as_ptr());
            if symbol.is_null() {
                return None;
            }
            let ask: unsafe extern "C" fn(*mut SharedHeap) -> c_int = std::mem::transmute(symbol);
            let mut told = SharedHeap { base: 0, size: 0, file: -1 };
            if ask(&mut told) == 0 {
                return None;
            }
            Some((Heap { base: told.base, size: told.size, offset: 0 }, OwnedFd::from_raw_fd(told.file)))
        }
    }

    /// This heap, at an offset of the server's arena.
    pub fn at(self, offset: u64) -> Heap {
        Heap { offset, ..self }
    }

    /// The arena's offset of `n` bytes at `p`; `None` if they do not all lie in the heap.
    pub fn offset_of(&self, p: *const u8, n: usize) -> Option<u64> {
        let distance = p.addr().checked_sub(self.base)?;
        let inside = distance < self.size && distance.checked_add(n).is_some_and(|end| end <= self.size);
        inside.then_some(self.offset + distance as u64)
    }

    /// The arena's offset of an input of `n` bytes at `p`; `None` if it is to be copied.
    pub fn input(&self, p: *const u8, n: usize) -> Option<u64> {
        if n < MIN_LENT_INPUT_BYTES { None } else { self.offset_of(p, n) }
    }

    /// The address of an offset of the arena that lies in the heap.
    pub fn pointer(&self, offset: u64) -> Option<*mut u8> {
        let distance = usize::try_from(offset.checked_sub(self.offset)?).ok()?;
        (distance < self.size).then(|| std::ptr::with_exposed_provenance_mut(self.base + distance))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_buffers_inside_are_shared() {
        let heap = Heap { base: 0x10_0000, size: 0x10_0000, offset: 0x4000 };
        let p = |address: usize| address as *const u8;
        assert_eq!(heap.offset_of(p(0x10_0000), 0x10_0000), Some(0x4000));
        assert_eq!(heap.offset_of(p(0x10_0010), 16), Some(0x4010));
        for (address, n) in [(0x10_0000, 0x10_0001), (0xf_ffff, 2), (0x20_0000, 0), (0, 1), (0x18_0000, usize::MAX)] {
            assert_eq!(heap.offset_of(p(address), n), None, "{address:x} {n:x}");
        }
        assert_eq!((heap.input(p(0x10_0000), 4096), heap.input(p(0x10_0000), 1 << 16)), (None, Some(0x4000)));
        assert_eq!(heap.pointer(0x4010).map(|p| p.addr()), Some(0x10_0010));
        assert!(heap.pointer(0x3fff).is_none() && heap.pointer(0x10_4000).is_none());
    }
}
