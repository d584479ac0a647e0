//! The stages of a session in one process: what the control loop waits for in each of them, and what each order of the node
//! means. Plain data; the control loop carries out the steps. The node's side of the same is `aviary_node`'s relocation.
//!
//! An order that a stage does not have changes nothing: the node repeats none, and hears of a process that does not answer by
//! its own deadline.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use aviary_control::{MoveOrder, Received, SwapOrder};

/// What a session in this process waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MoveStage {
    /// Parked: nothing of it is rebuilt, and its program's calls are watched for.
    Watching,
    /// Rebuilt and paused. It is another process's until the order to go.
    Rebuilt,
    /// Its program is served.
    Serving,
    /// Its state is written, and it is paused.
    Captured,
    /// Its memory is out: its guest is heard, and no call is begun.
    Evicted,
}

/// What the control loop waits for beside orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hears {
    /// The guest's messages.
    Guest,
    /// Signs of life of the guest, which are reported once and left to be read later.
    Signs,
    /// The guest may be another process's.
    Nothing,
}

/// What the control loop does after an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Write the greeting, and report.
    Announce {
        attempt: u64,
    },
    /// Pause the session, write its state, and report.
    Capture {
        attempt: u64,
        stop: Duration,
        /// Bytes that its state may take, if it is to be parked.
        park: Option<u64>,
    },
    /// Rebuild it, and report.
    Rebuild,
    /// Pause the session, take its memory out, and report.
    Evict {
        attempt: u64,
        stop: Duration,
        /// Bytes of host memory that it may take.
        room: u64,
        /// Bytes of shared devices that must leave; `None`: all.
        part: Option<u64>,
    },
    /// A part of its memory is out: take out more, and report.
    EvictMore {
        attempt: u64,
        /// As in `Evict`.
        part: Option<u64>,
    },
    /// Bring its memory back, and report.
    Return {
        attempt: u64,
        /// Bytes of shared devices that may be there; `None`: all.
        credit: Option<u64>,
    },
    /// Give host memory back until no more than this is kept, and report.
    Keep {
        most: u64,
    },
    /// Make host memory until so much is kept, and report.
    Prepare {
        bytes: u64,
    },
    /// Tell the call that waits for room.
    Room {
        request: u64,
        granted: bool,
    },
    /// Report that it cannot move now.
    Refuse {
        attempt: u64,
    },
    /// Let it continue.
    Serve,
    /// End, for this reason: another process has the session, or its program has ended.
    Leave(&'static str),
    Nothing,
}

impl MoveStage {
    pub fn hears(self) -> Hears {
        match self {
            MoveStage::Watching => Hears::Signs,
            MoveStage::Serving | MoveStage::Evicted => Hears::Guest,
            MoveStage::Rebuilt | MoveStage::Captured => Hears::Nothing,
        }
    }

    /// True if the calls and the connection of the guest are this process's to end.
    pub fn has_guest(self) -> bool {
        matches!(self, MoveStage::Serving | MoveStage::Captured | MoveStage::Evicted)
    }

    pub fn after(self, order: MoveOrder) -> Step {
        match (self, order) {
            (MoveStage::Watching, MoveOrder::Rebuild) => Step::Rebuild,
            (MoveStage::Watching, MoveOrder::End) => Step::Leave("the guest has ended"),
            (MoveStage::Rebuilt, MoveOrder::Go) => Step::Serve,
            (MoveStage::Rebuilt, MoveOrder::Resume) => Step::Leave("the session stays in its old process"),
            (MoveStage::Serving, MoveOrder::Announce { attempt }) => Step::Announce { attempt },
            (MoveStage::Serving, MoveOrder::Capture { attempt, stop_ms, park }) => {
                Step::Capture { attempt, stop: Duration::from_millis(stop_ms), park }
            }
            (MoveStage::Serving, MoveOrder::Swap(SwapOrder::Evict { attempt, stop_ms, room, part })) => {
                Step::Evict { attempt, stop: Duration::from_millis(stop_ms), room, part }
            }
            (MoveStage::Evicted, MoveOrder::Swap(SwapOrder::Evict { attempt, part, .. })) => {
                Step::EvictMore { attempt, part }
            }
            (MoveStage::Evicted, MoveOrder::Swap(SwapOrder::Return { attempt, credit })) => {
                Step::Return { attempt, credit }
            }
            (_, MoveOrder::Swap(SwapOrder::Room { request, granted })) => Step::Room { request, granted },
            (_, MoveOrder::Swap(SwapOrder::Keep { most })) => Step::Keep { most },
            (MoveStage::Serving, MoveOrder::Swap(SwapOrder::Prepare { bytes })) => Step::Prepare { bytes },
            (MoveStage::Evicted, MoveOrder::Announce { attempt } | MoveOrder::Capture { attempt, .. }) => {
                Step::Refuse { attempt }
            }
            // Of a session that serves: its lanes wait for the answer to its own wish to move.
            (MoveStage::Serving | MoveStage::Captured, MoveOrder::Resume) => Step::Serve,
            _ => Step::Nothing,
        }
    }
}

