use std::sync::atomic::AtomicBool;

use super::entry::Ending;
use super::metadata::MIN_RETIRED;
use super::*;
use crate::api::Metadata;
use aviary_wire::NOT_A_HANDLE;

/// Two types with structures of their own.
static CARRIERS: [HandleTypeInfo; 2] = [
    HandleTypeInfo { metadata: Some(Metadata { kind: 1, size: 12 }), ..HandleTypeInfo::plain("first", 8) },
    HandleTypeInfo { metadata: Some(Metadata { kind: 2, size: 4 }), ..HandleTypeInfo::plain("second", 8) },
];

#[test]
fn slots_cover_every_index_once() {
    assert_eq!(place(0), (0, 0));
    assert_eq!(place(1023), (0, 1023));
    assert_eq!(place(1024), (1, 0));
    assert_eq!(place(3071), (1, 2047));
    assert_eq!(place(3072), (2, 0));
    assert_eq!(place(MAX_HANDLES as u32 - 1).0, SEGMENTS - 1);
    assert_eq!(place(MAX_HANDLES as u32).0, SEGMENTS);
}

#[test]
fn a_handle_is_found_by_its_type_only() {
    let table = HandleTable::new(&[]);
    let id = table.publish(3, 0xabc, Role::Allocate).unwrap();
    assert_eq!(table.native(3, id), Some(0xabc));
    assert_eq!(table.native(2, id), None);
    assert_eq!(table.native(3, id + 1), None);
    assert_eq!(table.native(3, NOT_A_HANDLE), None);
    assert_eq!(table.native(3, id ^ (1 << 32)), None, "other generation");
    assert_eq!(table.native(3, 0), Some(0));
}

#[test]
fn any_word_is_either_the_live_id_or_nothing() {
    let table = HandleTable::new(&[]);
    let id = table.publish(1, 7, Role::Allocate).unwrap();
    for shift in 0..64 {
        assert_eq!(table.native(type_of(id ^ (1 << shift)), id ^ (1 << shift)), None);
    }
}

#[test]
fn an_ended_handle_stays_dead_when_its_slot_is_used_again() {
    let table = HandleTable::new(&[]);
    let old = table.publish(0, 1, Role::Allocate).unwrap();
    assert!(table.release(old, false).is_some());
    let new = table.publish(0, 2, Role::Allocate).unwrap();
    assert_eq!(index_of(old), index_of(new));
    assert_eq!(table.native(0, old), None);
    assert_eq!(table.native(0, new), Some(2));
    assert!(table.release(old, true).is_none());
    assert_eq!(table.native(0, new), Some(2));
}

#[test]
fn references_are_counted_and_the_last_one_ends_it() {
    let table = HandleTable::new(&[]);
    let id = table.publish(0, 1, Role::Allocate).unwrap();
    assert_eq!(table.publish(0, 1, Role::Allocate).unwrap(), id);
    table.retain(id);
    assert!(table.release(id, false).is_none());
    assert!(table.release(id, false).is_none());
    assert!(table.release(id, false).is_some());
    assert!(table.is_empty());
}

#[test]
fn a_borrowed_handle_survives_retain_and_release() {
    let table = HandleTable::new(&[]);
    let id = table.publish(0, 1, Role::Borrow).unwrap();
    table.retain(id);
    assert!(table.release(id, false).is_none());
    assert!(table.release(id, false).is_none());
    assert_eq!(table.native(0, id), Some(1));
    assert!(table.release(id, true).is_some());
}

#[test]
fn a_reused_native_value_gets_its_own_id_while_the_old_one_is_ending() {
    let table = HandleTable::new(&[]);
    let old = table.publish(0, 1, Role::Allocate).unwrap();
    assert!(table.ending(old, false, &table.in_use.lane(), || false).is_ok());
    let new = table.publish(0, 1, Role::Allocate).unwrap();
    assert_ne!(old, new);
    assert!(table.release(old, false).is_some());
    assert_eq!(table.native(0, new), Some(1));
    assert_eq!(table.id(0, 1), Some(new));
}

