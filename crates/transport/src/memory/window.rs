//! The host's side of an arena that lies in a VM's memory.

use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicU32;

use rustix::mm::{MapFlags, ProtFlags};

use crate::memory::arena::{Arena, ArenaError, Backing, PAGE_BYTES, sealed_size};

/// A contiguous part of a VM's memory file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    pub at: u64,
    pub length: u64,
}

impl Extent {
    pub const EXTENT_BYTES: usize = 16;

    pub fn from_bytes(bytes: &[u8; Self::EXTENT_BYTES]) -> Self {
        let pair = u128::from_le_bytes(*bytes);
        Extent { at: pair as u64, length: (pair >> 64) as u64 }
    }
}

impl Arena {
    /// The address of a range of whole pages in a window.
    fn piece(&self, offset: u64, length: u64) -> Result<*mut u8, ArenaError> {
        let bytes = usize::try_from(length).unwrap_or(usize::MAX);
        let outside = ArenaError::Outside { offset, length: bytes, size: self.size() };
        let whole = offset.is_multiple_of(PAGE_BYTES as u64) && bytes.is_multiple_of(PAGE_BYTES) && bytes != 0;
        if !whole || !matches!(self.backing(), Backing::Window(_)) {
            return Err(outside);
        }
        self.pointer(offset, bytes)
    }

    /// Maps extents of a VM's memory one after the other at `offset`. Only the file's seals are
    /// trusted; an error leaves the range partly mapped, which harms only the guest that asked.
    pub fn map_extents(
        &self,
        offset: u64,
        extents: &[Extent],
        file: BorrowedFd,
        writable: bool,
    ) -> Result<(), ArenaError> {
        let available = sealed_size(file)?;
        let protection = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        let mut at = offset;
        for extent in extents {
            let to = self.piece(at, extent.length)?;
            let end = extent.at.checked_add(extent.length).filter(|end| *end <= available);
            if end.is_none() || !extent.at.is_multiple_of(PAGE_BYTES as u64) {
                return Err(ArenaError::WrongSize {
                    found: available,
                    stated: extent.at.saturating_add(extent.length),
                });
            }
            // SAFETY: `piece` checked that the range lies in this arena's own mapping, into which
            // no references exist. The file cannot shrink and contains the extent, so accesses
            // cannot fault; bytes that the guest writes there are data like any others in an arena.
            unsafe {
                rustix::mm::mmap(
                    to.cast(),
                    extent.length as usize,
                    protection,
                    MapFlags::SHARED | MapFlags::FIXED,
                    file,
                    extent.at,
                )
            }
            .map_err(|error| ArenaError::System { what: "mapping memory of the VM", error })?;
            at += extent.length;
        }
        self.reserve().leave_out_of_dumps(offset as usize, (at - offset) as usize);
        Ok(())
    }

    /// A word on which a ring's side may sleep.
    pub fn word(&self, offset: u64) -> Result<&AtomicU32, ArenaError> {
        let word = self.pointer(offset, size_of::<AtomicU32>())?;
        if !word.cast::<AtomicU32>().is_aligned() {
            return Err(ArenaError::Outside { offset, length: size_of::<AtomicU32>(), size: self.size() });
        }
        // SAFETY: the word lies in the mapping, which lives as long as this object, and is aligned;
        // any bytes are a valid u32, also those that a hostile guest writes.
        Ok(unsafe { AtomicU32::from_ptr(word.cast()) })
    }

    /// Unmaps a range that the guest takes back; it reads as zeros afterwards.
    pub fn unmap_piece(&self, offset: u64, length: u64) -> Result<(), ArenaError> {
        let at = self.piece(offset, length)?;
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
        // SAFETY: `piece` checked that the range lies in this arena's own mapping, into which no
        // references exist. A handler that still writes there faults, which ends the API server of
        // this guest.
        unsafe { rustix::mm::mmap_anonymous(at.cast(), length as usize, ProtFlags::READ, flags) }
            .map_err(|error| ArenaError::System { what: "unmapping memory of the VM", error })?;
        self.reserve().leave_out_of_dumps(offset as usize, length as usize);
        Ok(())
    }
}

