use super::*;
use crate::api::{ApiDescriptor, FunctionInfo, Reject, ResourceKind};
use crate::call::Call;
use crate::handles::in_use::LaneUses;
use crate::lane::devices::Devices;
use crate::lane::dispatch::{Outcome, handler, run};
use crate::lane::tests::session_of;
use crate::session::Session;
use crate::tables::foreign::ForeignTable;
use aviary_control::Assignment;
use aviary_wire::{Encoder, RequestHeader, kind};
use proptest::prelude::*;

const KIND: u32 = 1;
const SIZE: usize = 100;
const MEMORY: u32 = 0;
const MAKE: u32 = 0;
const USE: u32 = 1;
const END: u32 = 2;
const MAKE_COPIED: u32 = 4;
const USE_COPIED: u32 = 5;

static API: ApiDescriptor = ApiDescriptor {
    name: "states",
    version: "1",
    spec_hash: 1,
    soname: "libm.so.6",
    libraries: &[],
    environment: &[],
    functions: &[
        FunctionInfo {
            name: "make",
            on_behalf_of: &[],
            handler: handler(make),
            replayable: false,
            waits: false,
            late: false,
            blocker: None,
        },
        FunctionInfo {
            name: "use",
            on_behalf_of: &[],
            handler: handler(work),
            replayable: false,
            waits: false,
            late: false,
            blocker: None,
        },
        FunctionInfo {
            name: "end",
            on_behalf_of: &[],
            handler: handler(end),
            replayable: false,
            waits: false,
            late: false,
            blocker: None,
        },
        FunctionInfo {
            name: "other",
            on_behalf_of: &[],
            handler: handler(other),
            replayable: false,
            waits: false,
            late: false,
            blocker: None,
        },
        FunctionInfo {
            name: "make_copied",
            on_behalf_of: &[],
            handler: handler(make_copied),
            replayable: false,
            waits: false,
            late: false,
            blocker: None,
        },
        FunctionInfo {
            name: "use_copied",
            on_behalf_of: &[],
            handler: handler(work_copied),
            replayable: false,
            waits: false,
            late: false,
            blocker: None,
        },
    ],
    handle_types: &[],
    resources: &[("memory", ResourceKind::Continuous)],
    state: None,
    current: None,
    quiesce: None,
    stays: None,
    contents: None,
    rejected: |_, _| -1,
};

// As generated code does; the library's part is a counter in the struct.
unsafe fn make_one(call: &mut Call, copies: bool) -> Result<(), Reject> {
    let memory = call.state(KIND, SIZE, 8, true, copies)? as usize;
    call.charge(MEMORY, SIZE as u64)?;
    let fails = call.word()? != 0;
    call.reply_state(memory, false, !fails);
    call.finish(!fails, 0);
    Ok(())
}

unsafe fn work_on(call: &mut Call, copies: bool) -> Result<(), Reject> {
    let memory = call.state(KIND, SIZE, 8, false, copies)?;
    let (address, bytes) = (call.word()?, call.word()? as usize);
    let scratch = call.state_scratch(memory as usize, 8, address, bytes, Some(MEMORY))?;
    let (start, room, to) = (call.word()?, call.word()? as usize, call.word()?);
    call.cursor(start as usize as *mut u8, room)?;
    // SAFETY: the struct and its scratch memory are this large.
    unsafe {
        *memory.cast::<u64>() += 1;
        if bytes > 0 && !scratch.is_null() {
            *scratch.add(bytes - 1) = 1;
        }
        call.reply_word(*memory.cast::<u64>());
    }
    call.reply_state(memory as usize, false, true);
    call.reply_cursor(start, to)?;
    call.finish(true, 0);
    Ok(())
}

unsafe fn end(call: &mut Call) -> Result<(), Reject> {
    let copies = false;
    let memory = call.state(KIND, SIZE, 8, false, copies)? as usize;
    call.reply_state(memory, true, true);
    call.finish(true, 0);
    Ok(())
}

unsafe fn make(call: &mut Call) -> Result<(), Reject> {
    // SAFETY: the caller's promise.
    unsafe { make_one(call, false) }
}

unsafe fn work(call: &mut Call) -> Result<(), Reject> {
    // SAFETY: the caller's promise.
    unsafe { work_on(call, false) }
}

