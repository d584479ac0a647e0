//! A thread with a table of descriptors of its own. Programs that start in the background close all descriptors that they
//! have, the library's among them; the keeper still has the control socket then.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use aviary_transport::ControlSocket;

use crate::process::signals::BlockedSignals;

/// Bytes of the stack of a thread that only passes messages on.
const KEEPER_STACK: usize = 64 << 10;

/// Work that the keeper does, with its descriptors.
type Job = Box<dyn FnOnce() + Send>;

/// The control socket of this process, and the thread that has it, too.
pub(crate) struct Keeper {
    control: Arc<ControlSocket>,
    /// Empty: no thread was started; `None`: none could be.
    thread: OnceLock<Option<Mutex<Sender<Job>>>>,
}

impl Keeper {
    pub fn new(control: Arc<ControlSocket>) -> Keeper {
        Keeper { control, thread: OnceLock::new() }
    }

    /// The socket under the number that it has in the table of the calling thread, if it is open there.
    pub fn callers_socket(&self) -> &ControlSocket {
        &self.control
    }

    /// Starts the thread, once. Without it (an old kernel, a limit of threads) the application's descriptor is the only one.
    pub fn start(&self) {
        self.thread.get_or_init(|| start(self.control.clone()).ok().map(Mutex::new));
    }

    /// Uses the control socket: here if the application has not closed it, on the keeper's thread otherwise. `None`: nothing
    /// has it any more.
    pub fn with<T: Send + 'static>(&self, job: impl FnOnce(&ControlSocket) -> T + Send + 'static) -> Option<T> {
        if self.control.intact() {
            return Some(job(&self.control));
        }
        let control = self.control.clone();
        self.ask(move || control.intact().then(|| job(&control)))?
    }

    /// True if the API server lives.
    pub fn alive(&self) -> bool {
        self.with(ControlSocket::alive).unwrap_or(false)
    }

    /// Starts a thread with the descriptors of the keeper, or of this thread where there is none.
    pub fn spawn(&self, builder: std::thread::Builder, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        match self.thread.get() {
            Some(Some(_)) => {
                self.ask(move || builder.spawn(work).map(drop)).unwrap_or_else(|| Err(io::ErrorKind::BrokenPipe.into()))
            }
            _ => builder.spawn(work).map(drop),
        }
    }

    fn ask<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let thread = self.thread.get()?.as_ref()?;
        let (give, take) = sync_channel(1);
        let job = Box::new(move || {
            // The asking thread may have been cancelled.
            let _ = give.send(job());
        });
        thread.lock().unwrap_or_else(PoisonError::into_inner).send(job).ok()?;
        take.recv().ok()
    }
}

fn start(control: Arc<ControlSocket>) -> io::Result<Sender<Job>> {
    let (give_job, take_job) = channel::<Job>();
    let (give_state, take_state) = sync_channel(1);
    let signals = BlockedSignals::new();
    let builder = std::thread::Builder::new().name("aviary-keeper".into()).stack_size(KEEPER_STACK);
    let started = builder.spawn(move || {
        let state = keep_only(control.as_fd().as_raw_fd()).and_then(|()| {
            // The program's file under the socket's number would stay open here.
            if control.intact() { Ok(()) } else { Err(io::ErrorKind::NotConnected.into()) }
        });
        let is_apart = state.is_ok();
        if give_state.send(state).is_ok() && is_apart {
            serve(&take_job);
        }
    });
    drop(signals);
    started?;
    take_state.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))?;
    Ok(give_job)
}

fn serve(jobs: &Receiver<Job>) {
    while let Ok(job) = jobs.recv() {
        job();
    }
}

/// Leaves the process's table of descriptors and closes all but one in its own: a copy would hide from others that the
/// application has closed its end of a pipe.
fn keep_only(socket: RawFd) -> io::Result<()> {
    let socket = u32::try_from(socket).map_err(io::Error::other)?;
    // A kernel without the flag refuses the first call, and nothing has changed.
    close_range(socket + 1, u32::MAX, libc::CLOSE_RANGE_UNSHARE)?;
    match socket {
        0 => Ok(()),
        _ => close_range(0, socket - 1, 0),
    }
}

fn close_range(first: u32, last: u32, flags: libc::c_uint) -> io::Result<()> {
    // SAFETY: with the flag the calling thread gets a table of its own before anything is closed, and the second call is made
    // only after that, so no descriptor of the application or of an object in this process is closed. The numbers that this
    // thread's table loses are used by nothing on this thread.
    match unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    fn pair() -> (Keeper, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Keeper::new(Arc::new(ControlSocket::new(OwnedFd::from(ours)))), theirs)
    }

    /// As `closefrom` does it: behind the back of the object that owns the descriptor.
    fn close(keeper: &Keeper) {
        let null = rustix::fs::open("/dev/null", rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty()).unwrap();
        // SAFETY: the number stays open, as another file.
        assert!(unsafe { libc::dup2(null.as_raw_fd(), keeper.control.as_fd().as_raw_fd()) } >= 0);
    }

    #[test]
    fn socket_that_the_application_closed_is_used_by_the_keeper() {
        let (keeper, peer) = pair();
        keeper.start();
        close(&keeper);
        assert!(keeper.alive());
        drop(peer);
        assert!(!keeper.alive());
    }

    #[test]
    fn socket_is_gone_without_a_keeper() {
        let (keeper, _peer) = pair();
        close(&keeper);
        assert!(!keeper.alive());
        assert!(keeper.with(|_| ()).is_none());
    }

    #[test]
    fn keeper_has_no_copy_of_other_descriptors() {
        let (keeper, _peer) = pair();
        let (reader, writer) = UnixStream::pair().unwrap();
        keeper.start();
        drop(writer);
        let mut end = [0; 1];
        assert_eq!(rustix::io::read(&reader, &mut end), Ok(0));
    }

    #[test]
    fn keeper_does_not_hold_a_file_of_the_program_under_the_number() {
        let (keeper, _peer) = pair();
        let (reader, writer) = UnixStream::pair().unwrap();
        let number = keeper.control.as_fd().as_raw_fd();
        // SAFETY: as a program does it that reuses the number.
        assert!(unsafe { libc::dup2(writer.as_raw_fd(), number) } >= 0);
        drop(writer);
        keeper.start();
        // SAFETY: the program closes its file, which the keeper's control socket never does.
        assert_eq!(unsafe { libc::close(number) }, 0);
        let mut end = [0; 1];
        assert_eq!(rustix::io::read(&reader, &mut end), Ok(0));
    }

    #[test]
    fn threads_of_the_keeper_have_its_descriptors() {
        let (keeper, _peer) = pair();
        keeper.start();
        close(&keeper);
        let control = keeper.control.clone();
        let (give, take) = sync_channel(1);
        let report = move || give.send(control.intact()).unwrap();
        keeper.spawn(std::thread::Builder::new(), report).unwrap();
        assert!(take.recv().unwrap());
    }
}
