//! Moves: sessions go from one API server process to another, and their guests notice a long call.
//!
//! All sessions of one API server move together. What each of them consists of passes through here as descriptors that the
//! node does not look into: both API servers are the tenant's own.

mod hand_over;
mod rehearsal;
mod stages;
mod steps;

pub(crate) use hand_over::Adopted;
pub(crate) use stages::Refusal;
pub(crate) use steps::tell;

use stages::{MoveEvent, Next, Progress, Stage};

use aviary_control::{CaptureFigures, StateDescriptors};
use aviary_gate::GrantPage;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, VecDeque},
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

/// Outcomes that are remembered for `aviary migrate`.
const REMEMBERED_OUTCOMES: usize = 256;
/// The most time, in milliseconds, that an operator lets sessions have until they stand.
const MAX_STOP_MS: u64 = 600_000;
/// Time in which the session of a test must stand: what does not is left alone.
const TEST_STOP: Duration = Duration::from_millis(200);

/// An operator's wish.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveRequest {
    pub session: u64,
    /// Capture it, say what that took, and let it go on where it is.
    pub check: bool,
    /// Park it: nothing of it is made in the new API server until its program calls.
    #[serde(default)]
    pub park: bool,
    /// Milliseconds within which the session must stand.
    pub stop_ms: u64,
    /// For tests: the move waits there for [`crate::Request::Proceed`]. Its deadlines hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub halt: Option<Halt>,
}

/// Places at which a move can be halted: between a report and what the node does then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Halt {
    /// The old API server has said what the sessions need; the new one has heard nothing.
    Announced,
    /// The new API server has its modules; nothing was stopped yet.
    Prepared,
    /// The state is written; the new API server has nothing of it.
    Captured,
    /// Another API server has made the sessions anew, equal; none has their place yet.
    Rehearsed,
    /// The sessions stand in both API servers; they are the old one's.
    Rebuilt,
}

impl Halt {
    /// The place before this step.
    fn before(next: &Next) -> Option<Self> {
        match next {
            Next::Prepare => Some(Self::Announced),
            Next::Capture => Some(Self::Prepared),
            Next::Rehearse | Next::Rebuild => Some(Self::Captured),
            Next::Replace => Some(Self::Rehearsed),
            Next::Commit => Some(Self::Rebuilt),
            Next::Wait | Next::GiveUp(_) | Next::Lie => None,
        }
    }
}

/// The answer to a wish: the number of the move.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct MoveBegun {
    pub number: u64,
}

/// The state of a move, or its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MoveStatus {
    /// With the name of its stage.
    UnderWay(String),
    Moved(MoveFigures),
    /// Its state lies in the node, and nothing of it is on a device.
    Parked(MoveFigures),
    /// It could have moved (`check`).
    Movable(MoveFigures),
    /// It goes on where it was.
    Refused {
        reason: String,
        lasting: bool,
    },
}

/// Figures of a move; of several sessions the sums, which is how long their guests stood at most.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveFigures {
    /// Sessions that moved together.
    pub sessions: usize,
    /// Process id of the API server that has them.
    pub server: u32,
    /// Bytes of state.
    pub bytes: u64,
    /// Until there was host memory for the content of its devices, in microseconds; the sessions still ran. 0 of a move.
    #[serde(default)]
    pub reserve_us: u64,
    /// Until all lanes stood, in microseconds.
    pub stop_us: u64,
    /// Until the devices had done everything.
    pub drain_us: u64,
    /// Until the state was written.
    pub capture_us: u64,
    /// Until it was made anew; 0 if it was not.
    pub rebuild_us: u64,
    /// From the wish until the new API server was prepared, as the node saw it: the sessions still ran.
    #[serde(default)]
    pub prepare_us: u64,
    /// From the order to stop until the sessions could go on, as the node saw it.
    #[serde(default)]
    pub stood_us: u64,
    /// From the wish to the end, as the node saw it.
    pub whole_us: u64,
}

