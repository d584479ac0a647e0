//! The API server process: receives a guest's connections from the node and serves them with modules.

mod assigned;
mod attach;
mod attaching;
pub mod confine;
mod exchange;
mod module_functions;
mod modules;
mod node;
mod orders;
pub mod sandboxing;
mod shared;
mod zygote;

use std::os::fd::{AsFd, AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Once, OnceLock};
use std::time::{Duration, Instant};

use aviary_control::{MoveReport, Received, SessionDescriptors, ToServer};
use aviary_wire::attach::welcome_status;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd};
use rustix::io::FdFlags;

use crate::connection::send_welcome;
use crate::process::confine::{adopt_log, allow_descriptors, confine, filter_system_calls, flush_output};
use crate::session::Journal;
use assigned::{Assigned, adopted};
use attaching::Attaching;
use exchange::Exchange;
use node::Node;
use orders::Orders;
use sandboxing::Sandbox;
use shared::ProcessState;
use zygote::Copied;

pub use modules::listed::{DeviceFacts, HolderFacts, contexts, devices, holders};
pub use sandboxing::SandboxOptions;

/// Serves until the last connection has ended, or until the node goes.
/// The result is the process's exit status.
pub fn main(control_fd: RawFd) -> i32 {
    match settle_in(control_fd) {
        Ok((control, journal)) => {
            refuse_system_calls(journal);
            live(Node::new(control), journal, None)
        }
        Err(error) => fail(&error),
    }
}

/// Loads modules and vendors' libraries and makes copies of itself that do what [`main`] does.
///
/// With `options` each copy is in a sandbox of its own before the node knows it.
pub fn zygote(control_fd: RawFd, options: Option<SandboxOptions>) -> i32 {
    let (control, journal) = match settle_in(control_fd) {
        Ok(settled) => settled,
        Err(error) => return fail(&error),
    };
    if options.is_none() {
        refuse_system_calls(journal);
    }
    let sandbox = match options.map(|options| Sandbox::new(options, journal)).transpose() {
        Ok(sandbox) => sandbox,
        Err(error) => {
            eprintln!("aviary api-server: cannot set up sandboxes: {error}");
            return 1;
        }
    };
    match zygote::run(Node::new(control), sandbox.as_ref()) {
        Ok(Copied { control, log, pid }) => {
            let node = Node::new(control);
            if let Err(error) = adopt_log(&log, journal) {
                return fail(&error);
            }
            zygote::announce(&node, pid);
            live(node, journal, sandbox)
        }
        // SAFETY: ends the process without the exit handlers of libraries that were never used.
        Err(status) => unsafe { libc::_exit(status) },
    }
}

fn fail(error: &rustix::io::Errno) -> i32 {
    eprintln!("aviary api-server: {error}");
    1
}

fn live(node: Node, journal: RawFd, sandbox: Option<Sandbox>) -> i32 {
    let ended = match eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK) {
        Ok(ended) => ended,
        Err(error) => return fail(&error),
    };
    let (active, served) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (confined, output) = (OnceLock::new(), OnceLock::new());
    let attaching = Attaching::default();
    let (exchange, orders) = (Exchange::default(), Orders::default());
    let shared = Arc::new(ProcessState {
        node,
        journal,
        sandbox,
        active,
        served,
        bounded: Once::new(),
        confined,
        output,
        attaching,
        exchange,
        orders,
        ended,
    });
    module_functions::open(&shared);
    let status = attend(&shared);
    flush_output();
    if let Some(sandbox) = &shared.sandbox {
        sandbox.finish();
    }
    // Vendor libraries' exit handlers may wait for threads that a dead guest left behind.
    // SAFETY: ends the process; everything worth keeping was flushed.
    unsafe { libc::_exit(status) }
}

