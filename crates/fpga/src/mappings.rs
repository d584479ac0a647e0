//! The memory of one virtual accelerator: which of its guest virtual addresses are which memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use aviary_card::{Board, ClientMemory, IommuError, Rights};
use thiserror::Error;

use crate::slices::SLICE_BYTES;

/// Mappings that a virtual accelerator has at most.
const MAX_MAPPINGS: usize = 65_536;

/// The reason why memory is not mapped or unmapped.
#[derive(Debug, Error, Clone, Copy, PartialEq, Eq)]
pub enum MappingError {
    /// BASE is not set
    #[error("BASE is not set")]
    NoBase,
    /// {length:#x} bytes at {address:#x} do not lie in the 64 GB from BASE on
    #[error("{length:#x} bytes at {address:#x} do not lie in the 64 GB from BASE on")]
    Outside { address: u64, length: u64 },
    /// there are 65,536 mappings already
    #[error("there are {MAX_MAPPINGS} mappings already")]
    TooMany,
    /// {length:#x} bytes at {address:#x} are no mapping, or only part of one
    #[error("{length:#x} bytes at {address:#x} are no mapping, or only part of one")]
    NoMapping { address: u64, length: u64 },
    /// {0}
    #[error(transparent)]
    Iommu(#[from] IommuError),
}

#[derive(Debug)]
struct Mapping {
    length: u64,
    memory: Arc<ClientMemory>,
    offset: u64,
    rights: Rights,
}

/// The mappings, by guest virtual address.
#[derive(Debug, Default)]
pub struct Mappings {
    by_address: BTreeMap<u64, Mapping>,
}

/// IO virtual address of a guest's, for the slice at `slice`.
fn translated(guest_base: u64, slice: u64, address: u64, length: u64) -> Result<u64, MappingError> {
    let outside = MappingError::Outside { address, length };
    let within = address.checked_sub(guest_base).ok_or(outside)?;
    let inside = within.checked_add(length).is_some_and(|end| end <= SLICE_BYTES);
    if inside { Ok(slice + within) } else { Err(outside) }
}

impl Mappings {
    pub fn is_empty(&self) -> bool {
        self.by_address.is_empty()
    }

    /// Bytes that are mapped.
    pub fn bytes(&self) -> u64 {
        self.by_address.values().map(|mapping| mapping.length).sum()
    }

    #[allow(clippy::too_many_arguments, reason = "an address, and a part of a memory")]
    pub fn map<B: Board>(
        &mut self,
        board: &mut B,
        guest_base: u64,
        slice: u64,
        address: u64,
        length: u64,
        memory: &Arc<ClientMemory>,
        offset: u64,
        rights: Rights,
    ) -> Result<(), MappingError> {
        let io = translated(guest_base, slice, address, length)?;
        if self.by_address.len() >= MAX_MAPPINGS {
            return Err(MappingError::TooMany);
        }
        board.map(io, memory, offset, length, rights)?;
        self.by_address.insert(address, Mapping { length, memory: Arc::clone(memory), offset, rights });
        Ok(())
    }

    pub fn unmap<B: Board>(
        &mut self,
        board: &mut B,
        guest_base: u64,
        slice: u64,
        address: u64,
        length: u64,
    ) -> Result<(), MappingError> {
        let io = translated(guest_base, slice, address, length)?;
        if self.by_address.get(&address).is_none_or(|mapping| mapping.length != length) {
            return Err(MappingError::NoMapping { address, length });
        }
        board.unmap(io, length)?;
        self.by_address.remove(&address);
        Ok(())
    }

    /// Takes all away; nothing of them is under way afterwards.
    pub fn unmap_all<B: Board>(&mut self, board: &mut B, guest_base: u64, slice: u64) {
        self.hide(board, guest_base, slice);
        self.by_address.clear();
    }

    /// Takes all from the card, but remembers it.
    pub fn hide<B: Board>(&self, board: &mut B, guest_base: u64, slice: u64) {
        for (address, mapping) in &self.by_address {
            // The range was checked when it was mapped.
            let _ = board.unmap(slice + (address - guest_base), mapping.length);
        }
    }

    /// Takes all from one slice to another.
    ///
    /// # Errors
    /// The card refused a mapping. Then all are in the old slice again, or none is left if the card refuses that, too.
    pub fn change_slice<B: Board>(
        &mut self,
        board: &mut B,
        guest_base: u64,
        old: u64,
        new: u64,
    ) -> Result<(), MappingError> {
        self.hide(board, guest_base, old);
        let shown = self.show(board, guest_base, new);
        if shown.is_err() {
            // Mappings from before the failure.
            self.hide(board, guest_base, new);
            if self.show(board, guest_base, old).is_err() {
                self.unmap_all(board, guest_base, old);
            }
        }
        shown
    }

    /// Gives the card all that was hidden, in another slice.
    pub fn show<B: Board>(&self, board: &mut B, guest_base: u64, slice: u64) -> Result<(), MappingError> {
        for (address, mapping) in &self.by_address {
            board.map(
                slice + (address - guest_base),
                &mapping.memory,
                mapping.offset,
                mapping.length,
                mapping.rights,
            )?;
        }
        Ok(())
    }
}
