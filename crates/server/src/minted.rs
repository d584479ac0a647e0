//! Slots of the ids that the guest chooses.
//!
//! A guest may name any of them at any time, so a page of slots is made when one of its ids is used first: what one
//! message can make the server spend is a page, and all of them together are bounded.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use aviary_wire::HandleId;

use crate::handles::Slot;

const PAGE: usize = 1024;

#[derive(Default)]
struct Place {
    slot: Slot,
    /// Of the last object that was here, 0: none. Changes under the table's lock.
    generation: AtomicU32,
}

type Page = Box<[Place]>;

#[derive(Default)]
pub struct MintedSlots {
    pages: OnceLock<Box<[OnceLock<Page>]>>,
}

impl MintedSlots {
    fn place(&self, index: u32) -> Option<&Place> {
        let index = (index & !HandleId::MINTED) as usize;
        self.pages.get()?.get(index / PAGE)?.get()?.get(index % PAGE)
    }

    pub fn get(&self, index: u32) -> Option<&Slot> {
        self.place(index).map(|place| &place.slot)
    }

    /// The generation of the last object that had this index; 0: there was none.
    pub fn generation(&self, index: u32) -> u32 {
        self.place(index).map_or(0, |place| place.generation.load(Ordering::Relaxed))
    }

    /// The slot of an index below `HandleId::MOST_MINTED` for an object of this generation.
    pub fn begin(&self, index: u32, generation: u32) -> &Slot {
        let at = (index & !HandleId::MINTED) as usize;
        let pages = self
            .pages
            .get_or_init(|| (0..(HandleId::MOST_MINTED as usize).div_ceil(PAGE)).map(|_| OnceLock::new()).collect());
        let page = pages[at / PAGE].get_or_init(|| (0..PAGE).map(|_| Place::default()).collect());
        let place = &page[at % PAGE];
        place.generation.store(generation, Ordering::Relaxed);
        &place.slot
    }
}
