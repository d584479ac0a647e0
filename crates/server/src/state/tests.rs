use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use aviary_control::Assignment;
use aviary_control::stats::StatsPage;
use aviary_wire::{Encoder, HandleId, RequestHeader, kind};
use proptest::prelude::*;

use super::*;
use crate::api::{
    ApiDescriptor, CurrentObject, ExplicitState, FunctionInfo, HandleTypeInfo, Metadata, Reject, RemadeType, Role,
};
use crate::call::Call;
use crate::lane::dispatch::{HandlerFunction, Outcome, handler, run};
use crate::session::policy::Policy;
use crate::session::vendor;
use crate::session::{Accounts, Journal, Parts, Peer, Session, gate};
use crate::state::allocations;
use crate::state::object_log::ObjectLog;
use crate::tables::memory::SessionMemory;

mod dropped;
mod library;
use library::*;
mod memory;

const ARENA_BYTES: usize = 8192;

/// A session, and the memory that it shares with its guest.
struct Side {
    session: Arc<Session>,
    /// Outlives the session.
    arena: Vec<u8>,
}

impl Side {
    fn with_log(log: ObjectLog) -> Side {
        let mut arena = vec![0u8; ARENA_BYTES];
        // SAFETY: `arena` keeps its place on the heap and outlives the session: fields drop in their order.
        let memory = unsafe { SessionMemory::new(arena.as_mut_ptr(), ARENA_BYTES as u64, true) };
        let gate = gate(&API, &Assignment::default(), None, None).unwrap();
        let stats = StatsPage::create().unwrap();
        let stats = StatsPage::publish(stats.as_fd(), &gate).unwrap();
        let vendor = vendor::load(&API, None).unwrap();
        let journal = Journal { fd: 2, session: 0 };
        let parts = Parts {
            api: &API,
            vendor,
            accounts: Accounts::new(&API, gate, Policy::default(), stats, None, journal),
            peer: Peer::new(journal, None, None),
            memory,
            devices: crate::lane::devices::Devices::new(None, None, 0),
            log,
            move_every: None,
            orders: None,
        };
        Side { session: Session::new(parts), arena }
    }

    fn new() -> Side {
        Side::with_log(ObjectLog::on())
    }

    fn call_on(&self, lane: u32, function: u32, write: impl FnOnce(&mut Encoder)) -> Option<u64> {
        self.words_of(lane, function, write).map(|words| words.first().copied().unwrap_or_default())
    }

    fn words_of(&self, lane: u32, function: u32, write: impl FnOnce(&mut Encoder)) -> Option<Vec<u64>> {
        let mut body = Encoder::new();
        body.start();
        write(&mut body);
        let mut call = Call::new(self.session.clone(), self.session.objects.handles.in_use.lane(), lane);
        *call.request.bytes =
            body.finish_request(RequestHeader { kind: kind::CALL, function, ..Default::default() }).to_vec();
        let (header, _) = RequestHeader::parse(&call.request.bytes).unwrap();
        match run(&mut call, header) {
            Ok(Outcome::Done { success: true, .. }) => {
                Some(call.reply.body.body().as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect())
            }
            Ok(_) => None,
            Err(_) => panic!("the call was malformed"),
        }
    }

    fn call(&self, function: u32, write: impl FnOnce(&mut Encoder)) -> u64 {
        self.call_on(0, function, write).expect("a call that succeeds")
    }

    fn create(&self, first: &[u8]) -> u64 {
        self.call(CREATE, |e| e.buffer_inline(first))
    }

    fn captured(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        capture(&self.session, &mut bytes).unwrap();
        bytes
    }

    /// The session in another process, with the arena that the guest has.
    fn moved(&self) -> (Side, Rebuilt) {
        let mut new = Side::new();
        new.arena.copy_from_slice(&self.arena);
        let rebuilt = rebuild(&new.session, &mut self.captured().as_slice(), &Places::default()).unwrap();
        (new, rebuilt)
    }

    /// The objects that nobody made.
    fn find(&self, first: u64) -> Vec<u64> {
        self.words_of(0, FIND, |e| e.word(first)).expect("a call that succeeds")
    }

    fn sum(&self, id: u64) -> u64 {
        self.call(SUM, |e| e.word(id))
    }

