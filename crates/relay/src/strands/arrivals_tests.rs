use super::*;

const LANE: u32 = 3;

fn arrives(arrivals: &Arrivals, number: u64) -> Option<u32> {
    assert!(arrivals.begin(number).unwrap());
    arrivals.finish(number)
}

#[test]
fn a_message_is_whole_when_its_last_piece_is_there() {
    let arrivals = Arrivals::default();
    assert_eq!(arrives(&arrivals, 2), None, "before its announcement");
    let awaited = arrivals.expect(LANE, 1, 4).unwrap().unwrap();
    assert_eq!((arrives(&arrivals, 0), arrives(&arrivals, 3)), (None, None));
    assert!(!awaited.is_whole());
    assert_eq!(arrives(&arrivals, 1), Some(LANE));
    assert!(awaited.is_whole() && arrivals.expect(LANE, 1, 4).unwrap().is_none());
}

#[test]
fn a_piece_is_written_once() {
    let arrivals = Arrivals::default();
    assert!(arrivals.begin(0).unwrap());
    assert!(!arrivals.begin(0).unwrap(), "another strand writes it");
    arrivals.finish(0);
    assert!(!arrivals.begin(0).unwrap());
    arrives(&arrivals, 5);
    assert!(!arrivals.begin(5).unwrap());
}

#[test]
fn what_no_honest_peer_sends_is_refused() {
    let arrivals = Arrivals::default();
    for number in [WINDOW, u64::MAX] {
        assert_eq!(arrivals.begin(number), Err(PieceError::Beyond(number, 0)));
    }
    // Pieces of no message fill the window, and no more.
    (1..WINDOW).for_each(|number| assert_eq!(arrives(&arrivals, number), None));
    assert!(arrivals.begin(WINDOW).is_err());
    for (first, end) in [(5, 5), (9, 4), (u64::MAX, u64::MAX), (0, u64::MAX), (7, 7 + MOST_OF_MESSAGE + 1)] {
        assert!(arrivals.expect(LANE, first, end).is_err(), "{first} {end}");
    }
    let arrivals = Arrivals::default();
    arrivals.expect(LANE, 10, 20).unwrap();
    for (first, end) in [(10, 20), (0, 11), (19, 30), (12, 13), (0, 100)] {
        assert_eq!(arrivals.expect(4, first, end).err(), Some(PieceError::Announced(first, end)));
    }
    assert!(arrivals.expect(4, 20, 30).is_ok() && arrivals.expect(4, 0, 10).is_ok());
    arrivals.forget(LANE);
    assert!(arrivals.expect(4, 10, 20).is_ok(), "its lane has ended");
}

#[test]
fn messages_that_wait_are_bounded() {
    let arrivals = Arrivals::default();
    (0..MOST_WAITING as u64).for_each(|n| drop(arrivals.expect(LANE, 2 * n, 2 * n + 1).unwrap()));
    assert!(matches!(arrivals.expect(LANE, 1 << 40, (1 << 40) + 1), Err(PieceError::Waiting)));
}