/// The next order, if there is one, with its descriptors.
///
/// # Errors
/// For people: there will be none.
pub fn next_order(orders: &OwnedFd) -> Result<Option<(MoveOrder, Vec<OwnedFd>)>, String> {
    match aviary_control::receive::<MoveOrder>(orders.as_fd()) {
        Received::Message(order, descriptors) => Ok(Some((order, descriptors))),
        Received::Nothing => Ok(None),
        Received::Garbage(garbage) => Err(format!("the process around the module sent {garbage}")),
        Received::Closed => Err("the process around the module has given the session up".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stage_has_its_orders() {
        let (announce, capture) =
            (MoveOrder::Announce { attempt: 7 }, MoveOrder::Capture { attempt: 8, stop_ms: 200, park: Some(4096) });
        let orders = [announce, capture, MoveOrder::Resume, MoveOrder::Rebuild, MoveOrder::Go, MoveOrder::End];
        let steps = |stage: MoveStage| orders.map(|order| stage.after(order));
        use Step::{Leave, Nothing, Rebuild, Serve};
        let (ended, stays) = (Leave("the guest has ended"), Leave("the session stays in its old process"));
        assert_eq!(steps(MoveStage::Watching), [Nothing, Nothing, Nothing, Rebuild, Nothing, ended]);
        assert_eq!(steps(MoveStage::Rebuilt), [Nothing, Nothing, stays, Nothing, Serve, Nothing]);
        assert_eq!(steps(MoveStage::Captured), [Nothing, Nothing, Serve, Nothing, Nothing, Nothing]);
        let asked = Step::Capture { attempt: 8, stop: Duration::from_millis(200), park: Some(4096) };
        assert_eq!(steps(MoveStage::Serving), [Step::Announce { attempt: 7 }, asked, Serve, Nothing, Nothing, Nothing]);
    }

    /// A pause that was given up must not let a session go on whose memory is out.
    #[test]
    fn session_whose_memory_is_out_returns_or_takes_out_more() {
        let evict = MoveOrder::Swap(SwapOrder::Evict { attempt: 3, stop_ms: 100, room: 5, part: Some(6) });
        let back = MoveOrder::Swap(SwapOrder::Return { attempt: 4, credit: None });
        let step = Step::Evict { attempt: 3, stop: Duration::from_millis(100), room: 5, part: Some(6) };
        assert_eq!((MoveStage::Serving.after(evict), MoveStage::Serving.after(back)), (step, Step::Nothing));
        let out = |order| MoveStage::Evicted.after(order);
        let more = Step::EvictMore { attempt: 3, part: Some(6) };
        assert_eq!((out(back), out(evict)), (Step::Return { attempt: 4, credit: None }, more));
        assert_eq!(out(MoveOrder::Announce { attempt: 9 }), Step::Refuse { attempt: 9 });
        assert!(
            [MoveOrder::Resume, MoveOrder::Go, MoveOrder::Rebuild].map(out).iter().all(|step| *step == Step::Nothing)
        );
    }

    /// A guest that another process may have is neither heard nor hung up.
    #[test]
    fn guest_is_heard_and_ended_by_the_process_that_has_it() {
        let of = |stage: MoveStage| (stage.hears(), stage.has_guest());
        assert_eq!(of(MoveStage::Watching), (Hears::Signs, false));
        assert_eq!(of(MoveStage::Rebuilt), (Hears::Nothing, false));
        assert_eq!(of(MoveStage::Serving), (Hears::Guest, true));
        assert_eq!(of(MoveStage::Captured), (Hears::Nothing, true));
        assert_eq!(of(MoveStage::Evicted), (Hears::Guest, true));
    }
}
