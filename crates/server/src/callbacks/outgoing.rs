//! A callback on its way from the vendor library to the guest, and its answer.

use std::any::Any;
use std::ffi::{CStr, c_char, c_void};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use aviary_transport::copy_changes;
use aviary_wire::{Decoder, Encoder, HEADER_SIZE, ReplyHeader, RequestHeader, kind};

use crate::api::Role;
use crate::callbacks::closures::{self, Called, KeptObject, NamedObject};
use crate::callbacks::posted::{PostedCallback, TooManyPosted};
use crate::lane::current::{lane_of, waiting_lane};
use crate::lane::ended::LaneEnded;
use crate::lane::sending::{Piggyback, send_on};
use crate::session::Session;

/// The first word of an answer.
const DONE: u64 = 0;

/// A callback being prepared.
pub struct Outgoing {
    session: Arc<Session>,
    message: Encoder,
    outputs: Vec<CallbackOutput>,
    names: Option<NamedObject>,
    kept: Option<KeptObject>,
}

/// Memory of the library's that the application's function may write.
struct CallbackOutput {
    to: *mut u8,
    room: usize,
    /// Where in the message the content is that it had; `None`: all of it is written.
    before: Option<usize>,
}

/// The message of a callback as it was sent: `prefix` bytes longer than it was written, at its beginning.
struct Sent {
    message: Encoder,
    prefix: usize,
}

impl Sent {
    fn at(&self, at: usize, bytes: usize) -> Option<&[u8]> {
        let at = at.checked_add(self.prefix)?;
        self.message.message().get(at..at.checked_add(bytes)?)
    }
}

/// The answer of the guest's function.
pub struct Answer {
    session: Arc<Session>,
    message: Vec<u8>,
    at: usize,
    outputs: std::vec::IntoIter<CallbackOutput>,
    sent: Sent,
    _kept: Option<KeptObject>,
}

impl Outgoing {
    /// `closure` is what was registered with the vendor library; NULL stands for the newest of its kind.
    pub fn begin(closure: *mut c_void, kind: u32) -> Option<Outgoing> {
        let Called { owner, id, names, kept } = closures::called(closure, kind)?;
        let owner: Arc<dyn Any + Send + Sync> = owner;
        // Sessions are the only owners.
        let session = owner.downcast::<Session>().ok()?;
        if session.pause.is_dead() {
            return None;
        }
        let mut message = Encoder::new();
        message.start();
        message.word(id);
        Some(Outgoing { session, message, outputs: Vec::new(), names, kept })
    }

    pub fn word(&mut self, v: u64) {
        self.message.word(v);
    }

    pub fn handle(&mut self, ty: u32, native: u64, role: Role) {
        let id = match self.names.filter(|object| (object.ty, object.native) == (ty, native)) {
            Some(object) => object.id,
            None => self.session.objects.handles.publish(ty, native, role).unwrap_or(0),
        };
        self.message.word(id);
    }

    /// # Safety
    /// `p` is NULL or a NUL-terminated string.
    pub unsafe fn string(&mut self, p: *const c_char) {
        if p.is_null() {
            return self.message.buffer_null();
        }
        // SAFETY: the caller's promise.
        self.message.buffer_inline(unsafe { CStr::from_ptr(p) }.to_bytes_with_nul());
    }

    /// Begins an array of so many elements, which follow; `None`: the library has NULL there.
    pub fn array(&mut self, count: Option<usize>) -> Option<usize> {
        self.message.array(count);
        count
    }

    /// `written`: the application writes all of an output; of others what it leaves alone stays as it is.
    ///
    /// # Safety
    /// `p` is NULL or points to `n` bytes: readable, and writable for an output, until the callback returns.
    pub unsafe fn buffer(&mut self, p: *mut u8, n: usize, input: bool, output: bool, written: bool) {
        let mut before = None;
        if p.is_null() {
            self.message.buffer_null();
        } else if input || !written {
            before = (!written).then_some(self.message.len() + size_of::<u64>());
            // SAFETY: the caller's promise; an output may hold any bytes, which are sent.
            self.message.buffer_inline(unsafe { std::slice::from_raw_parts(p, n) });
        } else {
            self.message.buffer_reserved(n);
        }
        if output {
            self.outputs.push(CallbackOutput { to: p, room: n, before });
        }
    }

    /// # Safety
    /// `p` points to `n` readable bytes.
    pub unsafe fn raw(&mut self, p: *const u8, n: usize) {
        // SAFETY: the caller's promise.
        self.message.bytes(unsafe { std::slice::from_raw_parts(p, n) });
    }

