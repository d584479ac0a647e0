//! What the arbiter decides in single situations.

use super::*;

const MS: u64 = 1_000_000;
const PATIENCE: Patience = Patience { room: 3_000 * MS, leave: 10_000 * MS };

/// Of one device with `memory` bytes, of which sessions may have twice as many.
fn shared(memory: u64) -> Residency {
    let mut residency = Residency::new(PATIENCE);
    residency.add_device(DeviceMemory { memory, most: 2 * memory });
    residency
}

fn has(residency: &mut Residency, session: u64, tenant: &str, bytes: u64) {
    residency.enter(session, tenant, 0);
    residency.ask(session, 1, (0, bytes), 0).unwrap();
    assert_eq!(residency.decide(0), [Order::Grant { session, request: 1 }]);
}

#[test]
fn allocation_turns_out_who_is_idle_for_longest() {
    let mut residency = shared(100);
    has(&mut residency, 1, "a", 40);
    has(&mut residency, 2, "b", 40);
    residency.enter(3, "c", 0);
    residency.note_activity(1, true, false, 5_000 * MS);
    residency.ask(3, 7, (0, 50), 5_000 * MS).unwrap();
    assert_eq!(residency.decide(5_000 * MS), [Order::Evict { session: 2, part: None }]);
    assert_eq!(residency.decide(5_001 * MS), [], "it is on its way");
    residency.left(2, &[(0, 40)], Some(0), 5_010 * MS).unwrap();
    assert_eq!(residency.decide(5_010 * MS), [Order::Grant { session: 3, request: 7 }]);
    assert_eq!((residency.occupied(0), residency.resident(2), residency.held(2)), (90, vec![(0, 0)], vec![(0, 40)]));
    // The exchange took 10 ms: the one that came has 50.
    residency.note_activity(1, true, true, 5_011 * MS);
    residency.want(2, 5_011 * MS);
    assert_eq!(residency.decide(5_011 * MS), [Order::Evict { session: 1, part: Some(30) }]);
}

#[test]
fn turn_is_kept_and_then_the_one_that_waits_comes() {
    let mut residency = shared(100);
    has(&mut residency, 1, "a", 80);
    residency.evict(1, MS).unwrap();
    residency.left(1, &[(0, 80)], Some(0), 2 * MS).unwrap();
    has(&mut residency, 2, "b", 80);
    residency.want(1, 10 * MS);
    assert_eq!(residency.decide(10 * MS), [Order::Evict { session: 2, part: Some(60) }]);
    residency.left(2, &[(0, 80)], Some(0), 20 * MS).unwrap();
    assert_eq!(residency.decide(20 * MS), [Order::Return { session: 1 }]);
    residency.back(1, 30 * MS).unwrap();
    residency.note_activity(1, true, true, 30 * MS);
    residency.want(2, 31 * MS);
    assert_eq!(residency.decide(31 * MS), []);
    assert_eq!(residency.next_look(31 * MS), Some(130 * MS), "5 times 20 ms after 30 ms");
    assert_eq!(residency.decide(130 * MS), [Order::Evict { session: 1, part: Some(60) }]);
    assert_eq!(residency.exchanged(1), 20 * MS);
}

#[test]
fn turn_ends_for_a_session_that_is_idle_for_a_part_of_its_exchange() {
    let mut residency = shared(100);
    has(&mut residency, 1, "a", 80);
    residency.evict(1, 0).unwrap();
    residency.left(1, &[(0, 80)], Some(0), 0).unwrap();
    residency.want(1, 0);
    assert_eq!(residency.decide(0), [Order::Return { session: 1 }]);
    residency.back(1, 10 * MS).unwrap();
    residency.enter(2, "b", 10 * MS);
    residency.ask(2, 1, (0, 80), 10 * MS).unwrap();
    residency.note_activity(1, true, false, 15 * MS);
    assert_eq!((residency.decide(15 * MS), residency.next_look(15 * MS)), (vec![], Some(16_250_000)), "an eighth");
    residency.note_activity(1, true, false, 16 * MS);
    assert_eq!(residency.decide(17 * MS), []);
    assert_eq!(residency.decide(17_250_000), [Order::Evict { session: 1, part: None }]);
    residency.want(1, 17_500_000);
    residency.left(1, &[(0, 80)], Some(0), 18 * MS).unwrap();
    residency.decide(18 * MS);
    assert_eq!(residency.decide(22 * MS), [Order::Evict { session: 2, part: Some(60) }], "of 0.75 ms it keeps all");
    residency.left(2, &[(0, 80)], Some(0), 24 * MS).unwrap();
    assert_eq!(residency.decide(24 * MS), [Order::Return { session: 1 }]);
    residency.back(1, 32 * MS).unwrap();
    residency.want(2, 33 * MS);
    residency.decide(33 * MS);
    assert_eq!(residency.next_look(33 * MS), Some(37 * MS), "it was wanted too early: half of 10 ms");
}

