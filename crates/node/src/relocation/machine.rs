//! One relocation: the sessions of one API server on their way to another one, into the node's memory, or back.
//!
//! Plain bookkeeping over the [table](super::table) of allowed events: no I/O, and time is an argument. The node tells each
//! event and carries out the [`Effects`] of it. Nothing that an API server reports takes a step that is not its own: a
//! report counts once for each session, in its stage; another one is [`Impossible`].

use super::table::{Effect, Guard, Halt, Kind, Purpose, ROWS, Row, Stage};
use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

/// How long the source may take to report what the sessions need, and the target to load it.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a capture may take beyond the time in which the sessions must be paused.
const CAPTURE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long an API server may take to rebuild the sessions; programs may have to be compiled again.
const REBUILD_TIMEOUT: Duration = Duration::from_secs(120);
/// How long another API server may take until it watches for the calls of parked sessions.
const REPLACE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long API servers may fail with parked sessions that are wanted. The time in which their tenant's limits or their
/// devices have no room does not count.
pub const RETURN_TIMEOUT: Duration = Duration::from_secs(60);
/// Between two looks for room.
const ROOM_INTERVAL: Duration = Duration::from_millis(100);
/// After a failure on the way back. The next attempt costs a process.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// It doubles with each refusal by the device, so many times.
const MOST_DOUBLINGS: u32 = 3;
/// API servers whose rebuilt sessions differ from what their programs were told, after which those are lost.
const MOST_DIFFERENT: u32 = 5;
/// API servers in a row that fail with parked sessions that nobody wants, after which those are lost.
const MOST_FAILURES: u32 = 5;

const LATE_RETURN: &str = "the API server that was to continue it did not do so in time";

/// Why a relocation was given up, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub reason: String,
    /// Trying again is of no use.
    pub lasting: bool,
}

impl Refusal {
    pub fn not_now(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), lasting: false }
    }

    pub fn lasting(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), lasting: true }
    }
}

/// An event of a relocation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub kind: Kind,
    /// Of a report.
    session: Option<u64>,
    /// Of a captured session: its program was told something that may differ in another process.
    rehearse: bool,
    /// For people.
    why: Option<Refusal>,
}

impl Event {
    pub fn new(kind: Kind) -> Self {
        Self { kind, session: None, rehearse: false, why: None }
    }

    /// An API server's report about a session.
    pub fn report(kind: Kind, session: u64) -> Self {
        Self { session: Some(session), ..Self::new(kind) }
    }

    pub fn captured(session: u64, rehearse: bool) -> Self {
        Self { rehearse, ..Self::report(Kind::Captured, session) }
    }

    pub fn because(kind: Kind, why: Refusal) -> Self {
        Self { why: Some(why), ..Self::new(kind) }
    }
}

/// What the node does after an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Effects {
    pub list: &'static [Effect],
    /// Of the report that caused them.
    pub session: Option<u64>,
    /// Of [`Effect::GiveUp`] and [`Effect::Lose`].
    pub why: Refusal,
    /// Where they can be halted.
    pub halt: Option<Halt>,
}

impl Effects {
    pub fn none() -> Self {
        Self { list: &[], session: None, why: Refusal::not_now(""), halt: None }
    }
}

/// The event cannot be: the API server that caused it lies.
#[derive(Debug, PartialEq, Eq)]
pub struct Impossible;

#[derive(Debug)]
pub struct Relocation {
    purpose: Purpose,
    stage: Stage,
    sessions: BTreeSet<u64>,
    /// Sessions without a report in this stage.
    waiting: BTreeSet<u64>,
    /// When [`Kind::Due`] is.
    deadline: Option<Instant>,
    /// Time in which the sessions must be paused.
    stop: Duration,
    source_gone: bool,
    /// A session must be rehearsed.
    rehearses: bool,
    /// Since when parked sessions are wanted.
    wanted: Option<Instant>,
    /// Since when they wait for room in their tenant's limits.
    waits_for_room: Option<Instant>,
    /// Of the next attempt to bring them back.
    not_before: Option<Instant>,
    /// API servers that failed with parked sessions, and those of them in which the sessions differed.
    failures: u32,
    different: u32,
    /// How often the device had no room for them.
    refusals: u32,
    /// The last obstacle on the way back.
    why: Option<String>,
}

impl Relocation {
    /// With the first effect. `stop`: time in which the sessions must be paused.
    pub fn begin(purpose: Purpose, sessions: BTreeSet<u64>, stop: Duration, now: Instant) -> (Self, Effect) {
        let mut begun = Self { sessions, stop, ..Self::kept(BTreeSet::new()) };
        let effect = begun.begin_again(purpose, now);
        (begun, effect)
    }

    /// Of sessions that are parked.
    pub fn kept(sessions: BTreeSet<u64>) -> Self {
        Self {
            purpose: Purpose::Park,
            stage: Stage::Kept,
            sessions,
            waiting: BTreeSet::new(),
            deadline: None,
            stop: Duration::ZERO,
            source_gone: false,
            rehearses: false,
            wanted: None,
            waits_for_room: None,
            not_before: None,
            failures: 0,
            different: 0,
            refusals: 0,
            why: None,
        }
    }

