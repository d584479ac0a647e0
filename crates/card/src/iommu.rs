//! The model of the IO page table: pages of 4 KB and 2 MB, and the IOTLB before it.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use thiserror::Error;

use crate::memory::ClientMemory;
use crate::tlb::{PageName, Tlb};

/// Bytes of a small page.
pub const PAGE: u64 = 1 << PAGE_BITS;
/// Bytes of a huge page.
pub const HUGE_PAGE: u64 = 1 << HUGE_BITS;
const PAGE_BITS: u32 = 12;
const HUGE_BITS: u32 = 21;
const SMALL_PER_HUGE: usize = (HUGE_PAGE / PAGE) as usize;
/// The IO space ends here.
const SPACE: u64 = 1 << 48;

/// Access to memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rights {
    Read,
    ReadWrite,
}

/// A mapping is refused.
///
/// ```
/// use aviary_card::IommuError;
///
/// assert_eq!(IommuError::Taken(0x2000).to_string(), "the page at 0x2000 is mapped already");
/// ```
#[derive(Debug, Error, displaydoc::Display, Clone, Copy, PartialEq, Eq)]
pub enum IommuError {
    /// {length:#x} bytes at {address:#x}: expected whole pages within 48 bits of IO address space, at least one
    Range { address: u64, length: u64 },
    /// {length:#x} bytes from {offset:#x} on are not within the client's memory
    Memory { offset: u64, length: u64 },
    /// the page at {0:#x} is mapped already
    Taken(u64),
    /// the memory is mapped read-only
    ReadOnly,
}

/// A request that the IO page table refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IoFault {
    /// Cycle, port, and IO virtual address of the line.
    pub at: u64,
    pub port: u8,
    pub address: u64,
    pub write: bool,
    /// The page is mapped, but to read only.
    pub read_only: bool,
}

/// A page's memory.
#[derive(Debug, Clone)]
struct PageEntry {
    memory: Arc<ClientMemory>,
    offset: u64,
    rights: Rights,
}

impl PageEntry {
    /// Does `other` follow this one `pages` small pages later, in the same memory with the same rights?
    fn continues(&self, other: &Self, pages: usize) -> bool {
        Arc::ptr_eq(&self.memory, &other.memory)
            && self.rights == other.rights
            && other.offset == self.offset + pages as u64 * PAGE
    }
}

/// The 2 MB at one place of the IO space.
#[derive(Debug)]
enum Directory {
    Huge(PageEntry),
    /// By their places among the 512; at least one. A client that maps one page here and there makes no table of 512 each time.
    Small(BTreeMap<usize, PageEntry>),
}

/// Entries of the page table that a mapping takes: one for 2 MB whose address and place in the memory are multiples of 2 MB, and
/// one for each other page.
pub fn entries_of(address: u64, offset: u64, length: u64) -> u64 {
    let first = address.next_multiple_of(HUGE_PAGE) - address;
    if !address.wrapping_sub(offset).is_multiple_of(HUGE_PAGE) || first > length {
        return length / PAGE;
    }
    let huge = (length - first) / HUGE_PAGE;
    huge + (length - huge * HUGE_PAGE) / PAGE
}

/// A line's place, and what the look-up cost.
#[derive(Debug, Clone)]
pub struct Translation {
    pub memory: Arc<ClientMemory>,
    pub offset: u64,
    /// The IOTLB had the page.
    pub hit: bool,
}

/// The IO page table with its IOTLB.
#[derive(Debug)]
pub struct Iommu {
    /// In the order of addresses, so that a range costs what is mapped in it and not what it could have.
    directories: BTreeMap<u64, Directory>,
    tlb: Tlb,
}

impl Iommu {
    pub fn new(tlb_entries: usize) -> Self {
        Self { directories: BTreeMap::new(), tlb: Tlb::new(tlb_entries) }
    }

    /// Look-ups of the IOTLB: hits, misses.
    pub fn tlb_counts(&self) -> (u64, u64) {
        self.tlb.counts()
    }

    /// Maps a range; 512 pages in a row that lie in a row in the memory, at a congruent offset, become one of 2 MB.
    pub fn map(
        &mut self,
        address: u64,
        memory: &Arc<ClientMemory>,
        offset: u64,
        length: u64,
        rights: Rights,
    ) -> Result<(), IommuError> {
        check_range(address, length)?;
        let inside = offset.checked_add(length).is_some_and(|end| end <= memory.length());
        if !offset.is_multiple_of(PAGE) || !inside {
            return Err(IommuError::Memory { offset, length });
        }
        if rights == Rights::ReadWrite && memory.rights() == Rights::Read {
            return Err(IommuError::ReadOnly);
        }
        if let Some(page) = self.first_taken(address, address + length) {
            return Err(IommuError::Taken(page));
        }
        let mut done = 0;
        while done < length {
            let (at, from) = (address + done, offset + done);
            let entry = PageEntry { memory: Arc::clone(memory), offset: from, rights };
            let whole = at.is_multiple_of(HUGE_PAGE) && length - done >= HUGE_PAGE;
            if whole && from.is_multiple_of(HUGE_PAGE) {
                self.directories.insert(at >> HUGE_BITS, Directory::Huge(entry));
                done += HUGE_PAGE;
            } else {
                self.insert_small(at, entry);
                done += PAGE;
            }
        }
        Ok(())
    }

