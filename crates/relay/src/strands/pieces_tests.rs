use super::*;
use crate::strands::arrivals::Arrivals;
use aviary_transport::AHEAD_BYTES;
use proptest::prelude::*;

const NO_TIME: Duration = Duration::ZERO;

/// All pieces of a region, whatever is unsent.
fn cut(pieces: &Pieces, offset: u64, length: usize) -> (u64, u64) {
    let (mut regions, mut all) = (VecDeque::from([Region { offset, length }]), None);
    while !regions.is_empty() {
        let unsent = std::mem::take(&mut pieces.state().rests);
        let again = std::mem::take(&mut pieces.state().again);
        let Cut::Pieces(first, end) = pieces.cut(&mut regions) else { panic!("a rest that is too short") };
        all = Some((all.map_or(first, |(first, _)| first), end));
        let mut state = pieces.state();
        unsent.into_iter().rev().for_each(|piece| state.rests.push_front(piece));
        state.again = again;
    }
    all.unwrap()
}

fn next(pieces: &Pieces, strand: u64) -> Option<Piece> {
    match pieces.next(strand, NO_TIME) {
        Work::Piece(piece) => Some(piece),
        _ => None,
    }
}

#[test]
fn what_a_guest_sends_ahead_is_whole_pieces_and_worth_strands() {
    let region = Region { offset: 4096, length: AHEAD_BYTES };
    assert!(AHEAD_BYTES.is_multiple_of(PIECE_BYTES) && is_worth(&[region]));
}

#[test]
fn long_regions_are_cut_a_turn_at_a_time() {
    let region = |length| Region { offset: 1 << 20, length };
    let (long, short) = (region(3 * PIECE_BYTES + 5), region(LEAST_REGION - 1));
    assert!(!is_worth(&[region(WORTH_BYTES - 1)]) && is_worth(&[region(WORTH_BYTES)]));
    assert!(!is_worth(&[short; 100]));
    let pieces = Pieces::default();
    let mut regions = VecDeque::from([short, long, long, short]);
    assert_eq!(pieces.cut(&mut regions), Cut::Pieces(0, 8));
    assert_eq!((&regions, pieces.cut(&mut regions.clone())), (&VecDeque::from([short, short]), Cut::Nothing));
    pieces.begin(1);
    let all: Vec<Piece> = std::iter::from_fn(|| next(&pieces, 1)).collect();
    assert_eq!(all.iter().map(|piece| piece.number).collect::<Vec<_>>(), (0..8).collect::<Vec<_>>());
    assert_eq!(all.iter().map(|piece| piece.length).sum::<usize>(), 2 * long.length);
    assert_eq!(all[3], Piece { number: 3, offset: (1 << 20) + 3 * PIECE_BYTES as u64, length: 5 });
    assert_eq!(all[4].offset, 1 << 20);
    // A lane that has much leaves room for others.
    let mut endless = VecDeque::from([region(1 << 30)]);
    let turns: Vec<Cut> =
        std::iter::from_fn(|| Some(pieces.cut(&mut endless)).filter(|cut| *cut != Cut::Full)).collect();
    assert_eq!((turns.len() as u64, turns.last()), (MOST_UNSENT / MOST_OF_TURN, Some(&Cut::Pieces(56, 72))));
    let until_hungry = (0..)
        .take_while(|_| {
            next(&pieces, 1).unwrap();
            !pieces.is_hungry()
        })
        .count();
    assert_eq!(until_hungry as u64, MOST_UNSENT / 2);
    assert!(!pieces.is_hungry(), "it was told");
}

#[test]
fn the_first_connection_sends_pieces_only_while_there_is_no_strand_and_by_turns() {
    let pieces = Pieces::default();
    pieces.begin(1);
    cut(&pieces, 0, 9 * PIECE_BYTES);
    assert!(next(&pieces, 1).is_some() && pieces.next_of_first(false).is_none());
    pieces.broke(1);
    let turns: Vec<bool> = (0..4).map(|_| pieces.next_of_first(true).is_some()).collect();
    assert_eq!(turns, [true, false, true, false], "other bulk data has its turn");
    let rest: Vec<u64> = std::iter::from_fn(|| pieces.next_of_first(false)).map(|piece| piece.number).collect();
    assert_eq!(rest, (2..9).collect::<Vec<_>>());
    assert!(pieces.is_empty());
}

