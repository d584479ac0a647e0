//! The heap of this process: one sealed file in memory, mapped at an address that the kernel
//! chooses, cut into extents.

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_int};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};

use aviary_ring::Reserve;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};

use crate::extents::{Extents, UNIT_BYTES, Unit};
use crate::lock::Lock;

/// Size of the heap's address range in bytes, unless AVIARY_HEAP gives another. Only what was used is
/// open, and only touched pages cost memory.
const DEFAULT_SIZE: usize = 32 << 30;
/// Smallest heap in bytes; a smaller one is of no use.
const MIN_HEAP_BYTES: usize = 64 << 20;
const MAX_HEAP_BYTES: usize = 512 << 30;
/// Free memory in bytes that stays resident for the next allocations, as much as the C library
/// keeps.
const MAX_KEPT_BYTES: usize = 64 << 20;
/// Largest allocation in bytes whose memory is kept after `free`. A larger one is returned to the
/// system at once, as the C library does.
const MAX_KEPT_BLOCK_BYTES: usize = 32 << 20;
/// Number of the file's descriptor, out of the way of programs that expect the lowest numbers.
const HEAP_DESCRIPTOR: RawFd = 900;

pub static HEAP: Heap = Heap {
    lock: Lock::new(),
    base: AtomicUsize::new(0),
    size: AtomicUsize::new(0),
    state: UnsafeCell::new(HeapState { stage: Stage::Untried, file: NO_FILE, extents: Extents::none(), reserve: None }),
};

pub struct Heap {
    pub lock: Lock,
    /// Address of the heap; 0 until it exists, then constant.
    base: AtomicUsize,
    size: AtomicUsize,
    state: UnsafeCell<HeapState>,
}

// SAFETY: `state` is only used by the holder of `lock`.
unsafe impl Sync for Heap {}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Untried,
    Ready,
    /// Creation failed: there will be no heap in this process.
    Failed,
}

/// A descriptor's number and the file that it should refer to: programs close numbers that they do
/// not know, and reuse them.
#[derive(Clone, Copy)]
struct File {
    number: RawFd,
    device: u64,
    inode: u64,
}

/// No file. No inode has the number 0.
const NO_FILE: File = File { number: -1, device: 0, inode: 0 };

impl File {
    fn of(file: OwnedFd) -> File {
        let Ok(found) = rustix::fs::fstat(&file) else { return NO_FILE };
        File { number: file.into_raw_fd(), device: found.st_dev, inode: found.st_ino }
    }

    fn get(&self) -> Option<BorrowedFd<'_>> {
        if self.number < 0 {
            return None;
        }
        // SAFETY: the number may have been closed or reused; `fstat` changes nothing in either
        // case.
        let file = unsafe { BorrowedFd::borrow_raw(self.number) };
        let found = rustix::fs::fstat(file).ok()?;
        (found.st_dev == self.device && found.st_ino == self.inode).then_some(file)
    }

    fn close(&mut self) {
        if self.get().is_some() {
            // SAFETY: the number still refers to the heap's file, and no other code closes it.
            drop(unsafe { OwnedFd::from_raw_fd(self.number) });
        }
        *self = NO_FILE;
    }
}

pub struct HeapState {
    stage: Stage,
    /// The file of the heap. `NO_FILE` in a child that could not create one: its heap is anonymous
    /// memory that is not shared.
    file: File,
    extents: Extents<'static>,
    /// Opens the parts that are used. Every used extent is open. `None`: there is no heap.
    reserve: Option<Reserve>,
}

impl HeapState {
    /// Opens an extent. False: the kernel has no room for another mapping.
    fn open(&self, at: u32, units: u32) -> bool {
        let Some(reserve) = &self.reserve else { return false };
        reserve.open(at as usize * UNIT_BYTES, units as usize * UNIT_BYTES).is_ok()
    }
}

/// The answer to a guest library. The layout is part of the interface: crates/guest has an equal
/// struct.
#[repr(C)]
pub struct SharedHeap {
    base: usize,
    size: usize,
    /// A descriptor of the file, which the caller owns and closes.
    file: c_int,
}

