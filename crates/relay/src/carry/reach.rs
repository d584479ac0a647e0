//! The state machine of a session's connections: connected, with strands alone, without any until a deadline, or ended. Pure
//! bookkeeping; [`crate::carry::life`] passes events and time and carries out the steps.

use std::time::{Duration, Instant};

/// First connections of a session are numbered from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReachState {
    Linked {
        link: u64,
    },
    /// Without a first connection, but with strands, of which one is to take its place: until this time, if there is one.
    Handing {
        link: u64,
        until: Option<Instant>,
    },
    /// Without any connection; `link` is the number of the last first one.
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
    /// closes connections so, and a peer that ends its session says so before. `strands`: there are some.
    Broke { link: u64, strands: bool },
    /// The last strand has ended.
    Alone,
    /// There is another first connection, with a valid ticket: a new one, or one that was a strand.
    Back,
    /// The deadline may have passed.
    Tick,
}

/// What [`crate::carry::life`] must do after an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Nothing,
    /// Let a strand take the first connection's place.
    HandOver,
    /// End all strands, and look for another connection until this time.
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
    /// How long a strand may take to replace the first connection. `None`: the peer knows.
    handing: Option<Duration>,
}

impl Reach {
    pub fn new(grace: Duration, handing: Option<Duration>) -> Self {
        Reach { state: ReachState::Linked { link: 0 }, grace, handing }
    }

    /// Of a session that another process has left without a connection.
    pub fn away(grace: Duration, handing: Option<Duration>, until: Instant) -> Self {
        Reach { state: ReachState::Away { link: 0, until }, grace, handing }
    }

    /// Applies an event that happens at `now`.
    pub fn change(&mut self, change: Change, now: Instant) -> Step {
        let (state, step) = match (self.state, change) {
            (ReachState::Over, _) => (ReachState::Over, Step::End),
            (ReachState::Linked { link }, Change::Broke { link: broken, strands }) if link == broken => {
                if strands && !self.grace.is_zero() {
                    let until = self.handing.and_then(|handing| now.checked_add(handing));
                    (ReachState::Handing { link, until }, Step::HandOver)
                } else {
                    self.leave(link, now)
                }
            }
            (ReachState::Handing { link, .. }, Change::Alone) => self.leave(link, now),
            (ReachState::Handing { link, until: Some(until) }, Change::Tick) if now >= until => self.leave(link, now),
            // Both threads of a connection report that it broke, and so does a connection that was replaced.
            (state, Change::Broke { .. } | Change::Alone) => (state, Step::Nothing),
            // Without a grace period there are no tickets.
            (_, Change::Back) if self.grace.is_zero() => (ReachState::Over, Step::End),
            (ReachState::Away { until, .. }, Change::Back | Change::Tick) if now >= until => {
                (ReachState::Over, Step::End)
            }
            (
                ReachState::Linked { link } | ReachState::Handing { link, .. } | ReachState::Away { link, .. },
                Change::Back,
            ) => (ReachState::Linked { link: link + 1 }, Step::Relink { link: link + 1 }),
            (state, Change::Tick) => (state, Step::Nothing),
        };
        self.state = state;
        step
    }

    /// There is no connection any more: the grace period begins, if there is one.
    fn leave(&self, link: u64, now: Instant) -> (ReachState, Step) {
        match now.checked_add(self.grace) {
            Some(until) if !self.grace.is_zero() => (ReachState::Away { link, until }, Step::Search { until }),
            _ => (ReachState::Over, Step::End),
        }
    }

    /// The time at which [`Change::Tick`] is due; `None`: none is.
    pub fn deadline(&self) -> Option<Instant> {
        match self.state {
            ReachState::Away { until, .. } => Some(until),
            ReachState::Handing { until, .. } => until,
            ReachState::Linked { .. } | ReachState::Over => None,
        }
    }