/// The author of a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asker {
    Operator,
    /// Only whether it would work.
    Check,
    /// An operator who parks it.
    Parker,
    /// The node: it has made no call for long enough to be parked.
    Idle,
    /// The session itself, in tests.
    Session,
}

/// The end that a move is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// They go on in the new API server.
    Move,
    /// The new API server watches for their calls.
    Park,
}

/// One session's part of a move.
#[derive(Debug, Default)]
pub(crate) struct Part {
    /// The session's greeting, until the new API server has it.
    pub announced: Option<OwnedFd>,
    /// Until the new API server has it.
    pub state: Option<StateDescriptors<OwnedFd>>,
    pub figures: CaptureFigures,
    pub rebuild_us: u64,
    /// Its program has called while it was being parked.
    pub wanted: bool,
    /// The node's end of the new grant page and bell, until the scheduler has them.
    pub devices: Option<(GrantPage, OwnedFd)>,
    /// Their files.
    pub devices_file: Option<[OwnedFd; 2]>,
}

#[derive(Debug)]
pub(crate) struct Move {
    pub number: u64,
    /// The old API server.
    pub source: u64,
    /// The new one; `None`: nothing shall move.
    pub target: Option<u64>,
    /// The API server in which the sessions were rehearsed: it has been told to end.
    pub rehearser: Option<u64>,
    pub purpose: Purpose,
    pub progress: Progress,
    pub parts: BTreeMap<u64, Part>,
    pub since: Instant,
    /// Since when the old API server has its order to capture, which it answers once for each session.
    pub ordered: Option<Instant>,
    /// Where it is to be halted.
    pub halt: Option<Halt>,
    /// The step before which it was halted.
    pub halted: Option<Next>,
}

impl Move {
    /// Its stage, for people.
    fn told(&self) -> String {
        let halted = if self.halted.is_some() { ", halted" } else { "" };
        format!("{}{halted}", self.progress.stage().told())
    }

    /// The old API server has been asked for what the present stage waits for. An announcement is the first thing that it is
    /// asked for; between the new one's last report and the order to capture the move may be halted.
    fn has_order(&self) -> bool {
        self.progress.stage() == Stage::Announcing || self.ordered.is_some()
    }

    pub fn figures(&self, server: u32, now: Instant) -> MoveFigures {
        let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let ordered = self.ordered.unwrap_or(now);
        let sum = |of: fn(&Part) -> u64| self.parts.values().map(of).fold(0, u64::saturating_add);
        MoveFigures {
            sessions: self.parts.len(),
            server,
            bytes: sum(|part| part.figures.bytes),
            reserve_us: sum(|part| part.figures.reserve_us),
            stop_us: sum(|part| part.figures.stop_us),
            drain_us: sum(|part| part.figures.drain_us),
            capture_us: sum(|part| part.figures.capture_us),
            rebuild_us: sum(|part| part.rebuild_us),
            prepare_us: us(ordered - self.since),
            stood_us: us(now - ordered).saturating_sub(sum(|part| part.figures.reserve_us)),
            whole_us: us(now - self.since),
        }
    }
}

/// The moves of a node.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    under_way: Vec<Move>,
    /// Moves that are over once their old API server is, and the one that has rehearsed them: by these.
    leaving: BTreeMap<u64, (u64, MoveStatus)>,
    /// Answers that old API servers owe, by API server and session: their moves were given up meanwhile. They come before
    /// those about a later move, and are none about it.
    owed: BTreeMap<(u64, u64), usize>,
    ended: VecDeque<(u64, MoveStatus)>,
    pub(crate) last: u64,
}

impl Moves {
    pub fn next_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    pub fn begin(&mut self, begun: Move) {
        self.under_way.push(begun);
    }

    /// The move in which this API server is the old or the new one.
    pub fn of(&mut self, server: u64) -> Option<&mut Move> {
        self.under_way.iter_mut().find(|one| one.source == server || one.target == Some(server))
    }

