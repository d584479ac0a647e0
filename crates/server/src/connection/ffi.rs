//! Functions that utility code of a specification may call; panics stay inside.

use crate::tables::rooms::SharedMemory;
use aviary_gate::ProcessUse;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::os::fd::{BorrowedFd, IntoRawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::connection::exchange;
use crate::lane::current;
use crate::session::Session;
use crate::session::residency;
use aviary_control::OfferName;
use aviary_wire::HandleId;

/// All sessions of this module, the newest last: for utility code on threads of the vendor library.
static SESSIONS: Mutex<Vec<Weak<Session>>> = Mutex::new(Vec::new());

fn sessions() -> MutexGuard<'static, Vec<Weak<Session>>> {
    SESSIONS.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn announce(session: &Arc<Session>) {
    let mut sessions = sessions();
    sessions.retain(|s| s.strong_count() > 0);
    sessions.push(Arc::downgrade(session));
}

fn session() -> Option<Arc<Session>> {
    current::lane().map(|lane| lane.session.clone()).or_else(|| sessions().last()?.upgrade())
}

/// Runs `body`; a panic in it gives `otherwise`, because nothing may unwind into C.
pub fn guarded<R>(body: impl FnOnce() -> R, otherwise: R) -> R {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(otherwise)
}

/// The metadata of this kind of the object with this native value; NULL if there is none.
///
/// # Safety
/// None: the value is looked up, not followed. `unsafe` because C calls it.
pub unsafe fn metadata(handle: *const c_void, kind: u32) -> *mut c_void {
    let look = || {
        let session = session()?;
        session.objects.handles.metadata_of_any(handle.addr() as u64, kind, |id| current::announce(&session, id))
    };
    guarded(look, None).map_or(std::ptr::null_mut(), |block| block.cast())
}

/// The id that the guest has for the object with this native value; 0: it has none. A session keeps its ids where it
/// moves.
///
/// # Safety
/// None: the value is looked up, not followed. `unsafe` because C calls it.
pub unsafe fn object_id(object: *const c_void) -> u64 {
    guarded(|| session()?.objects.handles.id_of_any(object.addr() as u64), None).unwrap_or(0)
}

/// The native value of the object with this id; NULL: it has ended.
///
/// # Safety
/// None: the id is looked up. `unsafe` because C calls it.
pub unsafe fn object(id: u64) -> *mut c_void {
    let look = || session()?.objects.handles.native(HandleId::from_word(id)?.ty.into(), id);
    guarded(look, None).map_or(std::ptr::null_mut(), |native| std::ptr::without_provenance_mut(native as usize))
}

/// The vendor's symbol of this name, or NULL.
///
/// # Safety
/// `name` is NULL or a NUL-terminated string.
pub unsafe fn function(name: *const c_char) -> *mut c_void {
    if name.is_null() {
        return std::ptr::null_mut();
    }
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) };
    guarded(|| crate::session::vendor::loaded().map_or(std::ptr::null_mut(), |v| v.symbol(name)), std::ptr::null_mut())
}

/// True if a pointer lies in memory shared with the guest.
///
/// # Safety
/// None: the pointer is compared, not followed. `unsafe` because C calls it.
pub unsafe fn is_zerocopy(pointer: *const c_void) -> c_int {
    guarded(|| c_int::from(session().is_some_and(|s| s.tables.memory.contains(pointer.cast()))), 0)
}

/// The vendor library no longer uses this zero-copy memory: the guest that lent it is told with the next answer.
///
/// # Safety
/// None: the pointer is compared, not followed. `unsafe` because C calls it.
pub unsafe fn zerocopy_return(pointer: *const c_void) {
    let owner = || sessions().iter().filter_map(Weak::upgrade).find(|s| s.tables.memory.contains(pointer.cast()));
    guarded(|| owner().into_iter().for_each(|s| s.return_memory(pointer.cast())), ());
}

/// True if an asynchronous call of the guest's thread that this one serves has failed and no answer said so yet.
pub fn owes_error() -> c_int {
    guarded(|| c_int::from(current::lane().is_some_and(|lane| lane.deferred.get().is_some())), 0)
}

/// Waits until the posted callbacks of the session, as far as the vendor library has called them, have run in the guest.
pub fn settle_callbacks(at_most_ns: u64) {
    let deadline = Instant::now() + Duration::from_nanos(at_most_ns);
    guarded(|| session().into_iter().for_each(|s| s.callbacks.posted.settle(deadline)), ());
}

/// Notes the function that ends the waits of the specification's own functions when the guest has gone.
pub fn when_guest_is_gone(end_waits: unsafe extern "C" fn()) {
    let note = |session: Arc<Session>| {
        // The first one counts.
        let _ = session.calls.gone.set(end_waits);
    };
    guarded(|| session().into_iter().for_each(note), ());
}