unsafe fn make_copied(call: &mut Call) -> Result<(), Reject> {
    // SAFETY: the caller's promise.
    unsafe { make_one(call, true) }
}

unsafe fn work_copied(call: &mut Call) -> Result<(), Reject> {
    // SAFETY: the caller's promise.
    unsafe { work_on(call, true) }
}

unsafe fn other(call: &mut Call) -> Result<(), Reject> {
    call.state(KIND + 1, SIZE, 8, false, false)?;
    call.finish(true, 0);
    Ok(())
}

struct Guest {
    call: Call,
    session: Arc<Session>,
}

impl Guest {
    fn new(limit: u64) -> Guest {
        let mut assignment = Assignment::default();
        assignment.limits.insert("memory".into(), limit);
        let session = session_of(&API, Devices::new(None, None, 0), &assignment);
        Guest { call: Call::new(session.clone(), Arc::new(LaneUses::default()), 0), session }
    }

    /// The words of the reply; `None`: refused. Panics if the session ends.
    fn call(&mut self, function: u32, words: &[u64]) -> Option<Vec<u64>> {
        let mut encoder = Encoder::new();
        encoder.start();
        words.iter().for_each(|word| encoder.word(*word));
        let header = RequestHeader { kind: kind::CALL, function, ..Default::default() };
        *self.call.request.bytes = encoder.finish_request(header).to_vec();
        let Ok(outcome) = run(&mut self.call, header) else { panic!("the session ends") };
        let reply =
            self.call.reply.body.body().chunks_exact(8).map(|w| u64::from_le_bytes(w.try_into().unwrap())).collect();
        self.call.reset();
        assert!(self.call.effects.rare.states.is_empty() && self.call.effects.rare.cursors.is_empty());
        match outcome {
            Outcome::Done { success: true, .. } => Some(reply),
            _ => None,
        }
    }

    fn make(&mut self, ended: &[u64]) -> Option<u64> {
        let words: Vec<u64> = [ended.len() as u64].into_iter().chain(ended.iter().copied()).chain([0]).collect();
        self.call(MAKE, &words).map(|reply| reply[0])
    }

    fn used(&self) -> u64 {
        self.session.accounts.gate.accounts()[0].used()
    }
}

const NOTHING: [u64; 5] = [0, 0, 0, 0, 0];

fn with(id: u64, words: [u64; 5]) -> Vec<u64> {
    [id, 0].into_iter().chain(words).collect()
}

#[test]
fn state_lives_from_its_making_to_its_end() {
    let mut guest = Guest::new(1000);
    let (a, b) = (guest.make(&[]).unwrap(), guest.make(&[]).unwrap());
    assert_eq!(guest.call(USE, &with(a, NOTHING)), Some(vec![1, a, 2, 0]));
    assert_eq!(guest.call(USE, &with(a, NOTHING)), Some(vec![2, a, 3, 0]));
    assert_eq!(guest.call(USE, &with(b, NOTHING)), Some(vec![1, b, 2, 0]));
    assert_eq!(guest.call(END, &[a, 0]), Some(vec![0, 4]));
    assert_eq!(guest.call(USE, &with(a, NOTHING)), None);
    assert_eq!(guest.used(), 100);
    // The memory of the second is used again.
    let c = guest.make(&[b, 77, b]).unwrap();
    assert_eq!(guest.call(END, &[b, 0]), None);
    assert_eq!(guest.used(), 100);
    // A call that fails makes none.
    assert_eq!(guest.call(MAKE, &[0, 1]), None);
    assert_eq!(guest.used(), 100);
    assert!(guest.call(END, &[c, 0]).is_some());
    assert_eq!(guest.used(), 0);
}

#[test]
fn state_of_another_type_or_in_use_is_refused() {
    let mut guest = Guest::new(1000);
    let id = guest.make(&[]).unwrap();
    assert_eq!(guest.call(3, &[id, 0]), None);
    assert_eq!(guest.call(USE, &with(0, NOTHING)), None);
    let state = guest.session.tables.foreign.state(KIND, id).unwrap().0;
    state.busy.store(true, Ordering::Release);
    assert_eq!(guest.call(USE, &with(id, NOTHING)), None);
    state.busy.store(false, Ordering::Release);
    assert!(guest.call(USE, &with(id, NOTHING)).is_some());
}

