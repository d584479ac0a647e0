//! One call at the server: what the guest sent, decoded by the generated handler.
//!
//! The request is a private copy; everything in it is checked here, in the
//! order in which the handler asks for it. What the reply will need (outputs,
//! handles, charges) is remembered on the way. The reply half is in `reply.rs`, the buffers in `buffers.rs`.

use std::ffi::{c_char, c_void};
use std::sync::{Arc, Weak};

use aviary_wire::RequestHeader;

use crate::api::Reject;
use crate::callbacks::closures::{self, CallbackOwner, ClosureKey, ClosureLifetime, NamedObject, ObjectFn};
use crate::handles::in_use::LaneUses;
use crate::session::Session;
use crate::state::recording::CallRecording;
use crate::state::replayed::ReplayedCall;

mod answers;
mod buffers;
mod chains;
mod handles;
mod history;
mod memory;
pub(crate) mod per_call;
mod reply;
mod resources;
mod states;
mod values;
mod vendor_tables;

use per_call::PerCall;
pub use values::Buffer;
pub(crate) use values::{Effects, HandleMark, Output, Reply, Request, Transfer, UsedHandle, VendorWork};

/// A call under way. The generated handler reads the request, has the vendor's function called and says what the reply
/// says; its words are the methods here and in the files of this folder.
pub struct Call {
    pub(crate) session: Arc<Session>,
    pub(crate) caller: Caller,
    pub(crate) request: Request,
    pub(crate) effects: Effects,
    pub(crate) work: VendorWork,
    pub(crate) reply: Reply,
    pub(crate) recording: CallRecording,
    /// The record of the call, if it is made again: it is not charged and asks nobody, and what it read from the arena
    /// comes from the record.
    pub(crate) replayed: Option<Box<ReplayedCall>>,
}

/// The thread that executes the call.
pub(crate) struct Caller {
    /// The number of the lane whose thread it is.
    pub lane: u32,
    /// The ids that this call and those around it use, for threads that end objects.
    pub uses: Arc<LaneUses>,
    /// How many of them are not this call's.
    pub outer_uses: usize,
}

impl Call {
    /// `uses` and `lane`: of the lane whose thread executes the call.
    pub(crate) fn new(session: Arc<Session>, uses: Arc<LaneUses>, lane: u32) -> Call {
        Call {
            session,
            caller: Caller { lane, outer_uses: uses.len(), uses },
            request: Request::default(),
            effects: Effects::default(),
            work: VendorWork::default(),
            reply: Reply::default(),
            recording: CallRecording::default(),
            replayed: None,
        }
    }

    /// Sets the call up for the message in `request`.
    #[inline]
    pub(crate) fn start(&mut self, header: RequestHeader) {
        self.request.header = header;
        self.caller.outer_uses = self.caller.uses.len();
        self.caller.uses.calls(header.function);
        self.reply.body.start();
        let replayable = || self.session.api.functions.get(header.function as usize).is_some_and(|f| f.replayable);
        // What makes objects again in their own process is in its log.
        let new = || self.replayed.as_ref().is_none_or(|replayed| !replayed.is_logged);
        self.recording.start(self.session.objects.log.is_on() && replayable() && new(), &self.request.bytes);
        if self.recording.on {
            self.note_current();
        }
    }

    /// Forgets everything that belongs to the finished call, keeping its memory for the next.
    #[inline(always)]
    pub(crate) fn reset(&mut self) {
        self.request.renew();
        self.effects.renew();
        self.work.renew();
        self.reply.renew();
    }

    pub fn word(&mut self) -> Result<u64, Reject> {
        self.request.decode(|d| d.word())
    }

    /// A value that crosses as it is, because it is one of these.
    pub fn constant(&mut self, known: &[u64]) -> Result<u64, Reject> {
        let value = self.word()?;
        if !known.contains(&value) {
            return Err(Reject::Malformed("a constant that the specification does not have"));
        }
        Ok(value)
    }

    /// The bytes of a value of `n` bytes; the handler may change them.
    pub fn raw(&mut self, n: usize) -> Result<*mut u8, Reject> {
        let length = self.request.decode(|d| d.bytes().map(<[u8]>::len))?;
        if length != n {
            return Err(Reject::Malformed("a value has another size than its type"));
        }
        Ok(self.request.field_before(length))
    }

    /// The id under which the guest already knows the object that the vendor's function will write to `at`, or
    /// return (0). 0 as the id: it waits to be told.
    pub fn minted(&mut self, ty: u32, at: usize) -> Result<(), Reject> {
        let id = self.word()?;
        if id == 0 {
            return Ok(());
        }
        if !self.session.objects.handles.may_adopt(ty, id) {
            return Err(Reject::Malformed("a new object has an id that the guest may not choose"));
        }
        self.effects.minted.items.push((at, id));
        Ok(())
    }

    /// The id that was chosen for what was written to `at`. They are asked for in the order of the request.
    pub(crate) fn minted_id(&mut self, at: usize) -> Option<u64> {
        let minted = &mut self.effects.minted;
        let found = minted.items[minted.next..].iter().position(|(place, _)| *place == at)?;
        minted.next += found + 1;
        Some(minted.items[minted.next - 1].1)
    }

