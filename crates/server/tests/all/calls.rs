//! Calls over all transports, against handlers written by hand.

use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::support::api::*;
use crate::support::{Guest, HANG_TIMEOUT, Lane, fields};
use aviary_transport::Region;
use aviary_wire::control::control_kind;
use aviary_wire::{Control, HandleId, NOT_A_HANDLE, REJECTED_CALL, RequestHeader, flag, kind, status};

/// Tests that use the API's global state.
static ALONE: Mutex<()> = Mutex::new(());

fn everywhere(test: impl Fn(Guest)) {
    test(Guest::connect(false));
    test(Guest::connect(true));
    test(Guest::connect_in_vm());
}

fn region(offset: u64, length: usize) -> Region {
    Region { offset, length }
}

#[test]
fn scalars_cross() {
    everywhere(|mut guest| {
        let mut lane = guest.lane();
        for i in 0..1000 {
            let reply = lane.call(ADD, fields(|e| (e.word(i), e.word(u64::MAX)).1));
            assert_eq!((reply.header.status, reply.word()), (status::OK, i.wrapping_sub(1)));
            assert!(lane.success);
        }
        // A lane reports what it counted once it has nothing else to do.
        let deadline = Instant::now() + HANG_TIMEOUT;
        while guest.stats.calls.load(Ordering::Relaxed) != 1000 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(guest.stats.calls.load(Ordering::Relaxed), 1000);
        guest.leave();
    });
}

#[test]
fn buffers_cross_inline_and_through_the_arena() {
    everywhere(|mut guest| {
        let mut lane = guest.lane();
        let data: Vec<u8> = (0..=255).collect();
        let sum: u64 = data.iter().map(|b| u64::from(*b)).sum();
        let reply = lane.call(SUM, fields(|e| (e.word(256), e.buffer_inline(&data)).1));
        assert_eq!(reply.word(), sum);
        guest.put(64 << 10, &data);
        let body = fields(|e| (e.word(256), e.buffer_arena(64 << 10, 256)).1);
        assert_eq!(lane.call_after(SUM, 0, body, &[region(64 << 10, 256)]).word(), sum);
        let reply = lane.call(FILL, fields(|e| (e.word(9), e.buffer_reserved(300)).1));
        assert_eq!(reply.fields().optional_bytes().unwrap(), Some(&[9u8; 300][..]));
        let reply = lane.call(FILL, fields(|e| (e.word(8), e.buffer_arena(128 << 10, 5000)).1));
        assert_eq!(reply.word(), 5001);
        assert_eq!(guest.get(128 << 10, 5000), vec![8; 5000]);
        let reply = lane.call(FILL, fields(|e| (e.word(8), e.buffer_null()).1));
        assert_eq!(reply.word(), 0);
        let reply = lane.call(FILL, fields(|e| (e.word(0), e.buffer_inline(&[1, 2])).1));
        assert_eq!((reply.word(), lane.success), (0, false));
        let reply = lane.call(REVERSE, fields(|e| e.buffer_inline(b"abc")));
        assert_eq!(reply.fields().optional_bytes().unwrap(), Some(&b"cba"[..]));
        let reply = lane.call(LENGTH, fields(|e| e.buffer_inline(b"four\0")));
        assert_eq!(reply.word(), 4);
        guest.leave();
    });
}

/// The memory as `SHIFT` leaves it, if the input lies `from` bytes in and the output `to` bytes.
fn shifted(memory: &[u8], from: usize, to: usize, n: usize) -> Vec<u8> {
    let mut memory = memory.to_vec();
    for i in 0..n {
        let before = if i == 0 { 0 } else { memory[to + i - 1] };
        memory[to + i] = memory[from + i].wrapping_add(before);
    }
    memory
}