impl Heap {
    #[inline]
    pub fn contains(&self, p: *const u8) -> bool {
        let base = self.base.load(Ordering::Relaxed);
        base != 0 && p.addr().wrapping_sub(base) < self.size.load(Ordering::Relaxed)
    }

    fn with<T>(&self, f: impl FnOnce(&mut HeapState) -> T) -> T {
        self.lock.acquire();
        // SAFETY: the lock is held until `f` returns, and `f` cannot re-enter: none of its own
        // allocations is large enough to reach this heap.
        let result = f(unsafe { &mut *self.state.get() });
        self.lock.release();
        result
    }

    /// The state, for `fork`, which holds the lock around it.
    ///
    /// # Safety
    /// The caller holds the lock and drops the reference before it releases the lock.
    #[expect(clippy::mut_from_ref)]
    pub unsafe fn state(&self) -> &mut HeapState {
        // SAFETY: the caller's promise.
        unsafe { &mut *self.state.get() }
    }

    fn base(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.base.load(Ordering::Relaxed))
    }

    fn address_of(&self, unit: u32) -> *mut u8 {
        self.base().wrapping_add(unit as usize * UNIT_BYTES)
    }

    /// The unit that begins at `p`; `None` if `p` is no multiple of a unit.
    fn unit_of(&self, p: *const u8) -> Option<u32> {
        let distance = p.addr() - self.base().addr();
        distance.is_multiple_of(UNIT_BYTES).then_some((distance / UNIT_BYTES) as u32)
    }

    /// Allocates at least `bytes` bytes at a multiple of `align`; true if they are zeros. `None`:
    /// the next allocator serves the request.
    pub fn allocate(&self, bytes: usize, align: usize) -> Option<(*mut u8, bool)> {
        let units = u32::try_from(bytes.div_ceil(UNIT_BYTES)).ok()?;
        let align = u32::try_from(align.div_ceil(UNIT_BYTES)).ok()?;
        self.with(|state| {
            if !self.ready(state) {
                return None;
            }
            let base = (self.base().addr() / UNIT_BYTES) as u64;
            let taken = state.extents.take(units, align, base).or_else(|| {
                self.clean_all(state);
                state.extents.take(units, align, base)
            });
            let (at, zeros) = taken?;
            if !state.open(at, units) {
                state.extents.give_back(at);
                return None;
            }
            Some((self.address_of(at), zeros))
        })
    }

    /// Bytes of the allocation at `p`; `None` if none begins there.
    pub fn usable(&self, p: *const u8) -> Option<usize> {
        let at = self.unit_of(p)?;
        self.with(|state| state.extents.length(at)).map(|units| units as usize * UNIT_BYTES)
    }

    /// Grows or shrinks an allocation in place; false if it cannot.
    pub fn resize(&self, p: *const u8, bytes: usize) -> bool {
        let (Some(at), Ok(units)) = (self.unit_of(p), u32::try_from(bytes.div_ceil(UNIT_BYTES))) else { return false };
        self.with(|state| {
            let before = state.extents.length(at);
            let mut done = state.extents.resize(at, units);
            if done && !state.open(at, units) {
                if let Some(before) = before {
                    state.extents.resize(at, before);
                }
                done = false;
            }
            self.bound(state);
            done
        })
    }

    /// Frees the allocation at `p`; false if none begins there.
    pub fn free(&self, p: *const u8) -> bool {
        let Some(at) = self.unit_of(p) else { return false };
        self.with(|state| {
            let Some(extent) = state.extents.give_back(at) else { return false };
            if extent.len() * UNIT_BYTES > MAX_KEPT_BLOCK_BYTES {
                self.clean(state, extent);
            }
            self.bound(state);
            true
        })
    }

    /// Returns free memory to the system until at most `MAX_KEPT_BYTES` are kept.
    fn bound(&self, state: &mut HeapState) {
        if state.extents.kept() as usize * UNIT_BYTES > MAX_KEPT_BYTES {
            self.clean_all(state);
        }
    }

    fn clean_all(&self, state: &mut HeapState) {
        while let Some(extent) = state.extents.first_dirty() {
            if !self.clean(state, extent) {
                return;
            }
        }
    }

    fn clean(&self, state: &mut HeapState, extent: Range<u32>) -> bool {
        // Punches the file, if there is one. The advice needs no descriptor, which the program may
        // have closed.
        let advice = if state.file.number >= 0 { Advice::LinuxRemove } else { Advice::LinuxDontNeed };
        // SAFETY: a free extent of this heap, whose content has no owner. An API server that still
        // writes there, for a buffer that the application has freed meanwhile, writes into memory
        // that is free here as well.
        let given =
            unsafe { rustix::mm::madvise(self.address_of(extent.start).cast(), extent.len() * UNIT_BYTES, advice) };
        if given.is_ok() {
            if let Some(reserve) = &state.reserve {
                reserve.close(extent.start as usize * UNIT_BYTES, extent.len() * UNIT_BYTES);
            }
            state.extents.cleaned(extent);
        }
        given.is_ok()
    }

    fn ready(&self, state: &mut HeapState) -> bool {
        if state.stage == Stage::Untried {
            // The creation may allocate a little; that request finds the stage `Failed` and goes to
            // the next allocator. Creation is tried once.
            state.stage = Stage::Failed;
            match self.create(state) {
                Ok(()) => state.stage = Stage::Ready,
                Err(error) => {
                    say(c"aviary: --share-heap: there is no memory for it, so buffers are copied (errno ", error)
                }
            }
        }
        state.stage == Stage::Ready
    }

    fn create(&self, state: &mut HeapState) -> rustix::io::Result<()> {
        let mut size = wanted_size();
        loop {
            match self.create_sized(state, size) {
                // A process with a limit on its address space gets a smaller heap.
                Err(_) if size / 4 >= MIN_HEAP_BYTES => size /= 4,
                result => return result,
            }
        }
    }

    fn create_sized(&self, state: &mut HeapState, size: usize) -> rustix::io::Result<()> {
        let file = new_file(size)?;
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::NORESERVE);
        let count = size / UNIT_BYTES;
        let bytes = count * size_of::<Unit>();
        // SAFETY: two mappings at addresses that the kernel chooses. The file is sealed against
        // shrinking, so accesses below `size` cannot fault once they are allowed.
        let (base, books) = unsafe {
            let base = rustix::mm::mmap(null_mut(), size, ProtFlags::empty(), flags | MapFlags::SHARED, &file, 0)?;
            match rustix::mm::mmap_anonymous(null_mut(), bytes, protection, flags | MapFlags::PRIVATE) {
                Ok(books) => (base, books),
                Err(error) => {
                    let _ = rustix::mm::munmap(base, size);
                    return Err(error);
                }
            }
        };
        // SAFETY: the records that have just been mapped; a kernel that refuses changes only what a dump contains.
        let _ = unsafe { rustix::mm::madvise(books, bytes, Advice::LinuxDontDump) };
        // SAFETY: the mapping of the heap is never unmapped, and nothing uses it but what `Reserve` opens.
        state.reserve = Some(unsafe { Reserve::closed(base.cast(), size) });
        // SAFETY: the mapping has `count` units, all zeros, which are valid units; it is
        // page-aligned, has no other user, and is never unmapped.
        let units = unsafe { std::slice::from_raw_parts_mut(books.cast::<Unit>(), count) };
        state.extents = Extents::new(units);
        state.file = File::of(file);
        self.size.store(size, Ordering::Relaxed);
        self.base.store(base.expose_provenance(), Ordering::Relaxed);
        Ok(())
    }

    /// The heap for a guest library that attaches. `None`: there is nothing to share.
    pub fn share(&self) -> Option<SharedHeap> {
        self.with(|state| {
            if !self.ready(state) {
                return None;
            }
            let file = rustix::io::fcntl_dupfd_cloexec(state.file.get()?, 3).ok()?;
            let (base, size) = (self.base().addr(), self.size.load(Ordering::Relaxed));
            Some(SharedHeap { base, size, file: file.into_raw_fd() })
        })
    }
}

