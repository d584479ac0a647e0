//! A virtual accelerator: what one client sees of an accelerator, on a port or not.

use std::collections::{BTreeMap, VecDeque};

use aviary_card::RegisterKind;
use aviary_schedule::Share;

use crate::faults::{FaultCause, JobFault};
use crate::mappings::Mappings;
use crate::slices::SlicePlace;

/// Names a virtual accelerator for its client; never used twice.
pub type VirtualId = u64;

/// The reason why a virtual accelerator is in state error until it is reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// A request was refused or failed.
    Job,
    /// It did not save its state in time and was reset.
    Stuck,
    /// It did not answer, or its port could not be given its slice.
    Silent,
}

/// Where a virtual accelerator's job is. Transitions are in `switching.rs` and in [`crate::Mediator`]'s `start` and `reset`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// No job.
    Idle,
    /// A job waits for the port; `saved`: it ran before, and its state lies in the client's memory.
    Queued {
        saved: bool,
    },
    /// A job runs on the port.
    Running,
    /// The job ended.
    Done,
    Failed(Failure),
}

/// A virtual accelerator as its client sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    pub phase: Phase,
    pub port: usize,
    /// The port is this virtual accelerator's at the moment.
    pub scheduled: bool,
    /// Cycles in which its job ran.
    pub cycles: u64,
    pub mapped_bytes: u64,
    /// Jobs that were interrupted for another's turn.
    pub preemptions: u64,
    /// Requests that the monitor refused.
    pub refused: u64,
    /// MMIO accesses of a wrong size or place.
    pub bad_accesses: u64,
}

/// The tenant whose client has a virtual accelerator.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Owner {
    pub tenant: String,
    /// Its share of a port against other tenants', however many virtual accelerators it has there.
    pub share: Share,
}

/// A write that waits for the port: offset and value.
pub type QueuedWrite = (u32, u64);

/// The bits of a register that start a job when the last of them is set, and end it when one is cleared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartBits {
    pub register: u32,
    pub bits: u64,
}

#[derive(Debug)]
pub struct VirtualAccelerator {
    pub port: usize,
    pub place: SlicePlace,
    pub owner: Owner,
    pub phase: Phase,
    /// Guest virtual address of the slice, once the client has set it.
    pub base: Option<u64>,
    pub state_address: Option<u64>,
    pub mappings: Mappings,
    /// Kinds of the registers of its page, and their values as far as they may be cached.
    pub kinds: BTreeMap<u32, RegisterKind>,
    pub cache: BTreeMap<u32, u64>,
    /// A plain register by whose bits the client starts a job.
    pub starts: Option<StartBits>,
    pub queue: VecDeque<QueuedWrite>,
    /// It waits for the port to execute an access with an effect.
    pub wants_port: bool,
    pub interrupts: u8,
    pub cycles: u64,
    pub preemptions: u64,
    pub refused: u64,
    pub bad_accesses: u64,
    /// The first refused request since the job was started.
    pub refusal: Option<JobFault>,
    /// Jobs that were started.
    pub jobs: u64,
}

impl VirtualAccelerator {
    /// Why its job has failed, if it has; `now` in cycles of the card's clock.
    pub fn fault(&self, now: u64) -> Option<JobFault> {
        let Phase::Failed(failure) = self.phase else { return None };
        let without = |cause| JobFault { cause, request: None, at: now };
        Some(match failure {
            Failure::Silent => without(FaultCause::Silent),
            Failure::Stuck => without(FaultCause::Stuck),
            Failure::Job => self.refusal.unwrap_or(without(FaultCause::Accelerator)),
        })
    }

    /// Does it wait for the port?
    pub fn is_waiting(&self) -> bool {
        matches!(self.phase, Phase::Queued { .. }) || self.wants_port
    }

    /// Its status but for the cycles since the port was given to it.
    pub fn status(&self, scheduled: bool) -> Status {
        Status {
            phase: self.phase,
            port: self.port,
            scheduled,
            cycles: self.cycles,
            mapped_bytes: self.mappings.bytes(),
            preemptions: self.preemptions,
            refused: self.refused,
            bad_accesses: self.bad_accesses,
        }
    }
}