#[test]
fn memory_of_several_arguments_is_one_memory() {
    const AT: u64 = 64 << 10;
    everywhere(|mut guest| {
        let mut lane = guest.lane();
        let memory: Vec<u8> = (0..250).map(|n| (n * 3) as u8).collect();
        for (private, from, to, n) in [(0, 0, 0, 250), (1, 0, 0, 250), (0, 0, 1, 100), (1, 9, 0, 200), (1, 0, 50, 200)]
        {
            let expected = shifted(&memory, from, to, n);
            let parts = |e: &mut aviary_wire::Encoder, whole: &dyn Fn(&mut aviary_wire::Encoder)| {
                e.word(private);
                e.word(0);
                e.buffer_part(n, 0, from);
                e.word(0x123);
                whole(e);
                e.buffer_part(n, 0, to);
            };
            let reply = lane.call(SHIFT, fields(|e| parts(e, &|e| e.buffer_inline(&memory))));
            assert_eq!(reply.fields().optional_bytes().unwrap(), Some(&expected[to..to + n]));
            guest.put(AT, &memory);
            let body = fields(|e| parts(e, &|e| e.buffer_arena(AT, memory.len())));
            assert_eq!(lane.call_after(SHIFT, 0, body, &[region(AT, memory.len())]).word(), 1 + n as u64);
            assert_eq!(guest.get(AT + to as u64, n), &expected[to..to + n]);
        }
        // As far from a multiple of 64 as in the application: 0x40 and 4 bytes are not.
        for (phase, fits) in [(0x40, true), (0x44, false)] {
            let body = fields(|e| {
                e.word(1);
                e.word(64);
                e.buffer_part(8, 0, 0);
                e.word(phase);
                e.buffer_inline(&memory);
                e.buffer_part(8, 0, 64);
            });
            assert_eq!(lane.call(SHIFT, body).header.status == status::OK, fits, "{phase:x}");
        }
        let body = fields(|e| {
            e.buffer_part(100, 0, 20);
            e.word(0);
            e.buffer_arena(AT, 4096);
            e.buffer_part(4, 0, 3);
        });
        assert_eq!(lane.call_after(BOUND, 0, body, &[region(AT, 4096)]).word(), 17);
        guest.leave();
    });
}

#[test]
fn a_large_message_arrives_in_fragments() {
    everywhere(|mut guest| {
        let mut lane = guest.lane();
        let data = vec![1u8; 1 << 20];
        let reply = lane.call(SUM, fields(|e| (e.word(1 << 20), e.buffer_inline(&data)).1));
        assert_eq!(reply.word(), 1 << 20);
        guest.leave();
    });
}

#[test]
fn handles_are_checked_and_charges_follow_them() {
    everywhere(|mut guest| {
        let mut lane = guest.lane();
        let id = lane.call(CREATE, fields(|e| e.word(600))).word();
        let native = lane.call(GET, fields(|e| e.word(id)));
        assert_eq!(native.header.status, status::OK);
        for wrong in [NOT_A_HANDLE, id + 1, id | 1 << 56, id ^ 1 << 33, 1, native.word()] {
            let reply = lane.call(GET, fields(|e| e.word(wrong)));
            assert_eq!((reply.header.status, reply.header.detail), (status::INVALID_HANDLE, OBJECT), "{wrong:#x}");
        }
        assert_eq!(lane.call(GET, fields(|e| e.word(0))).word(), 0);
        assert_eq!(lane.call(CREATE, fields(|e| e.word(401))).header.status, status::REFUSED);
        let last = lane.call(CREATE, fields(|e| e.word(400)));
        assert_eq!(last.header.status, status::OK);
        let used = || guest.stats.resources[0].used.load(Ordering::Relaxed);
        assert_eq!(used(), 1000);
        lane.call(DESTROY, fields(|e| e.word(id)));
        assert_eq!(used(), 400);
        let again = lane.call(DESTROY, fields(|e| e.word(id)));
        assert_eq!(again.header.status, status::INVALID_HANDLE);
        lane.call(DESTROY, fields(|e| e.word(last.word())));
        assert_eq!(used(), 0);
        let failed = lane.call(CREATE, fields(|e| e.word(666)));
        assert_eq!((failed.word(), lane.success, used()), (0, false, 0));
        guest.leave();
    });
}

