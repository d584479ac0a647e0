//! Memory that both ends of a connection map, or mirror.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use aviary_ring::{Doorbell, Reserve};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use thiserror::Error;

use crate::descriptors::{may_have_file, out_of_the_way};
use crate::device::{CHUNK_BYTES, Device};
use crate::memory::doorbell::HostDoorbell;

/// Default size of an arena's address range in bytes. Only what was used is open, and only touched pages cost memory.
pub const DEFAULT_ARENA: usize = 64 << 30;

/// First address at which a guest looks for a free range: far from the ranges where kernels put
/// heaps, libraries and stacks, so that the range is most likely free in the server, too.
pub const LOWEST_ADDRESS: usize = 0x2000_0000_0000;
/// Distance of candidate addresses in bytes, so that the arenas of one process's APIs do not
/// collide.
const STRIDE: usize = 1 << 40;
const CANDIDATES: usize = 48;
/// First address at which kernels place programs and their heaps, the server's included: a guest
/// cannot know which addresses are taken there, and an arena at different addresses cannot be
/// shared by pointer.
const PROGRAM_ADDRESSES: usize = 0x5500_0000_0000;
const _: () = assert!(LOWEST_ADDRESS + CANDIDATES * STRIDE <= PROGRAM_ADDRESSES);
/// Largest arena in bytes that a server maps for one connection.
const MAX_ARENA_BYTES: u64 = 1 << 40;
pub(crate) const PAGE_BYTES: usize = 4096;
/// Size of a huge page in bytes; large blocks start at multiples of it.
pub const HUGE_PAGE: usize = 2 << 20;

/// Offset in bytes from which an arena is backed by huge pages, if the kernel has them: a fault
/// costs as much per 2 MiB there as per 4 KiB elsewhere. Only large blocks lie there: a small one
/// would occupy 2 MiB.
pub const fn huge_from(size: usize) -> usize {
    (size / 2).next_multiple_of(HUGE_PAGE)
}

/// The reason why an arena could not be made, mapped or used.
#[derive(Debug, Error, displaydoc::Display, Clone, Copy, PartialEq, Eq)]
pub enum ArenaError {
    /// {what} failed: {error}
    System { what: &'static str, error: Errno },
    /// an arena of {0} bytes is not a positive multiple of 4096 up to 1 TiB
    Size(u64),
    /// the arena's file is not sealed against resizing
    NotSealed,
    /// the arena's file lies in huge pages, expected an ordinary memfd
    HugePages,
    /// the arena's file has {found} bytes, {stated} were stated
    WrongSize { found: u64, stated: u64 },
    /// offset {offset} and length {length} leave an arena of {size} bytes
    Outside { offset: u64, length: usize, size: usize },
}

/// One connection's arena as mapped in this process.
pub struct Arena {
    base: NonNull<u8>,
    size: usize,
    same_address: bool,
    backing: Backing,
    /// What is open of the mapping.
    reserve: Arc<Reserve>,
    /// True if a carrier shares this memory, and not the final peer.
    carried: AtomicBool,
}

/// The memory behind an arena.
pub(crate) enum Backing {
    /// A sealed file that both sides map. `None`: this side has no descriptor of it.
    File(Option<OwnedFd>),
    /// Memory of this process, mirrored over a stream.
    Private,
    /// Memory of a VM; this process runs in the VM.
    Device(Arc<Device>),
    /// Memory of a VM; this process runs on the host.
    Window(Arc<HostDoorbell>),
}

impl Backing {
    fn file(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Backing::File(file) => file.as_ref().map(AsFd::as_fd),
            _ => None,
        }
    }
}

