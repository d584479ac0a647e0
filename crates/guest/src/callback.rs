//! Functions of the application that the server may call.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::sync_channel;
use std::sync::{Mutex, MutexGuard, PoisonError};

use aviary_transport::{LaneEnd, LaneWaker};
use aviary_wire::{Decoder, Encoder, HEADER_SIZE, ReplyHeader, RequestHeader, kind};

use crate::connection::Connection;
use crate::deliveries::Waiter;
use crate::lane::prefix;
use crate::unwind::{Foreign, stopping};
use crate::{Incoming, Lost, log};

/// A function of the application that can be called back.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct CallbackTarget {
    pub function: usize,
    pub kind: u32,
    pub userdata: usize,
}

#[derive(Clone, Copy)]
struct CallbackEntry {
    target: CallbackTarget,
    once: bool,
    /// The handle that stays valid until the callback has run; 0: none.
    keeps: u64,
}

#[derive(Default)]
struct CallbackTable {
    last: u64,
    by_id: HashMap<u64, CallbackEntry>,
    /// Ids of callbacks that live as long as the session: a callback that is registered repeatedly
    /// keeps one id.
    lasting: HashMap<CallbackTarget, u64>,
    /// True if the callback thread runs.
    served: bool,
}

#[derive(Default)]
pub(crate) struct Callbacks {
    table: Mutex<CallbackTable>,
}

impl Callbacks {
    fn table(&self) -> MutexGuard<'_, CallbackTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A callback; one that is called at most once is removed.
    fn resolve(&self, id: u64) -> Option<CallbackEntry> {
        let mut table = self.table();
        let entry = *table.by_id.get(&id)?;
        if entry.once {
            table.by_id.remove(&id);
        }
        Some(entry)
    }
}

impl Connection {
    /// The id of a callback. The first one starts the thread that serves callbacks of vendor
    /// threads.
    pub fn register_callback(
        &'static self,
        function: usize,
        kind: u32,
        userdata: usize,
        once: bool,
    ) -> Result<u64, Lost> {
        let target = CallbackTarget { function, kind, userdata };
        let mut table = self.callbacks.table();
        if !table.served {
            self.start_threads()?;
            table.served = true;
        }
        if !once && let Some(id) = table.lasting.get(&target) {
            return Ok(*id);
        }
        table.last += 1;
        let id = table.last;
        table.by_id.insert(id, CallbackEntry { target, once, keeps: 0 });
        if !once {
            table.lasting.insert(target, id);
        }
        Ok(id)
    }

    /// Keeps the handle valid until the callback has run or is forgotten.
    pub fn keep_for_callback(&self, id: u64, value: u64) {
        if let Some(entry) = self.callbacks.table().by_id.get_mut(&id)
            && entry.once
            && entry.keeps == 0
            && self.handles.is_handle(value)
        {
            self.handles.retain(value);
            entry.keeps = value;
        }
    }

    /// Removes a callback that will not be called.
    pub fn forget_callback(&self, id: u64) {
        let removed = self.callbacks.table().by_id.remove(&id);
        self.let_go(removed.map_or(0, |entry| entry.keeps));
    }

    fn let_go(&self, kept: u64) {
        if kept != 0 {
            self.release(kept, false);
        }
    }

