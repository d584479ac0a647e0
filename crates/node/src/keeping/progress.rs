//! How far a node has come that ends and keeps its sessions. Plain data: [`super::leave`] takes the steps.

use super::image::ProgramImage;
use crate::attach::foreign::HeldState;
use crate::gateways::yielding::Yielding;
use crate::relocation::records::fixed_length;
use std::{
    collections::{BTreeMap, HashMap},
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

/// How long the node waits for all programs before it ends.
const KEEP_TIMEOUT: Duration = Duration::from_secs(60);
/// Between two looks at what gateways have said.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// A node's way to its end, with sessions that are to go on.
#[derive(Debug, Default)]
pub struct Keeping {
    /// By API server.
    pub programs: BTreeMap<u64, KeepingProgram>,
    /// By API server, once it has written its sessions down.
    pub captured: BTreeMap<u64, Captured>,
    pub begun: Option<Instant>,
    /// What gateways have said that have ended.
    pub last_words: HashMap<u32, Yielding>,
}

/// A program whose sessions shall go on.
#[derive(Debug)]
pub struct KeepingProgram {
    /// By session: its gateway.
    pub gateways: BTreeMap<u64, u32>,
    pub progress: Progress,
}

/// What is waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// The gateways.
    Holding,
    /// The API server. `attempt`: the last order to it; `why`: the last obstacle, for people.
    Capturing { attempt: Option<u64>, retry_at: Instant, why: String },
    /// The gateways again.
    Saving,
    /// The other programs.
    Kept,
    /// Nothing: it ends with the node, for this reason.
    Stays(String),
}

/// Everything that goes into a program's file.
#[derive(Debug)]
pub struct Captured {
    pub image: ProgramImage,
    /// By session: what its gateway writes, and its API server's state.
    pub parts: BTreeMap<u64, (OwnedFd, HeldState)>,
}

impl Keeping {
    /// Bytes of states that wait to be written.
    pub fn bytes(&self) -> u64 {
        let states = self.captured.values().flat_map(|captured| captured.parts.values());
        states.filter_map(|(_, state)| fixed_length(&state.file)).fold(0, u64::saturating_add)
    }

    /// When the node's loop has to look again.
    pub fn next_look(&self, now: Instant) -> Option<Instant> {
        self.begun.map(|_| now + LOOK_INTERVAL)
    }

    /// A gateway has ended.
    pub fn note_end(&mut self, pid: u32, said: &Yielding) {
        if self.begun.is_some() {
            self.last_words.insert(pid, said.clone());
        }
    }

    pub fn is_over(&self, now: Instant) -> bool {
        let done = |leaving: &KeepingProgram| matches!(leaving.progress, Progress::Kept | Progress::Stays(_));
        self.programs.values().all(done) || self.begun.is_some_and(|begun| now >= begun + KEEP_TIMEOUT)
    }
}