/// The content of a range of addresses.
#[derive(Clone, Copy)]
pub(crate) enum Mapped<'a> {
    /// Closed at first.
    File(BorrowedFd<'a>),
    /// Writable. The driver keeps it out of dumps and locks, and allocates what is touched.
    Device(BorrowedFd<'a>),
    /// Memory of this process, closed at first.
    Private,
    /// Zeros that can be read, without costing memory, and not be written.
    Zeros,
}

// SAFETY: the type only hands out raw pointers and copies bytes; it has no thread affinity.
unsafe impl Send for Arena {}
// SAFETY: methods on a shared reference only hand out raw pointers and copy bytes. Concurrent
// copies of the same bytes yield mixed bytes, which no code relies on.
unsafe impl Sync for Arena {}

pub(crate) fn system(what: &'static str) -> impl Fn(Errno) -> ArenaError {
    move |error| ArenaError::System { what, error }
}

fn not_opened(error: std::io::Error) -> ArenaError {
    let error = Errno::from_io_error(&error).unwrap_or(Errno::NOMEM);
    ArenaError::System { what: "opening a part of the arena", error }
}

fn checked_size(size: u64) -> Result<usize, ArenaError> {
    if size == 0 || size > MAX_ARENA_BYTES || !size.is_multiple_of(PAGE_BYTES as u64) {
        return Err(ArenaError::Size(size));
    }
    usize::try_from(size).map_err(|_| ArenaError::Size(size))
}

/// Maps the initial content of an arena; `Ok(None)`: the range at `address` is taken.
fn map_at(address: usize, size: usize, what: Mapped) -> Result<Option<NonNull<u8>>, ArenaError> {
    let (sharing, protection) = match what {
        Mapped::File(_) => (MapFlags::SHARED, ProtFlags::empty()),
        Mapped::Device(_) => (MapFlags::SHARED, ProtFlags::READ | ProtFlags::WRITE),
        Mapped::Private => (MapFlags::PRIVATE, ProtFlags::empty()),
        Mapped::Zeros => (MapFlags::PRIVATE, ProtFlags::READ),
    };
    let place = if address != 0 { MapFlags::FIXED_NOREPLACE } else { MapFlags::empty() };
    let (flags, at) = (MapFlags::NORESERVE | sharing | place, address as *mut _);
    let mapped = match what {
        // SAFETY: a mapping at a new address (the kernel chooses it, or NOREPLACE refuses to touch
        // an existing mapping) changes no memory in use. The file is sealed against shrinking, or
        // is a device whose driver always has a page, so accesses below `size` cannot fault.
        Mapped::File(file) | Mapped::Device(file) => unsafe { rustix::mm::mmap(at, size, protection, flags, file, 0) },
        // SAFETY: a mapping at a new address (the kernel chooses it, or NOREPLACE refuses to touch
        // an existing mapping) changes no memory in use.
        Mapped::Private | Mapped::Zeros => unsafe { rustix::mm::mmap_anonymous(at, size, protection, flags) },
    };
    match mapped {
        Ok(p) if address != 0 && p as usize != address => {
            // SAFETY: the mapping has just been made and has no other user. A kernel before 4.17
            // takes NOREPLACE as a hint and may have chosen another address.
            let _ = unsafe { rustix::mm::munmap(p, size) };
            Ok(None)
        }
        Ok(p) => {
            advise_huge(p.cast(), size);
            Ok(NonNull::new(p.cast()))
        }
        Err(Errno::EXIST) => Ok(None),
        // The address lies outside this machine's range.
        Err(Errno::NOMEM | Errno::INVAL) if address != 0 => Ok(None),
        Err(error) => Err(ArenaError::System { what: "mapping the arena", error }),
    }
}

/// Maps a guest's arena at the first free candidate; true: both sides can probably have it there.
fn place(size: usize, what: Mapped) -> Result<(NonNull<u8>, bool), ArenaError> {
    // Processes start at different candidates: a server may serve several connections of one
    // process, and a proxy several processes.
    let first = std::process::id() as usize % CANDIDATES;
    for n in 0..CANDIDATES {
        let address = LOWEST_ADDRESS + (first + n) % CANDIDATES * STRIDE;
        if let Some(base) = map_at(address, size, what)? {
            return Ok((base, true));
        }
    }
    Ok((anywhere(size, what)?, false))
}

/// Maps a server's arena at the guest's address if it is free; true: it was.
fn follow(size: usize, address: u64, what: Mapped) -> Result<(NonNull<u8>, bool), ArenaError> {
    let wanted = usize::try_from(address).unwrap_or(0);
    // Below the agreed range a guest could name addresses that this process will need for
    // itself.
    if wanted >= LOWEST_ADDRESS
        && wanted % PAGE_BYTES == 0
        && let Some(base) = map_at(wanted, size, what)?
    {
        return Ok((base, true));
    }
    Ok((anywhere(size, what)?, false))
}

fn anywhere(size: usize, what: Mapped) -> Result<NonNull<u8>, ArenaError> {
    map_at(0, size, what)?.ok_or(ArenaError::System { what: "mapping the arena", error: Errno::NOMEM })
}

/// Asks for huge pages. Both sides ask, because the first access to a page decides its size.
fn advise_huge(base: *mut u8, size: usize) {
    let from = huge_from(size);
    if from < size {
        // SAFETY: the range lies in the mapping of `size` bytes that the caller has just made, and
        // its content stays. A kernel without huge pages refuses, which changes nothing but speed.
        let _ = unsafe { rustix::mm::madvise(base.add(from).cast(), size - from, Advice::LinuxHugepage) };
    }
}

/// Splits a range into its whole chunks and the edges before and behind them.
fn split_chunks(offset: u64, length: u64) -> (Range<u64>, [Range<u64>; 2]) {
    let end = offset + length;
    let first = offset.next_multiple_of(CHUNK_BYTES).min(end);
    let last = (end - end % CHUNK_BYTES).max(first);
    (first..last, [offset..first, last..end])
}

/// The size of a file in bytes, if it is sealed against resizing: the sender of an unsealed file
/// could shrink it and kill this process with SIGBUS. Only a memfd has seals, so other files are
/// refused as well.
pub(crate) fn sealed_size(file: BorrowedFd) -> Result<u64, ArenaError> {
    let seals = rustix::fs::fcntl_get_seals(file).map_err(|_| ArenaError::NotSealed)?;
    if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
        return Err(ArenaError::NotSealed);
    }
    Ok(rustix::fs::fstat(file).map_err(system("inspecting the arena"))?.st_size as u64)
}

