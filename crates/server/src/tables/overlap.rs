//! Device memory that leaves, or returns, while another session's comes to its place, or leaves it: what of it has left is told to
//! the node part by part, and what returns waits for the node's credit.
//!
//! Used by the control loop (`moving::evict`), which gives the objects, and through C by the module's threads that copy within one of
//! them. What is told here is untrue if the API server lies; the node holds it against what it has granted.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use aviary_control::{MoveOrder, MoveReport, Patience, Received, SwapOrder, SwapReport};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

/// The node hears of such parts of what leaves.
const STEPS: u64 = 16;

/// An order that came while the control loop was busy, with its descriptors.
type Pending = (MoveOrder, Vec<OwnedFd>);

/// What an object is charged with: by device, as accounts name it.
pub type Charged = Vec<(String, u64)>;

#[derive(Debug, Default)]
enum Way {
    #[default]
    None,
    Leaving {
        attempt: u64,
        /// Bytes of shared devices that must leave, in all.
        all: u64,
        /// Bytes of those that must leave; `None`: all.
        part: Option<u64>,
        /// By device: of objects that have left, and of the present one.
        left: BTreeMap<String, u64>,
        object: Charged,
        /// Of the present one, as its module has told.
        told: Option<u64>,
        /// Bytes of which the node has heard.
        heard: u64,
    },
    Returning {
        attempt: u64,
        /// Bytes of shared devices that may be there.
        credit: u64,
        /// Of objects that are.
        there: u64,
        /// Of the present object, when all of it is.
        object: u64,
    },
}

#[derive(Debug, Default)]
struct OverlapState {
    way: Way,
    pending: VecDeque<Pending>,
}

/// Of one session.
#[derive(Debug, Default)]
pub struct Overlap(Mutex<OverlapState>);

/// Bytes, on all devices.
pub fn sum(charged: &Charged) -> u64 {
    charged.iter().fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
}

impl Overlap {
    fn state(&self) -> MutexGuard<'_, OverlapState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Objects are about to leave that are charged with so many bytes of shared devices; `part`: so many of these bytes must leave.
    pub fn begin_leaving(&self, attempt: u64, all: u64, part: Option<u64>) {
        let (left, object) = Default::default();
        let all = part.map_or(all, |part| part.min(all));
        self.state().way = Way::Leaving { attempt, all, part, left, object, told: None, heard: 0 };
    }

    /// Bytes of shared devices that still must leave; `u64::MAX`: all.
    pub fn must_leave(&self) -> u64 {
        match &self.state().way {
            Way::Leaving { part: Some(part), left, .. } => {
                part.saturating_sub(left.values().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes)))
            }
            _ => u64::MAX,
        }
    }

    /// Memory returns as far as the credit goes.
    pub fn begin_returning(&self, attempt: u64, credit: u64) {
        self.state().way = Way::Returning { attempt, credit, there: 0, object: u64::MAX };
    }

    pub fn end(&self) {
        self.state().way = Way::None;
    }

    /// The next object that leaves.
    pub fn begin_object(&self, charged: Charged) {
        if let Way::Leaving { object, told, .. } = &mut self.state().way {
            (*object, *told) = (charged, None);
        }
    }

    /// So many bytes of the present object have left, and do not return before the session does. Of an object on one device.
    pub fn note_left(&self, orders: &OwnedFd, bytes: u64) {
        let mut state = self.state();
        if let Way::Leaving { object, told, .. } = &mut state.way
            && let [(_, charged)] = object.as_slice()
        {
            *told = Some(bytes.min(*charged));
            tell(&mut state.way, orders);
        }
    }

    /// The present object has left, or stays with what has not. Answers what of it has left.
    pub fn end_object(&self, orders: &OwnedFd, has_left: bool) -> Charged {
        let mut state = self.state();
        let Way::Leaving { left, object, told, .. } = &mut state.way else { return Charged::new() };
        let mut gone = std::mem::take(object);
        match (told.take(), gone.as_mut_slice()) {
            (Some(bytes), [(_, charged)]) => *charged = bytes,
            _ if !has_left => gone.clear(),
            _ => {}
        }
        for (device, bytes) in &gone {
            *left.entry(device.clone()).or_default() += bytes;
        }
        tell(&mut state.way, orders);
        gone
    }

    /// The next object that returns: so many bytes of it are on shared devices, once it is there.
    pub fn begin_return_of(&self, bytes: u64) {
        if let Way::Returning { object, .. } = &mut self.state().way {
            *object = bytes;
        }
    }

    /// Waits until so many bytes of the present object may be on its devices; what a module says beyond those of shared devices waits for
    /// nothing. False: nobody will say so any more.
    pub fn await_credit(&self, orders: &OwnedFd, bytes: u64) -> bool {
        let mut state = self.state();
        loop {
            let OverlapState { way, pending } = &mut *state;
            let Way::Returning { attempt, credit, there, object } = way else { return true };
            if there.saturating_add(bytes.min(*object)) <= *credit {
                return true;
            }
            // Other threads of the module wait for the lock meanwhile: for the same.
            match rustix::event::poll(&mut [PollFd::new(orders, PollFlags::IN)], None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return false,
            }
            match aviary_control::receive::<MoveOrder>(orders.as_fd()) {
                Received::Message(MoveOrder::Swap(SwapOrder::Credit { attempt: number, bytes }), _) => {
                    if number == *attempt {
                        *credit = (*credit).max(bytes);
                    }
                }
                Received::Message(order, descriptors) => pending.push_back((order, descriptors)),
                Received::Nothing => {}
                Received::Garbage(_) | Received::Closed => return false,
            }
        }
    }

    /// An object is there that is charged with so much.
    pub fn note_there(&self, bytes: u64) {
        if let Way::Returning { there, object, .. } = &mut self.state().way {
            (*there, *object) = (there.saturating_add(bytes), u64::MAX);
        }
    }

    /// The next order that came meanwhile.
    pub fn next_pending(&self) -> Option<Pending> {
        self.state().pending.pop_front()
    }

    pub fn has_pending(&self) -> bool {
        !self.state().pending.is_empty()
    }
}