/// Separation from the parent in the child of a fork, before any other code runs there.
impl Heap {
    /// True if the child needs a copy of any extent.
    pub fn in_use(&self, state: &HeapState) -> bool {
        state.extents.used_from(0).is_some()
    }

    /// Replaces the parent's file by a new one with a copy of the used extents.
    pub fn separate(&self, state: &mut HeapState) {
        if state.stage != Stage::Ready {
            return;
        }
        let size = self.size.load(Ordering::Relaxed);
        let copied = new_file(size).and_then(|file| {
            self.copy_used(state, |from, bytes, at| write_all(file.as_fd(), from, bytes, at))?;
            let flags = MapFlags::NORESERVE | MapFlags::SHARED | MapFlags::FIXED;
            // SAFETY: this heap's own range, which keeps its content: all used extents were copied
            // into the new file.
            unsafe { rustix::mm::mmap(self.base().cast(), size, ProtFlags::empty(), flags, &file, 0) }?;
            if let Some(reserve) = &state.reserve {
                reserve.replaced(0, size).map_err(|error| errno(&error))?;
            }
            state.file.close();
            state.file = File::of(file);
            Ok(())
        });
        if copied.is_err() && self.keep_privately(state, size).is_err() {
            // A child without its memory cannot go on, and the shared mapping would corrupt the
            // parent's.
            say(
                c"aviary: --share-heap: no memory for a copy of the heap in a forked process (errno ",
                rustix::io::Errno::NOMEM,
            );
            std::process::abort();
        }
    }