    fn references(&self, id: u64) -> u64 {
        self.call(REFERENCES, |e| e.word(id))
    }
}

#[test]
fn handles_are_charged_once_however_often_a_session_moves() {
    let mut side = Side::new();
    let first = side.create(&[1]);
    let charged = side.session.objects.handles.quota.charged();
    assert!(charged > 0);
    for count in 1..4u8 {
        let (moved, _) = side.moved();
        side = moved;
        assert_eq!(side.session.objects.handles.quota.charged(), charged);
        side.create(&[count]);
        assert_eq!(side.session.objects.handles.quota.charged(), charged, "{count} objects more are within the step");
    }
    side.call(DESTROY, |e| e.word(first));
}

#[test]
fn objects_come_back_under_their_ids() {
    let mut old = Side::new();
    old.arena[4096..4196].fill(1);
    let short_lived = old.create(&[9]);
    let a = old.create(&[1, 2]);
    let b = old.call(CREATE, |e| e.buffer_arena(4096, 100));
    let c = old.create(&[50]);
    old.call(LINK, |e| (e.word(a), e.word(b), e.word(0)).2);
    old.call(LINK, |e| (e.word(a), e.word(c), e.word(1)).2);
    old.call(DESTROY, |e| e.word(short_lived));
    old.call(DESTROY, |e| e.word(c));
    assert_eq!(old.sum(a), 153);
    old.arena.fill(0);
    assert_eq!(old.session.objects.log.size().records, 6, "the ended object that `a` needs, and its end, are kept");
    let (new, _) = old.moved();
    assert_eq!((new.sum(a), new.sum(b)), (153, 100));
    assert_eq!(new.session.objects.handles.len(), 2);
    assert_ne!(old.session.objects.handles.native(0, a), new.session.objects.handles.native(0, a));
    assert_eq!(new.session.objects.log.size(), old.session.objects.log.size(), "the new session can be moved, too");
    assert!(new.call_on(0, SUM, |e| e.word(c)).is_none() && new.call_on(0, SUM, |e| e.word(short_lived)).is_none());
}

#[test]
fn ids_of_ended_objects_stay_stale_after_two_moves() {
    let old = Side::new();
    let ids: Vec<u64> = (0..20).map(|_| old.create(&[1])).collect();
    ids.iter().for_each(|id| _ = old.call(DESTROY, |e| e.word(*id)));
    let kept = old.create(&[7]);
    let (new, _) = old.moved();
    let (newer, _) = new.moved();
    assert_eq!(newer.sum(kept), 7);
    let stale = |id: &u64| newer.call_on(0, SUM, |e| e.word(*id)).is_none();
    assert!(ids.iter().all(stale));
    let next: Vec<u64> = (0..30).map(|_| newer.create(&[2])).collect();
    assert!(ids.iter().all(stale), "no new object has an old id");
    assert!(!next.contains(&kept));
}

#[test]
fn references_are_as_many_as_before() {
    let old = Side::new();
    let (a, b) = (old.create(&[1]), old.create(&[2]));
    for _ in 0..5 {
        old.call(RETAIN, |e| e.word(a));
    }
    old.call(RELEASE, |e| e.word(a));
    assert_eq!((old.references(a), old.references(b)), (5, 1));
    let (new, _) = old.moved();
    assert_eq!((new.references(a), new.references(b)), (5, 1));
    (0..5).for_each(|_| _ = new.call(RELEASE, |e| e.word(a)));
    assert!(new.call_on(0, SUM, |e| e.word(a)).is_none(), "the last reference was the last");
}

#[test]
fn ids_that_the_guest_chose_come_back() {
    let old = Side::new();
    let id = |generation| HandleId { ty: 0, generation, index: HandleId::MINTED | 9 }.to_word();
    assert_eq!(old.call(NAME, |e| e.word(id(4))), id(4));
    old.call(DESTROY, |e| e.word(id(4)));
    assert_eq!(old.call(NAME, |e| e.word(id(6))), id(6));
    let (new, _) = old.moved();
    assert!(
        new.session.objects.handles.native(0, id(6)).is_some()
            && new.session.objects.handles.native(0, id(4)).is_none()
    );
    assert!(!new.session.objects.handles.may_adopt(0, id(5)), "an older one may not be chosen");
    assert!(new.session.objects.handles.may_adopt(0, id(7)));
}