/// An id as a guest chooses it.
fn chosen(index: u32, generation: u32) -> u64 {
    HandleId { ty: OBJECT as u8, generation, index: HandleId::MINTED | index }.to_word()
}

#[test]
fn objects_live_under_the_ids_that_the_guest_chose() {
    everywhere(|mut guest| {
        let mut lane = guest.lane();
        let (a, b) = (chosen(0, 1), chosen(HandleId::MAX_GUEST_IDS - 1, 7));
        let used = || guest.stats.resources[0].used.load(Ordering::Relaxed);
        let spawn = |lane: &mut Lane, a: u64, b: u64, bytes: u64| {
            let header = RequestHeader { kind: kind::CALL_ASYNC, flags: flag::ACKNOWLEDGE, ..Default::default() };
            let body = fields(|e| (e.word(a), e.word(b), e.word(bytes)).2);
            lane.send(RequestHeader { function: SPAWN, ..header }, body, &[]);
            lane.receive()
        };
        spawn(&mut lane, a, b, 100);
        let first = lane.call(GET, fields(|e| e.word(a))).word();
        let second = lane.call(GET, fields(|e| e.word(b))).word();
        assert_eq!((second - first, used()), (16, 200));
        // A call that fails, or is refused, leaves its ids dead, and they may be used later.
        spawn(&mut lane, chosen(5, 1), chosen(6, 1), 333);
        assert_eq!(lane.deferred, Some(5));
        spawn(&mut lane, chosen(5, 1), chosen(6, 1), 5000);
        assert_eq!(lane.deferred, Some(-77));
        let dead = lane.call(GET, fields(|e| e.word(chosen(5, 1))));
        assert_eq!((dead.header.status, dead.word()), (status::INVALID_HANDLE, chosen(5, 1)));
        assert_eq!(used(), 200);
        spawn(&mut lane, chosen(5, 1), chosen(6, 1), 1);
        assert_eq!((lane.deferred, used()), (None, 202));
        // An end, and the index once more.
        lane.call(DESTROY, fields(|e| e.word(a)));
        assert_eq!(lane.call(GET, fields(|e| e.word(a))).header.status, status::INVALID_HANDLE);
        spawn(&mut lane, chosen(0, 2), chosen(1, 1), 10);
        assert_eq!(lane.call(GET, fields(|e| e.word(a))).header.status, status::INVALID_HANDLE);
        assert_eq!(lane.call(GET, fields(|e| e.word(chosen(0, 2)))).header.status, status::OK);
        // The guest has given up an id whose object did not end: what it held stays charged.
        let before = used();
        spawn(&mut lane, chosen(0, 3), chosen(1, 2), 10);
        assert_eq!(lane.call(GET, fields(|e| e.word(chosen(0, 2)))).header.status, status::INVALID_HANDLE);
        assert_eq!(used(), before + 20);
        // Waiting, it may leave the choice to the server.
        let reply = lane.call(SPAWN, fields(|e| (e.word(0), e.word(0), e.word(1)).2));
        assert_eq!(HandleId::from_word(reply.word()).map(HandleId::is_minted), Some(false));
        guest.leave();
    });
}

#[test]
fn another_sessions_handles_are_unknown() {
    let (mut first, mut second) = (Guest::connect(false), Guest::connect(false));
    let (mut a, mut b) = (first.lane(), second.lane());
    a.call(CREATE, fields(|e| e.word(1)));
    let id = a.call(CREATE, fields(|e| e.word(1))).word();
    assert_eq!(b.call(GET, fields(|e| e.word(id))).header.status, status::INVALID_HANDLE);
    first.leave();
    second.leave();
}

