//! Which user ids have an entry in the machine's user database.
//!
//! A user may have 65,536 subordinate ids, and a container any: an id alone is no person, and a tenant of its own for each would
//! be a fresh quota for each. The database may be a server of the network, so that a thread of its own asks it, and the
//! connection that the question is about waits beside the node's loop, not in it.
//!
//! Peers choose which ids are asked about, and how often: what is kept of them and how many connections wait is bounded.

use crate::attach::guest::Guest;
use aviary_control::Foreign;
use std::{
    collections::{HashMap, HashSet},
    io,
    os::fd::OwnedFd,
    sync::mpsc::{Receiver, Sender, channel},
    time::{Duration, Instant},
};

/// For so long an id without an entry is not asked about again.
const FORGET_UNKNOWN_AFTER: Duration = Duration::from_secs(60);
/// Ids without an entry that are kept; when there are more, all are asked about again.
const MAX_UNKNOWN: usize = 4096;
/// Connections that wait for an answer.
const MAX_WAITING: usize = 256;
/// Until then the database has answered; otherwise the id counts as one without an entry, which gives nobody more.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Where a connection was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entrance {
    Guests,
    /// The card of this place.
    Card(u64),
}

/// A connection whose user is asked about.
#[derive(Debug)]
pub struct Unidentified {
    pub socket: Foreign,
    pub guest: Guest,
    pub entrance: Entrance,
    since: Instant,
}

/// Asks whether an id has an entry. May wait.
pub type Look = fn(u32) -> io::Result<bool>;

/// Where ids go to the thread, and where its answers are.
type Asked = (Sender<u32>, Receiver<(u32, bool)>);

#[derive(Debug)]
pub struct UserDatabase {
    look: Look,
    /// Wakes the node's loop when there is an answer.
    wake: OwnedFd,
    known: HashSet<u32>,
    unknown: HashMap<u32, Instant>,
    /// Ids that the thread was asked about.
    asked: HashSet<u32>,
    waiting: Vec<Unidentified>,
    thread: Option<Asked>,
}

impl UserDatabase {
    pub fn new(look: Look, wake: OwnedFd) -> Self {
        let (known, unknown, asked) = (HashSet::new(), HashMap::new(), HashSet::new());
        Self { look, wake, known, unknown, asked, waiting: Vec::new(), thread: None }
    }

    /// `None`: it must be asked about ([`Self::ask`]).
    pub fn has(&self, uid: u32, now: Instant) -> Option<bool> {
        if self.known.contains(&uid) {
            return Some(true);
        }
        let fresh = |at: &&Instant| now.saturating_duration_since(**at) < FORGET_UNKNOWN_AFTER;
        self.unknown.get(&uid).filter(fresh).map(|_| false)
    }

    /// The connection is back in [`Self::answered`] when there is an answer.
    ///
    /// # Errors
    /// The connection, which cannot wait: too many do.
    pub fn ask(&mut self, socket: Foreign, guest: Guest, entrance: Entrance, now: Instant) -> Result<(), Foreign> {
        if self.waiting.len() >= MAX_WAITING {
            return Err(socket);
        }
        if self.asked.insert(guest.uid) {
            let (questions, _) = self.thread.get_or_insert_with(|| start(self.look, &self.wake));
            // A thread that has ended answers nothing: then the time decides.
            let _ = questions.send(guest.uid);
        }
        self.waiting.push(Unidentified { socket, guest, entrance, since: now });
        Ok(())
    }

    /// Connections that wait no longer: [`Self::has`] knows about their users.
    pub fn answered(&mut self, now: Instant) -> Vec<Unidentified> {
        if self.waiting.is_empty() {
            return Vec::new();
        }
        if let Some((_, answers)) = &self.thread {
            let news: Vec<(u32, bool)> = answers.try_iter().collect();
            news.into_iter().for_each(|(uid, has)| self.note(uid, has, now));
        }
        let late = |one: &Unidentified| now.saturating_duration_since(one.since) >= ANSWER_TIMEOUT;
        let overdue: Vec<u32> = self.waiting.iter().filter(|one| late(one)).map(|one| one.guest.uid).collect();
        for uid in overdue {
            // It stays asked about: one answer is enough, whenever it comes.
            self.note_unknown(uid, now);
        }
        let waiting = std::mem::take(&mut self.waiting);
        let (ready, still) = waiting.into_iter().partition(|one| self.has(one.guest.uid, now).is_some());
        self.waiting = still;
        ready
    }