/// Nanoseconds for which the calling thread should poll a device's completion before it sleeps.
pub fn watch_time() -> u64 {
    current::lane().map_or(0, |lane| lane.completion_poll_time.get().as_nanos() as u64)
}

/// Nanoseconds that a part of long work shall take, so that other sessions have their turn in time; 0: work goes whole. The
/// session is that of the call under way.
pub fn slice_time() -> u64 {
    guarded(|| session().map_or(0, |s| s.devices.slice()), 0)
}

/// True if the node serves one program only, that of the call under way, and has its environment.
pub fn is_private_node() -> c_int {
    guarded(|| c_int::from(session().is_some_and(|s| s.accounts.policy.private_node)), 0)
}

/// True if a call of some thread is about to give the device work, or has just done so.
pub fn device_gets_work(device: u64) -> c_int {
    let is_given = || session().is_some_and(|s| s.devices.is_given_work(device));
    guarded(|| c_int::from(is_given()), 1)
}

/// The device of the call under way gives several processes parts of its time by itself.
pub fn device_preempts(device: u64) {
    guarded(|| session().into_iter().for_each(|s| s.devices.note_preemptive(device)), ());
}

/// Work of many parts is between two of them on a device: waits if the session's slice of it is used up.
///
/// # Safety
/// None: the device is a number. `unsafe` because C calls it.
pub unsafe fn device_pause(device: u64) {
    let pause = || session().into_iter().for_each(|s| s.devices.end_submission(device, || s.pause.is_dead()));
    guarded(pause, ());
}

/// The charges of the present call stay until [`charge_return`] is called with this number, instead of until
/// the end of the object that it creates: the vendor's library may use the memory longer. For `after_server`; while
/// another call's are kept under the number, those of this one end with it.
///
/// # Safety
/// None. `unsafe` because C calls it.
pub unsafe fn charge_keep(number: u64) {
    current::keep_charges(number);
}

/// Returns the charges kept under this number. On any thread, also inside the vendor's library.
///
/// # Safety
/// None. `unsafe` because C calls it.
pub unsafe fn charge_return(number: u64) {
    let all = || -> Vec<_> { sessions().iter().filter_map(Weak::upgrade).collect() };
    guarded(|| all().iter().any(|session| session.accounts.return_kept(number)), false);
}

/// A device's name as people are shown it.
///
/// # Safety
/// `device` is a NUL-terminated string or NULL.
unsafe fn device_name(device: *const c_char) -> Option<String> {
    // SAFETY: not NULL, so a string, as the caller promises.
    let name = (!device.is_null()).then(|| unsafe { CStr::from_ptr(device) }.to_string_lossy());
    name.map(|name| residency::as_shown(&name))
}

/// How much of a continuous resource the tenant may have on the device of this name (NULL: wherever), and how much of that
/// is left; 0, and nothing is written, if no limit is set.
///
/// # Safety
/// `resource` is a NUL-terminated string, `device` one or NULL; `limit` and `left` point to places for a number.
pub unsafe fn allowance(resource: *const c_char, device: *const c_char, limit: *mut u64, left: *mut u64) -> c_int {
    // SAFETY: the caller's promise.
    let resource = unsafe { CStr::from_ptr(resource) }.to_string_lossy();
    // SAFETY: the caller's promise.
    let device = unsafe { device_name(device) };
    let Some(found) = guarded(|| session()?.accounts.gate.allowance(&resource, device.as_deref()), None) else {
        return 0;
    };
    // SAFETY: the caller's promise.
    unsafe {
        limit.write(found.limit);
        left.write(found.left);
    }
    1
}

/// What the node shares out of the device's memory; 0, and nothing is written, if it does not.
///
/// # Safety
/// `device` is a NUL-terminated string or NULL, `shared` points to a place for the answer.
pub unsafe fn shared_memory(device: *const c_char, shared: *mut SharedMemory) -> c_int {
    // SAFETY: the caller's promise.
    let Some(device) = (unsafe { device_name(device) }) else { return 0 };
    let Some(found) = guarded(|| session()?.accounts.shared_memory(&device), None) else { return 0 };
    // SAFETY: the caller's promise.
    unsafe { shared.write(found) };
    1
}

/// What a context on the device is charged with.
///
/// # Safety
/// `device` is a NUL-terminated string or NULL.
pub unsafe fn context_bytes(device: *const c_char) -> u64 {
    // SAFETY: the caller's promise.
    let Some(device) = (unsafe { device_name(device) }) else { return 0 };
    guarded(|| session().map_or(0, |session| session.accounts.policy.context_bytes(&device)), 0)
}