    pub fn numbered(&mut self, number: u64) -> Option<&mut Move> {
        self.under_way.iter_mut().find(|one| one.number == number)
    }

    pub fn stage_of(&self, server: u64) -> Option<&'static str> {
        self.under_way.iter().find(|one| one.source == server).map(|one| one.progress.stage().told())
    }

    pub fn end(&mut self, number: u64, status: MoveStatus) -> Option<Move> {
        let at = self.under_way.iter().position(|one| one.number == number)?;
        self.remember(number, status);
        Some(self.under_way.swap_remove(at))
    }

    /// The sessions are not the old API server's any more. The move ends with that one.
    /// `rehearser`: that one is still there.
    pub fn leave(&mut self, number: u64, status: MoveStatus, rehearser: Option<u64>) {
        if let Some(at) = self.under_way.iter().position(|one| one.number == number) {
            let left = self.under_way.swap_remove(at);
            for server in rehearser.into_iter().chain([left.source]) {
                self.leaving.insert(server, (number, status.clone()));
            }
        }
    }

    /// Nothing is left of an API server, and what it held is its tenant's.
    pub fn left(&mut self, server: u64) {
        if let Some((number, status)) = self.leaving.remove(&server)
            && !self.leaving.values().any(|(leaving, _)| *leaving == number)
        {
            self.remember(number, status);
        }
    }

    /// The move is given up. Answers that are under way will still come.
    pub fn owe_answers(&mut self, given_up: &Move) {
        for session in given_up.progress.owing().filter(|_| given_up.has_order()) {
            *self.owed.entry((given_up.source, session)).or_default() += 1;
        }
    }

    /// True: this answer is about a move that was given up.
    pub fn is_late_answer(&mut self, server: u64, session: u64) -> bool {
        let Some(owed) = self.owed.get_mut(&(server, session)) else { return false };
        *owed -= 1;
        if *owed == 0 {
            self.owed.remove(&(server, session));
        }
        true
    }

    /// The API server answers nothing any more.
    pub fn forget(&mut self, server: u64) {
        self.owed.retain(|(owes, _), _| *owes != server);
    }

    /// True while an old API server is about to end.
    pub fn are_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// Keeps the end of a move for questions about it.
    pub fn remember(&mut self, number: u64, status: MoveStatus) {
        if self.ended.len() == REMEMBERED_OUTCOMES {
            self.ended.pop_front();
        }
        self.ended.push_back((number, status));
    }

    pub fn is_under_way(&self, number: u64) -> bool {
        self.under_way.iter().any(|one| one.number == number)
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        self.under_way.iter().map(|one| one.progress.deadline()).min()
    }

    /// The old API servers of moves that are overdue at `now`.
    pub fn overdue(&self, now: Instant) -> Vec<u64> {
        self.under_way.iter().filter(|one| one.progress.deadline() <= now).map(|one| one.source).collect()
    }

    pub fn status(&self, number: u64) -> Option<MoveStatus> {
        let under_way = self.under_way.iter().find(|one| one.number == number);
        let told = under_way.map(|one| MoveStatus::UnderWay(one.told()));
        let leaves = self.leaving.values().any(|(leaving, _)| *leaving == number);
        let told = told.or_else(|| leaves.then(|| MoveStatus::UnderWay("ending the old API server".into())));
        told.or_else(|| self.ended.iter().find(|(ended, _)| *ended == number).map(|(_, status)| status.clone()))
    }
}

