//! The memory of one virtual accelerator: which of its guest virtual addresses are which memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use aviary_card::{Board, ClientMemory, IommuError, PAGE, Rights, entries_of};
use thiserror::Error;

use crate::slices::SLICE_BYTES;

/// Entries of the IO page table that a virtual accelerator has at most: twice what 64 GB in pages of 2 MB take. Each costs the
/// card's process some 100 bytes, and a table that clients could fill without a bound would take the memory of others.
const MAX_ENTRIES: u64 = 65_536;

/// Memory cannot be mapped or unmapped.
#[derive(Debug, Error, displaydoc::Display, Clone, Copy, PartialEq, Eq)]
pub enum MappingError {
    /// BASE is not set
    NoBase,
    /// {length:#x} bytes at {address:#x} are not within the 64 GB from BASE on
    Outside { address: u64, length: u64 },
    /// more than {MAX_ENTRIES:} entries of the IO page table, which is the limit: memory whose address and offset are multiples of 2 MB takes one for each 2 MB, other memory one for each 4 KB
    TooMany,
    /// {0}
    Iommu(#[from] IommuError),
}

#[derive(Debug)]
struct Mapping {
    length: u64,
    memory: Arc<ClientMemory>,
    offset: u64,
    rights: Rights,
}

impl Mapping {
    fn entries(&self, address: u64) -> u64 {
        entries_of(address, self.offset, self.length)
    }

    /// Does `other`, which begins where this one ends, continue it in the same memory with the same rights?
    fn is_continued_by(&self, other: &Mapping) -> bool {
        Arc::ptr_eq(&self.memory, &other.memory)
            && self.rights == other.rights
            && self.offset + self.length == other.offset
    }

    /// The part of it from `skip` bytes on.
    fn part(&self, skip: u64, length: u64) -> Mapping {
        Mapping { length, memory: Arc::clone(&self.memory), offset: self.offset + skip, rights: self.rights }
    }
}

/// The mappings, by guest virtual address. They do not overlap, and none continues another: pages of 4 KB that come one by one are
/// one mapping in the end, and take as many entries as if they had come together.
#[derive(Debug, Default)]
pub struct Mappings {
    by_address: BTreeMap<u64, Mapping>,
    /// Of the IO page table, at most [`MAX_ENTRIES`].
    entries: u64,
    /// That are mapped.
    bytes: u64,
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
        self.bytes
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
        let mapping = Mapping { length, memory: Arc::clone(memory), offset, rights };
        let (at, joined, met) = self.joined(address, mapping);
        // A slice begins at a multiple of 2 MB, as its guest virtual address does: both count the same entries.
        let before: u64 = met.iter().map(|at| self.by_address[at].entries(*at)).sum();
        let entries = self.entries - before + joined.entries(at);
        if entries > MAX_ENTRIES {
            return Err(MappingError::TooMany);
        }
        board.map(io, memory, offset, length, rights)?;
        met.iter().for_each(|at| drop(self.by_address.remove(at)));
        self.by_address.insert(at, joined);
        self.entries = entries;
        self.bytes += length;
        Ok(())
    }

    /// A new mapping with those that it continues and that continue it: its address, itself, and the addresses of the others.
    fn joined(&self, address: u64, mapping: Mapping) -> (u64, Mapping, Vec<u64>) {
        let (mut at, mut joined, mut met) = (address, mapping, Vec::new());
        let before = self.by_address.range(..address).next_back();
        if let Some((first, other)) = before.filter(|(first, other)| **first + other.length == address)
            && other.is_continued_by(&joined)
        {
            joined = Mapping { length: other.length + joined.length, ..other.part(0, other.length) };
            at = *first;
            met.push(at);
        }
        if let Some((next, other)) = self.by_address.get_key_value(&(at + joined.length))
            && joined.is_continued_by(other)
        {
            joined.length += other.length;
            met.push(*next);
        }
        (at, joined, met)
    }

    /// Takes away what is mapped in a range of whole pages, which may be parts of mappings, many, or nothing. Returns how many
    /// bytes that were. Afterwards no request to them is under way.
    ///
    /// # Errors
    /// See [`MappingError`]; nothing has changed then. Parts that are left may take more entries than the whole.
    pub fn unmap<B: Board>(
        &mut self,
        board: &mut B,
        guest_base: u64,
        slice: u64,
        address: u64,
        length: u64,
    ) -> Result<u64, MappingError> {
        let io = translated(guest_base, slice, address, length)?;
        if length == 0 || !address.is_multiple_of(PAGE) || !length.is_multiple_of(PAGE) {
            return Err(IommuError::Range { address, length }.into());
        }
        let end = address + length;
        let first = self.by_address.range(..address).next_back().filter(|(at, mapping)| *at + mapping.length > address);
        let met: Vec<u64> =
            first.into_iter().chain(self.by_address.range(address..end)).map(|(address, _)| *address).collect();
        let mut left = Vec::new();
        let (mut entries, mut bytes) = (self.entries, 0);
        for at in &met {
            let mapping = &self.by_address[at];
            let until = *at + mapping.length;
            entries -= mapping.entries(*at);
            bytes += until.min(end) - (*at).max(address);
            if *at < address {
                left.push((*at, mapping.part(0, address - at)));
            }
            if until > end {
                left.push((end, mapping.part(end - at, until - end)));
            }
        }
        entries += left.iter().map(|(at, part)| part.entries(*at)).sum::<u64>();
        if entries > MAX_ENTRIES {
            return Err(MappingError::TooMany);
        }
        let (Some(from), Some(last)) = (met.first(), met.last()) else { return Ok(0) };
        // No longer than what is there: a hostile client gives ranges of 64 GB.
        let from = (*from).max(address);
        let until = end.min(last + self.by_address[last].length);
        board.unmap(io + (from - address), until - from)?;
        met.iter().for_each(|at| drop(self.by_address.remove(at)));
        self.by_address.extend(left);
        self.entries = entries;
        self.bytes -= bytes;
        Ok(bytes)
    }

    /// Takes all away; nothing of them is under way afterwards.
    pub fn unmap_all<B: Board>(&mut self, board: &mut B, slice: u64) {
        self.hide(board, slice);
        self.by_address.clear();
        (self.entries, self.bytes) = (0, 0);
    }

    /// Takes all from the card, but remembers it.
    pub fn hide<B: Board>(&self, board: &mut B, slice: u64) {
        if !self.is_empty() {
            // Whole pages within the IO address space.
            let _ = board.unmap(slice, SLICE_BYTES);
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
        self.hide(board, old);
        let shown = self.show(board, guest_base, new);
        if shown.is_err() {
            // Mappings from before the failure.
            self.hide(board, new);
            if self.show(board, guest_base, old).is_err() {
                self.unmap_all(board, old);
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
