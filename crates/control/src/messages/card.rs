//! The messages between the node and the process of an FPGA card, and the node's answer to a client that gets no card.
//!
//! Both ends are Aviary's own. A card's process reads what clients send; what it tells the node is bounded as that of an API
//! server, and a tenant's figures are for people only.

use crate::messages::form::Message;
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use serde::{Deserialize, Serialize};
use std::{ops::RangeInclusive, os::fd::BorrowedFd};

/// The resource that memory which is mapped for accelerators counts as.
pub const FPGA_MEMORY: &str = "fpga_memory";
/// The name of the API that sessions at cards have.
pub const FPGA_API: &str = "fpga";
/// Bytes of a reply on a card's link.
const REPLY_BYTES: usize = 64;

/// Node to card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ToCard {
    /// A client, with its socket and its tenant's page.
    Admit(Box<CardClient>),
    /// A tenant's share of ports from now on.
    Share { tenant: String, weight: u32, priority: i32 },
    /// The sessions end.
    End { sessions: Vec<u64> },
    /// The session's virtual accelerator goes to the port of this name, and its job goes on there.
    Move { session: u64, port: String },
    /// The disciplines of ports from now on: the first rule that fits a port's name; those that none fits have the usual one.
    Rules { rules: Vec<PortRule> },
}

/// A client whose tenant the node knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardClient {
    pub session: u64,
    pub tenant: String,
    pub weight: u32,
    pub priority: i32,
    /// Its place in the tenant's page.
    pub slot: u32,
    /// Names of ports that it may use, which may end with `*`; `None`: all.
    pub only_devices: Option<Vec<String>>,
}

/// The discipline of the ports of a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortRule {
    /// Card and port, such as `card0/ll0`; may end with `*`.
    pub name: String,
    pub scheduler: PortScheduler,
    /// Nanoseconds of a turn; `None`: as usual.
    pub slice_ns: Option<u64>,
}

/// Disciplines that never let a port stand idle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PortScheduler {
    Fair,
    RoundRobin,
    Slices,
    Priority,
}

/// Card to node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FromCard {
    /// It serves from now on.
    Ready {
        ports: Vec<String>,
    },
    /// The client has gone, or was sent away. Once for each session.
    Ended {
        session: u64,
    },
    /// The answer to a move; `refusal`: the reason why it is where it was.
    Moved {
        session: u64,
        refusal: Option<String>,
    },
    Client(ClientFigures),
    Port(PortFigures),
}

/// The figures of a client, when they have changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientFigures {
    pub session: u64,
    /// Empty: it has no virtual accelerator.
    pub port: String,
    /// Requests on its link.
    pub requests: u64,
    pub device_ns: u64,
    pub preemptions: u64,
    pub mapped_bytes: u64,
    /// Requests of its accelerator that the hardware monitor refused.
    pub refused: u64,
}

/// The figures of a port, when they have changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortFigures {
    pub port: String,
    pub tenants: Vec<PortTenant>,
}

/// A tenant that has or had virtual accelerators at a port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortTenant {
    pub tenant: String,
    pub weight: u32,
    pub priority: i32,
    pub used_ns: u64,
    pub sessions: usize,
    pub waiting: usize,
}

impl Message for ToCard {
    fn descriptors(&self) -> RangeInclusive<usize> {
        if matches!(self, Self::Admit(_)) { 2..=2 } else { 0..=0 }
    }
}

impl Message for FromCard {
    fn descriptors(&self) -> RangeInclusive<usize> {
        0..=0
    }
}

/// Answers the first request of a client, which may not have come yet, in the card's place: with the number of an error, which the
/// client's library explains. The client may have gone, and is not waited for.
pub fn refuse_card_client(socket: BorrowedFd<'_>, errno: Errno) {
    let mut reply = [0; REPLY_BYTES];
    reply[..4].copy_from_slice(&errno.raw_os_error().to_ne_bytes());
    let _ = send(socket, &reply, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
}