/// One thread ends what is at an address while others are given that address, as a vendor's library does.
#[test]
fn threads_that_share_an_address_have_an_object_each() {
    let table = HandleTable::new(&[]);
    let taken = AtomicBool::new(false);
    let use_address = || {
        let own = table.in_use.lane();
        for _ in 0..50_000 {
            while taken.swap(true, Ordering::Acquire) {
                std::hint::spin_loop();
            }
            let id = table.publish(0, 1, Role::Allocate).unwrap();
            assert_eq!(table.native(0, id), Some(1), "no other thread's object");
            assert_eq!(table.ending(id, false, &own, || false), Ok(Some(Ending::Last)));
            taken.store(false, Ordering::Release);
            assert!(table.release_ending(id, false).is_some());
        }
    };
    std::thread::scope(|scope| (0..2).for_each(|_| drop(scope.spawn(use_address))));
    assert!(table.is_empty());
}

#[test]
fn a_spared_handle_is_shared_again() {
    let table = HandleTable::new(&[]);
    let id = table.publish(0, 1, Role::Allocate).unwrap();
    assert_eq!(table.ending(id, false, &table.in_use.lane(), || false), Ok(Some(Ending::Last)));
    assert_eq!(table.native(0, id), None, "no call begins to use an object that is about to end");
    table.spared(id);
    assert_eq!(table.native(0, id), Some(1));
    assert_eq!(table.publish(0, 1, Role::Allocate).unwrap(), id);
}

#[test]
fn an_object_ends_after_the_calls_that_use_it() {
    let table = HandleTable::new(&[]);
    let (user, own) = (table.in_use.lane(), table.in_use.lane());
    let id = table.publish(0, 1, Role::Allocate).unwrap();
    let owned = table.publish_owned(0, 2, Role::Allocate, &[id]).unwrap();
    user.announce(owned);
    assert_eq!(table.native(0, owned), Some(2));
    assert_eq!(table.ending(id, false, &own, || false), Err(Busy), "what ends along with it is used");
    assert_eq!((table.native(0, id), table.native(0, owned)), (Some(1), Some(2)));
    let mut waits = 0;
    let wait = || {
        waits += 1;
        assert!(table.native(0, id).is_none() && table.native(0, owned).is_none(), "no new user");
        user.forget_from(0);
        true
    };
    assert_eq!(table.ending(id, false, &own, wait), Ok(Some(Ending::Last)));
    assert_eq!(waits, 1);
    assert!(table.release_ending(id, false).is_some() && table.is_empty());
}

#[test]
fn a_lane_does_not_wait_for_itself() {
    let table = HandleTable::new(&[]);
    let own = table.in_use.lane();
    let id = table.publish(0, 1, Role::Allocate).unwrap();
    own.announce(id);
    assert_eq!(table.ending(id, false, &own, || unreachable!()), Ok(Some(Ending::Last)));
}

#[test]
fn an_object_that_was_retained_meanwhile_does_not_end() {
    let table = HandleTable::new(&[]);
    let (user, own) = (table.in_use.lane(), table.in_use.lane());
    let id = table.publish(0, 1, Role::Allocate).unwrap();
    user.announce(id);
    let retain = || {
        table.retain(id);
        user.forget_from(0);
        true
    };
    assert_eq!(table.ending(id, false, &own, retain), Ok(Some(Ending::OneOfMany)));
    assert_eq!(table.native(0, id), Some(1));
    assert!(table.release_ending(id, false).is_none());
    assert_eq!(table.native(0, id), Some(1));
}

#[test]
fn the_last_of_two_releases_at_a_time_waits_for_the_other() {
    let table = HandleTable::new(&[]);
    let (first, second) = (table.in_use.lane(), table.in_use.lane());
    let id = table.publish(0, 1, Role::Allocate).unwrap();
    table.retain(id);
    first.announce(id);
    assert_eq!(table.ending(id, false, &first, || false), Ok(Some(Ending::OneOfMany)));
    let finish_first = || {
        assert!(table.release_ending(id, false).is_none());
        first.forget_from(0);
        true
    };
    second.announce(id);
    assert_eq!(table.ending(id, false, &second, finish_first), Ok(Some(Ending::Last)));
    assert!(table.release_ending(id, false).is_some());
}

