//! The doorbell of the host's side of an arena that lies in a VM's memory.

use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use aviary_ring::{Doorbell, futex};
use aviary_wire::Control;
use aviary_wire::control::control_kind;
use rustix::io::Errno;
use rustix::net::SendFlags;

/// The doorbell of the host's side: this side sleeps on futexes, whose words lie in memory that the
/// device maps, too; the guest is woken by a message to the device, which interrupts it.
pub(crate) struct HostDoorbell {
    socket: OwnedFd,
    /// Address of the arena in this process.
    base: OnceLock<usize>,
}

impl HostDoorbell {
    pub fn new(socket: OwnedFd) -> Self {
        HostDoorbell { socket, base: OnceLock::new() }
    }

    pub fn set_base(&self, base: usize) {
        let _ = self.base.set(base);
    }
}

impl Doorbell for HostDoorbell {
    fn wait(&self, word: &AtomicU32, expected: u32, timeout: Option<Duration>) {
        futex::wait(word, expected, timeout);
    }

    /// Waits for room in the socket: a lost wake-up would cost the guest a tenth of a second. The
    /// device reads as fast as it can; its end ends the wait.
    fn wake_peer(&self, word: &AtomicU32) {
        let base = self.base.get().copied().unwrap_or_default();
        let offset = (word.as_ptr().addr() - base) as u64;
        let message = Control { kind: control_kind::WAKE, offset, ..Control::default() };
        while let Err(Errno::INTR) = rustix::net::send(&self.socket, &message.to_bytes(), SendFlags::NOSIGNAL) {}
    }

    fn wake_own(&self, word: &AtomicU32) {
        futex::wake(word);
    }
}
