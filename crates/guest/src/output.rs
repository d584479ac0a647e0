//! The application's standard output and standard error, which the API server has, too. An application that leads its own
//! descriptors elsewhere (`dup2`, `freopen`) gets what the vendor's library prints with replies, and writes it there.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use aviary_transport::Identity;
use aviary_wire::{flag, kind};

use crate::connection::Connection;
use crate::lane;

/// The files behind descriptors 1 and 2 at the time of the attachment; `None`: closed.
pub(crate) struct OutputFiles {
    files: [Option<Identity>; 2],
    /// True once the text comes with replies.
    followed: AtomicBool,
}

fn current() -> [Option<Identity>; 2] {
    // SAFETY: not -1; a closed number is refused by the kernel.
    [1, 2].map(|number| Identity::of(unsafe { BorrowedFd::borrow_raw(number) }))
}

impl OutputFiles {
    /// `followed`: the text comes with replies from the beginning.
    pub fn new(followed: bool) -> Self {
        OutputFiles { files: current(), followed: AtomicBool::new(followed) }
    }

    fn moved(&self) -> bool {
        !self.followed.load(Ordering::Relaxed) && current() != self.files
    }
}

/// Has printed text come with replies if descriptor 1 or 2 leads elsewhere than when the process attached. Called before
/// calls in which the vendor's library may print, where it is known to.
pub(crate) fn follow(connection: &'static Connection) {
    if !connection.output.moved() {
        return;
    }
    let Ok(lane) = lane::current(connection) else { return };
    let mut sync = lane.take_frame();
    if let Ok(answer) = lane.exchange(kind::SYNC, flag::PRINT_WITH_REPLIES, 0, &mut sync) {
        lane.keep_deferred(answer.deferred);
        connection.output.followed.store(true, Ordering::Relaxed);
    }
    lane.give_frame(sync);
}
