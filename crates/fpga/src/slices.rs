//! Places of virtual accelerators in the IO space of 48 bits.

/// Bytes of a virtual accelerator's IO slice.
pub const SLICE_BYTES: u64 = 64 << 30;
/// From the beginning of one place to the next: a slice and a gap, in which the slice is shifted by its port.
const PLACE_BYTES: u64 = 65 << 30;
/// Bytes that an IOTLB of 512 entries for pages of 2 MB covers.
const REACH: u64 = 1 << 30;
/// Places of the IO space.
const PLACES: usize = ((1_u64 << 48) / PLACE_BYTES) as usize;

/// One of the places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlicePlace(usize);

impl SlicePlace {
    /// IO virtual address of the slice there, for a virtual accelerator at this port. Slices of ports that run at the same time
    /// begin at different parts of the IOTLB's reach, so their first `REACH / ports` bytes do not evict each other.
    pub fn base(self, port: usize, ports: usize) -> u64 {
        let part = REACH / ports.max(1) as u64;
        // Whole huge pages.
        self.0 as u64 * PLACE_BYTES + port as u64 * (part & !(aviary_card::HUGE_PAGE - 1))
    }
}

/// The places that are taken.
#[derive(Debug)]
pub struct SlicePlaces {
    taken: Vec<bool>,
}

impl SlicePlaces {
    pub fn new() -> Self {
        Self { taken: vec![false; PLACES] }
    }

    /// The lowest free place.
    pub fn take(&mut self) -> Option<SlicePlace> {
        let place = self.taken.iter().position(|taken| !taken)?;
        self.taken[place] = true;
        Some(SlicePlace(place))
    }

    pub fn give_back(&mut self, place: SlicePlace) {
        self.taken[place.0] = false;
    }

    /// Places that are taken.
    pub fn used(&self) -> usize {
        self.taken.iter().filter(|taken| **taken).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_do_not_overlap_and_end_in_the_io_space() {
        let mut places = SlicePlaces::new();
        let (mut end, mut count) = (0, 0);
        while let Some(place) = places.take() {
            assert!(place.base(0, 16) >= end);
            end = place.base(15, 16) + SLICE_BYTES;
            assert!(end <= 1 << 48);
            count += 1;
        }
        assert_eq!(count, PLACES);
        assert_eq!(places.used(), PLACES);
    }

    #[test]
    fn slices_of_ports_begin_at_different_parts_of_the_tlb() {
        let mut places = SlicePlaces::new();
        let parts: Vec<u64> = (0..8).map(|port| places.take().unwrap().base(port, 8) % REACH).collect();
        assert_eq!(parts, (0..8).map(|port| port * (REACH / 8)).collect::<Vec<u64>>());
    }

    #[test]
    fn lowest_place_that_was_given_back_is_taken_again() {
        let mut places = SlicePlaces::new();
        let first = places.take().unwrap();
        places.take().unwrap();
        places.give_back(first);
        assert_eq!(places.take(), Some(first));
    }
}
