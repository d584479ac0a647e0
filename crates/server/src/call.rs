//! One call at the server: what the guest sent, decoded by the generated handler.
//!
//! The request is a private copy; everything in it is checked here, in the
//! order in which the handler asks for it. What the reply will need (outputs,
//! handles, charges) is remembered on the way. The reply half is in `reply.rs`.

use std::ffi::{c_char, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use aviary_gate::Charges;
use aviary_wire::{BufferRef, DecodeError, Decoder, Encoder, HEADER_SIZE, RequestHeader, kind};

use crate::api::Reject;
use crate::clock;
use crate::closures::{self, ClosureKey, ClosureLifetime, NamedObject, ObjectFn};
use crate::config::MAX_SCRATCH;
use crate::devices::{Admission, Drain, Name, device_name};
use crate::freed::Freeing;
use crate::in_use::LaneUses;
use crate::lane;
use crate::recording::CallRecording;
use crate::residency::{ResidencyDevices, as_shown, devices_of};
use crate::residents::UsedResident;
use crate::scratch::Scratch;
use crate::session::Session;
use crate::state::ReplayedCall;
use crate::states::UsedState;

mod handles;

/// Memory of `len` bytes behind one pointer argument; NULL if the application passed NULL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffer {
    pub ptr: *mut u8,
    pub len: usize,
}

impl Buffer {
    const NULL: Buffer = Buffer { ptr: std::ptr::null_mut(), len: 0 };
}

/// How a buffer crossed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transfer {
    Null,
    /// In the message, both ways (also outputs without data).
    Inline,
    Arena(u64),
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    pub place: Transfer,
    pub buffer: Buffer,
}

/// A buffer that the vendor library may use after its function returned.
pub(crate) struct UntilBuffer {
    pub place: Transfer,
    pub output: bool,
    pub length: usize,
    /// Private memory that must outlive the call.
    pub keep: Option<Box<[u8]>>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct UsedHandle {
    pub ty: u32,
    pub native: u64,
    pub id: u64,
    pub mark: HandleMark,
}

/// How the table knows an object that a call uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HandleMark {
    Used,
    /// Given back by this call.
    Ending,
    /// No other call uses it meanwhile.
    Exclusive,
}

/// Effects that take place only if the call succeeds.
#[derive(Default)]
pub(crate) struct OnSuccess {
    pub created: Option<u64>,
    pub unmapped: Vec<u64>,
    pub unmapped_in_arena: i64,
    pub uncharged: Vec<(usize, u64)>,
    /// Shadows whose content the guest copies to the application.
    pub copied_back: Vec<(u64, u64)>,
}

impl OnSuccess {
    /// Nothing is noted any longer; the memory is for the next call.
    pub(crate) fn forget(&mut self) {
        self.created = None;
        self.unmapped.clear();
        self.unmapped_in_arena = 0;
        self.uncharged.clear();
        self.copied_back.clear();
    }
}

pub struct Call {
    pub(crate) session: Arc<Session>,
    pub(crate) header: RequestHeader,
    /// The whole message; fields start after the header.
    pub(crate) request: Vec<u8>,
    at: usize,
    scratch: Scratch,
    pub(crate) reply: Encoder,
    pub(crate) handles: Vec<UsedHandle>,
    /// The ids that this call and those around it use, for threads that end objects.
    uses: Arc<LaneUses>,
    /// How many of them are not this call's.
    outer_uses: usize,
    /// Ids that the guest chose for what the call creates, by the address where the vendor's function writes it
    /// (0: it returns it).
    minted: Vec<(usize, u64)>,
    next_minted: usize,
    /// The owners of the object that the reply mentions next.
    pub(crate) owners: Vec<u64>,
    /// The id because of which the call was rejected.
    pub(crate) invalid: u64,
    pub(crate) outputs: Vec<Output>,
    pub(crate) next_output: usize,
    pub(crate) untils: Vec<UntilBuffer>,
    pub(crate) next_until: usize,
    /// Arena regions whose content the reply changes: carried along if the arena is mirrored.
    pub(crate) regions: Vec<(u64, u64)>,
    pub(crate) closures: Vec<(ClosureKey, ClosureLifetime)>,
    pub(crate) states: Vec<UsedState>,
    /// Memory of the library's that it frees.
    pub(crate) freeing: Vec<Freeing>,
    /// Memory of the library's that it may change.
    pub(crate) used_residents: Vec<UsedResident>,
    /// Pointers that the library may advance, and by how many bytes.
    pub(crate) cursors: Vec<(usize, usize)>,
    pub(crate) holding: Charges,
    pub(crate) on_success: OnSuccess,
    pub(crate) result: Option<(bool, i64)>,
    /// Objects that it may create, beyond those that it has.
    pub(crate) reserved: u64,
    pub(crate) recording: CallRecording,
    /// The record of the call, if it is made again: it is not charged and asks nobody, and what it read from the arena
    /// comes from the record.
    pub(crate) replayed: Option<Box<ReplayedCall>>,
    /// The number of the lane whose thread executes the call.
    pub(crate) lane: u32,
    /// The device that the call gives work.
    stay: Option<Admission>,
    /// The device that it may be waiting for.
    wait: Option<usize>,
    /// The cost of the call, if the library reports it.
    device_time: Option<Duration>,
    vendor_since: u64,
    /// Ticks inside the vendor library.
    pub(crate) vendor_ticks: u64,
    /// Why the request is malformed, for the log.
    pub(crate) complaint: Option<DecodeError>,
}

