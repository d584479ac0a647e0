//! Sessions that stop between two messages and go on, in the same module's connection or in another one.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;
use std::thread::JoinHandle;

use crate::support::api::*;
use crate::support::{Guest, HANG_TIMEOUT, adopt, fields};
use aviary_control::{CaptureDescriptors, Heard, MoveOrder, MoveReport, Patience, StateDescriptors, hear, send};
use aviary_wire::status;
use rustix::event::{PollFd, PollFlags};

/// Tests that use the API's global state.
static ALONE: Mutex<()> = Mutex::new(());
const CONFIG: &str = r#"{"session": 1, "limits": {"memory": 1000}, "movable": true}"#;
const PARKED: &str = r#"{"session": 1, "limits": {"memory": 1000}, "movable": true, "parked": true}"#;
/// The number that the node of these tests gives its attempts, which every answer repeats.
const ATTEMPT: u64 = 7;
/// Time to stand, in milliseconds, where the session shall stand.
const LONG_MS: u64 = 60_000;

/// Descriptors 1 and 2 of this process, put back when it is dropped: a damaged state may say that a session's output travels with
/// replies, for which they are replaced, and what the test program says of its tests would be lost.
struct OutputKept([OwnedFd; 2]);

impl OutputKept {
    fn new() -> Self {
        Self([
            std::io::stdout().as_fd().try_clone_to_owned().unwrap(),
            std::io::stderr().as_fd().try_clone_to_owned().unwrap(),
        ])
    }
}

impl Drop for OutputKept {
    fn drop(&mut self) {
        rustix::stdio::dup2_stdout(&self.0[0]).unwrap();
        rustix::stdio::dup2_stderr(&self.0[1]).unwrap();
    }
}

fn order(orders: &OwnedFd, order: MoveOrder) {
    send(orders.as_fd(), &order, &[], Patience::Waits).expect("an order");
}

fn report(orders: &OwnedFd) -> MoveReport {
    let timeout = HANG_TIMEOUT.try_into().unwrap();
    let ready = rustix::event::poll(&mut [PollFd::new(orders, PollFlags::IN)], Some(&timeout));
    assert_eq!(ready, Ok(1), "no report");
    match hear(orders.as_fd()) {
        Heard::Message(report) => report,
        other => panic!("{other:?}"),
    }
}

/// The place for a state that the node makes: its file, and the socket in which the rest is found.
struct Place {
    file: OwnedFd,
    rest: OwnedFd,
}

impl Place {
    fn state(self) -> StateDescriptors<OwnedFd> {
        StateDescriptors::find(self.file, self.rest.as_fd()).expect("descriptors")
    }
}

fn order_capture(orders: &OwnedFd, stop_ms: u64) -> Place {
    let [from, rest] = aviary_control::state_sockets().unwrap();
    let place = Place { file: aviary_control::state_file().unwrap(), rest };
    let handing = aviary_control::order_sockets().unwrap();
    let [one, other] = &handing;
    let all = CaptureDescriptors { handing: [one, other], file: &place.file, rest: &from };
    let order = MoveOrder::Capture { attempt: ATTEMPT, stop_ms, park: None };
    send(orders.as_fd(), &order, &all.list(), Patience::Waits).expect("an order");
    place
}

fn capture(orders: &OwnedFd, stop_ms: u64) -> Result<StateDescriptors<OwnedFd>, (String, bool)> {
    let place = order_capture(orders, stop_ms);
    match report(orders) {
        MoveReport::Captured { attempt: ATTEMPT, figures } => {
            assert!(figures.bytes > 0);
            Ok(place.state())
        }
        MoveReport::Unmovable { attempt: ATTEMPT, reason, lasting } => Err((reason, lasting)),
        other => panic!("{other:?}"),
    }
}

