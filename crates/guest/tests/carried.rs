//! The guest runtime with a carrier: the arena's content travels, and long inputs and outputs do so piece by piece.

mod common;

const TRANSPORT: &str = common::BY_CARRIER;
const SYNC: &str = "0";

use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use aviary_guest::Api;
use aviary_transport::AHEAD_BYTES;
use common::*;

const LONG: usize = 5 * AHEAD_BYTES + 11;
/// What of a long input its message still names.
const REST: usize = AHEAD_BYTES + 11;

/// Bytes that were sent ahead of messages, with them, and where the last ones lie.
fn sent(api: &'static Api) -> [u64; 3] {
    let mut reply = api.call(AHEAD).unwrap().send().unwrap();
    [reply.word(), reply.word(), reply.word()]
}

fn consumer(api: &'static Api, data: &[u8]) -> aviary_guest::Call {
    let mut call = api.call(CONSUME).unwrap();
    // SAFETY: a slice is readable.
    unsafe { call.buffer_in(data.as_ptr(), data.len()) };
    call
}

#[test]
fn a_long_input_has_left_before_its_message_and_leaves_once() {
    let api = api();
    let mut data = vec![6; LONG];
    data[..2 * AHEAD_BYTES].fill(7);
    data[LONG - 1] = 7;
    let call = consumer(api, &data);
    assert_eq!(sent(api)[..2], [(LONG - REST) as u64, 0], "the call is not sent");
    call.send_async().unwrap();
    assert_eq!(sent(api)[..2], [(LONG - REST) as u64, REST as u64]);
    let mut reply = api.call(POSTED).unwrap().send().unwrap();
    assert_eq!(reply.word(), 1, "it was executed");
    // What is shorter goes as one.
    let short = 2 * AHEAD_BYTES - 1;
    consumer(api, &data[..short]).send_async().unwrap();
    assert_eq!(sent(api)[..2], [(LONG - REST) as u64, (REST + short) as u64]);
}

#[test]
fn memory_of_a_call_that_was_not_sent_is_not_used_again_before_an_answer() {
    let (api, data) = (api(), vec![1; 2 * AHEAD_BYTES]);
    drop(consumer(api, &data));
    let second = consumer(api, &data);
    let place = sent(api)[2];
    drop(second);
    let third = consumer(api, &data);
    let other = sent(api)[2];
    assert_ne!(place, other, "no answer has come since the second one was given up");
    drop(third);
    sent(api);
    drop(consumer(api, &data));
    assert!([place, other].contains(&sent(api)[2]), "memory is used again");
}

#[test]
fn many_long_inputs_go_on_within_a_bounded_part_of_the_arena() {
    const CALLS: u64 = 100;
    let (api, mut data) = (api(), vec![0; 3 * AHEAD_BYTES]);
    for number in 0..CALLS {
        data.fill(number as u8);
        consumer(api, &data).send_async().unwrap();
    }
    // An answer behind them does not take the place of the one to an earlier question.
    let mut reply = api.call(AHEAD).unwrap().send().unwrap();
    reply.word();
    reply.word();
    reply.word();
    let span = reply.word();
    assert!(span < 100 << 20, "{span} of {} bytes", CALLS as usize * data.len());
    let mut reply = api.call(POSTED).unwrap().send().unwrap();
    assert_eq!(reply.word(), CALLS, "all were executed");
    assert_eq!(reply.word(), 1, "in their order");
}

static BUFFER: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
static SEEN: AtomicU32 = AtomicU32::new(0);

/// Called while the call of [`early`] waits.
unsafe fn look(_: usize, _: i32, _: *const i8, _: *mut u8) -> i32 {
    let buffer = BUFFER.load(Ordering::SeqCst);
    // SAFETY: the buffer of the call, which waits on this thread.
    let bytes = unsafe { [0, 99, 100, 599, 600].map(|at| buffer.add(at).read()) };
    SEEN.store(u32::from(bytes == [0, 0, 0x11, 0x11, 0]), Ordering::SeqCst);
    0
}

#[test]
fn a_part_of_an_output_is_taken_when_it_has_come_and_once() {
    let (api, mut data) = (api(), vec![0; 100_000]);
    BUFFER.store(data.as_mut_ptr(), Ordering::SeqCst);
    let mut call = api.call(EARLY).unwrap();
    call.callback(look as *const () as usize, 0, 0, false);
    call.word(500);
    // SAFETY: the buffer outlives the call.
    unsafe { call.buffer_out(data.as_mut_ptr(), data.len()) };
    call.send().unwrap().out();
    assert_eq!(SEEN.load(Ordering::SeqCst), 1, "it was there, and nothing else");
    let expected = |at: usize| if (100..600).contains(&at) { 0x11 } else { 0x33 };
    assert!(data.iter().enumerate().all(|(at, byte)| *byte == expected(at)));
}