    /// A strand is to take the first connection's place.
    pub fn is_handing(&self) -> bool {
        matches!(self.state, ReachState::Handing { .. })
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
    const HANDING: Duration = Duration::from_secs(3);
    const SECOND: Duration = Duration::from_secs(1);

    fn broke(link: u64) -> Change {
        Change::Broke { link, strands: false }
    }

    fn broke_with_strands(link: u64) -> Change {
        Change::Broke { link, strands: true }
    }

    #[test]
    fn session_outlives_its_connection_for_the_grace_period() {
        let (mut reach, start) = (Reach::new(GRACE, Some(HANDING)), Instant::now());
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
    fn the_grace_period_begins_when_the_last_strand_has_ended() {
        let (mut reach, start) = (Reach::new(GRACE, None), Instant::now());
        assert_eq!(reach.change(broke_with_strands(0), start), Step::HandOver);
        assert_eq!((reach.deadline(), reach.link()), (None, None), "the peer knows how long");
        assert_eq!(reach.change(Change::Back, start + 2 * GRACE), Step::Relink { link: 1 });
        assert_eq!(reach.change(Change::Alone, start), Step::Nothing, "there is a first connection");
        assert_eq!(reach.change(broke_with_strands(1), start), Step::HandOver);
        assert_eq!(reach.change(Change::Alone, start + GRACE), Step::Search { until: start + 2 * GRACE });
        assert_eq!(reach.change(Change::Alone, start + GRACE), Step::Nothing);
    }

    #[test]
    fn a_relay_searches_if_no_strand_answers_in_time() {
        let (mut reach, start) = (Reach::new(GRACE, Some(HANDING)), Instant::now());
        assert_eq!(reach.change(broke_with_strands(0), start), Step::HandOver);
        assert_eq!(reach.deadline(), Some(start + HANDING));
        assert_eq!(reach.change(Change::Tick, start + HANDING / 2), Step::Nothing);
        let until = start + HANDING + GRACE;
        assert_eq!(reach.change(Change::Tick, start + HANDING), Step::Search { until });
    }

    #[test]
    fn a_newer_connection_displaces_one_that_looks_alive() {
        let (mut reach, now) = (Reach::new(GRACE, None), Instant::now());
        assert_eq!(reach.change(Change::Back, now), Step::Relink { link: 1 });
        assert_eq!(reach.change(Change::Back, now), Step::Relink { link: 2 });
        assert_eq!(reach.change(broke(1), now), Step::Nothing);
        assert_eq!(reach.link(), Some(2));
    }

    #[test]
    fn nothing_is_survived_without_a_grace_period() {
        let now = Instant::now();
        for change in [broke(0), broke_with_strands(0), Change::Back] {
            assert_eq!(Reach::new(Duration::ZERO, Some(HANDING)).change(change, now), Step::End, "{change:?}");
        }
        let mut endless = Reach::new(Duration::MAX, None);
        assert_eq!(endless.change(broke(0), now), Step::End, "a deadline that no clock has");
    }

    /// Every sequence of changes up to a length that reaches all states.
    #[test]
    fn no_sequence_of_changes_revives_a_session_or_extends_an_absence() {
        let start = Instant::now();
        let changes = [broke(0), broke_with_strands(0), broke(1), broke_with_strands(1), broke(2)];
        let changes = changes.into_iter().chain([Change::Alone, Change::Back, Change::Tick]);
        for handing in [None, Some(HANDING)] {
            let mut reached = vec![ReachState::Linked { link: 0 }];
            for step in 1..7 {
                let now = start + GRACE / 3 * step;
                let mut next = Vec::new();
                for before in &reached {
                    for change in changes.clone() {
                        let mut reach = Reach { state: *before, grace: GRACE, handing };
                        let did = reach.change(change, now);
                        assert_eq!(did == Step::End, reach.state == ReachState::Over, "{before:?} {change:?}");
                        assert_eq!(
                            did == Step::HandOver,
                            reach.is_handing() && !matches!(before, ReachState::Handing { .. })
                        );
                        match (before, reach.state) {
                            (ReachState::Over, after) => assert_eq!(after, ReachState::Over),
                            (ReachState::Away { until, .. }, ReachState::Away { until: after, .. }) => {
                                assert_eq!(*until, after)
                            }
                            (ReachState::Away { until, .. }, ReachState::Linked { .. }) => {
                                assert!(*until > now && change == Change::Back)
                            }
                            (ReachState::Away { .. }, ReachState::Handing { .. }) => panic!("its strands have ended"),
                            (_, ReachState::Away { until, .. }) => assert!(until <= now + GRACE),
                            _ => {}
                        }
                        next.push(reach.state);
                    }
                }
                next.sort_by_key(|state| format!("{state:?}"));
                next.dedup();
                reached = next;
            }
        }
    }
}
