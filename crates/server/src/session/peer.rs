//! The guest of a session as its API server reaches it: the control socket, the printed text, and the node's log.

use std::io::{self, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use aviary_transport::ControlSocket;
use aviary_wire::{Control, Shown, control::control_kind};

use crate::process::confine::adopt_output;
use crate::session::printed::{self, Look, Printed};

/// Of the log, in bytes without the end: with it a pipe's PIPE_BUF.
const LONGEST_LINE: usize = 4095;

/// Where a session reports, and under what name.
#[derive(Debug, Clone, Copy)]
pub struct Journal {
    /// Stays open as long as the process.
    pub fd: RawFd,
    pub session: u64,
}

impl Journal {
    /// One line, in one write, so that lines of several threads do not mix: a pipe takes that much in one piece. What it
    /// has no room for is lost, as nobody here waits for the log.
    pub fn note(&self, text: &str) {
        let line = format!("aviary[{}]: {}", self.session, Shown(text));
        let line = format!("{}\n", &line[..line.floor_char_boundary(LONGEST_LINE)]);
        // SAFETY: the process keeps this descriptor open until it ends; ManuallyDrop leaves it open here.
        let mut out = ManuallyDrop::new(unsafe { std::fs::File::from_raw_fd(self.fd) });
        // No reader can be told that the log is gone.
        let _ = out.write_all(line.as_bytes());
    }
}

pub struct Peer {
    pub journal: Journal,
    /// `None` in replay.
    pub socket: Option<ControlSocket>,
    /// Printed text that goes to the guest with replies, if its own descriptors cannot be here or are not its own any more.
    pub printed: OnceLock<Printed>,
    sending: Mutex<()>,
    /// False while the session is paused and may be another process's: the guest then hears nothing from this one.
    heard: AtomicBool,
}

impl Peer {
    pub fn new(journal: Journal, socket: Option<ControlSocket>, printed: Option<Printed>) -> Peer {
        Peer {
            journal,
            socket,
            printed: printed.map_or_else(OnceLock::new, OnceLock::from),
            sending: Mutex::default(),
            heard: AtomicBool::new(true),
        }
    }

    /// Has output of the vendor's library go to the guest with replies from now on. Once per session; the output of all
    /// sessions of this process is one.
    pub fn print_with_replies(&self) -> io::Result<()> {
        if self.printed.get().is_some() {
            return Ok(());
        }
        let (out, errors) = (printed::pipe()?, printed::pipe()?);
        if self.printed.set(Printed::new([out.0, errors.0], Look::AtEachReply)?).is_ok() {
            adopt_output(Some(out.1.as_raw_fd()), Some(errors.1.as_raw_fd()));
        }
        Ok(())
    }

    /// The socket, if the guest is this process's.
    fn hearing(&self) -> Option<&ControlSocket> {
        self.socket.as_ref().filter(|_| self.heard.load(Ordering::SeqCst))
    }

    /// A control message. A guest that does not read its socket loses them: nobody here may block on it.
    pub fn tell(&self, message: Control) {
        let Some(socket) = self.hearing() else { return };
        let _guard = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        let flags = rustix::net::SendFlags::NOSIGNAL | rustix::net::SendFlags::DONTWAIT;
        let _ = rustix::net::send(socket.as_fd(), &message.to_bytes(), flags);
    }

    /// Says that the session is over, and wakes the control thread by the hang-up.
    pub fn farewell(&self) {
        self.tell(Control { kind: control_kind::FAREWELL, ..Control::default() });
        if let Some(socket) = self.hearing() {
            let _ = rustix::net::shutdown(socket.as_fd(), rustix::net::Shutdown::Both);
        }
    }

    /// `heard`: the guest is this process's; otherwise it hears nothing from here, and its socket stays open whatever happens.
    pub fn set_heard(&self, heard: bool) {
        self.heard.store(heard, Ordering::SeqCst);
    }
}