#[test]
fn what_was_never_sent_cannot_be_acknowledged() {
    let pieces = Pieces::default();
    pieces.begin(1);
    cut(&pieces, 0, 9 * PIECE_BYTES);
    assert!(next(&pieces, 1).is_some() && next(&pieces, 1).is_some());
    assert_eq!(pieces.acknowledge(1, 3), Err(NeverSent(3, 2)));
    assert_eq!(pieces.acknowledge(1, u64::MAX), Err(NeverSent(u64::MAX, 2)));
    assert_eq!(pieces.acknowledge(1, 1), Ok(()));
    assert_eq!(pieces.acknowledge(1, 0), Ok(()), "an older one");
    assert!(!pieces.is_quiet(1));
    assert_eq!(pieces.acknowledge(1, 2), Ok(()));
    assert!(pieces.is_quiet(1) && !pieces.is_empty());
    assert_eq!(pieces.acknowledge(9, 5), Ok(()), "a strand that has just ended");
}

#[test]
fn nothing_is_sent_beyond_what_the_peer_takes() {
    let pieces = Pieces::default();
    (1..=2).for_each(|strand| pieces.begin(strand));
    cut(&pieces, 0, 3 * WINDOW as usize * PIECE_BYTES);
    let held = next(&pieces, 1).unwrap();
    let mut sent = 0;
    while let Some(piece) = next(&pieces, 2) {
        assert!(piece.number < WINDOW / 2);
        sent += 1;
        pieces.acknowledge(2, sent).unwrap();
    }
    assert_eq!((held.number, sent), (0, WINDOW / 2 - 1), "a strand stalls");
    pieces.broke(1);
    assert_eq!(next(&pieces, 2), Some(held));
    pieces.acknowledge(2, sent + 1).unwrap();
    assert_eq!(next(&pieces, 2).unwrap().number, WINDOW / 2);
}

#[test]
fn strands_stop_when_they_are_told() {
    let pieces = Pieces::default();
    assert_eq!(pieces.next(1, NO_TIME), Work::Stop, "one that does not exist");
    pieces.begin(1);
    assert_eq!(pieces.next(1, NO_TIME), Work::Idle);
    pieces.owe(1, 4);
    pieces.owe(1, 5);
    assert_eq!(pieces.next(1, NO_TIME), Work::Acknowledge(5));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| pieces.next(1, Duration::from_secs(600)));
        pieces.stop(1);
        assert_eq!(waiting.join().unwrap(), Work::Stop);
    });
}

/// What happens next.
#[derive(Debug, Clone)]
enum Happens {
    /// A message with so many pieces is queued.
    Message(usize),
    /// A strand sends its next piece.
    Sends(usize),
    /// The first piece under way over a strand arrives.
    Arrives(usize),
    /// The sender hears how many have arrived.
    Acknowledged(usize),
    /// A strand breaks; what is under way over it is lost, and another one comes.
    Breaks(usize),
    /// All strands break; the first connection sends, until new ones have come.
    AllBreak(usize),
    /// Both sides are other processes from now on.
    Moves,
}

fn happens() -> impl Strategy<Value = Happens> {
    let strand = 0usize..3;
    prop_oneof![
        1 => (5usize..40).prop_map(Happens::Message),
        8 => strand.clone().prop_map(Happens::Sends),
        8 => strand.clone().prop_map(Happens::Arrives),
        4 => strand.clone().prop_map(Happens::Acknowledged),
        1 => strand.prop_map(Happens::Breaks),
        1 => (0usize..10).prop_map(Happens::AllBreak),
        1 => Just(Happens::Moves),
    ]
}

/// A sender, a receiver, and what is under way over three strands.
struct World {
    pieces: Pieces,
    arrivals: Arrivals,
    under_way: [VecDeque<Piece>; 3],
    /// The present number of each strand.
    names: [u64; 3],
    arrived: [u64; 3],
    written: HashMap<u64, Piece>,
    whole: Vec<u32>,
    name: u64,
}

impl World {
    fn write(&mut self, piece: Piece) {
        if self.arrivals.begin(piece.number).unwrap() {
            assert_eq!(self.written.insert(piece.number, piece), None, "twice");
            self.whole.extend(self.arrivals.finish(piece.number));
        }
    }