/// The captured session goes on in another connection.
fn move_to_another(state: StateDescriptors<OwnedFd>) -> (OwnedFd, JoinHandle<()>) {
    let (orders, server) = adopt(state, CONFIG);
    assert!(matches!(report(&orders), MoveReport::Rebuilt { .. }));
    order(&orders, MoveOrder::Go);
    (orders, server)
}

fn sum_of(a: u64, b: u64) -> aviary_wire::Encoder {
    fields(|e| (e.word(a), e.word(b)).1)
}

#[test]
fn session_goes_on_elsewhere_with_lanes_tickets_and_untold_errors() {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    PUSHED.lock().unwrap().clear();
    let (mut guest, mut orders) = Guest::connect_movable(CONFIG);
    let (mut one, mut two) = (guest.lane(), guest.lane());
    // A synchronous call so that the lane has executed what came before.
    one.call_async(PUSH, 1, fields(|e| e.word(13)));
    assert_eq!(two.call_after(ADD, 1, sum_of(1, 2), &[]).word(), 3);
    let mut servers = Vec::new();
    for round in 0..3u64 {
        let state = capture(&orders, LONG_MS).expect("a state");
        // Messages that come while the session stands wait.
        two.call_async(PUSH, 2 + round, fields(|e| e.word(20 + round)));
        let (new_orders, server) = move_to_another(state);
        orders = new_orders;
        servers.push(server);
        assert_eq!(two.call_after(ADD, 2 + round, sum_of(round, 40), &[]).word(), 40 + round);
    }
    assert_eq!(*PUSHED.lock().unwrap(), [13, 20, 21, 22]);
    assert_eq!(one.call_after(ADD, 4, sum_of(2, 2), &[]).word(), 4);
    assert_eq!(one.deferred, Some(42), "the error of an asynchronous call moved along");
    // New lanes open in the process that has the session, and closed ones end there.
    let mut three = guest.lane();
    assert_eq!(three.call(ADD, sum_of(5, 6)).word(), 11);
    guest.close(1);
    assert_eq!(three.call(ADD, sum_of(5, 7)).word(), 12);
    // Those that the session has left stand until their process is killed.
    std::mem::forget(guest);
}

#[test]
fn call_that_waits_for_its_ticket_is_taken_along() {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    PUSHED.lock().unwrap().clear();
    let (mut guest, orders) = Guest::connect_movable(CONFIG);
    let (mut one, mut two) = (guest.lane(), guest.lane());
    // Ticket 2 comes first: it waits for ticket 1, which has not been sent.
    two.call_async(PUSH, 2, fields(|e| e.word(2)));
    let state = capture(&orders, LONG_MS).expect("a state");
    let (_orders, _server) = move_to_another(state);
    one.call_async(PUSH, 1, fields(|e| e.word(1)));
    assert_eq!(two.call_after(ADD, 2, sum_of(1, 1), &[]).word(), 2);
    assert_eq!(*PUSHED.lock().unwrap(), [1, 2]);
    std::mem::forget(guest);
}

/// The captured session is parked in another connection.
fn park_in_another(state: StateDescriptors<OwnedFd>) -> (OwnedFd, JoinHandle<()>) {
    let (orders, server) = adopt(state, PARKED);
    assert_eq!(report(&orders), MoveReport::Parked);
    (orders, server)
}

/// A parked session whose program has called.
fn bring_back(orders: &OwnedFd) {
    assert_eq!(report(orders), MoveReport::Wanted);
    order(orders, MoveOrder::Rebuild);
    assert!(matches!(report(orders), MoveReport::Rebuilt { .. }));
    order(orders, MoveOrder::Go);
}