    /// Of sessions whose states an earlier node has left: their API server is about to watch for calls.
    pub fn coming(sessions: BTreeSet<u64>, now: Instant) -> Self {
        let mut coming = Self::kept(sessions);
        coming.enter(Stage::Replacing, now);
        coming
    }

    /// Of sessions that are parked and not wanted: another API server is to watch.
    pub fn upgrade(&mut self, now: Instant) -> Effect {
        self.begin_again(Purpose::Upgrade, now)
    }

    fn begin_again(&mut self, purpose: Purpose, now: Instant) -> Effect {
        let (stage, effect) = purpose.begins();
        self.purpose = purpose;
        self.enter(stage, now);
        effect
    }

    pub fn purpose(&self) -> Purpose {
        self.purpose
    }

    pub fn stage(&self) -> Stage {
        self.stage
    }

    pub fn sessions(&self) -> &BTreeSet<u64> {
        &self.sessions
    }

    pub fn stop(&self) -> Duration {
        self.stop
    }

    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// True if the node has the states, and the source watches for calls.
    pub fn is_parked(&self) -> bool {
        match self.purpose {
            Purpose::Upgrade => true,
            Purpose::Park => matches!(self.stage, Stage::Kept | Stage::Waiting | Stage::Replacing | Stage::Rebuilding),
            Purpose::Move | Purpose::Check | Purpose::Keep => false,
        }
    }

    /// True of parked sessions while nothing is under way and nothing was asked for.
    pub fn is_quiet(&self) -> bool {
        self.stage == Stage::Kept && self.wanted.is_none()
    }

    pub fn is_wanted(&self) -> bool {
        self.wanted.is_some()
    }

    /// `None`: nothing keeps them but what they need themselves.
    pub fn waits_for_room_since(&self) -> Option<Instant> {
        self.waits_for_room
    }

    /// True once if the source has ended: it is reaped when this is over.
    pub fn take_source_gone(&mut self) -> bool {
        std::mem::take(&mut self.source_gone)
    }

