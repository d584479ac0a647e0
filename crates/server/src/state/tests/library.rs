//! A vendor library of one kind of object, and its handlers as the generator would print them.

use super::*;

pub const CREATE: u32 = 0;
pub const LINK: u32 = 1;
pub const DESTROY: u32 = 2;
pub const NAME: u32 = 3;
pub const FIND: u32 = 4;
pub const FILL: u32 = 5;
pub const RETAIN: u32 = 6;
pub const RELEASE: u32 = 7;
pub const REFERENCES: u32 = 8;
pub const SUM: u32 = 9;
pub const SELECT: u32 = 10;
pub const SELECTED: u32 = 11;
pub const RESERVE: u32 = 12;
pub const UNRESERVE: u32 = 13;
pub const CREATE_AT: u32 = 14;
pub const WATCH: u32 = 15;
pub const WATCH_UNRECORDED: u32 = 16;
pub const FORGOTTEN: u32 = 17;

pub const UNEXPLAINED: u32 = 18;

pub const WRITE_NOTE: u32 = 19;
pub const READ_NOTE: u32 = 20;
pub const RETAIN_NOTE: u32 = 21;
pub const RELEASE_NOTE: u32 = 22;

pub const FOCUS: u32 = 23;
pub const ADD_HERE: u32 = 24;

/// The value of a note that is not complete.
pub const UNWRITTEN: u64 = 404;

pub const WATCH_KIND: u32 = 7777;

const fn function(name: &'static str, handler_of: HandlerFunction, replayable: bool) -> FunctionInfo {
    FunctionInfo {
        name,
        on_behalf_of: &[],
        handler: handler(handler_of),
        replayable,
        waits: false,
        late: false,
        blocker: None,
    }
}

pub static API: ApiDescriptor = ApiDescriptor {
    name: "replayed",
    version: "1",
    spec_hash: 1,
    environment: &[],
    soname: "libm.so.6",
    libraries: &[],
    functions: &[
        function("create", create, true),
        function("link", link, true),
        function("destroy", destroy, true),
        function("name", name, true),
        function("find", find, true),
        function("fill", fill, false),
        function("retain", retain, true),
        function("release", release, true),
        function("references", references, false),
        function("sum", sum, false),
        function("select", select, true),
        function("selected", selected, true),
        function("reserve", reserve, false),
        function("unreserve", unreserve, false),
        function("create_at", create_at, true),
        function("watch", watch, true),
        function("watch_unrecorded", watch_unrecorded, false),
        function("forgotten", forgotten, true),
        FunctionInfo {
            name: "unexplained",
            on_behalf_of: &[],
            handler: handler(unexplained),
            replayable: true,
            waits: false,
            late: false,
            blocker: Some("no one knows"),
        },
        function("write_note", write_note, false),
        function("read_note", read_note, false),
        function("retain_note", retain_note, false),
        function("release_note", release_note, false),
        function("focus", focus, true),
        function("add_here", add_here, true),
        function("lend", super::memory::lend, true),
        function("give", super::memory::give, true),
        function("place", super::memory::place, true),
    ],
    handle_types: &[
        HandleTypeInfo {
            metadata: Some(Metadata { kind: 1, size: 8 }),
            identity: Some(identity),
            evictable: Some(super::dropped::EVICTABLE),
            ..HandleTypeInfo::plain("object", 8)
        },
        HandleTypeInfo {
            remade: Some(RemadeType { save: save_note, make: make_note, load: load_note }),
            ..HandleTypeInfo::plain("note", 8)
        },
    ],
    resources: &[("memory", aviary_gate::Kind::Continuous)],
    state: None,
    current: Some(CurrentObject { ty: 0, get: focused, set: focus_on }),
    quiesce: None,
    stays: None,
    contents: None,
    rejected: |_, _| -1,
};

#[derive(Default)]
struct Object {
    base: u64,
    links: HashMap<u64, u64>,
    numbers: HashMap<u64, u64>,
    content: Vec<u8>,
    watcher: usize,
    references: u64,
}

