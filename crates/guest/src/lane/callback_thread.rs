//! The thread that serves callbacks of vendor threads, and calls those that a lost server owes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::sync_channel;

use aviary_transport::{LaneEnd, LaneWaker};
use aviary_wire::{Decoder, Encoder, ReplyHeader, RequestHeader, kind};

use crate::connection::Connection;
use crate::connection::callbacks::CallbackEntry;
use crate::connection::incoming::{CallbackTarget, Incoming};
use crate::descriptor::Lost;
use crate::lane::prefix::prefix;
use crate::lane::serving::{call, serve};
use crate::memory::deliveries::Waiter;
use crate::process::log;
use crate::process::signals::BlockedSignals;
use crate::process::unwind::Foreign;

/// Registers a callback. The first one starts the threads.
pub(crate) fn register(connection: &'static Connection, target: CallbackTarget, once: bool) -> Result<u64, Lost> {
    connection.callbacks.register(target, once, || start(connection))
}

/// Stack in bytes of the thread that waits for the server's death and does nothing else.
const WATCH_STACK: usize = 64 << 10;

/// Starts the threads before the lane is opened: a lane without a thread could not be opened
/// again.
fn start(connection: &'static Connection) -> Result<(), Lost> {
    let (give_end, take_end) = sync_channel::<LaneEnd>(1);
    let (give_waker, take_waker) = sync_channel::<LaneWaker>(1);
    let serve = move || {
        let Ok(end) = take_end.recv() else { return };
        if catch_unwind(AssertUnwindSafe(|| serve_lane(connection, end))).is_err() {
            connection.peer.fail("the callback thread stopped");
        }
        serve_lost(connection)
    };
    let watch = move || {
        if let Ok(waker) = take_waker.recv() {
            connection.peer.watch(&waker);
        }
    };
    let signals = BlockedSignals::new();
    let threads = || std::thread::Builder::new().name("aviary-callback".into());
    let mut started = threads().spawn(serve).map(drop);
    // A lane over a socket reports the peer's death itself.
    if started.is_ok() && !connection.memory.arena.streamed() {
        started = connection.peer.keeper.spawn(threads().stack_size(WATCH_STACK), watch);
    }
    drop(signals);
    if let Err(e) = started {
        log::line(&format!("no thread for callbacks: {e}"));
        return Err(Lost);
    }
    let end = connection.open_lane(true)?.end;
    if !connection.memory.arena.streamed() {
        give_waker.send(end.waker()).map_err(|_| Lost)?;
    }
    give_end.send(end).map_err(|_| Lost)
}

/// The callback thread. It sleeps in the lane until the server dies or the process ends.
fn serve_lane(connection: &'static Connection, mut end: LaneEnd) {
    let mut answer = Encoder::new();
    loop {
        let mut message = Vec::new();
        if let Err(e) = end.receive(&mut message) {
            connection.peer.lane_failed(e);
            return;
        }
        let (serial, at) = match ReplyHeader::parse(&message) {
            Ok((header, body)) if header.kind == kind::CALLBACK => {
                let mut fields = Decoder::new(body);
                if prefix(connection, &header, &mut fields, Waiter::Thread).is_err() {
                    return;
                }
                (header.serial, fields.position())
            }
            _ => {
                connection.peer.fail("a callback is malformed");
                return;
            }
        };
        answer.start();
        go_on(serve(connection, message, at, &mut answer));
        let header = RequestHeader { kind: kind::CALLBACK_REPLY, serial, ..RequestHeader::default() };
        if let Err(e) = end.send(answer.finish_request(header), &[]) {
            connection.peer.lane_failed(e);
            return;
        }
    }
}

/// The callback thread without an API server: callbacks that are called at most once are called, each once, with what the
/// specification returns from lost calls. The thread waits for registrations that succeed late, until the process ends.
fn serve_lost(connection: &'static Connection) -> ! {
    connection.callbacks.lose();
    loop {
        let CallbackEntry { target, handed, given, keeps, .. } = connection.callbacks.next_lost();
        let mut thrown = None;
        if let Some(lost) = connection.descriptor.callbacks.get(target.kind as usize).and_then(|kind| kind.lost) {
            let incoming = Incoming::lost(&connection.handles, target, handed);
            call(lost, &mut incoming.with(given), &mut thrown);
        }
        connection.let_go(keeps);
        go_on(thrown);
    }
}

/// Lets an exception of a callback end the process, as one does that no function of a thread catches.
fn go_on(thrown: Option<Foreign>) {
    // The thread is not the application's to end.
    if let Some(foreign) = thrown.filter(|foreign| !foreign.ends_thread()) {
        foreign.resume();
    }
}