    /// For people: what a relocation that is under way does.
    pub fn told(&self) -> &'static str {
        told_and_time(self.stage).0
    }

    /// For people: what parked sessions wait for.
    pub fn told_of_parked(&self) -> String {
        match (self.purpose, self.stage, &self.why) {
            (Purpose::Park, Stage::Waiting, Some(why)) => format!("parked, cannot resume yet: {why}"),
            (Purpose::Park, Stage::Waiting, None) => "parked, cannot resume yet".into(),
            (Purpose::Park, Stage::Rebuilding, _) => "unparking".into(),
            _ => "parked".into(),
        }
    }

    /// # Errors
    /// The API server that caused the event lies.
    pub fn after(&mut self, event: &Event, now: Instant) -> Result<Effects, Impossible> {
        let kind = event.kind;
        if kind == Kind::Due && self.deadline.is_none_or(|at| now < at) {
            return Ok(Effects::none());
        }
        self.note(event, now);
        let (purpose, stage) = (self.purpose, self.stage);
        let own =
            |row: &&Row| row.purposes.contains(&purpose) && row.stages.contains(&stage) && row.events.contains(&kind);
        let mut rows = ROWS.iter().filter(own).peekable();
        let counts = rows.peek().is_some_and(|row| row.guard.waits_for_all());
        if let Some(session) = event.session.filter(|_| counts) {
            if !self.waiting.remove(&session) {
                return Err(Impossible);
            }
            if !self.waiting.is_empty() {
                return Ok(Effects::none());
            }
        }
        let Some(row) = rows.find(|row| self.holds(row.guard, now)) else {
            return if event.session.is_some() { Err(Impossible) } else { Ok(Effects::none()) };
        };
        let (list, session, halt) = (row.effects, event.session, row.halt);
        let why = self.reason(event);
        if let Some(to) = row.to {
            self.enter(to, now);
        }
        Ok(Effects { list, session, why, halt })
    }

    /// Everything about an event that is remembered in whatever stage.
    fn note(&mut self, event: &Event, now: Instant) {
        let only_watches = self.is_parked() && self.purpose == Purpose::Park;
        self.rehearses |= event.rehearse;
        let failed = match event.kind {
            Kind::Wanted => {
                self.wanted.get_or_insert(now);
                false
            }
            Kind::Committed => {
                self.wanted = self.wanted.map(|_| now);
                false
            }
            Kind::NoRoom => {
                self.why = event.why.as_ref().map(|why| why.reason.clone());
                // That may last for as long as other sessions of the tenant do.
                self.wanted = self.wanted.map(|_| now);
                self.waits_for_room.get_or_insert(now);
                false
            }
            Kind::Charged => {
                self.waits_for_room = None;
                false
            }
            Kind::Failed | Kind::Differs => true,
            Kind::SourceGone => {
                self.source_gone = !only_watches;
                // Nothing was asked of a source that only watches.
                self.stage != Stage::Kept
            }
            Kind::Due => self.stage != Stage::Waiting,
            _ => false,
        };
        if failed && only_watches {
            self.why = Some(self.reason(event).reason);
            if event.kind == Kind::Failed && event.why.as_ref().is_some_and(|why| !why.lasting) {
                // The device has no room, which may last for as long as other programs do.
                self.wanted = self.wanted.map(|_| now);
                self.not_before = Some(now + RETRY_PAUSE * (1 << self.refusals.min(MOST_DOUBLINGS)));
                self.refusals = self.refusals.saturating_add(1);
                return;
            }
            self.failures += 1;
            self.different += u32::from(event.kind == Kind::Differs);
            self.not_before = Some(now + RETRY_PAUSE);
        }
    }

    fn holds(&mut self, guard: Guard, now: Instant) -> bool {
        match guard {
            Guard::Always | Guard::Last => true,
            Guard::LastToRehearse => self.rehearses,
            Guard::LastUnwanted => self.wanted.is_none(),
            Guard::LastTooEarly => self.not_before.is_some_and(|at| at > now),
            Guard::Wanted => self.wanted.is_some(),
            Guard::NoWayBack => self.source_gone,
            Guard::Hopeless => {
                self.wanted.is_some_and(|since| now >= since + RETURN_TIMEOUT)
                    || (self.wanted.is_none() && self.failures >= MOST_FAILURES)
                    || self.different >= MOST_DIFFERENT
            }
        }
    }

    fn enter(&mut self, stage: Stage, now: Instant) {
        let (_, time, _) = told_and_time(stage);
        let time = time.map(|time| time + if stage == Stage::Capturing { self.stop } else { Duration::ZERO });
        self.deadline = time.map(|time| now + time);
        self.waiting.clone_from(&self.sessions);
        if matches!(stage, Stage::Kept | Stage::Waiting) {
            let not_before = self.not_before.take();
            if stage == Stage::Waiting {
                self.deadline = not_before.or(self.deadline);
            } else {
                // What was given up or committed leaves the sessions parked.
                self.purpose = Purpose::Park;
            }
        }
        self.stage = stage;
    }

    /// Why the sessions do not get further, for people.
    fn reason(&self, event: &Event) -> Refusal {
        let gone = match (self.purpose, self.stage) {
            (Purpose::Park, Stage::Waiting | Stage::Replacing | Stage::Rebuilding) => {
                "the API server that was to continue it has ended"
            }
            _ => "its API server has ended",
        };
        let mut told = event.why.clone().unwrap_or_else(|| Refusal::not_now(""));
        match event.kind {
            Kind::Failed | Kind::Differs if self.stage == Stage::Rehearsing => {
                told.reason = format!("another process could not rebuild it: {}", told.reason);
                told
            }
            Kind::Differs if self.different >= MOST_DIFFERENT => {
                Refusal::lasting(format!("{} (in {} processes)", told.reason, self.different))
            }
            Kind::SourceGone => Refusal::lasting(gone),
            Kind::TargetGone => Refusal::not_now("the new API server has ended"),
            Kind::Rebuilt => {
                Refusal::lasting("its API module was built by an earlier Aviary, which cannot park sessions")
            }
            Kind::Due if self.purpose == Purpose::Park && self.stage == Stage::Rebuilding => {
                Refusal::not_now(LATE_RETURN)
            }
            Kind::Due => Refusal::not_now(told_and_time(self.stage).2),
            _ => told,
        }
    }
}

/// Of a stage: for people, what a relocation does in it; its longest time; and for people, what took longer.
fn told_and_time(stage: Stage) -> (&'static str, Option<Duration>, &'static str) {
    match stage {
        Stage::Announcing => {
            ("preparing", Some(PREPARE_TIMEOUT), "its API server did not report in time what the move needs")
        }
        Stage::Preparing => ("preparing", Some(PREPARE_TIMEOUT), "the new API server did not load its module in time"),
        Stage::Capturing => ("capturing", Some(CAPTURE_TIMEOUT), "its API server did not write its state in time"),
        Stage::Rehearsing => ("rehearsing", Some(REBUILD_TIMEOUT), "the rehearsal did not end in time"),
        Stage::Settling | Stage::Rebuilding => {
            ("rebuilding", Some(REBUILD_TIMEOUT), "the new API server did not rebuild it in time")
        }
        Stage::Kept => ("parked", None, ""),
        Stage::Waiting => ("parked", Some(ROOM_INTERVAL), ""),
        Stage::Replacing => ("parked", Some(REPLACE_TIMEOUT), LATE_RETURN),
        Stage::Committed => ("rebuilding", None, ""),
    }
}

impl Guard {
    fn waits_for_all(self) -> bool {
        matches!(self, Self::Last | Self::LastToRehearse | Self::LastUnwanted | Self::LastTooEarly)
    }
}
