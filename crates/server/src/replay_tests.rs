use super::*;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};

use aviary_control::stats::StatsPage;
use aviary_wire::{Encoder, HandleId, kind};

use crate::allocations;
use crate::api::{ApiDescriptor, FunctionInfo, HandleTypeInfo, Metadata, Reject, Role};
use crate::memory::SessionMemory;
use crate::module::load_vendor;
use crate::object_log::ObjectLog;
use crate::policy::Policy;
use crate::session::{Journal, Parts, gate};
use aviary_control::Assignment;

/// Native values differ in every run, as addresses do.
static NATIVE: AtomicU64 = AtomicU64::new(0x1000);

static API: ApiDescriptor = ApiDescriptor {
    name: "replayed",
    version: "1",
    spec_hash: 1,
    environment: &[],
    soname: "libm.so.6",
    functions: &[
        FunctionInfo { name: "create", handler: create, replayable: true },
        FunctionInfo { name: "link", handler: link, replayable: true },
        FunctionInfo { name: "destroy", handler: destroy, replayable: false },
        FunctionInfo { name: "name", handler: name, replayable: true },
    ],
    handle_types: &[HandleTypeInfo {
        name: "object",
        size: 8,
        predefined: &[],
        metadata: Some(Metadata { kind: 1, size: 8 }),
    }],
    resources: &[],
    rejected: |_, _| -1,
};

/// From an input; its sum is remembered in the object's metadata.
unsafe fn create(call: &mut Call) -> Result<(), Reject> {
    let input = call.buffer_in(None, false)?;
    // SAFETY: the runtime vouches for the buffer.
    let bytes = unsafe { std::slice::from_raw_parts_mut(input.ptr, input.len) };
    let sum = bytes.iter().map(|b| u64::from(*b)).sum();
    let native = NATIVE.fetch_add(16, Ordering::SeqCst);
    call.reply_handle(0, native, Role::Allocate);
    // SAFETY: the metadata has 8 bytes.
    unsafe { call.metadata(0, native, 1).cast::<u64>().write(sum) };
    // Handlers may change what they decoded.
    bytes.fill(0);
    call.record(0, native);
    call.finish(true, 0);
    Ok(())
}

/// Makes the second object part of the first.
unsafe fn link(call: &mut Call) -> Result<(), Reject> {
    let (to, from) = (call.handle(0)?, call.handle(0)?);
    // SAFETY: as above.
    unsafe { *call.metadata(0, to, 1).cast::<u64>() += *call.metadata(0, from, 1).cast::<u64>() };
    call.record(0, to);
    call.depends(0, from);
    call.finish(true, 0);
    Ok(())
}

unsafe fn destroy(call: &mut Call) -> Result<(), Reject> {
    let native = call.handle_ending(0, true)?;
    call.release(0, native, true);
    call.finish(true, 0);
    Ok(())
}

/// An object under an id that the guest chooses.
unsafe fn name(call: &mut Call) -> Result<(), Reject> {
    call.minted(0, 0)?;
    let native = NATIVE.fetch_add(16, Ordering::SeqCst);
    call.reply_minted(0, native, 0);
    call.record(0, native);
    call.finish(true, 0);
    Ok(())
}

fn session(memory: SessionMemory) -> Arc<Session> {
    session_with(memory, ObjectLog::on())
}

fn session_with(memory: SessionMemory, log: ObjectLog) -> Arc<Session> {
    let gate = gate(&API, &Assignment::default(), None).unwrap();
    let stats = StatsPage::create().unwrap();
    let stats = StatsPage::publish(stats.as_fd(), &gate).unwrap();
    let vendor = load_vendor(&API, None).unwrap();
    let (policy, journal) = (Policy::default(), Journal { fd: 2, session: 0 });
    Session::new(Parts {
        api: &API,
        vendor,
        memory,
        stats,
        gate,
        policy,
        printed: None,
        log,
        devices: crate::devices::Devices::new(None, None, 0),
        journal,
        socket: None,
    })
}

fn perform(session: &Arc<Session>, function: u32, write: impl FnOnce(&mut Encoder)) -> u64 {
    let mut body = Encoder::new();
    body.start();
    write(&mut body);
    let mut call = Call::new(session.clone(), session.handles.in_use.lane());
    call.request = body.finish_request(RequestHeader { kind: kind::CALL, function, ..Default::default() }).to_vec();
    let (header, _) = RequestHeader::parse(&call.request).unwrap();
    assert!(matches!(run(&mut call, header), Ok(Outcome::Done { success: true, .. })));
    call.reply.body().first_chunk().map_or(0, |w| u64::from_le_bytes(*w))
}