#[test]
fn objects_of_queries_are_found_by_their_names() {
    let old = Side::new();
    let found = old.find(0);
    let user = old.create(&[3]);
    old.call(LINK, |e| (e.word(user), e.word(found[2]), e.word(0)).2);
    let name = |side: &Side, id| name_of_root(side.session.objects.handles.native(0, id).unwrap());
    let names: Vec<String> = found.iter().map(|id| name(&old, *id)).collect();
    let (new, _) = old.moved();
    assert_eq!(found.iter().map(|id| name(&new, *id)).collect::<Vec<_>>(), names);
    let places = Places { identities: [(names[0].clone(), names[1].clone())].into() };
    let other = Side::new();
    let error = rebuild(&other.session, &mut old.captured().as_slice(), &places).err().unwrap();
    assert!(matches!(error, RebuildError::Different { .. }), "two cannot become one: {error}");
}

#[test]
fn explicit_state_is_saved_and_restored() {
    let old = Side::new();
    let large = old.create(&[0; 100]);
    old.call(FILL, |e| (e.word(large), e.word(1 << 28 | 5)).1);
    let (new, _) = old.moved();
    assert_eq!(content_of(new.session.objects.handles.native(0, large).unwrap()), vec![5; 1 << 20]);
}

#[test]
fn state_of_a_thread_comes_back_on_its_lane() {
    let old = Side::new();
    let (a, b) = (old.create(&[1]), old.create(&[2]));
    old.call_on(3, SELECT, |e| e.word(b));
    old.call_on(3, SELECT, |e| e.word(a));
    old.call_on(4, SELECT, |e| e.word(b));
    old.call_on(5, SELECT, |e| e.word(b));
    old.session.objects.log.thread_ended(5);
    let (new, rebuilt) = old.moved();
    let selected = |lane| {
        rebuild_thread(&new.session, &rebuilt, lane).unwrap();
        new.call_on(lane, SELECTED, |_| {})
    };
    assert_eq!([3, 4, 5].map(selected), [Some(a), Some(b), None]);
}

#[test]
fn calls_are_made_again_with_the_object_that_was_current() {
    let old = Side::new();
    let (a, b, gone) = (old.create(&[1]), old.create(&[2]), old.create(&[3]));
    let add = |place: u64, number: u64| old.call(ADD_HERE, |e| (e.word(place), e.word(number)).1);
    for (at, number) in [(a, 10), (b, 20), (gone, 30), (a, 11)] {
        old.call(FOCUS, |e| e.word(at));
        add(1, number);
    }
    old.call(FOCUS, |e| e.word(a));
    add(2, 12);
    old.call(FOCUS, |e| e.word(b));
    old.call(DESTROY, |e| e.word(gone));
    let (new, _) = old.moved();
    let native = |id| new.session.objects.handles.native(0, id).unwrap();
    assert_eq!(numbers_of(native(a)), [(1, 11), (2, 12)], "each place once, the last number");
    assert_eq!(numbers_of(native(b)), [(1, 20)]);
    // SAFETY: it only tells of this thread.
    assert_eq!(unsafe { focused() }, 0, "no object of the rebuild is current afterwards");
}

#[test]
fn charges_are_tied_and_not_taken_again() {
    let old = Side::new();
    let a = old.create(&[1; 40]);
    old.call(RESERVE, |e| e.word(1000));
    let used = |side: &Side| side.session.accounts.gate.accounts()[0].used();
    assert_eq!(used(&old), 1040);
    let (new, _) = old.moved();
    assert_eq!(used(&new), 0, "the accounts move by other means");
    new.session.accounts.gate.charge(0, 1040).unwrap();
    new.call(DESTROY, |e| e.word(a));
    assert_eq!(used(&new), 1000);
    new.call(UNRESERVE, |e| e.word(1000));
    assert_eq!(used(&new), 0);
}

#[test]
fn values_that_must_be_the_same_are_compared() {
    let old = Side::new();
    old.create(&[1]);
    assert!(!may_differ(&old.session));
    old.call(CREATE_AT, |e| e.word(17));
    assert!(may_differ(&old.session));
    let bytes = old.captured();
    let new = Side::new();
    MOVES_PLACES.store(1, Ordering::SeqCst);
    let error = rebuild(&new.session, &mut bytes.as_slice(), &Places::default()).err().unwrap();
    MOVES_PLACES.store(0, Ordering::SeqCst);
    assert!(matches!(error, RebuildError::NotSame { function: "create_at", .. }), "{error}");
}