    /// The first page that is mapped between these addresses.
    fn first_taken(&self, address: u64, end: u64) -> Option<u64> {
        self.directories.range(places(address, end)).find_map(|(number, directory)| {
            let (from, to) = part_at(*number, address, end);
            match directory {
                Directory::Huge(_) => Some(from),
                Directory::Small(pages) => {
                    let first = pages.range(small_index(from)..=small_index(to - PAGE)).next();
                    first.map(|(i, _)| (number << HUGE_BITS) + *i as u64 * PAGE)
                }
            }
        })
    }

    fn insert_small(&mut self, address: u64, entry: PageEntry) {
        let number = address >> HUGE_BITS;
        let directory = self.directories.entry(number).or_insert_with(|| Directory::Small(BTreeMap::new()));
        let Directory::Small(pages) = directory else { return };
        pages.insert(small_index(address), entry);
        let Some(first) = pages.get(&0).cloned().filter(|first| first.offset.is_multiple_of(HUGE_PAGE)) else { return };
        let merges = pages.len() == SMALL_PER_HUGE && pages.iter().all(|(i, page)| first.continues(page, *i));
        if merges {
            // The IOTLB may know the small pages.
            for i in 0..SMALL_PER_HUGE as u64 {
                self.tlb.drop_page(PageName { number: (number << (HUGE_BITS - PAGE_BITS)) + i, bits: PAGE_BITS });
            }
            self.directories.insert(number, Directory::Huge(first));
        }
    }

    /// The page at an address: its entry, name and the offset in it.
    fn find(&self, address: u64) -> Option<(&PageEntry, PageName, u64)> {
        match self.directories.get(&(address >> HUGE_BITS))? {
            Directory::Huge(entry) => {
                let page = PageName { number: address >> HUGE_BITS, bits: HUGE_BITS };
                Some((entry, page, address % HUGE_PAGE))
            }
            Directory::Small(pages) => {
                let page = PageName { number: address >> PAGE_BITS, bits: PAGE_BITS };
                Some((pages.get(&small_index(address))?, page, address % PAGE))
            }
        }
    }

    /// Translates the address of a line. `Err(true)`: the page is mapped, but to read only.
    pub fn translate(&mut self, address: u64, write: bool) -> Result<Translation, bool> {
        let Some((entry, page, within)) = self.find(address) else { return Err(false) };
        if write && entry.rights == Rights::Read {
            return Err(true);
        }
        let (memory, offset) = (Arc::clone(&entry.memory), entry.offset + within);
        let hit = self.tlb.look_up(page);
        Ok(Translation { memory, offset, hit })
    }

    /// Takes away what is mapped in a range, entries and IOTLB alike.
    pub fn unmap(&mut self, address: u64, length: u64) -> Result<(), IommuError> {
        check_range(address, length)?;
        let end = address + length;
        let numbers: Vec<u64> = self.directories.range(places(address, end)).map(|(number, _)| *number).collect();
        for number in numbers {
            let (from, to) = part_at(number, address, end);
            if to - from == HUGE_PAGE {
                self.remove_directory(number);
            } else {
                self.split(number);
                self.remove_small(number, from, to);
            }
        }
        Ok(())
    }

    fn remove_directory(&mut self, number: u64) {
        match self.directories.remove(&number) {
            Some(Directory::Huge(_)) => self.tlb.drop_page(PageName { number, bits: HUGE_BITS }),
            Some(Directory::Small(pages)) => {
                for i in pages.into_keys() {
                    let page = (number << (HUGE_BITS - PAGE_BITS)) + i as u64;
                    self.tlb.drop_page(PageName { number: page, bits: PAGE_BITS });
                }
            }
            None => {}
        }
    }

    /// A huge page becomes 512 small ones.
    fn split(&mut self, number: u64) {
        let Some(Directory::Huge(huge)) = self.directories.get(&number) else { return };
        let page = |i| PageEntry {
            memory: Arc::clone(&huge.memory),
            offset: huge.offset + i as u64 * PAGE,
            rights: huge.rights,
        };
        let pages = (0..SMALL_PER_HUGE).map(|i| (i, page(i))).collect();
        self.tlb.drop_page(PageName { number, bits: HUGE_BITS });
        self.directories.insert(number, Directory::Small(pages));
    }

