//! The memory that a virtual machine shows a device: what of it the card has, and what was refused.

use std::os::fd::OwnedFd;

use aviary_card::{PAGE, Rights};
use rustix::io::Errno;

use super::card::{Card, CardLost};
use crate::link::Request;

/// A mapping of 2 MB of the card's IO page table, which an UNMAP of a part of it splits.
const HUGE: u64 = 2 << 20;

/// Unmaps that wait for a card. More of them unmap all that it has.
const MOST_UNMAPPING: usize = 1024;

/// A file that the card knows.
#[derive(Debug)]
pub(super) struct KnownFile {
    pub device: u64,
    pub inode: u64,
    pub length: u64,
    pub id: u64,
}

/// What happened to the maps of the VMM, since the last reset.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MapCounts {
    /// Maps within the region that the card does not have.
    pub refused: u64,
    /// Address and errno of the first one.
    pub first_refused: (u64, u32),
    /// Maps outside of the region: memory that the guest has not meant for the accelerator.
    pub outside: u64,
    /// Unmaps that took more than they were to: the parts of huge pages that were left needed more entries than the card gives.
    pub lost: u64,
}

/// The memory of one virtual machine.
#[derive(Debug)]
pub struct VmMemory {
    /// The first IO address that goes to the card; `None`: nothing goes there.
    pub(super) base: Option<u64>,
    region_bytes: u64,
    pub(super) files: Vec<KnownFile>,
    pub(super) next_file: u64,
    /// Ranges of which the VMM was told that they are unmapped, and the card has not said so in time.
    pub(super) unmapping: Vec<(u64, u64)>,
    pub counts: MapCounts,
}

/// The part of a range that is in another, as first address and length. Both may end at 2^64.
fn overlap(range: (u64, u64), other: (u64, u64)) -> Option<(u64, u64)> {
    let end = |(address, length): (u64, u64)| u128::from(address) + u128::from(length);
    let (from, to) = (range.0.max(other.0), end(range).min(end(other)));
    let length = to.checked_sub(u128::from(from)).filter(|length| *length > 0)?;
    Some((from, u64::try_from(length).ok()?))
}

impl VmMemory {
    pub fn new(region_bytes: u64) -> VmMemory {
        let (files, unmapping, counts) = (Vec::new(), Vec::new(), MapCounts::default());
        VmMemory { base: None, region_bytes, files, next_file: 0, unmapping, counts }
    }

    pub fn region_bytes(&self) -> u64 {
        self.region_bytes
    }

    pub fn base(&self) -> Option<u64> {
        self.base
    }

    /// The card has taken this BASE.
    pub fn set_base(&mut self, base: u64) {
        self.base = Some(base);
    }

    /// Gives the card what is in the region. What it refuses, or does not answer, is noted: the VMM could not tell the guest.
    ///
    /// # Errors
    /// The card is lost.
    pub fn map(
        &mut self,
        card: &mut impl Card,
        (address, size): (u64, u64),
        file: Option<OwnedFd>,
        offset: u64,
        rights: Rights,
    ) -> Result<(), CardLost> {
        let inside = self.base.and_then(|base| overlap((address, size), (base, self.region_bytes)));
        let Some(inside) = inside else {
            self.counts.outside += 1;
            return Ok(());
        };
        let mapped = match file {
            _ if inside != (address, size) => Ok(Err(Errno::INVAL)),
            None => Ok(Err(Errno::BADF)),
            Some(file) => self.map_file(card, (address, size), file, offset, rights),
        };
        let refused = match mapped {
            Ok(done) => done.err(),
            // One that has ended is told by STATUS.
            Err(CardLost) => card.lives().then_some(Errno::TIMEDOUT),
        };
        if let Some(errno) = refused {
            if self.counts.refused == 0 {
                self.counts.first_refused = (address, errno.raw_os_error().unsigned_abs());
            }
            self.counts.refused += 1;
        }
        mapped.map(|_| ())
    }

    fn map_file(
        &mut self,
        card: &mut impl Card,
        (address, length): (u64, u64),
        file: OwnedFd,
        offset: u64,
        rights: Rights,
    ) -> Result<Result<(), Errno>, CardLost> {
        self.finish_unmaps(card)?;
        match self.known(card, file, offset, length)? {
            Ok(memory) => card.ask(&Request::Map { address, length, memory, offset, rights }, None),
            Err(errno) => Ok(Err(errno)),
        }
    }

    /// The card's number of a file, of which it has the bytes up to the end of this range.
    fn known(
        &mut self,
        card: &mut impl Card,
        file: OwnedFd,
        offset: u64,
        size: u64,
    ) -> Result<Result<u64, Errno>, CardLost> {
        let Ok(stat) = rustix::fs::fstat(&file) else { return Ok(Err(Errno::BADF)) };
        let (device, inode) = (stat.st_dev, stat.st_ino);
        let Some(end) = offset.checked_add(size) else { return Ok(Err(Errno::INVAL)) };
        let known =
            self.files.iter().find(|known| (known.device, known.inode) == (device, inode) && known.length >= end);
        if let Some(known) = known {
            return Ok(Ok(known.id));
        }
        // All of the file: a VMM has one for all memory of its machine. One that is too short the card refuses.
        let length = u64::try_from(stat.st_size).unwrap_or(0).max(end) & !(PAGE - 1);
        let id = self.next_file;
        // Whatever becomes of it: a card that answers late has this number.
        self.next_file += 1;
        let wish = Request::Memory { id, length, rights: Rights::ReadWrite };
        if let Err(errno) = card.ask(&wish, Some(file))? {
            return Ok(Err(errno));
        }
        self.files.push(KnownFile { device, inode, length, id });
        Ok(Ok(id))
    }

