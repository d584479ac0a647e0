//! A parked session in the process that will make it anew: nothing of it is made, and the lanes on which its program would
//! call are watched. The watch takes nothing out of a ring and writes nothing but the word that says that it sleeps.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use aviary_control::MoveReport;
use aviary_transport::{LaneEnd, LaneError, LaneWaker, Liveness};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::Connected;
use crate::moving::report;
use crate::moving::stage::{MoveStage, Step, next_order};

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
struct Watch {
    lanes: Vec<WatchedLane>,
    /// Readable once a message has begun to arrive on any of them.
    called: Arc<OwnedFd>,
}

impl Watch {
    fn add(&mut self, mut end: LaneEnd, liveness: Arc<Liveness>) -> Result<(), String> {
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
fn speaks(socket: impl AsFd) -> bool {
    let mut byte = [0u8; 1];
    !matches!(recv(socket, &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT), Err(Errno::AGAIN | Errno::INTR))
}

impl Connected {
    /// Until the order to make the session anew. An error ends the session.
    pub fn keep_parked(&mut self) -> Result<(), String> {
        let called = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|error| error.to_string())?;
        let mut watch = Watch { lanes: Vec::new(), called: Arc::new(called) };
        for lane in self.link.lanes.values() {
            if lane.stopped.taken.is_some() {
                tell(&watch.called);
            }
            let liveness = Arc::new(Liveness::notified());
            let end = self.end_at(lane.place, &liveness)?.resume(lane.stopped.position);
            watch.add(end.map_err(|error| error.to_string())?, liveness)?;
        }
        let session = self.session.clone();
        let orders = session.orders.as_ref().ok_or("there are no orders")?;
        let socket = session.peer.socket.as_ref().ok_or("there is no socket")?;
        report(orders, &MoveReport::Parked).map_err(|error| error.to_string())?;
        let mut told = false;
        loop {
            let mut fds = vec![PollFd::new(orders, PollFlags::IN)];
            if !told {
                fds.push(PollFd::new(&*watch.called, PollFlags::IN));
                fds.push(PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN));
            }
            match rustix::event::poll(&mut fds, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.to_string()),
            }
            let happened: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            let has = |at| happened.get(at) == Some(&true);
            if has(1) || (has(2) && speaks(socket.as_fd())) {
                told = true;
                report(orders, &MoveReport::Wanted).map_err(|error| error.to_string())?;
            }
            if !happened[0] {
                continue;
            }
            match next_order(orders)?.map(|(order, _)| MoveStage::Watching.after(order)) {
                Some(Step::Rebuild) => return Ok(()),
                Some(Step::Leave) => return Err("the guest has ended".into()),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aviary_transport::{Arena, Side};
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
            let called = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap());
            let mut watch = Watch { lanes: Vec::new(), called: called.clone() };
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
