//! Slots of the ids that the guest chooses.
//!
//! A guest may name any of them at any time, so a page of slots is made when one of its ids is used first: what one
//! message can make the server spend is a page, and all of them together are bounded.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use aviary_wire::HandleId;

use super::entry::HandleSlot;

const SLOTS_PER_PAGE: usize = 1024;

#[derive(Default)]
struct GuestSlot {
    slot: HandleSlot,
    /// Of the last object that was here, 0: none. Changes under the table's lock.
    generation: AtomicU32,
}

type GuestSlotPage = Box<[GuestSlot]>;

#[derive(Default)]
pub struct GuestSlots {
    pages: OnceLock<Box<[OnceLock<GuestSlotPage>]>>,
}

impl GuestSlots {
    fn place(&self, index: u32) -> Option<&GuestSlot> {
        let index = (index & !HandleId::MINTED) as usize;
        self.pages.get()?.get(index / SLOTS_PER_PAGE)?.get()?.get(index % SLOTS_PER_PAGE)
    }

    pub fn get(&self, index: u32) -> Option<&HandleSlot> {
        self.place(index).map(|place| &place.slot)
    }

    /// The generation of the last object that had this index; 0: there was none.
    pub fn generation(&self, index: u32) -> u32 {
        self.place(index).map_or(0, |place| place.generation.load(Ordering::Relaxed))
    }

    /// Indices that were used, without [`HandleId::MINTED`], and the generation of the last object there.
    pub fn used(&self) -> impl Iterator<Item = (u32, u32)> {
        let pages = self.pages.get().into_iter().flatten().enumerate();
        let pages = pages.filter_map(|(number, page)| Some((number, page.get()?)));
        let places =
            pages.flat_map(|(number, page)| page.iter().enumerate().map(move |(at, place)| (number, at, place)));
        places.filter_map(|(number, at, place)| {
            let generation = place.generation.load(Ordering::Relaxed);
            (generation > 0).then_some(((number * SLOTS_PER_PAGE + at) as u32, generation))
        })
    }

    /// The slot of an index below `HandleId::MAX_GUEST_IDS` for an object of this generation.
    pub fn begin(&self, index: u32, generation: u32) -> &HandleSlot {
        let at = (index & !HandleId::MINTED) as usize;
        let pages = self.pages.get_or_init(|| {
            (0..(HandleId::MAX_GUEST_IDS as usize).div_ceil(SLOTS_PER_PAGE)).map(|_| OnceLock::new()).collect()
        });
        let page =
            pages[at / SLOTS_PER_PAGE].get_or_init(|| (0..SLOTS_PER_PAGE).map(|_| GuestSlot::default()).collect());
        let place = &page[at % SLOTS_PER_PAGE];
        place.generation.store(generation, Ordering::Relaxed);
        &place.slot
    }
}
