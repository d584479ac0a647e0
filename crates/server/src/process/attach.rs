//! From an accepted socket to a module that serves it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CString, c_void};
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aviary_gate::GrantPage;
use aviary_transport::receive_hello;
use aviary_wire::attach::{hello_flag, welcome_status};
use aviary_wire::{Hello, WIRE_VERSION};

use rustix::event::{EventfdFlags, eventfd};

use super::node::Announced;
use super::{Shared, note};
use crate::confine::adopt_output;
use crate::connection::send_welcome;
use crate::module::{ABI_VERSION, ENTRY, ModuleAbi, ServeArguments, event};
use crate::printed;
use crate::refusal::Refusal;
use crate::stats::StatsPage;

/// A guest that connects says hello at once.
const GREETING: Duration = Duration::from_secs(5);

/// Serves the connection to its end and tells the node about it.
pub fn serve(shared: &Shared, announced: Announced) {
    let session = announced.config.session;
    if let Err(refusal) = attach(shared, &announced) {
        let text = format!("refused: {}", refusal.whole());
        if !announced.config.private {
            note(shared, session, &text);
        }
        let told = refusal.for_guest(announced.config.own);
        send_welcome(announced.socket.as_fd(), refusal.status, 0, session, &told);
        shared.node.ended(session, &text);
    }
}

fn failed(what: &str, error: impl std::fmt::Display) -> Refusal {
    Refusal::failed(what, error)
}

/// The descriptors of a greeting, by what they are.
struct Belongings {
    arena: Option<OwnedFd>,
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
}

fn sort(hello: &Hello, fds: Vec<OwnedFd>) -> Belongings {
    let mut fds = fds.into_iter();
    let mut next = |there: bool| if there { fds.next() } else { None };
    Belongings {
        arena: next(hello.flags & hello_flag::MIRRORED == 0),
        stdout: next(hello.flags & hello_flag::STDOUT != 0),
        stderr: next(hello.flags & hello_flag::STDERR != 0),
    }
}

fn attach(shared: &Shared, announced: &Announced) -> Result<(), Refusal> {
    let session = announced.config.session;
    let (hello, fds) = receive_hello(&announced.socket, GREETING).map_err(|e| failed("the greeting", e))?;
    if hello.wire_version != WIRE_VERSION {
        let text = format!("the guest library speaks wire version {}, the server {WIRE_VERSION}", hello.wire_version);
        return Err(Refusal::new(welcome_status::WIRE_VERSION, text));
    }
    if announced.config.apis.as_ref().is_some_and(|apis| !apis.contains(&hello.api)) {
        let tenant = &announced.config.tenant;
        let text = format!("tenant {tenant} may not use the API {:?} on this node", hello.api);
        return Err(Refusal::new(welcome_status::REFUSED, text));
    }
    let belongings = sort(&hello, fds);
    let pipes = shared.output.get_or_init(|| take_output(&hello, &belongings));
    let module = load(&find(&announced.config.modules, &hello.api)?)?;
    let stats = StatsPage::create().map_err(|e| failed("the statistics", e))?;
    let shown = rustix::io::fcntl_dupfd_cloexec(&stats, 3).map_err(|e| failed("the statistics", e))?;
    let copy = |fd: &OwnedFd| rustix::io::fcntl_dupfd_cloexec(fd, 3);
    let socket = copy(&announced.socket).map_err(|e| failed("the socket", e))?;
    let page = announced.tenant_page.as_ref().map(copy).transpose().map_err(|e| failed("the tenant's accounts", e))?;
    let printed = match pipes {
        Some([out, errors]) if hello.flags & hello_flag::PRINTED != 0 => {
            [out, errors].map(|end| copy(end).map_or(-1, IntoRawFd::into_raw_fd))
        }
        _ => [-1; 2],
    };
    let greeting = hello.to_bytes();
    let seats = if announced.config.schedulable { Some(Seats::new()?) } else { None };
    let (shown_seats, grants) = seats.map_or((None, None), |seats| (Some(seats.shown), Some(seats.own)));
    let watcher = Watcher { shared, session, api: &hello.api, stats: shown, seats: shown_seats };
    let arguments = ServeArguments {
        session,
        socket: socket.into_raw_fd(),
        arena: belongings.arena.map_or(-1, IntoRawFd::into_raw_fd),
        stats: stats.into_raw_fd(),
        grants: grants.as_ref().map_or(-1, |(page, _)| page.as_raw_fd()),
        bell: grants.as_ref().map_or(-1, |(_, bell)| bell.as_raw_fd()),
        tenant_page: page.map_or(-1, IntoRawFd::into_raw_fd),
        printed,
        journal: shared.journal,
        hello: greeting.as_ptr(),
        hello_length: greeting.len(),
        config: announced.json.as_ptr(),
        config_length: announced.json.len(),
        exchange: &raw const super::exchange::ABI,
        event: watch,
        context: (&raw const watcher).cast_mut().cast(),
    };
    // The module's from now on.
    grants.map(|(page, bell)| (page.into_raw_fd(), bell.into_raw_fd()));
    (module.serve)(&arguments);
    Ok(())
}

/// Where what vendors' libraries print goes from now on: the guest's own descriptors, or pipes, of which these are the
/// ends to read.
fn take_output(hello: &Hello, belongings: &Belongings) -> Option<[OwnedFd; 2]> {
    if hello.flags & hello_flag::PRINTED == 0 {
        let raw = |fd: &Option<OwnedFd>| fd.as_ref().map(|f| f.as_raw_fd());
        adopt_output(raw(&belongings.stdout), raw(&belongings.stderr));
        return None;
    }
    let (out, errors) = (printed::pipe().ok()?, printed::pipe().ok()?);
    adopt_output(Some(out.1.as_raw_fd()), Some(errors.1.as_raw_fd()));
    Some([out.0, errors.0])
}