impl Call {
    /// `uses` and `lane`: of the lane whose thread executes the call.
    pub(crate) fn new(session: Arc<Session>, uses: Arc<LaneUses>, lane: u32) -> Call {
        Call {
            session,
            outer_uses: uses.len(),
            uses,
            header: RequestHeader::default(),
            request: Vec::new(),
            at: 0,
            scratch: Scratch::new(MAX_SCRATCH),
            reply: Encoder::new(),
            handles: Vec::new(),
            minted: Vec::new(),
            next_minted: 0,
            owners: Vec::new(),
            invalid: 0,
            outputs: Vec::new(),
            next_output: 0,
            untils: Vec::new(),
            next_until: 0,
            regions: Vec::new(),
            closures: Vec::new(),
            states: Vec::new(),
            freeing: Vec::new(),
            used_residents: Vec::new(),
            cursors: Vec::new(),
            holding: Charges::default(),
            on_success: OnSuccess::default(),
            result: None,
            reserved: 0,
            recording: CallRecording::default(),
            replayed: None,
            lane,
            stay: None,
            wait: None,
            device_time: None,
            vendor_since: 0,
            vendor_ticks: 0,
            complaint: None,
        }
    }

    /// Sets the call up for the message in `request`.
    #[inline]
    pub(crate) fn start(&mut self, header: RequestHeader) {
        self.header = header;
        self.at = 0;
        self.outer_uses = self.uses.len();
        self.uses.calls(header.function);
        self.reply.start();
        self.next_output = 0;
        self.next_until = 0;
        self.next_minted = 0;
        self.invalid = 0;
        self.result = None;
        self.complaint = None;
        let replayable = || self.session.api.functions.get(header.function as usize).is_some_and(|f| f.replayable);
        self.recording.start(self.session.log.is_on() && replayable(), &self.request);
        if self.recording.on {
            self.note_current();
        }
    }

    /// Forgets everything that belongs to the finished call, keeping its memory for the next.
    #[inline(always)]
    pub(crate) fn reset(&mut self) {
        self.scratch.reset();
        self.handles.clear();
        self.minted.clear();
        self.owners.clear();
        self.outputs.clear();
        self.untils.clear();
        self.regions.clear();
        self.closures.clear();
        self.freeing.clear();
        self.used_residents.clear();
        if self.reply.capacity() > MAX_KEPT_BYTES {
            self.reply.shrink(MAX_KEPT_BYTES);
        }
        if self.request.capacity() > MAX_KEPT_BYTES {
            self.request = Vec::new();
        }
    }

    fn decode<T>(&mut self, read: impl FnOnce(&mut Decoder) -> Result<T, DecodeError>) -> Result<T, Reject> {
        let body = self.request.get(HEADER_SIZE..).unwrap_or_default();
        let mut decoder = Decoder::resume(body, self.at);
        let result = read(&mut decoder);
        self.at = decoder.position();
        result.map_err(|error| {
            self.complaint = Some(error);
            Reject::Malformed("the message")
        })
    }

    pub(crate) fn trailing(&self) -> bool {
        self.at != self.request.len().saturating_sub(HEADER_SIZE)
    }

    pub fn word(&mut self) -> Result<u64, Reject> {
        self.decode(|d| d.word())
    }

    /// The bytes of a value of `n` bytes; the handler may change them.
    pub fn raw(&mut self, n: usize) -> Result<*mut u8, Reject> {
        let length = self.decode(|d| d.bytes().map(<[u8]>::len))?;
        if length != n {
            return Err(Reject::Malformed("a value has another size than its type"));
        }
        Ok(self.field_before(length))
    }

