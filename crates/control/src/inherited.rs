//! Descriptors that a process keeps when it replaces its program: under their numbers, by `exec`. The program before has
//! made copies without FD_CLOEXEC (`rustix::io::dup`) and told their numbers.

use rustix::io::{Errno, FdFlags, fcntl_getfd, fcntl_setfd};
use std::{
    io,
    os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd},
};

/// A descriptor that the program before this one has bequeathed. Each can be had once: from then on it is closed by `exec`
/// as all others are. An error: there is none of this number that was inherited.
pub fn adopt(number: RawFd) -> io::Result<OwnedFd> {
    // Standard input, output and error stay what they are.
    if number < 3 {
        return Err(Errno::BADF.into());
    }
    // SAFETY: borrowed for two calls that only look at a number's flags and set them; a number that is not open is an
    // error of the kernel's.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    if fcntl_getfd(borrowed)?.contains(FdFlags::CLOEXEC) {
        return Err(Errno::BADF.into());
    }
    fcntl_setfd(borrowed, FdFlags::CLOEXEC)?;
    // SAFETY: all that this program opens itself has the flag from the beginning, so the number is one that was inherited,
    // and it has the flag now, so it is nobody else's. A file with other numbers in it, which only the program before this
    // one can have written, gets errors or descriptors of other inherited objects.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsRawFd, IntoRawFd};

    #[test]
    fn inherited_descriptors_are_adopted_once_and_others_never() {
        let (one, _other) = io::pipe().unwrap();
        assert!(adopt(one.as_raw_fd()).is_err(), "it was opened here");
        let number = rustix::io::dup(&one).unwrap().into_raw_fd();
        let adopted = adopt(number).unwrap();
        assert!(fcntl_getfd(&adopted).unwrap().contains(FdFlags::CLOEXEC));
        assert!(adopt(number).is_err(), "a second time");
        for number in [-1, 0, 1, 2, RawFd::MAX] {
            assert!(adopt(number).is_err(), "{number}");
        }
    }
}