/// Page and bell of a session's devices, for the module and for the node.
struct Seats {
    own: (OwnedFd, OwnedFd),
    shown: (OwnedFd, OwnedFd),
}

impl Seats {
    fn new() -> Result<Seats, Refusal> {
        let make = || {
            let page = GrantPage::create()?;
            let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            let again = |fd: &OwnedFd| rustix::io::fcntl_dupfd_cloexec(fd, 3);
            Ok(Seats { shown: (again(&page)?, again(&bell)?), own: (page, bell) })
        };
        make().map_err(|e: rustix::io::Errno| failed("the grants", e))
    }
}

/// Hears what a module says about its connection.
struct Watcher<'a> {
    shared: &'a Shared,
    session: u64,
    api: &'a str,
    stats: OwnedFd,
    seats: Option<(OwnedFd, OwnedFd)>,
}

extern "C" fn watch(context: *mut c_void, what: u32, text: *const u8, length: usize) {
    // SAFETY: `context` is the `Watcher` that `attach` passed, alive until `serve` returns.
    let watcher = unsafe { &*context.cast_const().cast::<Watcher>() };
    watcher.shared.attaching.end(watcher.session);
    if what == event::STARTED {
        let seats = watcher.seats.as_ref().map(|(page, bell)| (page.as_fd(), bell.as_fd()));
        watcher.shared.node.started(watcher.session, watcher.api, watcher.stats.as_fd(), seats);
    } else if what == event::ENDED {
        // SAFETY: the module passes a text of this length, valid during the call.
        let text = unsafe { std::slice::from_raw_parts(text, length) };
        watcher.shared.node.ended(watcher.session, &String::from_utf8_lossy(text));
    }
}

/// The guest names the API, so the name must not lead out of the modules' directories.
fn find(directories: &[PathBuf], api: &str) -> Result<PathBuf, Refusal> {
    let plain = !api.is_empty() && api.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    let mut candidates = directories.iter().map(|d| d.join(api).join("server.so"));
    // This process may not be able to look there any more.
    let there = |path: &PathBuf| plain && (loaded().contains_key(path) || path.is_file());
    match candidates.find(there) {
        Some(path) => Ok(path),
        None => {
            let text = format!("the server has no module for the API {api:?}; build it there with `aviary spec build`");
            Err(Refusal::new(welcome_status::API, text).detail(format!("searched {directories:?}")))
        }
    }
}

/// Modules that this process has loaded, by their files.
fn loaded() -> MutexGuard<'static, BTreeMap<PathBuf, &'static ModuleAbi>> {
    static LOADED: Mutex<BTreeMap<PathBuf, &'static ModuleAbi>> = Mutex::new(BTreeMap::new());
    LOADED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn load(path: &Path) -> Result<&'static ModuleAbi, Refusal> {
    if let Some(module) = loaded().get(path) {
        return Ok(module);
    }
    let module = open(path)?;
    loaded().insert(path.to_owned(), module);
    Ok(module)
}

/// Loads every module in these directories, and what it needs, before a guest is there. What cannot be loaded is not:
/// the session that asks for it tries again and tells why. Answers what was loaded, one by one.
pub(super) fn preload(directories: &[PathBuf]) -> impl Iterator<Item = PathBuf> {
    let mut seen = BTreeSet::new();
    let files = directories.iter().flat_map(|directory| modules(directory)).collect::<Vec<_>>();
    files.into_iter().filter(move |path| {
        let first = seen.insert(path.parent().and_then(Path::file_name).map(ToOwned::to_owned));
        first && load(path).map(|module| (module.preload)()).is_ok()
    })
}

/// In a fixed order.
fn modules(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> =
        entries.map(|entry| entry.path().join("server.so")).filter(|path| path.is_file()).collect();
    found.sort();
    found
}

fn open(path: &Path) -> Result<&'static ModuleAbi, Refusal> {
    use std::os::unix::ffi::OsStrExt;
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|e| failed("the module's path", e))?;
    // SAFETY: modules are the operator's files, found in the directories that the node configured.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        // SAFETY: dlerror answers a NUL-terminated text of this thread, or NULL.
        let reason = unsafe {
            let text = libc::dlerror();
            if text.is_null() { String::new() } else { std::ffi::CStr::from_ptr(text).to_string_lossy().into_owned() }
        };
        return Err(unusable("the module cannot be loaded", path, &reason));
    }
    // SAFETY: a live library handle and a NUL-terminated name.
    let entry = unsafe { libc::dlsym(library, ENTRY.as_ptr()) };
    if entry.is_null() {
        return Err(unusable("the module cannot be used", path, "not a server module (no aviary_module)"));
    }
    // SAFETY: a symbol of this name is `extern "C" fn() -> *const ModuleAbi` in every version.
    let entry: extern "C" fn() -> *const ModuleAbi = unsafe { std::mem::transmute(entry) };
    // SAFETY: the structure is static in a module that is never unloaded; its first field has the same place
    // in every version, and the others are used only if the version is ours.
    let module = unsafe { entry().as_ref() };
    match module {
        Some(module) if module.abi_version == ABI_VERSION => Ok(module),
        Some(module) => {
            let text =
                format!("its interface has version {}, the server's {ABI_VERSION}; build it again", module.abi_version);
            Err(unusable("the module cannot be used", path, &text))
        }
        None => Err(unusable("the module cannot be used", path, "it describes no module")),
    }
}

fn unusable(what: &str, path: &Path, why: &str) -> Refusal {
    Refusal::new(welcome_status::FAILED, what).detail(format!("{}: {why}", path.display()))
}
