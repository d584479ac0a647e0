//! Address space that is reserved, and opened in steps as it is used.
//!
//! What is closed has no rights and is left out of core dumps, so that nothing that walks a process's memory (a dump,
//! `mlockall`, a debugger, a checkpoint) allocates pages there. What is open can be read and written, and is left out of core
//! dumps as well: a dump would allocate those of its pages that nothing has touched.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes that are opened at once: a huge page.
pub const STEP_BYTES: usize = 2 << 20;
const WORD_STEPS: usize = u64::BITS as usize;

/// A mapping of this process whose parts are opened and closed.
///
/// ```
/// use aviary_ring::{Reserve, STEP_BYTES};
///
/// # let bytes = 4 * STEP_BYTES;
/// # // SAFETY: a new mapping, at an address of the kernel's choice.
/// # let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0) };
/// // `base` is a mapping of `bytes` bytes without rights.
/// // SAFETY: it stays until the process ends.
/// let reserve = unsafe { Reserve::closed(base.cast(), bytes) };
/// reserve.open(STEP_BYTES, 1)?;
/// let closed: Vec<_> = reserve.closed_parts().collect();
/// assert_eq!(closed, [0..STEP_BYTES, 2 * STEP_BYTES..bytes]);
/// reserve.end();
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Reserve {
    base: usize,
    bytes: usize,
    /// A bit for each step, the first one at `base`; set after the step was opened.
    open: Box<[AtomicU64]>,
    /// Held while rights change; true once the mapping is gone.
    over: Mutex<bool>,
}

impl Reserve {
    /// Takes care of a mapping of `bytes` bytes at `base` without rights: all of it is closed.
    ///
    /// # Safety
    /// The mapping stays until [`Reserve::end`], and may be made readable and writable in whole pages.
    pub unsafe fn closed(base: *mut u8, bytes: usize) -> Reserve {
        // SAFETY: the caller's promise.
        unsafe { Self::new(base, bytes, 0) }
    }

    /// Takes care of a mapping that has its rights already: all of it is open.
    ///
    /// # Safety
    /// As for [`Reserve::closed`].
    pub unsafe fn opened(base: *mut u8, bytes: usize) -> Reserve {
        // SAFETY: the caller's promise.
        unsafe { Self::new(base, bytes, u64::MAX) }
    }

    unsafe fn new(base: *mut u8, bytes: usize, word: u64) -> Reserve {
        let words = bytes.div_ceil(STEP_BYTES).div_ceil(WORD_STEPS);
        let open = (0..words).map(|_| AtomicU64::new(word)).collect();
        let reserve = Reserve { base: base.expose_provenance(), bytes, open, over: Mutex::new(false) };
        reserve.leave_out_of_dumps(0, bytes);
        reserve
    }

    /// Makes `bytes` bytes at `offset` readable and writable. The range has to lie inside the mapping.
    #[inline]
    pub fn open(&self, offset: usize, bytes: usize) -> io::Result<()> {
        if bytes == 0 || self.is_open(offset / STEP_BYTES, (offset + bytes - 1) / STEP_BYTES) {
            return Ok(());
        }
        self.open_steps(offset / STEP_BYTES..(offset + bytes).div_ceil(STEP_BYTES))
    }

    #[inline]
    fn is_open(&self, first: usize, last: usize) -> bool {
        (first / WORD_STEPS..=last / WORD_STEPS).all(|word| {
            let from = first.saturating_sub(word * WORD_STEPS);
            let to = (last - word * WORD_STEPS).min(WORD_STEPS - 1);
            let wanted = u64::MAX << from & u64::MAX >> (WORD_STEPS - 1 - to);
            self.open.get(word).is_some_and(|found| found.load(Ordering::Acquire) & wanted == wanted)
        })
    }

    #[cold]
    fn open_steps(&self, steps: Range<usize>) -> io::Result<()> {
        let over = self.lock();
        if *over || steps.end > self.bytes.div_ceil(STEP_BYTES) {
            return Err(io::ErrorKind::AddrNotAvailable.into());
        }
        for run in self.runs(steps, false) {
            self.protect(&self.pages(run.clone()), libc::PROT_READ | libc::PROT_WRITE)?;
            self.set_open(run, true);
        }
        Ok(())
    }

    /// Takes the rights of the whole steps in a range, whose content has no owner. Those that the kernel leaves open (it has
    /// no room for another mapping) stay usable.
    pub fn close(&self, offset: usize, bytes: usize) {
        let over = self.lock();
        let end = offset.saturating_add(bytes).min(self.bytes);
        let last = if end == self.bytes { end.div_ceil(STEP_BYTES) } else { end / STEP_BYTES };
        if *over {
            return;
        }
        for run in self.runs(offset.div_ceil(STEP_BYTES)..last, true) {
            self.set_open(run.clone(), false);
            if self.protect(&self.pages(run.clone()), libc::PROT_NONE).is_err() {
                self.set_open(run, true);
            }
        }
    }