#[test]
fn sessions_that_work_strictly_in_turn_leave_sooner_each_time() {
    let mut residency = shared(100);
    has(&mut residency, 1, "a", 80);
    residency.evict(1, 0).unwrap();
    residency.left(1, &[(0, 80)], Some(0), 0).unwrap();
    has(&mut residency, 2, "b", 80);
    let (mut now, mut comes, mut stays) = (1000 * MS, 1, 2);
    let mut waited = Vec::new();
    for _ in 0..12 {
        let begins = now;
        residency.want(comes, now);
        while residency.decide(now) != [Order::Evict { session: stays, part: Some(60) }] {
            now = residency.next_look(now).unwrap();
        }
        waited.push((now - begins) / MS);
        // The host's memory is made first, which takes much longer than the copies.
        let prepared = if waited.len() < 4 { 3000 * MS } else { 0 };
        now += prepared + 40 * MS;
        residency.note_prepared(stays, prepared, now);
        residency.left(stays, &[(0, 80)], Some(0), now).unwrap();
        assert_eq!(residency.decide(now), [Order::Return { session: comes }]);
        now += 40 * MS;
        residency.back(comes, now).unwrap();
        residency.note_activity(comes, true, false, now);
        (comes, stays) = (stays, comes);
    }
    assert_eq!(waited, [0, 10, 10, 5, 5, 2, 2, 2, 2, 2, 2, 2]);
}

/// Two that have more than the device together, by a third of what each of them has.
fn two_that_do_not_fit() -> Residency {
    let mut residency = shared(80);
    has(&mut residency, 1, "a", 48);
    residency.evict(1, 0).unwrap();
    residency.left(1, &[(0, 48)], Some(0), 0).unwrap();
    has(&mut residency, 2, "b", 48);
    residency
}

#[test]
fn no_more_leaves_than_the_one_that_returns_needs() {
    let mut residency = two_that_do_not_fit();
    let (mut now, mut comes, mut stays) = (1000 * MS, 1, 2);
    for _ in 0..6 {
        residency.want(comes, now);
        while residency.decide(now) != [Order::Evict { session: stays, part: Some(16) }] {
            now = residency.next_look(now).unwrap();
        }
        residency.left(stays, &[(0, 16)], Some(32), now + MS).unwrap();
        assert_eq!(residency.decide(now + MS), [Order::Return { session: comes }]);
        assert_eq!((residency.occupied(0), residency.resident(stays)), (80, vec![(0, 32)]));
        residency.back(comes, now + 2 * MS).unwrap();
        now += 2 * MS;
        (comes, stays) = (stays, comes);
    }
    assert_eq!(residency.evict(stays, now), Ok(()));
    residency.stayed(stays, now).unwrap();
    assert_eq!((residency.evict(comes, now), residency.place(comes)), (Ok(()), Some(Place::GoingFurther)));
    assert_eq!(residency.stayed(comes, now), Ok(()));
    assert_eq!((residency.place(comes), residency.resident(comes)), (Some(Place::Out), vec![(0, 32)]));
}

