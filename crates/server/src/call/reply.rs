//! The reply half of a call: what the generated handler says after the vendor's function returned.

use std::ffi::{CStr, c_char, c_void};

use aviary_state::{Effect, Owner};
use aviary_transport::{copy_changes, mask_bytes};
use aviary_wire::{MAX_PREDEFINED, REJECTED_CALL, flag};

use crate::api::{CurrentObject, ExplicitState, Poll, Reject, Role, name_of};
use crate::call::handles::Mentioned;
use crate::call::{Call, HandleMark, Transfer};
use crate::handles::Published;
use crate::session::Session;
use crate::tables::deferred_outputs::{DeferredOutput, Delivery};

/// The word for "not written by the vendor's function".
const UNWRITTEN: u64 = u64::MAX;

/// Outcome words of mapped memory.
mod mapped {
    pub const IN_ARENA: u64 = 1;
    pub const ELSEWHERE: u64 = 2;
}

impl Call {
    pub fn reply_word(&mut self, v: u64) {
        self.reply.body.word(v);
    }

    /// A value of `n` bytes.
    ///
    /// # Safety
    /// `p` points to `n` readable bytes.
    pub unsafe fn reply_raw(&mut self, p: *const u8, n: usize) {
        let bytes = if n == 0 {
            &[]
        } else {
            // SAFETY: the caller's promise; nothing changes the vendor's result while it is copied.
            unsafe { std::slice::from_raw_parts(p, n) }
        };
        self.reply.body.bytes(bytes);
    }

    /// The bytes that have changed of a value of `n` bytes since it was `passed`, except for those of its members there
    /// (offset and bytes), which are told apart.
    ///
    /// # Safety
    /// `now` and `passed` point to `n` readable bytes.
    pub unsafe fn reply_changed(&mut self, now: *const u8, passed: *const u8, n: usize, apart: &[(usize, usize)]) {
        // SAFETY: the caller's promise; nothing changes the vendor's result while it is copied.
        let (now, passed) = unsafe { (std::slice::from_raw_parts(now, n), std::slice::from_raw_parts(passed, n)) };
        let mask = self.scratch(mask_bytes(n));
        // SAFETY: just made, with so many bytes.
        let mask = unsafe { std::slice::from_raw_parts_mut(mask, mask_bytes(n)) };
        for at in (0..n).filter(|at| now[*at] != passed[*at]) {
            mask[at / 8] |= 1 << (at % 8);
        }
        for at in apart.iter().flat_map(|(at, bytes)| *at..at + bytes).filter(|at| *at < n) {
            mask[at / 8] &= !(1 << (at % 8));
        }
        if mask.iter().all(|bits| *bits == 0) {
            return self.reply.body.optional_bytes(None);
        }
        let told = self.scratch(n + mask.len());
        // SAFETY: just made, with so many bytes.
        let told = unsafe { std::slice::from_raw_parts_mut(told, n + mask.len()) };
        // Nothing else is told, addresses of this process least of all.
        for at in (0..n).filter(|at| mask[at / 8] >> (at % 8) & 1 != 0) {
            told[at] = now[at];
        }
        told[n..].copy_from_slice(mask);
        self.reply.body.optional_bytes(Some(told));
    }

    /// A value of up to eight bytes that travels as a pointer does and was `passed`. False: it is as it was.
    pub fn reply_set(&mut self, passed: u64, value: u64) -> bool {
        self.reply.body.word(u64::from(value != passed));
        value != passed
    }

    /// The object that the reply mentions next ends with this one (NULL and predefined ones end nothing).
    pub fn ends_with(&mut self, ty: u32, native: u64) {
        if native != 0 {
            self.reply.owners.extend(self.object(ty, native));
        }
    }