    /// The data of the field just decoded, `length` bytes and their padding before the current position.
    fn field_before(&mut self, length: usize) -> *mut u8 {
        let start = HEADER_SIZE + self.at - aviary_wire::padded(length);
        // The decoder found `length` bytes there, so `start` is inside or (empty data) at the end.
        self.request[start..].as_mut_ptr()
    }

    /// The id under which the guest already knows the object that the vendor's function will write to `at`, or
    /// return (0). 0 as the id: it waits to be told.
    pub fn minted(&mut self, ty: u32, at: usize) -> Result<(), Reject> {
        let id = self.word()?;
        if id == 0 {
            return Ok(());
        }
        if !self.session.handles.may_adopt(ty, id) {
            return Err(Reject::Malformed("a new object has an id that the guest may not choose"));
        }
        self.minted.push((at, id));
        Ok(())
    }

    /// The id that was chosen for what was written to `at`. They are asked for in the order of the request.
    pub(crate) fn minted_id(&mut self, at: usize) -> Option<u64> {
        let found = self.minted[self.next_minted..].iter().position(|(place, _)| *place == at)?;
        self.next_minted += found + 1;
        Some(self.minted[self.next_minted - 1].1)
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
        let count = self.decode(|d| d.array())?;
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
        match self.scratch.allocate(bytes) {
            Some(memory) => memory,
            None => std::panic::resume_unwind(Box::new(Reject::Refused)),
        }
    }

    /// True if an address lies in memory that the guest's request was decoded to.
    pub(crate) fn is_of_this_call(&self, address: u64) -> bool {
        let pointer = address as usize as *const u8;
        let message = self.request.as_ptr_range();
        self.scratch.contains(pointer) || message.contains(&pointer) || self.session.memory.contains(pointer)
    }

    /// An input. `private`: the handler relies on its content, so it must not stay in the guest's reach.
    pub fn buffer_in(&mut self, expected: Option<usize>, private: bool) -> Result<Buffer, Reject> {
        Ok(self.reference(expected, private, true)?.1)
    }

    pub fn buffer_out(&mut self, expected: Option<usize>) -> Result<Buffer, Reject> {
        self.output(expected, false)
    }

    pub fn buffer_inout(&mut self, expected: Option<usize>) -> Result<Buffer, Reject> {
        self.output(expected, true)
    }

    fn output(&mut self, expected: Option<usize>, input: bool) -> Result<Buffer, Reject> {
        let (place, buffer) = self.reference(expected, false, input)?;
        self.outputs.push(Output { place, buffer });
        Ok(buffer)
    }

    /// Storage of `bytes` bytes even where the application passed NULL.
    pub fn force(&mut self, buffer: Buffer, bytes: usize) -> Buffer {
        if !buffer.ptr.is_null() && buffer.len >= bytes {
            return buffer;
        }
        Buffer { ptr: self.scratch(bytes), len: bytes }
    }

    /// A buffer that the vendor library uses until a poll function says otherwise; see `reply_until`.
    pub fn buffer_until(&mut self, expected: Option<usize>, input: bool, output: bool) -> Result<Buffer, Reject> {
        let (place, mut buffer) = self.reference(expected, false, input)?;
        if place == Transfer::Inline && output {
            return Err(Reject::Malformed("an output that stays in use is not in the arena"));
        }
        let mut keep = None;
        // A call that is made again has its blocks in scratch memory.
        if place == Transfer::Inline || self.replayed.is_some() && !buffer.ptr.is_null() {
            // SAFETY: the message's data is private memory of `len` bytes.
            let mut copy: Box<[u8]> = unsafe { std::slice::from_raw_parts(buffer.ptr, buffer.len) }.into();
            buffer.ptr = copy.as_mut_ptr();
            keep = Some(copy);
        }
        self.untils.push(UntilBuffer { place, output, length: buffer.len, keep });
        Ok(buffer)
    }

    /// A buffer with a shadow, which the guest keeps in the arena.
    pub fn shadow(&mut self, expected: Option<usize>, input: bool, _allocate: bool) -> Result<Buffer, Reject> {
        match self.located(expected, false, input, Reach::Beyond)? {
            (Transfer::Inline, _) => Err(Reject::Malformed("a shadow is not in the arena")),
            (_, buffer) => Ok(buffer),
        }
    }

