//! The API server as this process sees it: its life, and the messages on the control socket.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use aviary_transport::{Arena, ControlSocket, LaneError, LaneWaker, Liveness};
use aviary_wire::Control;

use crate::connection::keeper::Keeper;
use crate::descriptor::Lost;
use crate::process::fork;
use crate::process::log;
use crate::process::settings;

/// Milliseconds between two checks of the server's life by calls that need no message.
const LIVENESS_POLL_MS: u64 = 100;

pub(crate) struct Peer {
    /// The API's name.
    name: &'static str,
    pub keeper: Arc<Keeper>,
    pub liveness: Arc<Liveness>,
    /// Liveness of the callback lane. Its thread may wait for weeks, so it is notified (`watch`)
    /// and does not poll.
    pub callback_liveness: Arc<Liveness>,
    failed: AtomicBool,
    /// Number of forks between the process that loaded the library and the one that attached.
    generation: u32,
    /// Time of the last check of [`Peer::connected`], in milliseconds.
    looked: AtomicU64,
}

impl Peer {
    pub fn new(name: &'static str, keeper: Arc<Keeper>, liveness: Arc<Liveness>) -> Self {
        Peer {
            name,
            keeper,
            liveness,
            callback_liveness: Arc::new(Liveness::notified()),
            failed: AtomicBool::new(false),
            generation: fork::generation(),
            looked: AtomicU64::new(0),
        }
    }

    /// Ends the connection: every later call gets [`Lost`]. Logs the reason once.
    #[cold]
    pub fn fail(&self, why: &str) -> Lost {
        self.liveness.kill();
        if !self.failed.swap(true, Ordering::AcqRel) {
            log::line(&format!("lost the API server of {}: {why}", self.name));
            // A live server can free the resources of this process. The callback thread ends, too.
            let _ = self.keeper.with(ControlSocket::hang_up);
        }
        Lost
    }

    #[cold]
    pub fn lane_failed(&self, e: LaneError) -> Lost {
        match e {
            LaneError::Dead => self.fail("it is gone"),
            e => self.fail(&e.to_string()),
        }
    }

    /// Has the connection survive that the application closes all its descriptors, from now on: by a thread, which vendors'
    /// libraries have by then, too. A VM's device, lanes over sockets and valgrind, which does not know the system call, do
    /// without.
    pub fn keep(&self, arena: &Arena) {
        if self.ours() && !arena.mirrored() && arena.device().is_none() && !settings::under_valgrind() {
            self.keeper.start();
        }
    }

    /// Sleeps until the server is gone, then ends the wait of the callback lane.
    pub fn watch(&self, callbacks: &LaneWaker) {
        self.keeper.callers_socket().await_hang_up();
        self.liveness.kill();
        self.callback_liveness.kill();
        callbacks.wake();
    }

    /// True if the server lived at the last check, at most [`LIVENESS_POLL_MS`] ago.
    pub fn connected(&self) -> bool {
        if !self.ours() || self.liveness.dead() {
            return false;
        }
        let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
        let now = now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000;
        let looked = self.looked.load(Ordering::Relaxed);
        if now.wrapping_sub(looked) < LIVENESS_POLL_MS {
            return true;
        }
        self.looked.store(now, Ordering::Relaxed);
        if self.liveness.check() {
            return true;
        }
        self.fail("it is gone");
        false
    }

    /// Sends a message. The caller holds a lock, so that messages are not interleaved.
    pub fn tell(&self, message: Control, fd: Option<&OwnedFd>) -> Result<(), Lost> {
        let socket = self.keeper.callers_socket();
        let sent = match fd {
            None => self.keeper.with(move |socket| socket.send(message, None)),
            // The descriptor is one of this thread's.
            Some(fd) => socket.intact().then(|| socket.send(message, Some(fd.as_fd()))),
        };
        let sent = sent.ok_or_else(|| self.fail("the application closed its socket"))?;
        sent.map_err(|e| self.fail(&e.to_string()))
    }

    /// False in a child process that inherited this object by `fork`.
    #[inline]
    pub fn ours(&self) -> bool {
        self.generation == fork::generation()
    }

    /// Closes a forked child's copies of the descriptors, which would hide the parent's death from
    /// the server. Calls only functions that are safe between `fork` and `exec`.
    pub fn abandon_in_child(&self, arena: &Arena) {
        self.liveness.kill();
        self.failed.store(true, Ordering::Relaxed);
        let control = self.keeper.callers_socket().kept();
        let device = arena.device().and_then(|device| device.kept());
        for file in control.into_iter().chain(device) {
            // SAFETY: the number still refers to this connection's file, not to the application's, and
            // the object that owns it is never dropped, in this process or in the parent, so no
            // number is closed twice.
            unsafe { libc::close(file.as_raw_fd()) };
        }
    }
}
