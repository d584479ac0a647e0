//! One-line messages on standard error, and the output that the vendor's library prints.

use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

/// A standard stream of the application: descriptor 1 or 2, whatever is behind it now.
fn descriptor(number: i32) -> BorrowedFd<'static> {
    // SAFETY: not -1. A number that the application has closed is refused by the kernel.
    unsafe { BorrowedFd::borrow_raw(number) }
}

/// Writes `aviary: TEXT` with one system call, so that lines of several processes do not mix;
/// nothing is buffered, and a closed descriptor does no harm.
pub(crate) fn line(text: &str) {
    let line = format!("aviary: {}\n", text.replace('\n', " "));
    // The application may have replaced descriptor 2; libraries write their messages there all the same.
    let _ = rustix::io::write(descriptor(2), line.as_bytes());
}

/// Writes printed text of the vendor's library to the application's standard output (1) or error
/// (2), as the library would do inside this process.
pub(crate) fn print(number: i32, mut text: &[u8]) {
    while !text.is_empty() {
        match rustix::io::write(descriptor(number), text) {
            Ok(written) => text = &text[written..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => await_room(number),
            Err(_) => return,
        }
    }
}

/// Waits until the descriptor, which the application may have made non-blocking, can be written.
fn await_room(number: i32) {
    let _ = poll(&mut [PollFd::new(&descriptor(number), PollFlags::OUT)], None);
}
