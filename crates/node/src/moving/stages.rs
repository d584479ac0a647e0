//! The stages of a move, and all changes between them. Plain bookkeeping: no I/O, and time is an argument.
//!
//! ```text
//! announcing --all announced--> preparing --all prepared--> capturing --all captured--> rebuilding --all rebuilt--> commit
//!     |                            |                           |                            |
//!     +--refused, overdue, guest or new API server gone: given up, the old one goes on
//!
//! capturing --all captured, and one must be rehearsed--> rehearsing --all rebuilt--> rebuilding
//! ```
//!
//! A park whose programs were told what may be otherwise in another process is rehearsed: the new API server makes the
//! sessions, which are compared, and another one takes its place.
//!
//! While the new API server is prepared the sessions still run: what it does not have is refused before they are stopped.
//!
//! A session belongs to its old API server until the commit, which is one step under the node's lock, and to the new one
//! from then on. The old API server may die while the new one rebuilds: the state is complete by then.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

/// How long the old API server may take to say what the sessions need, and the new one to load it.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a capture may take beyond the time in which the sessions must stand.
const CAPTURE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the new API server may take; programs may have to be compiled again.
const REBUILD_TIMEOUT: Duration = Duration::from_secs(120);

/// Where a move is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The old API server says what the sessions need.
    Announcing,
    /// The new one loads it.
    Preparing,
    /// The old API server stops the sessions and writes their state.
    Capturing,
    /// Another one makes them out of it only to see if that works.
    Rehearsing,
    /// The new one makes them out of it.
    Rebuilding,
}

impl Stage {
    /// For people.
    pub fn told(self) -> &'static str {
        match self {
            Self::Announcing | Self::Preparing => "preparing",
            Self::Capturing => "capturing",
            Self::Rehearsing => "rehearsing",
            Self::Rebuilding => "rebuilding",
        }
    }
}

/// An event of a move.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MoveEvent {
    /// The old API server has said what this session needs.
    Announced(u64),
    /// The new one has it.
    Prepared(u64),
    /// The old API server has captured this session.
    Captured(u64),
    /// The new one has rebuilt it.
    Rebuilt(u64),
    Refused(Refusal),
    /// The API server in which the sessions are rehearsed could not make them.
    Unrehearsed(Refusal),
    SourceGone,
    TargetGone,
    GuestGone,
    Overdue,
}

/// Why a move was given up, for people.
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

/// The node's next step after an event.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    Wait,
    /// It is known what all sessions need.
    Prepare,
    /// The new API server has what all sessions need.
    Capture,
    /// All sessions are captured, and have to be rehearsed.
    Rehearse,
    /// They have been: another API server takes the place of the one that did it.
    Replace,
    /// All sessions are captured.
    Rebuild,
    /// All sessions stand in the new API server.
    Commit,
    GiveUp(Refusal),
    /// The event cannot be: the API server that caused it lies.
    Lie,
}

#[derive(Debug)]
pub struct Progress {
    stage: Stage,
    sessions: BTreeSet<u64>,
    /// Sessions that have not reached the next stage.
    waiting: BTreeSet<u64>,
    source_gone: bool,
    /// A session must be rehearsed.
    rehearses: bool,
    /// Time in which the sessions must stand.
    stop: Duration,
    deadline: Instant,
}

impl Progress {
    /// `stop`: time in which the sessions must stand.
    pub fn new(sessions: BTreeSet<u64>, stop: Duration, now: Instant) -> Self {
        let (waiting, deadline) = (sessions.clone(), now + PREPARE_TIMEOUT);
        Self { stage: Stage::Announcing, sessions, waiting, source_gone: false, rehearses: false, stop, deadline }
    }

    /// Of a move that needs nothing but modules in the new API server.
    pub fn unannounced(sessions: BTreeSet<u64>, stop: Duration, now: Instant) -> Self {
        Self { stage: Stage::Preparing, ..Self::new(sessions, stop, now) }
    }

    /// Of a move without a new API server: there is nothing to prepare.
    pub fn of_check(sessions: BTreeSet<u64>, stop: Duration, now: Instant) -> Self {
        let mut progress = Self::new(sessions, stop, now);
        progress.capture(now);
        progress
    }

    fn capture(&mut self, now: Instant) {
        (self.stage, self.waiting) = (Stage::Capturing, self.sessions.clone());
        self.deadline = now + self.stop + CAPTURE_TIMEOUT;
    }

