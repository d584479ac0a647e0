//! The lives of sessions and of API servers: their states, and all changes between them.
//!
//! Messages of an API server move its own sessions along these tables and nothing else. What the tables do not have is
//! a lie, and ends the API server.

use aviary_control::Foreign;
use std::time::{Duration, Instant};

/// How long an API server may go on after its guest process has ended.
const GUEST_END_TIMEOUT: Duration = Duration::from_millis(800);
/// How long an API server may go on without a session, or without its control socket. An honest one ends at once.
/// Nothing of a session is left a second after its end.
const IDLE_SERVER_TIMEOUT: Duration = Duration::from_millis(800);
/// How long the kernel may take to end a process that was killed. One that is there still waits for a file of its own to close,
/// for as long as a peer or a file system likes.
const KILL_TIMEOUT: Duration = Duration::from_secs(3);

/// Of a session, from its acceptance to its end, after which it is no longer known.
#[derive(Debug)]
pub enum SessionState {
    /// An API server was told to serve it and has not said yet that it does. With the node's copy of the guest's socket: if
    /// the API server ends before, the session goes to another one, once.
    Offered { socket: Foreign, moved: bool },
    /// Its guest is admitted.
    Running,
}

/// A message of an API server about a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionNotice {
    Started,
    Ended,
}

/// Effect of a message on a session.
#[derive(Debug, PartialEq, Eq)]
pub enum Transition {
    Begins,
    IsOver,
    /// It cannot be.
    Lie,
}

impl SessionState {
    pub fn change(&mut self, news: SessionNotice) -> Transition {
        match (&self, news) {
            (Self::Offered { .. }, SessionNotice::Started) => {
                *self = Self::Running;
                Transition::Begins
            }
            (Self::Running, SessionNotice::Started) => Transition::Lie,
            // Refused guests do not start.
            (Self::Offered { .. } | Self::Running, SessionNotice::Ended) => Transition::IsOver,
        }
    }
}

/// Of an API server, from its start until it is reaped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerState {
    /// It has no guest yet.
    Spare,
    /// It has sessions.
    Serving,
    /// It has none any more: an honest one is about to end. Another connection of its guest may come before.
    Idle { kill_at: Instant },
    /// It gets no session any more and must end in time.
    Doomed { kill_at: Instant, why: EndReason },
    /// SIGKILL was sent. It is not heard any more.
    Killed { give_up_at: Instant },
    /// SIGKILL was sent, and it does not end. Its sessions are over; it is reaped whenever the kernel lets it go.
    Unending,
    /// It has ended by itself. It is reaped when the move is over that needs what it held.
    Ended,
}

/// Why an API server must end in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndReason {
    GuestEnded,
    HungUp,
}

/// Events in the life of an API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerEvent {
    SessionGiven,
    LastSessionOver,
    GuestEnded,
    /// It has closed its control socket.
    HungUp,
    Killed,
    /// It was killed and has not ended in time.
    GivenUp,
    /// Its process is over, and a move goes on.
    Ended,
}

impl ServerState {
    /// `now`: when it happens.
    #[must_use]
    pub fn after(self, event: ServerEvent, now: Instant) -> Self {
        use ServerEvent::*;
        match (self, event) {
            (Self::Unending, _) => self,
            (Self::Killed { .. }, GivenUp) => Self::Unending,
            (_, GivenUp) | (Self::Killed { .. }, _) => self,
            (_, Killed) => Self::Killed { give_up_at: now + KILL_TIMEOUT },
            (Self::Ended, _) | (_, Ended) => Self::Ended,
            (Self::Doomed { .. }, SessionGiven | LastSessionOver) => self,
            // Only ever sooner.
            (Self::Doomed { kill_at, why }, GuestEnded) => {
                Self::Doomed { kill_at: kill_at.min(now + GUEST_END_TIMEOUT), why }
            }
            (Self::Doomed { .. }, HungUp) => self,
            (Self::Spare | Self::Serving | Self::Idle { .. }, SessionGiven) => Self::Serving,
            (Self::Spare | Self::Serving, LastSessionOver) => Self::Idle { kill_at: now + IDLE_SERVER_TIMEOUT },
            (Self::Idle { .. }, LastSessionOver) => self,
            (Self::Spare | Self::Serving | Self::Idle { .. }, GuestEnded) => {
                Self::Doomed { kill_at: now + GUEST_END_TIMEOUT, why: EndReason::GuestEnded }
            }
            (Self::Spare | Self::Serving | Self::Idle { .. }, HungUp) => {
                Self::Doomed { kill_at: now + IDLE_SERVER_TIMEOUT, why: EndReason::HungUp }
            }
        }
    }

    /// When it is killed, or given up if that was done.
    pub fn due_at(self) -> Option<Instant> {
        match self {
            Self::Idle { kill_at } | Self::Doomed { kill_at, .. } => Some(kill_at),
            Self::Killed { give_up_at } => Some(give_up_at),
            Self::Spare | Self::Serving | Self::Unending | Self::Ended => None,
        }
    }

    /// Its messages count.
    pub fn is_heard(self) -> bool {
        !self.was_killed()
    }

    /// The node has killed it, whether or not it has ended.
    pub fn was_killed(self) -> bool {
        matches!(self, Self::Killed { .. } | Self::Unending)
    }