    /// Another mapping, without rights, has taken the place of a range: what is open there gets its rights again.
    pub fn replaced(&self, offset: usize, bytes: usize) -> io::Result<()> {
        let over = self.lock();
        if *over {
            return Ok(());
        }
        let range = offset..offset.saturating_add(bytes).min(self.bytes);
        self.leave_out_of_dumps(range.start, range.len());
        for run in self.runs(range.start / STEP_BYTES..range.end.div_ceil(STEP_BYTES), true) {
            let pages = self.pages(run);
            let both = pages.start.max(range.start)..pages.end.min(range.end);
            self.protect(&both, libc::PROT_READ | libc::PROT_WRITE)?;
        }
        Ok(())
    }

    /// The parts that are closed, as offsets in bytes.
    pub fn closed_parts(&self) -> impl Iterator<Item = Range<usize>> {
        self.runs(0..self.bytes.div_ceil(STEP_BYTES), false).map(|run| self.pages(run))
    }

    /// The mapping is about to go: nothing at its addresses is changed any more.
    pub fn end(&self) {
        *self.lock() = true;
    }

    /// Runs of steps that are open, or that are not. It allocates nothing: an allocator uses it, and children of a fork.
    fn runs(&self, mut steps: Range<usize>, open: bool) -> impl Iterator<Item = Range<usize>> {
        std::iter::from_fn(move || {
            let first = steps.find(|step| self.is_open(*step, *step) == open)?;
            let last = steps.find(|step| self.is_open(*step, *step) != open);
            let end = last.unwrap_or(steps.end);
            Some(first..end)
        })
    }

    fn set_open(&self, steps: Range<usize>, open: bool) {
        for step in steps {
            let (Some(word), bit) = (self.open.get(step / WORD_STEPS), 1 << (step % WORD_STEPS)) else { continue };
            if open {
                word.fetch_or(bit, Ordering::Release)
            } else {
                word.fetch_and(!bit, Ordering::Release)
            };
        }
    }

    fn pages(&self, steps: Range<usize>) -> Range<usize> {
        (steps.start * STEP_BYTES).min(self.bytes)..(steps.end * STEP_BYTES).min(self.bytes)
    }