/// The size of a sealed file in bytes, if it lies in ordinary memory, out of which its sender
/// cannot permanently take pages. A VM's memory may lie in huge pages and is not checked here.
fn ordinary_size(file: BorrowedFd) -> Result<u64, ArenaError> {
    let size = sealed_size(file)?;
    if aviary_ring::is_ordinary_memory(file).unwrap_or(false) { Ok(size) } else { Err(ArenaError::HugePages) }
}

impl Arena {
    /// The guest's side: a new sealed file, mapped at a free range.
    pub fn create(size: usize) -> Result<Arc<Self>, ArenaError> {
        let (size, file) = Self::new_file(size)?;
        let (base, same_address) = place(size, Mapped::File(file.as_fd()))?;
        Ok(Self::at(base, size, same_address, Backing::File(Some(file))))
    }

    /// The guest's side in a program that may close any number and reuse it: the arena does without the descriptor, which is
    /// the caller's to send with `Hello`.
    pub fn create_apart(size: usize) -> Result<(Arc<Self>, OwnedFd), ArenaError> {
        let (size, file) = Self::new_file(size)?;
        let (base, same_address) = place(size, Mapped::File(file.as_fd()))?;
        Ok((Self::at(base, size, same_address, Backing::File(None)), file))
    }

    fn new_file(size: usize) -> Result<(usize, OwnedFd), ArenaError> {
        let size = checked_size(size as u64)?;
        if !may_have_file(size as u64) {
            return Err(ArenaError::System { what: "sizing the arena", error: Errno::FBIG });
        }
        let file = rustix::fs::memfd_create("aviary-arena", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(system("creating the arena"))?;
        let file = out_of_the_way(file);
        rustix::fs::ftruncate(&file, size as u64).map_err(system("sizing the arena"))?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(system("sealing the arena"))?;
        Ok((size, file))
    }

    /// The guest's side over a stream: private memory.
    pub fn mirror(size: usize) -> Result<Arc<Self>, ArenaError> {
        let size = checked_size(size as u64)?;
        let (base, same_address) = place(size, Mapped::Private)?;
        Ok(Self::at(base, size, same_address, Backing::Private))
    }

    /// The guest's side in a VM.
    pub fn of_device(device: Arc<Device>, size: usize) -> Result<Arc<Self>, ArenaError> {
        let size = checked_size(size as u64)?;
        let (base, same_address) = place(size, Mapped::Device(device.as_fd()))?;
        device.set_base(base.as_ptr().addr());
        Ok(Self::at(base, size, same_address, Backing::Device(device)))
    }

    /// The API server's side for a guest in a VM: empty until the VM's memory is mapped into it.
    pub fn window(address: u64, stated: u64, socket: OwnedFd) -> Result<Arc<Self>, ArenaError> {
        let doorbell = Arc::new(HostDoorbell::new(socket));
        let size = checked_size(stated)?;
        let (base, same_address) = follow(size, address, Mapped::Zeros)?;
        doorbell.set_base(base.as_ptr().addr());
        Ok(Self::at(base, size, same_address, Backing::Window(doorbell)))
    }

    /// The arena of a mapping that has just been made.
    fn at(base: NonNull<u8>, size: usize, same_address: bool, backing: Backing) -> Arc<Self> {
        // SAFETY: the mapping is this object's until `drop`, which ends the reserve first. Only its owner names its bytes.
        let reserve = unsafe {
            match &backing {
                Backing::File(_) | Backing::Private => Reserve::closed(base.as_ptr(), size),
                Backing::Device(_) | Backing::Window(_) => Reserve::opened(base.as_ptr(), size),
            }
        };
        let reserve = Arc::new(reserve);
        Arc::new(Arena { base, size, same_address, backing, reserve, carried: AtomicBool::new(false) })
    }

    /// The server's side: maps the guest's file, at the guest's address if it is free in this
    /// process.
    pub fn open(file: OwnedFd, address: u64, stated: u64) -> Result<Arc<Self>, ArenaError> {
        let size = checked_size(stated)?;
        let found = ordinary_size(file.as_fd())?;
        if found != stated {
            return Err(ArenaError::WrongSize { found, stated });
        }
        let (base, same_address) = follow(size, address, Mapped::File(file.as_fd()))?;
        Ok(Self::at(base, size, same_address, Backing::File(Some(file))))
    }

    /// The server's side over a stream.
    pub fn mirror_of(address: u64, stated: u64) -> Result<Arc<Self>, ArenaError> {
        let size = checked_size(stated)?;
        let (base, same_address) = follow(size, address, Mapped::Private)?;
        Ok(Self::at(base, size, same_address, Backing::Private))
    }

    pub fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// Where the arena begins. What is there is used only after it was opened.
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Opens what is used of the mapping.
    pub fn reserve(&self) -> &Arc<Reserve> {
        &self.reserve
    }

    pub fn size(&self) -> usize {
        self.size
    }

    /// True if the final peer has other memory: the content of the blocks that a message names is
    /// carried to it.
    pub fn mirrored(&self) -> bool {
        self.streamed() || self.carried.load(Ordering::Relaxed)
    }

    /// True if lanes are streams and no memory is shared.
    pub fn streamed(&self) -> bool {
        matches!(self.backing, Backing::Private)
    }

    /// The doorbell that wakes sleepers if the peer is in another machine.
    pub fn doorbell(&self) -> Option<Arc<dyn Doorbell>> {
        match &self.backing {
            Backing::Device(device) => Some(device.clone()),
            Backing::Window(doorbell) => Some(doorbell.clone()),
            Backing::File(_) | Backing::Private => None,
        }
    }

    /// The device of the VM. `None`: this process is not in a VM, or attaches in another way.
    pub fn device(&self) -> Option<&Arc<Device>> {
        match &self.backing {
            Backing::Device(device) => Some(device),
            _ => None,
        }
    }

    /// Declares that a carrier shares this memory. Called before the first lane is opened.
    pub fn set_carried(&self) {
        self.carried.store(true, Ordering::Relaxed);
    }

    pub fn carried(&self) -> bool {
        self.carried.load(Ordering::Relaxed)
    }

    /// True on the server if the arena lies at the guest's address; true on the guest if the server
    /// can probably map it at that address.
    pub fn same_address(&self) -> bool {
        self.same_address
    }

    /// The file, to send with `Hello` or to another API server, where this side has a descriptor of it.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.backing.file()
    }