    /// An object. One that is new to the guest enters the session's table.
    pub fn reply_handle(&mut self, ty: u32, native: u64, role: Role) -> Mentioned {
        if self.replayed.is_some() && role == Role::Borrow {
            self.expect_by_name(ty, native);
        }
        let published = self.session.objects.handles.publish_found(ty, native, role, &self.reply.owners);
        self.reply.owners.clear();
        let Published { id, new } = published.unwrap_or_else(|full| {
            self.session.peer.journal.note(&format!(
                "{}: {full}: the guest gets NULL instead of the object that the call has created",
                self.function_name()
            ));
            Published { id: 0, new: false }
        });
        if role == Role::Allocate && id > MAX_PREDEFINED {
            self.effects.rare.on_success.created = Some(id);
            self.session.show_handles();
        }
        if self.recording.on {
            self.recording.replied.push(id);
            // Nothing else says where an object comes from that a query tells the guest of.
            if new && role == Role::Borrow {
                self.recording.made.push(id);
            }
        }
        self.reply.body.word(id);
        match id {
            0 => Mentioned::Nothing,
            _ if new => Mentioned::New,
            _ => Mentioned::Known,
        }
    }

    /// A call that is made again asks the library for objects that it may list in another order here.
    fn expect_by_name(&self, ty: u32, native: u64) {
        let identity = self.session.api.handle_types.get(ty as usize).and_then(|ty| ty.identity);
        if let (Some(identity), Some(replayed)) = (identity, &self.replayed) {
            // SAFETY: the specification's own function, for an object that the vendor's function just told of.
            let name = unsafe { name_of(identity, native) };
            self.session.objects.handles.expect_next(replayed.id_of(ty, name.as_deref()));
        }
    }

    /// A new object that was written to `at`. It enters the table under the id that the guest chose, if it did.
    pub fn reply_minted(&mut self, ty: u32, native: u64, at: usize) -> Mentioned {
        let Some(id) = self.minted_id(at).filter(|_| native != 0) else {
            return self.reply_handle(ty, native, Role::Allocate);
        };
        let adopted = self.session.objects.handles.adopt(ty, id, native, &self.reply.owners);
        self.reply.owners.clear();
        let Some(ended) = adopted else {
            // Another call of this guest took the id meanwhile.
            self.session.peer.journal.note(&format!(
                "{}: the guest chose an id that is in use: the call's new object cannot be used by the guest",
                self.function_name()
            ));
            self.reply.body.word(0);
            return Mentioned::Nothing;
        };
        if let Some(ended) = ended {
            self.session.object_lost(ended);
        }
        self.effects.rare.on_success.created = Some(id);
        self.session.show_handles();
        if self.recording.on {
            self.recording.replied.push(id);
        }
        self.reply.body.word(id);
        Mentioned::New
    }

    pub fn reply_unwritten_handle(&mut self) {
        self.session.objects.handles.skip();
        if self.recording.on {
            self.recording.replied.push(0);
        }
        self.reply.body.word(UNWRITTEN);
    }

    pub fn reply_count(&mut self, n: usize) {
        self.reply.body.word(n as u64);
    }

    /// The next output, in the order of decoding: its first `valid` bytes count. `None`: the application keeps its own.
    pub fn reply_out(&mut self, valid: Option<usize>) {
        let Some(output) = self.reply.outputs.items.get(self.reply.outputs.next).copied() else {
            debug_assert!(false, "internal error: the handler wrote more outputs than the request has");
            self.reply.body.word(0);
            return;
        };
        self.reply.outputs.next += 1;
        let valid = valid.map(|n| n.min(output.buffer.len));
        match (output.place, valid) {
            (Transfer::Null, _) | (_, None) => self.reply.body.word(0),
            (Transfer::Inline, Some(n)) => {
                // SAFETY: message data and scratch memory are private to this call and have `len >= n` bytes.
                let bytes = unsafe { std::slice::from_raw_parts(output.buffer.ptr, n) };
                self.reply.body.optional_bytes(Some(bytes));
            }
            (Transfer::Arena(offset), Some(n)) => {
                if let Some((before, shared)) = output.copied_from {
                    // SAFETY: the copy, the content that it had and the block in the arena have `len >= n` bytes.
                    unsafe { copy_changes(output.buffer.ptr, before, shared, n) };
                }
                self.reply.body.word(1 + n as u64);
                match output.rows {
                    None => self.reply.region(offset, n),
                    Some(rows) => rows.regions(offset, n).for_each(|r| self.reply.region(r.offset, r.length)),
                }
            }
        }
    }

