//! The VM's memory: the check that it cannot shrink, and the files in which guest-physical extents
//! lie.

use std::fs::File;
use std::sync::Arc;

use rustix::fs::SealFlags;
use rustix::io::Errno;
use thiserror::Error;
use vm_memory::{
    Address, FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion, MemoryRegionAddress,
};

use crate::request::{Extent, MAX_EXTENTS, PAGE};

/// The memory of a VM cannot be used.
#[derive(Debug, Error, displaydoc::Display, Clone, Copy, PartialEq, Eq)]
pub enum MemoryError {
    /// the file of the VM's memory at {0:#x} is not sealed against shrinking; start QEMU with -object memory-backend-memfd,share=on,seal=on
    Unsealed(u64),
    /// the VM's memory at {0:#x} is larger than its file
    Short(u64),
}

/// Refuses memory whose file can shrink, which would kill every process that maps it.
pub fn check(memory: &GuestMemoryMmap) -> Result<(), MemoryError> {
    for region in memory.iter() {
        let start = region.start_addr().raw_value();
        let file = region.file_offset().ok_or(MemoryError::Unsealed(start))?;
        let seals = rustix::fs::fcntl_get_seals(file.file()).unwrap_or(SealFlags::empty());
        if !seals.contains(SealFlags::SHRINK) {
            return Err(MemoryError::Unsealed(start));
        }
        let size = rustix::fs::fstat(file.file()).map_or(0, |stat| u64::try_from(stat.st_size).unwrap_or(0));
        if file.start().checked_add(region.len()).is_none_or(|end| end > size) {
            return Err(MemoryError::Short(start));
        }
    }
    Ok(())
}

/// Consecutive bytes of an arena, and their extents in one file.
#[derive(Debug, Clone)]
pub struct MappedFragment {
    pub file: Arc<File>,
    pub length: u64,
    /// Offset in the file and length, in bytes.
    pub extents: Vec<(u64, u64)>,
}

/// Finds extents in the VM's files and cuts them at the borders of the memory regions.
pub fn locate(memory: &GuestMemoryMmap, extents: &[Extent]) -> Result<Vec<MappedFragment>, Errno> {
    let mut fragments: Vec<MappedFragment> = Vec::new();
    for extent in extents {
        let (mut address, mut left) = (extent.address, extent.length);
        while left > 0 {
            let (file, offset, room) = find(memory, address)?;
            let length = left.min(room);
            if !offset.is_multiple_of(PAGE) || !length.is_multiple_of(PAGE) {
                return Err(Errno::FAULT);
            }
            add(&mut fragments, file.arc(), offset, length);
            (address, left) = (address + length, left - length);
        }
    }
    Ok(fragments)
}

/// The file, the offset in it, and the bytes of the region that follow.
fn find(memory: &GuestMemoryMmap, address: u64) -> Result<(&FileOffset, u64, u64), Errno> {
    let region = memory.find_region(GuestAddress(address)).ok_or(Errno::FAULT)?;
    let MemoryRegionAddress(within) = region.to_region_addr(GuestAddress(address)).ok_or(Errno::FAULT)?;
    let file = region.file_offset().ok_or(Errno::FAULT)?;
    Ok((file, file.start() + within, region.len() - within))
}

fn add(fragments: &mut Vec<MappedFragment>, file: &Arc<File>, offset: u64, length: u64) {
    if let Some(fragment) = fragments.last_mut().filter(|fragment| Arc::ptr_eq(&fragment.file, file)) {
        let full = fragment.extents.len() >= MAX_EXTENTS;
        let joined = match fragment.extents.last_mut() {
            Some((start, so_far)) if *start + *so_far == offset => {
                *so_far += length;
                true
            }
            _ => false,
        };
        if joined || !full {
            if !joined {
                fragment.extents.push((offset, length));
            }
            fragment.length += length;
            return;
        }
    }
    fragments.push(MappedFragment { file: file.clone(), length, extents: vec![(offset, length)] });
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, fcntl_add_seals, ftruncate, memfd_create};
    use vm_memory::{GuestRegionMmap, MmapRegion};

    fn file(size: u64, seals: SealFlags) -> File {
        let file = memfd_create("memory", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, size).unwrap();
        fcntl_add_seals(&file, seals).unwrap();
        file.into()
    }

    fn region(file: File, start: u64, address: u64, size: usize) -> GuestRegionMmap {
        let mapped = MmapRegion::from_file(FileOffset::new(file, start), size).unwrap();
        GuestRegionMmap::new(mapped, GuestAddress(address)).unwrap()
    }

    fn extent(address: u64, pages: u64) -> Extent {
        Extent { address, length: pages * PAGE }
    }

    #[test]
    fn memory_must_not_shrink() {
        let of = |file: File, size| GuestMemoryMmap::from_regions(vec![region(file, 0, 0, size)]).unwrap();
        assert_eq!(check(&of(file(1 << 16, SealFlags::SHRINK), 1 << 16)), Ok(()));
        assert_eq!(check(&of(file(1 << 16, SealFlags::GROW), 1 << 16)), Err(MemoryError::Unsealed(0)));
        assert_eq!(check(&of(file(1 << 15, SealFlags::SHRINK), 1 << 16)), Err(MemoryError::Short(0)));
        assert_eq!(
            check(&GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 4096)]).unwrap()),
            Err(MemoryError::Unsealed(0))
        );
        let device = File::options().read(true).write(true).open("/dev/zero").unwrap();
        assert_eq!(check(&of(device, 4096)), Err(MemoryError::Unsealed(0)));
    }

    #[test]
    fn extents_are_cut_at_regions_and_joined_within() {
        let (one, two) = (file(1 << 20, SealFlags::SHRINK), file(1 << 20, SealFlags::SHRINK));
        let regions = vec![region(one, 0x8000, 0x10000, 0x4000), region(two, 0, 0x14000, 0x4000)];
        let memory = GuestMemoryMmap::from_regions(regions).unwrap();
        let fragments = locate(&memory, &[extent(0x10000, 1), extent(0x11000, 5), extent(0x16000, 1)]).unwrap();
        let found: Vec<_> = fragments.iter().map(|fragment| (fragment.length, fragment.extents.as_slice())).collect();
        assert_eq!(found, [(0x4000, &[(0x8000, 0x4000)][..]), (0x3000, &[(0, 0x3000)])]);
        for wrong in [extent(0xf000, 1), extent(0xf000, 2), extent(0x17000, 2), extent(1 << 62, 1)] {
            assert_eq!(locate(&memory, &[wrong]).unwrap_err(), Errno::FAULT);
        }
        let many: Vec<Extent> = (0..MAX_EXTENTS as u64).map(|n| extent(0x10000 + n % 2 * 0x2000, 1)).collect();
        assert_eq!(locate(&memory, &many).unwrap().len(), 1);
        let back_and_forth: Vec<Extent> = (0..64).map(|n| extent(0x10000 + n % 2 * 0x4000, 1)).collect();
        assert_eq!(locate(&memory, &back_and_forth).unwrap().len(), 64);
    }
}
