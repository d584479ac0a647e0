use super::sending::word_of;
use super::*;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use aviary_gate::GrantPage;
use aviary_transport::{Arena, Liveness, Side, StreamLane};

use crate::api::{ApiDescriptor, FunctionInfo};
use crate::lane::devices::Devices;
use crate::lane::dispatch::handler;
use crate::session::policy::Policy;
use crate::session::vendor;
use crate::session::{Accounts, Journal, Parts, Peer, gate};
use crate::state::object_log::ObjectLog;
use crate::tables::memory::SessionMemory;
use aviary_control::Assignment;
use aviary_control::stats::StatsPage;

static API: ApiDescriptor = ApiDescriptor {
    name: "lanes",
    version: "1",
    spec_hash: 1,
    environment: &[],
    soname: "libm.so.6",
    libraries: &[],
    functions: &[FunctionInfo {
        name: "add",
        on_behalf_of: &[],
        handler: handler(add),
        replayable: false,
        waits: false,
        late: false,
        blocker: None,
    }],
    handle_types: &[],
    resources: &[],
    state: None,
    current: None,
    quiesce: None,
    stays: None,
    contents: None,
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
    lane_to(Devices::new(None, None, 0))
}

fn lane_to(devices: Devices) -> (Rc<Lane>, LaneEnd) {
    lane_of(session_of(&API, devices, &Assignment::default()))
}

fn lane_of(session: Arc<Session>) -> (Rc<Lane>, LaneEnd) {
    const AT: u64 = 4096;
    const LENGTH: usize = 128 << 10;
    let arena = Arena::create(1 << 20).unwrap();
    let liveness = Arc::new(Liveness::notified());
    LaneEnd::clear(&arena, AT, LENGTH).unwrap();
    let guest = LaneEnd::shared(&arena, AT, LENGTH, Side::Guest, &liveness).unwrap();
    let server = LaneEnd::shared(&arena, AT, LENGTH, Side::Server, &liveness).unwrap();
    (Lane::new(session, 1, server, None), guest)
}

/// A session without memory that it shares with a guest.
pub fn session_of(api: &'static ApiDescriptor, devices: Devices, assignment: &Assignment) -> Arc<Session> {
    session_with(api, devices, assignment, ObjectLog::off())
}

fn session_with(
    api: &'static ApiDescriptor,
    devices: Devices,
    assignment: &Assignment,
    log: ObjectLog,
) -> Arc<Session> {
    let gate = gate(api, assignment, None, None).unwrap();
    let stats = StatsPage::publish(StatsPage::create().unwrap().as_fd(), &gate).unwrap();
    let vendor = vendor::load(api, None).unwrap();
    let journal = Journal { fd: 2, session: 0 };
    Session::new(Parts {
        api,
        vendor,
        accounts: Accounts::new(api, gate, Policy::default(), stats, None, journal),
        peer: Peer::new(journal, None, None),
        memory: SessionMemory::none(),
        devices,
        log,
        move_every: None,
        orders: None,
    })
}

/// Each object would keep its structure, and be in the list for as long as the lane lives.
#[test]
fn objects_that_a_lane_looks_at_between_calls_are_forgotten() {
    let (lane, mut guest) = lane();
    let (mut request, mut reply) = (Encoder::new(), Vec::new());
    for id in 1..200 {
        lane.context.uses.announce(id);
        if id % 100 != 0 {
            continue;
        }
        request.start();
        request.word(id);
        request.word(1);
        let header = RequestHeader { kind: kind::CALL, serial: id, ..Default::default() };
        guest.send(request.finish_request(header), &[]).unwrap();
        assert!(lane.serve_next().is_ok());
        guest.receive(&mut reply).unwrap();
        assert!(lane.context.uses.is_empty());
    }
}

/// Cost of a synchronous call apart from waiting: `cargo test --release -- --ignored --nocapture call_costs`.
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

/// The loop in which `bench/callcost.py` counts instructions.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn aviary_counted_service(lane: &Rc<Lane>) {
    assert!(lane.serve_next().is_ok());
}

/// So many calls, all of a kind; without waiting, so that the count is the same every time.
fn counted(calls: u64, header: RequestHeader, log: ObjectLog) {
    let session = session_with(&API, Devices::new(None, None, 0), &Assignment::default(), log);
    let (lane, mut guest) = lane_of(session);
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
    counted(2000, RequestHeader { kind: kind::CALL, ..Default::default() }, ObjectLog::off());
}

#[test]
fn asynchronous_calls_to_count() {
    counted(2000, RequestHeader { kind: kind::CALL_ASYNC, ..Default::default() }, ObjectLog::off());
}

/// In a session that can be moved.
#[test]
fn movable_synchronous_calls_to_count() {
    counted(2000, RequestHeader { kind: kind::CALL, ..Default::default() }, ObjectLog::on());
}