    /// The address of `length` bytes at `offset`, if they lie in the arena; they are opened. Their
    /// content may change at any time.
    #[inline]
    pub fn pointer(&self, offset: u64, length: usize) -> Result<*mut u8, ArenaError> {
        let place = self.inside(offset, length)?;
        self.reserve.open(offset as usize, length).map_err(not_opened)?;
        Ok(place)
    }

    /// The address of bytes that lie in the arena, open or closed.
    #[inline]
    fn inside(&self, offset: u64, length: usize) -> Result<*mut u8, ArenaError> {
        let end = usize::try_from(offset).ok().and_then(|o| o.checked_add(length));
        match end {
            // SAFETY: `offset <= offset + length <= size`, so the result stays in the mapping (or one past it).
            Some(end) if end <= self.size => Ok(unsafe { self.base.as_ptr().add(offset as usize) }),
            _ => Err(ArenaError::Outside { offset, length, size: self.size }),
        }
    }

    /// Appends `length` bytes at `offset` to `into`.
    pub fn read(&self, offset: u64, length: usize, into: &mut Vec<u8>) -> Result<(), ArenaError> {
        let from = self.pointer(offset, length)?;
        into.reserve(length);
        // SAFETY: `pointer` checked that the range lies in the mapping, and `reserve` made room in
        // memory that the vector owns. A peer that writes meanwhile causes mixed bytes, which are
        // data and decide nothing here.
        unsafe {
            std::ptr::copy_nonoverlapping(from, into.as_mut_ptr().add(into.len()), length);
            into.set_len(into.len() + length);
        }
        Ok(())
    }