    /// The states are there already: the sessions are parked.
    pub fn skip_capture(&mut self, now: Instant) {
        (self.stage, self.waiting) = (Stage::Rebuilding, self.sessions.clone());
        self.deadline = now + REBUILD_TIMEOUT;
    }

    /// The sessions, which are being captured, are to be rehearsed.
    pub fn rehearse(&mut self) {
        self.rehearses = true;
    }

    pub fn stop(&self) -> Duration {
        self.stop
    }

    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// The old API server has refused this session.
    pub fn refused(&mut self, session: u64) {
        self.waiting.remove(&session);
    }

    /// Sessions about which an old API server that has its order still owes an answer.
    pub fn owing(&self) -> impl Iterator<Item = u64> {
        let owes = matches!(self.stage, Stage::Announcing | Stage::Capturing) && !self.source_gone;
        self.waiting.iter().copied().filter(move |_| owes)
    }

    pub fn sessions(&self) -> &BTreeSet<u64> {
        &self.sessions
    }

    /// The old API server has ended; it is reaped when the move is over.
    pub fn source_gone(&self) -> bool {
        self.source_gone
    }

    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// The event of a new API server that could not make a session.
    pub fn failed_in_target(&self, Refusal { reason, lasting }: Refusal) -> MoveEvent {
        match self.stage {
            Stage::Rehearsing => {
                let reason = format!("another process could not make it anew: {reason}");
                MoveEvent::Unrehearsed(Refusal { reason, lasting })
            }
            _ => MoveEvent::Refused(Refusal { reason, lasting }),
        }
    }