    /// How many outputs the request has named so far.
    pub fn outputs(&self) -> usize {
        self.reply.outputs.items.len()
    }

    /// The reply says nothing of the outputs before that one: the vendor's function has put another array in the
    /// place of the one that they were in.
    pub fn skip_outputs(&mut self, next: usize) {
        self.reply.outputs.next = self.reply.outputs.next.max(next);
    }

    /// A pointer that travels both ways in an element. False: it is as it was `passed`. True: it is NULL now or, where
    /// the specification says so (`given`), leads to memory that the library owns, whose content comes next. Anything
    /// else is an address of this process that means nothing in the guest and is not told: the call fails.
    pub fn reply_pointer(&mut self, passed: u64, value: u64, given: bool) -> Result<bool, Reject> {
        if value == passed {
            self.reply.body.word(0);
            return Ok(false);
        }
        if value == 0 || given && !self.is_of_this_call(value) {
            self.reply.body.word(1);
            return Ok(true);
        }
        self.session.peer.journal.note(&format!(
            "{}: the library changed a pointer in a struct in a way that the specification does not describe: the call fails",
            self.function_name()
        ));
        Err(Reject::Refused)
    }

    /// A pointer of the library's into the memory of an argument, which is at `base` and has so many bytes: how far in,
    /// or NULL. Anything else is an address of this process: the call fails.
    pub fn reply_within(&mut self, value: u64, base: u64, bytes: usize) -> Result<(), Reject> {
        let word = match value.checked_sub(base) {
            _ if value == 0 => 0,
            Some(offset) if base != 0 && offset <= bytes as u64 => offset + 1,
            _ => {
                self.session.peer.journal.note(&format!(
                    "{}: the library points elsewhere than into the argument that the specification names (`within`): the call fails",
                    self.function_name()
                ));
                return Err(Reject::Refused);
            }
        };
        self.reply.body.word(word);
        Ok(())
    }

    /// The next `buffer_until`: done already, or delivered when `poll(token)` says so.
    pub fn reply_until(&mut self, token: u64, poll: Poll, success: bool) {
        let at = self.effects.rare.untils.next;
        self.effects.rare.untils.next += 1;
        let Some(until) = self.effects.rare.untils.items.get_mut(at) else {
            debug_assert!(false, "internal error: the handler wrote more buffers than the request has");
            self.reply.body.word(1);
            return;
        };
        let bytes = if until.output && success { until.length as u64 } else { 0 };
        let delivery = match until.place {
            // The guest has had it when the call was made first.
            Transfer::Arena(offset) if self.replayed.is_none() => Some(Delivery { offset, bytes }),
            _ => None,
        };
        let mut pending =
            DeferredOutput { until: success.then_some((token, poll)), delivery, copy: None, keep: until.keep.take() };
        if self.request.is_async() {
            // There is no reply to say anything in: everything comes as a delivery.
            self.later(pending);
        } else if pending.is_final() {
            self.done_until(pending.delivery);
        } else {
            self.reply.body.word(u64::from(delivery.is_none()));
            self.later(pending);
        }
    }