#[test]
fn asynchronous_calls_run_in_ticket_order_and_defer_their_errors() {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    everywhere(|mut guest| {
        PUSHED.lock().unwrap().clear();
        let (mut a, mut b) = (guest.lane(), guest.lane());
        for ticket in (2..=400).step_by(2) {
            b.call_async(PUSH, ticket, fields(|e| e.word(ticket + 100)));
        }
        for ticket in (1..400).step_by(2) {
            let value = if ticket == 7 { 13 } else { ticket + 100 };
            a.call_async(PUSH, ticket, fields(|e| e.word(value)));
        }
        let reply = b.call_after(ADD, 400, fields(|e| (e.word(1), e.word(1)).1), &[]);
        assert_eq!((reply.word(), b.deferred), (2, None));
        let expected: Vec<u64> = (1..=400).map(|t| if t == 7 { 13 } else { t + 100 }).collect();
        assert_eq!(*PUSHED.lock().unwrap(), expected);
        a.call(ADD, fields(|e| (e.word(1), e.word(1)).1));
        assert_eq!(a.deferred, Some(42), "the error of the seventh call");
        a.call(ADD, fields(|e| (e.word(1), e.word(1)).1));
        assert_eq!(a.deferred, None);
        if !guest.arena.mirrored() {
            assert_eq!(guest.get(0, 8), 400u64.to_le_bytes());
        }
        a.call_async(GET, 401, fields(|e| e.word(99)));
        a.send(RequestHeader { kind: kind::SYNC, ticket: 401, ..Default::default() }, fields(|_| ()), &[]);
        a.receive();
        assert_eq!(a.deferred, Some(-77), "a rejection, as the API words it");
        assert_eq!(a.deliveries, [(REJECTED_CALL, 401)], "its blocks are free, decoded or not");
        let acknowledged = RequestHeader {
            kind: kind::CALL_ASYNC,
            flags: flag::ACKNOWLEDGE,
            function: GET,
            ticket: 401,
            ..Default::default()
        };
        a.send(acknowledged, fields(|e| e.word(99)), &[]);
        assert_eq!(a.receive().header.status, status::REFUSED);
        assert_eq!((a.deferred, a.deliveries.len()), (Some(-77), 0));
        guest.leave();
    });
}

#[test]
fn callbacks_run_on_the_waiting_lane_and_may_call_again() {
    everywhere(|mut guest| {
        let mut lane = guest.lane();
        let body = fields(|e| (e.word(3), e.word(0xc0de)).1);
        lane.send(RequestHeader { kind: kind::CALL, function: APPLY, ..Default::default() }, body, &[]);
        for i in 0..3 {
            let callback = lane.receive();
            assert_eq!(callback.header.kind, kind::CALLBACK);
            let mut arguments = callback.fields();
            assert_eq!((arguments.word(), arguments.word()), (Ok(0xc0de), Ok(i)));
            let nested = lane.call(ADD, fields(|e| (e.word(i), e.word(10)).1)).word();
            lane.answer(fields(|e| (e.word(0), e.word(nested)).1));
        }
        assert_eq!(lane.receive().word(), 33);
        guest.leave();
    });
}

#[test]
fn callbacks_of_vendor_threads_and_asynchronous_calls_use_the_callback_lane() {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    everywhere(|mut guest| {
        ANSWERS.lock().unwrap().clear();
        PUSHED.lock().unwrap().clear();
        let (mut lane, mut callbacks) = (guest.lane(), guest.callback_lane());
        lane.call(LATER, fields(|e| (e.word(4), e.word(77)).1));
        let callback = callbacks.receive();
        let mut arguments = callback.fields();
        assert_eq!((arguments.word(), arguments.word()), (Ok(77), Ok(4)));
        callbacks.answer(fields(|e| (e.word(0), e.word(1234)).1));
        lane.call_async(APPLY_ASYNC, 1, fields(|e| e.word(78)));
        assert_eq!(callbacks.receive().fields().word(), Ok(78));
        callbacks.answer(fields(|e| (e.word(0), e.word(55)).1));
        lane.call_after(ADD, 1, fields(|e| (e.word(0), e.word(0)).1), &[]);
        assert_eq!(*PUSHED.lock().unwrap(), [55]);
        // The vendor's own thread got the first answer: nothing orders it before the calls here.
        let until = Instant::now() + HANG_TIMEOUT;
        while ANSWERS.lock().unwrap().is_empty() && Instant::now() < until {
            std::thread::yield_now();
        }
        assert_eq!(*ANSWERS.lock().unwrap(), [1234]);
        guest.leave();
    });
}