    fn protect(&self, range: &Range<usize>, rights: libc::c_int) -> io::Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let at = std::ptr::with_exposed_provenance_mut(self.base + range.start);
        // SAFETY: whole pages of the mapping, which the promise of `new` allows to change and `over` says to be there. Pages
        // that lose their rights have no owner.
        match unsafe { libc::mprotect(at, range.len(), rights) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Leaves a part out of core dumps whose mapping was replaced. A kernel that refuses changes only what a dump contains.
    pub fn leave_out_of_dumps(&self, offset: usize, bytes: usize) {
        let bytes = bytes.min(self.bytes.saturating_sub(offset));
        leave_out_of_dumps(self.base + offset, bytes);
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.over.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Leaves whole pages at an address of this process out of its core dumps: a dump reads, and so allocates, all pages of a mapping
/// that is larger than what is used of it. A kernel that refuses changes only what a dump contains.
pub fn leave_out_of_dumps(address: usize, bytes: usize) {
    let at = std::ptr::with_exposed_provenance_mut(address);
    // SAFETY: no page changes its content, rights or place, whatever is mapped there; where nothing is, the kernel refuses.
    unsafe { libc::madvise(at, bytes, libc::MADV_DONTDUMP) };
}

// Miri has neither mprotect nor madvise.
#[cfg(all(test, not(miri), not(loom)))]
#[allow(clippy::single_range_in_vec_init, reason = "lists of ranges that have one")]
mod tests {
    use super::*;

    const STEPS: usize = 200;

    struct Mapping {
        base: *mut u8,
        bytes: usize,
        reserve: Reserve,
    }

    impl Mapping {
        fn new(bytes: usize) -> Mapping {
            let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            // SAFETY: a new mapping at an address that the kernel chooses, which stays until `drop`.
            unsafe {
                let base = libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0).cast::<u8>();
                Mapping { base, bytes, reserve: Reserve::closed(base, bytes) }
            }
        }

        /// Rights and flags of each page-aligned part, as the kernel shows them, with its offsets.
        fn shown(&self) -> Vec<(Range<usize>, String, String)> {
            let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
            let mut parts: Vec<(Range<usize>, String, String)> = Vec::new();
            let mut inside = false;
            for line in text.lines() {
                let mut words = line.split_whitespace();
                let first = words.next().unwrap_or_default();
                if let Some((from, to)) = first.split_once('-')
                    && let (Ok(from), Ok(to)) = (usize::from_str_radix(from, 16), usize::from_str_radix(to, 16))
                {
                    let base = self.base.addr();
                    inside = from < base + self.bytes && to > base;
                    if inside {
                        let range = from.max(base) - base..to.min(base + self.bytes) - base;
                        parts.push((range, words.next().unwrap().into(), String::new()));
                    }
                } else if inside && first == "VmFlags:" {
                    parts.last_mut().unwrap().2 = line.into();
                }
            }
            parts
        }

        fn writable(&self) -> Vec<Range<usize>> {
            let mut found: Vec<Range<usize>> = Vec::new();
            for (range, ..) in self.shown().into_iter().filter(|(_, rights, _)| rights.starts_with("rw")) {
                match found.last_mut() {
                    Some(last) if last.end == range.start => last.end = range.end,
                    _ => found.push(range),
                }
            }
            found
        }
    }

    impl Drop for Mapping {
        fn drop(&mut self) {
            self.reserve.end();
            // SAFETY: this object's own mapping.
            unsafe { libc::munmap(self.base.cast(), self.bytes) };
        }
    }

    #[test]
    fn only_what_was_asked_for_is_open_and_nothing_is_dumped() {
        let mapping = Mapping::new(STEPS * STEP_BYTES);
        assert_eq!(mapping.writable(), []);
        mapping.reserve.open(STEP_BYTES - 1, 2).unwrap();
        mapping.reserve.open(70 * STEP_BYTES, 65 * STEP_BYTES).unwrap();
        mapping.reserve.open(STEPS * STEP_BYTES, 0).unwrap();
        assert_eq!(mapping.writable(), [0..2 * STEP_BYTES, 70 * STEP_BYTES..135 * STEP_BYTES]);
        // SAFETY: an open part.
        unsafe { mapping.base.add(134 * STEP_BYTES).write(1) };
        mapping.reserve.close(70 * STEP_BYTES + 1, 10 * STEP_BYTES);
        assert_eq!(mapping.writable()[1..], [70 * STEP_BYTES..71 * STEP_BYTES, 80 * STEP_BYTES..135 * STEP_BYTES]);
        mapping.reserve.open(60 * STEP_BYTES, 80 * STEP_BYTES).unwrap();
        assert_eq!(mapping.writable(), [0..2 * STEP_BYTES, 60 * STEP_BYTES..140 * STEP_BYTES]);
        // SAFETY: an open part.
        assert_eq!(unsafe { mapping.base.add(134 * STEP_BYTES).read() }, 1, "what stayed open keeps its content");
        assert!(mapping.shown().iter().all(|(_, _, flags)| flags.contains(" dd")), "{:?}", mapping.shown());
        assert_eq!(mapping.reserve.closed_parts().next(), Some(2 * STEP_BYTES..60 * STEP_BYTES));
    }

    #[test]
    fn last_step_may_be_short() {
        let bytes = 3 * STEP_BYTES + 4096;
        let mapping = Mapping::new(bytes);
        mapping.reserve.open(bytes - 1, 1).unwrap();
        assert_eq!(mapping.writable(), [3 * STEP_BYTES..bytes]);
        mapping.reserve.close(3 * STEP_BYTES, 4096);
        assert_eq!(mapping.writable(), []);
        assert!(mapping.reserve.open(bytes + STEP_BYTES, 1).is_err());
        mapping.reserve.end();
        assert!(mapping.reserve.open(0, 1).is_err(), "the mapping is gone");
    }

    #[test]
    fn replaced_part_has_its_rights_again() {
        let mapping = Mapping::new(8 * STEP_BYTES);
        mapping.reserve.open(STEP_BYTES, 2 * STEP_BYTES).unwrap();
        let (from, flags) = (2 * STEP_BYTES + 4096, libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_FIXED);
        let length = 4 * STEP_BYTES;
        // SAFETY: a part of this test's own mapping.
        unsafe { libc::mmap(mapping.base.add(from).cast(), length, libc::PROT_NONE, flags, -1, 0) };
        mapping.reserve.replaced(from, length).unwrap();
        assert_eq!(mapping.writable(), [STEP_BYTES..3 * STEP_BYTES]);
        assert!(mapping.shown().iter().all(|(_, _, flags)| flags.contains(" dd")));
    }

    #[test]
    fn threads_that_open_the_same_step_all_find_it_open() {
        let mapping = Mapping::new(64 * STEP_BYTES);
        let (base, reserve) = (mapping.base.addr(), &mapping.reserve);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || {
                    for step in 0..64 {
                        reserve.open(step * STEP_BYTES + thread * 64, 8).unwrap();
                        let at = std::ptr::with_exposed_provenance_mut::<u64>(base + step * STEP_BYTES + thread * 64);
                        // SAFETY: an open part, of which each thread has its own words.
                        unsafe { at.write_volatile(1) };
                    }
                });
            }
        });
    }
}
