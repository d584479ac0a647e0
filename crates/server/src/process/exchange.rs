//! Descriptors that the process's modules offer to, and fetch from, other API servers of their tenant. The node carries
//! the questions and decides who may ask; the descriptors stay with the process that offers them until one asks.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::node::Node;
use aviary_control::OfferName;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::time::Timespec;

/// Each costs the process a descriptor.
const MAX_OFFERS: usize = 4096;
/// The other process answers at once, unless it is about to end.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
/// A card may have to load its image first.
const CARD_TIMEOUT: Duration = Duration::from_secs(60);

/// A descriptor, and the number that goes with it.
type Offered = (OwnedFd, u64);
/// The node's answer: a descriptor or none, and a number.
type NodeAnswer = (Option<OwnedFd>, u64);

#[derive(Default)]
pub struct Exchange {
    offers: Mutex<BTreeMap<OfferName, Offered>>,
    /// By request; `None`: not answered yet.
    asked: Mutex<HashMap<u64, Option<NodeAnswer>>>,
    arrived: Condvar,
    requests: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn copy(descriptor: BorrowedFd<'_>) -> Option<OwnedFd> {
    rustix::io::fcntl_dupfd_cloexec(descriptor, 3).ok()
}

fn secret() -> Option<[u64; 2]> {
    let mut bytes = [[0; 8]; 2];
    let filled = rustix::rand::getrandom(bytes.as_flattened_mut(), rustix::rand::GetRandomFlags::empty());
    (filled == Ok(16)).then(|| bytes.map(u64::from_ne_bytes))
}

impl Exchange {
    pub fn offer(&self, session: u64, descriptor: BorrowedFd<'_>, note: u64) -> Option<OfferName> {
        let mut offers = lock(&self.offers);
        let name = OfferName { session, secret: secret()? };
        if offers.len() >= MAX_OFFERS {
            return None;
        }
        offers.insert(name, (copy(descriptor)?, note));
        Some(name)
    }

    /// Offers of a session that stand.
    pub fn offers_of(&self, session: u64) -> usize {
        lock(&self.offers).keys().filter(|name| name.session == session).count()
    }

    pub fn withdraw(&self, name: &OfferName) {
        lock(&self.offers).remove(name);
    }

    /// For another process, or for a module of this one.
    pub fn give(&self, name: &OfferName) -> Option<Offered> {
        let offers = lock(&self.offers);
        let (descriptor, note) = offers.get(name)?;
        Some((copy(descriptor.as_fd())?, *note))
    }

    pub fn fetch(&self, node: &Node, session: u64, name: &OfferName) -> Option<Offered> {
        if let Some(own) = self.give(name) {
            return Some(own);
        }
        let (from, _) = self.ask(FETCH_TIMEOUT, |request| node.fetch(session, request, *name))?;
        await_offer(&from?)
    }

    /// A connection to a card, or an errno.
    pub fn card(&self, node: &Node, session: u64) -> Result<OwnedFd, u64> {
        let answer = self.ask(CARD_TIMEOUT, |request| node.card(session, request));
        let (descriptor, errno) = answer.unwrap_or((None, Errno::TIMEDOUT.raw_os_error().unsigned_abs().into()));
        descriptor.ok_or(errno)
    }

    /// Waits for the answer to a request of this number. `None`: none came in time.
    fn ask(&self, at_most: Duration, tell: impl FnOnce(u64)) -> Option<NodeAnswer> {
        let request = self.requests.fetch_add(1, Ordering::Relaxed);
        lock(&self.asked).insert(request, None);
        tell(request);
        let waiting = |asked: &mut HashMap<_, Option<_>>| asked.get(&request).is_some_and(Option::is_none);
        let waited = self.arrived.wait_timeout_while(lock(&self.asked), at_most, waiting);
        let (mut asked, _) = waited.unwrap_or_else(PoisonError::into_inner);
        asked.remove(&request).flatten()
    }

    /// The node's answer to a request. One that nobody waits for any longer is dropped.
    pub fn arrive(&self, request: u64, descriptor: Option<OwnedFd>, note: u64) {
        if let Some(answer) = lock(&self.asked).get_mut(&request) {
            *answer = Some((descriptor, note));
            self.arrived.notify_all();
        }
    }
}

/// The offer that another process gives over this socket; `None`: it has none, or does not answer.
fn await_offer(from: &OwnedFd) -> Option<Offered> {
    let timeout = Timespec { tv_sec: FETCH_TIMEOUT.as_secs() as i64, tv_nsec: 0 };
    // A signal is no answer: then there is none, as after the time.
    rustix::event::poll(&mut [PollFd::new(from, PollFlags::IN)], Some(&timeout)).ok()?;
    aviary_control::taken(from.as_fd())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, fstat, memfd_create};

    fn memory() -> OwnedFd {
        memfd_create("test", MemfdFlags::CLOEXEC).unwrap()
    }

    #[test]
    fn an_offer_stands_until_it_is_withdrawn() {
        let (exchange, memory) = (Exchange::default(), memory());
        let name = exchange.offer(7, memory.as_fd(), 42).unwrap();
        assert_eq!(name.session, 7);
        let (given, note) = exchange.give(&name).unwrap();
        assert_eq!((fstat(given).unwrap().st_ino, note), (fstat(&memory).unwrap().st_ino, 42));
        let guessed = OfferName { secret: [name.secret[0], name.secret[1] ^ 1], ..name };
        assert!(exchange.give(&guessed).is_none());
        exchange.withdraw(&name);
        assert!(exchange.give(&name).is_none());
    }

    #[test]
    fn offers_are_bounded() {
        let (exchange, memory) = (Exchange::default(), memory());
        // By their number, or earlier by the descriptors that this process may have.
        let names: Vec<_> = std::iter::from_fn(|| exchange.offer(1, memory.as_fd(), 0)).collect();
        assert!((4..=MAX_OFFERS).contains(&names.len()));
        exchange.withdraw(&names[3]);
        assert!(exchange.offer(1, memory.as_fd(), 0).is_some());
    }

    #[test]
    fn answer_of_the_node_reaches_its_question() {
        let exchange = Exchange::default();
        let answer = exchange.ask(FETCH_TIMEOUT, |request| exchange.arrive(request, Some(memory()), 7)).unwrap();
        assert!(matches!(answer, (Some(_), 7)));
        let answer = exchange.ask(FETCH_TIMEOUT, |request| exchange.arrive(request, None, 19)).unwrap();
        assert!(matches!(answer, (None, 19)));
        assert!(lock(&exchange.asked).is_empty());
    }

    #[test]
    fn offer_comes_over_the_socket_or_there_is_none() {
        let [to, from] = aviary_control::state_sockets().unwrap();
        let memory = memory();
        aviary_control::give(to.as_fd(), memory.as_fd(), 42).unwrap();
        let (given, note) = await_offer(&from).unwrap();
        assert_eq!((fstat(given).unwrap().st_ino, note), (fstat(&memory).unwrap().st_ino, 42));
        drop(to);
        assert!(await_offer(&from).is_none());
    }

    #[test]
    fn unrequested_descriptor_is_dropped() {
        let exchange = Exchange::default();
        exchange.arrive(3, Some(memory()), 0);
        assert!(lock(&exchange.asked).is_empty());
    }
}
