//! A client's memory, as the card reaches it.

use std::fmt;
use std::fs::File;
use std::os::fd::AsFd;

use rustix::fs::SealFlags;
use thiserror::Error;
use vm_memory::mmap::{MmapRegionBuilder, MmapRegionError};
use vm_memory::{FileOffset, MmapRegion, VolatileMemory};

use crate::LINE;
use crate::iommu::{PAGE, Rights};

/// A line.
pub type Line = [u64; 8];

/// A client's memory is refused.
///
/// ```
/// use aviary_card::{ClientMemory, ClientMemoryError, Rights};
/// use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
///
/// let file = memfd_create("client", MemfdFlags::ALLOW_SEALING)?;
/// ftruncate(&file, 8192)?;
/// // The client could take its pages away, and end this process by that.
/// let error = ClientMemory::map(file.into(), 0, 4096, Rights::Read).unwrap_err();
/// assert!(matches!(error, ClientMemoryError::Unsealed));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Error, displaydoc::Display)]
pub enum ClientMemoryError {
    /// the descriptor is not a memfd of ordinary pages that is sealed against shrinking
    Unsealed,
    /// {length:#x} bytes from {offset:#x} on: expected whole pages within the file of {size:#x} bytes, at least one
    Range { offset: u64, length: u64, size: u64 },
    /// cannot map the memory: {0}
    Map(#[from] MmapRegionError),
}

/// Memory of a client that this process has mapped: part of a sealed memfd. The client writes and reads it at the same time;
/// the card copies lines and believes nothing in them.
///
/// ```
/// use aviary_card::{ClientMemory, Rights};
/// use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
///
/// let file = memfd_create("client", MemfdFlags::ALLOW_SEALING)?;
/// ftruncate(&file, 8192)?;
/// fcntl_add_seals(&file, SealFlags::SHRINK)?;
/// let memory = ClientMemory::map(file.into(), 4096, 4096, Rights::Read)?;
/// assert_eq!((memory.length(), memory.rights()), (4096, Rights::Read));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ClientMemory {
    region: MmapRegion,
    rights: Rights,
}

impl ClientMemory {
    /// Maps `length` bytes from `offset` on. The file must be a memfd of ordinary pages, sealed against shrinking: a client
    /// that could take pages away would end this process with SIGBUS.
    ///
    /// # Errors
    /// See [`ClientMemoryError`].
    pub fn map(file: File, offset: u64, length: u64, rights: Rights) -> Result<Self, ClientMemoryError> {
        let seals = rustix::fs::fcntl_get_seals(&file).unwrap_or(SealFlags::empty());
        if !seals.contains(SealFlags::SHRINK) || !aviary_ring::is_ordinary_memory(file.as_fd()).unwrap_or(false) {
            return Err(ClientMemoryError::Unsealed);
        }
        let size = rustix::fs::fstat(&file).map_or(0, |stat| u64::try_from(stat.st_size).unwrap_or(0));
        let range = ClientMemoryError::Range { offset, length, size };
        let fits = offset.checked_add(length).is_some_and(|end| end <= size);
        if length == 0 || !fits || !offset.is_multiple_of(PAGE) || !length.is_multiple_of(PAGE) {
            return Err(range);
        }
        let Ok(bytes) = usize::try_from(length) else { return Err(range) };
        const READ: i32 = 1; // PROT_READ
        const WRITE: i32 = 2; // PROT_WRITE
        const SHARED: i32 = 1; // MAP_SHARED
        let protection = if rights == Rights::ReadWrite { READ | WRITE } else { READ };
        let region = MmapRegionBuilder::new(bytes)
            .with_mmap_prot(protection)
            .with_mmap_flags(SHARED)
            .with_file_offset(FileOffset::new(file, offset))
            .build()?;
        // A client's file may be as long as its slice, and nearly empty.
        aviary_ring::leave_out_of_dumps(region.as_ptr().expose_provenance(), bytes);
        Ok(Self { region, rights })
    }

