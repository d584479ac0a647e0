//! The state machine of a session's connection: connected, without connection until a deadline, or ended. Pure bookkeeping;
//! [`crate::carry::life`] passes events and time and carries out the steps.

use std::time::{Duration, Instant};

/// Connections of a session are numbered from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReachState {
    Linked {
        link: u64,
    },
    /// Without a connection; `link` is the number of the last one.
    Away {
        link: u64,
        until: Instant,
    },
    Over,
}

/// Events of a session's connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Connection number `link` has broken. An orderly end of TCP is no other thing than a reset: a proxy that is restarted
    /// closes connections so, and a peer that ends its session says so before.
    Broke { link: u64 },
    /// The peer has connected again, with a valid ticket.
    Back,
    /// The deadline may have passed.
    Tick,
}

/// What [`crate::carry::life`] must do after an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Nothing,
    /// Look for another connection until this time.
    Search {
        until: Instant,
    },
    /// Use the new connection, under this number, instead of any other.
    Relink {
        link: u64,
    },
    /// End the session.
    End,
}

#[derive(Debug)]
pub struct Reach {
    state: ReachState,
    /// How long the session survives without a connection.
    grace: Duration,
}

impl Reach {
    pub fn new(grace: Duration) -> Self {
        Reach { state: ReachState::Linked { link: 0 }, grace }
    }

    /// Of a session that another process has left without a connection.
    pub fn away(grace: Duration, until: Instant) -> Self {
        Reach { state: ReachState::Away { link: 0, until }, grace }
    }

    /// Applies an event that happens at `now`.
    pub fn change(&mut self, change: Change, now: Instant) -> Step {
        let (state, step) = match (self.state, change) {
            (ReachState::Over, _) => (ReachState::Over, Step::End),
            (ReachState::Linked { link }, Change::Broke { link: broken }) if link == broken => {
                match now.checked_add(self.grace) {
                    Some(until) if !self.grace.is_zero() => (ReachState::Away { link, until }, Step::Search { until }),
                    _ => (ReachState::Over, Step::End),
                }
            }
            // Both threads of a connection report that it broke, and so does a connection that was replaced.
            (state, Change::Broke { .. }) => (state, Step::Nothing),
            // Without a grace period there are no tickets.
            (ReachState::Linked { .. } | ReachState::Away { .. }, Change::Back) if self.grace.is_zero() => {
                (ReachState::Over, Step::End)
            }
            (ReachState::Away { until, .. }, Change::Back | Change::Tick) if now >= until => {
                (ReachState::Over, Step::End)
            }
            (ReachState::Linked { link } | ReachState::Away { link, .. }, Change::Back) => {
                (ReachState::Linked { link: link + 1 }, Step::Relink { link: link + 1 })
            }
            (state, Change::Tick) => (state, Step::Nothing),
        };
        self.state = state;
        step
    }

    /// The time at which [`Change::Tick`] is due; `None`: none is.
    pub fn deadline(&self) -> Option<Instant> {
        if let ReachState::Away { until, .. } = self.state { Some(until) } else { None }
    }

    /// The number of the present connection; `None`: there is none.
    pub fn link(&self) -> Option<u64> {
        if let ReachState::Linked { link } = self.state { Some(link) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(120);
    const SECOND: Duration = Duration::from_secs(1);

    fn broke(link: u64) -> Change {
        Change::Broke { link }
    }

    #[test]
    fn session_outlives_its_connection_for_the_grace_period() {
        let (mut reach, start) = (Reach::new(GRACE), Instant::now());
        assert_eq!(reach.change(Change::Tick, start + 1000 * SECOND), Step::Nothing, "a connection has no deadline");
        assert_eq!(reach.change(broke(0), start), Step::Search { until: start + GRACE });
        assert_eq!((reach.deadline(), reach.link()), (Some(start + GRACE), None));
        assert_eq!(reach.change(broke(0), start + SECOND), Step::Nothing, "both threads tell");
        assert_eq!(reach.change(Change::Tick, start + GRACE - SECOND), Step::Nothing);
        assert_eq!(reach.change(Change::Back, start + GRACE - SECOND), Step::Relink { link: 1 });
        assert_eq!(reach.change(broke(0), start + GRACE), Step::Nothing, "an older one");
        assert_eq!(reach.change(Change::Tick, start + 2 * GRACE), Step::Nothing);
        assert_eq!(reach.change(broke(1), start + 2 * GRACE), Step::Search { until: start + 3 * GRACE });
        assert_eq!(reach.change(Change::Tick, start + 3 * GRACE), Step::End);
        assert_eq!(reach.change(Change::Back, start + 3 * GRACE), Step::End, "too late");
    }

    #[test]
    fn a_newer_connection_displaces_one_that_looks_alive() {
        let (mut reach, now) = (Reach::new(GRACE), Instant::now());
        assert_eq!(reach.change(Change::Back, now), Step::Relink { link: 1 });
        assert_eq!(reach.change(Change::Back, now), Step::Relink { link: 2 });
        assert_eq!(reach.change(broke(1), now), Step::Nothing);
        assert_eq!(reach.link(), Some(2));
    }

    #[test]
    fn nothing_is_survived_without_a_grace_period() {
        let now = Instant::now();
        for change in [broke(0), Change::Back] {
            assert_eq!(Reach::new(Duration::ZERO).change(change, now), Step::End, "{change:?}");
        }
        assert_eq!(Reach::new(Duration::MAX).change(broke(0), now), Step::End, "a deadline that no clock has");
    }

    /// Every sequence of changes up to a length that reaches all states.
    #[test]
    fn no_sequence_of_changes_revives_a_session_or_extends_an_absence() {
        let start = Instant::now();
        let changes = [broke(0), broke(1), broke(2), Change::Back, Change::Tick];
        let mut reached = vec![(ReachState::Linked { link: 0 }, start)];
        for step in 1..7 {
            let now = start + GRACE / 3 * step;
            let mut next = Vec::new();
            for (before, _) in &reached {
                for change in changes {
                    let mut reach = Reach { state: *before, grace: GRACE };
                    let did = reach.change(change, now);
                    assert_eq!(did == Step::End, reach.state == ReachState::Over, "{before:?} {change:?}");
                    match (before, reach.state) {
                        (ReachState::Over, after) => assert_eq!(after, ReachState::Over),
                        (ReachState::Away { until, .. }, ReachState::Away { until: after, .. }) => {
                            assert_eq!(*until, after)
                        }
                        (ReachState::Away { until, .. }, ReachState::Linked { .. }) => {
                            assert!(now < *until && change == Change::Back)
                        }
                        (_, ReachState::Away { until, .. }) => assert!(until <= now + GRACE),
                        _ => {}
                    }
                    next.push((reach.state, now));
                }
            }
            next.dedup();
            reached = next;
        }
    }
}