    fn remove_small(&mut self, number: u64, from: u64, to: u64) {
        let Some(Directory::Small(pages)) = self.directories.get_mut(&number) else { return };
        for page in (from..to).step_by(PAGE as usize) {
            if pages.remove(&small_index(page)).is_some() {
                self.tlb.drop_page(PageName { number: page >> PAGE_BITS, bits: PAGE_BITS });
            }
        }
        if pages.is_empty() {
            self.directories.remove(&number);
        }
    }
}

/// The places of 2 MB that a range touches, which is not empty.
fn places(address: u64, end: u64) -> RangeInclusive<u64> {
    address >> HUGE_BITS..=(end - 1) >> HUGE_BITS
}

/// The part of a range that is in one of those.
fn part_at(number: u64, address: u64, end: u64) -> (u64, u64) {
    let first = number << HUGE_BITS;
    (first.max(address), (first + HUGE_PAGE).min(end))
}

fn small_index(address: u64) -> usize {
    (address >> PAGE_BITS) as usize % SMALL_PER_HUGE
}

fn check_range(address: u64, length: u64) -> Result<(), IommuError> {
    let inside = address.checked_add(length).is_some_and(|end| end <= SPACE);
    if length == 0 || !inside || !address.is_multiple_of(PAGE) || !length.is_multiple_of(PAGE) {
        return Err(IommuError::Range { address, length });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::tests::memfd;
    use rustix::fs::{MemfdFlags, SealFlags};

    fn memory(bytes: u64) -> Arc<ClientMemory> {
        let file = memfd(bytes, SealFlags::SHRINK, MemfdFlags::empty());
        Arc::new(ClientMemory::map(file, 0, bytes, Rights::ReadWrite).unwrap())
    }

    #[test]
    fn ranges_are_checked() {
        let (mut iommu, memory) = (Iommu::new(512), memory(2 * PAGE));
        for (address, length) in [(0, 0), (1, PAGE), (0, 1), (SPACE, PAGE), (u64::MAX - PAGE + 1, PAGE)] {
            let refused = Err(IommuError::Range { address, length });
            assert_eq!(iommu.map(address, &memory, 0, length, Rights::Read), refused);
            assert_eq!(iommu.unmap(address, length), refused);
        }
        for (offset, length) in [(PAGE, 2 * PAGE), (1, PAGE), (u64::MAX - PAGE + 1, PAGE), (0, 3 * PAGE)] {
            let refused = Err(IommuError::Memory { offset, length });
            assert_eq!(iommu.map(0, &memory, offset, length, Rights::Read), refused);
        }
    }

    #[test]
    fn overlapping_mapping_is_refused_as_a_whole() {
        let (mut iommu, memory) = (Iommu::new(512), memory(4 * PAGE));
        iommu.map(2 * PAGE, &memory, 0, PAGE, Rights::ReadWrite).unwrap();
        assert_eq!(iommu.map(0, &memory, 0, 4 * PAGE, Rights::Read), Err(IommuError::Taken(2 * PAGE)));
        assert!(iommu.translate(0, false).is_err());
    }

    #[test]
    fn first_page_that_is_taken_is_named_wherever_it_is() {
        let (mut iommu, memory) = (Iommu::new(512), memory(2 * HUGE_PAGE));
        iommu.map(HUGE_PAGE + 5 * PAGE, &memory, 0, PAGE, Rights::Read).unwrap();
        iommu.map(4 * HUGE_PAGE, &memory, 0, HUGE_PAGE, Rights::Read).unwrap();
        let taken = |iommu: &Iommu, address, end| iommu.first_taken(address, end);
        assert_eq!(taken(&iommu, 0, 8 * HUGE_PAGE), Some(HUGE_PAGE + 5 * PAGE));
        assert_eq!(taken(&iommu, HUGE_PAGE + 6 * PAGE, 8 * HUGE_PAGE), Some(4 * HUGE_PAGE));
        assert_eq!(taken(&iommu, 4 * HUGE_PAGE + 3 * PAGE, 8 * HUGE_PAGE), Some(4 * HUGE_PAGE + 3 * PAGE));
        assert_eq!(taken(&iommu, 0, HUGE_PAGE + 5 * PAGE), None);
        assert_eq!(taken(&iommu, 5 * HUGE_PAGE, SPACE), None);
    }

    /// A client that leaves has its 64 GB unmapped: to look at each of their places costs 32,768 look-ups.
    #[test]
    fn range_costs_what_is_mapped_in_it() {
        let (mut iommu, memory) = (Iommu::new(512), memory(HUGE_PAGE));
        for _ in 0..1_000 {
            iommu.map(HUGE_PAGE, &memory, 0, HUGE_PAGE, Rights::Read).unwrap();
            iommu.map(SPACE - PAGE, &memory, 0, PAGE, Rights::Read).unwrap();
            iommu.unmap(0, SPACE).unwrap();
        }
        assert!(iommu.directories.is_empty());
    }

    #[test]
    fn small_pages_become_a_huge_one_in_any_order() {
        let pages = SMALL_PER_HUGE as u64;
        // Backwards, and in steps that have no divisor in common with 512.
        for order in [Vec::from_iter((0..pages).rev()), Vec::from_iter((0..pages).map(|i| i * 199 % pages))] {
            let (mut iommu, memory) = (Iommu::new(512), memory(HUGE_PAGE));
            for page in order {
                iommu.map(HUGE_PAGE + page * PAGE, &memory, page * PAGE, PAGE, Rights::ReadWrite).unwrap();
            }
            assert!(matches!(iommu.directories[&1], Directory::Huge(_)));
        }
    }

    #[test]
    fn read_only_page_refuses_writes() {
        let (mut iommu, memory) = (Iommu::new(512), memory(PAGE));
        iommu.map(0, &memory, 0, PAGE, Rights::Read).unwrap();
        assert!(iommu.translate(64, false).is_ok());
        assert!(matches!(iommu.translate(64, true), Err(true)));
        assert!(matches!(iommu.translate(PAGE, true), Err(false)));
    }

    #[test]
    fn small_pages_in_a_row_become_a_huge_one_and_split_again() {
        let (mut iommu, memory) = (Iommu::new(512), memory(HUGE_PAGE));
        for page in (0..HUGE_PAGE).step_by(PAGE as usize) {
            iommu.map(HUGE_PAGE + page, &memory, page, PAGE, Rights::ReadWrite).unwrap();
        }
        assert!(matches!(iommu.directories[&1], Directory::Huge(_)));
        // One look-up for all of it.
        assert!(!iommu.translate(HUGE_PAGE, false).unwrap().hit);
        assert!(iommu.translate(2 * HUGE_PAGE - 64, false).unwrap().hit);
        iommu.unmap(HUGE_PAGE + 5 * PAGE, PAGE).unwrap();
        assert!(iommu.translate(HUGE_PAGE + 5 * PAGE, false).is_err());
        let other = iommu.translate(HUGE_PAGE + 6 * PAGE + 64, false).unwrap();
        assert_eq!((other.offset, other.hit), (6 * PAGE + 64, false));
        iommu.unmap(HUGE_PAGE, HUGE_PAGE).unwrap();
        assert!(iommu.directories.is_empty());
    }

    #[test]
    fn entries_are_those_of_the_table() {
        for (address, offset, length) in [
            (0, 0, HUGE_PAGE),
            (PAGE, PAGE, 3 * HUGE_PAGE),
            (HUGE_PAGE - PAGE, HUGE_PAGE - PAGE, 2 * PAGE),
            (HUGE_PAGE, PAGE, 2 * HUGE_PAGE),
            (5 * PAGE, 5 * PAGE, PAGE),
            (HUGE_PAGE, 0, 2 * HUGE_PAGE + 7 * PAGE),
        ] {
            let (mut iommu, memory) = (Iommu::new(512), memory(offset + length));
            iommu.map(address, &memory, offset, length, Rights::Read).unwrap();
            let of = |directory: &Directory| if let Directory::Small(pages) = directory { pages.len() } else { 1 };
            let found: usize = iommu.directories.values().map(of).sum();
            assert_eq!(entries_of(address, offset, length), found as u64, "{address:#x} {offset:#x} {length:#x}");
        }
    }

    #[test]
    fn pages_that_are_not_congruent_stay_small() {
        let (mut iommu, memory) = (Iommu::new(512), memory(2 * HUGE_PAGE));
        iommu.map(0, &memory, PAGE, HUGE_PAGE, Rights::ReadWrite).unwrap();
        assert!(matches!(&iommu.directories[&0], Directory::Small(pages) if pages.len() == SMALL_PER_HUGE));
        assert_eq!(iommu.translate(PAGE, false).unwrap().offset, 2 * PAGE);
    }

    #[test]
    fn unmapped_page_leaves_the_tlb() {
        let (mut iommu, memory) = (Iommu::new(512), memory(HUGE_PAGE));
        iommu.map(0, &memory, 0, HUGE_PAGE, Rights::ReadWrite).unwrap();
        assert!(!iommu.translate(0, true).unwrap().hit);
        iommu.unmap(0, HUGE_PAGE).unwrap();
        assert!(iommu.translate(0, true).is_err());
        iommu.map(0, &memory, 0, HUGE_PAGE, Rights::ReadWrite).unwrap();
        assert!(!iommu.translate(0, true).unwrap().hit);
    }
}