fn sum(session: &Session, id: u64) -> u64 {
    // SAFETY: metadata of 8 bytes.
    unsafe { *session.handles.metadata(id, 1).unwrap().cast::<u64>() }
}

#[test]
fn ids_that_the_guest_chose_come_back_too() {
    let mut arena = vec![0u8; 4096];
    // SAFETY: `arena` outlives the session, which ends with this function.
    let old = session(unsafe { SessionMemory::new(arena.as_mut_ptr(), 4096, true) });
    let chosen = HandleId { ty: 0, generation: 4, index: HandleId::MINTED | 9 }.to_word();
    let before = perform(&old, 0, |e| e.buffer_inline(&[1]));
    assert_eq!(perform(&old, 3, |e| e.word(chosen)), chosen);
    let after = perform(&old, 0, |e| e.buffer_inline(&[2]));
    perform(&old, 1, |e| (e.word(chosen), e.word(after)).1);
    let log = old.log.records();

    let mut arena = vec![0u8; 4096];
    // SAFETY: as above.
    let new = session(unsafe { SessionMemory::new(arena.as_mut_ptr(), 4096, true) });
    replay(&new, &log).unwrap();
    assert!([before, chosen, after].iter().all(|id| new.handles.native(0, *id).is_some()));
    assert_eq!((sum(&new, before), sum(&new, chosen), sum(&new, after)), (1, 2, 2));
    assert_eq!(new.handles.len(), 3);
}

#[test]
fn objects_come_back_under_their_ids() {
    let mut arena = vec![1u8; 8192];
    // SAFETY: `arena` outlives the session, which ends with this function.
    let old = session(unsafe { SessionMemory::new(arena.as_mut_ptr(), 8192, true) });
    let short_lived = perform(&old, 0, |e| e.buffer_inline(&[9]));
    let a = perform(&old, 0, |e| e.buffer_inline(&[1, 2]));
    let b = perform(&old, 0, |e| e.buffer_arena(4096, 100));
    let c = perform(&old, 0, |e| e.buffer_inline(&[50]));
    perform(&old, 1, |e| (e.word(a), e.word(b)).1);
    perform(&old, 1, |e| (e.word(a), e.word(c)).1);
    perform(&old, 2, |e| e.word(short_lived));
    perform(&old, 2, |e| e.word(c));
    assert_eq!(sum(&old, a), 153);
    arena.fill(0);

    let log = old.log.records();
    assert_eq!(log.len(), 5, "the ended object that `a` depends on is still needed, the other is not");
    let new = session(SessionMemory::none());
    replay(&new, &log).unwrap();
    assert_eq!((sum(&new, a), sum(&new, b)), (153, 100));
    assert_ne!(old.handles.native(0, a), new.handles.native(0, a));
    let fresh = perform(&new, 0, |e| e.buffer_inline(&[1]));
    assert!(![a, b, c].contains(&fresh));
}

/// Bytes that so many calls of a recorded function leave behind, after as many to warm up.
fn bytes_kept_by(calls: usize, log: ObjectLog) -> isize {
    let session = session_with(SessionMemory::none(), log);
    let (a, b) = (perform(&session, 0, |e| e.buffer_inline(&[1])), perform(&session, 0, |e| e.buffer_inline(&[2])));
    let mut body = Encoder::new();
    body.start();
    body.word(a);
    body.word(b);
    let request = body.finish_request(RequestHeader { kind: kind::CALL, function: 1, ..Default::default() }).to_vec();
    let (header, _) = RequestHeader::parse(&request).unwrap();
    let mut call = Call::new(session.clone(), session.handles.in_use.lane());
    let mut repeat = || {
        for _ in 0..calls {
            call.request.clear();
            call.request.extend_from_slice(&request);
            assert!(matches!(run(&mut call, header), Ok(Outcome::Done { success: true, .. })));
            call.reset();
        }
    };
    repeat();
    let before = allocations::held_by_this_thread();
    repeat();
    allocations::held_by_this_thread() - before
}

#[test]
fn calls_that_nothing_would_replay_leave_nothing_behind() {
    assert_eq!(bytes_kept_by(1_000_000, ObjectLog::off()), 0);
    assert!(bytes_kept_by(1_000, ObjectLog::on()) > 100_000, "the allocator counts");
}

#[test]
fn a_damaged_log_says_where() {
    let old = session(SessionMemory::none());
    perform(&old, 0, |e| e.buffer_inline(&[1, 2]));
    let mut log = old.log.records();
    log[0].recording.request.truncate(40);
    let error = replay(&session(SessionMemory::none()), &log).unwrap_err();
    assert!(matches!(error, ReplayError::Damaged { number: 0, .. }), "{error}");
}