    /// Takes from the card what it has in a range, whose borders may be any: now, or before anything else is mapped.
    ///
    /// # Errors
    /// The card is lost, or does not answer in time.
    pub fn unmap(&mut self, card: &mut impl Card, range: (u64, u64)) -> Result<(), CardLost> {
        let Some(base) = self.base else { return Ok(()) };
        let Some(inside) = overlap(range, (base, self.region_bytes)) else { return Ok(()) };
        if self.unmapping.len() < MOST_UNMAPPING {
            self.unmapping.push(inside);
        } else {
            self.unmapping = vec![(base, self.region_bytes)];
        }
        self.finish_unmaps(card)
    }

    /// Takes from the card what it has not let go of in time.
    ///
    /// # Errors
    /// As [`VmMemory::unmap`].
    pub fn finish_unmaps(&mut self, card: &mut impl Card) -> Result<(), CardLost> {
        while let Some(range) = self.unmapping.first() {
            let unmapped = unmap_inside(card, *range);
            if !card.lives() {
                // It has nothing any more.
                self.unmapping.clear();
            }
            self.counts.lost += u64::from(unmapped?);
            self.unmapping.drain(..1.min(self.unmapping.len()));
        }
        Ok(())
    }

    /// Takes everything from the card and forgets BASE.
    ///
    /// # Errors
    /// The card is lost.
    pub fn reset(&mut self, card: &mut impl Card) -> Result<(), CardLost> {
        self.unmap(card, (0, u64::MAX))?;
        self.base = None;
        self.counts = MapCounts::default();
        for file in std::mem::take(&mut self.files) {
            let _ = card.ask(&Request::Forget { id: file.id }, None)?;
        }
        Ok(())
    }
}

/// Unmaps a range of the region, which is whole pages: to round outward does not leave it. True: more than that was unmapped. The
/// parts that are left of huge pages may need more entries than the card gives, and the guest has its pages back in any case.
fn unmap_inside(card: &mut impl Card, (address, length): (u64, u64)) -> Result<bool, CardLost> {
    let rounded = |to: u64| {
        let first = address & !(to - 1);
        Request::Unmap { address: first, length: (address + length).next_multiple_of(to) - first }
    };
    let has_no_room = card.ask(&rounded(PAGE), None)? == Err(Errno::TOOBIG);
    if has_no_room {
        let _ = card.ask(&rounded(HUGE), None)?;
    }
    Ok(has_no_room)
}

#[cfg(test)]
mod tests {
    use super::super::card::SlowCard;
    use super::*;

    #[test]
    fn what_a_card_has_not_unmapped_in_time_is_unmapped_before_the_next_map() {
        let mut card = SlowCard { answers: false, lives: true, done: Vec::new() };
        let mut memory = VmMemory::new(1 << 36);
        memory.set_base(1 << 40);
        let file = || Some(rustix::fs::memfd_create("memory", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
        let range = |page: u64| ((1 << 40) + page * PAGE, PAGE);
        assert_eq!(memory.unmap(&mut card, range(1)), Err(CardLost));
        assert_eq!(memory.map(&mut card, range(1), file(), 0, Rights::Read), Err(CardLost));
        let first_refused = (range(1).0, Errno::TIMEDOUT.raw_os_error() as u32);
        assert_eq!(memory.counts, MapCounts { refused: 1, first_refused, ..MapCounts::default() });
        card.answers = true;
        assert_eq!(memory.map(&mut card, range(1), file(), 0, Rights::Read), Ok(()));
        let unmap = Request::Unmap { address: range(1).0, length: PAGE };
        assert!(matches!(&card.done[..], [first, Request::Memory { .. }, Request::Map { .. }] if *first == unmap));
        // Too many to remember.
        card.answers = false;
        assert!((0..=MOST_UNMAPPING as u64).all(|page| memory.unmap(&mut card, range(page)).is_err()));
        assert_eq!(memory.unmapping, [(1 << 40, 1 << 36)]);
        card.lives = false;
        assert_eq!(memory.finish_unmaps(&mut card), Err(CardLost));
        assert_eq!(memory.finish_unmaps(&mut card), Ok(()));
    }

    #[test]
    fn ranges_overlap_up_to_the_end_of_all_addresses() {
        assert_eq!(overlap((0, 10), (5, 10)), Some((5, 5)));
        assert_eq!(overlap((0, 5), (5, 10)), None);
        assert_eq!(overlap((8, 2), (5, 10)), Some((8, 2)));
        // An unmap of all that the address space has, as QEMU cuts it.
        assert_eq!(overlap((0xfef0_0000, 0xffff_ffff_0110_0000), (1 << 40, 1 << 36)), Some((1 << 40, 1 << 36)));
        assert_eq!(overlap((u64::MAX, 1), (u64::MAX - 1, 2)), Some((u64::MAX, 1)));
    }
}
