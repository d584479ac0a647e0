//! Random programs against a model that knows which memory the library has, and which the guest may end.

use std::collections::BTreeMap;

use aviary_state::Owner;
use proptest::prelude::*;

use super::*;
use crate::session::config::{MAX_FREED, MAX_MAPPINGS};

const OWNERS: u64 = 3;
const GROUPS: u32 = 2;

/// What a guest names.
#[derive(Debug, Clone, Copy)]
enum Named {
    /// One of the ids that are in use, by its place.
    InUse(usize),
    Any(u64),
}

#[derive(Debug, Clone)]
enum Step {
    /// A call lends pieces; one that fails afterwards is not recorded, and the guest does not learn the ids.
    Lend {
        pieces: usize,
        group: u32,
        fails: bool,
    },
    Reside {
        owner: u64,
        place: usize,
        bytes: usize,
        fails: bool,
    },
    Map {
        bytes: usize,
    },
    /// A call begins to free what it names.
    BeginFreeing {
        named: Named,
        group: u32,
    },
    BeginUnmapping {
        named: Named,
    },
    /// One of the calls that have begun has its answer; `None`: it was rejected before the library had it.
    Finish {
        call: usize,
        ended: Option<bool>,
    },
    OwnerEnds {
        owner: u64,
    },
    /// A call makes a state; earlier contents are kept where its struct may be copied.
    MakeState {
        of: u32,
        copies: bool,
    },
    /// The guest reports that what it names has no struct any more.
    Retire {
        named: Named,
    },
    /// `ready`: what cannot move is ended first.
    Move {
        ready: bool,
    },
}

