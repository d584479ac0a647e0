//! The application's standard output and standard error, which the API server has, too. An application that leads its own
//! descriptors elsewhere (`dup2`, `freopen`) gets what the vendor's library prints with replies, and writes it there.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use aviary_transport::Identity;

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

    pub fn moved(&self) -> bool {
        !self.followed.load(Ordering::Relaxed) && current() != self.files
    }

    /// The text comes with replies from now on.
    pub fn set_followed(&self) {
        self.followed.store(true, Ordering::Relaxed);
    }
}