/// Native values differ in every run, as addresses do.
static NEXT_NATIVE: AtomicU64 = AtomicU64::new(0x1000);
/// Objects of all sessions, by their native values.
static OBJECTS: Mutex<Option<HashMap<u64, Object>>> = Mutex::new(None);
/// By session and lane.
static CURRENT: Mutex<Option<HashMap<(usize, u32), u64>>> = Mutex::new(None);
/// Objects that nobody made are listed in another order every time.
static ROTATION: AtomicU64 = AtomicU64::new(0);
/// Added to the values that must be the same.
pub static MOVES_PLACES: AtomicU64 = AtomicU64::new(0);

const ROOTS: u64 = 3;
const ROOT_NAMES: [&std::ffi::CStr; ROOTS as usize] = [c"first", c"second", c"third"];

fn objects<R>(look: impl FnOnce(&mut HashMap<u64, Object>) -> R) -> R {
    let mut objects = OBJECTS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    look(objects.get_or_insert_with(|| (1..=ROOTS).map(|native| (native, Object::default())).collect()))
}

fn new_object(base: u64) -> u64 {
    let native = NEXT_NATIVE.fetch_add(16, Ordering::SeqCst);
    objects(|all| all.insert(native, Object { base, references: 1, ..Object::default() }));
    native
}

pub fn content_of(native: u64) -> Vec<u8> {
    objects(|all| all[&native].content.clone())
}

/// Gives an object back, with all of its references. False: it has others.
pub fn give_back(native: u64, references: u64) -> bool {
    objects(|all| all.remove(&native)).is_some_and(|object| object.references == references)
}

pub fn watcher_of(native: u64) -> Option<*mut c_void> {
    let watcher = objects(|all| all[&native].watcher);
    (watcher != 0).then(|| std::ptr::without_provenance_mut(watcher))
}

thread_local! {
    /// The object that the library works on where a call names none.
    static FOCUSED: Cell<u64> = const { Cell::new(0) };
}

pub unsafe extern "C" fn focused() -> u64 {
    FOCUSED.get()
}

unsafe extern "C" fn focus_on(native: u64) -> c_int {
    FOCUSED.set(native);
    0
}

unsafe fn focus(call: &mut Call) -> Result<(), Reject> {
    let native = call.handle(0)?;
    FOCUSED.set(native);
    call.record_thread(&[]);
    done(call)
}

/// Adds to the object that is current; of two calls with the same place the last counts.
unsafe fn add_here(call: &mut Call) -> Result<(), Reject> {
    let (place, number) = (call.word()?, call.word()?);
    let native = FOCUSED.get();
    objects(|all| all.get_mut(&native).map(|object| object.numbers.insert(place, number)));
    call.record_current(&[place]);
    done(call)
}

pub fn numbers_of(native: u64) -> Vec<(u64, u64)> {
    let mut numbers: Vec<(u64, u64)> = objects(|all| all[&native].numbers.clone()).into_iter().collect();
    numbers.sort_unstable();
    numbers
}

unsafe extern "C" fn identity(native: u64) -> *const c_char {
    let root = native.checked_sub(1).and_then(|root| ROOT_NAMES.get(root as usize));
    root.map_or(std::ptr::null(), |name| name.as_ptr())
}

pub fn name_of_root(native: u64) -> String {
    ROOT_NAMES[native as usize - 1].to_str().unwrap().to_owned()
}

pub unsafe extern "C" fn write_content(native: u64, offset: u64, to: *mut c_void, bytes: usize) -> i64 {
    let content = content_of(native);
    let rest = content.get(offset as usize..).unwrap_or_default();
    let count = rest.len().min(bytes);
    // SAFETY: the caller has `bytes` bytes of room.
    unsafe { std::ptr::copy_nonoverlapping(rest.as_ptr(), to.cast(), count) };
    count as i64
}

pub unsafe extern "C" fn read_content(native: u64, offset: u64, from: *const c_void, bytes: usize) -> c_int {
    if offset > 1 << 30 {
        return 1;
    }
    // SAFETY: the caller has `bytes` bytes.
    let piece = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), bytes) };
    objects(|all| {
        let Some(object) = all.get_mut(&native) else { return 1 };
        object.content.resize(offset as usize, 0);
        object.content.extend_from_slice(piece);
        0
    })
}

const CONTENT: ExplicitState = ExplicitState { write: write_content, read: read_content };

pub fn done(call: &mut Call) -> Result<(), Reject> {
    call.finish(true, 0);
    Ok(())
}

