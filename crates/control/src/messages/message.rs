//! The messages, in both directions, and how many descriptors come with each.

use crate::messages::assignment::{Assignment, SessionDescriptors};
use crate::messages::form::Message;
use crate::messages::moving::{MoveOrder, MoveReport, Preparation, STATE_DESCRIPTORS};
use crate::messages::offer::OfferName;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, ops::RangeInclusive, path::PathBuf};

/// Node to API server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ToServer {
    /// A session, with its [`crate::SessionDescriptors`].
    Assign(Box<Assignment>),
    /// A session may come here with [`ToServer::Adopt`]: answered by `Prepared` or `Unmovable`.
    Prepare(Preparation),
    /// A session that another process has served, with its [`crate::SessionDescriptors`], in which the socket of
    /// [`crate::CaptureDescriptors`] with the rest of the state takes the place of the guest's, and the state's file behind them.
    /// It stands until [`MoveOrder::Go`]; one that is parked is not even made before [`MoveOrder::Rebuild`].
    Adopt(Box<Assignment>),
    /// About a session of the API server that moves.
    Move { session: u64, order: MoveOrder },
    /// Another API server of the tenant fetches what this one may have offered: [`crate::give`] puts it into the socket that
    /// comes along.
    Fetch(Wanted),
    /// The answer to this request of the API server's own: with the socket in which [`crate::taken`] finds what is offered, if
    /// anybody was asked. To [`FromServer::Card`]: with a socket to the card, or an errno.
    Fetched { request: u64, note: u64 },
}

/// Node to zygote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ToZygote {
    /// Load the modules in these directories. `vendors`: as in [`Assignment`](crate::Assignment).
    Preload { modules: Vec<PathBuf>, vendors: BTreeMap<String, String> },
    /// Become an API server in a copy: with the control socket, the end of a pipe for its log lines, and that of a pipe for
    /// the process 1 of its PID namespace, if it has one of its own.
    Copy,
}

/// API server or zygote to node. None comes with descriptors: the node takes none of an API server's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FromServer {
    /// The session's guest has said what it wants: from here on its library, not the guest, decides how long it takes to start.
    Greeted { session: u64 },
    /// The session's guest is admitted. Once for each session.
    Started {
        session: u64,
        api: String,
        /// Of the specification that the guest library was made from.
        spec_hash: u64,
    },
    /// The session is over, or was refused. Once for each session.
    Ended { session: u64, reason: String },
    /// The session wants what another one of its tenant offers.
    Fetch { session: u64, request: u64, name: OfferName },
    /// The session wants a connection to a card of the node: answered by `ToServer::Fetched`, whose number is an errno.
    Card { session: u64, request: u64 },
    /// About a session that moves.
    Move { session: u64, report: MoveReport },
    /// Process 1 of the PID namespace of an API server to be: a child of the node, which ends with the API server.
    Init { pid: u32 },
    /// A copy of the zygote.
    Born { pid: u32 },
    /// The zygote has loaded everything.
    Ready,
    /// The zygote cannot be copied, or this copy of it cannot live.
    Unfit { reason: String },
}

/// A request to fetch an offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// A session of another API server.
    pub asker: u64,
    pub request: u64,
    pub name: OfferName,
}

fn session_descriptors(assignment: &Assignment) -> usize {
    SessionDescriptors::ALWAYS + if assignment.schedulable { 2 } else { 0 }
}

impl Message for ToServer {
    fn descriptors(&self) -> RangeInclusive<usize> {
        match self {
            Self::Assign(assignment) => {
                let count = session_descriptors(assignment);
                count..=count
            }
            Self::Adopt(assignment) => {
                let count = session_descriptors(assignment) + STATE_DESCRIPTORS;
                count..=count
            }
            Self::Move { order, .. } => order.descriptors(),
            Self::Fetch(_) => 1..=1,
            Self::Prepare(_) | Self::Fetched { .. } => 0..=1,
        }
    }
}

impl Message for ToZygote {
    fn descriptors(&self) -> RangeInclusive<usize> {
        match self {
            Self::Preload { .. } => 0..=0,
            Self::Copy => 3..=3,
        }
    }
}

impl Message for FromServer {
    fn descriptors(&self) -> RangeInclusive<usize> {
        0..=0
    }
}

/// Longest name of an API, in bytes.
const API_NAME: usize = 64;

/// True if a text can be the name of an API: it becomes a part of file names and of lines in logs.
pub fn is_api_name(text: &str) -> bool {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == '-';
    (1..=API_NAME).contains(&text.len()) && text.chars().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_apis_are_plain_and_short() {
        assert!(is_api_name("opencl") && is_api_name("a_b-1") && is_api_name(&"x".repeat(API_NAME)));
        let long = "x".repeat(API_NAME + 1);
        assert!(["", "a/b", "..", "a\n", "ä", long.as_str()].iter().all(|name| !is_api_name(name)));
    }
}