#[test]
fn scratch_memory_stays_until_address_or_size_change_and_is_charged() {
    let mut guest = Guest::new(1000);
    let id = guest.make(&[]).unwrap();
    let at = |guest: &Guest| {
        let state = guest.session.tables.foreign.state(KIND, id).unwrap().0;
        lock(&state.scratch).first().map(|s| s.memory.start as usize)
    };
    assert!(guest.call(USE, &with(id, [5, 600, 0, 0, 0])).is_some());
    assert_eq!(guest.used(), 700);
    let first = at(&guest);
    assert!(guest.call(USE, &with(id, [5, 600, 0, 0, 0])).is_some());
    assert_eq!((guest.used(), at(&guest)), (700, first));
    assert_eq!(guest.call(USE, &with(id, [6, 901, 0, 0, 0])), None, "a byte more than the limit");
    assert_eq!(guest.used(), 100);
    assert!(guest.call(USE, &with(id, [6, 900, 0, 0, 0])).is_some());
    assert_eq!(guest.used(), 1000);
    assert_eq!(guest.make(&[]), None);
    assert!(guest.call(USE, &with(id, [0, 900, 0, 0, 0])).is_some());
    assert_eq!(guest.used(), 100);
    assert!(guest.call(END, &[id, 0]).is_some());
    assert_eq!((guest.used(), guest.session.tables.foreign.states.taken.load(Ordering::Acquire)), (0, 0));
}

#[test]
fn states_of_a_session_are_bounded() {
    let states = ForeignTable::default();
    let large = MAX_STATE_BYTES - 4096;
    let one = states.new_state(KIND, large, false, 0).unwrap();
    assert!(states.new_state(KIND, 8192, false, 0).is_none());
    assert!(states.new_state(KIND, usize::MAX, false, 0).is_none());
    drop(one);
    assert!(states.new_state(KIND, 8192, false, 0).is_some());
}

#[test]
fn pointer_moves_within_its_buffer_only() {
    let mut guest = Guest::new(1000);
    let id = guest.make(&[]).unwrap();
    let moved =
        |guest: &mut Guest, start, room, to| guest.call(USE, &with(id, [0, 0, start, room, to])).map(|reply| reply[3]);
    assert_eq!(moved(&mut guest, 4096, 100, 4196), Some(100));
    assert_eq!(moved(&mut guest, 4096, 100, 4096), Some(0));
    assert_eq!(moved(&mut guest, 4096, 100, 4197), None);
    assert_eq!(moved(&mut guest, 4096, 100, 4095), None);
    assert_eq!(moved(&mut guest, 4096, 100, 0), Some(u64::MAX));
    assert_eq!(moved(&mut guest, 0, 0, 0), Some(0));
    assert_eq!(moved(&mut guest, 0, 1, 0), None, "data without a pointer");
    assert_eq!(moved(&mut guest, 0, 0, 8), None);
}

proptest! {
    /// Accounts hold what is there and nothing stays marked as in use, for any requests of a guest.
    #[test]
    fn accounts_follow_any_requests(calls in proptest::collection::vec((0u32..3, 0u64..6, 0u64..3, 0u64..400), 1..60)) {
        let mut guest = Guest::new(1000);
        for (function, id, address, bytes) in calls {
            match function {
                MAKE => drop(guest.make(&[id])),
                USE => drop(guest.call(USE, &with(id, [address, bytes, 0, 0, 0]))),
                _ => drop(guest.call(END, &[id, 0])),
            }
            let table = guest.session.tables.foreign.table();
            let mut bytes = 0;
            for state in table.states() {
                prop_assert!(!state.busy.load(Ordering::Acquire));
                bytes += SIZE as u64 + lock(&state.scratch).iter().map(|s| s.bytes as u64).sum::<u64>();
            }
            drop(table);
            prop_assert_eq!(guest.used(), bytes);
        }
    }
}

/// As a guest's struct: id and version.
type Key = (u64, u64);

impl Guest {
    fn make_copied(&mut self, ended: &[u64]) -> Option<Key> {
        let words: Vec<u64> = [ended.len() as u64].into_iter().chain(ended.iter().copied()).chain([0]).collect();
        self.call(MAKE_COPIED, &words).map(|reply| (reply[0], reply[1]))
    }