    /// Copies `bytes` to `offset`.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), ArenaError> {
        let to = self.pointer(offset, bytes.len())?;
        // SAFETY: `pointer` checked that the range lies in the mapping, into which no references
        // exist. A concurrent writer, also a ring's peer, causes mixed bytes, which all readers of
        // an arena tolerate.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }

    /// The offset of a pointer into the arena.
    #[inline]
    pub fn offset_of(&self, p: *const u8) -> Option<u64> {
        let distance = (p as usize).wrapping_sub(self.base.as_ptr() as usize);
        (distance < self.size).then_some(distance as u64)
    }

    /// Maps another sealed file over a part of this arena: the application's heap, on the server's
    /// side. An error changes nothing.
    pub fn lay_over(&self, offset: u64, length: u64, file: BorrowedFd) -> Result<(), ArenaError> {
        let bytes = usize::try_from(length).unwrap_or(usize::MAX);
        let to = self.inside(offset, bytes)?;
        // The first page holds the ticket word, which this side writes; a guest must not replace
        // it.
        let whole =
            offset.is_multiple_of(PAGE_BYTES as u64) && bytes.is_multiple_of(PAGE_BYTES) && bytes != 0 && offset != 0;
        if !whole || !matches!(self.backing, Backing::File(_)) {
            return Err(ArenaError::Outside { offset, length: bytes, size: self.size });
        }
        let found = ordinary_size(file)?;
        if found != length {
            return Err(ArenaError::WrongSize { found, stated: length });
        }
        let flags = MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: whole pages of this arena's own mapping, into which no references exist; a guest
        // that names them while they change gets the old or the new bytes, or ends its own API
        // server. The file has `length` bytes and cannot shrink, so accesses to what is open
        // cannot fault.
        unsafe { rustix::mm::mmap(to.cast(), bytes, ProtFlags::empty(), flags, file, 0) }
            .map_err(system("mapping the application's heap"))?;
        self.reserve.replaced(offset as usize, bytes).map_err(not_opened)
    }