/// Gives up what this process does not need. The second result is where the node reads lines for its log, in a zygote its
/// log itself.
fn settle_in(control_fd: RawFd) -> rustix::io::Result<(OwnedFd, RawFd)> {
    // SAFETY: the node starts this process with its control socket at this number and nothing else uses it.
    let control = unsafe { OwnedFd::from_raw_fd(control_fd) };
    // A zygote's copies must not pass it on to what they may start.
    rustix::io::fcntl_setfd(&control, FdFlags::CLOEXEC)?;
    let journal = rustix::io::fcntl_dupfd_cloexec(std::io::stderr(), 3)?.into_raw_fd();
    confine(&[control.as_raw_fd(), journal]);
    allow_descriptors();
    // Otherwise a guest whose output pipe is closed could end this process.
    // SAFETY: sets a disposition; no handler runs.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    Ok((control, journal))
}

/// The short list of refusals, for processes without a sandbox.
fn refuse_system_calls(journal: RawFd) {
    if let Err(error) = filter_system_calls() {
        // Old or unusual kernels have no filters; the process still runs without privileges of its own.
        Journal { fd: journal, session: 0 }.note(&error.to_string());
    }
}

fn attend(shared: &Arc<ProcessState>) -> i32 {
    let mut accepts = true;
    loop {
        if shared.active.load(Ordering::SeqCst) == 0 && (!accepts || shared.served.load(Ordering::SeqCst)) {
            if !take_leave(shared, accepts) {
                return 0;
            }
            accepts = false;
            continue;
        }
        if !await_event(shared, accepts) {
            return 1;
        }
        while accepts {
            match shared.node.receive() {
                Received::Message(message, descriptors) => heed(shared, message, descriptors),
                Received::Nothing => break,
                Received::Closed => accepts = false,
                Received::Garbage(why) => shared.note(0, &format!("the node sent {why}")),
            }
        }
        // Work that goes on without the node is in no account, and a new node would give the device away again:
        // the guests see the hang-up.
        if shared.node.is_gone() {
            return 0;
        }
    }
}

fn heed(shared: &Arc<ProcessState>, message: ToServer, descriptors: Vec<OwnedFd>) {
    match message {
        ToServer::Assign(assignment) => match SessionDescriptors::of(descriptors) {
            Some(descriptors) => start(shared, Assigned { assignment: *assignment, descriptors, state: None }),
            None => shared.note(assignment.session, "the node sent a session without its descriptors"),
        },
        ToServer::Adopt(assignment) => match adopted(*assignment, descriptors) {
            Ok(assigned) => start(shared, assigned),
            Err(session) => shared.node.ended(session, "the old process has left no descriptors of the session"),
        },
        ToServer::Prepare(wanted) => {
            let report = match attach::prepare(shared, &wanted, descriptors.into_iter().next()) {
                Ok(()) => MoveReport::Prepared,
                Err(reason) => MoveReport::Unmovable { attempt: 0, reason, lasting: true },
            };
            shared.node.report_move(wanted.session, report);
        }
        ToServer::Move { session, order } => {
            let exports = shared.exchange.offers_of(session) > 0;
            shared.orders.pass_on(&shared.node, session, exports, order, &descriptors);
        }
        ToServer::Fetch(wanted) => {
            if let (Some((offered, note)), Some(to)) = (shared.exchange.give(&wanted.name), descriptors.first()) {
                // A process that does not wait any longer has gone; without an answer it sees the hang-up.
                let _ = aviary_control::give(to.as_fd(), offered.as_fd(), note);
            }
        }
        ToServer::Fetched { request, note } => {
            shared.exchange.arrive(request, descriptors.into_iter().next(), note);
        }
    }
}

/// The last connection has ended. From here on the node's sends fail; what it sent before is still served.
/// True if there was something.
fn take_leave(shared: &Arc<ProcessState>, accepts: bool) -> bool {
    let mut found = false;
    if accepts {
        shared.node.refuse_more();
        loop {
            match shared.node.receive() {
                Received::Message(message @ ToServer::Assign(_), descriptors) => {
                    heed(shared, message, descriptors);
                    found = true;
                }
                // The offers of a session end with its connection.
                Received::Message(..) => {}
                Received::Nothing | Received::Closed | Received::Garbage(_) => break,
            }
        }
    }
    found
}