#[test]
fn a_structure_stays_while_a_call_has_a_pointer_to_it() {
    let table = HandleTable::new(&CARRIERS);
    let user = table.in_use.lane();
    let id = table.publish(0, 1, Role::Allocate).unwrap();
    user.announce(id);
    let block = table.metadata(id, 1).unwrap();
    table.release(id, true);
    for native in 2..200 {
        let other = table.publish(0, native, Role::Allocate).unwrap();
        table.metadata(other, 1).unwrap();
        table.release(other, true);
    }
    // SAFETY: the block stays as long as the id is announced.
    unsafe { block.write_bytes(0xff, 8) };
    assert!(table.lock().retired.len() <= 2 * MIN_RETIRED, "the others are freed");
    assert!(table.lock().retired.iter().any(|(retired, _)| *retired == id));
}

#[test]
fn a_used_up_slot_is_retired() {
    let table = HandleTable::new(&[]);
    let id = table.publish(0, 1, Role::Allocate).unwrap();
    table.lock().entries[0].generation = HandleId::MAX_GENERATION;
    let last = id_of(0, HandleId::MAX_GENERATION, 0);
    table.slot(0).unwrap().key.store(last, Ordering::Release);
    assert!(table.release(last, false).is_some());
    let next = table.publish(0, 2, Role::Allocate).unwrap();
    assert_eq!(index_of(next), Some(1));
    assert_eq!(table.native(0, id), None);
}

#[test]
fn metadata_is_zero_stable_and_gone_with_the_object() {
    let table = HandleTable::new(&CARRIERS);
    let id = table.publish(0, 1, Role::Allocate).unwrap();
    let block = table.metadata(id, 1).unwrap();
    for i in 0..1000 {
        table.publish(0, 100 + i, Role::Allocate).unwrap();
    }
    assert_eq!(table.metadata(id, 1), Some(block));
    assert_eq!(table.metadata_of_any(1, 1, drop), Some(block));
    table.release(id, false);
    assert_eq!(table.metadata(id, 1), None);
}

/// An object of the second type carries 4 bytes where code for the first one would write 12.
#[test]
fn metadata_of_another_kind_is_not_found() {
    let table = HandleTable::new(&CARRIERS);
    let first = table.publish(0, 1, Role::Allocate).unwrap();
    let second = table.publish(1, 2, Role::Allocate).unwrap();
    assert!(table.metadata(first, 1).is_some() && table.metadata(second, 2).is_some());
    for (id, native, other) in [(first, 1, 2), (second, 2, 1)] {
        assert_eq!((table.metadata(id, other), table.metadata(id, 0)), (None, None));
        assert_eq!((table.metadata_of_any(native, other, drop), table.metadata_of_any(native, 0, drop)), (None, None));
    }
    // One native value, objects of both types: each kind finds its own.
    let same = table.publish(1, 1, Role::Allocate).unwrap();
    assert_eq!(table.metadata_of_any(1, 2, drop), table.metadata(same, 2));
    assert_eq!(table.metadata_of_any(1, 1, drop), table.metadata(first, 1));
}

#[test]
fn charges_of_an_object_are_returned_at_its_end() {
    let table = HandleTable::new(&[]);
    let id = table.publish(0, 1, Role::Allocate).unwrap();
    let mut holding = Charges::default();
    holding.add(0, 64);
    assert!(table.hold(id, &mut holding));
    assert_eq!(table.take(id, 0, 4), 4);
    let mut left = table.release(id, false).unwrap().holding;
    assert_eq!(left.take(0, 100), 60);
    assert!(!table.hold(id, &mut left));
}

#[test]
fn readers_never_see_another_objects_value() {
    let table = HandleTable::new(&[]);
    let ids = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for round in 0..20_000u64 {
                let id = table.publish(0, round + 1, Role::Allocate).unwrap();
                ids.lock().unwrap().push((id, round + 1));
                table.release(id, true);
            }
        });
        while !writer.is_finished() {
            let sample = ids.lock().unwrap().last().copied();
            if let Some((id, native)) = sample
                && let Some(seen) = table.native(0, id)
            {
                assert_eq!(seen, native);
            }
        }
    });
}

