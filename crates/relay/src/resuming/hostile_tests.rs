//! What a relay does over strands that no honest one does: its session ends, or goes on, and nothing else happens.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::carry::link::Link;
use crate::frames::frame::Kind;
use crate::resuming::cut_tests::World;
use crate::resuming::resume::{Proof, Resume, Resumed, Ticket};
use crate::strands::together::MOST_STRANDS;

/// Longer than any of these tests.
const LONG: Duration = Duration::from_secs(600);
/// Behind the numbers that the session's own relay shows.
const NUMBERS: u64 = 1000;

fn connect(world: &World) -> Link {
    Link::new(TcpStream::connect(world.listener.local_addr().unwrap()).unwrap(), None, LONG).unwrap()
}

/// A further strand of the session, which nobody reads.
fn join(world: &World, number: u64) -> Link {
    let resume = |proof| Resume { token: Vec::new(), session: world.resumption.session, proof, joins: true };
    let mut link = connect(world);
    link.send(Kind::Resume, &resume(None).to_bytes()).unwrap();
    link.receive(Kind::Welcome, Instant::now() + LONG).unwrap();
    let mut link = Link::new(link.into_socket(), None, LONG).unwrap();
    let proof = Proof { ticket: world.resumption.strands, number: NUMBERS + number, received: 0 };
    link.send(Kind::Resume, &resume(Some(proof)).to_bytes()).unwrap();
    link.receive(Kind::Welcome, Instant::now() + LONG).unwrap();
    link
}

#[test]
fn a_thousand_strands_of_a_session_leave_it_the_last_seven() {
    let mut world = World::new();
    let strands: Vec<Link> = (0..1000)
        .map(|number| {
            let link = join(&world, number);
            assert!(world.carriers[1].outbox.pieces.strands() <= MOST_STRANDS);
            link
        })
        .collect();
    drop(strands);
    (0..3).for_each(|_| world.round());
}

#[test]
fn what_a_strand_holds_that_sends_byte_by_byte_goes_over_others_when_it_ends() {
    let mut world = World::new();
    let mut slow = join(&world, 0).into_socket();
    let trickle = std::thread::spawn(move || {
        // The beginning of a packet with a piece, which never comes to its end.
        for byte in [&[0, 0, 3, 0, 15, 0, 0, 0, 0, 0, 0, 0][..], &[9; 30]].concat() {
            std::io::Write::write_all(&mut slow, &[byte]).unwrap();
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    (0..3).for_each(|_| world.round());
    trickle.join().unwrap();
    world.round();
}

#[test]
fn what_no_strand_may_send_ends_the_session() {
    let piece = |number: u64, offset: u64| [&number.to_le_bytes()[..], &offset.to_le_bytes(), b"bytes"].concat();
    let resumed = Resumed { ticket: Ticket::random().unwrap(), received: 0 }.to_bytes();
    for (kind, payload, why) in [
        (Kind::Message, b"call".to_vec(), "none of a strand"),
        (Kind::Region, vec![0; 20], "none of a strand"),
        (Kind::Pieces, vec![0; 16], "none of a strand"),
        (Kind::Bye, Vec::new(), "none of a strand"),
        (Kind::Resumed, resumed, "none of a strand"),
        (Kind::Resume, b"nonsense".to_vec(), ""),
        (Kind::Piece, vec![0; 7], "without a number or a place"),
        (Kind::Piece, piece(1 << 13, 1 << 40), ""),
        (Kind::Piece, piece(u64::MAX, 0), "had not arrived"),
    ] {
        let world = World::new();
        let mut strand = join(&world, 0);
        strand.send(kind, &payload).unwrap();
        let World { ends: [_, gateway], .. } = world;
        let ended = gateway.join().unwrap().unwrap();
        assert!(!ended.is_empty() && ended.contains(why), "{kind:?}: {ended}");
    }
}