#[test]
fn what_is_still_there_of_one_that_is_out_leaves_for_others() {
    let mut residency = two_that_do_not_fit();
    residency.want(1, 0);
    assert_eq!(residency.decide(0), [Order::Evict { session: 2, part: Some(16) }]);
    residency.left(2, &[(0, 16)], Some(32), MS).unwrap();
    residency.decide(MS);
    residency.back(1, 2 * MS).unwrap();
    residency.note_activity(1, true, true, 2 * MS);
    residency.enter(3, "c", 2 * MS);
    residency.ask(3, 1, (0, 10), 2 * MS).unwrap();
    let orders = residency.decide(2 * MS);
    assert_eq!(orders, [Order::Evict { session: 2, part: None }], "an allocation: all of it");
    assert_eq!(residency.leaving(2, &[(0, 33)]), Err(Impossible), "so much is not there");
    residency.leaving(2, &[(0, 8)]).unwrap();
    assert_eq!(residency.resident(2), [(0, 24)]);
    residency.want(2, 3 * MS);
    residency.left(2, &[(0, 32)], Some(0), 4 * MS).unwrap();
    assert_eq!(residency.decide(4 * MS), [Order::Grant { session: 3, request: 1 }]);
    assert_eq!((residency.resident(2), residency.evict(2, 5 * MS)), (vec![(0, 0)], Err(Impossible)));
}

/// The first one is out in part, waits for longer, and cannot come: the second one, which allocates, has just stayed, as the host
/// has no room for both.
fn one_that_is_out_in_part_and_one_that_stays(rest: Option<u64>) -> Residency {
    let mut residency = shared(420);
    has(&mut residency, 1, "a", 350);
    residency.evict(1, 0).unwrap();
    residency.left(1, &[(0, 350)], Some(0), 0).unwrap();
    has(&mut residency, 2, "b", 210);
    residency.want(1, MS);
    assert_eq!(residency.decide(MS), [Order::Evict { session: 2, part: Some(140) }]);
    residency.left(2, &[(0, 140)], rest, MS).unwrap();
    assert_eq!(residency.decide(MS), [Order::Return { session: 1 }]);
    residency.back(1, MS).unwrap();
    residency.want(2, 2 * MS);
    assert_eq!(residency.decide(2 * MS), [Order::Evict { session: 1, part: Some(140) }]);
    residency.left(1, &[(0, 140)], rest, 2 * MS).unwrap();
    assert_eq!(residency.decide(2 * MS), [Order::Return { session: 2 }]);
    residency.back(2, 2 * MS).unwrap();
    residency.want(1, 3 * MS);
    residency.ask(2, 2, (0, 35), 4 * MS).unwrap();
    assert_eq!(residency.decide(4 * MS), [Order::Evict { session: 2, part: Some(140) }]);
    residency.stayed(2, 5 * MS).unwrap();
    residency
}

#[test]
fn allocation_has_the_rest_of_one_that_is_out_and_does_not_say_what_can_leave() {
    for rest in [Some(210), None] {
        let mut residency = one_that_is_out_in_part_and_one_that_stays(rest);
        assert_eq!(residency.decide(5 * MS), [Order::Evict { session: 1, part: None }], "{rest:?}");
        residency.left(1, &[(0, 210)], rest, 6 * MS).unwrap();
        assert_eq!(residency.decide(6 * MS), [Order::Grant { session: 2, request: 2 }], "{rest:?}");
    }
}

