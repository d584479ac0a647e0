//! Reads a reply.

mod bound;
mod kept;
mod tables;

use std::cell::Cell;
use std::ffi::c_char;
use std::mem::ManuallyDrop;
use std::rc::Rc;

use aviary_transport::mask_bytes;
use aviary_wire::{DecodeError, Decoder, HEADER_SIZE, HandleId, NOT_A_HANDLE, flag, kind, status};

use crate::connection::Connection;
use crate::descriptor::{Lost, Status};
use crate::handles::handle_type::Role;
use crate::lane::frame::{End, Frame};
use crate::lane::{Answer, ThreadLane};
use crate::memory::block::Block;
use crate::memory::deliveries::Pending;
use crate::memory::outputs::{Output, OutputSource, write_back};
use crate::objects::foreign::{Keep, Mapping};

/// A call's reply. A malformed one reads as zeros and ends the connection.
pub struct Reply {
    lane: Rc<ThreadLane>,
    /// Returned to the lane by `drop` and not touched afterwards.
    frame: ManuallyDrop<Box<Frame>>,
    status: Status,
    /// A deferred error. Taken by the code that reports it; otherwise it waits for the next call.
    deferred: Cell<Option<i64>>,
    /// Offset of the next field in the body.
    at: usize,
    fields: usize,
    next_output: usize,
    next_until: usize,
    success: bool,
    broken: bool,
}

impl Reply {
    #[inline]
    pub(crate) fn new(lane: Rc<ThreadLane>, frame: Box<Frame>, answer: Answer) -> Result<Self, Lost> {
        let mut reply = Reply::bare(lane, frame, Status::Ok);
        reply.at = answer.at;
        reply.fields = answer.at;
        reply.deferred = Cell::new(answer.deferred);
        reply.success = answer.flags & flag::SUCCESS != 0;
        reply.status = match answer.status {
            status::OK => Status::Ok,
            status::UNSUPPORTED => Status::Unsupported,
            status::ABSENT => Status::Absent,
            status::INVALID_HANDLE => {
                let id = reply.word();
                reply.end_dead(id);
                Status::InvalidHandle(answer.detail)
            }
            status::REFUSED => Status::Refused,
            status::FAILED => Status::Failed(reply.word() as i64),
            status::LOST => Status::Lost,
            other => {
                forget_callbacks(reply.lane.connection, &mut reply.frame);
                return Err(reply.lane.connection.peer.fail(&format!("a reply has the unknown status {other}")));
            }
        };
        if reply.success {
            if !reply.frame.ends.is_empty() {
                reply.finish_success();
            }
        } else {
            reply.finish_failure();
        }
        Ok(reply)
    }

    /// A remembered reply.
    pub(crate) fn cached(lane: Rc<ThreadLane>, mut frame: Box<Frame>, fields: &[u8]) -> Self {
        frame.reply.clear();
        frame.reply.resize(HEADER_SIZE, 0);
        frame.reply.extend_from_slice(fields);
        lane.hold_if_ahead(&mut frame);
        Reply::bare(lane, frame, Status::Ok)
    }

    /// The reply of a call that was not sent.
    pub(crate) fn refused(lane: Rc<ThreadLane>, mut frame: Box<Frame>) -> Self {
        lane.hold_if_ahead(&mut frame);
        let mut reply = Reply::bare(lane, frame, Status::Refused);
        reply.frame.reply.clear();
        reply.finish_failure();
        reply
    }

    fn bare(lane: Rc<ThreadLane>, frame: Box<Frame>, status: Status) -> Self {
        Reply {
            lane,
            frame: ManuallyDrop::new(frame),
            status,
            deferred: Cell::new(None),
            at: 0,
            fields: 0,
            next_output: 0,
            next_until: 0,
            success: false,
            broken: false,
        }
    }

    #[inline]
    pub fn status(&self) -> Status {
        self.status
    }

    /// The error of an earlier asynchronous call of this thread. Returned once: the caller must
    /// report it.
    #[inline]
    pub fn deferred(&self) -> Option<i64> {
        self.deferred.take()
    }