    /// Opens a range that this side may never have used, and allocates its pages where the peer
    /// would not see them otherwise. The host has only those pages of a VM that the VM touched; in
    /// other arenas the first access of either side allocates the page.
    pub fn populate(&self, offset: u64, length: usize) -> Result<(), ArenaError> {
        let start = self.pointer(offset, length)?;
        if self.device().is_none() {
            return Ok(());
        }
        for at in (0..length).step_by(CHUNK_BYTES as usize).chain(length.checked_sub(1)) {
            // SAFETY: `at` is less than `length`, so the byte lies in the range that `pointer`
            // checked.
            unsafe { start.add(at).read_volatile() };
        }
        Ok(())
    }

    pub(crate) fn backing(&self) -> &Backing {
        &self.backing
    }

    /// Returns the memory of a range without an owner to the system, and closes what it can of it.
    pub fn give_back(&self, offset: u64, length: usize) -> Result<(), ArenaError> {
        self.punch(offset, length)?;
        if matches!(self.backing, Backing::File(_) | Backing::Private) {
            self.reserve.close(offset as usize, length);
        }
        Ok(())
    }

    /// Returns the memory of whole pages to the system; they read as zeros afterwards.
    pub fn punch(&self, offset: u64, length: usize) -> Result<(), ArenaError> {
        let pointer = self.inside(offset, length)?;
        if !offset.is_multiple_of(PAGE_BYTES as u64) || !length.is_multiple_of(PAGE_BYTES) || length == 0 {
            return Err(ArenaError::Outside { offset, length, size: self.size });
        }
        match &self.backing {
            Backing::File(_) => {
                // Kernels before 6.7 punch only what can be written.
                self.pointer(offset, length)?;
                // SAFETY: whole pages of this arena's own mapping, whose content the caller gives up.
                unsafe { remove(pointer, length) }
            }
            // SAFETY: whole pages inside the private mapping, whose content the caller gives up.
            Backing::Private => unsafe { rustix::mm::madvise(pointer.cast(), length, Advice::LinuxDontNeed) },
            Backing::Device(device) => {
                let (chunks, edges) = split_chunks(offset, length as u64);
                for edge in edges {
                    let bytes = (edge.end - edge.start) as usize;
                    // SAFETY: a part of the range that `pointer` checked, whose content the caller gives up.
                    unsafe { pointer.add((edge.start - offset) as usize).write_bytes(0, bytes) };
                }
                if chunks.is_empty() { Ok(()) } else { device.release(chunks.start, chunks.end - chunks.start) }
            }
            // Memory of a VM is returned by the guest, not by the host.
            Backing::Window(_) => Err(Errno::OPNOTSUPP),
        }
        .map_err(system("giving arena memory back"))
    }
}

/// Returns shared memory to the system by its mapping: a descriptor's number may be another file's by now.
///
/// # Safety
/// The range is a shared mapping of a file, whose content nobody needs.
unsafe fn remove(at: *mut u8, bytes: usize) -> rustix::io::Result<()> {
    // SAFETY: the caller's promise. Unlocking changes no content.
    unsafe {
        match rustix::mm::madvise(at.cast(), bytes, Advice::LinuxRemove) {
            // A program that locks its memory (`mlockall`) has locked the arena, too.
            Err(Errno::INVAL) => {
                rustix::mm::munlock(at.cast(), bytes)?;
                rustix::mm::madvise(at.cast(), bytes, Advice::LinuxRemove)
            }
            result => result,
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        self.reserve.end();
        // SAFETY: this object owns the mapping; lanes and users of `pointer` hold the Arc.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.size) };
    }
}

#[cfg(test)]
#[path = "arena_tests.rs"]
mod tests;
