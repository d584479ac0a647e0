//! Signals that are meant for the program, and signals that end a daemon.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Signal, pidfd_send_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::Cause;
use std::{
    io::{self, PipeReader, PipeWriter, Read, Write},
    os::fd::{BorrowedFd, OwnedFd},
    sync::{Arc, Mutex, PoisonError},
};

/// The handling of signals at present.
enum Target {
    Process(OwnedFd),
    /// No process to forward to: the signal is noted.
    Noted(Option<i32>),
}

/// Catches SIGINT, SIGTERM and SIGHUP, except those that this process was started to ignore (nohup).
#[derive(Clone)]
pub struct Signals(Arc<Shared>);

struct Shared {
    target: Mutex<Target>,
    /// One byte for every signal that was noted.
    bell: PipeWriter,
    rung: PipeReader,
}

impl Signals {
    pub fn catch() -> io::Result<Self> {
        let wanted = [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| !is_ignored(*signal));
        let mut caught = SignalsInfo::<WithOrigin>::new(wanted)?;
        let (rung, bell) = io::pipe()?;
        let signals = Self(Arc::new(Shared { target: Mutex::new(Target::Noted(None)), bell, rung }));
        let target = signals.clone();
        std::thread::spawn(move || {
            for origin in &mut caught {
                // The terminal sends to the whole foreground group, and the program is in it.
                target.deliver(origin.signal, matches!(origin.cause, Cause::Kernel));
            }
        });
        Ok(signals)
    }

    /// From now on signals go to this process.
    pub fn forward_to(&self, process: OwnedFd) {
        let earlier = std::mem::replace(&mut *self.target(), Target::Process(process));
        if let Target::Noted(Some(signal)) = earlier {
            self.deliver(signal, false);
        }
    }

    /// From now on signals are noted; earlier ones are forgotten.
    pub fn stop_forwarding(&self) {
        *self.target() = Target::Noted(None);
    }

    /// Waits, without any wake-up meanwhile, until a signal is noted or `other` is readable or hangs up.
    pub fn wait(&self, other: BorrowedFd<'_>) -> io::Result<()> {
        let mut fds = [PollFd::new(&self.0.rung, PollFlags::IN), PollFd::from_borrowed_fd(other, PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    pub fn noted(&self) -> Option<i32> {
        match *self.target() {
            Target::Noted(signal) => signal,
            Target::Process(_) => None,
        }
    }

    /// The noted signal, which is then forgotten: the next one is noted again.
    pub fn take_noted(&self) -> Option<i32> {
        let mut target = self.target();
        let Target::Noted(signal) = &mut *target else { return None };
        let taken = signal.take();
        if taken.is_some() {
            // The byte that `deliver` wrote, with the lock held as here.
            let _ = (&self.0.rung).read(&mut [0]);
        }
        taken
    }

    fn deliver(&self, signal: i32, from_terminal: bool) {
        match &mut *self.target() {
            Target::Noted(noted) => {
                // Once is enough, and a full pipe would block. The end is not put off by a later SIGHUP.
                if matches!(noted, Some(SIGINT | SIGTERM)) {
                    return;
                }
                if noted.replace(signal).is_none() {
                    let _ = (&self.0.bell).write(&[0]);
                }
            }
            Target::Process(_) if from_terminal => {}
            Target::Process(process) => {
                if let Some(signal) = Signal::from_named_raw(signal) {
                    // It may have ended just now.
                    let _ = pidfd_send_signal(process, signal);
                }
            }
        }
    }

    fn target(&self) -> std::sync::MutexGuard<'_, Target> {
        self.0.target.lock().unwrap_or_else(PoisonError::into_inner)
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