/// A session's moves, for `aviary ps`.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionMoves {
    /// How often it has moved.
    pub count: u64,
    /// How often it was parked.
    #[serde(default)]
    pub parks: u64,
    /// How long it stood the last time, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_us: Option<u64>,
    /// Why the last attempt was given up, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begun(number: u64, source: u64, now: Instant) -> Move {
        Move {
            number,
            source,
            target: Some(source + 100),
            rehearser: None,
            purpose: Purpose::Move,
            progress: Progress::new([number].into(), Duration::ZERO, now),
            parts: [(number, Part::default())].into(),
            since: now,
            ordered: None,
            halt: None,
            halted: None,
        }
    }

    #[test]
    fn moves_are_found_by_both_api_servers_and_remembered_when_they_have_ended() {
        let (now, mut moves) = (Instant::now(), Moves::default());
        let first = moves.next_number();
        moves.begin(begun(first, 7, now));
        assert_eq!(moves.of(7).map(|one| one.number), Some(first));
        assert_eq!(moves.of(107).map(|one| one.number), Some(first));
        assert!(moves.of(8).is_none());
        assert_eq!(moves.status(first), Some(MoveStatus::UnderWay("preparing".into())));
        assert_eq!(moves.stage_of(7), Some("preparing"));
        let refused = MoveStatus::Refused { reason: "busy".into(), lasting: false };
        assert!(moves.end(first, refused.clone()).is_some() && moves.end(first, refused.clone()).is_none());
        assert_eq!(moves.status(first), Some(refused.clone()));
        for _ in 0..REMEMBERED_OUTCOMES {
            let number = moves.next_number();
            moves.begin(begun(number, 7, now));
            moves.end(number, refused.clone());
        }
        assert_eq!(moves.status(first), None);
        assert!(moves.status(moves.last).is_some());
    }

    #[test]
    fn move_that_left_its_old_api_server_is_over_once_that_is() {
        let (now, mut moves) = (Instant::now(), Moves::default());
        moves.begin(begun(1, 7, now));
        moves.leave(1, MoveStatus::Parked(MoveFigures::default()), Some(9));
        assert!(moves.are_leaving() && moves.of(7).is_none());
        assert!(matches!(moves.status(1), Some(MoveStatus::UnderWay(_))));
        moves.left(8);
        moves.left(7);
        assert!(moves.are_leaving() && matches!(moves.status(1), Some(MoveStatus::UnderWay(_))));
        moves.left(9);
        assert_eq!(moves.status(1), Some(MoveStatus::Parked(MoveFigures::default())));
        assert!(!moves.are_leaving());
    }

    #[test]
    fn answers_about_a_move_that_was_given_up_are_none_about_the_next_one() {
        let (now, mut moves) = (Instant::now(), Moves::default());
        let stage = |announced: bool, ordered| {
            let mut one = begun(1, 7, now);
            if announced {
                assert_eq!(one.progress.after(MoveEvent::Announced(1), now), Next::Prepare);
            }
            Move { ordered, ..one }
        };
        let capturing = |ordered| {
            let mut one = stage(true, ordered);
            assert_eq!(one.progress.after(MoveEvent::Prepared(1), now), Next::Capture);
            one
        };
        moves.owe_answers(&stage(true, None));
        moves.owe_answers(&capturing(None));
        assert!(!moves.is_late_answer(7, 1), "it has no order");
        for ordered in [stage(false, None), capturing(Some(now))] {
            moves.owe_answers(&ordered);
            assert!(!moves.is_late_answer(8, 1) && !moves.is_late_answer(7, 2));
            assert!(moves.is_late_answer(7, 1) && !moves.is_late_answer(7, 1), "one for each order");
        }
        let mut refused = capturing(Some(now));
        refused.progress.refused(1);
        moves.owe_answers(&refused);
        assert!(!moves.is_late_answer(7, 1), "it has answered");
        moves.owe_answers(&capturing(Some(now)));
        moves.forget(7);
        assert!(!moves.is_late_answer(7, 1));
    }

    #[test]
    fn overdue_moves_are_those_behind_their_deadline() {
        let (now, mut moves) = (Instant::now(), Moves::default());
        assert_eq!(moves.next_deadline(), None);
        moves.begin(begun(1, 7, now));
        let deadline = moves.next_deadline().unwrap();
        assert!(moves.overdue(now).is_empty());
        assert_eq!(moves.overdue(deadline), [7]);
    }
}
