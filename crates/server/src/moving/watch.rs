//! Signs of life of a guest whose session is parked: the lanes on which its program would call are watched, and its socket.
//! The control loop asks. The watch takes nothing out of a ring and writes nothing but the word that says that it sleeps; a
//! guest that lies wakes it, which costs the guest its parking.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use aviary_transport::{LaneEnd, LaneError, LaneWaker, Liveness};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

/// A watcher sleeps until it is woken; after this time it looks without that.
const LOOK_AGAIN: Duration = Duration::from_secs(3600);
/// The stack of a watcher: it does nothing but wait.
const WATCHER_STACK_BYTES: usize = 64 << 10;

/// One lane that is watched.
struct WatchedLane {
    thread: JoinHandle<()>,
    liveness: Arc<Liveness>,
    waker: LaneWaker,
}

/// All lanes of a session. Dropping it ends the watch.
pub struct Watch {
    lanes: Vec<WatchedLane>,
    /// Readable once a message has begun to arrive on any of them.
    called: Arc<OwnedFd>,
}

impl Watch {
    pub fn new() -> Result<Self, Errno> {
        let called = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Watch { lanes: Vec::new(), called: Arc::new(called) })
    }

    /// # Errors
    /// For people: there is no thread for it.
    pub fn add(&mut self, mut end: LaneEnd, liveness: Arc<Liveness>) -> Result<(), String> {
        end.set_interruptible(true);
        let (waker, called) = (end.waker(), self.called.clone());
        let watch = move || {
            loop {
                match end.await_message(LOOK_AGAIN) {
                    Ok(false) => {}
                    Err(LaneError::Interrupted) => return,
                    // A ring that makes no sense is looked at again, and told of, by the lane that serves it.
                    Ok(true) | Err(_) => return tell(&called),
                }
            }
        };
        let thread = std::thread::Builder::new().name("parked-lane".into()).stack_size(WATCHER_STACK_BYTES);
        let thread = thread.spawn(watch).map_err(|error| format!("no thread for a parked lane: {error}"))?;
        self.lanes.push(WatchedLane { thread, liveness, waker });
        Ok(())
    }

    /// As if a message had begun to arrive.
    pub fn call(&self) {
        tell(&self.called);
    }

    pub fn called(&self) -> &OwnedFd {
        &self.called
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        for lane in &self.lanes {
            lane.liveness.interrupt();
            lane.waker.wake();
        }
        for lane in self.lanes.drain(..) {
            // It cannot panic, and nothing of it is needed.
            let _ = lane.thread.join();
        }
    }
}

fn tell(called: &OwnedFd) {
    let _ = rustix::io::write(called, &1u64.to_ne_bytes());
}

/// True if the guest has sent something, a thread that begins for instance, or hung up: both are for the session itself.
pub fn speaks(socket: impl AsFd) -> bool {
    let mut byte = [0u8; 1];
    !matches!(recv(socket, &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT), Err(Errno::AGAIN | Errno::INTR))
}

#[cfg(test)]
mod tests {
    use super::*;
    use aviary_transport::{Arena, Side};
    use rustix::event::{PollFd, PollFlags};
    use std::os::unix::net::UnixStream;

    #[test]
    fn guest_speaks_with_a_message_and_with_its_end() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        assert!(!speaks(&ours));
        rustix::io::write(&theirs, b"lane").unwrap();
        assert!(speaks(&ours) && speaks(&ours), "the message stays");
        rustix::io::read(&ours, &mut [0u8; 4]).unwrap();
        assert!(!speaks(&ours));
        drop(theirs);
        assert!(speaks(&ours));
    }

    /// A message wakes the watch and is still there for the lane; a watch that nobody calls ends at once.
    #[test]
    fn watch_sees_a_message_and_leaves_it_in_the_ring() {
        const LENGTH: usize = 1 << 16;
        let arena = Arc::new(Arena::create(1 << 20).unwrap());
        LaneEnd::clear(&arena, 4096, LENGTH).unwrap();
        let end = |side| {
            let liveness = Arc::new(Liveness::notified());
            (LaneEnd::shared(&arena, 4096, LENGTH, side, &liveness).unwrap(), liveness)
        };
        let watched = |idle: bool| {
            let mut watch = Watch::new().unwrap();
            let called = watch.called.clone();
            let (server, liveness) = end(Side::Server);
            watch.add(server, liveness).unwrap();
            if !idle {
                let mut fds = [PollFd::new(&*called, PollFlags::IN)];
                rustix::event::poll(&mut fds, None).unwrap();
            }
            drop(watch);
            rustix::io::read(&*called, &mut [0u8; 8]).is_ok()
        };
        assert!(!watched(true));
        let (mut guest, _) = end(Side::Guest);
        std::thread::scope(|scope| {
            let watching = scope.spawn(|| watched(false));
            guest.send(b"a call", &[]).unwrap();
            assert!(watching.join().unwrap());
        });
        let (mut lane, _) = end(Side::Server);
        let mut message = Vec::new();
        lane.receive(&mut message).unwrap();
        assert_eq!(message, b"a call");
    }
}
