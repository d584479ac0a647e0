//! From an accepted socket to a module that serves it.

use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::time::Duration;

use aviary_control::{Assignment, Preparation};
use aviary_transport::receive_hello;
use aviary_wire::attach::{PREFIX, hello_flag, welcome_status};
use aviary_wire::{Hello, WIRE_VERSION};

use super::assigned::Assigned;
use super::module_functions;
use super::modules::module_for;
use super::shared::ProcessState;
use crate::connection::module::{PrepareArguments, ServeArguments, event};
use crate::connection::refusal::AttachRefusal;
use crate::connection::send_welcome;
use crate::moving::snapshot;
use crate::process::confine::{adopt_output, bound_descriptors};
use crate::session::printed;

/// A guest that connects says hello at once.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

/// Serves the connection to its end and tells the node about it.
pub fn serve(shared: &ProcessState, mut assigned: Assigned) {
    let (session, moves) = (assigned.assignment.session, assigned.state.is_some());
    let attached = attach(shared, &mut assigned);
    shared.orders.close(session);
    if let Err(refusal) = attached {
        let text = format!("refused: {}", refusal.whole());
        if moves {
            // The guest is the old process's and hears nothing of this.
            return shared.node.ended(session, &text);
        }
        if !assigned.assignment.private {
            shared.note(session, &text);
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

/// Whether this process and the tenant fit the guest library.
fn check(assignment: &Assignment, hello: &Hello) -> Result<(), AttachRefusal> {
    if hello.wire_version != WIRE_VERSION {
        let text = format!("the guest library speaks wire version {}, the server {WIRE_VERSION}", hello.wire_version);
        return Err(AttachRefusal::new(welcome_status::WIRE_VERSION, text));
    }
    if assignment.apis.as_ref().is_some_and(|apis| !apis.contains(&hello.api)) {
        let tenant = &assignment.tenant;
        let text = format!("tenant {tenant} may not use the API {:?} on this node", hello.api);
        return Err(AttachRefusal::new(welcome_status::REFUSED, text));
    }
    Ok(())
}

fn copy(fd: &OwnedFd) -> Result<OwnedFd, rustix::io::Errno> {
    rustix::io::fcntl_dupfd_cloexec(fd, 3)
}

/// The ends of the library's output that a guest wants with its replies; -1: it gets none.
fn printed_ends(pipes: Option<&[OwnedFd; 2]>, hello: &Hello) -> [RawFd; 2] {
    match pipes {
        Some([out, errors]) if hello.flags & hello_flag::PRINTED != 0 => {
            [out, errors].map(|end| copy(end).map_or(-1, IntoRawFd::into_raw_fd))
        }
        _ => [-1; 2],
    }
}

fn attach(shared: &ProcessState, assigned: &mut Assigned) -> Result<(), AttachRefusal> {
    let (hello, belongings) = greeting(assigned)?;
    // The module closes the file once the session continues here, which frees the memory of it.
    let state = assigned.state.take();
    let Assigned { assignment, descriptors, .. } = &*assigned;
    let session = assignment.session;
    if state.is_none() {
        shared.node.greeted(session);
    }
    check(assignment, &hello)?;
    let pipes = shared.output.get_or_init(|| take_output(&hello, &belongings));
    let module = module_for(&assignment.modules, &hello.api, hello.spec_hash)?;
    let config = assignment.to_json().map_err(|e| failed("the session's settings", e))?;
    let own = |fd: &OwnedFd| copy(fd).map_err(|e| failed("the session's descriptors", e));
    let (socket, page, stats) = (own(&descriptors.guest)?, own(&descriptors.tenant_page)?, own(&descriptors.stats)?);
    let devices = descriptors.devices.as_ref();
    let devices = devices.map(|devices| Ok((own(&devices.page)?, own(&devices.bell)?))).transpose()?;
    let printed = printed_ends(pipes.as_ref(), &hello);
    let [ours, theirs] = [own(&descriptors.orders[0])?, own(&descriptors.orders[1])?];
    let greeting = hello.to_bytes();
    let moves = state.is_some();
    let (snapshot, heap, handed) = state.map_or((None, None, None), |it| (Some(it.snapshot), it.heap, Some(it.handed)));
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
        exchange: &raw const module_functions::ABI,
        orders: theirs.into_raw_fd(),
        snapshot: raw(snapshot),
        heap: raw(heap),
        handed: raw(handed),
        event: watch,
        context: (&raw const watcher).cast_mut().cast(),
    };
    shared.orders.open(session, ours);
    // The main thread has one more to listen to.
    shared.wake();
    if moves {
        // What it hands on was sent. A session that begins has still to send its guest the lanes.
        shared.bounded.call_once(bound_descriptors);
    }
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
        watcher.shared.bounded.call_once(bound_descriptors);
        watcher.shared.node.started(watcher.session, watcher.api, watcher.spec_hash);
    } else if what == event::ENDED {
        // SAFETY: the module passes a text of this length, valid during the call.
        let text = unsafe { std::slice::from_raw_parts(text, length) };
        watcher.shared.node.ended(watcher.session, &String::from_utf8_lossy(text));
    }
}

/// Loads the module that a session which may come here needs, and with what the old process has `announced` the vendor's
/// library. The error says why the session cannot come: for people.
pub fn prepare(shared: &ProcessState, wanted: &Preparation, announced: Option<OwnedFd>) -> Result<(), String> {
    if announced.is_some() {
        // Before the first byte of what the old process, which is its tenant's, has written. Threads that the vendor's library
        // starts are confined with the process, too.
        shared.confine_for(wanted.user.as_ref(), &wanted.modules, &wanted.vendors)?;
    }
    let hello = announced.map(|file| snapshot::read(&file)).transpose().map_err(|error| error.to_string())?;
    let module = module_for(&wanted.modules, &wanted.api, wanted.spec_hash).map_err(|refusal| refusal.whole())?;
    if module.spec_hash != wanted.spec_hash {
        return Err(format!(
            "the new API server's module for the API {:?} was built from another specification ({:016x}) than the \
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