    /// Names a shadow whose content the guest copies back after this call.
    pub fn shadow_copy_back(&mut self, expected: Option<usize>, _end: bool) -> Result<Buffer, Reject> {
        match self.located(expected, false, false, Reach::Beyond)? {
            (Transfer::Inline, _) => Err(Reject::Malformed("a shadow is not in the arena")),
            (Transfer::Arena(offset), buffer) => {
                self.on_success.copied_back.push((offset, buffer.len as u64));
                Ok(buffer)
            }
            (Transfer::Null, buffer) => Ok(buffer),
        }
    }

    /// A block in which the guest has memory that both sides use.
    pub(crate) fn used_block(&mut self) -> Result<(u64, Buffer), Reject> {
        match self.located(None, false, false, Reach::Beyond)? {
            (Transfer::Arena(offset), buffer) => Ok((offset, buffer)),
            _ => Err(Reject::Malformed("memory of both sides is not in the arena")),
        }
    }

    /// A pointer to at least `bytes` bytes of zero-copy memory.
    pub fn zerocopy(&mut self, bytes: usize) -> Result<*mut u8, Reject> {
        match self.word()? {
            0 => Ok(std::ptr::null_mut()),
            // The application passed memory that is not zero-copy memory: its mistake, not an attack.
            u64::MAX => Err(Reject::Refused),
            word => self
                .session
                .memory
                .range(word - 1, bytes as u64)
                .ok_or(Reject::Malformed("zero-copy memory outside the arena")),
        }
    }

    /// The library's own pointer behind one that `reply_mapped` gave out. A pointer that was never mapped is NULL.
    pub fn unmap(&mut self) -> Result<*mut u8, Reject> {
        match self.word()? {
            1 => {
                let offset = self.word()?;
                self.on_success.unmapped_in_arena += 1;
                self.session.memory.range(offset, 0).ok_or(Reject::Malformed("a mapped pointer outside the arena"))
            }
            2 => self.unmap_foreign(),
            0 | 3 => Ok(std::ptr::null_mut()),
            _ => Err(Reject::Malformed("an unknown kind of mapped pointer")),
        }
    }

    fn unmap_foreign(&mut self) -> Result<*mut u8, Reject> {
        let id = self.word()?;
        let (_, content) = self.reference(None, false, true)?;
        let Some(mapping) = self.session.mappings.get(id) else { return Ok(std::ptr::null_mut()) };
        if content.len > mapping.bytes {
            return Err(Reject::Malformed("more content than was mapped"));
        }
        // To the vendor's library another call's unmapping is the only one.
        if !mapping.begin_unmapping() {
            return Ok(std::ptr::null_mut());
        }
        if !content.ptr.is_null() {
            // SAFETY: the mapping has `mapping.bytes` bytes of vendor memory, valid until the unmapping that
            // follows, which is this call's alone; `content` was range-checked. `copy`, as a vendor may map the arena's
            // own memory.
            unsafe { std::ptr::copy(content.ptr, mapping.pointer(), content.len) };
        }
        self.on_success.unmapped.push(id);
        Ok(mapping.pointer())
    }

