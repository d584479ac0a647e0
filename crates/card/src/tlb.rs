//! The model of the IOTLB: direct-mapped, for pages of 4 KB and of 2 MB alike. A model, no measurement of a product.

/// One translation, by its page: IO virtual address of the page and log2 of its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageName {
    pub number: u64,
    pub bits: u32,
}

/// The IOTLB.
#[derive(Debug)]
pub struct Tlb {
    entries: Vec<Option<PageName>>,
    hits: u64,
    misses: u64,
}

impl Tlb {
    /// At least one entry.
    pub fn new(entries: usize) -> Self {
        Self { entries: vec![None; entries.max(1)], hits: 0, misses: 0 }
    }

    fn index(&self, page: PageName) -> usize {
        // The lowest bits of the page's number: 21-29 or 12-20 of the address with 512 entries.
        usize::try_from(page.number % self.entries.len() as u64).unwrap_or(0)
    }

    /// Is the page there? If not, it is afterwards.
    pub fn look_up(&mut self, page: PageName) -> bool {
        let index = self.index(page);
        let entry = &mut self.entries[index];
        let hit = *entry == Some(page);
        *entry = Some(page);
        *(if hit { &mut self.hits } else { &mut self.misses }) += 1;
        hit
    }

    /// Forgets a page.
    pub fn drop_page(&mut self, page: PageName) {
        let index = self.index(page);
        if self.entries[index] == Some(page) {
            self.entries[index] = None;
        }
    }

    /// Look-ups that found their page, and those that did not.
    pub fn counts(&self) -> (u64, u64) {
        (self.hits, self.misses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_one_reach_apart_evict_each_other() {
        let mut tlb = Tlb::new(512);
        let page = |number| PageName { number, bits: 21 };
        assert!(!tlb.look_up(page(3)));
        assert!(tlb.look_up(page(3)));
        assert!(!tlb.look_up(page(3 + 512)));
        assert!(!tlb.look_up(page(3)));
        assert!(!tlb.look_up(page(4)));
        assert!(tlb.look_up(page(3)));
        assert_eq!(tlb.counts(), (2, 4));
    }

    #[test]
    fn dropped_page_misses_and_its_neighbour_does_not() {
        let mut tlb = Tlb::new(512);
        let page = |number, bits| PageName { number, bits };
        tlb.look_up(page(3, 21));
        tlb.look_up(page(4, 12));
        // Another page at the same place is not the one that is dropped.
        tlb.drop_page(page(4, 21));
        tlb.drop_page(page(3, 21));
        assert!(tlb.look_up(page(4, 12)));
        assert!(!tlb.look_up(page(3, 21)));
    }
}
