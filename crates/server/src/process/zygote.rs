//! The zygote: a process with all modules and vendors' libraries loaded, copied for every guest.
//!
//! A vendor's library costs a session millions of bytes of relocated pages and tens of milliseconds when the
//! session's own process loads it. A copy of the zygote shares those pages with all others and has them at once.
//! No guest ever talks to the zygote, and it calls no function of a vendor.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use aviary_control::{Received, ToZygote};
use aviary_sandbox::init;
use aviary_sandbox::namespaces::{Forked, Namespace, fork_for_parent, outer_pid};
use rustix::event::{PollFd, PollFlags};

use super::modules;
use super::node::Node;
use super::sandboxing::Sandbox;

/// The state that a copy of the zygote begins with.
pub struct Copied {
    /// Its control socket.
    pub control: OwnedFd,
    /// The end of a pipe for its lines of the node's log.
    pub log: OwnedFd,
    /// Its id in the node's PID namespace.
    pub pid: u32,
}

/// Loads what the node says and then makes a copy of this process for every message, in `sandbox` if there is one.
/// Returns with an exit status, or in a copy.
pub fn run(node: Node, sandbox: Option<&Sandbox>) -> Result<Copied, i32> {
    loop {
        if rustix::event::poll(&mut [PollFd::from_borrowed_fd(node.as_fd(), PollFlags::IN)], None).is_err() {
            continue;
        }
        match node.receive() {
            Received::Message(ToZygote::Preload { modules, vendors }, _) => match preload(&modules, &vendors) {
                Ok(()) => node.ready(),
                Err(reason) => {
                    node.unfit(&reason);
                    return Err(0);
                }
            },
            Received::Message(ToZygote::Copy, descriptors) => {
                let mut descriptors = descriptors.into_iter();
                if let Some(((control, log), pipe)) = descriptors.next().zip(descriptors.next()).zip(descriptors.next())
                    && let Some(copied) = copy(control, pipe, sandbox)
                {
                    return copied.map(|(control, pid)| Copied { control, log, pid });
                }
            }
            Received::Nothing => {}
            Received::Garbage(why) => {
                node.unfit(&why.to_string());
                return Err(0);
            }
            Received::Closed => return Err(0),
        }
    }
}

/// `Some` in the copy. If there is no copy, the node reads why at its end. `pipe`: for process 1 of its PID namespace.
fn copy(control: OwnedFd, pipe: OwnedFd, sandbox: Option<&Sandbox>) -> Option<Result<(OwnedFd, u32), i32>> {
    let node = Node::new(control);
    let threads = threads();
    if threads != 1 {
        node.unfit(&format!("it has {threads} threads, and only one would be in a copy"));
        return None;
    }
    let outline = sandbox.map(Sandbox::outline);
    let namespaces = sandbox.map_or(0, Sandbox::namespaces);
    // Of the first copy; a PID namespace of its own has a process 1 of its own, and the API server is its child.
    let pid_namespace = namespaces & Namespace::Pid.flag();
    let first = if pid_namespace != 0 { pid_namespace } else { namespaces };
    // SAFETY: this process has one thread (a copy has only that one), so no lock is held that no thread releases. The C
    // library's fork handlers do not run; nothing registered any that would have work before a first call of the vendor's
    // library. The copy's parent is the node, which watches and reaps it.
    match unsafe { fork_for_parent(first) } {
        Ok(Forked::Child) => {
            if pid_namespace != 0 {
                let pid = outer_pid().unwrap_or_else(std::process::id);
                node.has_init(pid);
                // SAFETY: one thread, as above. Of what process 1 closes it uses nothing.
                if let Err(errno) = unsafe { init::start_server(pipe, pid, namespaces & !pid_namespace) } {
                    node.unfit(&format!("process 1 of a PID namespace cannot fork: {errno}"));
                    return Some(Err(1));
                }
            } else {
                drop(pipe);
            }
            let pid = outer_pid().unwrap_or_else(std::process::id);
            match sandbox.zip(outline).map_or(Ok(()), |(sandbox, outline)| sandbox.enter(outline)) {
                Ok(()) => Some(Ok((node.into_socket(), pid))),
                Err(error) => {
                    node.unfit(&error.to_string());
                    Some(Err(1))
                }
            }
        }
        Ok(Forked::Parent(pid)) => {
            // Said twice, here and by the copy: the node learns whom to reap whichever of the two is killed now.
            match pid_namespace {
                0 => node.born(pid),
                _ => node.has_init(pid),
            }
            None
        }
        Err(errno) => {
            let which = if namespaces == 0 { "" } else { " into namespaces of its own" };
            node.unfit(&format!("it cannot fork{which}: {errno}"));
            None
        }
    }
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
}

/// Only a library that starts threads is an obstacle, since they would be missing in a copy.
fn preload(directories: &[PathBuf], vendors: &BTreeMap<String, String>) -> Result<(), String> {
    match modules::preload(directories, vendors).find(|_| threads() != 1) {
        Some(path) => Err(format!("{}: the libraries that it loads start threads", path.display())),
        None => Ok(()),
    }
}

/// A copy's first act.
pub fn announce(node: &Node, pid: u32) {
    // A session of its own, as if the node had started it: see `aviary_control::prepare_to_spawn`.
    let _ = rustix::process::setsid();
    node.born(pid);
}