    #[must_use]
    pub fn after(&mut self, event: MoveEvent, now: Instant) -> Next {
        match (self.stage, event) {
            (Stage::Announcing, MoveEvent::Announced(session)) if self.waiting.remove(&session) => {
                if !self.waiting.is_empty() {
                    return Next::Wait;
                }
                (self.stage, self.waiting) = (Stage::Preparing, self.sessions.clone());
                self.deadline = now + PREPARE_TIMEOUT;
                Next::Prepare
            }
            (Stage::Preparing, MoveEvent::Prepared(session)) if self.waiting.remove(&session) => {
                if !self.waiting.is_empty() {
                    return Next::Wait;
                }
                self.capture(now);
                Next::Capture
            }
            (Stage::Capturing, MoveEvent::Captured(session)) if self.waiting.remove(&session) => {
                if !self.waiting.is_empty() {
                    return Next::Wait;
                }
                self.skip_capture(now);
                if !self.rehearses {
                    return Next::Rebuild;
                }
                self.stage = Stage::Rehearsing;
                Next::Rehearse
            }
            (Stage::Rehearsing, MoveEvent::Rebuilt(session)) if self.waiting.remove(&session) => {
                if !self.waiting.is_empty() {
                    return Next::Wait;
                }
                self.skip_capture(now);
                Next::Replace
            }
            // Without the old API server there is nothing to go back to.
            (Stage::Rehearsing, MoveEvent::Unrehearsed(_) | MoveEvent::TargetGone) if self.source_gone => {
                self.skip_capture(now);
                Next::Replace
            }
            (Stage::Rehearsing, MoveEvent::Overdue) if self.source_gone && now >= self.deadline => {
                self.skip_capture(now);
                Next::Replace
            }
            (Stage::Rebuilding, MoveEvent::Rebuilt(session)) if self.waiting.remove(&session) => {
                if self.waiting.is_empty() { Next::Commit } else { Next::Wait }
            }
            (_, MoveEvent::Announced(_) | MoveEvent::Prepared(_) | MoveEvent::Captured(_) | MoveEvent::Rebuilt(_)) => {
                Next::Lie
            }
            (_, MoveEvent::Refused(refusal) | MoveEvent::Unrehearsed(refusal)) => Next::GiveUp(refusal),
            (Stage::Announcing | Stage::Preparing | Stage::Capturing, MoveEvent::SourceGone) => {
                self.source_gone = true;
                Next::GiveUp(Refusal::lasting("its API server has ended"))
            }
            (Stage::Rehearsing | Stage::Rebuilding, MoveEvent::SourceGone) => {
                self.source_gone = true;
                Next::Wait
            }
            (_, MoveEvent::TargetGone) => Next::GiveUp(Refusal::not_now("the new API server has ended")),
            (_, MoveEvent::GuestGone) => Next::GiveUp(Refusal::lasting("the program has ended")),
            (_, MoveEvent::Overdue) if now >= self.deadline => Next::GiveUp(Refusal::not_now(match self.stage {
                Stage::Announcing => "its API server did not say in time what it needs",
                Stage::Preparing => "the new API server did not load its module in time",
                Stage::Capturing => "its API server did not capture it in time",
                Stage::Rehearsing => "another API server did not make it anew in time",
                Stage::Rebuilding => "the new API server did not rebuild it in time",
            })),
            (_, MoveEvent::Overdue) => Next::Wait,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a move whose new API server is prepared.
    fn progress(now: Instant) -> Progress {
        Progress::of_check([1, 2].into(), Duration::from_secs(1), now)
    }

    #[test]
    fn sessions_are_stopped_only_once_the_new_api_server_is_prepared_for_all() {
        let now = Instant::now();
        let mut progress = Progress::new([1, 2].into(), Duration::from_secs(1), now);
        assert_eq!(progress.after(MoveEvent::Prepared(1), now), Next::Lie);
        assert_eq!(progress.after(MoveEvent::Announced(2), now), Next::Wait);
        assert_eq!(progress.after(MoveEvent::Announced(2), now), Next::Lie);
        assert_eq!(progress.after(MoveEvent::Announced(1), now), Next::Prepare);
        assert_eq!(progress.after(MoveEvent::Prepared(1), now), Next::Wait);
        assert_eq!(progress.stage(), Stage::Preparing);
        assert_eq!(progress.after(MoveEvent::Captured(1), now), Next::Lie);
        assert_eq!(progress.after(MoveEvent::Prepared(2), now), Next::Capture);
        assert_eq!((progress.stage(), progress.stop()), (Stage::Capturing, Duration::from_secs(1)));
        assert_eq!(progress.after(MoveEvent::Prepared(1), now), Next::Lie);
        for event in [MoveEvent::SourceGone, MoveEvent::TargetGone, MoveEvent::GuestGone] {
            let mut progress = Progress::new([1].into(), Duration::ZERO, now);
            assert!(matches!(progress.after(event, now), Next::GiveUp(_)));
        }
        let mut slow = Progress::new([1].into(), Duration::ZERO, now);
        let late = slow.deadline();
        assert!(matches!(slow.after(MoveEvent::Overdue, late), Next::GiveUp(_)));
    }

    #[test]
    fn move_of_two_sessions_waits_for_both_in_each_stage() {
        let now = Instant::now();
        let mut progress = progress(now);
        assert_eq!(progress.after(MoveEvent::Captured(2), now), Next::Wait);
        assert_eq!(progress.after(MoveEvent::Captured(1), now), Next::Rebuild);
        assert_eq!(progress.after(MoveEvent::Rebuilt(1), now), Next::Wait);
        assert_eq!(progress.after(MoveEvent::Rebuilt(2), now), Next::Commit);
    }

    #[test]
    fn parked_sessions_go_on_to_the_next_api_server_without_a_capture() {
        let now = Instant::now();
        let mut progress = Progress::unannounced([1].into(), Duration::ZERO, now);
        assert_eq!(progress.after(MoveEvent::Prepared(1), now), Next::Capture);
        progress.skip_capture(now);
        assert_eq!(progress.after(MoveEvent::SourceGone, now), Next::Wait);
        assert_eq!(progress.after(MoveEvent::Captured(1), now), Next::Lie);
        assert_eq!(progress.after(MoveEvent::Rebuilt(1), now), Next::Commit);
    }

    #[test]
    fn rehearsed_sessions_are_made_once_more_before_the_commit() {
        let now = Instant::now();
        let rehearsing = || {
            let mut progress = progress(now);
            progress.rehearse();
            assert_eq!(progress.after(MoveEvent::Captured(1), now), Next::Wait);
            assert_eq!(progress.after(MoveEvent::Captured(2), now), Next::Rehearse);
            assert_eq!(progress.after(MoveEvent::Captured(2), now), Next::Lie);
            progress
        };
        let mut equal = rehearsing();
        assert_eq!((equal.stage(), equal.owing().count()), (Stage::Rehearsing, 0));
        assert_eq!(equal.after(MoveEvent::Rebuilt(2), now), Next::Wait);
        assert_eq!(equal.after(MoveEvent::Rebuilt(2), now), Next::Lie);
        assert_eq!(equal.after(MoveEvent::Rebuilt(1), now), Next::Replace);
        assert_eq!(equal.after(MoveEvent::Rebuilt(1), now), Next::Wait);
        assert_eq!(equal.after(MoveEvent::Rebuilt(2), now), Next::Commit);
        let late = equal.deadline();
        let failures = [MoveEvent::Unrehearsed(Refusal::lasting("other")), MoveEvent::TargetGone, MoveEvent::Overdue];
        for failure in &failures {
            assert!(matches!(rehearsing().after(failure.clone(), late), Next::GiveUp(_)), "{failure:?}");
            // Without the old API server the state is all there is.
            let mut alone = rehearsing();
            assert_eq!(alone.after(MoveEvent::SourceGone, now), Next::Wait);
            assert_eq!(alone.after(MoveEvent::Overdue, now), Next::Wait);
            assert_eq!(alone.after(failure.clone(), late), Next::Replace, "{failure:?}");
            assert_eq!((alone.stage(), alone.source_gone()), (Stage::Rebuilding, true));
        }
        // An operator ends it.
        let mut ended = rehearsing();
        assert_eq!(ended.after(MoveEvent::SourceGone, now), Next::Wait);
        assert!(matches!(ended.after(MoveEvent::Refused(Refusal::lasting("ended")), now), Next::GiveUp(_)));
    }

    #[test]
    fn reports_that_cannot_be_are_lies() {
        let now = Instant::now();
        let mut progress = progress(now);
        assert_eq!(progress.after(MoveEvent::Rebuilt(1), now), Next::Lie);
        assert_eq!(progress.after(MoveEvent::Captured(3), now), Next::Lie);
        assert_eq!(progress.after(MoveEvent::Captured(1), now), Next::Wait);
        assert_eq!(progress.after(MoveEvent::Captured(1), now), Next::Lie);
    }

    #[test]
    fn move_survives_the_old_api_server_only_once_everything_is_captured() {
        let now = Instant::now();
        let mut early = progress(now);
        assert!(matches!(early.after(MoveEvent::SourceGone, now), Next::GiveUp(_)));
        let mut late = progress(now);
        let _ = late.after(MoveEvent::Captured(1), now);
        let _ = late.after(MoveEvent::Captured(2), now);
        assert_eq!(late.after(MoveEvent::SourceGone, now), Next::Wait);
        let _ = late.after(MoveEvent::Rebuilt(1), now);
        assert_eq!(late.after(MoveEvent::Rebuilt(2), now), Next::Commit);
        assert!(late.source_gone());
    }

    /// Every sequence of events commits only after each session was captured and rebuilt, once, in this order.
    #[test]
    fn no_sequence_of_events_commits_without_all_states() {
        let now = Instant::now();
        let all = [
            MoveEvent::Captured(1),
            MoveEvent::Captured(2),
            MoveEvent::Rebuilt(1),
            MoveEvent::Rebuilt(2),
            MoveEvent::SourceGone,
            MoveEvent::TargetGone,
            MoveEvent::GuestGone,
            MoveEvent::Overdue,
            MoveEvent::Refused(Refusal::not_now("busy")),
        ];
        let (mut commits, mut sequences) = (0, 0u32);
        for number in 0..all.len().pow(5) {
            let chosen = (0..5u32).map(|digit| &all[number / all.len().pow(digit) % all.len()]);
            let mut progress = progress(now);
            let mut seen = Vec::new();
            sequences += 1;
            for event in chosen {
                seen.push(event.clone());
                match progress.after(event.clone(), now) {
                    Next::Wait | Next::Prepare | Next::Capture | Next::Rehearse | Next::Replace | Next::Rebuild => {}
                    Next::GiveUp(_) | Next::Lie => break,
                    Next::Commit => {
                        let steps: Vec<_> = seen.iter().filter(|e| all[..4].contains(e)).collect();
                        assert_eq!(steps.len(), 4, "{seen:?}");
                        assert!(matches!(steps[1], MoveEvent::Captured(_)), "{seen:?}");
                        commits += 1;
                        break;
                    }
                }
            }
        }
        assert!(commits > 0 && sequences == 9u32.pow(5));
    }

    #[test]
    fn move_is_overdue_at_its_deadline_and_not_before() {
        let now = Instant::now();
        let mut progress = progress(now);
        assert_eq!(progress.after(MoveEvent::Overdue, now), Next::Wait);
        let late = progress.deadline();
        assert!(matches!(progress.after(MoveEvent::Overdue, late), Next::GiveUp(Refusal { lasting: false, .. })));
    }
}