#[test]
fn parked_session_tells_of_a_call_and_answers_it_once_it_is_made_anew() {
    let (mut guest, orders) = Guest::connect_movable(CONFIG);
    let (mut lane, mut idle) = (guest.lane(), guest.lane());
    assert_eq!((lane.call(ADD, sum_of(1, 2)).word(), idle.call(ADD, sum_of(1, 3)).word()), (3, 4));
    let (orders, _first) = park_in_another(capture(&orders, LONG_MS).expect("a state"));
    let call = aviary_wire::RequestHeader { kind: aviary_wire::kind::CALL, function: ADD, ..Default::default() };
    lane.send(call, sum_of(2, 3), &[]);
    bring_back(&orders);
    assert_eq!(lane.receive().word(), 5);
    assert_eq!(idle.call(ADD, sum_of(2, 4)).word(), 6);
    // A thread that begins is wanted, too.
    let (orders, _second) = park_in_another(capture(&orders, LONG_MS).expect("a state"));
    let mut another = guest.lane();
    bring_back(&orders);
    assert_eq!((another.call(ADD, sum_of(3, 4)).word(), lane.call(ADD, sum_of(3, 5)).word()), (7, 8));
    // An operator needs no call.
    let (orders, _third) = park_in_another(capture(&orders, LONG_MS).expect("a state"));
    order(&orders, MoveOrder::Rebuild);
    assert!(matches!(report(&orders), MoveReport::Rebuilt { .. }));
    order(&orders, MoveOrder::Go);
    assert_eq!(lane.call(ADD, sum_of(4, 5)).word(), 9);
    std::mem::forget(guest);
}

#[test]
fn message_that_was_taken_and_not_begun_brings_a_parked_session_back() {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    PUSHED.lock().unwrap().clear();
    let (mut guest, orders) = Guest::connect_movable(CONFIG);
    let (mut one, mut two) = (guest.lane(), guest.lane());
    // Ticket 2 comes first: it waits for ticket 1, which has not been sent.
    two.call_async(PUSH, 2, fields(|e| e.word(2)));
    let (orders, _server) = park_in_another(capture(&orders, LONG_MS).expect("a state"));
    one.call_async(PUSH, 1, fields(|e| e.word(1)));
    bring_back(&orders);
    assert_eq!(two.call_after(ADD, 2, sum_of(1, 1), &[]).word(), 2);
    assert_eq!(*PUSHED.lock().unwrap(), [1, 2]);
    std::mem::forget(guest);
}

#[test]
fn session_goes_on_where_it_was_when_the_move_is_given_up() {
    let (mut guest, orders) = Guest::connect_movable(CONFIG);
    let mut lane = guest.lane();
    assert_eq!(lane.call(ADD, sum_of(1, 2)).word(), 3);
    for round in 0..3 {
        let state = capture(&orders, LONG_MS).expect("a state");
        if round == 1 {
            // Rebuilt elsewhere, and not taken up there: that process hears nothing and says nothing.
            let (elsewhere, server) = adopt(state, CONFIG);
            assert!(matches!(report(&elsewhere), MoveReport::Rebuilt { .. }));
            order(&elsewhere, MoveOrder::Resume);
            server.join().unwrap();
        }
        order(&orders, MoveOrder::Resume);
        assert_eq!(lane.call(ADD, sum_of(round, 2)).word(), round + 2);
        let mut another = guest.lane();
        assert_eq!(another.call(ADD, sum_of(round, 3)).word(), round + 3);
    }
    guest.leave();
}

#[test]
fn call_that_does_not_return_is_in_the_way_by_name() {
    let (mut guest, orders) = Guest::connect_movable(CONFIG);
    let (mut busy, mut idle) = (guest.lane(), guest.lane());
    busy.send(
        aviary_wire::RequestHeader { kind: aviary_wire::kind::CALL, function: SLEEP, ..Default::default() },
        fields(|e| e.word(3000)),
        &[],
    );
    // Until the call has begun the lane may stand before it, or its thread may not have come so far.
    let refusal = loop {
        match capture(&orders, 1) {
            Err(refusal) if refusal.0.starts_with("a thread") => {}
            Err(refusal) => break refusal,
            Ok(_) => order(&orders, MoveOrder::Resume),
        }
    };
    assert_eq!(refusal, ("sleep did not return within 1ms".into(), false));
    // Others go on at once.
    assert_eq!(idle.call(ADD, sum_of(1, 2)).word(), 3);
    assert_eq!(busy.receive().header.status, status::OK);
    assert!(capture(&orders, LONG_MS).is_ok());
    order(&orders, MoveOrder::Resume);
    guest.leave();
}