#[test]
fn only_predefined_values_cross_as_they_are() {
    static TYPES: [HandleTypeInfo; 2] = [
        HandleTypeInfo { predefined: &[1, 2], ..HandleTypeInfo::plain("stream", 8) },
        HandleTypeInfo::plain("event", 8),
    ];
    let table = HandleTable::new(&TYPES);
    assert_eq!(table.native(0, 1), Some(1));
    assert_eq!(table.native(0, 2), Some(2));
    assert_eq!(table.native(1, 1), None);
    assert!((3..=2 * MAX_PREDEFINED).all(|word| table.native(0, word).is_none()));
    assert_eq!(table.publish(0, 2, Role::Allocate), Ok(2), "the library answers it");
    assert!(table.is_empty() && table.id(0, 2).is_none());
    let object = table.publish(1, 2, Role::Allocate).unwrap();
    assert_eq!(table.native(1, object), Some(2), "an address like any other where nothing is predefined");
}

fn chosen(ty: u8, generation: u32, index: u32) -> u64 {
    HandleId { ty, generation, index: HandleId::MINTED | index }.to_word()
}

#[test]
fn a_guest_chooses_newer_ids_of_its_own_half_only() {
    let table = HandleTable::new(&CARRIERS);
    let own = table.publish(0, 0x50, Role::Allocate).unwrap();
    assert!(!table.may_adopt(0, own) && !table.may_adopt(0, own + (1 << 32)));
    assert!(!table.may_adopt(1, chosen(0, 1, 0)), "another type");
    assert!(!table.may_adopt(0, chosen(0, 1, HandleId::MAX_GUEST_IDS)));
    let id = chosen(0, 3, HandleId::MAX_GUEST_IDS - 1);
    assert!(table.may_adopt(0, id));
    assert!(table.adopt(0, id, 0x60, &[]).unwrap().is_none());
    assert_eq!((table.native(0, id), table.native(1, id), table.len()), (Some(0x60), None, 2));
    assert_eq!(table.id(0, 0x60), Some(id));
    assert_eq!(table.publish(0, 0x60, Role::Borrow), Ok(id), "a reply that mentions it says its id");
    assert!(table.metadata(id, 1).is_some());
    assert!(table.adopt(0, id, 0x61, &[]).is_none() && !table.may_adopt(0, chosen(0, 2, HandleId::MAX_GUEST_IDS - 1)));
    assert!(table.release(id, false).is_some());
    assert_eq!((table.native(0, id), table.len(), table.id(0, 0x60)), (None, 1, None));
    assert!(!table.may_adopt(0, id), "an ended id never comes back");
    assert!(table.may_adopt(0, id + (1 << 32)));
}

#[test]
fn a_newer_object_ends_what_the_guest_has_given_up() {
    let table = HandleTable::new(&[]);
    let (old, new) = (chosen(1, 1, 7), chosen(2, 2, 7));
    assert!(table.adopt(1, old, 0x10, &[]).unwrap().is_none());
    let ended = table.adopt(2, new, 0x20, &[]).unwrap().unwrap();
    assert_eq!(ended.id, old);
    assert_eq!((table.native(1, old), table.native(2, new), table.len()), (None, Some(0x20), 1));
    assert!(table.release(old, true).is_none(), "a late end of the old one");
    assert_eq!(table.native(2, new), Some(0x20));
}

#[test]
fn two_ids_may_name_one_object() {
    let table = HandleTable::new(&[]);
    let (a, b) = (chosen(0, 1, 0), chosen(0, 1, 1));
    table.adopt(0, a, 0x10, &[]).unwrap();
    table.adopt(0, b, 0x10, &[]).unwrap();
    assert!(table.release(a, false).is_some());
    assert_eq!((table.native(0, b), table.id(0, 0x10)), (Some(0x10), Some(b)));
}