#[test]
fn deferred_output_is_delivered_with_the_first_reply_after_it_is_final() {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    everywhere(|mut guest| {
        READY.store(false, Ordering::SeqCst);
        let (mut a, mut b) = (guest.lane(), guest.lane());
        let started = a.call(START, fields(|e| e.buffer_arena(1 << 18, 64)));
        assert_eq!((started.word(), a.delivered), (0, 0));
        b.call(ADD, fields(|e| (e.word(0), e.word(0)).1));
        assert_eq!((b.delivered, b.deliveries.len()), (0, 0));
        complete(3, 64);
        b.call(ADD, fields(|e| (e.word(0), e.word(0)).1));
        assert_eq!((b.delivered, &b.deliveries[..]), (1, &[(1 << 18, 64)][..]));
        assert_eq!(guest.get(1 << 18, 64), vec![3; 64]);
        a.call(ADD, fields(|e| (e.word(0), e.word(0)).1));
        assert_eq!((a.delivered, a.deliveries.len()), (1, 0), "the other lane learns that it was delivered");
        let at_once = a.call(START, fields(|e| e.buffer_arena(1 << 18, 64)));
        assert_eq!(at_once.word(), 65);
        a.call_async(START, 1, fields(|e| e.buffer_arena(1 << 18, 13)));
        a.call_after(ADD, 1, fields(|e| (e.word(0), e.word(0)).1), &[]);
        assert_eq!((a.deferred, &a.deliveries[..]), (Some(13), &[(REJECTED_CALL, 1)][..]), "the block is free");
        guest.leave();
    });
}

#[test]
fn mapped_memory_is_fetched_and_written_back() {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    everywhere(|mut guest| {
        *MAPPED.lock().unwrap() = [7; 16];
        let mut lane = guest.lane();
        let reply = lane.call(MAP, fields(|_| ()));
        let mut words = reply.fields();
        let (how, id, bytes) = (words.word().unwrap(), words.word().unwrap(), words.word().unwrap());
        assert_eq!((how, bytes), (2, 16));
        let header = RequestHeader { kind: kind::FETCH, ..Default::default() };
        lane.send(header, fields(|e| (e.word(id), e.word(1 << 18), e.word(16)).2), &[]);
        assert_eq!(lane.receive().word(), 1);
        assert_eq!(guest.get(1 << 18, 16), [7; 16]);
        guest.put(1 << 18, &[9; 16]);
        let body = fields(|e| (e.word(2), e.word(id), e.buffer_arena(1 << 18, 16)).2);
        let reply = lane.call_after(UNMAP, 0, body, &[region(1 << 18, 16)]);
        assert_eq!((reply.word(), *MAPPED.lock().unwrap()), (1, [9; 16]));
        let body = fields(|e| (e.word(2), e.word(id), e.buffer_null()).2);
        assert_eq!(lane.call(UNMAP, body).word(), 0, "the mapping has ended");
        assert_eq!(lane.call(UNMAP, fields(|e| e.word(3))).word(), 0);
        guest.leave();
    });
}

#[test]
fn missing_functions_and_excess_are_refused() {
    everywhere(|mut guest| {
        let mut lane = guest.lane();
        assert_eq!(lane.call(MISSING, fields(|_| ())).header.status, status::ABSENT);
        assert_eq!(lane.call(HOG, fields(|_| ())).header.status, status::REFUSED);
        assert_eq!(lane.call(ADD, fields(|e| (e.word(1), e.word(1)).1)).word(), 2);
        guest.leave();
    });
}

