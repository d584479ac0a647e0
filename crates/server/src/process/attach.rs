//! From an accepted socket to a module that serves it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CString, c_void};
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aviary_control::{Preparation, is_api_name};
use aviary_transport::receive_hello;
use aviary_wire::attach::{PREFIX, hello_flag, welcome_status};
use aviary_wire::{Hello, WIRE_VERSION};

use super::{Assigned, ProcessState, note};
use crate::confine::adopt_output;
use crate::connection::send_welcome;
use crate::module::{ABI_VERSION, ENTRY, ModuleAbi, PrepareArguments, ServeArguments, event};
use crate::moving::snapshot;
use crate::printed;
use crate::refusal::AttachRefusal;
use crate::vendor::try_loading;

/// The folder beside a module with those of earlier builds, by the hashes of their specifications.
const KEPT: &str = "modules";
/// A guest that connects says hello at once.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

/// Serves the connection to its end and tells the node about it.
pub fn serve(shared: &ProcessState, assigned: Assigned) {
    let session = assigned.assignment.session;
    let attached = attach(shared, &assigned);
    shared.orders.close(session);
    if let Err(refusal) = attached {
        let text = format!("refused: {}", refusal.whole());
        if assigned.state.is_some() {
            // The guest is the old process's and hears nothing of this.
            return shared.node.ended(session, &text);
        }
        if !assigned.assignment.private {
            note(shared, session, &text);
        }
        let told = refusal.for_guest(assigned.assignment.own);
        send_welcome(assigned.descriptors.guest.as_fd(), refusal.status, 0, session, &told);
        shared.node.ended(session, &text);
    }
}

fn failed(what: &str, error: impl std::fmt::Display) -> AttachRefusal {
    AttachRefusal::failed(what, error)
}

/// The descriptors of a greeting, by what they are.
struct HelloDescriptors {
    arena: Option<OwnedFd>,
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
}

fn sort(hello: &Hello, fds: Vec<OwnedFd>) -> HelloDescriptors {
    let mut fds = fds.into_iter();
    let mut next = |there: bool| if there { fds.next() } else { None };
    HelloDescriptors {
        arena: next(hello.flags & hello_flag::MIRRORED == 0),
        stdout: next(hello.flags & hello_flag::STDOUT != 0),
        stderr: next(hello.flags & hello_flag::STDERR != 0),
    }
}

/// The guest's greeting, with its descriptors; of a session that moves, as the old process has kept it.
fn greeting(assigned: &Assigned) -> Result<(Hello, HelloDescriptors), AttachRefusal> {
    let Some(state) = &assigned.state else {
        let guest = &assigned.descriptors.guest;
        let (hello, fds) = receive_hello(guest, HELLO_TIMEOUT).map_err(|e| failed("the greeting", e))?;
        let belongings = sort(&hello, fds);
        return Ok((hello, belongings));
    };
    let (link, _) = snapshot::read(&state.snapshot).map_err(|e| failed("the session's state", e))?;
    let body = link.hello.get(PREFIX..).unwrap_or_default();
    let hello = Hello::from_body(body).map_err(|e| failed("the greeting", e))?;
    let copy = |fd: &OwnedFd| rustix::io::fcntl_dupfd_cloexec(fd, 3).map_err(|e| failed("the session's state", e));
    let [stdout, stderr] = [copy(&state.output[0])?, copy(&state.output[1])?];
    let belongings = HelloDescriptors { arena: Some(copy(&state.arena)?), stdout: Some(stdout), stderr: Some(stderr) };
    Ok((hello, belongings))
}

