//! The table as a snapshot has it.

use aviary_gate::Charges;
use aviary_state::{ObjectImage, Slot};
use aviary_wire::HandleId;

use super::entry::{HandleEntry, id_of};
use super::{HandleTable, HandleTableState};
use crate::handles::guest_ids::GuestSlots;

/// The slots and live objects of a table.
pub struct TableImage {
    pub slots: Vec<Slot>,
    pub free: Vec<u32>,
    pub guest_slots: Vec<Slot>,
    /// By id.
    pub objects: Vec<LiveObject>,
}

/// A live object, as far as the table knows it.
pub struct LiveObject {
    /// Without identity and holdings.
    pub image: ObjectImage,
    pub native: u64,
    /// Items and amounts.
    pub holding: Vec<(usize, u64)>,
    /// A callback will hand it back, or a call under way ends it.
    pub is_busy: bool,
}

impl HandleTable {
    /// No call is under way.
    pub fn image(&self) -> TableImage {
        let state = self.lock();
        let slots =
            (0..).zip(&state.entries).map(|(index, entry)| Slot { index, generation: entry.generation }).collect();
        let server =
            (0..state.entries.len() as u32).filter_map(|index| Some((index, state.entries.get(index as usize)?)));
        let guest = state.minted.iter().map(|(index, entry)| (*index, entry));
        let mut objects: Vec<LiveObject> =
            server.chain(guest).filter_map(|(index, entry)| self.live_object(&state, index, entry)).collect();
        objects.sort_by_key(|object| object.image.id);
        let free = state.free.iter().copied().collect();
        TableImage { slots, free, guest_slots: used_slots(&self.minted), objects }
    }

    fn live_object(&self, state: &HandleTableState, index: u32, entry: &HandleEntry) -> Option<LiveObject> {
        let slot = self.slot(index)?;
        let id = slot.key.load(std::sync::atomic::Ordering::Relaxed);
        if id == 0 {
            return None;
        }
        debug_assert_eq!(id, id_of(HandleId::type_of_word(id) as u32, entry.generation, index));
        let native = slot.native.load(std::sync::atomic::Ordering::Relaxed);
        let image = ObjectImage {
            id,
            references: entry.references,
            borrowed: entry.borrowed,
            ends_with: state.ends.owners(id).to_vec(),
            ..ObjectImage::default()
        };
        let is_busy = entry.pins > 0 || entry.releasing > 0 || entry.ending.is_some();
        Some(LiveObject { image, native, holding: entry.holding.iter().collect(), is_busy })
    }

    /// Ties amounts to an object that has been made again, instead of those that it has.
    pub fn set_holding(&self, id: u64, holding: Charges) {
        self.with(id, |entry| entry.holding = holding);
    }

    /// References that the guest owns of a live object.
    pub fn references(&self, id: u64) -> Option<u64> {
        self.with(id, |entry| entry.references)
    }
}

fn used_slots(slots: &GuestSlots) -> Vec<Slot> {
    slots.used().map(|(index, generation)| Slot { index: index | HandleId::MINTED, generation }).collect()
}
