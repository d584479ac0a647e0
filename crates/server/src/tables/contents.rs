//! Contents of a session's state that do not pass through its pieces: memory of devices, as much as there is. The module copies
//! them by as many threads as it likes, into or out of memory that is a part of the state's file.
//!
//! The memory is made before the session stands: the kernel clears pages much more slowly than devices copy.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags, madvise, mmap, mmap_anonymous, mremap, munmap};

/// Threads that ask for pages, or give them back: the kernel does not clear them faster for more.
const THREADS: usize = 4;
/// The least that a thread is worth.
const LEAST_PART: usize = 64 << 20;

/// A part of a file, mapped.
#[derive(Debug)]
pub struct Mapped {
    at: NonNull<c_void>,
    bytes: usize,
}

// SAFETY: it owns the mapping, which is the process's, not a thread's.
unsafe impl Send for Mapped {}

impl Mapped {
    /// `bytes` of the file from `offset` on, which is a multiple of a page. `writes`: the file is being made here.
    ///
    /// # Errors
    /// Those of mmap(2).
    pub fn new(file: impl AsFd, offset: u64, bytes: u64, writes: bool) -> io::Result<Self> {
        let bytes = usize::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
        // Kernels before 6.7 do not share a mapping of a sealed file; what is only read is the same in either.
        let (protection, flags) = match writes {
            true => (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED),
            false => (ProtFlags::READ, MapFlags::PRIVATE),
        };
        // SAFETY: a new mapping where the kernel likes, of a file that nobody makes shorter: it is this process's own, or
        // sealed.
        let at = unsafe { mmap(std::ptr::null_mut(), bytes, protection, flags, file, offset) }?;
        let at = NonNull::new(at).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { at, bytes })
    }

    /// Memory of this process alone.
    ///
    /// # Errors
    /// Those of mmap(2).
    pub fn private(bytes: usize) -> io::Result<Self> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new mapping where the kernel likes.
        let at = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, protection, flags) }?;
        let at = NonNull::new(at).ok_or(io::ErrorKind::OutOfMemory)?;
        let memory = Self { at, bytes };
        // The kernel makes large pages several times as fast. Where it has none, or none for this, they are small.
        // SAFETY: within the mapping; the advice changes no content.
        let _ = unsafe { madvise(memory.at.as_ptr(), bytes, Advice::LinuxHugepage) };
        Ok(memory)
    }

    /// Of the mapping.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Memory of this process alone becomes larger or smaller, and may lie elsewhere then. What there was before is there, as far
    /// as it reaches; what comes has no pages yet.
    ///
    /// # Errors
    /// Those of mremap(2): it is as before.
    pub fn resize(&mut self, bytes: usize) -> io::Result<()> {
        // SAFETY: the mapping is this one's, nobody has an address in it while it is borrowed mutably, and there are no bytes beyond
        // what the kernel answers.
        let at = unsafe { mremap(self.at.as_ptr(), self.bytes, bytes, MremapFlags::MAYMOVE) }?;
        (self.at, self.bytes) = (NonNull::new(at).ok_or(io::ErrorKind::OutOfMemory)?, bytes);
        Ok(())
    }

    /// `None`: the range is not in the mapping.
    pub fn range(&self, offset: usize, bytes: usize) -> Option<NonNull<c_void>> {
        let fits = offset.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        // SAFETY: within the mapping.
        fits.then(|| unsafe { self.at.byte_add(offset) })
    }

    /// Makes all of its pages from this byte on.
    ///
    /// # Errors
    /// There is no memory for them.
    pub fn populate(&self, from: usize) -> io::Result<()> {
        match self.advise(from - from % LEAST_PART, Advice::LinuxPopulateWrite) {
            // An older kernel makes them one by one, when they are written.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
            done => done,
        }
    }

    /// Gives all from this byte on, at the begin of a page, an advice, by several threads if it is large.
    fn advise(&self, from: usize, advice: Advice) -> io::Result<()> {
        let bytes = self.bytes.saturating_sub(from);
        let threads = (bytes / LEAST_PART).clamp(1, THREADS);
        let part = bytes.div_ceil(threads).next_multiple_of(LEAST_PART);
        let at = self.at.as_ptr().expose_provenance() + from.min(self.bytes);
        let range = |start: usize| {
            let length = part.min(bytes - start);
            // SAFETY: within the mapping, which lives as long as `self`. No advice that is given here loses content: pages of
            // a file come again.
            unsafe { madvise(std::ptr::with_exposed_provenance_mut(at + start), length, advice) }
        };
        let range = &range;
        std::thread::scope(|scope| {
            let started: Vec<_> = (0..bytes)
                .step_by(part)
                .map(|start| std::thread::Builder::new().spawn_scoped(scope, move || range(start)))
                .collect();
            let mut done = Ok(());
            for (number, thread) in started.into_iter().enumerate() {
                let outcome = match thread {
                    Ok(thread) => thread.join().unwrap_or(Ok(())),
                    // No thread for it: this one.
                    Err(_) => range(number * part),
                };
                done = done.and(outcome);
            }
            done
        })?;
        Ok(())
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // Several threads take the pages out much faster than munmap(2) does.
        let _ = self.advise(0, Advice::LinuxDontNeed);
        // SAFETY: the mapping is this one's, and whoever has had its address was told that it ends.
        let _ = unsafe { munmap(self.at.as_ptr(), self.bytes) };
    }
}