    /// Starts the threads before the lane is opened: a lane without a thread could not be opened
    /// again.
    fn start_threads(&'static self) -> Result<(), Lost> {
        let (give_end, take_end) = sync_channel::<LaneEnd>(1);
        let (give_waker, take_waker) = sync_channel::<LaneWaker>(1);
        let serve = move || {
            let Ok(end) = take_end.recv() else { return };
            if catch_unwind(AssertUnwindSafe(|| serve_lane(self, end))).is_err() {
                self.fail("the callback thread stopped");
            }
        };
        let watch = move || {
            if let Ok(waker) = take_waker.recv() {
                self.watch(&waker);
            }
        };
        let signals = BlockedSignals::new();
        let threads = || std::thread::Builder::new().name("aviary-callback".into());
        let mut started = threads().spawn(serve).map(drop);
        // A lane over a socket reports the peer's death itself.
        if started.is_ok() && !self.arena.mirrored() {
            started = self.spawn_watch(threads().stack_size(WATCH_STACK), watch);
        }
        drop(signals);
        if let Err(e) = started {
            log::line(&format!("no thread for callbacks: {e}"));
            return Err(Lost);
        }
        let end = self.open_lane(true)?.end;
        if !self.arena.mirrored() {
            give_waker.send(end.waker()).map_err(|_| Lost)?;
        }
        give_end.send(end).map_err(|_| Lost)
    }
}

/// Stack in bytes of the thread that waits for the server's death and does nothing else.
const WATCH_STACK: usize = 64 << 10;

/// Blocks all signals of this thread while a new thread inherits its mask: the application's
/// handlers must not run on a thread that the application does not know.
pub(crate) struct BlockedSignals(libc::sigset_t);

impl BlockedSignals {
    pub fn new() -> Self {
        // SAFETY: both sets are initialised by the calls before they are used.
        unsafe {
            let mut all = std::mem::zeroed();
            let mut before = std::mem::zeroed();
            libc::sigfillset(&mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
            BlockedSignals(before)
        }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: restores the mask saved by `new`.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}

/// The callback thread. It sleeps in the lane until the server dies or the process ends.
fn serve_lane(connection: &'static Connection, mut end: LaneEnd) {
    let mut answer = Encoder::new();
    loop {
        let mut message = Vec::new();
        if let Err(e) = end.receive(&mut message) {
            connection.lane_failed(e);
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
                connection.fail("a callback is malformed");
                return;
            }
        };
        answer.start();
        if let Some(foreign) = serve(connection, message, at, &mut answer) {
            // The thread is not the application's to end.
            if !foreign.ends_thread() {
                foreign.resume();
            }
        }
        let header = RequestHeader { kind: kind::CALLBACK_REPLY, serial, ..RequestHeader::default() };
        if let Err(e) = end.send(answer.finish_request(header), &[]) {
            connection.lane_failed(e);
            return;
        }
    }
}

/// Runs the callback in `message`, whose fields begin at `at`, and writes the fields of its answer. An exception that
/// it throws is returned.
pub(crate) fn serve(
    connection: &'static Connection,
    message: Vec<u8>,
    at: usize,
    answer: &mut Encoder,
) -> Option<Foreign> {
    let mut thrown = None;
    if !run(connection, message, at, answer, &mut thrown) {
        answer.start();
        answer.word(1);
    }
    thrown
}

fn run(
    connection: &'static Connection,
    message: Vec<u8>,
    at: usize,
    answer: &mut Encoder,
    thrown: &mut Option<Foreign>,
) -> bool {
    let body = message.get(HEADER_SIZE..).unwrap_or(&[]);
    let mut fields = Decoder::resume(body, at);
    let Ok(id) = fields.word() else { return false };
    let at = fields.position();
    let Some(CallbackEntry { target, keeps, .. }) = connection.callbacks.resolve(id) else { return false };
    let Some(invoke) = connection.descriptor.callbacks.get(target.kind as usize) else { return false };
    answer.word(0);
    let mut incoming = Incoming::new(connection, target, message, at, std::mem::take(answer));
    // SAFETY: a generated function that reads the fields of its kind of callback; the application
    // gave the function that it calls for exactly this kind.
    let result = catch_unwind(AssertUnwindSafe(|| stopping(|| unsafe { invoke(&mut incoming) })));
    let sound = incoming.sound();
    *answer = incoming.into_answer();
    connection.let_go(keeps);
    if result.is_err() {
        log::line("an error inside a callback");
        return false;
    }
    *thrown = result.ok().flatten();
    sound && thrown.is_none()
}