/// False: this process has nothing to wait for any more.
fn await_event(shared: &ProcessState, accepts: bool) -> bool {
    let (overdue, again) = shared.attaching.overdue();
    if overdue > 0 && overdue == shared.active.load(Ordering::SeqCst) {
        shared
            .note(0, "the vendor library does not return from a call of a guest that has ended: this API server ends");
        return false;
    }
    // Its hang-up is told in any case.
    let wanted = if accepts { PollFlags::IN } else { PollFlags::empty() };
    let (guests, orders) = (shared.attaching.present(), shared.orders.all());
    let mut fds =
        vec![PollFd::new(&shared.ended, PollFlags::IN), PollFd::from_borrowed_fd(shared.node.as_fd(), wanted)];
    fds.extend(guests.iter().map(|(_, socket)| PollFd::new(&**socket, PollFlags::RDHUP)));
    fds.extend(orders.iter().map(|(_, socket)| PollFd::new(&**socket, PollFlags::IN)));
    match rustix::event::poll(&mut fds, timeout(again).as_ref()) {
        Ok(_) => {
            for ((session, _), polled) in guests.iter().zip(fds.iter().skip(2)) {
                if !polled.revents().is_empty() {
                    shared.attaching.hung_up(*session);
                }
            }
            let answered: Vec<bool> = fds.iter().skip(2 + guests.len()).map(|fd| !fd.revents().is_empty()).collect();
            for ((session, socket), _) in orders.iter().zip(answered).filter(|(_, answered)| *answered) {
                shared.orders.report(&shared.node, *session, socket);
            }
            let mut count = [0; 8];
            // Empty if the node woke us.
            let _ = rustix::io::read(&shared.ended, &mut count);
            true
        }
        Err(rustix::io::Errno::INTR) => true,
        Err(error) => {
            shared.note(0, &format!("waiting failed: {error}"));
            false
        }
    }
}

fn timeout(until: Option<Instant>) -> Option<Timespec> {
    // A wait that is cut off to nothing would be none.
    until?.saturating_duration_since(Instant::now()).saturating_add(Duration::from_millis(1)).try_into().ok()
}

fn start(shared: &Arc<ProcessState>, assigned: Assigned) {
    shared.served.store(true, Ordering::SeqCst);
    shared.active.fetch_add(1, Ordering::SeqCst);
    let Assigned { assignment, descriptors, state } = &assigned;
    let session = assignment.session;
    if let Err(text) = shared.confine_for(assignment.user.as_ref(), &assignment.modules, &assignment.vendors) {
        shared.note(session, &text);
        if state.is_some() {
            shared.node.ended(session, &text);
            return shared.finished();
        }
        send_welcome(descriptors.guest.as_fd(), welcome_status::FAILED, 0, session, &text);
        shared.node.ended(session, &text);
        return shared.finished();
    }
    // The node watches those whose session moves.
    if state.is_none() {
        shared.attaching.begin(session, descriptors.guest.as_fd());
    }
    let theirs = shared.clone();
    let life = move || {
        let whole = std::panic::AssertUnwindSafe(|| attach::serve(&theirs, assigned));
        if std::panic::catch_unwind(whole).is_err() {
            theirs.node.ended(session, "internal error");
        }
        theirs.attaching.end(session);
        theirs.finished();
    };
    if let Err(error) = std::thread::Builder::new().name(format!("session-{session}")).spawn(life) {
        shared.note(session, &format!("no thread for the connection: {error}"));
        shared.node.ended(session, "no thread");
        shared.attaching.end(session);
        shared.finished();
    }
}
