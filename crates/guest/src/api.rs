//! The entry points of this crate for a generated library.

use std::collections::HashSet;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::rc::Rc;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::call::Call;
use crate::connection::Connection;
use crate::connection::attach;
use crate::descriptor::{ApiDescriptor, Lost};
use crate::lane;
use crate::lane::syncing;
use crate::memory::Memory;
use crate::objects::registry::{Registries, Snapshot};
use crate::process::fork;
use crate::process::fork::Forked;
use crate::process::log;
use crate::process::trace;
use crate::process::unwind::Foreign;

/// Time between two attempts to attach.
const ATTACH_RETRY_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Default)]
struct AttachAttempts {
    last: Option<Instant>,
    complaint: String,
}

/// State that a forked child needs for itself: threads that the child lacks may hold the parent's
/// locks.
#[derive(Default)]
struct PerProcessState {
    attempts: Mutex<AttachAttempts>,
    unsupported: Mutex<HashSet<u32>>,
}

/// One API of this process. Generated libraries have one as a static.
pub struct Api {
    descriptor: &'static ApiDescriptor,
    state: AtomicPtr<PerProcessState>,
    connection: AtomicPtr<Connection>,
    /// In a child of a fork: the last connection of the processes before it.
    before: AtomicPtr<Connection>,
    /// What a child calls when it has attached: an `extern "C" fn()`; null: nothing.
    in_child: AtomicPtr<c_void>,
}

impl Api {
    pub const fn new(descriptor: &'static ApiDescriptor) -> Self {
        Api {
            descriptor,
            state: AtomicPtr::new(null_mut()),
            connection: AtomicPtr::new(null_mut()),
            before: AtomicPtr::new(null_mut()),
            in_child: AtomicPtr::new(null_mut()),
        }
    }

    /// Begins a call: attaches on first use and takes this thread's lane.
    #[inline]
    pub fn call(&'static self, function: u32) -> Result<Call, Lost> {
        let connection = match self.connection() {
            Some(connection) if connection.peer.ours() => connection,
            _ => self.attach()?,
        };
        if connection.peer.liveness.dead() {
            return Err(connection.peer.fail("it is gone"));
        }
        Ok(Call::new(lane::current(connection)?, function))
    }

    /// Logs once per function that it is not virtualized.
    #[cold]
    pub fn unsupported(&'static self, function: u32) {
        let first = self.state().unsupported.lock().unwrap_or_else(PoisonError::into_inner).insert(function);
        if first {
            let d = self.descriptor;
            log::line(&format!("{} is not supported ({} {})", d.function(function), d.name, d.version));
        }
    }

    /// Logs once per function, by the number that it has among these, that no header of the API declares it.
    #[cold]
    pub fn undeclared(&'static self, number: u32, name: &str) {
        let number = (u32::MAX - 1).saturating_sub(number);
        let first = self.state().unsupported.lock().unwrap_or_else(PoisonError::into_inner).insert(number);
        if first {
            let d = self.descriptor;
            log::line(&format!(
                "{name} is not supported ({} {}): no header that the specification includes declares it",
                d.name, d.version
            ));
        }
    }

    /// Logs once that a function behind the described ones of a table is not virtualized.
    #[cold]
    pub fn later(&'static self, table: &str) {
        let first = self.state().unsupported.lock().unwrap_or_else(PoisonError::into_inner).insert(u32::MAX);
        if first {
            let d = self.descriptor;
            log::line(&format!(
                "a function of a later version of `{table}` is not supported ({} {})",
                d.name, d.version
            ));
        }
    }

