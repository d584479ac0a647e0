//! Output of the vendor's library for a guest whose descriptors cannot come here, because it is in a virtual machine, or
//! lead elsewhere since it attached: it goes into pipes, and with replies to the guest.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, Thread};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

/// Output of one call beyond this is lost: it has no reader meanwhile, and the printing thread must not wait.
const MAX_PRINTED_BYTES: usize = 1 << 20;

/// A pipe that neither end waits for: the end to read, the end to write.
pub fn pipe() -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    // A user with many pipes gets less room.
    let _ = fcntl_setpipe_size(&write, MAX_PRINTED_BYTES);
    Ok((read, write))
}

/// Text printed on standard output, and on standard error.
pub type Texts = [Vec<u8>; 2];

/// The watcher's state.
mod state {
    /// It waits until something is printed.
    pub const STATE_WATCHING: u32 = 0;
    /// Something was; it waits until that is taken.
    pub const STATE_READY: u32 = 1;
    /// The session has gone.
    pub const STATE_OVER: u32 = 2;
}

/// When a reply looks into the pipes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// If its call took long enough to print, or the watcher saw something.
    IfLikely,
    /// Always: the guest has asked for the text, so it is there when the call returns that printed it.
    AtEachReply,
}

/// Standard output's and standard error's pipe. A thread sees when there is something, so that a call that prints nothing
/// costs no look.
#[derive(Debug)]
pub struct Printed {
    ends: [OwnedFd; 2],
    look: Look,
    state: Arc<AtomicU32>,
    watcher: Thread,
}

impl Printed {
    pub fn new(ends: [OwnedFd; 2], look: Look) -> io::Result<Printed> {
        let watched = [ends[0].try_clone()?, ends[1].try_clone()?];
        let state = Arc::new(AtomicU32::new(state::STATE_WATCHING));
        let theirs = state.clone();
        let watcher = thread::Builder::new().name("printed".into()).spawn(move || watch(&watched, &theirs))?;
        Ok(Printed { ends, look, state, watcher: watcher.thread().clone() })
    }

    /// Text printed since; `None`: none that is known. `likely`: the call that has just ended may have printed.
    #[inline]
    pub fn take(&self, likely: bool) -> Option<Box<Texts>> {
        if !likely && self.look == Look::IfLikely && self.state.load(Ordering::Relaxed) != state::STATE_READY {
            return None;
        }
        self.take_all()
    }

    /// True if there is text that no reply has carried; it stays where it is.
    pub fn has_text(&self) -> bool {
        let mut polled = self.ends.each_ref().map(|end| PollFd::new(end, PollFlags::IN));
        // A poll that fails says nothing: then there may be some.
        poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))
            .map_or(true, |_| polled.iter().any(|end| end.revents().contains(PollFlags::IN)))
    }

    #[cold]
    fn take_all(&self) -> Option<Box<Texts>> {
        let texts = self.ends.each_ref().map(drain);
        self.tell(state::STATE_WATCHING);
        texts.iter().any(|text| !text.is_empty()).then(|| Box::new(texts))
    }

    fn tell(&self, now: u32) {
        if self.state.swap(now, Ordering::AcqRel) == state::STATE_READY {
            self.watcher.unpark();
        }
    }
}

impl Drop for Printed {
    fn drop(&mut self) {
        self.tell(state::STATE_OVER);
    }
}

/// Ends with the session, at the latest when something is printed after it; or when nobody can print any more.
fn watch(ends: &[OwnedFd; 2], now: &AtomicU32) {
    loop {
        let mut polled = ends.each_ref().map(|end| PollFd::new(end, PollFlags::IN));
        match poll(&mut polled, None) {
            Err(Errno::INTR) => continue,
            Ok(_) if polled.iter().any(|end| end.revents().contains(PollFlags::IN)) => {}
            _ => return,
        }
        if now.compare_exchange(state::STATE_WATCHING, state::STATE_READY, Ordering::AcqRel, Ordering::Acquire).is_err()
        {
            return;
        }
        while now.load(Ordering::Acquire) == state::STATE_READY {
            thread::park();
        }
    }
}

/// At most what the pipe has room for: a thread that prints without end keeps nobody here.
fn drain(end: &OwnedFd) -> Vec<u8> {
    let (mut text, mut part) = (Vec::new(), [0; 16 << 10]);
    while text.len() < MAX_PRINTED_BYTES {
        match rustix::io::read(end, &mut part) {
            Ok(0) => break,
            Ok(length) => text.extend_from_slice(&part[..length]),
            Err(Errno::INTR) => {}
            Err(_) => break,
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::write;

    #[test]
    fn printed_text_is_delivered_once_and_excess_is_lost() {
        let ((out, to_out), (errors, to_errors)) = (pipe().unwrap(), pipe().unwrap());
        let printed = Printed::new([out, errors], Look::IfLikely).unwrap();
        assert_eq!(printed.take(true), None);
        write(&to_out, b"one\n").unwrap();
        write(&to_errors, b"two\n").unwrap();
        assert!(printed.has_text() && printed.has_text(), "a look takes nothing");
        write(&to_out, b"three\n").unwrap();
        assert_eq!(printed.take(true), Some(Box::new([b"one\nthree\n".to_vec(), b"two\n".to_vec()])));
        assert_eq!((printed.take(true), printed.has_text()), (None, false));
        let much = vec![b'x'; 4096];
        let taken = (0..).map_while(|_| write(&to_out, &much).ok()).sum::<usize>();
        assert!(taken <= MAX_PRINTED_BYTES, "{taken}");
        assert_eq!(printed.take(true).unwrap()[0].len(), taken);
        assert_eq!(printed.take(true), None);
    }

    #[test]
    fn a_call_that_printed_nothing_itself_brings_what_others_printed() {
        let ((out, to_out), (errors, _to_errors)) = (pipe().unwrap(), pipe().unwrap());
        let printed = Printed::new([out, errors], Look::IfLikely).unwrap();
        for text in [&b"one"[..], b"two", b"three"] {
            assert_eq!(printed.take(false), None);
            write(&to_out, text).unwrap();
            let taken = std::iter::repeat_with(|| {
                thread::yield_now();
                printed.take(false)
            });
            assert_eq!(taken.flatten().next(), Some(Box::new([text.to_vec(), Vec::new()])));
        }
    }
}