#[test]
fn dependent_objects_end_with_their_owner_and_return_their_charges() {
    let table = HandleTable::new(&CARRIERS);
    let owner = table.publish(0, 1, Role::Allocate).unwrap();
    let inner = table.publish_owned(1, 2, Role::Borrow, &[owner]).unwrap();
    let deep = table.publish_owned(1, 3, Role::Allocate, &[inner]).unwrap();
    let apart = table.publish(1, 4, Role::Borrow).unwrap();
    table.retain(deep);
    let mut holding = Charges::default();
    holding.add(0, 64);
    assert!(table.hold(deep, &mut holding) && table.metadata(inner, 2).is_some());
    assert_eq!(table.publish_owned(1, 2, Role::Borrow, &[owner]), Ok(inner), "the same as before");
    let ended = table.release(owner, true).unwrap();
    let mut along: Vec<u64> = ended.along.iter().map(|e| e.id).collect();
    along.sort_unstable();
    let mut expected = [inner, deep];
    expected.sort_unstable();
    assert_eq!((ended.id, along), (owner, expected.to_vec()));
    let mut held = ended.along.into_iter().find(|e| e.id == deep).unwrap().holding;
    assert_eq!(held.take(0, 100), 64);
    assert!([inner, deep].iter().all(|id| table.native(1, *id).is_none() && table.metadata(*id, 2).is_none()));
    assert_eq!((table.native(1, apart), table.id(1, 2), table.len()), (Some(4), None, 1));
    let owner = table.publish(0, 1, Role::Allocate).unwrap();
    assert_ne!(table.publish_owned(1, 2, Role::Borrow, &[owner]), Ok(inner), "the same address, another object");
}

#[test]
fn an_address_used_again_while_its_owner_is_ending_is_another_object() {
    for role in [Role::Borrow, Role::Allocate] {
        let table = HandleTable::new(&[]);
        let old = table.publish(0, 1, Role::Allocate).unwrap();
        let inner = table.publish_owned(1, 2, Role::Borrow, &[old]).unwrap();
        let below = table.publish_owned(1, 3, role, &[inner]).unwrap();
        assert!(table.ending(old, true, &table.in_use.lane(), || false).is_ok());
        let new = table.publish(0, 5, Role::Allocate).unwrap();
        let other = table.publish_owned(1, 3, role, &[new]).unwrap();
        assert_ne!(below, other);
        assert_eq!(table.publish(1, 2, Role::Borrow), Ok(inner), "the end may fail");
        assert!(table.release(old, true).is_some());
        assert_eq!((table.native(1, below), table.native(1, other)), (None, Some(3)));
        assert_eq!(table.id(1, 3), Some(other));
    }
}

#[test]
fn an_object_of_two_owners_is_one_object() {
    let table = HandleTable::new(&[]);
    let owners = [1, 2].map(|native| table.publish(0, native, Role::Allocate).unwrap());
    let inner = owners.map(|owner| table.publish_owned(1, 3, Role::Borrow, &[owner]).unwrap());
    assert_eq!(inner[0], inner[1]);
    assert!(table.release(owners[1], true).is_some());
    assert_eq!(table.native(1, inner[0]), None);
    assert!(table.release(owners[0], true).unwrap().along.is_empty());
}

#[test]
fn an_object_whose_owner_has_ended_meanwhile_has_ended_too() {
    let table = HandleTable::new(&[]);
    let owner = table.publish(0, 1, Role::Allocate).unwrap();
    assert!(table.release(owner, true).is_some());
    let inner = table.publish_owned(1, 2, Role::Borrow, &[owner]).unwrap();
    assert_eq!(table.native(1, inner), None);
    assert!(table.adopt(1, chosen(1, 1, 0), 3, &[owner]).unwrap().is_none());
    assert!(table.native(1, chosen(1, 1, 0)).is_none() && table.is_empty());
}

#[test]
fn objects_under_chosen_ids_end_with_others_and_others_with_them() {
    let table = HandleTable::new(&[]);
    let (outer, inner) = (chosen(0, 1, 0), chosen(1, 1, 1));
    table.adopt(0, outer, 1, &[]).unwrap();
    table.adopt(1, inner, 2, &[outer]).unwrap();
    let deep = table.publish_owned(1, 3, Role::Borrow, &[inner]).unwrap();
    // The guest gives the index away: it has ended the object for itself.
    let lost = table.adopt(0, chosen(0, 2, 0), 4, &[]).unwrap().unwrap();
    assert_eq!((lost.id, lost.along.len()), (outer, 2));
    assert!(table.native(1, inner).is_none() && table.native(1, deep).is_none());
}

