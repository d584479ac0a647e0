//! Sessions that are parked, with the stand-in for the API server.

use super::{Fixture, Guest, report, tell};
use aviary_control::{FromServer, MoveReport};
use aviary_node::{EndReport, EndRequest, MoveStatus, Request, UnparkStatus, ask};
use std::{os::fd::BorrowedFd, path::Path};

/// True if the stand-in says that its sessions have to be rehearsed.
pub fn is_rehearsed(fault: &str) -> bool {
    fault.starts_with("rehearse") || fault == "unpark:differ"
}

/// The stand-in's answer to the order to make a session anew that is parked, or only rehearsed.
pub fn rebuild(control: BorrowedFd<'_>, session: u64, fault: &str, rehearses: bool) {
    let reason = "fake_address answers otherwise".to_owned();
    let rebuilt = || report(control, session, MoveReport::Rebuilt { rebuild_us: 4 });
    match (fault, rehearses) {
        ("rehearse:die", true) => std::process::abort(),
        ("rehearse:end", true) => tell(control, &FromServer::Ended { session, reason }),
        ("rehearse:lie", true) => report(control, session, MoveReport::Prepared),
        ("rehearse:differ", true) | ("unpark:differ", false) => {
            report(control, session, MoveReport::Differs { reason });
        }
        ("rebuild:twice", _) => {
            rebuilt();
            rebuilt();
        }
        _ => rebuilt(),
    }
}

#[test]
fn sessions_of_a_process_park_together_and_hold_nothing() {
    let fixture = Fixture::new("");
    let mut guests = fixture.two_guests();
    let mut before = fixture.expect_alive(&mut guests);
    for parks in 1..=3 {
        let MoveStatus::Parked(figures) = fixture.park() else { panic!("not parked") };
        assert_eq!((figures.sessions, figures.bytes), (2, 200));
        assert_eq!(fixture.memory(), (0, 0), "the old API server is gone when the park is over");
        assert!(!Path::new(&format!("/proc/{before}")).exists());
        let report = fixture.node.report();
        assert_eq!((report.parked.used, fixture.node.busy()), (200, 1));
        for session in &report.sessions {
            assert!(session.parked.as_ref().is_some_and(|parked| parked.bytes == 100 && parked.state == "parked"));
            assert_eq!((session.server, session.moves.parks, session.moves.count), (figures.server, parks, 0));
        }
        // To another API server of the same program, parked as before.
        let MoveStatus::Moved(figures) = fixture.move_one(false) else { panic!("not moved") };
        assert_eq!((fixture.memory(), fixture.node.report().parked.used), ((0, 0), 200));
        fixture.unpark();
        before = fixture.expect_alive(&mut guests);
        assert_eq!((before, fixture.node.report().parked.used), (figures.server, 0));
    }
    fixture.expect_nothing_left(guests);
}

#[test]
fn another_connection_of_a_process_brings_its_parked_sessions_back() {
    let fixture = Fixture::new("");
    let mut guests = fixture.two_guests();
    assert!(matches!(fixture.park(), MoveStatus::Parked(_)));
    let mut third = Guest::attach(fixture.socket());
    let server = third.server();
    assert_eq!(server, Some(fixture.expect_alive(&mut guests)));
    drop(third);
    fixture.expect_nothing_left(guests);
}

#[test]
fn parked_sessions_end_with_their_process_and_by_an_operator() {
    let fixture = Fixture::new("");
    let mut guests = fixture.two_guests();
    assert!(matches!(fixture.park(), MoveStatus::Parked(_)));
    let sessions = fixture.sessions();
    let _: EndReport = ask(fixture.socket(), &Request::End(EndRequest::Sessions(sessions))).unwrap();
    assert!(guests.iter_mut().all(|guest| guest.server().is_none()));
    fixture.expect_nothing_left(guests);
}

/// An API server that says of a parked session what cannot be is ended; before the commit the sessions stay where they are.
#[test]
fn parks_that_api_servers_lie_about_hold_nothing() {
    for (fault, reason) in [
        ("capture:open", "did not write a state of a fixed length"),
        ("adopt:old", "an earlier Aviary"),
        ("adopt:lie", "has ended"),
    ] {
        let fixture = Fixture::new(fault);
        let mut guests = fixture.two_guests();
        let before = fixture.expect_alive(&mut guests);
        let MoveStatus::Refused { reason: told, .. } = fixture.park() else { panic!("{fault}: parked") };
        assert!(told.contains(reason), "{fault}: {told}");
        assert_eq!(fixture.expect_alive(&mut guests), before, "{fault}");
        fixture.expect_nothing_left(guests);
    }
    let fixture = Fixture::new("rebuild:twice");
    let mut guests = fixture.two_guests();
    assert!(matches!(fixture.park(), MoveStatus::Parked(_)));
    let _: UnparkStatus = ask(fixture.socket(), &Request::Unpark(fixture.sessions()[0])).unwrap();
    assert!(guests.iter_mut().all(|guest| guest.server().is_none()));
    fixture.expect_nothing_left(guests);
}

/// Before a park whose sessions may come out otherwise ends the only process that has them, another one has made them.
#[test]
fn rehearsed_sessions_park_only_if_another_process_makes_them() {
    let fixture = Fixture::new("rehearse");
    let mut guests = fixture.two_guests();
    for parks in 1..=3 {
        let MoveStatus::Parked(figures) = fixture.park() else { panic!("not parked") };
        assert_eq!((figures.rebuild_us, fixture.memory(), fixture.node.busy()), (8, (0, 0), 1), "{parks}");
        fixture.unpark();
        assert_eq!(fixture.expect_alive(&mut guests), figures.server);
    }
    fixture.expect_nothing_left(guests);
    for (fault, reason) in [
        ("rehearse:differ", "another process could not rebuild it: fake_address answers otherwise"),
        ("rehearse:end", "another process could not rebuild it: fake_address answers otherwise"),
        ("rehearse:die", "the new API server has ended"),
        ("rehearse:lie", "the new API server has ended"),
    ] {
        let fixture = Fixture::new(fault);
        let mut guests = fixture.two_guests();
        let before = fixture.expect_alive(&mut guests);
        let MoveStatus::Refused { reason: told, .. } = fixture.park() else { panic!("{fault}: parked") };
        assert_eq!(told, reason, "{fault}");
        assert_eq!(fixture.expect_alive(&mut guests), before, "{fault}");
        fixture.expect_nothing_left(guests);
    }
}

#[test]
fn parked_session_that_comes_out_otherwise_in_each_process_is_lost() {
    let fixture = Fixture::new("unpark:differ");
    let mut guests = fixture.two_guests();
    assert!(matches!(fixture.park(), MoveStatus::Parked(_)));
    let _: UnparkStatus = ask(fixture.socket(), &Request::Unpark(fixture.sessions()[0])).unwrap();
    assert!(guests.iter_mut().all(|guest| guest.server().is_none()));
    fixture.expect_nothing_left(guests);
}