impl Arena {
    /// Unmaps all memory of the VM. Later accesses of the vendor's library to the arena affect only
    /// this process. An arena that is no window stays unchanged.
    pub fn close_window(&self) -> Result<(), ArenaError> {
        if !matches!(self.backing(), Backing::Window(_)) {
            return Ok(());
        }
        let (start, protection) = (self.pointer(0, self.size())?, ProtFlags::READ | ProtFlags::WRITE);
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
        // SAFETY: exactly this arena's own mapping, into which no references exist; private memory
        // replaces it, so no access faults.
        unsafe { rustix::mm::mmap_anonymous(start.cast(), self.size(), protection, flags) }
            .map_err(|error| ArenaError::System { what: "unmapping the VM's memory", error })?;
        self.reserve().leave_out_of_dumps(0, self.size());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aviary_wire::Control;
    use aviary_wire::control::control_kind;
    use rustix::fs::{MemfdFlags, SealFlags};
    use std::os::fd::AsFd;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    fn memory(pages: u64, seals: SealFlags) -> OwnedFd {
        let file = rustix::fs::memfd_create("vm", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&file, pages * PAGE_BYTES as u64).unwrap();
        rustix::fs::fcntl_add_seals(&file, seals).unwrap();
        file
    }

    const SEALED: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);
    const P: u64 = PAGE_BYTES as u64;

    #[test]
    fn ranges_are_mapped_and_unmapped() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let arena = Arena::window(0, 16 * P, ours.into()).unwrap();
        let file = memory(8, SEALED);
        rustix::io::pwrite(&file, b"third", 3 * P).unwrap();
        rustix::io::pwrite(&file, b"first", P).unwrap();
        let extents = [Extent { at: 3 * P, length: P }, Extent { at: P, length: 2 * P }];
        arena.map_extents(4 * P, &extents, file.as_fd(), true).unwrap();
        let mut read = Vec::new();
        arena.read(4 * P, 5, &mut read).unwrap();
        arena.read(5 * P, 5, &mut read).unwrap();
        assert_eq!(read, b"thirdfirst");
        arena.write(5 * P, b"FIRST").unwrap();
        let mut back = [0; 5];
        rustix::io::pread(&file, &mut back, P).unwrap();
        assert_eq!(&back, b"FIRST");
        arena.unmap_piece(4 * P, 3 * P).unwrap();
        read.clear();
        arena.read(5 * P, 5, &mut read).unwrap();
        assert_eq!(read, [0; 5]);
        arena.map_extents(0, &extents[1..], file.as_fd(), true).unwrap();
        arena.close_window().unwrap();
        arena.write(0, b"later").unwrap();
        rustix::io::pread(&file, &mut back, P).unwrap();
        assert_eq!(&back, b"FIRST", "the VM's memory stays as it was");
    }

    #[test]
    fn false_extents_are_refused() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let arena = Arena::window(0, 16 * P, ours.into()).unwrap();
        let map = |offset, at, length, file: &OwnedFd| {
            arena.map_extents(offset, &[Extent { at, length }], file.as_fd(), true)
        };
        let file = memory(8, SEALED);
        assert!(map(15 * P, 0, P, &file).is_ok());
        let wrong = [(16 * P, 0, P), (15 * P, 0, 2 * P), (1, 0, P), (0, 1, P), (0, 0, P + 1), (0, 0, 0), (0, 8 * P, P)];
        for (offset, at, length) in
            wrong.into_iter().chain([(0, u64::MAX - 4095, P), (u64::MAX - 4095, 0, P), (0, 0, u64::MAX)])
        {
            assert!(map(offset, at, length, &file).is_err(), "{offset} {at} {length}");
        }
        assert!(map(0, 0, P, &memory(1, SealFlags::GROW)).is_err(), "a file that can shrink");
        let (null, plain) = (std::fs::File::open("/dev/null").unwrap(), Arena::mirror(4096).unwrap());
        assert!(map(0, 0, P, &null.into()).is_err());
        assert!(plain.map_extents(0, &[Extent { at: 0, length: P }], file.as_fd(), true).is_err(), "no window");
        assert!(plain.unmap_piece(0, P).is_err());
    }

    #[test]
    fn guest_is_woken_by_a_message() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let arena = Arena::window(0, 16 * P, ours.into()).unwrap();
        arena.doorbell().unwrap().wake_peer(arena.word(8200).unwrap());
        assert!(arena.word(8201).is_err() && arena.word(16 * P).is_err());
        let mut bytes = [0; Control::CONTROL_BYTES];
        std::io::Read::read_exact(&mut &theirs, &mut bytes).unwrap();
        assert_eq!(
            Control::from_bytes(&bytes),
            Control { kind: control_kind::WAKE, offset: 8200, ..Control::default() }
        );
    }
}