    /// A function of the vendor library.
    pub fn vendor(&self, index: u32) -> Result<*const c_void, Reject> {
        self.session.vendor.function(index as usize).ok_or(Reject::Unsupported)
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
        let (key, new) = self.session.closure(id, kind, life).ok_or(Reject::Refused)?;
        if new {
            self.closures.push((key, life));
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
        if self.session.handles.pin(id) {
            // SAFETY: this call holds the object, so it is live. `let_go` follows once, see `KeptObject`.
            unsafe { hold(native) };
            closures::name(key, NamedObject { ty, native, id, let_go: Some(let_go) });
        }
    }

    /// The item of a resource (see [`aviary_gate::Gate`]) on the devices that `place` stands for.
    pub fn place(&mut self, resource: u32, place: u64, names: ResidencyDevices) -> Result<u32, Reject> {
        if self.replayed.is_some() {
            return Ok(resource);
        }
        let mut devices = devices_of(place, names);
        if self.session.policy.has_only_some_devices() {
            self.session.check_devices(self.header.function, &devices)?;
        }
        // Memory on a device without a name has no account.
        devices.retain(|name| !name.is_empty());
        let item = self.session.place(self.header.function, resource as usize, &devices)?;
        Ok(item as u32)
    }

    /// `allocates_rc`: taken now, given back if the call fails. `item` as [`Call::place`] answers, or a resource.
    pub fn charge(&mut self, item: u32, amount: u64) -> Result<(), Reject> {
        if self.replayed.is_some() {
            return Ok(());
        }
        self.session.charge(self.header.function, item as usize, amount)?;
        self.holding.add(item as usize, amount);
        Ok(())
    }

    /// `allocate`: the call creates so many objects at most.
    pub fn reserve_handles(&mut self, count: u64) -> Result<(), Reject> {
        if self.replayed.is_some() {
            return Ok(());
        }
        self.session.reserve_handles(self.header.function, count)?;
        self.reserved += count;
        Ok(())
    }

    /// `consumes_rc`.
    pub fn consume(&mut self, resource: u32, amount: u64) -> Result<(), Reject> {
        if self.replayed.is_some() {
            return Ok(());
        }
        self.session.consume(self.header.function, resource as usize, amount)
    }

    /// `deallocates_rc`: takes effect if the call succeeds.
    pub fn uncharge(&mut self, item: u32, amount: u64) {
        if self.replayed.is_some() {
            return;
        }
        self.on_success.uncharged.push((item as usize, amount));
    }

    pub fn begin_vendor(&mut self) {
        if self.header.kind == kind::CALL && self.stay.is_none() && self.scheduled() {
            self.wait = self.session.devices.begin_blocking_call();
        }
        self.vendor_since = clock::ticks();
    }

    pub fn end_vendor(&mut self) {
        self.vendor_ticks += clock::ticks().saturating_sub(self.vendor_since);
        if let Some(device) = self.wait.take() {
            self.session.devices.end_blocking_call(device);
        }
    }

    /// The node schedules devices.
    #[inline]
    pub fn scheduled(&self) -> bool {
        self.session.devices.scheduled()
    }

    /// It matters which device a call gives work: the node schedules devices, or some are not the tenant's.
    #[inline]
    pub fn minds_devices(&self) -> bool {
        (self.scheduled() || self.session.policy.has_only_some_devices()) && self.replayed.is_none()
    }

    /// `occupies`: waits until the session may give the device work. False: nobody schedules this device.
    pub fn occupy(&mut self, device: u64, drain: Drain, name: Name) -> Result<bool, Reject> {
        let session = &self.session;
        if device != 0 && session.policy.has_only_some_devices() {
            session.check_devices(self.header.function, &[as_shown(&device_name(device, name))])?;
        }
        if !self.scheduled() {
            return Ok(false);
        }
        self.stay = session.devices.acquire(device, drain, name, || session.is_dead()).map_err(|()| Reject::Refused)?;
        Ok(self.stay.is_some())
    }

    /// The cost of the call on the device, as the specification measures it.
    pub fn device_time(&mut self, ns: u64) {
        self.device_time = Some(Duration::from_nanos(ns));
        self.session.stats.device_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// The device has its work, or will never get it.
    pub fn vacate(&mut self) {
        if let Some(stay) = self.stay.take() {
            if let Some(wait) = stay.answers_after {
                lane::wake_guest(wait);
            }
            self.session.devices.submit_done(stay, self.device_time.take());
        }
    }

    /// The metadata of this kind of an object; NULL if there is no such object, or it carries another kind. An argument may be an object of another
    /// type than its declaration says (`type_cast`): as in the guest, the metadata is that object's.
    pub fn metadata(&self, ty: u32, native: u64, kind: u32) -> *mut u8 {
        let Some(id) = self.object(ty, native) else { return std::ptr::null_mut() };
        if !self.handles.iter().any(|used| used.id == id) {
            self.uses.announce(id);
        }
        self.session.handles.metadata(id, kind).unwrap_or(std::ptr::null_mut())
    }

    /// The id of an object that may be of another type than the one that an expression has.
    pub(crate) fn object(&self, ty: u32, native: u64) -> Option<u64> {
        let other = || self.handles.iter().find(|h| h.native == native).map(|h| h.id);
        self.id_of(ty, native).or_else(other)
    }

    /// The id of an object that this call uses, or of any other by its native value.
    pub(crate) fn id_of(&self, ty: u32, native: u64) -> Option<u64> {
        let used = self.handles.iter().find(|h| h.ty == ty && h.native == native);
        used.map(|h| h.id).or_else(|| self.session.handles.id(ty, native))
    }

    /// Decodes a buffer reference, checks its length, and finds or makes its memory, which is used until the call ends.
    fn reference(&mut self, expected: Option<usize>, private: bool, input: bool) -> Result<(Transfer, Buffer), Reject> {
        self.located(expected, private, input, Reach::Call)
    }

    fn located(
        &mut self,
        expected: Option<usize>,
        private: bool,
        input: bool,
        reach: Reach,
    ) -> Result<(Transfer, Buffer), Reject> {
        // The reference borrows the request; what it says is copied out so that the borrow ends here.
        let found = self.decode(|d| {
            Ok(match d.buffer()? {
                BufferRef::Null => ReceivedBuffer::Null,
                BufferRef::Inline(data) => ReceivedBuffer::Inline(data.len()),
                BufferRef::Arena { offset, length } => ReceivedBuffer::Arena(offset, length),
                BufferRef::Reserved { length } => ReceivedBuffer::Reserved(length),
            })
        })?;
        let (place, length) = match found {
            ReceivedBuffer::Null => return Ok((Transfer::Null, Buffer::NULL)),
            ReceivedBuffer::Inline(length) | ReceivedBuffer::Reserved(length) => (Transfer::Inline, length),
            ReceivedBuffer::Arena(offset, length) => (Transfer::Arena(offset), length),
        };
        if expected.is_some_and(|e| e != length) {
            return Err(Reject::Malformed("a buffer has another size than the specification says"));
        }
        let ptr = match found {
            ReceivedBuffer::Inline(_) => self.field_before(length),
            ReceivedBuffer::Arena(offset, _) => {
                let buffer = match reach {
                    Reach::Call => self.arena_buffer(offset, length, private, input)?,
                    Reach::Beyond => Buffer { ptr: self.live_block(offset, length)?, len: length },
                };
                return Ok((place, buffer));
            }
            _ => self.scratch(length),
        };
        Ok((place, Buffer { ptr, len: length }))
    }

    /// A block of the arena as it is now, also where the call is made again: what it shows is the guest's.
    fn live_block(&self, offset: u64, length: usize) -> Result<*mut u8, Reject> {
        let found = self.session.memory.range(offset, length as u64);
        found.ok_or(Reject::Malformed("a buffer outside the arena"))
    }

    fn arena_buffer(&mut self, offset: u64, length: usize, private: bool, input: bool) -> Result<Buffer, Reject> {
        let ptr = if self.replayed.is_some() {
            self.recorded_block(offset, length, input)?
        } else {
            self.live_block(offset, length)?
        };
        let mut buffer = Buffer { ptr, len: length };
        if private {
            buffer = self.copy_to_scratch(buffer);
        }
        if input && self.recording.on {
            let mut bytes = vec![0; length];
            // SAFETY: `buffer` was range-checked, `bytes` is new. Where it is shared the guest may change it
            // meanwhile; it then records something else than it used, to its own disadvantage only.
            unsafe { std::ptr::copy_nonoverlapping(buffer.ptr, bytes.as_mut_ptr(), length) };
            self.recording.blocks.push((offset, bytes));
        }
        Ok(buffer)
    }

    /// The content that the block had when the call was recorded, or room for an output.
    fn recorded_block(&mut self, offset: u64, length: usize, input: bool) -> Result<*mut u8, Reject> {
        let memory = self.scratch(length);
        if let Some(replayed) = self.replayed.as_ref().filter(|_| input) {
            let recorded = replayed.block(offset).filter(|recorded| recorded.len() == length);
            let recorded = recorded.ok_or(Reject::Malformed("a block that was not recorded"))?;
            // SAFETY: both have `length` bytes, and scratch memory overlaps nothing.
            unsafe { std::ptr::copy_nonoverlapping(recorded.as_ptr(), memory, length) };
        }
        Ok(memory)
    }

    fn copy_to_scratch(&mut self, buffer: Buffer) -> Buffer {
        let copy = self.scratch(buffer.len);
        // SAFETY: both have `len` bytes and scratch memory overlaps nothing. Copied once: what the
        // handler then validates is what it uses, whatever the guest does to the original.
        unsafe { std::ptr::copy_nonoverlapping(buffer.ptr, copy, buffer.len) };
        self.session.stats.bytes_copied.fetch_add(buffer.len as u64, Ordering::Relaxed);
        Buffer { ptr: copy, len: buffer.len }
    }
}

/// Memory that a call keeps for the next one.
const MAX_KEPT_BYTES: usize = 64 << 10;

/// How long the vendor's library may use a buffer.
#[derive(Clone, Copy)]
enum Reach {
    Call,
    /// It stays in the arena, which outlives any move.
    Beyond,
}

enum ReceivedBuffer {
    Null,
    Inline(usize),
    Arena(u64, usize),
    Reserved(usize),
}