    /// Reads with the decoder; an error ends the connection and yields `fallback`.
    #[inline]
    pub(crate) fn read<T>(&mut self, fallback: T, f: impl FnOnce(&mut Decoder) -> Result<T, DecodeError>) -> T {
        let body = self.frame.reply.get(HEADER_SIZE..).unwrap_or(&[]);
        let mut decoder = Decoder::resume(body, self.at);
        match f(&mut decoder) {
            Ok(value) => {
                self.at = decoder.position();
                value
            }
            Err(e) => {
                self.spoil(&e);
                fallback
            }
        }
    }

    pub(crate) fn connection(&self) -> &'static Connection {
        self.lane.connection
    }

    /// The memory that several arguments name and that is in the block at `offset`: address and bytes.
    pub(crate) fn union_in(&self, offset: u64) -> Option<(usize, usize)> {
        self.frame.joined.in_block(offset)
    }

    /// Takes a block of the call, which then outlives it.
    pub(crate) fn take_block(&mut self, offset: u64) -> Option<Block> {
        let at = self.frame.blocks.iter().position(|block| block.offset == offset)?;
        Some(self.frame.blocks.swap_remove(at))
    }

    #[cold]
    fn spoil(&mut self, e: &dyn std::fmt::Display) {
        self.broken = true;
        self.lane.connection.peer.fail(&format!("a reply is malformed: {e}"));
    }

    #[inline]
    pub fn word(&mut self) -> u64 {
        self.read(0, |d| d.word())
    }

    /// # Safety
    /// `n` bytes at `to` are writable.
    pub unsafe fn raw(&mut self, to: *mut u8, n: usize) {
        self.read((), |d| {
            let data = d.bytes()?;
            // SAFETY: the caller's promise; at most `n` bytes are written.
            unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len().min(n)) };
            Ok(())
        });
    }

    /// Reads a handle; `None`: the vendor's function did not write it.
    #[inline]
    pub fn handle(&mut self, ty: u32, role: Role) -> Option<u64> {
        match self.read(NOT_A_HANDLE, |d| d.word()) {
            NOT_A_HANDLE => None,
            0 => Some(0),
            id => {
                // A remembered reply is forgotten with the handles that it names, too.
                if !self.frame.key.is_empty() {
                    self.frame.handles.push(id);
                }
                Some(self.lane.connection.handles.value_of(ty, id, role))
            }
        }
    }

    /// Reads what the server tells of the object whose handle was just read, if that is new: its metadata of that kind, `size`
    /// bytes.
    pub fn told(&mut self, value: u64, kind: u32, size: usize) {
        if value == 0 {
            return;
        }
        let to = self.lane.connection.handles.metadata(value, kind);
        self.read((), |d| {
            if let Some(told) = d.optional_bytes()?.filter(|told| told.len() == size && !to.is_null()) {
                // SAFETY: the metadata of a handle of that kind has `size` bytes; the application has no new handle yet.
                unsafe { std::ptr::copy_nonoverlapping(told.as_ptr(), to, size) };
            }
            Ok(())
        });
    }

    /// Reads the number of elements that follow, at most `limit`.
    pub fn count(&mut self, limit: usize) -> usize {
        let count = self.word();
        match usize::try_from(count) {
            Ok(count) if count <= limit => count,
            _ => {
                self.spoil(&format!("{count} elements where {limit} have room"));
                0
            }
        }
    }

    /// Copies the next output of the request to the application.
    pub fn out(&mut self) {
        let output = self.frame.outputs.get(self.next_output).copied();
        self.next_output += 1;
        let Some(output) = output else { return self.spoil(&"more outputs than the request had") };
        match self.word() {
            0 => {}
            n => self.copy_out(output, n - 1),
        }
    }

    fn copy_out(&mut self, output: Output, valid: u64) {
        if valid > output.bytes as u64 {
            return self.spoil(&format!("{valid} bytes of an output of {}", output.bytes));
        }
        let valid = valid as usize;
        match output.source {
            OutputSource::Nowhere | OutputSource::Direct => {}
            OutputSource::Message => self.copy_from_message(&output, valid),
            OutputSource::Block(offset) => {
                if !self.frame.early.is_empty() && self.frame.output_at(offset, valid).is_some() {
                    return self.copy_missing(output.to, offset, valid);
                }
                if let Ok(from) = self.lane.connection.memory.arena.pointer(offset, valid) {
                    // SAFETY: `from` is checked; the caller that added the output promised that
                    // `to` stays writable.
                    unsafe { write_back(from, self.frame.before(&output), output.to, valid, output.rows) };
                }
            }
        }
    }

    /// Copies what the application has not got ahead of the reply, of an output that it gets as it is.
    #[cold]
    fn copy_missing(&mut self, to: *mut u8, offset: u64, valid: usize) {
        for (at, length) in self.frame.early.missing(offset, valid) {
            let Ok(from) = self.lane.connection.memory.arena.pointer(offset + at as u64, length) else { return };
            // SAFETY: `from` is checked, and the part lies in the output, which the caller that added it promised to keep
            // writable.
            unsafe { write_back(from, None, to.add(at), length, None) };
        }
    }

    /// Copies the data that follows, `valid` bytes and padding, without a length word of its own.
    fn copy_from_message(&mut self, output: &Output, valid: usize) {
        let from = HEADER_SIZE + self.at;
        match self.frame.reply.get(from..from + valid) {
            Some(data) => {
                // SAFETY: the caller that added the output promised `to` for at least `valid`
                // bytes, and the content that it had has as many.
                unsafe { write_back(data.as_ptr(), self.frame.before(output), output.to, valid, output.rows) };
                self.at += aviary_wire::padded(valid);
            }
            None => self.spoil(&"an output is cut off"),
        }
    }

    /// Takes over what the library has changed of a value of `n` bytes in the application's memory, except for its members
    /// there (offset and bytes).
    ///
    /// # Safety
    /// `n` bytes at `to` are writable.
    pub unsafe fn changed(&mut self, to: *mut u8, n: usize, apart: &[(usize, usize)]) {
        let mut mistaken = 0;
        self.read((), |d| {
            let Some(data) = d.optional_bytes()? else { return Ok(()) };
            let Some((bytes, mask)) = data.split_at_checked(n).filter(|(_, mask)| mask.len() == mask_bytes(n)) else {
                mistaken = data.len();
                return Ok(());
            };
            let own = |at: usize| apart.iter().any(|(begin, bytes)| (*begin..begin + bytes).contains(&at));
            for at in (0..n).filter(|at| mask[at / 8] >> (at % 8) & 1 != 0 && !own(*at)) {
                // SAFETY: the caller's promise.
                unsafe { to.add(at).write(bytes[at]) };
            }
            Ok(())
        });
        if mistaken > 0 {
            self.spoil(&format!("{mistaken} bytes say what has changed of {n}"));
        }
    }

    /// Reads id and version of the state at `at` after the call; 0: it has none now.
    ///
    /// # Safety
    /// `at` is the address of a struct of `size` bytes whose key is `key` bytes in.
    pub unsafe fn state(&mut self, at: usize, size: usize, key: usize) {
        let (id, version) = (self.word(), self.word());
        // SAFETY: the caller's promise.
        unsafe { self.lane.connection.objects.states.bind(at, size, key, id, version) };
    }

    /// The new value of a pointer that the library advances from `from`, within `room` bytes.
    pub fn cursor(&mut self, from: u64, room: usize) -> u64 {
        match self.word() {
            u64::MAX => 0,
            moved if moved <= room as u64 => from + moved,
            moved => {
                self.spoil(&format!("a pointer has moved by {moved} of {room} bytes"));
                from
            }
        }
    }

    /// An address of the application's memory of `bytes` bytes at `base`, which an argument named, or NULL.
    pub fn within(&mut self, base: u64, bytes: usize) -> u64 {
        let Some(offset) = self.word().checked_sub(1) else { return 0 };
        if base != 0 && offset <= bytes as u64 {
            return base + offset;
        }
        self.spoil(&format!("a pointer {offset} bytes into an argument of {bytes}"));
        0
    }

    /// Finishes the next `buffer_until` of the request: now, or with a later delivery.
    pub fn until(&mut self) {
        let waiting = self.frame.untils.get(self.next_until).copied();
        self.next_until += 1;
        let Some(waiting) = waiting else { return self.spoil(&"more buffers than the request had") };
        if let (n, Some(offset)) = (self.word(), waiting)
            && n > 0
        {
            let connection = self.lane.connection;
            connection.deliveries.finish(&connection.memory, offset, usize::try_from(n - 1).unwrap_or(usize::MAX));
        }
    }

    /// Reads a string of the vendor's library, kept as long as the session.
    pub fn string(&mut self, _coupled: u64) -> *const c_char {
        self.owned().cast::<c_char>().cast_const()
    }

    /// Reads data of the vendor's library, kept as long as the session; NULL if there is none.
    pub fn owned(&mut self) -> *mut u8 {
        let connection = self.lane.connection;
        self.read(std::ptr::null_mut(), |d| {
            Ok(d.optional_bytes()?
                .map_or(std::ptr::null_mut(), |data| connection.objects.foreign.keep(data, Keep::Session, 0)))
        })
    }

    /// Reads the number of elements of an array of the library's own; `None`: it is NULL.
    pub fn given(&mut self) -> Option<usize> {
        let count = self.word().checked_sub(1)?;
        // Each element has a word at least.
        let most = self.frame.reply.len().saturating_sub(HEADER_SIZE + self.at) / size_of::<u64>();
        match usize::try_from(count).ok().filter(|count| *count <= most) {
            Some(count) => Some(count),
            None => {
                self.spoil(&format!("an array of {count} elements in a message with room for {most}"));
                None
            }
        }
    }

    /// Keeps an array of the library's as long as the session; the same content is kept once.
    pub fn keep(&self, bytes: &[u8]) -> *mut u8 {
        self.lane.connection.objects.foreign.keep(bytes, Keep::Session, 0)
    }

    /// Passes over outputs that the reply leaves out, up to output number `next`.
    pub fn skip_outputs(&mut self, next: usize) {
        self.next_output = self.next_output.max(next);
    }

    /// Reads a mapping of library memory, which the application may use until it unmaps it; NULL if
    /// there is none.
    ///
    /// # Safety
    /// `at` is NULL or the address at which the application wants the content, writable for all of
    /// it.
    pub unsafe fn mapped(&mut self, at: *mut u8, read: bool, write: bool) -> *mut u8 {
        match self.word() {
            0 => std::ptr::null_mut(),
            1 => {
                let offset = self.word();
                self.lane.connection.memory.pointer(offset)
            }
            2 => {
                let (id, bytes) = (self.word(), self.word());
                let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
                if self.broken { std::ptr::null_mut() } else { self.map(id, bytes, at, read, write) }
            }
            other => {
                self.spoil(&format!("a mapping of unknown kind {other}"));
                std::ptr::null_mut()
            }
        }
    }

    fn map(&mut self, id: u64, bytes: usize, at: *mut u8, read: bool, write: bool) -> *mut u8 {
        let connection = self.lane.connection;
        let Some(block) = connection.memory.blocks.allocate(bytes) else {
            crate::process::log::line("the arena is full: memory could not be mapped (AVIARY_ARENA sets its size)");
            return std::ptr::null_mut();
        };
        let Ok(place) = connection.memory.arena.pointer(block.offset, bytes) else { return std::ptr::null_mut() };
        let pointer = if at.is_null() { place } else { at };
        connection.objects.foreign.map(pointer as usize, Mapping { id, block, bytes, at: at as usize, write });
        if read && self.fetch(id, block.offset, bytes, at).is_err() {
            connection.objects.foreign.end(pointer as usize, id);
            connection.deliveries.take(block.offset);
            return std::ptr::null_mut();
        }
        pointer
    }

    /// Fetches the present content into the block, now or, if it is not ready, with a delivery.
    pub(crate) fn fetch(&self, id: u64, offset: u64, bytes: usize, at: *mut u8) -> Result<(), Lost> {
        let connection = self.lane.connection;
        connection
            .deliveries
            .expect(offset, Pending { to: at as usize, bytes, before: None, rows: None, block: None, ticket: 0 });
        let mut frame = self.lane.take_frame();
        frame.encoder.word(id);
        frame.encoder.word(offset);
        frame.encoder.word(bytes as u64);
        let answer = self.lane.exchange(kind::FETCH, 0, 0, &mut frame)?;
        let body = frame.reply.get(HEADER_SIZE..).unwrap_or(&[]);
        let ready = Decoder::resume(body, answer.at).word();
        self.lane.give_frame(frame);
        self.lane.keep_deferred(answer.deferred);
        match (answer.status, ready) {
            (status::OK, Ok(0)) => Ok(()),
            (status::OK, Ok(_)) => {
                connection.deliveries.finish(&connection.memory, offset, bytes);
                Ok(())
            }
            _ => Err(connection.peer.fail("mapped memory could not be fetched")),
        }
    }

    /// Remembers this reply for equal requests.
    pub fn remember(&mut self) {
        let portable =
            self.frame.outputs.iter().all(|o| matches!(o.source, OutputSource::Nowhere | OutputSource::Message));
        let from = HEADER_SIZE + self.fields;
        if let (false, true, false, Some(fields)) =
            (self.frame.key.is_empty(), portable, self.broken, self.frame.reply.get(from..))
        {
            self.lane.connection.objects.cache.put(&self.frame.key, &self.frame.handles, fields);
        }
    }

    #[cold]
    fn finish_success(&mut self) {
        let connection = self.lane.connection;
        let Frame { ends, before: kept, .. } = &mut **self.frame;
        for end in ends.drain(..) {
            match end {
                End::Shadow { to, bytes, offset, before, end } => {
                    if let Ok(from) = connection.memory.arena.pointer(offset, bytes) {
                        let own = before.and_then(|at| kept.get(at..at + bytes));
                        // SAFETY: `from` is checked; the caller that added the output promised that `to` stays writable.
                        unsafe { copy_shadow(connection, from, own, to, bytes) };
                    }
                    if end {
                        connection.objects.shadows.end(&connection.memory.blocks, to);
                        connection.objects.registries.forget(to);
                    }
                }
                End::Foreign { address, id } => {
                    let block = connection.objects.foreign.end(address, id);
                    if let Some(block) = block.and_then(|block| connection.deliveries.abandon(block)) {
                        connection.memory.blocks.free(block);
                    }
                }
                End::Callback { id } => connection.callbacks.confirm(id),
            }
        }
    }

    /// Handles the server's answer that it has no object of this id. If the guest allocated the id,
    /// the creation has failed: the call that was to end the handle ends the guest's part of it. A
    /// call that was executed out of order does nothing, because the creation may still follow.
    fn end_dead(&mut self, id: u64) {
        let minted = HandleId::from_word(id).is_some_and(HandleId::is_minted);
        if minted && !self.lane.out_of_order() {
            let dead = self.frame.ending.drain(..).filter(|(_, word)| *word == id);
            dead.for_each(|(value, _)| self.lane.connection.release(value, true));
        }
    }

    /// Undoes the effects of a call whose function failed or was not called.
    fn finish_failure(&mut self) {
        let connection = self.lane.connection;
        self.frame.minted.drain(..).for_each(|value| connection.release(value, true));
        for p in self.frame.new_shadows.drain(..) {
            connection.objects.shadows.end(&connection.memory.blocks, p);
            connection.objects.registries.forget(p);
        }
        forget_callbacks(connection, &mut self.frame);
        if self.status != Status::Ok {
            connection.end_untils(&mut self.frame);
        }
    }
}