/// Others leave a device whose memory the node has granted and the vendor's library does not have. 1: it is worth one more try.
///
/// # Safety
/// `device` is a NUL-terminated string or NULL.
pub unsafe fn make_room(device: *const c_char, bytes: u64) -> c_int {
    // SAFETY: the caller's promise.
    let Some(device) = (unsafe { device_name(device) }) else { return 0 };
    let make = || {
        // Not while a session is made anew: its calls may not wait for the node.
        let session = current::lane()?.session.clone();
        Some(session.accounts.rooms.as_ref()?.make_room(&device, bytes, &session.pause))
    };
    c_int::from(guarded(make, None).unwrap_or(false))
}

/// How many bytes this memory of the host has that left with the same object the last time.
pub fn keeps(memory: *const c_void) -> usize {
    guarded(|| session().map_or(0, |session| session.tables.kept.at(memory)), 0)
}

/// So many bytes of an object that leaves are in the host's memory already.
pub fn unchanged(bytes: u64) {
    guarded(|| session().iter().for_each(|session| session.tables.kept.note_unchanged(bytes)), ());
}

/// So many bytes of the object that leaves have left its device.
pub fn left(bytes: u64) {
    let tell =
        |session: Arc<Session>| session.orders.as_ref().map(|orders| session.tables.overlap.note_left(orders, bytes));
    guarded(|| session().and_then(tell).unwrap_or(()), ());
}

/// Bytes of the object that leaves that must; `u64::MAX`: all.
pub fn must_leave() -> u64 {
    guarded(|| session().map_or(u64::MAX, |session| session.tables.overlap.must_leave()), u64::MAX)
}

/// Waits until so many bytes of the object that returns may be on its device. 0: they may not, as the node has gone.
pub fn may_return(bytes: u64) -> c_int {
    let waits = |session: Arc<Session>| {
        session.orders.as_ref().is_none_or(|orders| session.tables.overlap.await_credit(orders, bytes))
    };
    guarded(|| c_int::from(session().is_none_or(waits)), 0)
}

/// The module keeps so much host memory for copies of what leaves and returns.
pub fn keeps_buffers(bytes: usize, give_back: Option<extern "C" fn()>) {
    guarded(|| session().iter().for_each(|session| session.tables.kept.set_buffers(bytes as u64, give_back)), ());
}

/// True if the tenant may use the device of this name; NULL: every device that there is.
///
/// # Safety
/// `device` is a NUL-terminated string or NULL.
pub unsafe fn may_use(device: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    let device = unsafe { device_name(device) };
    let may = || {
        let session = session()?;
        let policy = &session.accounts.policy;
        Some(device.map_or_else(|| !policy.has_only_some_devices(), |name| policy.may_use(&name)))
    };
    c_int::from(guarded(may, None).unwrap_or(false))
}

/// True if the tenant's configuration names this function among those that change a device for all its users.
///
/// # Safety
/// `function` is a NUL-terminated string.
pub unsafe fn privileged(function: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    let function = unsafe { CStr::from_ptr(function) }.to_string_lossy();
    c_int::from(guarded(|| Some(session()?.accounts.policy.has_privilege(&function)), None).unwrap_or(false))
}

/// Which of the tenant's programs hold how much of a continuous resource on a device, at most `room` of them; answers the
/// number of all.
///
/// # Safety
/// `resource` and `device` are NUL-terminated strings, `process_uses` points to places for `room` of them.
pub unsafe fn process_uses(
    resource: *const c_char,
    device: *const c_char,
    process_uses: *mut ProcessUse,
    room: c_uint,
) -> c_uint {
    // SAFETY: the caller's promise.
    let resource = unsafe { CStr::from_ptr(resource) }.to_string_lossy();
    // SAFETY: the caller's promise.
    let Some(device) = (unsafe { device_name(device) }) else { return 0 };
    let Some(found) = guarded(|| Some(session()?.accounts.gate.process_uses(&resource, &device)), None) else {
        return 0;
    };
    for (index, process_use) in found.iter().take(room as usize).enumerate() {
        // SAFETY: `index` is less than `room`, for which the caller has places.
        unsafe { process_uses.add(index).write(*process_use) };
    }
    c_uint::try_from(found.len()).unwrap_or(c_uint::MAX)
}

/// Offers a descriptor, which stays the caller's, to other processes of the application; 0 if that worked. The session is
/// that of the call under way.
///
/// # Safety
/// `descriptor` is open, `name` points to a place for a name.
pub unsafe fn offer(descriptor: c_int, note: u64, name: *mut OfferName) -> c_int {
    let offer = || exchange::offer(session()?.peer.journal.session, descriptor, note);
    match guarded(offer, None) {
        Some(made) => {
            // SAFETY: the caller's promise.
            unsafe { name.write(made) };
            0
        }
        None => -1,
    }
}