fn attach(shared: &ProcessState, assigned: &Assigned) -> Result<(), AttachRefusal> {
    let Assigned { assignment, descriptors, state } = assigned;
    let session = assignment.session;
    let (hello, belongings) = greeting(assigned)?;
    if hello.wire_version != WIRE_VERSION {
        let text = format!("the guest library speaks wire version {}, the server {WIRE_VERSION}", hello.wire_version);
        return Err(AttachRefusal::new(welcome_status::WIRE_VERSION, text));
    }
    if assignment.apis.as_ref().is_some_and(|apis| !apis.contains(&hello.api)) {
        let tenant = &assignment.tenant;
        let text = format!("tenant {tenant} may not use the API {:?} on this node", hello.api);
        return Err(AttachRefusal::new(welcome_status::REFUSED, text));
    }
    let pipes = shared.output.get_or_init(|| take_output(&hello, &belongings));
    let module = module_for(&assignment.modules, &hello.api, hello.spec_hash)?;
    let config = assignment.to_json().map_err(|e| failed("the session's settings", e))?;
    let copy = |fd: &OwnedFd| rustix::io::fcntl_dupfd_cloexec(fd, 3);
    let own = |fd: &OwnedFd| copy(fd).map_err(|e| failed("the session's descriptors", e));
    let (socket, page, stats) = (own(&descriptors.guest)?, own(&descriptors.tenant_page)?, own(&descriptors.stats)?);
    let devices = descriptors.devices.as_ref();
    let devices = devices.map(|devices| Ok((own(&devices.page)?, own(&devices.bell)?))).transpose()?;
    let printed = match pipes {
        Some([out, errors]) if hello.flags & hello_flag::PRINTED != 0 => {
            [out, errors].map(|end| copy(end).map_or(-1, IntoRawFd::into_raw_fd))
        }
        _ => [-1; 2],
    };
    let [ours, theirs] = [own(&descriptors.orders[0])?, own(&descriptors.orders[1])?];
    let greeting = hello.to_bytes();
    let snapshot = state.as_ref().map(|state| own(&state.snapshot)).transpose()?;
    let heap = state.as_ref().and_then(|state| state.heap.as_ref()).map(own).transpose()?;
    let handed = state.as_ref().map(|state| own(&state.handed)).transpose()?;
    let watcher = Watcher { shared, session, api: &hello.api, spec_hash: hello.spec_hash };
    let (grants, bell) = devices.unzip();
    let raw = |fd: Option<OwnedFd>| fd.map_or(-1, IntoRawFd::into_raw_fd);
    let arguments = ServeArguments {
        session,
        socket: socket.into_raw_fd(),
        arena: belongings.arena.map_or(-1, IntoRawFd::into_raw_fd),
        stats: stats.into_raw_fd(),
        grants: raw(grants),
        bell: raw(bell),
        tenant_page: page.into_raw_fd(),
        printed,
        journal: shared.journal,
        hello: greeting.as_ptr(),
        hello_length: greeting.len(),
        config: config.as_ptr(),
        config_length: config.len(),
        exchange: &raw const super::exchange::ABI,
        orders: theirs.into_raw_fd(),
        snapshot: raw(snapshot),
        heap: raw(heap),
        handed: raw(handed),
        event: watch,
        context: (&raw const watcher).cast_mut().cast(),
    };
    shared.orders.open(shared, session, ours);
    (module.serve)(&arguments);
    Ok(())
}

/// Where what vendors' libraries print goes from now on: the guest's own descriptors, or pipes, of which these are the
/// ends to read.
fn take_output(hello: &Hello, belongings: &HelloDescriptors) -> Option<[OwnedFd; 2]> {
    if hello.flags & hello_flag::PRINTED == 0 {
        let raw = |fd: &Option<OwnedFd>| fd.as_ref().map(|f| f.as_raw_fd());
        adopt_output(raw(&belongings.stdout), raw(&belongings.stderr));
        return None;
    }
    let (out, errors) = (printed::pipe().ok()?, printed::pipe().ok()?);
    adopt_output(Some(out.1.as_raw_fd()), Some(errors.1.as_raw_fd()));
    Some([out.0, errors.0])
}

/// Hears what a module says about its connection.
struct Watcher<'a> {
    shared: &'a ProcessState,
    session: u64,
    api: &'a str,
    spec_hash: u64,
}

extern "C" fn watch(context: *mut c_void, what: u32, text: *const u8, length: usize) {
    // SAFETY: `context` is the `Watcher` that `attach` passed, alive until `serve` returns.
    let watcher = unsafe { &*context.cast_const().cast::<Watcher>() };
    watcher.shared.attaching.end(watcher.session);
    if what == event::STARTED {
        watcher.shared.node.started(watcher.session, watcher.api, watcher.spec_hash);
    } else if what == event::ENDED {
        // SAFETY: the module passes a text of this length, valid during the call.
        let text = unsafe { std::slice::from_raw_parts(text, length) };
        watcher.shared.node.ended(watcher.session, &String::from_utf8_lossy(text));
    }
}