    /// Sends it and waits for the answer. `None`: the guest is gone or refused.
    pub fn send(mut self) -> Option<Answer> {
        self.session.accounts.stats.callbacks.fetch_add(1, Ordering::Relaxed);
        self.session.tables.late.leave();
        let header = ReplyHeader { kind: kind::CALLBACK, ..ReplyHeader::default() };
        let (mut message, written) = (Vec::new(), self.message.len());
        let exchanged = match waiting_lane(&self.session).and_then(|context| context.lane()) {
            Some(lane) => lane.call_back(header, &mut self.message, &mut message),
            None => {
                lane_of(&self.session).into_iter().for_each(|lane| lane.yield_turn());
                exchange_apart(&self.session, &mut self.message, &mut message)
            }
        };
        if let Err(LaneEnded::Broken(reason)) = exchanged {
            self.session.fail(&format!("a callback: {reason}"));
            return None;
        }
        exchanged.ok()?;
        let outputs = std::mem::take(&mut self.outputs).into_iter();
        let sent = Sent { prefix: self.message.len() - written, message: self.message };
        let mut answer = Answer { session: self.session, message, at: 0, outputs, sent, _kept: self.kept };
        (answer.word() == DONE).then_some(answer)
    }

    /// Sends it without waiting: once the vendor's function has returned, if the guest waits for this thread's call,
    /// otherwise from another thread.
    pub fn post(self) {
        self.session.accounts.stats.callbacks.fetch_add(1, Ordering::Relaxed);
        let Outgoing { session, message, kept, .. } = self;
        let callback = PostedCallback { message, kept };
        if let Some(lane) = waiting_lane(&session) {
            return lane.posted.borrow_mut().push(callback);
        }
        let pushed = session.callbacks.posted.push(callback, || start_sender(session.clone()));
        if let Err(TooManyPosted) = pushed {
            session.fail("the guest does not execute its callbacks");
        }
    }
}

/// Starts the thread that sends posted callbacks.
fn start_sender(session: Arc<Session>) -> io::Result<()> {
    let send = move || {
        session.callbacks.posted.send_all(|message| {
            // A guest that is gone or answers nonsense has ended the session.
            let _ = exchange_apart(&session, message, &mut Vec::new());
        });
    };
    std::thread::Builder::new().name("posted-callbacks".into()).spawn(send).map(drop)
}

/// Sends a callback on the lane for callbacks and waits for the guest's answer, which is left in `into`.
pub fn exchange_apart(session: &Session, message: &mut Encoder, into: &mut Vec<u8>) -> Result<(), LaneEnded> {
    let mut header = ReplyHeader { kind: kind::CALLBACK, ..ReplyHeader::default() };
    let exchanged = session.callbacks.lane.with(|end| {
        send_on(session, end, &mut header, message, &mut Vec::new(), Piggyback::default(), &mut Vec::new())?;
        end.receive(into)?;
        let (header, _) = RequestHeader::parse(into).map_err(|e| LaneEnded::Broken(e.to_string()))?;
        match header.kind {
            kind::CALLBACK_REPLY => Ok(()),
            other => Err(LaneEnded::Broken(format!("a message of kind {other} on the callback lane"))),
        }
    });
    exchanged.unwrap_or(Err(LaneEnded::Closed))
}

impl Answer {
    fn decode<T>(&mut self, read: impl FnOnce(&mut Decoder) -> Result<T, aviary_wire::DecodeError>) -> Option<T> {
        let mut decoder = Decoder::resume(self.message.get(HEADER_SIZE..).unwrap_or_default(), self.at);
        let result = read(&mut decoder);
        self.at = decoder.position();
        result.map_err(|error| self.session.fail(&format!("the answer to a callback: {error}"))).ok()
    }

    pub fn word(&mut self) -> u64 {
        self.decode(|d| d.word()).unwrap_or(0)
    }

    /// # Safety
    /// `to` has room for `n` bytes.
    pub unsafe fn raw(&mut self, to: *mut u8, n: usize) {
        let Some(bytes) = self.decode(|d| d.bytes().map(<[u8]>::to_vec)) else { return };
        // SAFETY: the caller's promise; no more than `n` bytes are written.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len().min(n)) };
    }

    /// The native value of a handle that the guest answered; 0 for anything that is none.
    pub fn handle(&mut self, ty: u32) -> u64 {
        let id = self.word();
        self.session.objects.handles.native(ty, id).unwrap_or_default()
    }

    /// Copies the next output buffer back to the vendor library.
    pub fn out(&mut self) {
        let Some(CallbackOutput { to, room, before }) = self.outputs.next() else { return };
        let Some(Some(bytes)) = self.decode(|d| d.optional_bytes().map(|b| b.map(<[u8]>::to_vec))) else { return };
        if to.is_null() {
            return;
        }
        let length = bytes.len().min(room);
        let before = before.and_then(|at| self.sent.at(at, length));
        // SAFETY: `Outgoing::buffer` was promised `room` writable bytes until the callback returns.
        unsafe {
            match before {
                Some(before) => copy_changes(bytes.as_ptr(), before.as_ptr(), to, length),
                None => std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, length),
            }
        }
    }
}
