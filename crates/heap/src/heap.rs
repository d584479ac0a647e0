//! The heap of this process: one sealed file in memory, mapped where the kernel likes, cut into extents.

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_int};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::extents::{Extents, UNIT, Unit};
use crate::lock::Lock;

/// Addresses of the heap, unless AVIARY_HEAP says otherwise. Only what is touched costs memory.
const DEFAULT_SIZE: usize = 32 << 30;
/// A smaller heap is of no use.
const SMALLEST_SIZE: usize = 64 << 20;
const LARGEST_SIZE: usize = 512 << 30;
/// Free memory that stays, for the next allocation. The C library keeps as much.
const KEPT: usize = 64 << 20;
/// Larger allocations are given back to the system at once, as the C library does.
const LARGEST_KEPT: usize = 32 << 20;
/// The file's descriptor is out of the way of programs that expect the lowest numbers.
const HIGH: RawFd = 900;

pub static HEAP: Heap = Heap {
    lock: Lock::new(),
    base: AtomicUsize::new(0),
    size: AtomicUsize::new(0),
    state: UnsafeCell::new(State { stage: Stage::Untried, file: NO_FILE, extents: Extents::none() }),
};

pub struct Heap {
    pub lock: Lock,
    /// 0: there is none yet. Never changes afterwards.
    base: AtomicUsize,
    size: AtomicUsize,
    state: UnsafeCell<State>,
}

// SAFETY: `state` is only used by whoever holds `lock`.
unsafe impl Sync for Heap {}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Untried,
    Ready,
    /// There will be no heap in this process.
    Failed,
}

/// A descriptor's number and which file it should be: programs close numbers that they do not know, and use them again.
#[derive(Clone, Copy)]
struct File {
    number: RawFd,
    device: u64,
    inode: u64,
}

/// No inode has this number.
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
        // SAFETY: the number may have been closed, or mean something else by now: then what follows does nothing but ask
        // about it.
        let file = unsafe { BorrowedFd::borrow_raw(self.number) };
        let found = rustix::fs::fstat(file).ok()?;
        (found.st_dev == self.device && found.st_ino == self.inode).then_some(file)
    }

    fn close(&mut self) {
        if self.get().is_some() {
            // SAFETY: the number still means our file, and nobody else closes it.
            drop(unsafe { OwnedFd::from_raw_fd(self.number) });
        }
        *self = NO_FILE;
    }
}

pub struct State {
    stage: Stage,
    /// Without one the heap is this process's own and nobody sees it: a child that could not make another file.
    file: File,
    extents: Extents<'static>,
}

/// What a guest library is told. The layout is part of the interface: crates/guest has the same.
#[repr(C)]
pub struct SharedHeap {
    base: usize,
    size: usize,
    /// A descriptor of the file, the caller's to close.
    file: c_int,
}

impl Heap {
    #[inline]
    pub fn contains(&self, p: *const u8) -> bool {
        let base = self.base.load(Ordering::Relaxed);
        base != 0 && p.addr().wrapping_sub(base) < self.size.load(Ordering::Relaxed)
    }

    fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        self.lock.acquire();
        // SAFETY: the lock is held until `f` is done, and `f` cannot come back here: nothing that it does allocates as much
        // as would lead to this heap.
        let result = f(unsafe { &mut *self.state.get() });
        self.lock.release();
        result
    }

    /// For `fork`, which holds the lock around it.
    ///
    /// # Safety
    /// The caller holds the lock and lets the reference go before it releases it.
    #[expect(clippy::mut_from_ref)]
    pub unsafe fn state(&self) -> &mut State {
        // SAFETY: the caller's promise.
        unsafe { &mut *self.state.get() }
    }

    fn base(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.base.load(Ordering::Relaxed))
    }

    fn address_of(&self, unit: u32) -> *mut u8 {
        self.base().wrapping_add(unit as usize * UNIT)
    }

    /// `None`: `p` is no multiple of a unit.
    fn unit_of(&self, p: *const u8) -> Option<u32> {
        let distance = p.addr() - self.base().addr();
        distance.is_multiple_of(UNIT).then_some((distance / UNIT) as u32)
    }

    /// At least `bytes` bytes at a multiple of `align`, and whether they are zeros. `None`: the next allocator is to be asked.
    pub fn allocate(&self, bytes: usize, align: usize) -> Option<(*mut u8, bool)> {
        let units = u32::try_from(bytes.div_ceil(UNIT)).ok()?;
        let align = u32::try_from(align.div_ceil(UNIT)).ok()?;
        self.with(|state| {
            if !self.ready(state) {
                return None;
            }
            let base = (self.base().addr() / UNIT) as u64;
            let taken = state.extents.take(units, align, base).or_else(|| {
                self.clean_all(state);
                state.extents.take(units, align, base)
            });
            taken.map(|(at, zeros)| (self.address_of(at), zeros))
        })
    }

    /// Bytes of the allocation at `p`; `None`: there is none.
    pub fn usable(&self, p: *const u8) -> Option<usize> {
        let at = self.unit_of(p)?;
        self.with(|state| state.extents.length(at)).map(|units| units as usize * UNIT)
    }

    /// Makes an allocation longer or shorter where it is.
    pub fn resize(&self, p: *const u8, bytes: usize) -> bool {
        let (Some(at), Ok(units)) = (self.unit_of(p), u32::try_from(bytes.div_ceil(UNIT))) else { return false };
        self.with(|state| {
            let done = state.extents.resize(at, units);
            self.bound(state);
            done
        })
    }

    /// False: no allocation begins at `p`.
    pub fn free(&self, p: *const u8) -> bool {
        let Some(at) = self.unit_of(p) else { return false };
        self.with(|state| {
            let Some(extent) = state.extents.give_back(at) else { return false };
            if extent.len() * UNIT > LARGEST_KEPT {
                self.clean(state, extent);
            }
            self.bound(state);
            true
        })
    }

    /// Gives free memory back to the system if too much is kept.
    fn bound(&self, state: &mut State) {
        if state.extents.kept() as usize * UNIT > KEPT {
            self.clean_all(state);
        }
    }

    fn clean_all(&self, state: &mut State) {
        while let Some(extent) = state.extents.first_dirty() {
            if !self.clean(state, extent) {
                return;
            }
        }
    }

    fn clean(&self, state: &mut State, extent: Range<u32>) -> bool {
        // Of the file when there is one. The advice needs no descriptor, which the program may have closed.
        let advice = if state.file.number >= 0 { Advice::LinuxRemove } else { Advice::LinuxDontNeed };
        // SAFETY: a free extent of this heap, whose content is nobody's. An API server that still writes there, for a buffer
        // that the application has freed meanwhile, writes into memory that is free here as well.
        let given = unsafe { rustix::mm::madvise(self.address_of(extent.start).cast(), extent.len() * UNIT, advice) };
        if given.is_ok() {
            state.extents.cleaned(extent);
        }
        given.is_ok()
    }

    fn ready(&self, state: &mut State) -> bool {
        if state.stage == Stage::Untried {
            // What follows may allocate a little, which does not come here; and it is tried once.
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

    fn create(&self, state: &mut State) -> rustix::io::Result<()> {
        let mut size = wanted_size();
        loop {
            match self.create_sized(state, size) {
                // A process with an address space limit gets a smaller heap.
                Err(_) if size / 4 >= SMALLEST_SIZE => size /= 4,
                result => return result,
            }
        }
    }

    fn create_sized(&self, state: &mut State, size: usize) -> rustix::io::Result<()> {
        let file = new_file(size)?;
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::NORESERVE);
        let count = size / UNIT;
        // SAFETY: two mappings at places that the kernel chooses. The file is sealed against shrinking, so that accesses
        // below `size` cannot fault.
        let (base, books) = unsafe {
            let base = rustix::mm::mmap(null_mut(), size, protection, flags | MapFlags::SHARED, &file, 0)?;
            let bytes = count * size_of::<Unit>();
            match rustix::mm::mmap_anonymous(null_mut(), bytes, protection, flags | MapFlags::PRIVATE) {
                Ok(books) => (base, books),
                Err(error) => {
                    let _ = rustix::mm::munmap(base, size);
                    return Err(error);
                }
            }
        };
        // SAFETY: the mapping has `count` units, all zeros, which are valid ones; it is page-aligned, nobody else's, and
        // stays for good.
        let units = unsafe { std::slice::from_raw_parts_mut(books.cast::<Unit>(), count) };
        state.extents = Extents::new(units);
        state.file = File::of(file);
        self.size.store(size, Ordering::Relaxed);
        self.base.store(base.expose_provenance(), Ordering::Relaxed);
        Ok(())
    }

    /// For a guest library that attaches. `None`: there is nothing to share.
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

/// In the child of a fork, before anybody runs there: what was shared with the parent becomes the child's own.
impl Heap {
    /// Whether there is anything that the child needs a copy of.
    pub fn in_use(&self, state: &State) -> bool {
        state.extents.used_from(0).is_some()
    }

    /// Puts a new file, with a copy of what is in use, in place of the parent's.
    pub fn separate(&self, state: &mut State) {
        if state.stage != Stage::Ready {
            return;
        }
        let size = self.size.load(Ordering::Relaxed);
        let copied = new_file(size).and_then(|file| {
            self.copy_used(state, |from, bytes, at| write_all(file.as_fd(), from, bytes, at))?;
            let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::NORESERVE | MapFlags::SHARED);
            // SAFETY: this heap's own range, which keeps its content: all that is in use was copied.
            unsafe { rustix::mm::mmap(self.base().cast(), size, protection, flags | MapFlags::FIXED, &file, 0) }?;
            state.file.close();
            state.file = File::of(file);
            Ok(())
        });
        if copied.is_err() && self.keep_privately(state, size).is_err() {
            // Without its memory the child cannot go on, and sharing the parent's would spoil that.
            say(
                c"aviary: --share-heap: no memory for a copy of the heap in a forked process (errno ",
                rustix::io::Errno::NOMEM,
            );
            std::process::abort();
        }
    }

    /// No file can be made (too many are open): anonymous memory does as well, but nobody else sees it.
    fn keep_privately(&self, state: &mut State, size: usize) -> rustix::io::Result<()> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::NORESERVE | MapFlags::PRIVATE);
        // SAFETY: new memory at a place that the kernel chooses, which then moves over this heap's own range, with a copy of
        // all that is in use.
        unsafe {
            let copy = rustix::mm::mmap_anonymous(null_mut(), size, protection, flags)?;
            self.copy_used(state, |from, bytes, at| {
                copy.cast::<u8>().add(at).copy_from_nonoverlapping(from, bytes);
                Ok(())
            })?;
            rustix::mm::mremap_fixed(copy, size, size, rustix::mm::MremapFlags::MAYMOVE, self.base().cast())?;
        }
        state.file.close();
        Ok(())
    }

    /// Calls `copy` for what is in use and was ever touched: where it is, how much of it, and at which offset.
    fn copy_used(
        &self,
        state: &State,
        copy: impl Fn(*const u8, usize, usize) -> rustix::io::Result<()>,
    ) -> rustix::io::Result<()> {
        let mut next = 0;
        while let Some(extent) = state.extents.used_from(next) {
            let (mut at, end) = (extent.start as usize * UNIT, extent.end as usize * UNIT);
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

/// The first part of a range that was ever touched: untouched pages cost nothing, and looking at them would make them.
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
    // SAFETY: a part of this heap that is in use, readable, and changed by nobody in a process with a single thread; the
    // parent's threads that write there meanwhile would in any fork leave the child what they had written so far.
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

fn new_file(size: usize) -> rustix::io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create(c"aviary-heap", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&file, size as u64)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    // Where there are not so many numbers, it stays where it is.
    Ok(rustix::io::fcntl_dupfd_cloexec(&file, HIGH).unwrap_or(file))
}

/// AVIARY_HEAP: sizes such as `512M` and `16G`.
fn wanted_size() -> usize {
    // SAFETY: the text is read at once. A program that changes its environment in another thread meanwhile would trouble
    // every library that reads it.
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
    (SMALLEST_SIZE..=LARGEST_SIZE).contains(&size).then_some(size)
}

/// A line on standard error, ending in a number, without allocating.
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
    // SAFETY: asking about a number that the program may have closed; at worst the line goes nowhere.
    let stderr = unsafe { BorrowedFd::borrow_raw(2) };
    let _ = rustix::io::write(stderr, &line[..at]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_understood() {
        assert_eq!(parse_size(Some("16G")), Some(16 << 30));
        assert_eq!(parse_size(Some("512m")), Some(512 << 20));
        for nonsense in [None, Some(""), Some("12"), Some("1M"), Some("99999999999999999999G"), Some("-1G")] {
            assert_eq!(parse_size(nonsense), None, "{nonsense:?}");
        }
    }
}