    /// Bytes.
    pub fn length(&self) -> u64 {
        self.region.size() as u64
    }

    pub fn rights(&self) -> Rights {
        self.rights
    }

    /// A copy of the line at this offset; zeros if it does not lie in the memory, which the page table rules out.
    pub(crate) fn read_line(&self, offset: u64) -> Line {
        let mut line = Line::default();
        if let Ok(slice) = self.region.get_slice(usize::try_from(offset).unwrap_or(usize::MAX), LINE as usize) {
            slice.copy_to(&mut line);
        }
        line
    }

    /// Writes a line; nothing if it does not lie in the memory or that is read-only, which the page table rules out.
    pub(crate) fn write_line(&self, offset: u64, line: &Line) {
        if self.rights != Rights::ReadWrite {
            return;
        }
        if let Ok(slice) = self.region.get_slice(usize::try_from(offset).unwrap_or(usize::MAX), LINE as usize) {
            slice.copy_from(line);
        }
    }
}

impl fmt::Debug for ClientMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientMemory({:#x} bytes, {:?})", self.length(), self.rights)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use rustix::fs::MemfdFlags;

    pub fn memfd(bytes: u64, seals: SealFlags, flags: MemfdFlags) -> File {
        let fd = rustix::fs::memfd_create("client", flags | MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, bytes).unwrap();
        rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
        File::from(fd)
    }

    #[test]
    fn memory_that_can_shrink_is_refused() {
        let file = memfd(8192, SealFlags::GROW, MemfdFlags::empty());
        let refused = ClientMemory::map(file, 0, 4096, Rights::ReadWrite);
        assert!(matches!(refused, Err(ClientMemoryError::Unsealed)));
    }

    #[test]
    fn descriptor_that_is_no_memfd_is_refused() {
        let file = File::open("/proc/self/exe").unwrap();
        assert!(matches!(ClientMemory::map(file, 0, 4096, Rights::Read), Err(ClientMemoryError::Unsealed)));
    }

    #[test]
    fn range_outside_the_file_is_refused() {
        for (offset, length) in [(0, 0), (0, 12288), (4096, 8192), (1, 4096), (0, 100), (u64::MAX - 4095, 4096)] {
            let file = memfd(8192, SealFlags::SHRINK, MemfdFlags::empty());
            let refused = ClientMemory::map(file, offset, length, Rights::ReadWrite);
            assert!(matches!(refused, Err(ClientMemoryError::Range { .. })), "{offset:#x} {length:#x}");
        }
    }

    #[test]
    fn line_that_was_written_is_read_and_seen_by_the_client() {
        use std::os::unix::fs::FileExt;
        let file = memfd(8192, SealFlags::SHRINK, MemfdFlags::empty());
        let memory = ClientMemory::map(file.try_clone().unwrap(), 4096, 4096, Rights::ReadWrite).unwrap();
        memory.write_line(64, &[7; 8]);
        assert_eq!(memory.read_line(64), [7; 8]);
        assert_eq!(memory.read_line(0), [0; 8]);
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, 4096 + 64 + 56).unwrap();
        assert_eq!(u64::from_ne_bytes(bytes), 7);
        memory.write_line(4096, &[7; 8]);
        assert_eq!(memory.read_line(4096), [0; 8]);
    }

    #[test]
    fn memory_sealed_against_writing_is_mapped_to_read() {
        let file = memfd(4096, SealFlags::SHRINK | SealFlags::WRITE, MemfdFlags::empty());
        assert!(ClientMemory::map(file.try_clone().unwrap(), 0, 4096, Rights::ReadWrite).is_err());
        let memory = ClientMemory::map(file, 0, 4096, Rights::Read).unwrap();
        memory.write_line(0, &[7; 8]);
        assert_eq!(memory.read_line(0), [0; 8]);
    }
}