/// Copies what the library has changed in a block that stays to the application's memory. `own`: the content that the call
/// gave it; otherwise that is with the shadow, which has the new one from now on.
///
/// # Safety
/// `bytes` bytes are readable at `from` and writable at `to`.
unsafe fn copy_shadow(connection: &Connection, from: *const u8, own: Option<&[u8]>, to: *mut u8, bytes: usize) {
    if let Some(own) = own.filter(|own| own.len() == bytes) {
        // SAFETY: the caller's promise.
        return unsafe { write_back(from, Some(own.as_ptr()), to, bytes, None) };
    }
    let before = connection.objects.shadows.before(to, bytes);
    let mut content = vec![0; bytes];
    // SAFETY: the caller's promise; the library may go on writing, so that its bytes are read once.
    unsafe {
        write_back(from, None, content.as_mut_ptr(), bytes, None);
        write_back(content.as_ptr(), before.as_ref().map(|before| before.as_ptr()), to, bytes, None);
    }
    connection.objects.shadows.note(to, content);
}

/// The call that registers these callbacks fails: none of them is called.
#[cold]
pub(crate) fn forget_callbacks(connection: &Connection, frame: &mut Frame) {
    for id in frame.once.drain(..) {
        connection.forget_callback(id);
    }
}

impl Drop for Reply {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: `drop` runs once and nothing uses the field afterwards.
        let mut frame = unsafe { ManuallyDrop::take(&mut self.frame) };
        self.lane.keep_deferred(self.deferred.take());
        self.lane.free_blocks(&mut frame);
        self.lane.give_frame(frame);
    }
}
