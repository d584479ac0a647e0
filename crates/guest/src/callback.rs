//! Functions of the application that the server may call.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::sync_channel;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use aviary_transport::{LaneEnd, LaneWaker};
use aviary_wire::{Decoder, Encoder, HEADER_SIZE, ReplyHeader, RequestHeader, kind};

use crate::connection::Connection;
use crate::deliveries::Waiter;
use crate::lane::prefix;
use crate::unwind::{Foreign, stopping};
use crate::{CallbackFn, Incoming, Lost, log};

/// A function of the application that can be called back.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct CallbackTarget {
    pub function: usize,
    pub kind: u32,
    pub userdata: usize,
}

/// The call that registered a callback.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Registration {
    /// It has not returned: the application cannot rely on the callback yet.
    Underway,
    /// It has succeeded.
    Done,
}

#[derive(Clone, Copy)]
struct CallbackEntry {
    target: CallbackTarget,
    once: bool,
    registration: Registration,
    /// The application's value of the handle that it hands back; 0: none.
    handed: u64,
    /// That handle, if it stays valid until the callback has run; 0: none.
    keeps: u64,
}

/// The callback thread.
#[derive(Default)]
enum Serving {
    #[default]
    NotStarted,
    Running,
    /// The API server is gone. The ids of callbacks that are called at most once, and that the thread still has to call.
    Lost(VecDeque<u64>),
}

#[derive(Default)]
struct CallbackTable {
    last: u64,
    by_id: HashMap<u64, CallbackEntry>,
    /// Ids of callbacks that live as long as the session: a callback that is registered repeatedly
    /// keeps one id.
    lasting: HashMap<CallbackTarget, u64>,
    serving: Serving,
}

impl CallbackTable {
    /// A callback; one that is called at most once is removed.
    fn resolve(&mut self, id: u64) -> Option<CallbackEntry> {
        let entry = *self.by_id.get(&id)?;
        if entry.once {
            self.by_id.remove(&id);
        }
        Some(entry)
    }
}

#[derive(Default)]
pub(crate) struct Callbacks {
    table: Mutex<CallbackTable>,
    /// A callback has to be called because the API server is gone.
    owed: Condvar,
}

impl Callbacks {
    fn table(&self) -> MutexGuard<'_, CallbackTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The API server is gone, and will call none of them: the callback thread does, in the order in which they were
    /// registered. Those whose registration has not succeeded yet follow if it does.
    fn lose(&self) {
        let mut table = self.table();
        let pending = |(id, entry): (&u64, &CallbackEntry)| {
            (entry.once && entry.registration == Registration::Done).then_some(*id)
        };
        let mut ids: Vec<u64> = table.by_id.iter().filter_map(pending).collect();
        ids.sort_unstable();
        table.serving = Serving::Lost(ids.into());
    }

    /// Waits for a callback that is pending although the API server is gone, and removes it.
    fn next_lost(&self) -> CallbackEntry {
        let mut table = self.table();
        loop {
            // An answer that had arrived may have been faster.
            if let Serving::Lost(owed) = &mut table.serving
                && let Some(id) = owed.pop_front()
            {
                match table.resolve(id) {
                    Some(entry) => return entry,
                    None => continue,
                }
            }
            table = self.owed.wait(table).unwrap_or_else(PoisonError::into_inner);
        }
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
        if let Serving::NotStarted = table.serving {
            self.start_threads()?;
            table.serving = Serving::Running;
        }
        if !once && let Some(id) = table.lasting.get(&target) {
            return Ok(*id);
        }
        table.last += 1;
        let id = table.last;
        let registration = Registration::Underway;
        table.by_id.insert(id, CallbackEntry { target, once, registration, handed: 0, keeps: 0 });
        if !once {
            table.lasting.insert(target, id);
        }
        Ok(id)
    }

    /// Notes the handle that the callback hands back, which stays valid until it has run or is forgotten.
    pub fn keep_for_callback(&self, id: u64, value: u64) {
        if let Some(entry) = self.callbacks.table().by_id.get_mut(&id)
            && entry.once
            && entry.handed == 0
        {
            entry.handed = value;
            if self.handles.is_handle(value) {
                self.handles.retain(value);
                entry.keeps = value;
            }
        }
    }

    /// The call that registered a callback, called at most once, has succeeded.
    pub fn confirm_callback(&self, id: u64) {
        let mut table = self.callbacks.table();
        let Some(entry) = table.by_id.get_mut(&id) else { return };
        entry.registration = Registration::Done;
        if let Serving::Lost(owed) = &mut table.serving {
            owed.push_back(id);
            self.callbacks.owed.notify_one();
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
            serve_lost(self)
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
        go_on(serve(connection, message, at, &mut answer));
        let header = RequestHeader { kind: kind::CALLBACK_REPLY, serial, ..RequestHeader::default() };
        if let Err(e) = end.send(answer.finish_request(header), &[]) {
            connection.lane_failed(e);
            return;
        }
    }
}

/// The callback thread without an API server: callbacks that are called at most once are called, each once, with what the
/// specification returns from lost calls. The thread waits for registrations that succeed late, until the process ends.
fn serve_lost(connection: &'static Connection) -> ! {
    connection.callbacks.lose();
    loop {
        let CallbackEntry { target, handed, keeps, .. } = connection.callbacks.next_lost();
        let mut thrown = None;
        if let Some(lost) = connection.descriptor.callbacks.get(target.kind as usize).and_then(|kind| kind.lost) {
            call(lost, &mut Incoming::lost(connection, target, handed), &mut thrown);
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

/// Runs a generated function for the application's. False: the runtime has made a mistake.
fn call(function: CallbackFn, incoming: &mut Incoming, thrown: &mut Option<Foreign>) -> bool {
    // SAFETY: a generated function that reads the fields of its kind of callback; the application
    // gave the function that it calls for exactly this kind.
    let result = catch_unwind(AssertUnwindSafe(|| stopping(|| unsafe { function(incoming) })));
    if result.is_err() {
        log::line("an error inside a callback");
        return false;
    }
    *thrown = result.ok().flatten();
    true
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
    let Some(CallbackEntry { target, keeps, .. }) = connection.callbacks.table().resolve(id) else { return false };
    let Some(kind) = connection.descriptor.callbacks.get(target.kind as usize) else { return false };
    answer.word(0);
    let mut incoming = Incoming::new(connection, target, message, at, std::mem::take(answer));
    let ran = call(kind.invoke, &mut incoming, thrown);
    let sound = incoming.sound();
    *answer = incoming.into_answer();
    connection.let_go(keeps);
    ran && sound && thrown.is_none()
}