#[test]
fn a_callback_that_has_run_is_not_called_again() {
    let old = Side::new();
    let object = old.create(&[1]);
    old.call(WATCH, |e| (e.word(object), e.word(900)).1);
    let (waiting, _) = old.moved();
    let closure = |side: &Side| watcher_of(side.session.objects.handles.native(0, object).unwrap()).unwrap();
    assert!(crate::callbacks::closures::called(closure(&waiting), WATCH_KIND).is_some(), "it had not run");
    assert!(crate::callbacks::closures::called(closure(&old), WATCH_KIND).is_some());
    let (new, _) = old.moved();
    assert!(crate::callbacks::closures::called(closure(&new), WATCH_KIND).is_none(), "it has run");
}

#[test]
fn what_cannot_be_moved_says_why() {
    let off = Side::with_log(ObjectLog::off());
    assert!(matches!(capture(&off.session, &mut Vec::new()), Err(NotMovable::NotRecorded)));
    let side = Side::new();
    side.call(FORGOTTEN, |_| {});
    let error = capture(&side.session, &mut Vec::new()).unwrap_err();
    assert!(matches!(error, NotMovable::Unrecorded { of: "object" }) && error.is_final(), "{error}");
    let side = Side::new();
    let object = side.create(&[1]);
    side.call(WATCH_UNRECORDED, |e| (e.word(object), e.word(901)).1);
    let error = capture(&side.session, &mut Vec::new()).unwrap_err();
    assert!(!error.is_final(), "{error}");
}

#[test]
fn a_call_that_blocks_moves_is_named_and_turns_the_log_off() {
    let side = Side::new();
    let object = side.create(&[1]);
    side.call_on(0, UNEXPLAINED, |e| e.word(0));
    side.captured();
    side.call(UNEXPLAINED, |e| e.word(1));
    let log = &side.session.objects.log;
    assert!(!log.is_on() && log.size() == Default::default() && log.lock().states.is_empty());
    side.create(&[2]);
    side.call(DESTROY, |e| e.word(object));
    side.call(UNEXPLAINED, |e| e.word(1));
    assert_eq!(log.size(), Default::default(), "nothing is recorded any longer");
    let error = capture(&side.session, &mut Vec::new()).unwrap_err();
    let named = matches!(error, NotMovable::BlockedByCall { function: "unexplained", why: "no one knows" });
    assert!(named && error.is_final(), "{error}");
}

#[test]
fn objects_that_no_record_makes_come_back_with_their_references() {
    let old = Side::new();
    let (first, second) = (old.call(WRITE_NOTE, |e| e.word(11)), old.call(WRITE_NOTE, |e| e.word(12)));
    let ended = old.call(WRITE_NOTE, |e| e.word(13));
    (0..2).for_each(|_| _ = old.call(RETAIN_NOTE, |e| e.word(second)));
    old.call(RELEASE_NOTE, |e| e.word(ended));
    assert_eq!(old.session.objects.log.size(), Default::default(), "none of that is recorded");
    let (new, _) = old.moved();
    let (newer, _) = new.moved();
    let read = |id| newer.call(READ_NOTE, |e| e.word(id));
    assert_eq!((read(first), read(second)), (11, 12));
    assert!(newer.call_on(0, READ_NOTE, |e| e.word(ended)).is_none());
    let native = newer.session.objects.handles.native(1, second).unwrap();
    assert_eq!(note(native), (3, true));
    (0..3).for_each(|_| _ = newer.call(RELEASE_NOTE, |e| e.word(second)));
    assert!(newer.call_on(0, READ_NOTE, |e| e.word(second)).is_none(), "the last reference was the last");
    assert_eq!(note(native).0, 0);
}

#[test]
fn an_object_that_is_not_complete_is_a_reason_that_passes() {
    let side = Side::new();
    let note = side.call(WRITE_NOTE, |e| e.word(UNWRITTEN));
    let error = capture(&side.session, &mut Vec::new()).unwrap_err();
    assert!(matches!(error, NotMovable::Incomplete { of: "note" }) && !error.is_final(), "{error}");
    side.call(RELEASE_NOTE, |e| e.word(note));
    side.captured();
}

