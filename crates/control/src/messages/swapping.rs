//! Messages about the device memory of a session that leaves for the host and returns, while the session stays in its process.
//!
//! They travel as those about moves do. Everything that an API server says here is about its own session only: the node holds
//! it against what it has granted to that session.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Node to the process that serves the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SwapOrder {
    /// Stop all lanes, drain the devices, and take the memory behind the session's objects to the host: answered by `Evicted`
    /// or `Stays`. From then on no call is begun, until `Return`. A session of which a part is out takes out more.
    Evict {
        /// Number of the attempt, which the answer repeats. The node counts from 1.
        attempt: u64,
        /// Milliseconds within which the session must stand and its devices be done.
        stop_ms: u64,
        /// Bytes of host memory that there are for it, with those that it keeps.
        room: u64,
        /// Bytes of shared devices that must leave at least; `None`: all. The rest may stay there.
        #[serde(default)]
        part: Option<u64>,
    },
    /// Bring the memory back, and go on: answered by `Returned` or `Stays`.
    Return {
        /// As in `Evict`.
        attempt: u64,
        /// Bytes of shared devices that may be there again by now; `None`: all that had left.
        #[serde(default)]
        credit: Option<u64>,
    },
    /// More of what had left may be there again: so many bytes in all.
    Credit {
        /// That of `Return`.
        attempt: u64,
        bytes: u64,
    },
    /// The answer to `SwapReport::Room`.
    Room { request: u64, granted: bool },
    /// Keep so many bytes of host memory for the next `Evict` at most: answered by `Kept`. Only who keeps some is told.
    Keep { most: u64 },
    /// Make host memory for the next `Evict` while the session runs, until it keeps so many bytes: answered by `Kept`, with fewer if
    /// there is no memory or they are not needed.
    Prepare { bytes: u64 },
}

/// Module to the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SwapReport {
    /// Once, as the session begins: there are objects in its API whose memory can leave, and the module knows the orders.
    Able,
    /// Some of the memory has left, and does not return before `Return`: others may have its place.
    Leaving {
        /// That of the order.
        attempt: u64,
        /// By device: what has left up to now, since that order.
        freed: BTreeMap<String, u64>,
    },
    /// The memory has left; the session begins no call.
    Evicted {
        /// That of the order.
        attempt: u64,
        /// Of host memory, for the content.
        bytes: u64,
        figures: SwapFigures,
        /// By device: what has left it since that order, as it was charged.
        #[serde(default)]
        freed: BTreeMap<String, u64>,
        /// Bytes of shared devices that are still there and can leave, too; `None`: a module that was built before this
        /// was known does not say.
        #[serde(default)]
        rest: Option<u64>,
    },
    /// The memory is where it was before the order.
    Stays {
        /// As in `Evicted`.
        attempt: u64,
        /// For people: what is in the way.
        reason: String,
        /// Of a session whose memory did not leave: bytes of host memory that it keeps for the next time.
        #[serde(default)]
        kept: u64,
    },
    /// The memory is back, and the session goes on.
    Returned {
        /// As in `Evicted`.
        attempt: u64,
        /// Time that it took, in microseconds.
        return_us: u64,
        /// As in `Stays`.
        #[serde(default)]
        kept: u64,
    },
    /// So much of the host memory is left that the session has kept.
    Kept { bytes: u64 },
    /// The program has made a call, which waits for the memory.
    Called,
    /// The session needs so much more of a shared device: answered by `SwapOrder::Room`. One at a time.
    Room { request: u64, device: String, bytes: u64 },
    /// An allocation that was granted has found no memory: so much of what others have on the device must leave. Answered as
    /// `Room`, and one at a time with it.
    Need { request: u64, device: String, bytes: u64 },
    /// The session needs so much less of what it was granted.
    Surplus { device: String, bytes: u64 },
}

/// Figures of an eviction. An API server may lie; they are shown to people only.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwapFigures {
    /// While the session still ran, until the host's memory was there, in microseconds.
    #[serde(default)]
    pub reserve_us: u64,
    /// Until all lanes stood, in microseconds.
    pub stop_us: u64,
    /// Until the devices had done everything, in microseconds.
    pub drain_us: u64,
    /// Until the memory had left, in microseconds.
    pub copy_us: u64,
    /// Objects whose memory has left.
    pub objects: u64,
    /// Bytes of it that did not have to be copied, as the host still had them.
    #[serde(default)]
    pub unchanged: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Modules stay when the node is built anew, as long as their numbers of `docs/compatibility.md` are the node's.
    #[test]
    fn module_that_does_not_say_what_can_still_leave_does_not_say_nothing_can() {
        let evicted = |rest| SwapReport::Evicted {
            attempt: 7,
            bytes: 9,
            figures: SwapFigures::default(),
            freed: BTreeMap::new(),
            rest,
        };
        for rest in [None, Some(0), Some(5)] {
            let mut sent = serde_json::to_value(evicted(rest)).unwrap();
            if rest.is_none() {
                sent["evicted"].as_object_mut().unwrap().remove("rest");
            }
            assert_eq!(serde_json::from_value::<SwapReport>(sent).unwrap(), evicted(rest));
        }
    }
}
