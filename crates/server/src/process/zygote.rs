//! The zygote: a process with all modules and vendors' libraries loaded, copied for every guest.
//!
//! A vendor's library costs a session millions of bytes of relocated pages and tens of milliseconds when the
//! session's own process loads it. A copy of the zygote shares those pages with all others and has them at once.
//! No guest ever talks to the zygote, and it calls no function of a vendor.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use aviary_control::{Received, ToZygote};
use rustix::event::{PollFd, PollFlags};

use super::attach;
use super::node::Node;

/// Loads what the node says and then makes a copy of this process for every message.
/// Returns with an exit status, or in a copy with the copy's control socket and its end of the log's pipe.
pub fn run(node: Node) -> Result<(OwnedFd, OwnedFd), i32> {
    loop {
        if rustix::event::poll(&mut [PollFd::from_borrowed_fd(node.as_fd(), PollFlags::IN)], None).is_err() {
            continue;
        }
        match node.receive() {
            Received::Message(ToZygote::Preload { modules }, _) => match preload(&modules) {
                Ok(()) => node.ready(),
                Err(reason) => {
                    node.unfit(&reason);
                    return Err(0);
                }
            },
            Received::Message(ToZygote::Copy, descriptors) => {
                let mut descriptors = descriptors.into_iter();
                if let Some((control, log)) = descriptors.next().zip(descriptors.next())
                    && let Some(control) = copy(control)
                {
                    return Ok((control, log));
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

/// `Some` in the copy. If there is no copy, the node sees the hang-up of its end.
fn copy(control: OwnedFd) -> Option<OwnedFd> {
    if threads() != 1 {
        return None;
    }
    let flags = libc::CLONE_PARENT | libc::SIGCHLD;
    // SAFETY: the same as fork, but for the copy's parent, which is the node: it watches and reaps it. This process
    // has one thread (a copy has only that one), so no lock is held that nobody releases. The C library's fork
    // handlers do not run; nothing registered any that would have work before a first call of the vendor's library.
    match unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) } {
        0 => Some(control),
        pid => {
            // Said twice, here and by the copy: the node learns whom to reap whichever of the two is killed now.
            if let Ok(pid) = u32::try_from(pid) {
                Node::new(control).born(pid);
            }
            None
        }
    }
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
}

/// Only a library that starts threads is an obstacle, since they would be missing in a copy.
fn preload(directories: &[PathBuf]) -> Result<(), String> {
    match attach::preload(directories).find(|_| threads() != 1) {
        Some(path) => Err(format!("{}: what it loads starts threads", path.display())),
        None => Ok(()),
    }
}

/// A copy's first act.
pub fn announce(node: &Node) {
    // A session of its own, as if the node had started it: see `aviary_control::prepare_to_spawn`.
    let _ = rustix::process::setsid();
    node.born(std::process::id());
}