fn made(call: &mut Call, native: u64) -> Result<(), Reject> {
    call.reply_handle(0, native, Role::Allocate);
    call.record_made(0, native);
    done(call)
}

/// From an input, whose sum the object has.
unsafe fn create(call: &mut Call) -> Result<(), Reject> {
    let input = call.buffer_in(None, false)?;
    // SAFETY: the runtime vouches for the buffer.
    let bytes = unsafe { std::slice::from_raw_parts_mut(input.ptr, input.len) };
    let sum = bytes.iter().map(|b| u64::from(*b)).sum();
    if input.len == 40 {
        call.charge(0, 40)?;
    }
    if super::dropped::refuses() {
        return Err(call.fail(1));
    }
    call.reserve_handles(1)?;
    let native = new_object(sum);
    call.reply_handle(0, native, Role::Allocate);
    call.record_made(0, native);
    call.explicit_state(0, native, CONTENT);
    // Handlers may change what they decoded.
    if call.session.tables.memory.shared_offset(input.ptr, input.len).is_none() {
        bytes.fill(0);
    }
    done(call)
}

unsafe fn link(call: &mut Call) -> Result<(), Reject> {
    let (to, from, key) = (call.handle(0)?, call.handle(0)?, call.word()?);
    objects(|all| {
        let value = all[&from].base;
        all.get_mut(&to).unwrap().links.insert(key, value);
    });
    call.record(0, to, &[key]);
    done(call)
}

unsafe fn destroy(call: &mut Call) -> Result<(), Reject> {
    let native = call.handle_ending(0, true)?;
    objects(|all| all.remove(&native)).expect("a live object");
    call.release(0, native, true);
    done(call)
}

/// An object under an id that the guest chooses.
unsafe fn name(call: &mut Call) -> Result<(), Reject> {
    call.minted(0, 0)?;
    let native = new_object(0);
    call.reply_minted(0, native, 0);
    call.record_made(0, native);
    done(call)
}

/// The objects that nobody made.
unsafe fn find(call: &mut Call) -> Result<(), Reject> {
    let first = call.word()? + ROTATION.fetch_add(1, Ordering::SeqCst);
    for number in 0..ROOTS {
        call.reply_handle(0, (first + number) % ROOTS + 1, Role::Borrow);
    }
    done(call)
}

unsafe fn fill(call: &mut Call) -> Result<(), Reject> {
    let (native, word) = (call.handle(0)?, call.word()?);
    objects(|all| all.get_mut(&native).unwrap().content = vec![word as u8; (word >> 8) as usize]);
    done(call)
}

unsafe fn retain(call: &mut Call) -> Result<(), Reject> {
    let native = call.handle(0)?;
    objects(|all| all.get_mut(&native).unwrap().references += 1);
    call.retain(0, native);
    done(call)
}

unsafe fn release(call: &mut Call) -> Result<(), Reject> {
    let native = call.handle_ending(0, false)?;
    objects(|all| {
        let object = all.get_mut(&native).expect("a live object");
        object.references -= 1;
        if object.references == 0 {
            all.remove(&native);
        }
    });
    call.release(0, native, false);
    done(call)
}

unsafe fn references(call: &mut Call) -> Result<(), Reject> {
    let native = call.handle(0)?;
    call.reply_word(objects(|all| all[&native].references));
    done(call)
}

unsafe fn sum(call: &mut Call) -> Result<(), Reject> {
    let native = call.handle(0)?;
    call.reply_word(objects(|all| all[&native].base + all[&native].links.values().sum::<u64>()));
    done(call)
}

fn thread_of(call: &Call) -> (usize, u32) {
    (Arc::as_ptr(&call.session).addr(), call.caller.lane)
}

/// Makes an object the thread's own.
unsafe fn select(call: &mut Call) -> Result<(), Reject> {
    let native = call.handle(0)?;
    CURRENT.lock().unwrap().get_or_insert_default().insert(thread_of(call), native);
    call.record_thread(&[]);
    done(call)
}

unsafe fn selected(call: &mut Call) -> Result<(), Reject> {
    let current = CURRENT.lock().unwrap().get_or_insert_default().get(&thread_of(call)).copied();
    let Some(native) = current else { return Err(call.fail(1)) };
    call.reply_handle(0, native, Role::Borrow);
    done(call)
}