    /// Copies the heap into anonymous memory if no file can be made (too many are open). It works
    /// alike, but API servers cannot map it.
    fn keep_privately(&self, state: &mut HeapState, size: usize) -> rustix::io::Result<()> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::NORESERVE | MapFlags::PRIVATE);
        // SAFETY: new memory at an address that the kernel chooses, which then replaces this heap's
        // own range, with a copy of all used extents.
        unsafe {
            let copy = rustix::mm::mmap_anonymous(null_mut(), size, protection, flags)?;
            self.copy_used(state, |from, bytes, at| {
                copy.cast::<u8>().add(at).copy_from_nonoverlapping(from, bytes);
                Ok(())
            })?;
            rustix::mm::mremap_fixed(copy, size, size, rustix::mm::MremapFlags::MAYMOVE, self.base().cast())?;
            let closed = state.reserve.iter().flat_map(Reserve::closed_parts);
            for part in closed {
                rustix::mm::mprotect(self.base().add(part.start).cast(), part.len(), MprotectFlags::empty())?;
            }
            let _ = rustix::mm::madvise(self.base().cast(), size, Advice::LinuxDontDump);
        }
        state.file.close();
        Ok(())
    }

    /// Calls `copy` with each used range that was ever touched: its address, its length and its
    /// offset in bytes.
    fn copy_used(
        &self,
        state: &HeapState,
        copy: impl Fn(*const u8, usize, usize) -> rustix::io::Result<()>,
    ) -> rustix::io::Result<()> {
        let mut next = 0;
        while let Some(extent) = state.extents.used_from(next) {
            let (mut at, end) = (extent.start as usize * UNIT_BYTES, extent.end as usize * UNIT_BYTES);
            next = extent.end;
            while at < end {
                let data = touched(state.file.get(), at, end);
                if !data.is_empty() {
                    copy(self.base().wrapping_add(data.start), data.len(), data.start)?;
                }
                at = data.end;
            }
        }
        Ok(())
    }
}