    fn note(&mut self, uid: u32, has: bool, now: Instant) {
        self.asked.remove(&uid);
        if has {
            self.unknown.remove(&uid);
            self.known.insert(uid);
            return;
        }
        self.note_unknown(uid, now);
    }

    fn note_unknown(&mut self, uid: u32, now: Instant) {
        if self.unknown.len() >= MAX_UNKNOWN {
            self.unknown.clear();
        }
        self.unknown.insert(uid, now);
    }

    /// When the first connection has waited long enough.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.waiting.iter().map(|one| one.since + ANSWER_TIMEOUT).min()
    }
}

/// The thread ends when the database is dropped and its last question answered; nobody waits for that.
fn start(look: Look, wake: &OwnedFd) -> (Sender<u32>, Receiver<(u32, bool)>) {
    let (questions, asked) = channel::<u32>();
    let (answer, answers) = channel();
    let wake = wake.try_clone();
    std::thread::spawn(move || {
        for uid in asked {
            // A database that cannot be read gives nobody a quota of its own.
            let has = look(uid).unwrap_or(false);
            if answer.send((uid, has)).is_err() {
                return;
            }
            if let Ok(wake) = &wake {
                let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
            }
        }
    });
    (questions, answers)
}

#[cfg(test)]
mod tests {
    use crate::users::user_database::*;
    use aviary_control::Foreign;
    use rustix::event::{EventfdFlags, eventfd};
    use std::os::unix::net::UnixStream;

    fn even(uid: u32) -> io::Result<bool> {
        if uid == 99 { Err(io::ErrorKind::Other.into()) } else { Ok(uid.is_multiple_of(2)) }
    }

    fn never(_: u32) -> io::Result<bool> {
        loop {
            std::thread::park();
        }
    }

    fn database(look: Look) -> UserDatabase {
        UserDatabase::new(look, eventfd(0, EventfdFlags::CLOEXEC).unwrap())
    }

    fn ask(database: &mut UserDatabase, uid: u32, now: Instant) -> Result<(), Foreign> {
        let (one, _) = UnixStream::pair().unwrap();
        database.ask(Foreign::own(one.into()), Guest { uid, pid: 1, started: 1, in_vm: None }, Entrance::Guests, now)
    }

    #[test]
    fn each_id_is_asked_about_once_and_its_connections_come_back() {
        let (mut database, now) = (database(even), Instant::now());
        for uid in [2, 3, 3, 99] {
            assert_eq!(database.has(uid, now), None);
            assert!(ask(&mut database, uid, now).is_ok());
        }
        let mut back = Vec::new();
        while back.len() < 4 {
            back.extend(database.answered(now).into_iter().map(|one| one.guest.uid));
            std::thread::yield_now();
        }
        back.sort_unstable();
        assert_eq!(back, [2, 3, 3, 99]);
        let known = |now| [2, 3, 99].map(|uid| database.has(uid, now));
        assert_eq!(known(now), [Some(true), Some(false), Some(false)]);
        assert_eq!(known(now + FORGET_UNKNOWN_AFTER), [Some(true), None, None]);
        assert_eq!(database.next_deadline(), None);
    }

    #[test]
    fn a_database_that_does_not_answer_holds_up_no_more_than_its_bound() {
        let (mut database, now) = (database(never), Instant::now());
        for uid in 0..MAX_WAITING as u32 {
            assert!(ask(&mut database, uid, now).is_ok());
        }
        assert!(ask(&mut database, 7, now).is_err());
        assert!(database.answered(now).is_empty());
        assert_eq!(database.next_deadline(), Some(now + ANSWER_TIMEOUT));
        assert_eq!(database.answered(now + ANSWER_TIMEOUT).len(), MAX_WAITING);
        assert_eq!(database.has(7, now + ANSWER_TIMEOUT), Some(false));
    }

    #[test]
    fn ids_without_an_entry_take_bounded_memory() {
        let (mut database, now) = (database(even), Instant::now());
        for uid in 0..3 * MAX_UNKNOWN as u32 {
            database.note(2 * uid + 1, false, now);
        }
        assert!(database.unknown.len() <= MAX_UNKNOWN);
    }
}