/// When the allocation of the second session is refused; `stays` answers each order to leave.
fn refused_after(residency: &mut Residency, mut stays: impl FnMut(&mut Residency, u64, u64)) -> u64 {
    let mut now = 5 * MS;
    loop {
        match residency.decide(now).as_slice() {
            [] => now = residency.next_look(now).unwrap(),
            [Order::Evict { session, .. }] => stays(residency, *session, now),
            [Order::Refuse { session: 2, request: 2 }] => return now,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn one_of_which_the_rest_refuses_to_leave_keeps_nobody_waiting() {
    let mut residency = one_that_is_out_in_part_and_one_that_stays(Some(210));
    let mut asked = [0; 3];
    let now = refused_after(&mut residency, |residency, session, now| {
        residency.stayed(session, now).unwrap();
        asked[session as usize] += 1;
    });
    assert_eq!((now, asked[1] > 3, asked[2] > 3), (4 * MS + PATIENCE.room, true, true));
}

#[test]
fn one_of_which_nothing_more_can_leave_is_not_asked() {
    let mut residency = one_that_is_out_in_part_and_one_that_stays(Some(0));
    let mut stays = 0;
    let now = refused_after(&mut residency, |residency, session, now| {
        assert_eq!(session, 2);
        residency.stayed(session, now).unwrap();
        stays += 1;
    });
    assert_eq!((now, stays > 3), (4 * MS + PATIENCE.room, true));
}

#[test]
fn where_others_want_the_rest_all_of_it_leaves() {
    let mut residency = two_that_do_not_fit();
    residency.enter(3, "c", 0);
    residency.members.entry(3).and_modify(|member| {
        member.place = Place::Out;
        member.held.insert(0, 48);
    });
    residency.want(1, 0);
    residency.want(3, 1);
    assert_eq!(residency.decide(1), [Order::Evict { session: 2, part: None }]);
    residency.left(2, &[(0, 48)], Some(0), 2).unwrap();
    assert_eq!(residency.decide(2), [Order::Return { session: 1 }]);
}

#[test]
fn program_that_allocates_piece_by_piece_causes_few_exchanges() {
    let mut residency = shared(100);
    has(&mut residency, 1, "a", 80);
    residency.enter(2, "b", 0);
    let (mut now, mut exchanges) = (1000 * MS, 0);
    for request in 0..80 {
        residency.ask(2, request, (0, 1), now).unwrap();
        loop {
            // The first one's program never stops.
            residency.note_activity(1, true, true, now);
            match residency.decide(now)[..] {
                [Order::Grant { session: 2, .. }] => break,
                [Order::Evict { session: 1, part: None }] => {
                    (now, exchanges) = (now + 40 * MS, exchanges + 1);
                    residency.left(1, &[(0, 80)], Some(0), now).unwrap();
                    residency.want(1, now);
                }
                ref other => panic!("{other:?}"),
            }
        }
        now += MS;
    }
    assert_eq!(exchanges, 1);
    assert_eq!(residency.decide(now), [], "its turn");
    now = residency.next_look(now).unwrap();
    assert_eq!(residency.decide(now), [Order::Evict { session: 2, part: Some(60) }], "and then that of the other one");
}

#[test]
fn allocation_waits_for_turns_to_end_however_long_they_are() {
    let mut residency = shared(100);
    has(&mut residency, 1, "a", 80);
    residency.evict(1, 0).unwrap();
    residency.left(1, &[(0, 80)], Some(0), 0).unwrap();
    residency.want(1, 0);
    residency.decide(0);
    residency.back(1, 2_000 * MS).unwrap();
    residency.enter(2, "b", 0);
    residency.ask(2, 1, (0, 40), 2_000 * MS).unwrap();
    for now in [2_000, 5_000, 11_999] {
        residency.note_activity(1, true, true, now * MS);
        assert_eq!(residency.decide(now * MS), [], "{now} ms");
    }
    assert_eq!(residency.decide(12_000 * MS), [Order::Evict { session: 1, part: None }]);
}

#[test]
fn what_was_never_granted_counts_for_nothing() {
    let mut residency = shared(100);
    has(&mut residency, 1, "a", 10);
    residency.give_back(1, 0, 4).unwrap();
    assert_eq!((residency.give_back(1, 0, 50), residency.held(1)), (Ok(()), vec![(0, 0)]));
    has(&mut residency, 2, "b", 10);
    residency.evict(2, 0).unwrap();
    assert_eq!(residency.left(2, &[(0, 500), (7, 9)], Some(0), 0), Ok(()));
    assert_eq!((residency.occupied(0), residency.held(2)), (0, vec![(0, 10)]));
}

#[test]
fn session_of_which_nothing_can_leave_is_asked_in_growing_gaps() {
    let mut residency = shared(100);
    has(&mut residency, 1, "a", 90);
    residency.enter(2, "b", 0);
    residency.ask(2, 1, (0, 90), 0).unwrap();
    let mut now = 0;
    for gap in [20, 40, 80, 160] {
        assert_eq!(residency.decide(now), [Order::Evict { session: 1, part: None }]);
        residency.left(1, &[], Some(0), now).unwrap();
        residency.want(1, now);
        assert_eq!(residency.decide(now), [Order::Return { session: 1 }]);
        residency.back(1, now).unwrap();
        assert_eq!(residency.decide(now + gap * MS - 1), []);
        now += gap * MS;
    }
}

#[test]
fn one_that_cannot_come_any_more_keeps_nobody_waiting() {
    let mut residency = shared(100);
    has(&mut residency, 1, "a", 90);
    residency.evict(1, 0).unwrap();
    residency.left(1, &[(0, 90)], Some(0), 0).unwrap();
    residency.resize(0, DeviceMemory { memory: 50, most: 200 });
    residency.want(1, 0);
    assert_eq!(residency.decide(0), []);
    has(&mut residency, 2, "b", 40);
}

#[test]
fn one_that_never_leaves_keeps_the_room_from_those_alone_that_need_its_own() {
    let mut residency = shared(100);
    has(&mut residency, 1, "a", 60);
    for (session, bytes) in [(2, 60), (3, 30)] {
        residency.enter(session, "b", 0);
        residency.members.get_mut(&session).unwrap().place = Place::Out;
        residency.members.get_mut(&session).unwrap().held.insert(0, bytes);
        residency.members.get_mut(&session).unwrap().kept.insert(0, 0);
        residency.want(session, session);
    }
    assert_eq!(residency.decide(10), [Order::Evict { session: 1, part: None }], "the third waits: the second may come");
    residency.stayed(1, 20).unwrap();
    assert_eq!(residency.decide(20), [Order::Return { session: 3 }], "40 bytes are free");
    residency.back(3, 30).unwrap();
    // And it comes when the first one leaves after all, which is asked before the third leaves for nothing.
    assert_eq!(residency.decide(21 * MS), [Order::Evict { session: 1, part: Some(50) }]);
    residency.stayed(1, 22 * MS).unwrap();
    assert_eq!(residency.decide(100 * MS), [Order::Evict { session: 1, part: Some(50) }]);
    residency.left(1, &[(0, 60)], Some(0), 101 * MS).unwrap();
    assert_eq!(residency.decide(101 * MS), [Order::Return { session: 2 }]);
}

#[test]
fn others_leave_for_an_allocation_that_found_no_memory_although_there_was_room() {
    let mut residency = shared(1000);
    has(&mut residency, 1, "a", 40);
    has(&mut residency, 2, "a", 30);
    has(&mut residency, 3, "b", 50);
    residency.ask_beyond(3, 2, (0, 35), 0).unwrap();
    assert_eq!(residency.ask_beyond(3, 3, (0, 1), 0), Err(Impossible), "one at a time");
    assert_eq!(residency.decide(0), [Order::Evict { session: 1, part: None }]);
    assert_eq!(residency.decide(1), []);
    residency.left(1, &[(0, 20)], Some(0), MS).unwrap();
    assert_eq!(residency.decide(MS), [Order::Evict { session: 2, part: None }], "15 bytes are still missing");
    residency.left(2, &[(0, 30)], Some(0), 2 * MS).unwrap();
    assert_eq!(residency.decide(2 * MS), [Order::Grant { session: 3, request: 2 }]);
    assert_eq!(residency.held(3), [(0, 50)], "it has that already");
    // Nobody else has anything.
    residency.ask_beyond(3, 4, (0, 35), 3 * MS).unwrap();
    assert_eq!(residency.decide(3 * MS), [Order::Refuse { session: 3, request: 4 }]);
}

#[test]
fn nobody_makes_others_leave_for_more_than_it_has_itself() {
    let mut residency = shared(1000);
    has(&mut residency, 1, "a", 400);
    has(&mut residency, 2, "b", 10);
    has(&mut residency, 3, "c", 10);
    residency.note_activity(1, true, false, 100 * MS);
    residency.ask_beyond(2, 2, (0, u64::MAX), 100 * MS).unwrap();
    assert_eq!(residency.decide(100 * MS), [Order::Evict { session: 3, part: None }]);
}

#[test]
fn another_one_leaves_before_one_is_tried_again_that_could_not_return() {
    let mut residency = shared(1000);
    has(&mut residency, 1, "a", 40);
    has(&mut residency, 2, "a", 30);
    residency.evict(1, 0).unwrap();
    residency.left(1, &[(0, 40)], Some(0), 0).unwrap();
    residency.want(1, 0);
    let mut now = 0;
    for refuses in [true, false] {
        assert_eq!(residency.decide(now), [Order::Return { session: 1 }], "there is room");
        residency.stayed(1, now).unwrap();
        assert_eq!(residency.decide(now), []);
        // Once both are asked again.
        now += 100 * MS;
        assert_eq!(residency.decide(now), [Order::Evict { session: 2, part: None }]);
        match refuses {
            true => residency.stayed(2, now).unwrap(),
            false => residency.left(2, &[(0, 30)], Some(0), now).unwrap(),
        }
    }
    assert_eq!(residency.decide(now), [Order::Return { session: 1 }]);
    residency.stayed(1, now).unwrap();
    now += 200 * MS;
    assert_eq!(residency.decide(now), [Order::Return { session: 1 }], "nobody is left who could leave");
}

#[test]
fn guarantee_keeps_sessions_where_others_have_more() {
    let mut residency = shared(100);
    residency.set_claim("a", Claim { weight: 1, guarantee: 50 });
    has(&mut residency, 1, "a", 50);
    has(&mut residency, 2, "b", 50);
    residency.note_activity(2, true, false, 9_000 * MS);
    residency.enter(3, "c", 0);
    residency.ask(3, 1, (0, 20), 9_000 * MS).unwrap();
    assert_eq!(
        residency.decide(9_000 * MS),
        [Order::Evict { session: 2, part: None }],
        "although the other one is idle"
    );
}

#[test]
fn session_that_is_over_keeps_what_it_has_and_waits_for_nothing() {
    let mut residency = shared(100);
    has(&mut residency, 1, "a", 60);
    has(&mut residency, 2, "a", 40);
    residency.evict(1, 0).unwrap();
    residency.left(1, &[(0, 50)], Some(0), 0).unwrap();
    residency.ask(2, 2, (0, 60), 0).unwrap();
    residency.want(1, 0);
    residency.retire(1);
    assert_eq!((residency.occupied(0), residency.place(1)), (50, Some(Place::In)));
    assert_eq!((residency.decide(0), residency.next_look(0)), (vec![], Some(PATIENCE.room)), "nobody can leave");
    residency.leave(1);
    assert_eq!(residency.decide(0), [Order::Grant { session: 2, request: 2 }]);
}

#[test]
fn more_than_a_device_or_than_all_may_have_is_refused_at_once() {
    let mut residency = shared(100);
    has(&mut residency, 1, "a", 90);
    residency.ask(1, 2, (0, 11), 0).unwrap();
    assert_eq!(residency.ask(1, 3, (0, 1), 0), Err(Impossible), "one at a time");
    assert_eq!(residency.decide(0), [Order::Refuse { session: 1, request: 2 }]);
    residency.enter(2, "b", 0);
    residency.ask(2, 1, (0, 100), 0).unwrap();
    assert_eq!(residency.decide(0), [Order::Evict { session: 1, part: None }]);
    residency.enter(3, "c", 0);
    residency.ask(3, 1, (0, 111), 0).unwrap();
    assert_eq!(residency.decide(0), [Order::Refuse { session: 3, request: 1 }]);
}

#[test]
fn session_that_does_not_answer_is_late_and_one_that_stays_is_asked_in_growing_gaps() {
    let mut residency = shared(100);
    has(&mut residency, 1, "a", 90);
    residency.enter(2, "b", 0);
    residency.ask(2, 1, (0, 90), 0).unwrap();
    let mut now = 0;
    for gap in [20, 40, 80, 160, 320, 640, 1000] {
        assert_eq!(residency.decide(now), [Order::Evict { session: 1, part: None }]);
        residency.stayed(1, now).unwrap();
        assert_eq!((residency.decide(now), residency.next_look(now).map(|at| at - now)), (vec![], Some(gap * MS)));
        now += gap * MS;
    }
    assert_eq!(residency.decide(PATIENCE.room), [Order::Refuse { session: 2, request: 1 }]);
    residency.evict(1, now).unwrap();
    // A nanosecond for each of its 90 bytes.
    let late = now + PATIENCE.leave + 90;
    assert_eq!(residency.next_look(now), Some(late));
    assert_eq!((residency.late(late - 1), residency.late(late)), (vec![], vec![1]));
    residency.leave(1);
    assert_eq!((residency.occupied(0), residency.late(u64::MAX), residency.evict(1, 0)), (0, vec![], Err(Impossible)));
}

#[test]
fn session_comes_while_the_one_that_makes_room_leaves() {
    let mut residency = shared(100);
    has(&mut residency, 1, "a", 80);
    residency.evict(1, MS).unwrap();
    residency.left(1, &[(0, 80)], Some(0), 2 * MS).unwrap();
    has(&mut residency, 2, "b", 80);
    residency.want(1, 10 * MS);
    assert_eq!(residency.decide(10 * MS), [Order::Evict { session: 2, part: Some(60) }]);
    assert_eq!(residency.decide(11 * MS), [], "it may still stay");
    residency.leaving(2, &[(0, 20)]).unwrap();
    assert_eq!(residency.leaving(2, &[(0, 19)]), Err(Impossible), "less than before");
    assert_eq!(residency.leaving(2, &[(0, 81)]), Err(Impossible), "more than it has");
    assert_eq!(residency.leaving(1, &[(0, 1)]), Err(Impossible), "it is not leaving");
    assert_eq!(residency.decide(12 * MS), [Order::Return { session: 1 }]);
    assert_eq!((residency.credit(1), residency.occupied(0)), (Some(40), 100));
    assert_eq!(residency.stayed(2, 13 * MS), Err(Impossible), "some of it has left");
    residency.leaving(2, &[(0, 22)]).unwrap();
    assert_eq!(residency.decide(14 * MS), [], "too little for a message");
    residency.leaving(2, &[(0, 50)]).unwrap();
    assert_eq!(residency.decide(15 * MS), [Order::Credit { session: 1 }]);
    assert_eq!((residency.credit(1), residency.occupied(0)), (Some(70), 100));
    residency.left(2, &[(0, 80)], Some(0), 20 * MS).unwrap();
    assert_eq!(residency.decide(20 * MS), [Order::Credit { session: 1 }]);
    residency.back(1, 25 * MS).unwrap();
    assert_eq!((residency.credit(1), residency.occupied(0)), (None, 80));
    assert_eq!(residency.exchanged(1), 15 * MS, "both copies were under way at once");
}

#[test]
fn room_that_one_keeps_on_its_way_others_make() {
    let mut residency = shared(100);
    has(&mut residency, 1, "a", 80);
    residency.evict(1, MS).unwrap();
    residency.left(1, &[(0, 80)], Some(0), 2 * MS).unwrap();
    has(&mut residency, 2, "b", 60);
    has(&mut residency, 3, "c", 20);
    residency.want(1, 10 * MS);
    assert_eq!(residency.decide(10 * MS), [Order::Evict { session: 2, part: None }]);
    residency.leaving(2, &[(0, 30)]).unwrap();
    assert_eq!(residency.decide(12 * MS), [Order::Return { session: 1 }]);
    // A part of it stays on the device.
    residency.left(2, &[(0, 50)], Some(0), 20 * MS).unwrap();
    assert_eq!(residency.decide(20 * MS), [Order::Evict { session: 3, part: Some(10) }, Order::Credit { session: 1 }]);
    assert_eq!((residency.credit(1), residency.occupied(0)), (Some(70), 100));
    residency.left(3, &[(0, 20)], Some(0), 21 * MS).unwrap();
    assert_eq!(residency.decide(21 * MS), [Order::Credit { session: 1 }]);
    assert_eq!((residency.credit(1), residency.occupied(0)), (Some(80), 90));
    residency.back(1, 25 * MS).unwrap();
}
