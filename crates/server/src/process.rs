//! The API server process: receives a guest's connections from the node and serves them with modules.

mod attach;
mod node;
mod spawn;

use std::os::fd::{AsFd, AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};

use crate::confine::{confine, filter_system_calls, flush_output};
use crate::session::Journal;
use node::{Announced, Node, Received};

pub use spawn::prepare_to_spawn;

/// What the connections' threads and the main thread share.
struct Shared {
    node: Node,
    /// The node's standard error, kept when the guest's takes its place.
    journal: RawFd,
    active: AtomicUsize,
    served: AtomicBool,
    adopted: AtomicBool,
    /// Tells the main thread that a connection ended.
    ended: OwnedFd,
}

/// Serves until the last connection has ended, or until the node goes while there is none.
/// The result is the process's exit status.
pub fn main(control_fd: RawFd) -> i32 {
    // SAFETY: the node starts this process with its control socket at this number and nothing else uses it.
    let control = unsafe { OwnedFd::from_raw_fd(control_fd) };
    match prepare(control) {
        Ok(shared) => {
            let status = attend(&Arc::new(shared));
            flush_output();
            // Vendor libraries' exit handlers may wait for threads that a dead guest left behind.
            // SAFETY: ends the process; everything worth keeping was flushed.
            unsafe { libc::_exit(status) }
        }
        Err(error) => {
            eprintln!("aviary api-server: {error}");
            1
        }
    }
}

fn prepare(control: OwnedFd) -> rustix::io::Result<Shared> {
    let journal = rustix::io::fcntl_dupfd_cloexec(std::io::stderr(), 3)?.into_raw_fd();
    confine(&[control.as_raw_fd(), journal]);
    if let Err(error) = filter_system_calls() {
        // Old or unusual kernels have no filters; the process still runs without privileges of its own.
        Journal { fd: journal, session: 0 }.note(&error.to_string());
    }
    // Otherwise a guest whose output pipe is closed could end this process.
    // SAFETY: sets a disposition; no handler runs.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    Ok(Shared {
        node: Node::new(control),
        journal,
        active: AtomicUsize::new(0),
        served: AtomicBool::new(false),
        adopted: AtomicBool::new(false),
        ended: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
    })
}

fn attend(shared: &Arc<Shared>) -> i32 {
    let mut node_listens = true;
    loop {
        if shared.active.load(Ordering::SeqCst) == 0 && (!node_listens || shared.served.load(Ordering::SeqCst)) {
            if !take_leave(shared, node_listens) {
                return 0;
            }
            node_listens = false;
            continue;
        }
        if !await_event(shared, node_listens) {
            return 1;
        }
        while node_listens {
            match shared.node.receive() {
                Received::Connection(announced) => start(shared, announced),
                Received::Nothing => break,
                Received::Closed => node_listens = false,
                Received::Unusable(reason) => note(shared, 0, &format!("a message of the node is unusable: {reason}")),
            }
        }
    }
}

/// The last connection has ended. From here on the node's sends fail; what it sent before is still served.
/// True if there was something.
fn take_leave(shared: &Arc<Shared>, node_listens: bool) -> bool {
    let mut found = false;
    if node_listens {
        shared.node.refuse_more();
        while let Received::Connection(announced) = shared.node.receive() {
            start(shared, announced);
            found = true;
        }
    }
    found
}

fn await_event(shared: &Shared, node_listens: bool) -> bool {
    let mut fds = vec![PollFd::new(&shared.ended, PollFlags::IN)];
    if node_listens {
        fds.push(PollFd::from_borrowed_fd(shared.node.as_fd(), PollFlags::IN));
    }
    match rustix::event::poll(&mut fds, None) {
        Ok(_) => {
            let mut count = [0; 8];
            // Empty if the node woke us.
            let _ = rustix::io::read(&shared.ended, &mut count);
            true
        }
        Err(rustix::io::Errno::INTR) => true,
        Err(error) => {
            note(shared, 0, &format!("waiting failed: {error}"));
            false
        }
    }
}

fn start(shared: &Arc<Shared>, announced: Announced) {
    shared.served.store(true, Ordering::SeqCst);
    shared.active.fetch_add(1, Ordering::SeqCst);
    let session = announced.config.session;
    let theirs = shared.clone();
    let life = move || {
        let whole = std::panic::AssertUnwindSafe(|| attach::serve(&theirs, announced));
        if std::panic::catch_unwind(whole).is_err() {
            theirs.node.ended(session, "internal error");
        }
        theirs.finished();
    };
    if let Err(error) = std::thread::Builder::new().name(format!("session-{session}")).spawn(life) {
        note(shared, session, &format!("no thread for the connection: {error}"));
        shared.node.ended(session, "no thread");
        shared.finished();
    }
}

fn note(shared: &Shared, session: u64, text: &str) {
    Journal { fd: shared.journal, session }.note(text);
}

impl Shared {
    fn finished(&self) {
        flush_output();
        self.active.fetch_sub(1, Ordering::SeqCst);
        // A full counter means that the main thread is about to wake anyway.
        let _ = rustix::io::write(&self.ended, &1u64.to_ne_bytes());
    }
}
