//! The states of parked sessions, and all changes between them. Plain bookkeeping: no I/O, and time is an argument.
//!
//! ```text
//! settling --all kept--> kept --wanted--> (charge) --room--> rebuilding --all rebuilt--> go
//!     ^                    |                 |  ^                 |
//!     |                    |              no room                 |
//!     |                    |                 v  |                 |
//!     |                    |               waiting                |
//!     +----- its API server ended, or could not make them --------+
//! ```
//!
//! The node has the state, so that the API server that watches the lanes can be replaced until the order to go on. What has
//! failed is tried again: a device may have room a moment later. After [`ROOM_TIMEOUT`] of that the sessions are lost.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

/// How long sessions that are wanted wait for room, in their tenant's accounts or on their devices.
pub const ROOM_TIMEOUT: Duration = Duration::from_secs(60);
/// Between two looks for room.
const ROOM_INTERVAL: Duration = Duration::from_millis(100);
/// After an attempt that failed. The next one costs a process.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// How long an API server may take until it watches the lanes.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long it may take to make the sessions anew; programs may have to be compiled again.
const REBUILD_TIMEOUT: Duration = Duration::from_secs(120);
/// API servers that make sessions which differ from what their programs were told, after which those are lost.
const MOST_DIFFERENT: u32 = 5;
/// API servers that end before they have made the sessions anew, after which those are lost.
const MOST_DEATHS: u32 = 5;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ParkState {
    /// The API server begins to watch the lanes.
    Settling,
    /// The lanes are watched.
    Kept,
    /// Wanted, and looked after again at this time.
    Waiting(Instant),
    /// The API server makes the sessions anew.
    Rebuilding,
}

/// An event of parked sessions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ParkEvent {
    /// The program has called, or an operator asks.
    Wanted,
    /// The API server watches the lanes of this session.
    Kept(u64),
    /// There is room, and it is charged.
    Charged,
    NoRoom(String),
    Rebuilt(u64),
    /// The API server could not make a session anew, or did not in time.
    Failed(String),
    /// It made a session anew, which differs from what its program was told.
    Differs(String),
    /// It has ended, and another one takes its place.
    ServerGone,
    /// A deadline may be over.
    Looked,
}

/// The node's next step after an event.
#[derive(Debug, PartialEq, Eq)]
pub enum ParkNext {
    Wait,
    /// Charge what the sessions hold, then tell [`ParkEvent::Charged`] or [`ParkEvent::NoRoom`].
    Charge,
    /// Order the sessions to be made anew.
    Rebuild,
    /// They are: they go on.
    Go,
    /// Another API server has to watch.
    Replace,
    /// They cannot go on; why, for people.
    Lose(String),
    /// The event cannot be: the API server that caused it lies.
    Lie,
}

#[derive(Debug)]
pub struct ParkLife {
    state: ParkState,
    /// Sessions that have not reached the next state.
    waiting: BTreeSet<u64>,
    /// Since when the sessions are wanted.
    wanted: Option<Instant>,
    deadline: Option<Instant>,
    not_before: Option<Instant>,
    deaths: u32,
    /// Processes in which the sessions came out otherwise.
    different: u32,
    /// The obstacle of the last time.
    why: Option<String>,
}

impl ParkLife {
    /// Of sessions whose lanes are watched.
    pub fn kept() -> Self {
        Self {
            state: ParkState::Kept,
            waiting: BTreeSet::new(),
            wanted: None,
            deadline: None,
            not_before: None,
            deaths: 0,
            different: 0,
            why: None,
        }
    }

    /// For people: where it is.
    pub fn told(&self) -> String {
        match (&self.state, &self.why) {
            (ParkState::Settling | ParkState::Kept, _) => "parked".into(),
            (ParkState::Waiting(_), Some(why)) => format!("parked, waits: {why}"),
            (ParkState::Waiting(_), None) => "parked, waits".into(),
            (ParkState::Rebuilding, _) => "unparking".into(),
        }
    }