    /// A call was rejected. A waiting guest has its answer; the others hear only by deliveries that the blocks
    /// are free, also those that the handler did not come to decode.
    pub(crate) fn abandon_untils(&mut self) {
        if !self.request.is_async() || self.request.header.flags & flag::ACKNOWLEDGE != 0 {
            return;
        }
        if self.effects.rare.untils.next == 0 {
            let delivery = Delivery { offset: REJECTED_CALL, bytes: self.request.header.ticket };
            return self.later(DeferredOutput { until: None, delivery: Some(delivery), copy: None, keep: None });
        }
        for at in self.effects.rare.untils.next..self.effects.rare.untils.items.len() {
            if let Transfer::Arena(offset) = self.effects.rare.untils.items[at].place {
                let delivery = Some(Delivery { offset, bytes: 0 });
                self.later(DeferredOutput { until: None, delivery, copy: None, keep: None });
            }
        }
    }

    fn done_until(&mut self, delivery: Option<Delivery>) {
        let bytes = delivery.map_or(0, |d| d.bytes);
        self.reply.body.word(1 + bytes);
        if let Some(delivery) = delivery {
            self.reply.region(delivery.offset, bytes as usize);
        }
    }

    fn later(&mut self, pending: DeferredOutput) {
        self.session.finish_later(pending);
    }

    /// A NUL-terminated string that the library owns, or NULL.
    ///
    /// # Safety
    /// `p` is NULL or a NUL-terminated string.
    pub unsafe fn reply_string(&mut self, p: *const c_char) {
        // SAFETY: the caller's promise.
        let text = (!p.is_null()).then(|| unsafe { CStr::from_ptr(p) }.to_bytes_with_nul());
        self.reply.body.optional_bytes(text);
    }

