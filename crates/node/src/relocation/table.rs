//! What can happen to sessions that leave their API server: all purposes, stages and events, and what the node does after each.
//! Plain data, which [`Relocation`](super::machine::Relocation) reads.
//!
//! Before the commit the sessions belong to the *source*, the API server that they leave; after it to the *target*, which is
//! then their source. The commit is one step under the node's lock. Parked sessions are `Kept`: their state is in the node's
//! memory, and their source makes nothing of it but watches for the calls of their program.
//!
//! API servers cause events by their reports, and may lie: a report that the table does not have ends its sender. All other
//! events that the table does not have change nothing.

use serde::{Deserialize, Serialize};

/// What a relocation is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The sessions continue in the target.
    Move,
    /// The target keeps them until their program calls.
    Park,
    /// Captured and continued where they are, to see if they could move.
    Check,
    /// Captured for the next node: the node ends, and nothing watches for their calls (`aviary serve --keep`).
    Keep,
    /// Of sessions that are parked already: the target takes the place of the source that watches.
    Upgrade,
}

/// What a relocation waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The source reports what the sessions need. They run.
    Announcing,
    /// The target loads it. They run, unless they are parked.
    Preparing,
    /// The source pauses the sessions and writes their state.
    Capturing,
    /// The target rebuilds them only to see if that works.
    Rehearsing,
    /// The target begins to watch for calls.
    Settling,
    /// A call, or an operator.
    Kept,
    /// Wanted: room in the tenant's limits or on the device, until the next look.
    Waiting,
    /// The source has failed: another API server begins to watch.
    Replacing,
    /// The sessions are rebuilt: by the target, or by the source of parked ones.
    Rebuilding,
    /// Nothing: the relocation is over.
    Committed,
}

/// An event, without what it carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    // Reports of API servers, one for each session.
    Announced,
    Prepared,
    Captured,
    Settled,
    Rebuilt,
    /// The source, or the node itself, has an obstacle.
    Refused,
    /// An API server could not rebuild a session.
    Failed,
    /// It did, and the session differs from what its program was told.
    Differs,
    /// The program has called, or an operator asks.
    Wanted,
    /// There is room for what the sessions held, and it is charged.
    Charged,
    NoRoom,
    /// The commit is done.
    Committed,
    SourceGone,
    TargetGone,
    /// The program has ended, an operator has ended its sessions, or their API server was killed for a lie.
    Ended,
    /// The stage's time is over.
    Due,
}

/// A step of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Order the source to report what the sessions need.
    Announce,
    /// Order the target to load it.
    Prepare,
    /// Order the source to pause the sessions and write their state.
    Capture,
    /// Give the target the states.
    HandOver,
    /// Order the target to rebuild the session that has just settled.
    Rehearse,
    /// End the target, and reserve another one.
    ReplaceTarget,
    /// Make the sessions the target's, then report `Committed`, or `Refused` if that is not possible.
    Commit,
    /// Let captured sessions continue in the source: nothing else was asked.
    EndCheck,
    /// Take the states for the next node. The sessions continue there only.
    Keep,
    /// End the target. The sessions continue in the source, if that is still there, or are as parked as before.
    GiveUp,
    /// Charge what parked sessions held, then report `Charged` or `NoRoom`.
    Charge,
    /// Order the source to rebuild parked sessions.
    Rebuild,
    /// Let rebuilt sessions continue.
    Continue,
    /// End the source, and have another API server watch.
    ReplaceSource,
    /// The sessions cannot continue: end the source.
    Lose,
    /// Drop the states: nobody needs them.
    Forget,
}

/// A condition of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guard {
    Always,
    /// It is the last of the sessions. Before that the stage stays, and a second report of one session is a lie.
    Last,
    /// As that, and a session must be rehearsed.
    LastToRehearse,
    /// As `Last`, and nobody wants the sessions.
    LastUnwanted,
    /// As `Last`, and the next attempt has to wait.
    LastTooEarly,
    Wanted,
    /// The source has ended: there is no way back.
    NoWayBack,
    /// Wanted for too long, not counting the time without room in their tenant's limits, or failed too often.
    Hopeless,
}

