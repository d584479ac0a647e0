//! Memory that both ends of a connection map, or mirror.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use aviary_ring::Doorbell;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use thiserror::Error;

use crate::Device;
use crate::descriptors::{may_have_file, out_of_the_way};
use crate::device::CHUNK_BYTES;
use crate::window::HostDoorbell;

/// Default size of an arena's address range in bytes. Only touched pages cost memory.
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
#[derive(Debug, Error, Clone, Copy, PartialEq, Eq)]
pub enum ArenaError {
    /// {what} failed: {error}
    #[error("{what} failed: {error}")]
    System { what: &'static str, error: Errno },
    /// an arena of {0} bytes is not a positive multiple of 4096 up to 1 TiB
    #[error("an arena of {0} bytes is not a positive multiple of 4096 up to 1 TiB")]
    Size(u64),
    /// the arena's file is not sealed against resizing
    #[error("the arena's file is not sealed against resizing")]
    NotSealed,
    /// the arena's file lies in huge pages, expected an ordinary memfd
    #[error("the arena's file lies in huge pages, expected an ordinary memfd")]
    HugePages,
    /// the arena's file has {found} bytes, {stated} were stated
    #[error("the arena's file has {found} bytes, {stated} were stated")]
    WrongSize { found: u64, stated: u64 },
    /// offset {offset} and length {length} leave an arena of {size} bytes
    #[error("offset {offset} and length {length} leave an arena of {size} bytes")]
    Outside { offset: u64, length: usize, size: usize },
}

/// One connection's arena as mapped in this process.
pub struct Arena {
    base: NonNull<u8>,
    size: usize,
    same_address: bool,
    backing: Backing,
    /// True if a carrier shares this memory, and not the final peer.
    carried: AtomicBool,
}

/// The memory behind an arena.
pub(crate) enum Backing {
    /// A sealed file that both sides map.
    File(OwnedFd),
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
            Backing::File(file) => Some(file.as_fd()),
            _ => None,
        }
    }

    /// The initial mapping of the arena.
    fn mapped(&self) -> Mapped<'_> {
        match self {
            Backing::File(file) => Mapped::File(file.as_fd()),
            Backing::Device(device) => Mapped::File(device.as_fd()),
            Backing::Private => Mapped::Private,
            Backing::Window(_) => Mapped::Zeros,
        }
    }
}