    /// One more on the counter, which comes back, and the key after the call.
    fn count(&mut self, key: Key, copied: bool, scratch: u64, ended: &[u64]) -> Option<(u64, Key)> {
        let mut words = vec![key.0, key.1, u64::from(copied), ended.len() as u64];
        words.extend(ended);
        words.extend([scratch, if scratch == 0 { 0 } else { 16 }, 0, 0, 0]);
        self.call(USE_COPIED, &words).map(|reply| (reply[0], (reply[1], reply[2])))
    }
}

#[test]
fn copy_goes_on_from_the_version_that_it_was_copied_at() {
    let mut guest = Guest::new(1000);
    let mut keys = vec![guest.make_copied(&[]).unwrap()];
    for n in 1..10 {
        let (counted, key) = guest.count(keys[n - 1], false, 0, &[]).unwrap();
        assert_eq!(counted, n as u64);
        keys.push(key);
    }
    assert_eq!(guest.used(), 100);
    for n in [9, 3, 0, 8] {
        let (counted, copy) = guest.count(keys[n], true, 0, &[]).unwrap();
        assert_eq!(counted, n as u64 + 1);
        assert_ne!(copy.0, keys[0].0);
        assert_eq!(guest.count(copy, false, 0, &[]).map(|(counted, _)| counted), Some(n as u64 + 2));
        assert_eq!(guest.used(), 200);
        assert!(guest.make_copied(&[copy.0]).is_some_and(|key| guest.call(END, &[key.0, 0]).is_some()));
    }
    assert_eq!(guest.count(keys[9], false, 0, &[]).map(|(counted, _)| counted), Some(10), "the original is as it was");
    // An older version in the place of the newer one.
    assert_eq!(guest.count(keys[4], false, 0, &[]).map(|(counted, _)| counted), Some(5));
}

#[test]
fn scratch_memory_is_copied_and_may_have_another_address() {
    let mut guest = Guest::new(1000);
    let made = guest.make_copied(&[]).unwrap();
    let (_, before) = guest.count(made, false, 0, &[]).unwrap();
    let (_, with_scratch) = guest.count(before, false, 5, &[]).unwrap();
    assert_eq!(guest.used(), 116);
    let last_byte = |guest: &Guest, id| {
        let state = guest.session.tables.foreign.state(KIND, id).unwrap().0;
        let scratch = lock(&state.scratch);
        // SAFETY: memory of 16 bytes.
        scratch.first().map(|s| (s.address, unsafe { *s.memory.start.add(15) }))
    };
    let (_, copy) = guest.count(with_scratch, true, 6, &[]).unwrap();
    assert_eq!((last_byte(&guest, copy.0), guest.used()), (Some((6, 1)), 232));
    let (_, copy) = guest.count(before, true, 0, &[]).unwrap();
    assert_eq!((last_byte(&guest, copy.0), guest.used()), (None, 332), "there was none then");
}

#[test]
fn copy_is_charged_and_refused_beyond_the_limit() {
    let mut guest = Guest::new(150);
    let key = guest.make_copied(&[]).unwrap();
    assert_eq!(guest.count(key, true, 0, &[]), None);
    assert_eq!(guest.used(), 100);
    let (_, key) = guest.count(key, false, 0, &[]).unwrap();
    // The struct has moved: the old one has gone, so that the new one has room.
    let moved = guest.make_copied(&[key.0]).unwrap();
    assert_eq!(guest.used(), 100);
    assert_eq!(guest.count(key, true, 0, &[]), None, "the other is there");
    assert!(guest.call(END, &[moved.0, 0]).is_some());
    assert_eq!(guest.count(key, false, 0, &[]).map(|(counted, _)| counted), Some(2), "a state whose struct has gone");
    assert_eq!(guest.used(), 100);
}

#[test]
fn states_whose_structs_have_gone_are_bounded() {
    let mut guest = Guest::new(u64::MAX);
    let first = guest.make_copied(&[]).unwrap();
    let mut last = first;
    for _ in 0..2 * MAX_RETIRED {
        last = guest.make_copied(&[last.0]).unwrap();
    }
    assert_eq!(guest.session.tables.foreign.counts()[2], MAX_RETIRED + 1);
    assert_eq!(guest.count(first, true, 0, &[]), None);
    assert!(guest.session.tables.foreign.stays(|_| false).is_some());
    assert!(guest.call(END, &[last.0, 0]).is_some());
    assert!(guest.session.tables.foreign.stays(|_| false).is_none());
}
