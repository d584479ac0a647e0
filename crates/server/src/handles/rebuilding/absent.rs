//! Objects without a native one: their memory has left the device and the vendor's library has given them back. Their ids,
//! references, charges and ties stay; no call finds them until the calls of the log have made them again.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering;

use aviary_wire::HandleId;

use crate::handles::entry::{HandleEntry, type_of};
use crate::handles::temporary::{Difference, Rebuilding};
use crate::handles::{HandleTable, HandleTableState};

impl HandleTable {
    /// The native object of a live object, which the vendor's library is about to give back. No call is under way that uses
    /// it. `None`: there is no such object.
    pub fn leave(&self, id: u64) -> Option<u64> {
        let mut guard = self.lock();
        let state: &mut HandleTableState = &mut guard;
        let index = self.live(state, id)?;
        let slot = self.slot(index)?;
        let native = slot.native.load(Ordering::Relaxed);
        let entry = if index & HandleId::MINTED != 0 {
            state.minted.remove(&index)?
        } else {
            let entry = state.entries.get_mut(index as usize)?;
            let generation = entry.generation;
            std::mem::replace(entry, HandleEntry::of(generation))
        };
        slot.key.store(0, Ordering::Release);
        if state.by_native.get(&(type_of(id), native)) == Some(&index) {
            state.by_native.remove(&(type_of(id), native));
        }
        // One that was made again and leaves again is as it was at first.
        state.absent.entry(id).or_insert(entry);
        Some(native)
    }

    /// The calls that make the absent objects are about to be made again.
    pub fn begin_remaking(&self) {
        let mut state = self.lock();
        state.rebuilding = Some(Box::new(Rebuilding {
            expected: VecDeque::new(),
            live: state.absent.keys().copied().collect(),
            temporary: HashMap::new(),
            temporary_by_native: HashMap::new(),
            difference: None,
        }));
        self.rebuilds.store(true, Ordering::SeqCst);
    }

    /// Not all of them can be made: those that were can leave again.
    pub fn stop_remaking(&self) {
        let mut state = self.lock();
        self.rebuilds.store(false, Ordering::SeqCst);
        state.rebuilding = None;
    }

    /// They have been made, and all absent objects are there as before.
    ///
    /// # Errors
    /// One is missing: all are absent still, and those that were made can leave again.
    pub fn end_remaking(&self) -> Result<(), Difference> {
        self.stop_remaking();
        let mut guard = self.lock();
        let state: &mut HandleTableState = &mut guard;
        if let Some(expected) = state.absent.keys().copied().find(|id| self.live(state, *id).is_none()) {
            return Err(Difference::Missing { expected });
        }
        for (id, before) in std::mem::take(&mut state.absent) {
            let Some(entry) = self.live(state, id).and_then(|index| state.entry(index)) else { continue };
            // What C code keeps with it is what the calls have left there.
            let metadata = entry.metadata.take();
            *entry = HandleEntry { metadata, ..before };
            self.show_lacking(state, id);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{HandleTypeInfo, Role};
    use aviary_gate::Charges;

    static TYPES: [HandleTypeInfo; 1] = [HandleTypeInfo::plain("object", 8)];

    #[test]
    fn object_that_was_absent_has_its_id_its_references_and_its_charges() {
        let table = HandleTable::new(&TYPES);
        let [kept, gone] = [1, 2].map(|native| table.publish(0, native, Role::Allocate).unwrap());
        table.retain(gone);
        let mut holding = Charges::default();
        holding.add(0, 7);
        table.hold(gone, &mut holding);
        table.refer(kept, 0, &[gone]);
        assert_eq!(table.leave(gone), Some(2));
        assert_eq!((table.native(0, gone), table.id(0, 2), table.leave(gone)), (None, None, None));
        assert_eq!(table.native(0, kept), Some(1));
        // Its place is not another's, and its native value may be.
        let other = table.publish(0, 2, Role::Allocate).unwrap();
        assert!(other != gone && table.len() == 3);
        table.begin_remaking();
        table.expect(&[gone]);
        assert_eq!(table.publish(0, 3, Role::Allocate), Ok(gone));
        assert_eq!(table.references(gone), Some(1));
        table.retain(gone);
        table.end_remaking().unwrap();
        assert_eq!((table.native(0, gone), table.id(0, 3), table.references(gone)), (Some(3), Some(gone), Some(2)));
        assert!(!table.is_lacking(kept), "a referrer does not lack what is back");
        assert!(table.release(gone, false).is_none());
        assert_eq!(table.release(gone, false).unwrap().holding.iter().collect::<Vec<_>>(), [(0, 7)]);
        assert!(table.is_lacking(kept));
    }

    #[test]
    fn objects_are_absent_until_all_of_them_are_there() {
        let table = HandleTable::new(&TYPES);
        let [first, second] = [1, 2].map(|native| table.publish(0, native, Role::Allocate).unwrap());
        [first, second].into_iter().for_each(|id| assert!(table.leave(id).is_some()));
        table.begin_remaking();
        table.expect(&[first]);
        table.publish(0, 11, Role::Allocate).unwrap();
        assert_eq!(table.end_remaking(), Err(Difference::Missing { expected: second }));
        assert_eq!(table.leave(first), Some(11));
        table.begin_remaking();
        for (native, id) in [(21, first), (22, second)] {
            table.expect(&[id]);
            assert_eq!(table.publish(0, native, Role::Allocate), Ok(id));
        }
        table.end_remaking().unwrap();
        assert_eq!([first, second].map(|id| table.native(0, id)), [Some(21), Some(22)]);
    }
}
