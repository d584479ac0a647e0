//! The mapped ranges of a session's arena, as they were mapped.

use std::collections::BTreeMap;

use rustix::io::Errno;

use crate::request::Range;

#[derive(Debug)]
struct MappedRange {
    length: u64,
    /// True while a request about the range has no answer.
    busy: bool,
}

#[derive(Debug, Default)]
pub struct Ranges(BTreeMap<u64, MappedRange>);

impl Ranges {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Claims a range that is about to be mapped.
    pub fn claim(&mut self, range: Range) -> Result<(), Errno> {
        let before = self.0.range(..range.end()).next_back();
        if before.is_some_and(|(start, entry)| start + entry.length > range.offset) {
            return Err(Errno::EXIST);
        }
        self.0.insert(range.offset, MappedRange { length: range.length, busy: true });
        Ok(())
    }

    /// Claims what is about to be unmapped: whole mapped ranges without gaps.
    pub fn withdraw(&mut self, range: Range) -> Result<(), Errno> {
        let mut end = range.offset;
        for (start, entry) in self.0.range(range.offset..range.end()) {
            if *start != end {
                return Err(Errno::INVAL);
            }
            if entry.busy {
                return Err(Errno::BUSY);
            }
            end = start + entry.length;
        }
        if end != range.end() {
            return Err(Errno::INVAL);
        }
        self.0.range_mut(range.offset..range.end()).for_each(|(_, entry)| entry.busy = true);
        Ok(())
    }

    /// Notes the answer of the request about a range.
    pub fn settle(&mut self, range: Range, mapped: bool) {
        if mapped {
            self.0.range_mut(range.offset..range.end()).for_each(|(_, entry)| entry.busy = false);
        } else {
            let starts: Vec<u64> = self.0.range(range.offset..range.end()).map(|(start, _)| *start).collect();
            for start in starts {
                self.0.remove(&start);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(first: u64, count: u64) -> Range {
        Range::new(first * 4096, count * 4096).unwrap()
    }

    #[test]
    fn nothing_is_mapped_twice() {
        let mut ranges = Ranges::default();
        assert_eq!(ranges.claim(pages(4, 4)), Ok(()));
        for (first, count) in [(4, 4), (3, 2), (7, 1), (5, 1), (0, 100)] {
            assert_eq!(ranges.claim(pages(first, count)), Err(Errno::EXIST));
        }
        assert_eq!((ranges.claim(pages(8, 1)), ranges.claim(pages(3, 1))), (Ok(()), Ok(())));
    }

    #[test]
    fn ranges_are_unmapped_whole() {
        let mut ranges = Ranges::default();
        for range in [pages(0, 2), pages(2, 2), pages(6, 1)] {
            ranges.claim(range).unwrap();
        }
        assert_eq!(ranges.withdraw(pages(0, 2)), Err(Errno::BUSY));
        ranges.settle(pages(0, 7), true);
        for wrong in [pages(0, 1), pages(1, 1), pages(0, 3), pages(0, 7), pages(4, 1), pages(6, 2)] {
            assert_eq!(ranges.withdraw(wrong), Err(Errno::INVAL), "{wrong:?}");
        }
        assert_eq!(ranges.withdraw(pages(0, 4)), Ok(()));
        assert_eq!(ranges.withdraw(pages(2, 2)), Err(Errno::BUSY));
        assert_eq!(ranges.claim(pages(0, 1)), Err(Errno::EXIST), "claimed until the answer");
        ranges.settle(pages(0, 4), false);
        assert_eq!((ranges.claim(pages(0, 1)), ranges.len()), (Ok(()), 2));
    }
}