    /// True while nothing is under way and nothing was asked for.
    pub fn is_quiet(&self) -> bool {
        self.state == ParkState::Kept && self.wanted.is_none()
    }

    pub fn is_wanted(&self) -> bool {
        self.wanted.is_some()
    }

    /// When [`ParkEvent::Looked`] is due.
    pub fn next_look(&self) -> Option<Instant> {
        if let ParkState::Waiting(at) = self.state { Some(at) } else { self.deadline }
    }

    /// `sessions`: all of them.
    #[must_use]
    pub fn after(&mut self, event: ParkEvent, sessions: &BTreeSet<u64>, now: Instant) -> ParkNext {
        match (self.state, event) {
            (ParkState::Kept, ParkEvent::Wanted) => {
                self.wanted.get_or_insert(now);
                ParkNext::Charge
            }
            (_, ParkEvent::Wanted) => {
                self.wanted.get_or_insert(now);
                ParkNext::Wait
            }
            (ParkState::Settling, ParkEvent::Kept(session)) if self.waiting.remove(&session) => {
                if !self.waiting.is_empty() {
                    return ParkNext::Wait;
                }
                (self.state, self.deadline) = (ParkState::Kept, None);
                match (self.wanted, self.not_before.take().filter(|at| *at > now)) {
                    (None, _) => ParkNext::Wait,
                    (Some(_), None) => ParkNext::Charge,
                    (Some(_), Some(at)) => {
                        self.state = ParkState::Waiting(at);
                        ParkNext::Wait
                    }
                }
            }
            (ParkState::Kept | ParkState::Waiting(_), ParkEvent::Charged) => {
                (self.state, self.waiting) = (ParkState::Rebuilding, sessions.clone());
                self.deadline = Some(now + REBUILD_TIMEOUT);
                ParkNext::Rebuild
            }
            (ParkState::Kept | ParkState::Waiting(_), ParkEvent::NoRoom(why)) => {
                if self.is_over(now) {
                    return ParkNext::Lose(why);
                }
                (self.state, self.why) = (ParkState::Waiting(now + ROOM_INTERVAL), Some(why));
                ParkNext::Wait
            }
            (ParkState::Rebuilding, ParkEvent::Rebuilt(session)) if self.waiting.remove(&session) => {
                if self.waiting.is_empty() { ParkNext::Go } else { ParkNext::Wait }
            }
            (_, ParkEvent::Kept(_) | ParkEvent::Rebuilt(_)) => ParkNext::Lie,
            // It was told a moment too late.
            (_, ParkEvent::Charged | ParkEvent::NoRoom(_)) => ParkNext::Wait,
            (_, ParkEvent::Failed(why)) => self.replace(why, sessions, now),
            (_, ParkEvent::Differs(why)) => {
                self.different += 1;
                if self.different >= MOST_DIFFERENT {
                    return ParkNext::Lose(format!("{why} (in {} processes)", self.different));
                }
                self.replace(why, sessions, now)
            }
            (ParkState::Kept, ParkEvent::ServerGone) => {
                self.settle(sessions, now);
                ParkNext::Replace
            }
            (_, ParkEvent::ServerGone) => {
                self.replace("the API server that was to go on with it has ended".into(), sessions, now)
            }
            (ParkState::Waiting(at), ParkEvent::Looked) if at <= now => ParkNext::Charge,
            (ParkState::Settling | ParkState::Rebuilding, ParkEvent::Looked)
                if self.deadline.is_some_and(|at| at <= now) =>
            {
                self.replace("the API server that was to go on with it did not in time".into(), sessions, now)
            }
            (_, ParkEvent::Looked) => ParkNext::Wait,
        }
    }

    /// After a failure: another API server, unless it has failed for long enough.
    fn replace(&mut self, why: String, sessions: &BTreeSet<u64>, now: Instant) -> ParkNext {
        self.deaths += 1;
        if self.is_over(now) || (self.wanted.is_none() && self.deaths >= MOST_DEATHS) {
            return ParkNext::Lose(why);
        }
        self.why = Some(why);
        self.not_before = Some(now + RETRY_PAUSE);
        self.settle(sessions, now);
        ParkNext::Replace
    }

