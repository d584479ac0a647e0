//! Objects on the heap, which a call frees when it gives the last reference back and which calls reach through others:
//! a sanitizer sees each use of one that has ended.

use std::sync::atomic::{AtomicU64, Ordering};

use aviary_server::{Call, Reject, Role};

/// Number of their type in the API.
pub const RACER: u32 = 2;

const LIVE: u64 = 0x11fe;
const PLACES: usize = 2;
/// The failure of a call through an object that lacks another.
const LACKING: i64 = 9;

struct Racer {
    state: AtomicU64,
    references: AtomicU64,
    /// Addresses of others.
    set: [AtomicU64; PLACES],
}

/// Follows an address, as a vendor's library does.
///
/// # Safety
/// The address is that of a live object.
unsafe fn follow(native: u64) {
    // SAFETY: the caller's promise.
    let racer = unsafe { &*(native as usize as *const Racer) };
    assert_eq!(racer.state.load(Ordering::Relaxed), LIVE, "an object that has ended");
}

pub unsafe fn make(call: &mut Call) -> Result<(), Reject> {
    call.reserve_handles(1)?;
    let (state, references) = (AtomicU64::new(LIVE), AtomicU64::new(1));
    let racer = Box::new(Racer { state, references, set: Default::default() });
    call.reply_handle(RACER, Box::into_raw(racer) as usize as u64, Role::Allocate);
    call.finish(true, 0);
    Ok(())
}

pub unsafe fn keep(call: &mut Call) -> Result<(), Reject> {
    let racer = call.handle(RACER)?;
    if racer != 0 {
        // SAFETY: the call holds it.
        unsafe { &*(racer as usize as *const Racer) }.references.fetch_add(1, Ordering::SeqCst);
        call.retain(RACER, racer);
    }
    call.finish(true, 0);
    Ok(())
}

pub unsafe fn give_back(call: &mut Call) -> Result<(), Reject> {
    let racer = call.handle_ending(RACER, false)?;
    if racer != 0 {
        let pointer = racer as usize as *mut Racer;
        // SAFETY: the call holds it, and gives one of its references back.
        if unsafe { &*pointer }.references.fetch_sub(1, Ordering::SeqCst) == 1 {
            // SAFETY: the last reference; other calls neither use it nor begin to.
            let ended = unsafe { Box::from_raw(pointer) };
            ended.state.store(0, Ordering::Relaxed);
        }
        call.release(RACER, racer, false);
    }
    call.finish(true, 0);
    Ok(())
}

/// Two objects in one call.
pub unsafe fn touch(call: &mut Call) -> Result<(), Reject> {
    for native in [call.handle(RACER)?, call.handle(RACER)?] {
        if native != 0 {
            // SAFETY: the call holds it.
            unsafe { follow(native) };
        }
    }
    std::thread::yield_now();
    call.finish(true, 0);
    Ok(())
}

pub unsafe fn set(call: &mut Call) -> Result<(), Reject> {
    let referrer = call.handle_exclusive(RACER)?;
    let (place, other) = (call.word()? % PLACES as u64, call.handle(RACER)?);
    if referrer != 0 {
        // SAFETY: the call holds it.
        let racer = unsafe { &*(referrer as usize as *const Racer) };
        // The address that was there is not followed: its object may have ended.
        racer.set[place as usize].store(other, Ordering::Relaxed);
        call.refer(RACER, referrer, place);
    }
    call.finish(true, 0);
    Ok(())
}

pub unsafe fn through(call: &mut Call) -> Result<(), Reject> {
    let referrer = call.handle_through(RACER, LACKING)?;
    if referrer != 0 {
        for _ in 0..2 {
            // SAFETY: the call holds it.
            let racer = unsafe { &*(referrer as usize as *const Racer) };
            for other in racer.set.iter().map(|other| other.load(Ordering::Relaxed)).filter(|other| *other != 0) {
                // SAFETY: nothing that is set on it has ended, nor does while the call uses it.
                unsafe { follow(other) };
            }
            std::thread::yield_now();
        }
    }
    call.finish(true, 0);
    Ok(())
}

/// Makes an object that has the same set on it.
pub unsafe fn copy(call: &mut Call) -> Result<(), Reject> {
    call.reserve_handles(1)?;
    let like = call.handle(RACER)?;
    if like == 0 {
        return Err(Reject::Refused);
    }
    // SAFETY: the call holds it.
    let from = unsafe { &*(like as usize as *const Racer) };
    let set = std::array::from_fn(|place| AtomicU64::new(from.set[place].load(Ordering::Relaxed)));
    let racer = Box::new(Racer { state: AtomicU64::new(LIVE), references: AtomicU64::new(1), set });
    call.reply_handle(RACER, Box::into_raw(racer) as usize as u64, Role::Allocate);
    call.refer_as(RACER, like);
    call.finish(true, 0);
    Ok(())
}