/// The guest names the API, so the name must not lead out of the modules' directories.
fn find(directories: &[PathBuf], api: &str) -> Result<PathBuf, AttachRefusal> {
    let mut candidates = directories.iter().map(|d| d.join(api).join("server.so"));
    // This process may not be able to look there any more.
    let there = |path: &PathBuf| is_api_name(api) && (loaded().contains_key(path) || path.is_file());
    match candidates.find(there) {
        Some(path) => Ok(path),
        None => {
            let text = format!("the server has no module for the API {api:?}; build it there with `aviary spec build`");
            Err(AttachRefusal::new(welcome_status::API, text).detail(format!("searched {directories:?}")))
        }
    }
}

/// The module of a guest library's specification: the present one, or one that an earlier build has left. If there is none
/// the present one answers, which says what does not fit.
fn module_for(directories: &[PathBuf], api: &str, spec_hash: u64) -> Result<&'static ModuleAbi, AttachRefusal> {
    let path = find(directories, api)?;
    let present = load(&path)?;
    if present.spec_hash == spec_hash {
        return Ok(present);
    }
    let kept = path.with_file_name(KEPT).join(format!("{spec_hash:016x}.so"));
    let there = loaded().contains_key(&kept) || kept.is_file();
    let kept = there.then(|| load(&kept)).and_then(Result::ok).filter(|module| module.spec_hash == spec_hash);
    Ok(kept.unwrap_or(present))
}

/// Loads the module that a session which may come here needs, and with what the old process has `announced` the vendor's
/// library. The error says why the session cannot come: for people.
pub fn prepare(shared: &ProcessState, wanted: &Preparation, announced: Option<OwnedFd>) -> Result<(), String> {
    let hello = announced.map(|file| snapshot::read(&file)).transpose().map_err(|error| error.to_string())?;
    if hello.is_some() {
        // Threads that the vendor's library starts are confined with the process.
        shared.confine_for(wanted.user.as_ref(), &wanted.modules, &wanted.vendors)?;
    }
    let module = module_for(&wanted.modules, &wanted.api, wanted.spec_hash).map_err(|refusal| refusal.whole())?;
    if module.spec_hash != wanted.spec_hash {
        return Err(format!(
            "the module for the API {:?} that the new API server loads is of another specification ({:016x}) than the \
             program's guest library ({:016x})",
            wanted.api, module.spec_hash, wanted.spec_hash
        ));
    }
    if let Some((link, _)) = hello {
        let vendor = wanted.vendors.get(&wanted.api).map(String::as_str).unwrap_or_default();
        (module.prepare)(&PrepareArguments {
            hello: link.hello.as_ptr(),
            hello_length: link.hello.len(),
            private: wanted.private,
            vendor: vendor.as_ptr(),
            vendor_length: vendor.len(),
        });
    }
    Ok(())
}

/// Modules that this process has loaded, by their files.
fn loaded() -> MutexGuard<'static, BTreeMap<PathBuf, &'static ModuleAbi>> {
    static LOADED: Mutex<BTreeMap<PathBuf, &'static ModuleAbi>> = Mutex::new(BTreeMap::new());
    LOADED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn load(path: &Path) -> Result<&'static ModuleAbi, AttachRefusal> {
    if let Some(module) = loaded().get(path) {
        return Ok(module);
    }
    let module = open(path)?;
    loaded().insert(path.to_owned(), module);
    Ok(module)
}

/// Loads every module in these directories, and what it needs, before a guest is there. What cannot be loaded is not:
/// the session that asks for it tries again and tells why. Answers what was loaded, one by one. `vendors`: as in an
/// [`Assignment`](aviary_control::Assignment). A library that is loaded from its file is there by its name, too, by which a
/// module asks for it.
pub(super) fn preload(directories: &[PathBuf], vendors: &BTreeMap<String, String>) -> impl Iterator<Item = PathBuf> {
    let mut seen = BTreeSet::new();
    for file in vendors.values() {
        let _ = try_loading(file);
    }
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

fn open(path: &Path) -> Result<&'static ModuleAbi, AttachRefusal> {
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

fn unusable(what: &str, path: &Path, why: &str) -> AttachRefusal {
    AttachRefusal::new(welcome_status::FAILED, what).detail(format!("{}: {why}", path.display()))
}