fn named() -> impl Strategy<Value = Named> {
    prop_oneof![
        6 => any::<usize>().prop_map(Named::InUse),
        2 => (0u64..24).prop_map(Named::Any),
        1 => any::<u64>().prop_map(Named::Any),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let fails = || prop::bool::weighted(0.1);
    prop_oneof![
        3 => (1usize..3, 0..GROUPS, fails()).prop_map(|(pieces, group, fails)| Step::Lend { pieces, group, fails }),
        3 => (0..OWNERS, 0usize..2, 1usize..3, fails())
            .prop_map(|(owner, place, bytes, fails)| Step::Reside { owner, place, bytes, fails }),
        1 => (1usize..9).prop_map(|bytes| Step::Map { bytes }),
        6 => (named(), 0..GROUPS).prop_map(|(named, group)| Step::BeginFreeing { named, group }),
        3 => named().prop_map(|named| Step::BeginUnmapping { named }),
        6 => (any::<usize>(), prop_oneof![5 => Just(Some(true)), 2 => Just(Some(false)), 1 => Just(None)])
            .prop_map(|(call, ended)| Step::Finish { call, ended }),
        1 => (0..OWNERS).prop_map(|owner| Step::OwnerEnds { owner }),
        1 => (0..GROUPS, any::<bool>()).prop_map(|(of, copies)| Step::MakeState { of, copies }),
        2 => named().prop_map(|named| Step::Retire { named }),
        2 => any::<bool>().prop_map(|ready| Step::Move { ready }),
    ]
}

#[derive(Debug, Clone)]
struct Piece {
    kind: Kind,
    address: usize,
    bytes: usize,
    ending: bool,
    readable: Option<Readable>,
}

#[derive(Default)]
struct World {
    table: ForeignTable,
    pieces: BTreeMap<u64, Piece>,
    /// Ids that one recorded call has given out.
    records: Vec<Vec<u64>>,
    /// Calls that end memory.
    calls: Vec<u64>,
    last_id: u64,
    next_address: usize,
}

impl World {
    fn address(&mut self) -> usize {
        self.next_address += 64;
        self.next_address
    }

    fn id(&self, named: Named) -> u64 {
        match named {
            Named::InUse(place) => self.pieces.keys().nth(place % self.pieces.len().max(1)).copied().unwrap_or(0),
            Named::Any(id) => id,
        }
    }

    fn given_out(&mut self, id: u64, kind: Kind, address: usize, bytes: usize) {
        assert!(id > self.last_id, "an id is given out once");
        self.last_id = id;
        self.enter(id, kind, address, bytes);
    }

    fn enter(&mut self, id: u64, kind: Kind, address: usize, bytes: usize) {
        let readable = self.table.readable(id).and_then(|memory| memory.readable);
        assert!(self.pieces.insert(id, Piece { kind, address, bytes, ending: false, readable }).is_none());
    }

    fn lend(&mut self, pieces: usize, group: u32, fails: bool) {
        let mut ids = Vec::new();
        for _ in 0..pieces {
            let address = self.address();
            let id = self.table.lend(address, group, None).unwrap();
            self.given_out(id, Kind::Lent { group }, address, 0);
            ids.push(id);
        }
        if !fails {
            self.records.push(ids);
        }
    }

    fn reside(&mut self, owner: u64, place: usize, bytes: usize, fails: bool) {
        let (address, kind) = (1 << 40 | (owner as usize) << 8 | place, Kind::Resident { owner });
        let known = self.pieces.iter().find(|(_, piece)| piece.kind == kind && piece.address == address);
        let known = known.map(|(id, piece)| (*id, piece.bytes));
        match self.table.reside(owner, (address, bytes), None).unwrap() {
            Entered::Known(id) => assert_eq!(known, Some((id, bytes))),
            Entered::New { id, replaced } => {
                assert_eq!(replaced, known.map(|(id, _)| id));
                replaced.into_iter().for_each(|id| self.ended(id));
                self.given_out(id, kind, address, bytes);
                if !fails {
                    self.records.push(vec![id]);
                }
            }
        }
    }

    fn map(&mut self, bytes: usize) {
        let address = self.address();
        let id = self.table.map(std::ptr::with_exposed_provenance_mut(address), bytes, None).unwrap();
        self.given_out(id, Kind::Mapped, address, bytes);
    }

    fn make_state(&mut self, of: u32, copies: bool) {
        let state = self.table.new_state(of, 8, copies, 0).unwrap();
        let id = self.table.enter_state(&state).unwrap();
        self.given_out(id, Kind::State { of }, state.memory.start.addr(), 0);
    }

    fn retire(&mut self, id: u64) {
        let expected = self.pieces.get_mut(&id).filter(|piece| matches!(piece.kind, Kind::State { .. }));
        let state = self.table.retire_state(id);
        assert_eq!(state.is_some(), expected.is_some());
        match (state, expected) {
            (Some(state), Some(piece)) if state.versions.is_some() => piece.ending = true,
            (Some(_), _) => self.ended(id),
            (None, _) => {}
        }
    }

    fn begins(&mut self, id: u64, found: Option<usize>, may_end: impl Fn(Kind) -> bool) {
        let expected = self.pieces.get_mut(&id).filter(|piece| !piece.ending && may_end(piece.kind));
        assert_eq!(found, expected.as_ref().map(|piece| piece.address));
        if let Some(piece) = expected {
            piece.ending = true;
            self.calls.push(id);
        }
    }

    fn finish(&mut self, call: usize, ended: Option<bool>) {
        if self.calls.is_empty() {
            return;
        }
        let id = self.calls.swap_remove(call % self.calls.len());
        match ended {
            Some(true) => {
                let address = self.table.end(id).map(|memory| memory.address);
                assert_eq!(address, self.pieces.get(&id).map(|piece| piece.address));
                self.ended(id);
            }
            // What a call was to unmap stays mapped, whoever refuses that; what it was to free may be half way gone.
            None if self.pieces[&id].kind != Kind::Mapped => {}
            _ => {
                self.table.keep(id);
                self.pieces.get_mut(&id).unwrap().ending = false;
            }
        }
    }

    fn ended(&mut self, id: u64) {
        let piece = self.pieces.remove(&id).unwrap();
        assert!(piece.readable.is_none_or(|readable| !reads(&readable)), "a copy reads memory that has ended");
        assert!(self.table.end(id).is_none());
    }

    fn owner_ends(&mut self, owner: u64) {
        let mut ids = self.table.owner_ended(owner);
        ids.sort_unstable();
        assert_eq!(ids, self.of_kind(|kind| kind == Kind::Resident { owner }));
        ids.into_iter().for_each(|id| self.ended(id));
    }

    fn of_kind(&self, is_wanted: impl Fn(Kind) -> bool) -> Vec<u64> {
        self.pieces.iter().filter(|(_, piece)| is_wanted(piece.kind)).map(|(id, _)| *id).collect()
    }

    /// The session moves, if its memory lets it: calls that nothing needs any more are forgotten, the others are repeated.
    fn moves(&mut self, ready: bool) {
        if ready {
            self.prepare();
        }
        let is_recorded = |id: &u64| self.records.iter().flatten().any(|known| known == id);
        let stays = self.pieces.iter().any(|(id, piece)| match piece.kind {
            Kind::State { .. } => !piece.ending,
            _ => !is_recorded(id),
        });
        let word = |id: &u64| Logged::of(self.pieces[id].kind)?.word(*id);
        let words: Vec<u64> = self.pieces.keys().filter(|id| is_recorded(id)).filter_map(word).collect();
        assert_eq!(self.table.stays(|word| words.contains(&word)).is_some(), stays);
        if stays {
            return;
        }
        self.calls.clear();
        self.table = ForeignTable::default();
        let old = std::mem::take(&mut self.pieces);
        self.records.retain(|ids| ids.iter().any(|id| old.contains_key(id)));
        // In any order: the ids above all are not those of the last call.
        for ids in self.records.clone().into_iter().rev() {
            self.repeat(&ids, &old);
        }
        self.last_id = self.pieces.keys().last().copied().unwrap_or_default();
        // Calls that have freed some of a call's memory are repeated, too.
        for id in self.of_kind(|_| true).into_iter().filter(|id| !old.contains_key(id)) {
            self.table.end(id);
            self.ended(id);
        }
    }

    fn prepare(&mut self) {
        while !self.calls.is_empty() {
            self.finish(0, Some(true));
        }
        for (id, piece) in self.pieces.clone() {
            match piece.kind {
                Kind::State { .. } => self.retire(id),
                Kind::Resident { .. } => {}
                _ if self.records.iter().flatten().any(|known| *known == id) => {}
                _ => {
                    self.table.begin_unmapping(id);
                    self.table.end(id);
                    self.ended(id);
                }
            }
        }
    }

    fn repeat(&mut self, ids: &[u64], old: &BTreeMap<u64, Piece>) {
        let one = ids.iter().find_map(|id| old.get(id)).unwrap().clone();
        let owners = ids.iter().filter_map(|id| Logged::of(one.kind)?.word(*id)).map(Owner::Object);
        let owners: Vec<_> = owners.collect();
        let mut again = MemoryAgain::of(&owners);
        for id in ids {
            let address = self.address();
            let found = match one.kind {
                Kind::Lent { group } => self.table.lend(address, group, Some(&mut again)),
                Kind::Resident { owner } => {
                    match self.table.reside(owner, (one.address, one.bytes), Some(&mut again)) {
                        Some(Entered::New { id, replaced: None }) => Some(id),
                        _ => None,
                    }
                }
                Kind::Mapped | Kind::State { .. } => None,
            };
            assert_eq!(found, Some(*id));
            let address = if matches!(one.kind, Kind::Lent { .. }) { address } else { one.address };
            self.enter(*id, one.kind, address, one.bytes);
        }
        assert!(again.is_complete() && self.table.lend(1, 0, Some(&mut again)).is_none());
        let mut twice = MemoryAgain::of(&owners);
        assert!(self.table.lend(1, 0, Some(&mut twice)).is_none(), "the ids are in use");
    }

    fn takes(&mut self, step: &Step) {
        match *step {
            Step::Lend { pieces, group, fails } => self.lend(pieces, group, fails),
            Step::Reside { owner, place, bytes, fails } => self.reside(owner, place, bytes, fails),
            Step::Map { bytes } => self.map(bytes),
            Step::BeginFreeing { named, group } => {
                let id = self.id(named);
                let found = self.table.begin_freeing(id, &[group, GROUPS]);
                self.begins(id, found, |kind| kind == Kind::Lent { group });
            }
            Step::BeginUnmapping { named } => {
                let id = self.id(named);
                let found = self.table.begin_unmapping(id).map(|memory| memory.address);
                self.begins(id, found, |kind| kind == Kind::Mapped);
            }
            Step::Finish { call, ended } => self.finish(call, ended),
            Step::OwnerEnds { owner } => self.owner_ends(owner),
            Step::MakeState { of, copies } => self.make_state(of, copies),
            Step::Retire { named } => self.retire(self.id(named)),
            Step::Move { ready } => self.moves(ready),
        }
    }

    /// The table answers what the model knows, of each id and of one that was never given out.
    fn check(&self) {
        for id in (0..self.last_id + 3).chain([u64::MAX]) {
            let piece = self.pieces.get(&id);
            let fetched = piece.filter(|piece| matches!(piece.kind, Kind::Resident { .. } | Kind::Mapped));
            let found = self.table.readable(id);
            assert_eq!(found.as_ref().map(|m| (m.address, m.bytes)), fetched.map(|piece| (piece.address, piece.bytes)));
            assert_eq!(found.and_then(|m| m.readable).map(|r| reads(&r)), fetched.map(|piece| !piece.ending));
            for owner in 0..OWNERS {
                let own = piece.filter(|piece| piece.kind == Kind::Resident { owner });
                assert_eq!(self.table.resident(owner, id), own.map(|piece| (piece.address, piece.bytes)));
            }
        }
        for of in 0..GROUPS {
            for id in (0..self.last_id + 3).chain([u64::MAX]) {
                let own = self.pieces.get(&id).filter(|piece| piece.kind == Kind::State { of });
                let found = self.table.state(of, id).map(|(state, retired)| (state.memory.start.addr(), retired));
                assert_eq!(found, own.map(|piece| (piece.address, piece.ending)));
            }
        }
        let lent = self.of_kind(|kind| matches!(kind, Kind::Lent { .. })).len();
        let states = self.of_kind(|kind| matches!(kind, Kind::State { .. })).len();
        assert_eq!(self.table.counts(), [lent, self.pieces.len() - lent - states, states]);
    }
}

fn reads(readable: &Readable) -> bool {
    let mut reads = false;
    readable.copy_if_readable(|| reads = true);
    reads
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn memory_is_ended_once_and_found_by_its_own_kind_only(steps in prop::collection::vec(step(), 1..80)) {
        let mut world = World::default();
        for step in &steps {
            world.takes(step);
            world.check();
        }
    }
}

/// The bounds, which the program above does not reach.
#[test]
fn kinds_have_limits_of_their_own() {
    let table = ForeignTable::default();
    (0..MAX_FREED).for_each(|_| assert!(table.lend(64, 0, None).is_some()));
    assert!(table.lend(64, 0, None).is_none());
    let map = |table: &ForeignTable| table.map(std::ptr::without_provenance_mut(64), 8, None);
    let ids: Vec<u64> = (0..MAX_MAPPINGS).map(|_| map(&table).unwrap()).collect();
    assert!(map(&table).is_none() && table.reside(1, (64, 8), None).is_none());
    table.end(ids[7]);
    assert_eq!(map(&table), ids.last().map(|id| id + 1), "an id is not used twice");
}