/// The offer stands no longer.
///
/// # Safety
/// `name` points to a name.
pub unsafe fn withdraw(name: *const OfferName) {
    // SAFETY: the caller's promise.
    let name = unsafe { name.read() };
    guarded(|| exchange::withdraw(name), ());
}

/// Hands a copy of the descriptor over with the session's state that is being written: its number, or -1.
///
/// # Safety
/// `descriptor` is open.
pub unsafe fn hand_over(descriptor: c_int) -> i64 {
    if descriptor < 0 {
        return -1;
    }
    // SAFETY: the caller's promise, and it is not -1.
    let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
    guarded(|| session()?.tables.handed.give(descriptor), None).map_or(-1, i64::from)
}

/// A descriptor of the caller's own, with this number in the state that is being read; -1 if there is none.
pub fn handed(number: u64) -> c_int {
    let take = || session()?.tables.handed.take(u32::try_from(number).ok()?);
    guarded(take, None).map_or(-1, IntoRawFd::into_raw_fd)
}

/// Memory that is a part of the state that is being written, for exactly so many bytes; NULL: there is none.
pub fn contents_to_write(bytes: u64) -> *mut c_void {
    guarded(|| session()?.tables.contents.to_write(bytes), None).map_or(std::ptr::null_mut(), NonNull::as_ptr)
}

/// The memory of the state that is being read; NULL: it has none of exactly so many bytes.
pub fn contents_to_read(bytes: u64) -> *const c_void {
    guarded(|| session()?.tables.contents.to_read(bytes), None).map_or(std::ptr::null(), |at| at.as_ptr().cast_const())
}

/// 1 if the state that is being written has to have all contents, also of what is handed over.
pub fn must_copy() -> c_int {
    guarded(|| session().is_none_or(|session| session.tables.handed.copies()), true).into()
}

/// A connection to a card of the node for the tenant of the session of the call under way, of the caller's own; or a negative
/// errno.
pub fn card() -> c_int {
    let connect = || session().map(|session| exchange::card(session.peer.journal.session));
    match guarded(connect, None) {
        Some(Ok(descriptor)) => descriptor.into_raw_fd(),
        Some(Err(errno)) => -errno,
        None => -rustix::io::Errno::NOTCONN.raw_os_error(),
    }
}

/// The file of zero-copy memory, as a descriptor of the caller's own, and where the memory lies in it; -1: these bytes are
/// not all in memory that is shared by a file.
///
/// # Safety
/// `offset` points to a place for a number. `pointer` is compared, not followed.
pub unsafe fn zerocopy_file(pointer: *const c_void, bytes: usize, offset: *mut u64) -> c_int {
    let find = || session()?.tables.memory.file_of(pointer.cast(), bytes);
    match guarded(find, None) {
        Some((file, at)) => {
            // SAFETY: the caller's promise.
            unsafe { offset.write(at) };
            file.into_raw_fd()
        }
        None => -1,
    }
}

/// A descriptor of the caller's own for what was offered under this name, and the number offered with it; -1 if there is
/// no such offer in the tenant.
///
/// # Safety
/// `name` points to a name, `note` to a place for a number.
pub unsafe fn fetch(name: *const OfferName, note: *mut u64) -> c_int {
    // SAFETY: the caller's promise.
    let name = unsafe { name.read() };
    let fetch = || exchange::fetch(session()?.peer.journal.session, name);
    match guarded(fetch, None) {
        Some((descriptor, offered)) => {
            // SAFETY: the caller's promise.
            unsafe { note.write(offered) };
            descriptor.into_raw_fd()
        }
        None => -1,
    }
}

/// The part of an output of the present call that leaves at a time; 0: all of it, with the answer.
///
/// # Safety
/// None: the pointer is compared, not followed. `unsafe` because C calls it.
pub unsafe fn output_part(output: *const c_void, bytes: usize) -> usize {
    guarded(|| current::lane().map_or(0, |lane| lane.output_part(output.cast(), bytes)), 0)
}

/// So many bytes at `output` of the present call are as the application is to have them.
///
/// # Safety
/// None: the pointer is compared, not followed. `unsafe` because C calls it.
pub unsafe fn output_there(output: *const c_void, bytes: usize) {
    guarded(|| current::lane().into_iter().for_each(|lane| lane.output_there(output.cast(), bytes)), ());
}

/// One line in the node's log.
///
/// # Safety
/// `text` is NULL or a NUL-terminated string.
pub unsafe fn log(text: *const c_char) {
    if text.is_null() {
        return;
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
    guarded(|| session().into_iter().for_each(|s| s.peer.journal.note(&text)), ());
}