#[test]
fn movable_asynchronous_calls_to_count() {
    counted(2000, RequestHeader { kind: kind::CALL_ASYNC, ..Default::default() }, ObjectLog::on());
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

#[test]
fn an_answer_that_is_read_later_takes_no_delivery_with_it() {
    let (lane, mut guest) = lane();
    let delivery = Some(Delivery { offset: 4096, bytes: 8 });
    lane.context.session.finish_later(DeferredOutput { until: None, delivery, copy: None, keep: None });
    let (mut request, mut reply) = (Encoder::new(), Vec::new());
    let mut ask = |flags| {
        request.start();
        guest
            .send(request.finish_request(RequestHeader { kind: kind::SYNC, flags, ..Default::default() }), &[])
            .unwrap();
        assert!(lane.serve_next().is_ok());
        guest.receive(&mut reply).unwrap();
        let (header, _) = ReplyHeader::parse(&reply).unwrap();
        (header.kind, header.delivered, header.flags & flag::DELIVERIES)
    };
    // Other threads would wait for it until this is read.
    assert_eq!(ask(flag::LATER), (kind::REPLY, 0, 0));
    assert_eq!(ask(0), (kind::REPLY, 1, flag::DELIVERIES));
}

#[test]
fn calls_of_a_guest_that_has_closed_its_stream_are_executed_behind_an_answer_that_nobody_reads() {
    let (arena, (to_guest, to_server)) = (Arena::create(1 << 20).unwrap(), UnixStream::pair().unwrap());
    let mut guest = LaneEnd::Stream(StreamLane::new(to_server.into(), arena.clone()));
    let server = LaneEnd::Stream(StreamLane::new(to_guest.into(), arena));
    let lane = Lane::new(session_of(&API, Devices::new(None, None, 0), &Assignment::default()), 1, server, None);
    let mut request = Encoder::new();
    for (kind, flags, ticket) in [(kind::SYNC, flag::LATER, 0), (kind::CALL_ASYNC, 0, 1), (kind::CALL_ASYNC, 0, 2)] {
        request.start();
        request.word(1);
        request.word(2);
        guest.send(request.finish_request(RequestHeader { kind, flags, ticket, ..Default::default() }), &[]).unwrap();
    }
    drop(guest);
    for _ in 0..3 {
        assert!(lane.serve_next().is_ok(), "a ticket that is never executed stops all lanes");
    }
    assert!(lane.serve_next().is_err());
}

unsafe extern "C" fn through(_: *const crate::DrainRequest) -> std::ffi::c_int {
    0
}

unsafe extern "C" fn name(_: u64) -> *const std::ffi::c_char {
    c"test device".as_ptr()
}

#[test]
fn where_a_lane_and_its_guest_have_one_processor_only_the_lane_stays_awake() {
    const AWAKE: Duration = Duration::from_micros(300);
    let page = GrantPage::create().unwrap();
    let bell = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
    let (lane, mut guest) = lane_to(Devices::new(Some(GrantPage::open(page.as_fd()).unwrap()), Some(bell), 0));
    let node = GrantPage::open(page.as_fd()).unwrap();
    node.schedule();
    let slot = &node.slots()[0];
    let mut calls = |count: u64| {
        let (mut request, mut reply) = (Encoder::new(), Vec::new());
        for i in 0..count {
            request.start();
            request.word(i);
            request.word(1);
            guest.send(request.finish_request(RequestHeader { kind: kind::CALL, ..Default::default() }), &[]).unwrap();
            assert!(lane.serve_next().is_ok());
            guest.receive(&mut reply).unwrap();
        }
        let told = ReplyHeader::parse(&reply).unwrap().0.flags & flag::STAY_AWAKE != 0;
        (told, lane.context.completion_poll_time.get())
    };
    // This test has a thread of its own.
    let everywhere = rustix::thread::sched_getaffinity(None).unwrap();
    let mut here = rustix::thread::CpuSet::new();
    here.set(rustix::thread::sched_getcpu());
    rustix::thread::sched_setaffinity(None, &here).unwrap();
    // More than ten in ten milliseconds.
    const OFTEN: u64 = 30;
    assert_eq!(calls(OFTEN), (false, Duration::ZERO), "nobody has a device");
    slot.depth_ns.store(u64::MAX, Ordering::SeqCst);
    slot.idle_hold_ns.store(1_000_000_000, Ordering::SeqCst);
    slot.allowance.store(u64::MAX - 1, Ordering::SeqCst);
    let admission = lane.context.session.devices.acquire(1, through, name, || false).unwrap().unwrap();
    lane.context.session.devices.submit_done(admission, None);
    assert_eq!(calls(OFTEN), (false, Duration::ZERO), "nobody is to be awake for it");
    slot.spin_window_ns.store(AWAKE.as_nanos() as u64, Ordering::SeqCst);
    assert_eq!(calls(OFTEN), (false, AWAKE));
    rustix::thread::sched_setaffinity(None, &everywhere).unwrap();
    if everywhere.count() > 1 {
        assert_eq!(calls(1), (true, AWAKE), "it may go elsewhere");
    }
}