/// If it is worth a message. A node that does not listen has gone, and this process ends with it.
fn tell(way: &mut Way, orders: &OwnedFd) {
    let Way::Leaving { attempt, all, left, object, told, heard, .. } = way else { return };
    let mut freed = left.clone();
    if let (Some(bytes), [(device, _)]) = (*told, object.as_slice()) {
        *freed.entry(device.clone()).or_default() += bytes;
    }
    let now = freed.values().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes));
    // The end is told by another message.
    if now > *heard && now < *all && now - *heard >= *all / STEPS {
        *heard = now;
        let told = MoveReport::Swap(SwapReport::Leaving { attempt: *attempt, freed });
        let _ = aviary_control::send(orders.as_fd(), &told, &[], Patience::Waits);
    }
}

/// All of some objects, on devices that are shared out.
pub fn sum_of<'a>(objects: impl Iterator<Item = &'a Charged>) -> u64 {
    objects.map(sum).fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use aviary_control::{receive, send};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn sockets() -> (OwnedFd, OwnedFd) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
    }

    fn charged(device: &str, bytes: u64) -> Charged {
        vec![(device.to_owned(), bytes)]
    }

    /// Amounts of the device `a` of which the node has heard.
    fn heard(node: &OwnedFd) -> Vec<u64> {
        let next = || match receive::<MoveReport>(node.as_fd()) {
            Received::Message(MoveReport::Swap(SwapReport::Leaving { attempt: 7, freed }), _) => Some(freed["a"]),
            Received::Nothing => None,
            other => panic!("{other:?}"),
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn node_hears_of_parts_that_are_worth_it_and_not_of_the_end() {
        let ((node, orders), overlap) = (sockets(), Overlap::default());
        overlap.note_left(&orders, 5);
        assert!(heard(&node).is_empty(), "nothing leaves");
        assert_eq!(overlap.must_leave(), u64::MAX);
        overlap.begin_leaving(7, 160, Some(130));
        overlap.begin_object(charged("a", 100));
        overlap.note_left(&orders, 8);
        assert_eq!(heard(&node), [8], "a sixteenth of what must leave");
        overlap.begin_leaving(7, 160, None);
        overlap.begin_object(charged("a", 100));
        for bytes in [9, 10, 19, 20, 500] {
            overlap.note_left(&orders, bytes);
        }
        assert_eq!(heard(&node), [10, 20, 100]);
        assert_eq!(overlap.end_object(&orders, true), charged("a", 100));
        // One that tells nothing leaves as a whole; one that does not leave stays with what it has not told of.
        for (bytes, told, has_left, gone) in [(20, None, true, 20), (20, None, false, 0), (20, Some(5), false, 5)] {
            overlap.begin_object(charged("a", bytes));
            told.into_iter().for_each(|bytes| overlap.note_left(&orders, bytes));
            let left = overlap.end_object(&orders, has_left);
            assert_eq!(left.first().map_or(0, |(_, bytes)| *bytes), gone);
        }
        assert_eq!(heard(&node), [120]);
        overlap.begin_object(charged("a", 35));
        overlap.end_object(&orders, true);
        assert!(heard(&node).is_empty(), "all that there is");
        overlap.begin_leaving(7, 160, Some(130));
        overlap.begin_object(charged("a", 100));
        assert_eq!(overlap.must_leave(), 130);
        overlap.end_object(&orders, true);
        assert_eq!((overlap.must_leave(), heard(&node)), (30, vec![100]));
        overlap.begin_leaving(7, 160, None);
        overlap.begin_object(vec![("a".into(), 4), ("b".into(), 4)]);
        overlap.note_left(&orders, 4);
        assert_eq!(overlap.end_object(&orders, true).len(), 2, "of one on two devices only the whole is known");
    }

    #[test]
    fn what_returns_waits_for_its_credit_and_keeps_other_orders() {
        let ((node, orders), overlap) = (sockets(), Overlap::default());
        assert!(overlap.await_credit(&orders, u64::MAX), "nothing returns, or all may");
        overlap.begin_returning(7, 10);
        assert!(overlap.await_credit(&orders, 10));
        let credit = |attempt, bytes| MoveOrder::Swap(SwapOrder::Credit { attempt, bytes });
        for order in [credit(6, 99), MoveOrder::Swap(SwapOrder::Keep { most: 3 }), credit(7, 30), credit(7, 20)] {
            send(node.as_fd(), &order, &[], Patience::None).unwrap();
        }
        assert!(overlap.await_credit(&orders, 25));
        overlap.note_there(25);
        assert!(overlap.await_credit(&orders, 5) && overlap.has_pending());
        // Devices that are not shared out need no credit, which would never come.
        overlap.begin_return_of(0);
        assert!(overlap.await_credit(&orders, 1000));
        overlap.note_there(0);
        overlap.begin_return_of(5);
        assert!(overlap.await_credit(&orders, 1000));
        overlap.note_there(0);
        let kept = overlap.next_pending().map(|(order, _)| order);
        assert_eq!((kept, overlap.has_pending()), (Some(MoveOrder::Swap(SwapOrder::Keep { most: 3 })), false));
        drop(node);
        assert!(!overlap.await_credit(&orders, 6), "the node has gone");
        overlap.end();
        assert!(overlap.await_credit(&orders, 6));
    }
}