#[test]
fn callback_under_way_is_waited_for_and_calls_below_it_pass() {
    let (mut guest, orders) = Guest::connect_movable(CONFIG);
    let mut lane = guest.lane();
    lane.send(
        aviary_wire::RequestHeader { kind: aviary_wire::kind::CALL, function: APPLY, ..Default::default() },
        fields(|e| (e.word(1), e.word(99)).1),
        &[],
    );
    let callback = lane.receive();
    assert_eq!(callback.header.kind, aviary_wire::kind::CALLBACK);
    assert_eq!(capture(&orders, 1).err(), Some(("apply did not return within 1ms".into(), false)));
    let place = order_capture(&orders, LONG_MS);
    // The application calls from inside the callback, while the session is about to stop.
    assert_eq!(lane.call(ADD, sum_of(2, 3)).word(), 5);
    lane.answer(fields(|e| (e.word(0), e.word(7)).1));
    assert_eq!(lane.receive().word(), 7);
    assert!(matches!(report(&orders), MoveReport::Captured { attempt: ATTEMPT, .. }));
    let (_orders, _server) = move_to_another(place.state());
    assert_eq!(lane.call(ADD, sum_of(2, 4)).word(), 6);
    std::mem::forget(guest);
}

#[test]
fn session_ends_when_the_process_around_its_module_gives_it_up() {
    let (guest, orders) = Guest::connect_movable(CONFIG);
    drop(orders);
    guest.expect_end();
    std::mem::forget(guest);
}

#[test]
fn states_that_are_none_are_refused_and_the_old_session_goes_on() {
    use std::io::{Read, Seek, Write};
    let _output = OutputKept::new();
    let (mut guest, orders) = Guest::connect_movable(CONFIG);
    let mut lane = guest.lane();
    assert_eq!(lane.call(ADD, sum_of(1, 2)).word(), 3);
    let state = capture(&orders, LONG_MS).expect("a state");
    let mut whole = Vec::new();
    let mut file = std::fs::File::from(state.snapshot.try_clone().unwrap());
    file.rewind().unwrap();
    file.read_to_end(&mut whole).unwrap();
    let mut damaged: Vec<Vec<u8>> = (0..whole.len()).step_by(7).map(|cut| whole[..cut].to_vec()).collect();
    damaged.extend((0..whole.len()).step_by(11).map(|at| {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x55;
        bytes
    }));
    for bytes in damaged {
        let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
        let snapshot = rustix::fs::memfd_create("damaged", flags).unwrap();
        std::fs::File::from(snapshot.try_clone().unwrap()).write_all(&bytes).unwrap();
        use rustix::fs::SealFlags;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
        rustix::fs::fcntl_add_seals(&snapshot, seals).unwrap();
        let copy = |fd: &OwnedFd| fd.try_clone().unwrap();
        let damaged = StateDescriptors {
            snapshot,
            guest: copy(&state.guest),
            arena: copy(&state.arena),
            output: [copy(&state.output[0]), copy(&state.output[1])],
            handed: copy(&state.handed),
            heap: None,
        };
        let (elsewhere, server) = adopt(damaged, CONFIG);
        // Refused, or rebuilt although a byte differs that decides nothing: never a crash, and never heard by the guest.
        drop(elsewhere);
        server.join().expect("a damaged state is refused");
    }
    order(&orders, MoveOrder::Resume);
    assert_eq!(lane.call(ADD, sum_of(1, 3)).word(), 4);
    guest.leave();
}