/// Places at which a relocation can be halted, for tests: between an event and the effects of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Halt {
    /// The source has reported what the sessions need; the target has received nothing.
    Announced,
    /// The target has its modules; nothing was paused yet.
    Prepared,
    /// The state is written; the target has nothing of it.
    Captured,
    /// The target has rebuilt the sessions, equal; another one takes its place.
    Rehearsed,
    /// The sessions are paused in both API servers; they are the source's.
    Rebuilt,
}

/// After one of these events, in one of these stages of one of these purposes.
#[derive(Debug)]
pub struct Row {
    pub purposes: &'static [Purpose],
    pub stages: &'static [Stage],
    pub events: &'static [Kind],
    pub guard: Guard,
    /// `None`: the stage stays, and its deadline.
    pub to: Option<Stage>,
    pub effects: &'static [Effect],
    pub halt: Option<Halt>,
}

impl Purpose {
    /// Its first stage, and what the node does then.
    pub const fn begins(self) -> (Stage, Effect) {
        match self {
            Self::Move => (Stage::Announcing, Effect::Announce),
            Self::Park | Self::Upgrade => (Stage::Preparing, Effect::Prepare),
            Self::Check | Self::Keep => (Stage::Capturing, Effect::Capture),
        }
    }
}

const fn row(
    purposes: &'static [Purpose],
    stages: &'static [Stage],
    events: &'static [Kind],
    guard: Guard,
    to: Option<Stage>,
    effects: &'static [Effect],
) -> Row {
    Row { purposes, stages, events, guard, to, effects, halt: None }
}

impl Row {
    const fn at(mut self, halt: Halt) -> Self {
        self.halt = Some(halt);
        self
    }
}