/// The content of a range of addresses.
#[derive(Clone, Copy)]
pub(crate) enum Mapped<'a> {
    File(BorrowedFd<'a>),
    /// Writable memory of this process.
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

fn checked_size(size: u64) -> Result<usize, ArenaError> {
    if size == 0 || size > MAX_ARENA_BYTES || !size.is_multiple_of(PAGE_BYTES as u64) {
        return Err(ArenaError::Size(size));
    }
    usize::try_from(size).map_err(|_| ArenaError::Size(size))
}

/// Maps the initial content of an arena; `Ok(None)`: the range at `address` is taken.
fn map_at(address: usize, size: usize, what: Mapped) -> Result<Option<NonNull<u8>>, ArenaError> {
    let (sharing, protection) = match what {
        Mapped::File(_) => (MapFlags::SHARED, ProtFlags::READ | ProtFlags::WRITE),
        Mapped::Private => (MapFlags::PRIVATE, ProtFlags::READ | ProtFlags::WRITE),
        Mapped::Zeros => (MapFlags::PRIVATE, ProtFlags::READ),
    };
    let place = if address != 0 { MapFlags::FIXED_NOREPLACE } else { MapFlags::empty() };
    let (flags, at) = (MapFlags::NORESERVE | sharing | place, address as *mut _);
    let mapped = match what {
        // SAFETY: a mapping at a new address (the kernel chooses it, or NOREPLACE refuses to touch
        // an existing mapping) changes no memory in use. The file is sealed against shrinking, or
        // is a device whose driver always has a page, so accesses below `size` cannot fault.
        Mapped::File(file) => unsafe { rustix::mm::mmap(at, size, protection, flags, file, 0) },
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
        Self::place(size, Backing::File(file))
    }

    /// The guest's side over a stream: private memory.
    pub fn mirror(size: usize) -> Result<Arc<Self>, ArenaError> {
        Self::place(checked_size(size as u64)?, Backing::Private)
    }

    /// The guest's side in a VM.
    pub fn of_device(device: Arc<Device>, size: usize) -> Result<Arc<Self>, ArenaError> {
        let arena = Self::place(checked_size(size as u64)?, Backing::Device(device.clone()))?;
        device.set_base(arena.base.as_ptr().addr());
        Ok(arena)
    }

    /// The API server's side for a guest in a VM: empty until the VM's memory is mapped into it.
    pub fn window(address: u64, stated: u64, socket: OwnedFd) -> Result<Arc<Self>, ArenaError> {
        let doorbell = Arc::new(HostDoorbell::new(socket));
        let arena = Self::follow(checked_size(stated)?, address, Backing::Window(doorbell.clone()))?;
        doorbell.set_base(arena.base.as_ptr().addr());
        Ok(arena)
    }

    fn place(size: usize, backing: Backing) -> Result<Arc<Self>, ArenaError> {
        // Processes start at different candidates: a server may serve several connections of one
        // process, and a proxy several processes.
        let first = std::process::id() as usize % CANDIDATES;
        for n in 0..CANDIDATES {
            let address = LOWEST_ADDRESS + (first + n) % CANDIDATES * STRIDE;
            if let Some(base) = map_at(address, size, backing.mapped())? {
                return Ok(Arc::new(Arena {
                    base,
                    size,
                    same_address: true,
                    backing,
                    carried: AtomicBool::new(false),
                }));
            }
        }
        Self::anywhere(size, backing)
    }

    fn anywhere(size: usize, backing: Backing) -> Result<Arc<Self>, ArenaError> {
        let base = map_at(0, size, backing.mapped())?;
        let no_memory = ArenaError::System { what: "mapping the arena", error: Errno::NOMEM };
        Ok(Arc::new(Arena {
            base: base.ok_or(no_memory)?,
            size,
            same_address: false,
            backing,
            carried: AtomicBool::new(false),
        }))
    }

    /// The server's side: maps the guest's file, at the guest's address if it is free in this
    /// process.
    pub fn open(file: OwnedFd, address: u64, stated: u64) -> Result<Arc<Self>, ArenaError> {
        let size = checked_size(stated)?;
        let found = ordinary_size(file.as_fd())?;
        if found != stated {
            return Err(ArenaError::WrongSize { found, stated });
        }
        Self::follow(size, address, Backing::File(file))
    }

    /// The server's side over a stream.
    pub fn mirror_of(address: u64, stated: u64) -> Result<Arc<Self>, ArenaError> {
        Self::follow(checked_size(stated)?, address, Backing::Private)
    }

    fn follow(size: usize, address: u64, backing: Backing) -> Result<Arc<Self>, ArenaError> {
        let wanted = usize::try_from(address).unwrap_or(0);
        // Below the agreed range a guest could name addresses that this process will need for
        // itself.
        if wanted >= LOWEST_ADDRESS
            && wanted % PAGE_BYTES == 0
            && let Some(base) = map_at(wanted, size, backing.mapped())?
        {
            return Ok(Arc::new(Arena { base, size, same_address: true, backing, carried: AtomicBool::new(false) }));
        }
        Self::anywhere(size, backing)
    }

    pub fn address(&self) -> u64 {
        self.base.as_ptr() as u64
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

    /// The descriptor to send with `Hello`.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.backing.file()
    }

    /// The address of `length` bytes at `offset`, if they lie in the arena. Their content may
    /// change at any time.
    #[inline]
    pub fn pointer(&self, offset: u64, length: usize) -> Result<*mut u8, ArenaError> {
        let inside = usize::try_from(offset).ok().and_then(|o| o.checked_add(length));
        match inside {
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
        let to = self.pointer(offset, bytes)?;
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
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::NORESERVE);
        // SAFETY: whole pages of this arena's own mapping, into which no references exist; a guest
        // that names them while they change gets the old or the new bytes. The file has `length`
        // bytes and cannot shrink, so accesses cannot fault.
        unsafe { rustix::mm::mmap(to.cast(), bytes, protection, flags | MapFlags::FIXED, file, 0) }
            .map_err(system("mapping the application's heap"))?;
        Ok(())
    }

    /// Allocates the pages of a range that this side may never have touched, so that the peer sees
    /// them. The host has only those pages of a VM that the VM touched; in other arenas the first
    /// access of either side allocates the page.
    pub fn populate(&self, offset: u64, length: usize) {
        let (Some(_), Ok(start)) = (self.device(), self.pointer(offset, length)) else { return };
        for at in (0..length).step_by(CHUNK_BYTES as usize).chain(length.checked_sub(1)) {
            // SAFETY: `at` is less than `length`, so the byte lies in the range that `pointer`
            // checked.
            unsafe { start.add(at).read_volatile() };
        }
    }

    pub(crate) fn backing(&self) -> &Backing {
        &self.backing
    }

    /// Returns the memory of whole pages to the system; they read as zeros afterwards.
    pub fn punch(&self, offset: u64, length: usize) -> Result<(), ArenaError> {
        let pointer = self.pointer(offset, length)?;
        if !offset.is_multiple_of(PAGE_BYTES as u64) || !length.is_multiple_of(PAGE_BYTES) || length == 0 {
            return Err(ArenaError::Outside { offset, length, size: self.size });
        }
        match &self.backing {
            Backing::File(file) => {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(file, flags, offset, length as u64)
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

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: this object owns the mapping; lanes and users of `pointer` hold the Arc.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.size) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_see_equal_bytes() {
        let ours = Arena::create(1 << 30).unwrap();
        let file = rustix::io::dup(ours.file().unwrap()).unwrap();
        // In one process the guest's address is taken: the second mapping must go elsewhere.
        let theirs = Arena::open(file, ours.address(), 1 << 30).unwrap();
        assert!(ours.same_address() && !theirs.same_address());
        let (a, b) = (ours.pointer(4096, 4).unwrap(), theirs.pointer(4096, 4).unwrap());
        // SAFETY: both pointers are inside their mappings; one thread.
        unsafe {
            a.cast::<u32>().write(0xdead_beef);
            assert_eq!(b.cast::<u32>().read(), 0xdead_beef);
        }
        ours.punch(4096, 4096).unwrap();
        // SAFETY: both pointers are inside their mappings; one thread. Volatile, because the
        // compiler cannot know that the system call changed memory that it has already read.
        assert_eq!(unsafe { b.cast::<u32>().read_volatile() }, 0);
    }

    #[test]
    fn range_is_split_into_chunks_and_edges() {
        const C: u64 = CHUNK_BYTES;
        assert_eq!(split_chunks(C, 2 * C), (C..3 * C, [C..C, 3 * C..3 * C]));
        assert_eq!(split_chunks(C - 4096, C + 8192), (C..2 * C, [C - 4096..C, 2 * C..2 * C + 4096]));
        let (chunks, edges) = split_chunks(4096, 8192);
        assert!(chunks.is_empty());
        assert_eq!(edges.iter().map(|edge| edge.end - edge.start).sum::<u64>(), 8192);
    }

    #[test]
    fn hostile_files_are_refused() {
        let plain = rustix::fs::memfd_create("x", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&plain, 8192).unwrap();
        let again = || rustix::io::dup(&plain).unwrap();
        assert_eq!(Arena::open(again(), 0, 8192).err(), Some(ArenaError::NotSealed));
        rustix::fs::fcntl_add_seals(&plain, SealFlags::SHRINK | SealFlags::GROW).unwrap();
        let wrong = ArenaError::WrongSize { found: 8192, stated: 12288 };
        assert_eq!(Arena::open(again(), 0, 12288).err(), Some(wrong));
        assert_eq!(Arena::open(again(), 0, 100).err(), Some(ArenaError::Size(100)));
        assert_eq!(Arena::open(again(), 0, 1 << 41).err(), Some(ArenaError::Size(1 << 41)));
        assert!(Arena::open(again(), 0x1000, 8192).is_ok_and(|a| !a.same_address()));
        // A system without huge pages has none to refuse.
        let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
        if let Ok(huge) = rustix::fs::memfd_create("x", flags) {
            rustix::fs::ftruncate(&huge, 2 << 20).unwrap();
            rustix::fs::fcntl_add_seals(&huge, SealFlags::SHRINK | SealFlags::GROW).unwrap();
            assert_eq!(Arena::open(huge, 0, 2 << 20).err(), Some(ArenaError::HugePages));
        }
        let null = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(Arena::open(null.into(), 0, 8192).err(), Some(ArenaError::NotSealed));
    }

    #[test]
    fn heap_replaces_a_part() {
        let arena = Arena::create(1 << 20).unwrap();
        let heap = |seals| {
            let file = rustix::fs::memfd_create("heap", MemfdFlags::ALLOW_SEALING).unwrap();
            rustix::fs::ftruncate(&file, 8192).unwrap();
            rustix::fs::fcntl_add_seals(&file, seals).unwrap();
            file
        };
        let file = heap(SealFlags::SHRINK | SealFlags::GROW);
        rustix::io::pwrite(&file, b"here", 4096).unwrap();
        arena.write(8192, b"gone").unwrap();
        arena.lay_over(4096, 8192, file.as_fd()).unwrap();
        let mut read = Vec::new();
        arena.read(8192, 4, &mut read).unwrap();
        assert_eq!(read, b"here");
        for (offset, length) in [(0, 8192), (4097, 8192), (4096, 4096), (4096, 0), (1 << 20, 8192), (u64::MAX, 8192)] {
            assert!(arena.lay_over(offset, length, file.as_fd()).is_err(), "{offset} {length}");
        }
        assert_eq!(arena.lay_over(4096, 8192, heap(SealFlags::GROW).as_fd()), Err(ArenaError::NotSealed));
        assert!(Arena::mirror(1 << 20).unwrap().lay_over(4096, 8192, file.as_fd()).is_err());
    }

    #[test]
    fn ranges_are_checked() {
        let arena = Arena::mirror(8192).unwrap();
        assert!(arena.pointer(8192, 0).is_ok());
        for (offset, length) in [(8192, 1), (0, 8193), (u64::MAX, 1), (1, usize::MAX)] {
            assert!(arena.pointer(offset, length).is_err(), "{offset} {length}");
        }
        arena.write(8188, b"abcd").unwrap();
        let mut read = vec![1];
        arena.read(8189, 3, &mut read).unwrap();
        assert_eq!(read, b"\x01bcd");
        assert!(arena.write(8189, b"abcd").is_err() && arena.read(8189, 4, &mut read).is_err());
        let start = arena.pointer(0, 1).unwrap();
        assert_eq!(arena.offset_of(start), Some(0));
        assert_eq!(arena.offset_of(start.wrapping_add(8192)), None);
        assert_eq!(arena.offset_of(start.wrapping_sub(1)), None);
    }
}