    /// Frees memory that the library has handed out, and whose content the reply has: the application has memory of its
    /// own, which it frees by the function of this name.
    ///
    /// # Safety
    /// `p` is 0 or the address of memory that the function frees, and that nothing uses any longer.
    pub unsafe fn free(&mut self, p: usize, function: &CStr) {
        if p == 0 {
            return;
        }
        if function == c"free" {
            // SAFETY: the caller's promise. A guest has no part in which memory this is.
            return unsafe { libc::free(p as *mut c_void) };
        }
        // SAFETY: the name is terminated.
        let address = unsafe { crate::connection::ffi::function(function.as_ptr()) };
        if address.is_null() {
            let name = function.to_string_lossy();
            return self.session.peer.journal.note(&format!(
                "{}: there is no {name} in this process (`freed_by`): the memory is not freed",
                self.function_name()
            ));
        }
        // SAFETY: the specification says that this function frees such memory; see above.
        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void)>(address)(p as *mut c_void) };
    }

    /// `n` bytes that the library owns, or NULL.
    ///
    /// # Safety
    /// `p` is NULL or points to `n` readable bytes.
    pub unsafe fn reply_owned(&mut self, p: *const u8, n: usize) {
        // SAFETY: the caller's promise.
        let bytes = (!p.is_null()).then(|| if n == 0 { &[] } else { unsafe { std::slice::from_raw_parts(p, n) } });
        self.reply.body.optional_bytes(bytes);
    }

    /// Memory of the library that the application reads and writes until it is unmapped.
    /// With `ready`, its content is valid only once that poll says so.
    pub fn reply_mapped(&mut self, p: *mut u8, n: usize, ready: Option<(u64, Poll)>) {
        if let Some(offset) = self.session.tables.memory.shared_offset(p, n) {
            // No caller will fetch it, but a poll may hold something that only a final answer releases.
            if ready.is_some() {
                self.later(DeferredOutput { until: ready, delivery: None, copy: None, keep: None });
            }
            self.session.tables.foreign.in_arena(1);
            self.reply.body.word(mapped::IN_ARENA);
            return self.reply.body.word(offset);
        }
        self.reply_mapped_elsewhere(p, n, ready);
    }

    /// The same for memory that may have to appear at another address in the guest: even where it lies
    /// in the arena (the shadow of an application's own buffer) its content has to be copied there.
    pub fn reply_mapped_elsewhere(&mut self, p: *mut u8, n: usize, ready: Option<(u64, Poll)>) {
        if p.is_null() {
            return self.reply.body.word(0);
        }
        match self.session.tables.foreign.map(p, n, ready) {
            Some(id) => {
                self.reply.body.word(mapped::ELSEWHERE);
                self.reply.body.word(id);
                self.reply.body.word(n as u64);
            }
            None => {
                self.session
                    .peer
                    .journal
                    .note(&format!("{}: too much memory is mapped at a time (limit)", self.function_name()));
                self.reply.body.word(0);
            }
        }
    }

    /// The guest owns one more reference of an object.
    pub fn retain(&mut self, ty: u32, native: u64) {
        if let Some(id) = self.id_of(ty, native) {
            self.session.objects.handles.retain(id);
            self.record_of_life(Effect::Retains, id);
        }
    }

    /// The guest gave a reference back, or (`all`) the object has ended.
    pub fn release(&mut self, ty: u32, native: u64, all: bool) {
        let Some(id) = self.id_of(ty, native) else { return };
        let marked = self.effects.handles.iter_mut().find(|h| h.id == id && h.mark == HandleMark::Ending);
        let marked = marked.map(|used| used.mark = HandleMark::Used).is_some();
        let handles = &self.session.objects.handles;
        let ended = if marked { handles.release_ending(id, all) } else { handles.release(id, all) };
        self.record_of_life(if ended.is_some() { Effect::Ends } else { Effect::GivesBack }, id);
        if let Some(ended) = ended {
            // Before the objects that it names are forgotten.
            self.keep_record();
            self.session.object_ended(ended);
        }
    }

    /// `refers`: calls use the other objects of this call through this one, in the place of those that were set there.
    pub fn refer(&mut self, ty: u32, native: u64, place: u64) {
        let Some(referrer) = self.id_of(ty, native) else { return };
        let objects: Vec<u64> = self.effects.handles.iter().map(|used| used.id).filter(|id| *id != referrer).collect();
        self.session.objects.handles.refer(referrer, place, &objects);
    }

    /// `refers_as`: on the object that the call has just created the same is set as on that one.
    pub fn refer_as(&mut self, ty: u32, native: u64) {
        if let (Some(created), Some(like)) = (self.effects.rare.on_success.created, self.object(ty, native)) {
            self.session.objects.handles.refer_as(created, like);
        }
    }

    #[inline]
    fn record_of_life(&mut self, effect: Effect, id: u64) {
        if self.recording.on {
            let (log, used) = (&self.session.objects.log, self.effects.handles.iter().map(|used| used.id));
            let within_limit = self.recording.keep_of_life(log, self.request.header.function, effect, id, used);
            note_limit(&self.session, within_limit);
        }
    }

    /// Keeps what the call has noted, if it belongs to anything.
    #[inline]
    pub(crate) fn keep_record(&mut self) {
        if self.recording.on {
            let (log, used) = (&self.session.objects.log, self.effects.handles.iter().map(|used| used.id));
            let within_limit = self.recording.keep(log, self.request.header.function, used);
            note_limit(&self.session, within_limit);
            if !self.recording.freed.is_empty() {
                self.forget_freed();
            }
        }
    }

    /// Memory of the library's that the call has freed is gone.
    #[cold]
    fn forget_freed(&mut self) {
        for word in std::mem::take(&mut self.recording.freed) {
            self.record_of_life(Effect::Ends, word);
            self.session.objects.log.object_ended(word);
        }
    }

    /// `obj_record` of an object that this call makes.
    pub fn record_made(&mut self, ty: u32, native: u64) {
        if self.recording.on {
            let id = self.session.objects.handles.id(ty, native);
            self.recording.made.extend(id);
        }
    }

    /// `obj_record(key...)`: this call changes that object; a later one with this key takes its place.
    pub fn record(&mut self, ty: u32, native: u64, key: &[u64]) {
        if self.recording.on {
            let id = self.id_of(ty, native);
            self.recording.changed.extend(id.map(Owner::Object));
            self.recording.key.extend_from_slice(key);
        }
    }

    /// `session_record(key...)`
    pub fn record_session(&mut self, key: &[u64]) {
        if self.recording.on {
            self.recording.changed.push(Owner::Session);
            self.recording.key.extend_from_slice(key);
        }
    }

    /// The session has called this function, and cannot be moved because of it. After the first such call of a session
    /// this is one look at a flag.
    pub fn blocks_moves(&mut self) {
        if self.recording.on {
            self.recording.on = false;
            self.session.objects.log.block(self.request.header.function);
        }
    }

    /// `thread_record(key...)`
    pub fn record_thread(&mut self, key: &[u64]) {
        if self.recording.on {
            self.recording.changed.push(Owner::Thread(self.caller.lane));
            self.recording.key.extend_from_slice(key);
        }
    }

    /// `current_record(key...)`: this call changes the object that is current on the thread.
    pub fn record_current(&mut self, key: &[u64]) {
        if self.recording.on && self.recording.current != 0 {
            self.recording.changed.push(Owner::Object(self.recording.current));
            self.recording.key.extend_from_slice(key);
        }
    }

    /// The call may depend on the object that is current on the thread. Before it, which may make another one current.
    #[cold]
    pub(crate) fn note_current(&mut self) {
        if let Some(CurrentObject { ty, get, .. }) = self.session.api.current {
            // SAFETY: the specification's own function.
            let native = unsafe { get() };
            self.recording.current = self.session.objects.handles.id(ty, native).filter(|_| native != 0).unwrap_or(0);
        }
    }

    /// `obj_depends_on`: replaying this call needs that object first.
    pub fn depends(&mut self, ty: u32, native: u64) {
        if self.recording.on {
            let id = self.id_of(ty, native);
            self.recording.depends.extend(id);
        }
    }

    /// `obj_state_cbs` of an object that this call makes.
    pub fn explicit_state(&mut self, ty: u32, native: u64, state: ExplicitState) {
        if self.recording.on
            && let Some(id) = self.session.objects.handles.id(ty, native)
        {
            self.session.objects.log.has_state(id, state);
        }
    }

    /// `same(e)`: a value that must come out equal when the call is made again.
    pub fn same(&mut self, value: u64) {
        if self.recording.on {
            self.recording.same.push(value);
        }
        if let Some(replayed) = &mut self.replayed {
            replayed.found.push(value);
        }
    }

    /// How a call that fails before the vendor's function is reported.
    #[must_use]
    pub fn fail(&self, value: i64) -> Reject {
        Reject::Failed(value)
    }

    /// The last word of every handler.
    pub fn finish(&mut self, success: bool, error_value: i64) {
        self.reply.result = Some((success, error_value));
    }

    /// The tenant may make the call. Asked by handlers that tell of refused calls themselves.
    pub fn permitted(&self) -> Result<(), Reject> {
        self.work.denied.map_or(Ok(()), Err)
    }

    /// True if the guest gets no answer.
    pub fn is_asynchronous(&self) -> bool {
        self.request.is_async()
    }

    /// True if the guest's thread did not wait for this call, which has failed or was refused. Not if it will be made later.
    pub fn failed_late(&self, handled: &Result<(), Reject>) -> bool {
        let failed = match handled {
            Ok(()) => matches!(self.reply.result, Some((false, _))),
            Err(Reject::Malformed(_) | Reject::Busy | Reject::Over) => false,
            Err(_) => true,
        };
        failed && self.is_asynchronous()
    }

    pub(crate) fn function_name(&self) -> &'static str {
        self.session.api.functions.get(self.request.header.function as usize).map_or("?", |f| f.name)
    }
}

#[inline]
fn note_limit(session: &Session, within_limit: bool) {
    session.settle_log();
    if !within_limit {
        session.peer.journal.note("its object log has reached the limit: the session can no longer be moved");
    }
}