#[test]
fn the_end_of_an_object_waits_for_calls_through_a_referrer_and_refuses_later_ones() {
    let table = HandleTable::new(&[]);
    let [kernel, buffer, other] = [1, 2, 3].map(|native| table.publish(0, native, Role::Allocate).unwrap());
    let (ender, user) = (table.in_use.lane(), table.in_use.lane());
    table.refer(kernel, 0, &[buffer]);
    user.announce(kernel);
    assert!(!table.is_lacking(kernel));
    let mut waits = 0;
    let wait = || {
        assert!(table.is_lacking(kernel), "a call that begins now is refused");
        assert_eq!(table.usable(0, kernel), Ok(1), "the kernel as such can be used");
        waits += 1;
        user.forget_from(0);
        true
    };
    assert_eq!(table.ending(buffer, false, &ender, wait), Ok(Some(Ending::Last)));
    assert_eq!(waits, 1);
    assert!(table.release_ending(buffer, false).is_some() && table.is_lacking(kernel));
    table.refer(kernel, 0, &[other]);
    assert!(!table.is_lacking(kernel));
}

#[test]
fn a_referrer_lacks_what_has_ended_also_where_the_first_slot_is_free() {
    let table = HandleTable::new(&[]);
    let [first, kernel, buffer] = [1, 2, 3].map(|native| table.publish(0, native, Role::Allocate).unwrap());
    assert!(table.release(first, true).is_some());
    table.refer(kernel, 0, &[buffer]);
    assert!(table.release(buffer, true).is_some() && table.is_lacking(kernel));
    table.refer(kernel, 1, &[kernel]);
    assert!(table.is_lacking(kernel), "another place does not mend it");
    table.refer(kernel, 0, &[]);
    assert!(!table.is_lacking(kernel));
}

#[test]
fn a_referrer_lacks_nothing_when_the_end_did_not_come() {
    let table = HandleTable::new(&[]);
    let [kernel, clone, buffer] = [1, 2, 3].map(|native| table.publish(0, native, Role::Allocate).unwrap());
    let (ender, user) = (table.in_use.lane(), table.in_use.lane());
    table.refer(kernel, 0, &[buffer]);
    table.refer_as(clone, kernel);
    user.announce(clone);
    assert_eq!(table.ending(buffer, false, &ender, || false), Err(Busy));
    assert!(!table.is_lacking(kernel) && !table.is_lacking(clone));
    user.forget_from(0);
    assert_eq!(table.ending(buffer, false, &ender, || false), Ok(Some(Ending::Last)));
    table.spared(buffer);
    assert!(!table.is_lacking(kernel) && !table.is_lacking(clone));
    assert!(table.release(buffer, true).is_some() && table.is_lacking(clone));
    assert!(table.release(kernel, true).is_some() && table.release(clone, true).is_some());
}

#[test]
fn an_object_that_ends_with_another_is_not_used_through_its_referrer() {
    let table = HandleTable::new(&[]);
    let [kernel, owner] = [1, 2].map(|native| table.publish(0, native, Role::Allocate).unwrap());
    let inner = table.publish_owned(1, 3, Role::Borrow, &[owner]).unwrap();
    let (ender, user) = (table.in_use.lane(), table.in_use.lane());
    table.refer(kernel, 5, &[inner]);
    user.announce(kernel);
    assert_eq!(table.ending(owner, true, &ender, || false), Err(Busy));
    user.forget_from(0);
    assert_eq!(table.ending(owner, true, &ender, || false), Ok(Some(Ending::Last)));
    assert!(table.is_lacking(kernel));
    assert!(table.release_ending(owner, true).is_some() && table.is_lacking(kernel));
}

#[test]
fn one_call_has_an_object_for_itself() {
    let table = HandleTable::new(&[]);
    let kernel = table.publish(0, 1, Role::Allocate).unwrap();
    let (setter, user) = (table.in_use.lane(), table.in_use.lane());
    setter.announce(kernel);
    user.announce(kernel);
    assert_eq!(table.try_exclusive(kernel), Exclusive::Taken);
    assert_eq!(table.try_exclusive(kernel), Exclusive::Others);
    assert_eq!(table.usable(0, kernel), Err(Unusable::Exclusive));
    assert_eq!(table.await_exclusive(kernel, &setter, || false), Err(Busy));
    user.forget_from(0);
    assert_eq!(table.await_exclusive(kernel, &setter, || false), Ok(()));
    table.end_exclusive(kernel);
    assert_eq!(table.usable(0, kernel), Ok(1));
    assert!(
        table
            .ending(kernel, true, &user, || {
                setter.forget_from(0);
                true
            })
            .is_ok()
    );
    assert_eq!(table.usable(0, kernel), Err(Unusable::Invalid));
}