/// While memory of objects leaves: places in the host's memory that have what left with the same object the last time.
#[derive(Debug, Default)]
pub struct KeptPlaces {
    /// Addresses, and bytes.
    places: Mutex<BTreeMap<usize, usize>>,
    /// Bytes that did not have to be copied.
    unchanged: AtomicU64,
    buffers: Mutex<Buffers>,
}

/// Host memory that the module keeps for copies, beside that of their contents.
#[derive(Debug, Clone, Copy, Default)]
struct Buffers {
    bytes: u64,
    /// Gives all of it back.
    give_back: Option<extern "C" fn()>,
}

impl KeptPlaces {
    /// The module keeps so much for copies.
    pub fn set_buffers(&self, bytes: u64, give_back: Option<extern "C" fn()>) {
        *self.buffers.lock().unwrap_or_else(PoisonError::into_inner) = Buffers { bytes, give_back };
    }

    pub fn buffers(&self) -> u64 {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner).bytes
    }

    /// No copy is under way.
    pub fn give_buffers_back(&self) {
        // The function says that there are none any more, so the lock is free.
        let buffers = std::mem::take(&mut *self.buffers.lock().unwrap_or_else(PoisonError::into_inner));
        buffers.give_back.filter(|_| buffers.bytes > 0).into_iter().for_each(|give_back| give_back());
    }

    pub fn begin(&self, places: BTreeMap<usize, usize>) {
        *self.places.lock().unwrap_or_else(PoisonError::into_inner) = places;
        self.unchanged.store(0, Ordering::Relaxed);
    }

    /// How many bytes of the same object are there.
    pub fn at(&self, memory: *const c_void) -> usize {
        self.places.lock().unwrap_or_else(PoisonError::into_inner).get(&memory.addr()).copied().unwrap_or(0)
    }

    pub fn note_unchanged(&self, bytes: u64) {
        self.unchanged.fetch_add(bytes, Ordering::Relaxed);
    }

    /// No place has anything any more. Answers the bytes that did not have to be copied.
    pub fn end(&self) -> u64 {
        self.places.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.unchanged.swap(0, Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
enum ContentsStage {
    /// There are none.
    #[default]
    None,
    /// The state is being written. `bytes`: so many, or none.
    Writing { memory: Mapped, bytes: u64, taken: bool },
    /// The state is being read.
    Reading { kept: KeptContents, memory: Option<Mapped> },
}

/// Contents in a file that cannot change any more.
#[derive(Debug)]
pub struct KeptContents {
    pub file: OwnedFd,
    /// Of their first byte, at the begin of a page.
    pub offset: u64,
    pub bytes: u64,
}

/// Of one session.
#[derive(Debug, Default)]
pub struct Contents(Mutex<ContentsStage>);

impl Contents {
    /// The state is about to be written, with so many bytes of contents in this memory.
    pub fn begin_writing(&self, memory: Mapped, bytes: u64) {
        *self.stage() = ContentsStage::Writing { memory, bytes, taken: false };
    }

    /// The state is about to be read.
    pub fn begin_reading(&self, kept: KeptContents) {
        *self.stage() = ContentsStage::Reading { kept, memory: None };
    }

    /// Memory for exactly so many bytes, once; `None`: they have to go into the pieces.
    pub fn to_write(&self, wanted: u64) -> Option<NonNull<c_void>> {
        match &mut *self.stage() {
            ContentsStage::Writing { memory, bytes, taken } if *bytes == wanted && wanted > 0 && !*taken => {
                *taken = true;
                Some(memory.at)
            }
            _ => None,
        }
    }

    /// The memory with exactly so many bytes; `None`: the state has none. It is mapped here and not before, as the calls that
    /// are made again should find the address space of the old process.
    pub fn to_read(&self, wanted: u64) -> Option<NonNull<c_void>> {
        match &mut *self.stage() {
            ContentsStage::Reading { kept, memory } if kept.bytes == wanted => {
                if memory.is_none() {
                    *memory = Mapped::new(&kept.file, kept.offset, kept.bytes, false).ok();
                }
                memory.as_ref().map(|memory| memory.at)
            }
            _ => None,
        }
    }

    /// The state is written or read, or is not: what is left to be given back.
    pub fn end(&self) -> Option<Mapped> {
        match std::mem::take(&mut *self.stage()) {
            ContentsStage::None => None,
            ContentsStage::Writing { memory, .. } => Some(memory),
            ContentsStage::Reading { memory, .. } => memory,
        }
    }

    fn stage(&self) -> MutexGuard<'_, ContentsStage> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    fn file(bytes: u64) -> File {
        let file = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, bytes).unwrap();
        file.into()
    }

    #[test]
    fn written_memory_is_the_files_and_is_given_once() {
        const BYTES: u64 = (LEAST_PART as u64) * 3 + 4096;
        let (file, contents) = (file(4096 + BYTES), Contents::default());
        let memory = Mapped::new(&file, 4096, BYTES, true).unwrap();
        memory.populate(0).unwrap();
        contents.begin_writing(memory, BYTES);
        assert!(contents.to_write(BYTES - 1).is_none() && contents.to_read(BYTES).is_none());
        let at = contents.to_write(BYTES).unwrap();
        assert!(contents.to_write(BYTES).is_none());
        // SAFETY: the last bytes of the memory, which is mapped until `end`.
        unsafe { at.byte_add(BYTES as usize - 4).cast::<[u8; 4]>().write(*b"last") };
        drop(contents.end());
        assert!(contents.to_write(BYTES).is_none() && contents.end().is_none());
        let mut last = [0; 4];
        file.read_exact_at(&mut last, 4096 + BYTES - 4).unwrap();
        assert_eq!(&last, b"last");
        contents.begin_reading(KeptContents { file: file.into(), offset: 4096, bytes: BYTES });
        assert!(contents.to_read(BYTES + 1).is_none() && contents.to_write(BYTES).is_none());
        let at = contents.to_read(BYTES).unwrap();
        // SAFETY: as above.
        assert_eq!(unsafe { at.byte_add(BYTES as usize - 4).cast::<[u8; 4]>().read() }, *b"last");
    }

    #[test]
    fn memory_of_this_process_becomes_larger_and_smaller() {
        let mut memory = Mapped::private(8192).unwrap();
        memory.populate(0).unwrap();
        // SAFETY: within the mapping; nobody else has it.
        let first = |memory: &Mapped| unsafe { memory.range(4096, 4).unwrap().cast::<[u8; 4]>().as_mut() };
        *first(&memory) = *b"kept";
        for bytes in [LEAST_PART * 2 + 4096, 8192] {
            memory.resize(bytes).unwrap();
            memory.populate(0).unwrap();
            assert_eq!((&*first(&memory), memory.bytes()), (b"kept", bytes));
            assert!(memory.range(bytes - 4, 4).is_some() && memory.range(bytes - 4, 5).is_none());
        }
        assert!(memory.resize(0).is_err() && memory.bytes() == 8192);
    }

    #[test]
    fn buffers_are_given_back_once() {
        static GIVEN: AtomicU64 = AtomicU64::new(0);
        extern "C" fn give_back() {
            GIVEN.fetch_add(1, Ordering::Relaxed);
        }
        let kept = KeptPlaces::default();
        kept.give_buffers_back();
        kept.set_buffers(4096, Some(give_back));
        assert_eq!((kept.buffers(), GIVEN.load(Ordering::Relaxed)), (4096, 0));
        (0..2).for_each(|_| kept.give_buffers_back());
        assert_eq!((kept.buffers(), GIVEN.load(Ordering::Relaxed)), (0, 1));
    }

    #[test]
    fn sealed_file_is_mapped_for_reading() {
        let file = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&file, 8192).unwrap();
        drop(Mapped::new(&file, 4096, 4096, true).unwrap());
        rustix::fs::fcntl_add_seals(&file, rustix::fs::SealFlags::WRITE).unwrap();
        assert!(Mapped::new(&file, 4096, 4096, true).is_err());
        Mapped::new(&file, 4096, 4096, false).unwrap();
    }
}