    fn settle(&mut self, sessions: &BTreeSet<u64>, now: Instant) {
        (self.state, self.waiting) = (ParkState::Settling, sessions.clone());
        self.deadline = Some(now + SETTLE_TIMEOUT);
    }

    /// True if it was wanted for longer than sessions wait for room.
    fn is_over(&self, now: Instant) -> bool {
        self.wanted.is_some_and(|since| now >= since + ROOM_TIMEOUT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both() -> BTreeSet<u64> {
        [1, 2].into()
    }

    /// Applies an event to a life of the sessions 1 and 2.
    fn after(life: &mut ParkLife, event: ParkEvent, now: Instant) -> ParkNext {
        life.after(event, &both(), now)
    }

    #[test]
    fn call_brings_both_sessions_back_once_both_are_made() {
        let (now, mut life) = (Instant::now(), ParkLife::kept());
        assert_eq!((life.told().as_str(), life.next_look()), ("parked", None));
        assert_eq!(after(&mut life, ParkEvent::Wanted, now), ParkNext::Charge);
        assert_eq!(after(&mut life, ParkEvent::Charged, now), ParkNext::Rebuild);
        assert_eq!(after(&mut life, ParkEvent::Wanted, now), ParkNext::Wait);
        assert_eq!(after(&mut life, ParkEvent::Rebuilt(2), now), ParkNext::Wait);
        assert_eq!(after(&mut life, ParkEvent::Rebuilt(2), now), ParkNext::Lie);
        assert_eq!(after(&mut life, ParkEvent::Rebuilt(1), now), ParkNext::Go);
    }

    #[test]
    fn sessions_without_room_wait_and_are_lost_after_a_minute() {
        let (now, mut life) = (Instant::now(), ParkLife::kept());
        let full = || ParkEvent::NoRoom("full".into());
        assert_eq!(after(&mut life, ParkEvent::Wanted, now), ParkNext::Charge);
        assert_eq!(after(&mut life, full(), now), ParkNext::Wait);
        assert_eq!(life.told(), "parked, waits: full");
        assert_eq!(after(&mut life, ParkEvent::Looked, now), ParkNext::Wait);
        let then = life.next_look().unwrap();
        assert_eq!(after(&mut life, ParkEvent::Looked, then), ParkNext::Charge);
        assert_eq!(after(&mut life, full(), then), ParkNext::Wait);
        let late = now + ROOM_TIMEOUT;
        assert_eq!(after(&mut life, ParkEvent::Looked, late), ParkNext::Charge);
        assert_eq!(after(&mut life, full(), late), ParkNext::Lose("full".into()));
    }

    #[test]
    fn api_server_that_ends_is_replaced_and_what_was_wanted_still_is() {
        let (now, mut life) = (Instant::now(), ParkLife::kept());
        assert_eq!(after(&mut life, ParkEvent::ServerGone, now), ParkNext::Replace);
        assert_eq!(after(&mut life, ParkEvent::Kept(1), now), ParkNext::Wait);
        assert_eq!(after(&mut life, ParkEvent::Wanted, now), ParkNext::Wait);
        assert_eq!(after(&mut life, ParkEvent::Kept(1), now), ParkNext::Lie);
        assert_eq!(after(&mut life, ParkEvent::Kept(2), now), ParkNext::Charge);
        assert_eq!(after(&mut life, ParkEvent::Charged, now), ParkNext::Rebuild);
        // This one dies of it: the next attempt waits a moment.
        assert_eq!(after(&mut life, ParkEvent::ServerGone, now), ParkNext::Replace);
        assert_eq!(after(&mut life, ParkEvent::Kept(1), now), ParkNext::Wait);
        assert_eq!(after(&mut life, ParkEvent::Kept(2), now), ParkNext::Wait);
        let then = life.next_look().unwrap();
        assert!(then > now);
        assert_eq!(after(&mut life, ParkEvent::Looked, then), ParkNext::Charge);
    }

    #[test]
    fn failures_end_when_their_time_is_over_or_there_were_too_many() {
        let now = Instant::now();
        let mut wanted = ParkLife::kept();
        let _ = after(&mut wanted, ParkEvent::Wanted, now);
        let _ = after(&mut wanted, ParkEvent::Charged, now);
        assert_eq!(after(&mut wanted, ParkEvent::Failed("no".into()), now + ROOM_TIMEOUT), ParkNext::Lose("no".into()));
        let mut idle = ParkLife::kept();
        assert_eq!(after(&mut idle, ParkEvent::ServerGone, now), ParkNext::Replace);
        let ends: Vec<_> = (0..MOST_DEATHS).map(|_| after(&mut idle, ParkEvent::ServerGone, now)).collect();
        assert!(ends[..MOST_DEATHS as usize - 1].iter().all(|next| *next == ParkNext::Replace), "{ends:?}");
        assert!(matches!(ends.last(), Some(ParkNext::Lose(_))));
    }

    #[test]
    fn session_that_comes_out_otherwise_in_several_processes_is_lost() {
        let (now, mut life) = (Instant::now(), ParkLife::kept());
        let differs = || ParkEvent::Differs("other".into());
        assert_eq!(after(&mut life, ParkEvent::Wanted, now), ParkNext::Charge);
        for _ in 1..MOST_DIFFERENT {
            assert_eq!(after(&mut life, ParkEvent::Charged, now), ParkNext::Rebuild);
            assert_eq!(after(&mut life, differs(), now), ParkNext::Replace);
            assert_eq!(life.told(), "parked");
            assert_eq!(after(&mut life, ParkEvent::Kept(1), now), ParkNext::Wait);
            assert_eq!(after(&mut life, ParkEvent::Kept(2), now), ParkNext::Wait);
            assert_eq!(life.told(), "parked, waits: other");
            let then = life.next_look().unwrap();
            assert_eq!(after(&mut life, ParkEvent::Looked, then), ParkNext::Charge);
        }
        assert_eq!(after(&mut life, ParkEvent::Charged, now), ParkNext::Rebuild);
        assert_eq!(after(&mut life, differs(), now), ParkNext::Lose("other (in 5 processes)".into()));
    }

    #[test]
    fn silent_api_server_is_replaced_at_its_deadline() {
        let (now, mut life) = (Instant::now(), ParkLife::kept());
        let _ = after(&mut life, ParkEvent::ServerGone, now);
        let late = life.next_look().unwrap();
        assert_eq!(after(&mut life, ParkEvent::Looked, now), ParkNext::Wait);
        assert_eq!(after(&mut life, ParkEvent::Looked, late), ParkNext::Replace);
    }

    /// Every sequence of events goes on only after a charge and after both sessions were made since then.
    #[test]
    fn no_sequence_of_events_goes_on_without_a_charge() {
        let now = Instant::now();
        let all = [
            ParkEvent::Wanted,
            ParkEvent::Kept(1),
            ParkEvent::Kept(2),
            ParkEvent::Charged,
            ParkEvent::Rebuilt(1),
            ParkEvent::Rebuilt(2),
            ParkEvent::ServerGone,
        ];
        let mut gone = 0;
        for number in 0..all.len().pow(6) {
            let mut life = ParkLife::kept();
            let mut made: Option<BTreeSet<u64>> = None;
            for digit in 0..6u32 {
                let event = all[number / all.len().pow(digit) % all.len()].clone();
                let next = after(&mut life, event.clone(), now);
                match (&next, &event) {
                    (ParkNext::Rebuild, _) => made = Some(BTreeSet::new()),
                    (ParkNext::Replace | ParkNext::Lose(_), _) => made = None,
                    (ParkNext::Wait | ParkNext::Go, ParkEvent::Rebuilt(session)) => {
                        made.as_mut().expect("made without a charge").insert(*session);
                    }
                    _ => {}
                }
                if next == ParkNext::Go {
                    assert_eq!(made, Some(both()));
                    gone += 1;
                    break;
                }
            }
        }
        assert!(gone > 0);
    }
}
