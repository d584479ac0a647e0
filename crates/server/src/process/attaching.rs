//! Guests that go while their connection is still being made.
//!
//! Once a session has started, its control loop sees the hang-up. Before that, its thread may be inside a vendor's library
//! that loads for a long time or for ever. The node watches the guests that are processes of its machine; that one in a
//! VM or on another machine has ended, only the hang-up of its socket tells.

use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a guest that has gone is waited for: no longer than the node waits for that of a process.
const GONE_GUEST_TIMEOUT: Duration = Duration::from_millis(700);

struct Guest {
    socket: Arc<OwnedFd>,
    gone_at: Option<Instant>,
}

/// By session.
#[derive(Default)]
pub struct Attaching(Mutex<BTreeMap<u64, Guest>>);

impl Attaching {
    fn guests(&self) -> MutexGuard<'_, BTreeMap<u64, Guest>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Without a second descriptor nobody watches; the session goes on all the same.
    pub fn begin(&self, session: u64, socket: BorrowedFd<'_>) {
        if let Ok(socket) = rustix::io::fcntl_dupfd_cloexec(socket, 3) {
            self.guests().insert(session, Guest { socket: Arc::new(socket), gone_at: None });
        }
    }

    /// It has started, or was refused.
    pub fn end(&self, session: u64) {
        self.guests().remove(&session);
    }

    /// The sockets of those who are there.
    pub fn present(&self) -> Vec<(u64, Arc<OwnedFd>)> {
        let guests = self.guests();
        let present = guests.iter().filter(|(_, guest)| guest.gone_at.is_none());
        present.map(|(session, guest)| (*session, guest.socket.clone())).collect()
    }

    pub fn hung_up(&self, session: u64) {
        if let Some(guest) = self.guests().get_mut(&session) {
            guest.gone_at.get_or_insert_with(Instant::now);
        }
    }

    /// How many have gone and nobody waits for any longer; and when to look again.
    pub fn overdue(&self) -> (usize, Option<Instant>) {
        let (now, guests) = (Instant::now(), self.guests());
        let ends = || guests.values().filter_map(|guest| Some(guest.gone_at? + GONE_GUEST_TIMEOUT));
        (ends().filter(|end| *end <= now).count(), ends().filter(|end| *end > now).min())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::{fd::AsFd, unix::net::UnixStream};

    #[test]
    fn gone_guest_is_overdue_after_the_timeout() {
        let (guest, _peer) = UnixStream::pair().unwrap();
        let attaching = Attaching::default();
        attaching.begin(1, guest.as_fd());
        attaching.begin(2, guest.as_fd());
        assert_eq!(attaching.present().len(), 2);
        assert_eq!(attaching.overdue(), (0, None));
        attaching.hung_up(1);
        attaching.hung_up(3);
        assert_eq!(attaching.present().iter().map(|(session, _)| *session).collect::<Vec<_>>(), [2]);
        let (overdue, again) = attaching.overdue();
        assert!(overdue == 0 && again.is_some());
        attaching.guests().get_mut(&1).unwrap().gone_at = Instant::now().checked_sub(GONE_GUEST_TIMEOUT);
        assert_eq!(attaching.overdue(), (1, None));
        attaching.end(1);
        assert_eq!(attaching.overdue(), (0, None));
    }
}
