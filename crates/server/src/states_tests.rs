use super::*;
use crate::api::{ApiDescriptor, FunctionInfo, ResourceKind};
use crate::devices::Devices;
use crate::in_use::LaneUses;
use crate::lane::tests::session_of;
use crate::lane::{Outcome, run};
use aviary_control::Assignment;
use aviary_wire::{Encoder, RequestHeader, kind};
use proptest::prelude::*;

const KIND: u32 = 1;
const SIZE: usize = 100;
const MEMORY: u32 = 0;
const MAKE: u32 = 0;
const USE: u32 = 1;
const END: u32 = 2;

static API: ApiDescriptor = ApiDescriptor {
    name: "states",
    version: "1",
    spec_hash: 1,
    soname: "libm.so.6",
    environment: &[],
    functions: &[
        FunctionInfo { name: "make", handler: make, replayable: false, blocker: None },
        FunctionInfo { name: "use", handler: work, replayable: false, blocker: None },
        FunctionInfo { name: "end", handler: end, replayable: false, blocker: None },
        FunctionInfo { name: "other", handler: other, replayable: false, blocker: None },
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
unsafe fn make(call: &mut Call) -> Result<(), Reject> {
    let memory = call.state(KIND, SIZE, 8, true)? as usize;
    call.charge(MEMORY, SIZE as u64)?;
    let fails = call.word()? != 0;
    call.reply_state(memory, false, !fails);
    call.finish(!fails, 0);
    Ok(())
}

unsafe fn work(call: &mut Call) -> Result<(), Reject> {
    let memory = call.state(KIND, SIZE, 8, false)?;
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
    let memory = call.state(KIND, SIZE, 8, false)? as usize;
    call.reply_state(memory, true, true);
    call.finish(true, 0);
    Ok(())
}

unsafe fn other(call: &mut Call) -> Result<(), Reject> {
    call.state(KIND + 1, SIZE, 8, false)?;
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
        self.call.request = encoder.finish_request(header).to_vec();
        let Ok(outcome) = run(&mut self.call, header) else { panic!("the session ends") };
        let reply = self.call.reply.body().chunks_exact(8).map(|w| u64::from_le_bytes(w.try_into().unwrap())).collect();
        self.call.reset();
        assert!(self.call.states.is_empty() && self.call.cursors.is_empty());
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
        self.session.gate.accounts()[0].used()
    }
}

const NOTHING: [u64; 5] = [0, 0, 0, 0, 0];

fn with(id: u64, words: [u64; 5]) -> Vec<u64> {
    [id].into_iter().chain(words).collect()
}

#[test]
fn state_lives_from_its_making_to_its_end() {
    let mut guest = Guest::new(1000);
    let (a, b) = (guest.make(&[]).unwrap(), guest.make(&[]).unwrap());
    assert_eq!(guest.call(USE, &with(a, NOTHING)), Some(vec![1, a, 0]));
    assert_eq!(guest.call(USE, &with(a, NOTHING)), Some(vec![2, a, 0]));
    assert_eq!(guest.call(USE, &with(b, NOTHING)), Some(vec![1, b, 0]));
    assert_eq!(guest.call(END, &[a]), Some(vec![0]));
    assert_eq!(guest.call(USE, &with(a, NOTHING)), None);
    assert_eq!(guest.used(), 100);
    // The memory of the second is used again.
    let c = guest.make(&[b, 77, b]).unwrap();
    assert_eq!(guest.call(END, &[b]), None);
    assert_eq!(guest.used(), 100);
    // A call that fails makes none.
    assert_eq!(guest.call(MAKE, &[0, 1]), None);
    assert_eq!(guest.used(), 100);
    assert!(guest.call(END, &[c]).is_some());
    assert_eq!(guest.used(), 0);
}

#[test]
fn state_of_another_type_or_in_use_is_refused() {
    let mut guest = Guest::new(1000);
    let id = guest.make(&[]).unwrap();
    assert_eq!(guest.call(3, &[id]), None);
    assert_eq!(guest.call(USE, &with(0, NOTHING)), None);
    let state = guest.session.states.get(KIND, id).unwrap();
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
        let state = guest.session.states.get(KIND, id).unwrap();
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
    assert!(guest.call(END, &[id]).is_some());
    assert_eq!((guest.used(), guest.session.states.taken.load(Ordering::Acquire)), (0, 0));
}

#[test]
fn states_of_a_session_are_bounded() {
    let states = States::default();
    let large = MAX_STATE_BYTES - 4096;
    let one = states.new_state(KIND, large).unwrap();
    assert!(states.new_state(KIND, 8192).is_none());
    assert!(states.new_state(KIND, usize::MAX).is_none());
    drop(one);
    assert!(states.new_state(KIND, 8192).is_some());
}

#[test]
fn pointer_moves_within_its_buffer_only() {
    let mut guest = Guest::new(1000);
    let id = guest.make(&[]).unwrap();
    let moved =
        |guest: &mut Guest, start, room, to| guest.call(USE, &with(id, [0, 0, start, room, to])).map(|reply| reply[2]);
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
                _ => drop(guest.call(END, &[id])),
            }
            let live = guest.session.states.live();
            let mut bytes = 0;
            for state in live.by_id.values() {
                prop_assert!(!state.busy.load(Ordering::Acquire));
                bytes += SIZE as u64 + lock(&state.scratch).iter().map(|s| s.bytes as u64).sum::<u64>();
            }
            drop(live);
            prop_assert_eq!(guest.used(), bytes);
        }
    }
}
