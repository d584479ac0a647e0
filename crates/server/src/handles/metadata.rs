//! The structures that C code keeps with objects.

use aviary_wire::HandleId;

use super::entry::Metadata;
use super::{HandleTable, HandleTableState};

/// Structures of ended objects before the table looks for those that can be freed.
pub(super) const MIN_RETIRED: usize = 32;

impl HandleTable {
    /// The zero-initialised structure of the object; stays where it is until the object has ended and the caller's lane
    /// does not announce the id any longer. `None` for an object whose type carries another kind of structure: it may be
    /// smaller.
    pub fn metadata(&self, id: u64, kind: u32) -> Option<*mut u8> {
        let carried = self.types.get(HandleId::type_of_word(id))?.metadata?;
        if carried.kind != kind {
            return None;
        }
        self.with(id, |entry| {
            let words = carried.size.div_ceil(8);
            let block = entry.metadata.get_or_insert_with(|| vec![0; words].into_boxed_slice());
            block.as_mut_ptr().cast()
        })
    }

    /// The structure of the object with this native value, of the first type that carries this kind and has such an object.
    /// `announce` is given the object's id before its structure is looked up.
    pub fn metadata_of_any(&self, native: u64, kind: u32, announce: impl FnOnce(u64)) -> Option<*mut u8> {
        let carriers = self.types.iter().zip(0..).filter(|(info, _)| info.metadata.is_some_and(|m| m.kind == kind));
        let id = carriers.filter_map(|(_, ty)| self.id(ty, native)).next()?;
        announce(id);
        self.metadata(id, kind)
    }

    /// The id of the object with this native value, of the first type that has such an object.
    pub fn id_of_any(&self, native: u64) -> Option<u64> {
        (0..self.types.len() as u32).find_map(|ty| self.id(ty, native))
    }

    /// Frees the structure of an ended object when no call has a pointer to it any longer. There are never more of them
    /// than announced ids, and as many again that nobody has looked at yet.
    pub(super) fn retire(&self, state: &mut HandleTableState, id: u64, metadata: Metadata) {
        state.retired.push((id, metadata));
        if state.retired.len() > state.retired_limit {
            let used = self.in_use.ids();
            state.retired.retain(|(id, _)| used.contains(id));
            state.retired_limit = 2 * state.retired.len() + MIN_RETIRED;
        }
    }
}
