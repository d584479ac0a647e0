//! Signals that end a daemon: SIGINT, SIGTERM and SIGHUP.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals as CaughtSignals;
use std::{
    io::{self, PipeReader, PipeWriter, Read, Write},
    os::fd::BorrowedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// Catches the signals, except those that this process was started to ignore (nohup), and notes one.
#[derive(Clone)]
pub struct Signals(Arc<Shared>);

struct Shared {
    noted: Mutex<Option<i32>>,
    /// One byte for a signal that is noted.
    bell: PipeWriter,
    rung: PipeReader,
}

impl Signals {
    pub fn catch() -> io::Result<Self> {
        let wanted = [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| !is_ignored(*signal));
        let mut caught = CaughtSignals::new(wanted)?;
        let (rung, bell) = io::pipe()?;
        let signals = Self(Arc::new(Shared { noted: Mutex::new(None), bell, rung }));
        let target = signals.clone();
        std::thread::spawn(move || caught.forever().for_each(|signal| target.note(signal)));
        Ok(signals)
    }

    /// Waits, without any wake-up meanwhile, until a signal is noted or `other` is readable or hangs up.
    pub fn wait(&self, other: BorrowedFd<'_>) -> io::Result<()> {
        self.wait_for(other, None)
    }

    /// Waits so, but no longer than `most`.
    pub fn wait_for(&self, other: BorrowedFd<'_>, most: Option<Duration>) -> io::Result<()> {
        let most = most.map(Timespec::try_from).transpose().map_err(io::Error::other)?;
        let mut fds = [PollFd::new(&self.0.rung, PollFlags::IN), PollFd::from_borrowed_fd(other, PollFlags::IN)];
        match poll(&mut fds, most.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    pub fn noted(&self) -> Option<i32> {
        *self.lock()
    }

    /// The noted signal, which is then forgotten: the next one is noted again.
    pub fn take_noted(&self) -> Option<i32> {
        let mut noted = self.lock();
        let taken = noted.take();
        if taken.is_some() {
            // The byte that `note` wrote, with the lock held as here.
            let _ = (&self.0.rung).read(&mut [0]);
        }
        taken
    }

    fn note(&self, signal: i32) {
        let mut noted = self.lock();
        // Once is enough, and a full pipe would block. The end is not put off by a later SIGHUP.
        if matches!(*noted, Some(SIGINT | SIGTERM)) {
            return;
        }
        if noted.replace(signal).is_none() {
            let _ = (&self.0.bell).write(&[0]);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<i32>> {
        self.0.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Asked of the kernel in its text form: the C call needs `unsafe`. Where /proc says nothing, the default holds.
fn is_ignored(signal: i32) -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| ignores(&status, signal))
}

/// `SigIgn` is a mask in which bit 0 stands for signal 1.
fn ignores(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    signal > 0 && mask.checked_shr(signal as u32 - 1).is_some_and(|bits| bits & 1 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_in_the_mask() {
        let nohup = "Name:\taviary\nSigBlk:\t0000000000000003\nSigIgn:\t0000000000000001\n";
        assert!(ignores(nohup, SIGHUP));
        assert!(!ignores(nohup, SIGINT) && !ignores(nohup, SIGTERM));
        assert!(!ignores("", SIGHUP) && !ignores(nohup, 0) && !ignores(nohup, 65));
    }
}