/// The first touched part of a range: untouched pages occupy no memory, and reading them would
/// allocate them.
fn touched(file: Option<BorrowedFd>, from: usize, to: usize) -> Range<usize> {
    use rustix::fs::{SeekFrom, seek};
    let Some(file) = file else { return from..to };
    let start = match seek(file, SeekFrom::Data(from as u64)) {
        Ok(start) => (start as usize).clamp(from, to),
        Err(rustix::io::Errno::NXIO) => to,
        Err(_) => return from..to,
    };
    match seek(file, SeekFrom::Hole(start as u64)) {
        Ok(end) if start < to => start..(end as usize).clamp(start, to),
        _ => start..to,
    }
}

fn write_all(file: BorrowedFd, from: *const u8, bytes: usize, at: usize) -> rustix::io::Result<()> {
    // SAFETY: a used part of this heap, readable, and unchanged in a process with a single thread.
    // Threads of the parent that write meanwhile would, in any fork, leave the child a part of
    // their writes.
    let mut rest = unsafe { std::slice::from_raw_parts(from, bytes) };
    let mut at = at as u64;
    while !rest.is_empty() {
        match rustix::io::pwrite(file, rest, at) {
            Ok(written) => {
                rest = &rest[written..];
                at += written as u64;
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn errno(error: &std::io::Error) -> rustix::io::Errno {
    rustix::io::Errno::from_io_error(error).unwrap_or(rustix::io::Errno::NOMEM)
}

fn new_file(size: usize) -> rustix::io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create(c"aviary-heap", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&file, size as u64)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    // With a lower limit on descriptors the file keeps its number.
    Ok(rustix::io::fcntl_dupfd_cloexec(&file, HEAP_DESCRIPTOR).unwrap_or(file))
}

/// The size from AVIARY_HEAP, such as `512M` or `16G`; the default if it is absent or not usable.
fn wanted_size() -> usize {
    // SAFETY: the text is read at once. A program that changes its environment in another thread
    // meanwhile would break every library that reads it.
    let text = unsafe {
        let text = libc::getenv(c"AVIARY_HEAP".as_ptr());
        if text.is_null() { None } else { CStr::from_ptr(text).to_str().ok() }
    };
    parse_size(text).unwrap_or(DEFAULT_SIZE)
}

fn parse_size(text: Option<&str>) -> Option<usize> {
    let text = text?;
    let (digits, shift) = match text.strip_suffix(['G', 'g']) {
        Some(digits) => (digits, 30),
        None => (text.strip_suffix(['M', 'm'])?, 20),
    };
    let size = digits.parse::<usize>().ok()?.checked_mul(1 << shift)?;
    (MIN_HEAP_BYTES..=MAX_HEAP_BYTES).contains(&size).then_some(size)
}

/// Writes a line on standard error, ending in a number, without allocating.
fn say(text: &CStr, error: rustix::io::Errno) {
    let mut line = [0u8; 160];
    let mut at = 0;
    let mut put = |byte: u8| {
        if let Some(place) = line.get_mut(at) {
            *place = byte;
            at += 1;
        }
    };
    text.to_bytes().iter().for_each(|byte| put(*byte));
    let number = error.raw_os_error();
    if number >= 100 {
        put(b'0' + (number / 100 % 10) as u8);
    }
    if number >= 10 {
        put(b'0' + (number / 10 % 10) as u8);
    }
    put(b'0' + (number % 10) as u8);
    b")\n".iter().for_each(|byte| put(*byte));
    // SAFETY: `write` on a number that the program may have closed or reused; at worst the line is
    // lost.
    let stderr = unsafe { BorrowedFd::borrow_raw(2) };
    let _ = rustix::io::write(stderr, &line[..at]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed() {
        assert_eq!(parse_size(Some("16G")), Some(16 << 30));
        assert_eq!(parse_size(Some("512m")), Some(512 << 20));
        for nonsense in [None, Some(""), Some("12"), Some("1M"), Some("99999999999999999999G"), Some("-1G")] {
            assert_eq!(parse_size(nonsense), None, "{nonsense:?}");
        }
    }
}