    /// A NUL-terminated string in private memory, or NULL.
    pub fn string(&mut self) -> Result<*mut c_char, Reject> {
        let (place, buffer) = self.reference(None, true, true)?;
        if place == Transfer::Null {
            return Ok(std::ptr::null_mut());
        }
        // SAFETY: `buffer` is private memory of `len` bytes.
        let ends = buffer.len > 0 && unsafe { *buffer.ptr.add(buffer.len - 1) } == 0;
        if !ends {
            return Err(Reject::Malformed("a string does not end with NUL"));
        }
        Ok(buffer.ptr.cast())
    }

    /// How many elements follow; `None` for a NULL array.
    pub fn array(&mut self, expected: Option<u64>) -> Result<Option<usize>, Reject> {
        let count = self.request.decode(|d| d.array())?;
        match (count, expected) {
            (Some(count), Some(expected)) if count as u64 != expected => {
                Err(Reject::Malformed("an array has another length than the specification says"))
            }
            _ => Ok(count),
        }
    }

    /// Zeroed memory until the end of the call. A call that asks for too much is refused:
    /// this unwinds to the dispatcher, before the vendor's function was called.
    pub fn scratch(&mut self, bytes: usize) -> *mut u8 {
        match self.request.scratch.allocate(bytes) {
            Some(memory) => memory,
            None => std::panic::resume_unwind(Box::new(Reject::Refused)),
        }
    }

    /// True if an address lies in memory that the guest's request was decoded to.
    pub(crate) fn is_of_this_call(&self, address: u64) -> bool {
        let pointer = address as usize as *const u8;
        let message = self.request.bytes.as_ptr_range();
        self.request.scratch.contains(pointer)
            || message.contains(&pointer)
            || self.session.tables.memory.contains(pointer)
    }

    /// A function of the vendor library.
    pub fn vendor(&self, index: u32) -> Result<*const c_void, Reject> {
        self.session.vendor.function(index as usize).ok_or_else(|| self.absent())
    }

    /// The vendor's library lacks the present function. Noted once for each: programs ask again and again.
    #[cold]
    pub fn absent(&self) -> Reject {
        self.session.accounts.note_absent(self.request.header.function);
        Reject::Absent
    }

    /// The closure to register as the callback's user data; NULL if the application passed no function.
    pub fn callback(&mut self, kind: u32, life: ClosureLifetime) -> Result<*mut c_void, Reject> {
        let id = self.word()?;
        if id == 0 {
            return Ok(std::ptr::null_mut());
        }
        if self.replayed.as_mut().is_some_and(|replayed| replayed.callback_has_run()) {
            return Ok(closures::ended().as_pointer());
        }
        let owner: Weak<dyn CallbackOwner> = Arc::<Session>::downgrade(&self.session);
        let Some((key, new)) = self.session.objects.closure(owner, id, kind, life) else {
            self.session.peer.journal.note("the guest has too many callbacks");
            return Err(Reject::Refused);
        };
        if new {
            self.effects.rare.closures.push((key, life));
        }
        if self.recording.on {
            self.recording.callbacks.push(key.number());
        }
        Ok(key.as_pointer())
    }

    /// The callback just decoded hands this object back, under the id that the guest has for it now.
    pub fn callback_names(&mut self, closure: *mut c_void, ty: u32, native: u64) {
        if let (Some(key), Some(id)) = (ClosureKey::registered(closure), self.id_of(ty, native)) {
            closures::name(key, NamedObject { ty, native, id, let_go: None });
        }
    }

    /// The same for an object that stays alive until the guest has run the callback, so that it can use it there.
    ///
    /// # Safety
    /// `hold` and `let_go` may be called with live objects of this type.
    pub unsafe fn callback_holds(
        &mut self,
        closure: *mut c_void,
        ty: u32,
        native: u64,
        hold: ObjectFn,
        let_go: ObjectFn,
    ) {
        let (Some(key), Some(id)) = (ClosureKey::registered(closure), self.id_of(ty, native)) else { return };
        if self.session.objects.handles.pin(id) {
            // SAFETY: this call holds the object, so it is live. `let_go` follows once, see `KeptObject`.
            unsafe { hold(native) };
            closures::name(key, NamedObject { ty, native, id, let_go: Some(let_go) });
        }
    }

    /// The metadata of this kind of an object; NULL if there is no such object, or it carries another kind. An argument may be an object of another
    /// type than its declaration says (`type_cast`): as in the guest, the metadata is that object's.
    pub fn metadata(&self, ty: u32, native: u64, kind: u32) -> *mut u8 {
        let Some(id) = self.object(ty, native) else { return std::ptr::null_mut() };
        if !self.effects.handles.iter().any(|used| used.id == id) {
            self.caller.uses.announce(id);
        }
        self.session.objects.handles.metadata(id, kind).unwrap_or(std::ptr::null_mut())
    }

    /// The id of an object that may be of another type than the one that an expression has.
    pub(crate) fn object(&self, ty: u32, native: u64) -> Option<u64> {
        let other = || self.effects.handles.iter().find(|h| h.native == native).map(|h| h.id);
        self.id_of(ty, native).or_else(other)
    }

    /// The id of an object that this call uses, or of any other by its native value.
    pub(crate) fn id_of(&self, ty: u32, native: u64) -> Option<u64> {
        let used = self.effects.handles.iter().find(|h| h.ty == ty && h.native == native);
        used.map(|h| h.id).or_else(|| self.session.objects.handles.id(ty, native))
    }
}