#[test]
fn a_changed_snapshot_is_refused() {
    let old = Side::new();
    let a = old.create(&[1, 2, 3]);
    old.call(FILL, |e| (e.word(a), e.word(64 << 8 | 1)).1);
    old.call(WRITE_NOTE, |e| e.word(5));
    let bytes = old.captured();
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 0x41;
        let new = Side::new();
        assert!(rebuild(&new.session, &mut changed.as_slice(), &Places::default()).is_err(), "byte {at}");
    }
    let again = Side::new();
    again.create(&[1]);
    let error = rebuild(&again.session, &mut bytes.as_slice(), &Places::default()).err().unwrap();
    assert!(matches!(error, RebuildError::Table(_)), "a session with objects cannot take others");
}

/// What calls of one lane, one like the other, leave behind and ask for after as many to warm up.
#[derive(Debug, PartialEq, Eq)]
struct Memory {
    bytes_kept: isize,
    allocations: usize,
}

fn memory_of(calls: usize, function: u32, objects: usize, log: ObjectLog) -> Memory {
    let side = Side::with_log(log);
    let ids = [side.create(&[1]), side.create(&[2])];
    let mut body = Encoder::new();
    body.start();
    ids.into_iter().chain([0]).take(objects).for_each(|word| body.word(word));
    let request = body.finish_request(RequestHeader { kind: kind::CALL, function, ..Default::default() }).to_vec();
    let (header, _) = RequestHeader::parse(&request).unwrap();
    let mut call = Call::new(side.session.clone(), side.session.objects.handles.in_use.lane(), 0);
    let mut repeat = || {
        for _ in 0..calls {
            call.request.bytes.clear();
            call.request.bytes.extend_from_slice(&request);
            assert!(matches!(run(&mut call, header), Ok(Outcome::Done { success: true, .. })));
            call.reset();
        }
    };
    repeat();
    let before = (allocations::held_by_this_thread(), allocations::asked_by_this_thread());
    repeat();
    Memory {
        bytes_kept: allocations::held_by_this_thread() - before.0,
        allocations: allocations::asked_by_this_thread() - before.1,
    }
}

#[test]
fn repeated_calls_leave_nothing_behind() {
    let kept = |log| memory_of(200_000, LINK, 3, log).bytes_kept;
    assert_eq!(kept(ObjectLog::off()), 0);
    assert_eq!(kept(ObjectLog::on()), 0, "the last call takes the place of the one before");
}

#[test]
fn calls_use_the_memory_of_those_before_them() {
    let nothing = Memory { bytes_kept: 0, allocations: 0 };
    assert_eq!(memory_of(100, SUM, 1, ObjectLog::off()), nothing);
    assert_eq!(memory_of(100, SUM, 1, ObjectLog::on()), nothing);
}

/// A step of a random program: small numbers choose among the live objects.
#[derive(Debug, Clone)]
enum Step {
    Create(u8),
    Choose(u32),
    Link(usize, usize, u64),
    Fill(usize, u8),
    Retain(usize),
    Release(usize),
    Destroy(usize),
    Find(u64),
    Move,
}

fn step() -> impl Strategy<Value = Step> {
    let at = any::<usize>;
    prop_oneof![
        6 => any::<u8>().prop_map(Step::Create),
        2 => (0..4u32).prop_map(Step::Choose),
        6 => (at(), at(), 0..3u64).prop_map(|(to, from, key)| Step::Link(to, from, key)),
        3 => (at(), any::<u8>()).prop_map(|(object, value)| Step::Fill(object, value)),
        4 => at().prop_map(Step::Retain),
        4 => at().prop_map(Step::Release),
        3 => at().prop_map(Step::Destroy),
        2 => (0..3u64).prop_map(Step::Find),
        1 => Just(Step::Move),
    ]
}

/// An object as the guest knows it.
#[derive(Debug, Clone, Default)]
struct Known {
    base: u64,
    links: HashMap<u64, u64>,
    references: u64,
    fill: Option<u8>,
    root: bool,
}