/// The rows in order: the first one whose guard holds is taken.
pub const ROWS: &[Row] = {
    use Effect::{
        Capture, Charge, Commit, Continue, EndCheck, Forget, GiveUp, HandOver, Lose, Prepare, Rebuild, Rehearse,
        ReplaceSource, ReplaceTarget,
    };
    use Guard::{Always, Hopeless, Last, LastToRehearse, LastTooEarly, LastUnwanted, NoWayBack, Wanted};
    use Kind as On;
    use Purpose::{Check, Keep, Move, Park, Upgrade};
    use Stage::{
        Announcing, Capturing, Committed, Kept, Preparing, Rebuilding, Rehearsing, Replacing, Settling, Waiting,
    };
    const OBSTACLES: &[Kind] =
        &[On::Refused, On::Failed, On::Differs, On::SourceGone, On::TargetGone, On::Ended, On::Due];
    const FAILURES: &[Kind] = &[On::Failed, On::Differs, On::SourceGone];
    &[
        // Towards the commit.
        row(&[Move], &[Announcing], &[On::Announced], Last, Some(Preparing), &[Prepare]).at(Halt::Announced),
        row(&[Move, Park], &[Preparing], &[On::Prepared], Last, Some(Capturing), &[Capture]).at(Halt::Prepared),
        row(&[Upgrade], &[Preparing], &[On::Prepared], Last, Some(Settling), &[HandOver]).at(Halt::Prepared),
        row(&[Check], &[Capturing], &[On::Captured], Last, Some(Committed), &[EndCheck]).at(Halt::Captured),
        row(&[Keep], &[Capturing], &[On::Captured], Last, Some(Committed), &[Effect::Keep]).at(Halt::Captured),
        row(&[Move], &[Capturing], &[On::Captured], Last, Some(Rebuilding), &[HandOver]).at(Halt::Captured),
        row(&[Park], &[Capturing], &[On::Captured], LastToRehearse, Some(Rehearsing), &[HandOver]).at(Halt::Captured),
        row(&[Park], &[Capturing], &[On::Captured], Last, Some(Settling), &[HandOver]).at(Halt::Captured),
        row(&[Park], &[Rehearsing], &[On::Settled], Always, None, &[Rehearse]),
        row(&[Park], &[Rehearsing], &[On::Rebuilt], Last, Some(Settling), &[ReplaceTarget, HandOver])
            .at(Halt::Rehearsed),
        // Without the source the state is all there is of the sessions: another process may agree.
        row(
            &[Park],
            &[Rehearsing],
            &[On::Failed, On::Differs, On::TargetGone, On::Due],
            NoWayBack,
            Some(Settling),
            &[ReplaceTarget, HandOver],
        )
        .at(Halt::Rehearsed),
        row(&[Park, Upgrade], &[Settling], &[On::Settled], Last, None, &[Commit]).at(Halt::Rebuilt),
        row(&[Move], &[Rebuilding], &[On::Rebuilt], Last, None, &[Commit]).at(Halt::Rebuilt),
        row(&[Move], &[Rebuilding], &[On::Committed], Always, Some(Committed), &[]),
        row(&[Park, Upgrade], &[Settling], &[On::Committed], Wanted, Some(Kept), &[Charge]),
        row(&[Park, Upgrade], &[Settling], &[On::Committed], Always, Some(Kept), &[]),
        // Given up. The state is complete once it is captured: from then on the source may end.
        row(&[Move], &[Rebuilding], &[On::SourceGone], Always, None, &[]),
        row(&[Park], &[Rehearsing, Settling], &[On::SourceGone], Always, None, &[]),
        row(&[Upgrade], &[Settling], &[On::SourceGone], Always, None, &[]),
        row(&[Move], &[Announcing, Preparing, Capturing, Rebuilding], OBSTACLES, Always, None, &[GiveUp]),
        row(&[Park], &[Preparing, Capturing, Rehearsing, Settling], OBSTACLES, Always, None, &[GiveUp]),
        row(&[Check, Keep], &[Capturing], &[On::Refused, On::SourceGone, On::Ended, On::Due], Always, None, &[GiveUp]),
        // A target that does not know parks.
        row(&[Park], &[Settling], &[On::Rebuilt], Always, None, &[GiveUp]),
        row(&[Upgrade], &[Settling], &[On::Rebuilt], Always, Some(Kept), &[GiveUp]),
        row(&[Upgrade], &[Preparing, Settling], &[On::Ended], Always, None, &[GiveUp]),
        row(&[Upgrade], &[Preparing, Settling], OBSTACLES, Always, Some(Kept), &[GiveUp]),
        // Parked, and back.
        row(&[Park], &[Kept], &[On::Wanted], Always, None, &[Charge]),
        row(&[Park], &[Waiting], &[On::Due], Always, None, &[Charge]),
        row(&[Park], &[Kept, Waiting], &[On::Charged], Always, Some(Rebuilding), &[Rebuild]),
        row(&[Park], &[Kept, Waiting], &[On::NoRoom], Always, Some(Waiting), &[]),
        row(&[Park], &[Rebuilding], &[On::Rebuilt], Last, Some(Committed), &[Continue]),
        row(&[Park], &[Kept], &[On::SourceGone], Always, Some(Replacing), &[ReplaceSource]),
        row(&[Park], &[Kept, Waiting, Replacing, Rebuilding], FAILURES, Hopeless, None, &[Lose]),
        row(&[Park], &[Kept, Waiting, Replacing, Rebuilding], FAILURES, Always, Some(Replacing), &[ReplaceSource]),
        row(&[Park], &[Replacing, Rebuilding], &[On::Due], Hopeless, None, &[Lose]),
        row(&[Park], &[Replacing, Rebuilding], &[On::Due], Always, Some(Replacing), &[ReplaceSource]),
        row(&[Park], &[Replacing], &[On::Settled], LastUnwanted, Some(Kept), &[]),
        row(&[Park], &[Replacing], &[On::Settled], LastTooEarly, Some(Waiting), &[]),
        row(&[Park], &[Replacing], &[On::Settled], Last, Some(Kept), &[Charge]),
        row(&[Park], &[Kept, Waiting, Replacing, Rebuilding], &[On::Ended], Always, None, &[Forget]),
    ]
};
