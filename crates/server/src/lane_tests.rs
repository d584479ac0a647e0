use super::*;
use std::os::fd::AsFd;
use std::time::Instant;

use aviary_transport::{Arena, Liveness, Side};

use crate::api::{ApiDescriptor, FunctionInfo};
use crate::config::SessionConfig;
use crate::memory::SessionMemory;
use crate::module::load_vendor;
use crate::policy::Policy;
use crate::session::{Journal, Parts, gate};
use crate::stats::StatsPage;

static API: ApiDescriptor = ApiDescriptor {
    name: "lanes",
    version: "1",
    spec_hash: 1,
    soname: "libm.so.6",
    functions: &[FunctionInfo { name: "add", handler: add, replayable: false }],
    handle_types: &[],
    resources: &[],
    metadata_size: 0,
    rejected: |_, _| -1,
};

unsafe fn add(call: &mut Call) -> Result<(), Reject> {
    let (a, b) = (call.word()?, call.word()?);
    call.begin_vendor();
    let sum = a.wrapping_add(b);
    call.end_vendor();
    call.reply_word(sum);
    call.finish(true, 0);
    Ok(())
}

/// A lane and the guest's end of it, both in this thread.
fn lane() -> (Rc<Lane>, LaneEnd) {
    const AT: u64 = 4096;
    const LENGTH: usize = 128 << 10;
    let arena = Arena::create(1 << 20).unwrap();
    let liveness = Arc::new(Liveness::notified());
    LaneEnd::clear(&arena, AT, LENGTH).unwrap();
    let guest = LaneEnd::shared(&arena, AT, LENGTH, Side::Guest, &liveness).unwrap();
    let server = LaneEnd::shared(&arena, AT, LENGTH, Side::Server, &liveness).unwrap();
    let gate = gate(&API, &SessionConfig::default(), None).unwrap();
    let stats = StatsPage::publish(StatsPage::create().unwrap().as_fd(), &gate).unwrap();
    let vendor = load_vendor(&API, None).unwrap();
    let journal = Journal { fd: 2, session: 0 };
    let memory = SessionMemory::none();
    let session = Session::new(Parts {
        api: &API,
        vendor,
        memory,
        stats,
        gate,
        devices: crate::devices::Devices::new(None, None),
        policy: Policy::default(),
        printed: None,
        journal,
        socket: None,
    });
    (Lane::new(session, server), guest)
}

/// What a synchronous call costs apart from waiting: `cargo test --release -- --ignored --nocapture call_costs`.
#[test]
#[ignore = "a measurement"]
fn call_costs() {
    const CALLS: u32 = 5_000_000;
    let (lane, mut guest) = lane();
    let (mut request, mut reply) = (Encoder::new(), Vec::new());
    let start = Instant::now();
    for i in 0..CALLS {
        request.start();
        request.word(u64::from(i));
        request.word(1);
        let header = RequestHeader { kind: kind::CALL, serial: u64::from(i), ..Default::default() };
        guest.send(request.finish_request(header), &[]).unwrap();
        assert!(lane.serve_next().is_ok());
        guest.receive(&mut reply).unwrap();
    }
    assert_eq!(word_of(&reply[HEADER_SIZE..HEADER_SIZE + 8]), u64::from(CALLS));
    println!("{:?} per call", start.elapsed() / CALLS);
}

/// What `bench/callcost.py` counts instructions in.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn aviary_counted_service(lane: &Rc<Lane>) {
    assert!(lane.serve_next().is_ok());
}

/// So many calls, all of a kind; without waiting, so that the count is the same every time.
fn counted(calls: u64, header: RequestHeader) {
    let (lane, mut guest) = lane();
    let (mut request, mut reply) = (Encoder::new(), Vec::new());
    for i in 1..=calls {
        request.start();
        request.word(i);
        request.word(1);
        let ticket = if header.kind == kind::CALL_ASYNC { i } else { 0 };
        guest.send(request.finish_request(RequestHeader { serial: i, ticket, ..header }), &[]).unwrap();
        aviary_counted_service(&lane);
        if header.kind == kind::CALL {
            guest.receive(&mut reply).unwrap();
        }
    }
}

#[test]
fn synchronous_calls_to_count() {
    counted(2000, RequestHeader { kind: kind::CALL, ..Default::default() });
}

#[test]
fn asynchronous_calls_to_count() {
    counted(2000, RequestHeader { kind: kind::CALL_ASYNC, ..Default::default() });
}

#[test]
fn a_calls_memory_is_used_again() {
    let (lane, mut guest) = lane();
    let mut request = Encoder::new();
    let mut reply = Vec::new();
    for _ in 0..3 {
        request.start();
        request.word(1);
        request.word(2);
        guest.send(request.finish_request(RequestHeader { kind: kind::CALL, ..Default::default() }), &[]).unwrap();
        assert!(lane.serve_next().is_ok());
        guest.receive(&mut reply).unwrap();
    }
    assert_eq!(lane.spare.borrow().len(), 1);
}