    #[inline]
    fn connection(&self) -> Option<&'static Connection> {
        // SAFETY: the pointer is null or comes from `Box::leak` in `attach`; connections are never freed.
        unsafe { self.connection.load(Ordering::Acquire).as_ref() }
    }

    fn state(&self) -> &'static PerProcessState {
        let mut state = self.state.load(Ordering::Acquire);
        if state.is_null() {
            let new = Box::into_raw(Box::<PerProcessState>::default());
            state = match self.state.compare_exchange(null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => new,
                Err(other) => {
                    // SAFETY: `new` was not published, so this is its only owner.
                    drop(unsafe { Box::from_raw(new) });
                    other
                }
            };
        }
        // SAFETY: a published state is never freed.
        unsafe { &*state }
    }

    #[cold]
    fn attach(&'static self) -> Result<&'static Connection, Lost> {
        fork::notice();
        let mut attempts = self.state().attempts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(connection) = self.connection() {
            return Ok(connection);
        }
        if attempts.last.is_some_and(|t| t.elapsed() < ATTACH_RETRY_INTERVAL) {
            return Err(Lost);
        }
        if attempts.last.is_none() {
            fork::pin_library();
            fork::watch_once(self);
        }
        let result = attach::attach(self.descriptor);
        attempts.last = Some(Instant::now());
        match result {
            Ok(attached) => {
                let connection = Box::leak(Box::new(Connection::new(self.descriptor, attached)));
                self.connection.store(connection, Ordering::Release);
                drop(attempts);
                self.ask_again();
                Ok(connection)
            }
            Err(e) => {
                let complaint = format!("{}: {e}", self.descriptor.name);
                if attempts.complaint != complaint {
                    log::line(&complaint);
                    attempts.complaint = complaint;
                }
                Err(Lost)
            }
        }
    }

    /// In a child that has just attached: the library's own code asks what its parent had asked. Calls of other threads that begin
    /// meanwhile do not know those answers yet.
    fn ask_again(&'static self) {
        let function = self.in_child.load(Ordering::Acquire);
        if !self.before.load(Ordering::Acquire).is_null() && !function.is_null() {
            // SAFETY: `after_fork` stored a function of this type, of this library, which stays loaded.
            unsafe { std::mem::transmute::<*mut c_void, extern "C" fn()>(function)() };
        }
    }

    /// Has children of forks call the function when they have attached.
    pub fn after_fork(&self, function: extern "C" fn()) {
        self.in_child.store(function as *mut c_void, Ordering::Release);
    }

    /// In a child: the object of the handle `now` has the value `before`, which it had in the parent.
    pub fn same_handle(&'static self, now: u64, before: u64) -> bool {
        // SAFETY: connections are never freed; the child has a copy of its parent's.
        let parent = unsafe { self.before.load(Ordering::Acquire).as_ref() };
        let (Some(connection), Some(parent)) = (self.connection(), parent) else { return false };
        connection.handles.rename(now, before, &parent.handles)
    }

    /// Notes that the application holds one more reference of a handle.
    pub fn retain(&'static self, _ty: u32, value: u64) {
        if let Some(c) = self.connection() {
            c.handles.retain(value);
        }
    }

    /// Drops one of the application's references, or `all`; with the last one the handle ends.
    pub fn release(&'static self, _ty: u32, value: u64, all: bool) {
        if let Some(c) = self.connection() {
            c.release(value, all);
        }
    }

    /// Makes the handle `value` end when the handle `owner` of type `owner_ty` ends.
    pub fn end_with(&'static self, value: u64, owner_ty: u32, owner: u64) {
        if let Some(c) = self.connection() {
            c.end_with(value, owner_ty, owner);
        }
    }

    /// Makes the shadow of `p` end when the handle `value` ends.
    pub fn couple(&'static self, p: *mut u8, value: u64) {
        if let Some(c) = self.connection() {
            c.objects.shadows.couple(p, value);
        }
    }

    /// Calls that use `value` use from now on what is bound to `other`, of type `ty`, as well, in exchange for what was shared in that
    /// place.
    pub fn share(&'static self, value: u64, ty: u32, other: u64, place: u64) {
        if let Some(c) = self.connection() {
            c.share(value, ty, other, place);
        }
    }

    /// The function of this number is about to be called: copies that were to last until then end.
    pub fn ends_copies(&'static self, function: u32) {
        if let Some(c) = self.connection() {
            c.objects.foreign.function_called(function);
        }
    }

    /// The handle's metadata, zeroed at first; NULL if `value` is no live handle, or one with another kind of structure.
    pub fn metadata(&'static self, value: u64, kind: u32) -> *mut u8 {
        self.connection().map_or(null_mut(), |c| c.handles.metadata(value, kind))
    }

    pub fn is_handle(&'static self, value: u64) -> bool {
        self.connection().is_some_and(|c| c.handles.is_handle(value))
    }

    /// True if `value` is a live handle of type `ty`.
    pub fn is_handle_of(&'static self, ty: u32, value: u64) -> bool {
        self.connection().is_some_and(|c| c.handles.is_handle_of(ty, value))
    }

    /// Zeroed memory that both sides map at one address; NULL if there is none (no server, no
    /// shared memory, another address on the server, a full arena).
    pub fn zerocopy_alloc(&'static self, bytes: usize) -> *mut u8 {
        self.sharing().map_or(null_mut(), |m| m.zerocopy.allocate(&m.blocks, &m.arena, bytes))
    }

    /// Memory that both sides map at one address, with any content, for data that a vendor library
    /// fills in; NULL if there is none.
    pub fn zerocopy_alloc_uninitialized(&'static self, bytes: usize) -> *mut u8 {
        self.sharing().map_or(null_mut(), |m| m.zerocopy.allocate_uninitialized(&m.blocks, &m.arena, bytes))
    }

    /// The memory of the live connection, if it has one address on both sides.
    fn sharing(&'static self) -> Option<&'static Memory> {
        let connection = self.connection().filter(|c| c.peer.ours()).map_or_else(|| self.attach(), Ok).ok()?;
        (connection.memory.same_address && !connection.peer.liveness.dead()).then_some(&connection.memory)
    }

    /// Notes that the vendor library uses this zero-copy memory until the server's utility code
    /// returns it.
    pub fn zerocopy_lend(&'static self, p: *mut u8) {
        if let Some(c) = self.connection() {
            c.memory.zerocopy.lend(&c.memory.arena, p);
        }
    }

    /// False once the API server is gone. For utility code that serves calls without a message and
    /// so would not notice.
    pub fn connected(&'static self) -> bool {
        self.connection().is_some_and(|c| c.peer.connected())
    }

    /// How many calls were made so far; 0: none, or the API server is gone.
    pub fn calls(&'static self) -> u64 {
        self.connection().filter(|c| c.peer.connected()).map_or(0, |c| c.tickets.calls())
    }

    /// Has the connection survive that the application closes all its descriptors.
    pub fn keep_connection(&'static self) {
        if let Some(c) = self.connection() {
            c.peer.keep(&c.memory.arena);
        }
    }

    /// Has what the vendor library prints go where the application's descriptors 1 and 2 lead now.
    pub fn follow_output(&'static self) {
        if let Some(c) = self.connection().filter(|c| c.peer.ours() && !c.peer.liveness.dead()) {
            syncing::follow_output(c);
        }
    }

    pub fn zerocopy_free(&'static self, p: *mut u8) {
        if let Some(c) = self.connection() {
            c.memory.zerocopy.free(&c.memory.blocks, &c.memory.arena, p);
        }
    }

    pub fn is_zerocopy(&'static self, p: *const u8) -> bool {
        self.connection().is_some_and(|c| c.memory.is_zerocopy(p))
    }

    /// True if the server can access these bytes of the application without a copy.
    pub fn is_shared(&'static self, p: *const u8, bytes: usize) -> bool {
        self.connection().is_some_and(|c| c.memory.is_shared(p, bytes))
    }

    pub fn register_buf(&'static self, registry: u32, key: u64, p: *mut u8, bytes: usize) {
        if let Some(c) = self.connection()
            && !p.is_null()
        {
            c.objects.registries.register(registry, key, p, bytes);
        }
    }

    /// The buffers in flight under a key. Valid until this thread asks again.
    pub fn get_bufs(&'static self, registry: u32, key: u64) -> *const *mut c_void {
        let none = std::ptr::null();
        self.with_buffers(none, |registries, snapshot| registries.buffers(snapshot, registry, key))
    }

    pub fn get_n_bufs(&'static self, registry: u32, key: u64) -> usize {
        self.with_buffers(0, |registries, snapshot| registries.count(snapshot, registry, key))
    }

    pub fn get_buf_size(&'static self, registry: u32, key: u64, index: usize) -> usize {
        self.with_buffers(0, |registries, snapshot| registries.size(snapshot, registry, key, index))
    }

    /// Asks for buffers in flight. `none`: the thread has no lane that stays, in which the answer could be kept.
    fn with_buffers<T>(&'static self, none: T, ask: impl FnOnce(&Registries, &mut Snapshot) -> T) -> T {
        let Some(connection) = self.connection() else { return none };
        let lane = lane::current(connection).ok().filter(|lane| Rc::strong_count(lane) > 1);
        let Some(lane) = lane else { return none };
        let Ok(mut snapshot) = lane.buffers.try_borrow_mut() else { return none };
        ask(&connection.objects.registries, &mut snapshot)
    }
}

impl Forked for Api {
    fn restart_in_child(&'static self) {
        if let Some(connection) = self.connection() {
            connection.peer.abandon_in_child(&connection.memory.arena);
            self.before.store(std::ptr::from_ref(connection).cast_mut(), Ordering::Release);
        }
        self.connection.store(null_mut(), Ordering::Release);
        self.state.store(null_mut(), Ordering::Release);
    }
}

impl Api {
    /// Ends the application's present call in `AVIARY_TRACE`.
    pub fn trace(&'static self, function: u32, result: Option<i64>) {
        let waited = self.connection().and_then(lane::take_waited);
        trace::line(self.descriptor.function(function), result, waited);
    }
}

/// Runs a stub; a panic in it becomes the result of `lost` and one log line. What a callback of the application has
/// thrown goes on from here.
#[inline]
pub fn guard<T>(stub: impl FnOnce() -> T, lost: impl FnOnce() -> T) -> T {
    match catch_unwind(AssertUnwindSafe(stub)) {
        Ok(result) => result,
        Err(payload) => {
            failed(payload);
            lost()
        }
    }
}

#[cold]
fn failed(payload: Box<dyn std::any::Any + Send>) {
    match payload.downcast::<Foreign>() {
        Ok(foreign) => foreign.resume(),
        Err(_) => log::line("an error inside the guest library; the call is reported as lost"),
    }
}
