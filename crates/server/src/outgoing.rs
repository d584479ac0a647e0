//! A callback on its way from the vendor library to the guest, and its answer.

use std::ffi::{CStr, c_char, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use aviary_wire::{Decoder, Encoder, HEADER_SIZE, INLINE_OUTPUT, ReplyHeader, RequestHeader, kind};

use crate::api::Role;
use crate::closures::{self, Called, NamedObject};
use crate::lane::{LaneEnded, Piggyback, send_on, waiting_lane, yield_ticket};
use crate::posted::PostedCallback;
use crate::session::{KeptObject, Session};

/// The first word of an answer.
const DONE: u64 = 0;

/// A callback being prepared.
pub struct Outgoing {
    session: Arc<Session>,
    message: Encoder,
    outputs: Vec<(*mut u8, usize)>,
    names: Option<NamedObject>,
    kept: Option<KeptObject>,
}

/// The answer of the guest's function.
pub struct Answer {
    session: Arc<Session>,
    message: Vec<u8>,
    at: usize,
    outputs: std::vec::IntoIter<(*mut u8, usize)>,
    _kept: Option<KeptObject>,
}

impl Outgoing {
    /// `closure` is what was registered with the vendor library; NULL stands for the newest of its kind.
    pub fn begin(closure: *mut c_void, kind: u32) -> Option<Outgoing> {
        let Called { session, id, names, kept } = closures::called(closure, kind)?;
        if session.is_dead() {
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
            None => self.session.handles.publish(ty, native, role).unwrap_or(0),
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

    /// # Safety
    /// `p` is NULL or points to `n` bytes: readable, and writable for an output, until the callback returns.
    pub unsafe fn buffer(&mut self, p: *mut u8, n: usize, input: bool, output: bool) {
        if p.is_null() {
            self.message.buffer_null();
        } else if input || n <= INLINE_OUTPUT {
            // SAFETY: the caller's promise; small outputs show their present content too.
            self.message.buffer_inline(unsafe { std::slice::from_raw_parts(p, n) });
        } else {
            self.message.buffer_reserved(n);
        }
        if output {
            self.outputs.push((p, n));
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
        self.session.stats.callbacks.fetch_add(1, Ordering::Relaxed);
        self.session.late.leave();
        let header = ReplyHeader { kind: kind::CALLBACK, ..ReplyHeader::default() };
        let mut message = Vec::new();
        let exchanged = match waiting_lane(&self.session) {
            Some(lane) => lane.exchange(header, &mut self.message, &mut message),
            None => {
                yield_ticket(&self.session);
                exchange_apart(&self.session, &mut self.message, &mut message)
            }
        };
        if let Err(LaneEnded::Broken(reason)) = exchanged {
            self.session.fail(&format!("a callback: {reason}"));
            return None;
        }
        exchanged.ok()?;
        let outputs = std::mem::take(&mut self.outputs).into_iter();
        let mut answer = Answer { session: self.session, message, at: 0, outputs, _kept: self.kept };
        (answer.word() == DONE).then_some(answer)
    }

    /// Sends it without waiting: once the vendor's function has returned, if the guest waits for this thread's call,
    /// otherwise from another thread.
    pub fn post(self) {
        self.session.stats.callbacks.fetch_add(1, Ordering::Relaxed);
        let Outgoing { session, message, kept, .. } = self;
        let callback = PostedCallback { message, kept };
        match waiting_lane(&session) {
            Some(lane) => lane.post(callback),
            None => session.posted.push(&session, callback),
        }
    }
}

/// Sends a callback on the lane for callbacks and waits for the guest's answer, which is left in `into`.
pub fn exchange_apart(session: &Session, message: &mut Encoder, into: &mut Vec<u8>) -> Result<(), LaneEnded> {
    let mut header = ReplyHeader { kind: kind::CALLBACK, ..ReplyHeader::default() };
    let exchanged = session.callback_lane.with(|end| {
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
        self.session.handles.native(ty, id).unwrap_or_default()
    }

    /// Copies the next output buffer back to the vendor library.
    pub fn out(&mut self) {
        let Some((to, room)) = self.outputs.next() else { return };
        let Some(Some(bytes)) = self.decode(|d| d.optional_bytes().map(|b| b.map(<[u8]>::to_vec))) else { return };
        if to.is_null() {
            return;
        }
        // SAFETY: `Outgoing::buffer` was promised `room` writable bytes until the callback returns.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len().min(room)) };
    }
}