    /// For people: what is unusual about an API server in this state.
    pub fn told(self) -> &'static str {
        match self {
            Self::Spare => "it is waiting for a guest",
            Self::Serving => "it has sessions",
            Self::Idle { .. } => "it has no sessions any more",
            Self::Doomed { why: EndReason::GuestEnded, .. } => "its guest has ended",
            Self::Doomed { why: EndReason::HungUp, .. } => "it has closed its control socket",
            Self::Killed { .. } => "it was killed but has not ended yet",
            Self::Unending => "it was killed and cannot end: it waits for a peer or a file system",
            Self::Ended => "it has ended, and its sessions are being moved",
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::sessions::life::*;

    fn offered() -> SessionState {
        SessionState::Offered { socket: Foreign::own(std::io::pipe().unwrap().0.into()), moved: false }
    }

    #[test]
    fn a_session_starts_once() {
        let mut session = offered();
        assert_eq!(session.change(SessionNotice::Started), Transition::Begins);
        assert_eq!(session.change(SessionNotice::Started), Transition::Lie);
        assert_eq!(session.change(SessionNotice::Ended), Transition::IsOver);
        assert_eq!(offered().change(SessionNotice::Ended), Transition::IsOver);
    }

    /// Every sequence of events up to a length that reaches all states.
    #[test]
    fn no_sequence_of_events_gives_an_api_server_more_time() {
        use ServerEvent::*;
        let all = [SessionGiven, LastSessionOver, GuestEnded, HungUp, Killed, GivenUp];
        let start = Instant::now();
        let mut reached = vec![(ServerState::Spare, start)];
        for step in 1..6 {
            let now = start + Duration::from_millis(100 * step);
            let next = |(state, _): &(ServerState, Instant)| all.map(|event| (*state, event, state.after(event, now)));
            let changes: Vec<_> = reached.iter().flat_map(next).collect();
            for (before, event, after) in &changes {
                let serves = *after == ServerState::Serving;
                let waits = *after == ServerState::Spare && *event == GivenUp;
                assert!(
                    serves || waits || after.due_at().is_some() || *after == ServerState::Unending,
                    "{before:?} {event:?}"
                );
                assert!(!serves || *event == SessionGiven || before == after, "{before:?} {event:?}");
                if let (ServerState::Doomed { kill_at: at, .. }, ServerState::Doomed { kill_at, .. }) = (before, after)
                {
                    assert!(kill_at <= at);
                }
                let doomed = matches!(before, ServerState::Doomed { .. }) || before.was_killed();
                assert!(!doomed || matches!(after, ServerState::Doomed { .. }) || after.was_killed());
                assert!(!before.was_killed() || after == before || *after == ServerState::Unending);
                let most = if after.was_killed() { KILL_TIMEOUT } else { IDLE_SERVER_TIMEOUT };
                assert!(after.due_at().is_none_or(|at| at <= now + most));
            }
            reached = changes.into_iter().map(|(_, _, after)| (after, now)).collect();
        }
    }

    #[test]
    fn ended_api_server_is_not_killed_and_nothing_revives_it() {
        let now = Instant::now();
        let doomed = ServerState::Serving.after(ServerEvent::HungUp, now);
        let ended = doomed.after(ServerEvent::Ended, now);
        assert_eq!((ended, ended.due_at()), (ServerState::Ended, None));
        for event in [ServerEvent::SessionGiven, ServerEvent::GuestEnded, ServerEvent::HungUp] {
            assert_eq!(ended.after(event, now), ServerState::Ended);
        }
    }

    #[test]
    fn what_has_no_session_is_killed_within_a_second_unless_it_gets_one() {
        let start = Instant::now();
        let serving = ServerState::Spare.after(ServerEvent::SessionGiven, start);
        let idle = serving.after(ServerEvent::LastSessionOver, start);
        assert_eq!(idle.due_at(), Some(start + IDLE_SERVER_TIMEOUT));
        assert!(GUEST_END_TIMEOUT.max(IDLE_SERVER_TIMEOUT) < Duration::from_secs(1));
        // Saying it again gains nothing.
        assert_eq!(idle.after(ServerEvent::LastSessionOver, start + IDLE_SERVER_TIMEOUT / 2), idle);
        assert_eq!(idle.after(ServerEvent::SessionGiven, start), ServerState::Serving);
    }

    #[test]
    fn killed_api_server_that_does_not_end_is_given_up_for_good() {
        let start = Instant::now();
        let killed = ServerState::Serving.after(ServerEvent::Killed, start);
        assert_eq!((killed.due_at(), killed.is_heard()), (Some(start + KILL_TIMEOUT), false));
        // Killing it again gives it no more time.
        assert_eq!(killed.after(ServerEvent::Killed, start + KILL_TIMEOUT), killed);
        let unending = killed.after(ServerEvent::GivenUp, start + KILL_TIMEOUT);
        assert_eq!((unending, unending.due_at(), unending.is_heard()), (ServerState::Unending, None, false));
        for event in [ServerEvent::SessionGiven, ServerEvent::Killed, ServerEvent::Ended] {
            assert_eq!(unending.after(event, start), ServerState::Unending);
        }
        assert_eq!(ServerState::Serving.after(ServerEvent::GivenUp, start), ServerState::Serving);
    }
}