#[derive(Default)]
struct Model {
    live: Vec<(u64, Known)>,
    ended: Vec<u64>,
    generations: HashMap<u32, u32>,
}

impl Model {
    fn at(&mut self, number: usize) -> Option<&mut (u64, Known)> {
        let at = number.checked_rem(self.live.len())?;
        self.live.get_mut(at)
    }

    fn end(&mut self, id: u64) {
        self.live.retain(|(live, _)| *live != id);
        self.ended.push(id);
    }

    fn compare(&self, side: &Side) {
        for (id, known) in &self.live {
            assert_eq!(side.sum(*id), known.base + known.links.values().sum::<u64>());
            if !known.root {
                assert_eq!(side.references(*id), known.references);
            }
            if let Some(value) = known.fill {
                assert_eq!(content_of(side.session.objects.handles.native(0, *id).unwrap()), vec![value; 16]);
            }
        }
        for id in &self.ended {
            assert!(side.call_on(0, SUM, |e| e.word(*id)).is_none(), "{id:#x} is stale");
        }
        assert_eq!(side.session.objects.handles.len(), self.live.len());
    }

    fn perform(&mut self, side: &mut Side, step: Step) {
        match step {
            Step::Create(value) => {
                let id = side.create(&[value]);
                assert!(!self.ended.contains(&id));
                self.live.push((id, Known { base: value.into(), references: 1, ..Known::default() }));
            }
            Step::Choose(index) => {
                let generation = self.generations.entry(index).or_default();
                let id = |generation| HandleId { ty: 0, generation, index: HandleId::MINTED | index }.to_word();
                if self.live.iter().any(|(live, _)| *live == id(*generation)) {
                    return;
                }
                *generation += 1;
                let id = id(*generation);
                assert_eq!(side.call(NAME, |e| e.word(id)), id);
                self.live.push((id, Known { references: 1, ..Known::default() }));
            }
            Step::Link(to, from, key) => {
                let Some((from, value)) = self.at(from).map(|(id, known)| (*id, known.base)) else { return };
                // Those that nobody made are the same for all sessions.
                let Some((to, known)) = self.at(to).filter(|(to, known)| *to != from && !known.root) else { return };
                known.links.insert(key, value);
                side.call(LINK, |e| (e.word(*to), e.word(from), e.word(key)).2);
            }
            Step::Fill(object, value) => {
                let Some((id, known)) = self.at(object).filter(|(_, known)| !known.root) else { return };
                // Of objects that were created from bytes only: the others have no state of their own.
                if HandleId::from_word(*id).is_some_and(HandleId::is_minted) {
                    return;
                }
                known.fill = Some(value);
                side.call(FILL, |e| (e.word(*id), e.word(16 << 8 | u64::from(value))).1);
            }
            Step::Retain(object) => {
                let Some((id, known)) = self.at(object).filter(|(_, known)| !known.root) else { return };
                known.references += 1;
                side.call(RETAIN, |e| e.word(*id));
            }
            Step::Release(object) => {
                let Some((id, known)) = self.at(object).filter(|(_, known)| !known.root) else { return };
                known.references -= 1;
                let (id, left) = (*id, known.references);
                side.call(RELEASE, |e| e.word(id));
                if left == 0 {
                    self.end(id);
                }
            }
            Step::Destroy(object) => {
                let Some((id, _)) = self.at(object).filter(|(_, known)| !known.root).cloned() else { return };
                side.call(DESTROY, |e| e.word(id));
                self.end(id);
            }
            Step::Find(number) => {
                let found = side.find(number);
                let new = found.iter().filter(|id| !self.live.iter().any(|(live, _)| live == *id));
                let new: Vec<u64> = new.copied().collect();
                self.live.extend(new.into_iter().map(|id| (id, Known { root: true, ..Known::default() })));
            }
            Step::Move => *side = side.moved().0,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn random_programs_do_not_notice_moves(steps in prop::collection::vec(step(), 0..150)) {
        let (mut side, mut model) = (Side::new(), Model::default());
        for step in steps {
            model.perform(&mut side, step);
        }
        model.compare(&side);
        let (new, _) = side.moved();
        model.compare(&new);
        let (newer, _) = new.moved();
        model.compare(&newer);
        prop_assert_eq!(newer.session.objects.log.size(), new.session.objects.log.size());
    }
}
