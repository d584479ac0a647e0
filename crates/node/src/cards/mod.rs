//! FPGA cards: for each a socket at which programs connect, and a process that serves the clients that the node hands it.
//!
//! The node looks at the kernel's credentials of a connection and never at what a client sends.

mod clients;
mod moving;
mod process;
mod request;
mod rules;

pub use request::{CardMoveReport, CardMoveRequest};

pub(crate) use request::CardMove;

use crate::attach::guest::Guest;
use crate::attach::listener::Listener;
use crate::error::NodeError;
use crate::helpers::HelperProcess;
use crate::scheduling::Rules;
use crate::tenants::accounts::AssignedSlot;
use aviary_control::{Aside, ClientFigures, Foreign, PortFigures};
use rustix::net::SocketType;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    ffi::OsString,
    path::PathBuf,
    time::{Instant, SystemTime},
};

/// A card that programs may use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardSettings {
    pub name: String,
    /// File or name of the image.
    pub image: String,
    /// Where programs connect.
    pub socket: PathBuf,
    /// Permissions of the socket.
    pub mode: u32,
}

/// The command line of a card's process. Its standard input is its end of a socket to the node.
#[derive(Debug, Clone)]
pub struct CardCommand {
    pub program: PathBuf,
    pub arguments: Vec<OsString>,
}

impl CardCommand {
    /// This executable, as `aviary fpga-card`.
    pub fn own() -> Self {
        Self { program: "/proc/self/exe".into(), arguments: vec!["fpga-card".into()] }
    }
}

/// A card, for people.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CardReport {
    pub card: String,
    pub image: String,
    pub socket: String,
    /// `starting`, `serving` or `failed`.
    pub state: String,
    /// Process id, or 0.
    pub process: u32,
    pub ports: Vec<String>,
}

#[derive(Debug)]
pub(crate) struct CardProcess {
    pub helper: HelperProcess,
    pub control: Foreign,
}

#[derive(Debug)]
pub(crate) enum CardState {
    /// Its process is started at that time.
    Due(Instant),
    /// It loads the image; programs that connect wait.
    Starting(CardProcess),
    Serving {
        process: CardProcess,
        ports: BTreeMap<String, PortFigures>,
    },
    /// Its process ended before it served: not started again, and programs are told.
    Failed,
}

#[derive(Debug)]
pub(crate) struct Card {
    pub settings: CardSettings,
    pub listener: Listener,
    pub state: CardState,
}

impl Card {
    fn process(&self) -> Option<&CardProcess> {
        match &self.state {
            CardState::Starting(process) | CardState::Serving { process, .. } => Some(process),
            CardState::Due(_) | CardState::Failed => None,
        }
    }
}

/// A client that the node has handed to a card.
#[derive(Debug)]
pub(crate) struct CardSession {
    /// The card's place.
    pub card: u64,
    pub guest: Guest,
    pub whose: Whose,
    pub tenant: String,
    pub since: SystemTime,
    pub seat: AssignedSlot,
    pub figures: Option<ClientFigures>,
    /// Its last move to another port.
    pub moving: Option<CardMove>,
}

/// The side of a node from which a client of a card comes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Whose {
    /// A program's, which has connected to the card's socket.
    Program,
    /// A part of this session of an API server, where it is counted.
    Session(u64),
    /// The device of the VM of this name.
    Vm(String),
}

#[derive(Debug, Default)]
pub struct Cards {
    /// By place, which is never given to another: an event may still be under way when a card is struck off.
    pub(crate) list: BTreeMap<u64, Card>,
    pub(crate) last: u64,
    /// By number; numbers are those of all sessions of the node.
    pub(crate) sessions: BTreeMap<u64, CardSession>,
    /// Sessions of API servers, and their requests for a connection, that wait until the first card has started.
    waiting: Vec<(u64, u64)>,
}

/// Requests of one session that wait, and of all: an API server that asks for more is answered at once.
const MOST_WAITING_OF_ONE: usize = 4;
const MOST_WAITING: usize = 1024;

impl Cards {
    /// `notes` gets the schedulers that cards do not have.
    pub fn bind(
        settings: &[CardSettings],
        rules: &Rules,
        notes: &mut Vec<String>,
        aside: &Aside,
    ) -> Result<Self, NodeError> {
        let mut cards = Self::default();
        rules::port_rules(rules, notes);
        settings.iter().try_for_each(|card| cards.add(card, aside))?;
        if settings.is_empty() {
            notes.clear();
        }
        Ok(cards)
    }

    fn add(&mut self, settings: &CardSettings, aside: &Aside) -> Result<(), NodeError> {
        let mut listener = Listener::bind_type(&settings.socket, settings.mode, SocketType::SEQPACKET)?;
        listener.guard(aside);
        self.last += 1;
        let card = Card { settings: settings.clone(), listener, state: CardState::Due(Instant::now()) };
        self.list.insert(self.last, card);
        Ok(())
    }

    pub fn next_start(&self) -> Option<Instant> {
        self.list.values().filter_map(|card| if let CardState::Due(at) = card.state { Some(at) } else { None }).min()
    }

    /// Clients of all cards.
    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// The place of the card of this name, if it serves.
    pub fn serving(&self, name: &str) -> Option<u64> {
        let serves = |card: &Card| card.settings.name == name && matches!(card.state, CardState::Serving { .. });
        self.list.iter().find(|(_, card)| serves(card)).map(|(place, _)| *place)
    }

    /// The card that API servers reach has not served yet, or is started again.
    pub fn first_starts(&self) -> bool {
        let first = self.list.values().next();
        first.is_some_and(|card| matches!(card.state, CardState::Due(_) | CardState::Starting(_)))
    }

    /// Keeps a request until the card has started. False: there are too many.
    pub fn hold(&mut self, session: u64, request: u64) -> bool {
        let of_one = self.waiting.iter().filter(|(other, _)| *other == session).count();
        let fits = of_one < MOST_WAITING_OF_ONE && self.waiting.len() < MOST_WAITING;
        if fits {
            self.waiting.push((session, request));
        }
        fits
    }

    pub fn are_waited_for(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// All requests that wait.
    pub fn let_go(&mut self) -> Vec<(u64, u64)> {
        std::mem::take(&mut self.waiting)
    }

    /// Sessions that are no part of another one.
    fn on_their_own(&self) -> impl Iterator<Item = &CardSession> {
        self.sessions.values().filter(|session| !matches!(session.whose, Whose::Session(_)))
    }

    pub fn sessions_of_tenant(&self, name: &str) -> usize {
        self.on_their_own().filter(|session| session.tenant == name).count()
    }

    /// Those of VMs are not their VMMs' users'.
    pub fn sessions_of_user(&self, uid: u32) -> usize {
        let of_user = |session: &&CardSession| session.whose == Whose::Program && session.guest.uid == uid;
        self.sessions.values().filter(of_user).count()
    }
}