    fn renew(&mut self, strand: usize) {
        self.pieces.broke(self.names[strand]);
        self.under_way[strand].clear();
    }

    fn begin(&mut self, strand: usize) {
        self.name += 1;
        (self.names[strand], self.arrived[strand]) = (self.name, 0);
        self.pieces.begin(self.name);
    }

    fn saved<T>(save: impl FnOnce(&mut Encoder), restored: impl FnOnce(&mut Decoder<'_>) -> T) -> T {
        let mut to = Encoder::new();
        to.start();
        save(&mut to);
        restored(&mut Decoder::new(to.body()))
    }

    fn act(&mut self, happens: &Happens) {
        match *happens {
            Happens::Message(_) => {}
            Happens::Sends(strand) => {
                self.under_way[strand].extend(next(&self.pieces, self.names[strand]));
            }
            Happens::Arrives(strand) => {
                if let Some(piece) = self.under_way[strand].pop_front() {
                    self.write(piece);
                    self.arrived[strand] += 1;
                }
            }
            Happens::Acknowledged(strand) => {
                self.pieces.acknowledge(self.names[strand], self.arrived[strand]).unwrap();
            }
            Happens::Breaks(strand) => {
                self.renew(strand);
                self.begin(strand);
            }
            Happens::AllBreak(by_first) => {
                (0..3).for_each(|strand| self.renew(strand));
                for _ in 0..by_first {
                    let piece = self.pieces.next_of_first(false);
                    piece.into_iter().for_each(|piece| self.write(piece));
                }
                (0..3).for_each(|strand| self.begin(strand));
            }
            Happens::Moves => {
                (0..3).for_each(|strand| self.renew(strand));
                self.pieces = Self::saved(|to| self.pieces.save(to), |from| Pieces::restored(from).unwrap());
                // What waits is with the inboxes, and asked for again.
                let whole = self.arrivals.waiting();
                self.arrivals = Self::saved(|to| self.arrivals.save(to), |from| Arrivals::restored(from).unwrap());
                for (lane, first, end) in whole {
                    assert!(self.arrivals.expect(lane, first, end).unwrap().is_some());
                }
                (0..3).for_each(|strand| self.begin(strand));
            }
        }
    }
}

proptest! {
    #[test]
    fn every_piece_is_written_once_whatever_breaks(course in prop::collection::vec(happens(), 1..300)) {
        let (under_way, names, written) = (Default::default(), [0; 3], HashMap::new());
        let (pieces, arrivals) = (Pieces::default(), Arrivals::default());
        let mut world =
            World { pieces, arrivals, under_way, names, arrived: [0; 3], written, whole: Vec::new(), name: 0 };
        (0..3).for_each(|strand| world.begin(strand));
        let (mut messages, mut offset) = (Vec::new(), 0);
        for happens in &course {
            if let Happens::Message(count) = happens {
                let length = count * PIECE_BYTES - 77;
                let (first, end) = cut(&world.pieces, offset, length);
                prop_assert_eq!(end - first, *count as u64);
                // The message may come before its pieces, among them or behind them.
                let lane = messages.len() as u32;
                if lane.is_multiple_of(2) {
                    prop_assert!(world.arrivals.expect(lane, first, end).unwrap().is_some());
                }
                messages.push((first, end, offset, length));
                offset += length as u64;
            }
            world.act(happens);
        }
        for strand in 0..3 {
            while { world.act(&Happens::Sends(strand)); !world.under_way[strand].is_empty() } {
                while !world.under_way[strand].is_empty() {
                    world.act(&Happens::Arrives(strand));
                }
            }
            world.act(&Happens::Acknowledged(strand));
        }
        prop_assert!(world.pieces.is_empty());
        for (lane, (first, end, offset, length)) in messages.into_iter().enumerate() {
            let lane = lane as u32;
            prop_assert!(world.arrivals.expect(lane, first, end).unwrap().is_none(), "all have arrived");
            prop_assert_eq!(world.whole.contains(&lane), lane.is_multiple_of(2), "who waited was told");
            let mut at = offset;
            for number in first..end {
                let piece = world.written[&number];
                prop_assert_eq!(piece.offset, at);
                at += piece.length as u64;
            }
            prop_assert_eq!(at, offset + length as u64);
        }
    }
}