unsafe fn reserve(call: &mut Call) -> Result<(), Reject> {
    let amount = call.word()?;
    call.charge(0, amount)?;
    done(call)
}

unsafe fn unreserve(call: &mut Call) -> Result<(), Reject> {
    let amount = call.word()?;
    call.uncharge(0, amount);
    done(call)
}

/// An object at a place that the application may keep.
unsafe fn create_at(call: &mut Call) -> Result<(), Reject> {
    let place = call.word()? + MOVES_PLACES.load(Ordering::SeqCst);
    call.same(place);
    let native = new_object(place);
    made(call, native)
}

fn register(call: &mut Call) -> Result<u64, Reject> {
    let native = call.handle(0)?;
    let closure = call.callback(WATCH_KIND, crate::callbacks::closures::ClosureLifetime::Once)?;
    objects(|all| all.get_mut(&native).unwrap().watcher = closure.addr());
    Ok(native)
}

unsafe fn watch(call: &mut Call) -> Result<(), Reject> {
    let native = register(call)?;
    call.record(0, native, &[]);
    done(call)
}

unsafe fn watch_unrecorded(call: &mut Call) -> Result<(), Reject> {
    register(call)?;
    done(call)
}

/// Fails for 0.
unsafe fn unexplained(call: &mut Call) -> Result<(), Reject> {
    let fails = call.word()? == 0;
    if !fails {
        call.blocks_moves();
    }
    call.finish(!fails, 0);
    Ok(())
}

unsafe fn forgotten(call: &mut Call) -> Result<(), Reject> {
    let native = new_object(0);
    call.reply_handle(0, native, Role::Allocate);
    done(call)
}

/// An object that no record makes again.
struct Note {
    value: u64,
    references: u64,
    is_loaded: bool,
}

/// By their native values.
static NOTES: Mutex<Option<HashMap<u64, Note>>> = Mutex::new(None);

fn notes<R>(look: impl FnOnce(&mut HashMap<u64, Note>) -> R) -> R {
    look(NOTES.lock().unwrap_or_else(std::sync::PoisonError::into_inner).get_or_insert_default())
}

fn new_note(value: u64, references: u64) -> u64 {
    let native = NEXT_NATIVE.fetch_add(16, Ordering::SeqCst);
    notes(|all| all.insert(native, Note { value, references, is_loaded: false }));
    native
}

/// References that the library knows, and if the note has been made again.
pub fn note(native: u64) -> (u64, bool) {
    notes(|all| (all[&native].references, all[&native].is_loaded))
}

unsafe extern "C" fn save_note(native: u64, to: *mut c_void, bytes: usize) -> i64 {
    let value = notes(|all| all[&native].value);
    if value == UNWRITTEN || bytes < 8 {
        return -1;
    }
    // SAFETY: the caller has room for `bytes` bytes.
    unsafe { to.cast::<u64>().write_unaligned(value) };
    8
}

unsafe extern "C" fn make_note(references: u64, from: *const c_void, bytes: usize) -> u64 {
    if bytes != 8 {
        return 0;
    }
    // SAFETY: the caller has `bytes` bytes.
    new_note(unsafe { from.cast::<u64>().read_unaligned() }, references)
}

unsafe extern "C" fn load_note(native: u64, _: *const c_void, _: usize) -> c_int {
    notes(|all| all.get_mut(&native).map_or(1, |note| c_int::from(std::mem::replace(&mut note.is_loaded, true))))
}

unsafe fn write_note(call: &mut Call) -> Result<(), Reject> {
    let value = call.word()?;
    call.reply_handle(1, new_note(value, 1), Role::Allocate);
    done(call)
}

unsafe fn read_note(call: &mut Call) -> Result<(), Reject> {
    let native = call.handle(1)?;
    call.reply_word(notes(|all| all[&native].value));
    done(call)
}

unsafe fn retain_note(call: &mut Call) -> Result<(), Reject> {
    let native = call.handle(1)?;
    notes(|all| all.get_mut(&native).unwrap().references += 1);
    call.retain(1, native);
    done(call)
}

unsafe fn release_note(call: &mut Call) -> Result<(), Reject> {
    let native = call.handle_ending(1, false)?;
    notes(|all| all.get_mut(&native).expect("a live note").references -= 1);
    call.release(1, native, false);
    done(call)
}
