//! A *twin*, for tests: a program and its API servers in one process, without any protection.
//!
//!     LD_PRELOAD=libtwin.so AVIARY_TWIN=FOLDER AVIARY_VENDOR_<API>=LIBRARY PROGRAM
//!
//! `FOLDER/<api>/server.so` is loaded into a namespace of its own (`dlmopen`), with a C library of its own: guest library and
//! vendor's library have one soname. Its threads sleep in berths, so that the program's threads execute their calls.
//! Children of a process that has a twin have none: they attach as ever.

mod namespace;
mod stacks;
mod watch;

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_int, c_void};
use std::os::fd::{IntoRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use aviary_control::stats::StatsPage;
use aviary_delegate::Berth;
use aviary_delegate::door::{DOOR_VERSION, DoorTable};
use aviary_server::module::{ABI_VERSION, ENTRY, ModuleAbi, OPEN_DOOR, ServeArguments};
use aviary_transport::receive_hello;
use aviary_wire::Hello;
use aviary_wire::attach::hello_flag;
use namespace::SetVariable;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

const HELLO_TIMEOUT: Duration = Duration::from_secs(60);
/// The settings of a node that serves one program.
const CONFIG: &[u8] = br#"{"private": true, "own": true, "vendors": {}}"#;

static TABLE: DoorTable = DoorTable { version: DOOR_VERSION, connect, open, close, sleep, wake, enter };

/// See [`aviary_delegate::door::DOOR`].
#[unsafe(no_mangle)]
pub extern "C" fn aviary_door() -> *const DoorTable {
    &raw const TABLE
}

/// Berths by session and lane, as long as a side uses them.
type Berths = BTreeMap<(u64, u32), Weak<Berth>>;

static BERTHS: Mutex<Berths> = Mutex::new(Berths::new());

extern "C" fn open(session: u64, lane: u32) -> *const c_void {
    let mut berths = BERTHS.lock().unwrap_or_else(PoisonError::into_inner);
    berths.retain(|_, berth| berth.strong_count() > 0);
    if let Some(berth) = berths.get(&(session, lane)).and_then(Weak::upgrade) {
        return Arc::into_raw(berth).cast();
    }
    let Some(berth) = Berth::new().map(Arc::new) else { return std::ptr::null() };
    berths.insert((session, lane), Arc::downgrade(&berth));
    Arc::into_raw(berth).cast()
}

extern "C" fn close(berth: *const c_void) {
    // SAFETY: a reference that `open` has given, and that its owner releases once.
    drop(unsafe { Arc::from_raw(berth.cast::<Berth>()) });
}

/// The berth behind a reference.
///
/// # Safety
/// `open` has given it, and it was not released.
unsafe fn berth<'a>(berth: *const c_void) -> &'a Berth {
    // SAFETY: the caller's promise.
    unsafe { &*berth.cast() }
}

extern "C" fn sleep(at: *const c_void, at_most_ns: u64) {
    watch::note_lane(at);
    let at_most = (at_most_ns != u64::MAX).then(|| Duration::from_nanos(at_most_ns));
    // SAFETY: the lane's thread calls with the reference that it has until it ends, or its borrower in its context.
    unsafe { berth(at).sleep(at_most) }
}

extern "C" fn wake(at: *const c_void) {
    // SAFETY: a side calls with its reference.
    unsafe { berth(at) }.wake();
}

extern "C" fn enter(at: *const c_void) -> u32 {
    // SAFETY: the guest calls with its reference.
    watch::enter(unsafe { berth(at) }) as u32
}

/// The process that has the twin; its children have copies of this memory, and no threads in it.
static PROCESS: AtomicUsize = AtomicUsize::new(0);

extern "C" fn connect(session: *mut u64) -> c_int {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let process = std::process::id() as usize;
    let first = PROCESS.compare_exchange(0, process, Ordering::SeqCst, Ordering::SeqCst).unwrap_or(0);
    if std::env::var_os("AVIARY_TWIN").is_none() || first != 0 && first != process {
        return -1;
    }
    let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    let Ok((guest, server)) = pair else { return -1 };
    let number = LAST.fetch_add(1, Ordering::SeqCst) + 1;
    let life = move || {
        if let Err(why) = greet(number, server) {
            eprintln!("twin: {why}");
        }
    };
    let started = without_signals(|| std::thread::Builder::new().name("twin-greeter".into()).spawn(life).is_ok());
    if !started {
        return -1;
    }
    // SAFETY: the guest passes a place for a number.
    unsafe { session.write(number) };
    guest.into_raw_fd()
}

/// A thread that is started meanwhile handles no signals of the program.
fn without_signals<R>(start: impl FnOnce() -> R) -> R {
    // SAFETY: sets of this function; all signals can be named.
    unsafe {
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let result = start();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        result
    }
}

type Entry = extern "C" fn(*mut c_void) -> *mut c_void;
/// `pthread_create` of the namespace's own C library.
type Create = unsafe extern "C" fn(*mut libc::pthread_t, *const c_void, Entry, *mut c_void) -> c_int;

/// A module in its namespace.
#[derive(Clone, Copy)]
struct Loaded {
    module: &'static ModuleAbi,
    create: Create,
}

/// A session for its thread.
struct Session {
    number: u64,
    socket: OwnedFd,
    arena: Option<OwnedFd>,
    stats: OwnedFd,
    hello: Vec<u8>,
    module: &'static ModuleAbi,
}

fn greet(number: u64, socket: OwnedFd) -> Result<(), String> {
    let (hello, fds) = receive_hello(&socket, HELLO_TIMEOUT).map_err(|error| error.to_string())?;
    let arena = if hello.flags & hello_flag::MIRRORED == 0 { fds.into_iter().next() } else { None };
    let Loaded { module, create } = load(&hello)?;
    let stats = StatsPage::create().map_err(|error| error.to_string())?;
    let session = Box::new(Session { number, socket, arena, stats, hello: hello.to_bytes(), module });
    let mut thread = 0;
    // SAFETY: the function takes the session back.
    let failed = unsafe { create(&raw mut thread, std::ptr::null(), serve, Box::into_raw(session).cast()) };
    if failed == 0 { Ok(()) } else { Err(format!("cannot start a session's thread: {failed}")) }
}

extern "C" fn serve(session: *mut c_void) -> *mut c_void {
    // SAFETY: `greet` has given the box.
    let session = unsafe { Box::from_raw(session.cast::<Session>()) };
    let Session { number, socket, arena, stats, hello, module } = *session;
    let arguments = ServeArguments {
        session: number,
        socket: socket.into_raw_fd(),
        arena: arena.map_or(-1, IntoRawFd::into_raw_fd),
        stats: stats.into_raw_fd(),
        grants: -1,
        bell: -1,
        tenant_page: -1,
        printed: [-1; 2],
        journal: 2,
        hello: hello.as_ptr(),
        hello_length: hello.len(),
        config: CONFIG.as_ptr(),
        config_length: CONFIG.len(),
        exchange: std::ptr::null(),
        orders: -1,
        snapshot: -1,
        heap: -1,
        handed: -1,
        event: ignore,
        context: std::ptr::null_mut(),
    };
    (module.serve)(&raw const arguments);
    std::ptr::null_mut()
}

extern "C" fn ignore(_: *mut c_void, _: u32, _: *const u8, _: usize) {}

/// The API's module, loaded once.
fn load(hello: &Hello) -> Result<Loaded, String> {
    static MODULES: Mutex<BTreeMap<String, Loaded>> = Mutex::new(BTreeMap::new());
    let mut modules = MODULES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(loaded) = modules.get(&hello.api) {
        return Ok(*loaded);
    }
    let folder = std::env::var("AVIARY_TWIN").map_err(|error| error.to_string())?;
    let path = CString::new(format!("{folder}/{}/server.so", hello.api)).map_err(|error| error.to_string())?;
    // SAFETY: a file of the test; its constructors run.
    let library = unsafe { libc::dlmopen(libc::LM_ID_NEWLM, path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    let library = NonNull::new(library).ok_or_else(|| format!("{path:?}: {}", dl_error()))?;
    let find = |name: &CStr| {
        // SAFETY: a live library and a NUL-terminated name; what it needs is looked through, too.
        let found = unsafe { libc::dlsym(library.as_ptr(), name.as_ptr()) };
        NonNull::new(found).ok_or_else(|| format!("{path:?} lacks {name:?}"))
    };
    // SAFETY: functions of these names have these types.
    let (entry, open_door, create, flush, set) = unsafe {
        (
            std::mem::transmute::<NonNull<c_void>, extern "C" fn() -> *const ModuleAbi>(find(ENTRY)?),
            std::mem::transmute::<NonNull<c_void>, extern "C" fn(*const DoorTable)>(find(OPEN_DOOR)?),
            std::mem::transmute::<NonNull<c_void>, Create>(find(c"pthread_create")?),
            std::mem::transmute::<NonNull<c_void>, Flush>(find(c"fflush")?),
            std::mem::transmute::<NonNull<c_void>, SetVariable>(find(c"setenv")?),
        )
    };
    // SAFETY: the table is static in a module that is never unloaded.
    let module = unsafe { entry().as_ref() }.filter(|module| module.abi_version == ABI_VERSION);
    let module = module.ok_or_else(|| format!("{path:?} was built for another interface"))?;
    namespace::set_variables(set);
    // SAFETY: a function of the namespace's C library; the module's threads are not made yet.
    if !unsafe { namespace::keep_handler(find(c"sigaction")?) } {
        return Err(format!("{path:?}: the handler of SIGSYS cannot be kept"));
    }
    // SAFETY: the same.
    let kept = unsafe { stacks::keep_no_stacks(find(c"pthread_create")?) };
    kept.ok_or_else(|| format!("{path:?}: this C library's pthread_create begins with unknown instructions"))?;
    open_door(&raw const TABLE);
    at_exit(flush);
    modules.insert(hello.api.clone(), Loaded { module, create });
    Ok(Loaded { module, create })
}

type Flush = unsafe extern "C" fn(*mut c_void) -> c_int;

/// When the program ends, what the vendor's library has printed into buffers of its own C library is written, and what became of
/// attempts to borrow, into the file that `AVIARY_TWIN_COUNTS` names.
fn at_exit(flush: Flush) {
    static FLUSH: OnceLock<Flush> = OnceLock::new();
    extern "C" fn all() {
        // Not what a child of `fork` has copies of.
        let own = PROCESS.load(Ordering::SeqCst) == std::process::id() as usize;
        if let Some(flush) = FLUSH.get().filter(|_| own) {
            // SAFETY: NULL stands for all streams.
            unsafe { flush(std::ptr::null_mut()) };
            if let Some(path) = std::env::var_os("AVIARY_TWIN_COUNTS") {
                let [returned, handed_over, refused] = watch::counts();
                let text = format!("returned {returned} handed-over {handed_over} refused {refused}\n");
                let _ = std::fs::write(path, text);
            }
        }
    }
    if FLUSH.set(flush).is_ok() {
        // SAFETY: the function takes nothing and stays loaded.
        unsafe { libc::atexit(all) };
    }
}

fn dl_error() -> String {
    // SAFETY: answers a text of this thread, or NULL.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return String::new();
    }
    // SAFETY: a NUL-terminated text, valid until the next call.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