#[test]
fn calls_published_before_the_guest_ends_still_run() {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    everywhere(|mut guest| {
        PUSHED.lock().unwrap().clear();
        let mut lane = guest.lane();
        lane.call(ADD, fields(|e| (e.word(1), e.word(1)).1));
        (1..=500).for_each(|ticket| lane.call_async(PUSH, ticket, fields(|e| e.word(ticket))));
        guest.leave();
        assert_eq!(PUSHED.lock().unwrap().len(), 500);
    });
}

#[test]
fn a_guest_that_dies_with_calls_that_never_get_their_turn_is_over() {
    let mut guest = Guest::connect(false);
    let mut lane = guest.lane();
    lane.call_async(SLEEP, 50, fields(|e| e.word(1)));
    guest.leave();
}

#[test]
fn a_closed_lane_is_finished_and_given_back() {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    everywhere(|mut guest| {
        PUSHED.lock().unwrap().clear();
        let mut lane = guest.lane();
        (1..=100).for_each(|ticket| lane.call_async(PUSH, ticket, fields(|e| e.word(ticket))));
        guest.close(1);
        let (message, _) = guest.control().receive().unwrap().expect("an answer");
        assert_eq!((message.kind, message.lane), (aviary_wire::control::control_kind::LANE_CLOSED, 1));
        assert_eq!(PUSHED.lock().unwrap().len(), 100);
        let mut other = guest.lane();
        other.call_after(ADD, 100, fields(|e| (e.word(1), e.word(1)).1), &[]);
        guest.leave();
    });
}

/// The copy of a link: what it says of its kind and of the next one is not believed.
fn link(bytes: usize, number: u32) -> Vec<u8> {
    let mut link = vec![0xee; bytes];
    link[12..16].copy_from_slice(&number.to_le_bytes());
    link
}

#[test]
fn chains_are_linked_by_the_server_and_come_back_without_addresses() {
    everywhere(|mut guest| {
        let mut lane = guest.lane();
        let reply = lane
            .call(CHAIN, fields(|e| (e.word(2), e.bytes(&link(24, 5)), e.word(1), e.bytes(&link(16, 6)), e.word(0)).4));
        let mut fields = reply.fields();
        assert_eq!(fields.word(), Ok((9 + 5) * 10 + 7 + 6));
        for (index, size, place) in [(2, 24, 1), (1, 16, 2)] {
            assert_eq!(fields.word(), Ok(index));
            // The byte that the library has changed, and a mask that says so.
            let mut expected = vec![0; size + size / 8];
            (expected[12], expected[size + 1]) = (place, 1 << 4);
            assert_eq!(fields.optional_bytes(), Ok(Some(&expected[..])));
        }
        assert_eq!(fields.word(), Ok(0));
        assert_eq!(lane.call(CHAIN, fields_of_none()).word(), 0);
        guest.leave();
    });
}

fn fields_of_none() -> aviary_wire::Encoder {
    fields(|e| e.word(0))
}

#[test]
fn window_that_is_closed_is_not_written_by_calls_under_way() {
    let mut guest = Guest::connect_in_vm();
    let mut lane = guest.lane();
    assert!(lane.call(SLEEP, fields(|e| e.word(0))).header.status == status::OK);
    lane.send(RequestHeader { kind: kind::CALL, function: SLEEP, ..Default::default() }, fields(|e| e.word(100)), &[]);
    guest.control().send(Control { kind: control_kind::WINDOW_CLOSE, ..Control::default() }, None).expect("sent");
    guest.expect_end();
    // From the hang-up on the memory is the VM's.
    let memory = guest.arena.clone();
    let whole = |into: &mut Vec<u8>| memory.read(0, memory.size(), into).expect("the arena");
    let (mut before, mut after) = (Vec::new(), Vec::new());
    whole(&mut before);
    guest.leave();
    whole(&mut after);
    assert!(before == after, "written after the hang-up");
}
