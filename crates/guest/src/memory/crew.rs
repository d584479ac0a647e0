//! Copies of long memory by several threads: one alone copies less in a second than a link with several strands carries.
//!
//! The threads are helpers of whoever copies: they begin with the first long copy, and end when there was none for a while. A
//! process with few processors has none; there, and where no thread can be started, everything is copied by the caller. A child of
//! `fork` has a crew of its own, and makes what its parent had begun by itself.
//!
//! A caller may be interrupted by a handler of a signal that copies, too, or that never returns. So callers wait for no lock and for
//! no other caller: they make only copies of their own.

use std::collections::VecDeque;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use crate::process::fork::generation;
use crate::process::signals::BlockedSignals;

const HELPERS: usize = 3;
/// With fewer the carriers and the API server need them all.
const LEAST_PROCESSORS: usize = 6;
/// Copies that one caller has begun and not ended, beyond which it is no faster.
const UNDER_WAY: usize = 2 * (HELPERS + 1);
/// After such a time without work a helper ends.
const IDLE: Duration = Duration::from_secs(1);
const STACK: usize = 64 << 10;
/// So often a caller looks for a helper's copy before it sleeps.
const PATIENCE: u32 = 1000;
const NAP: Duration = Duration::from_micros(50);

struct Copy {
    from: *const u8,
    to: *mut u8,
    bytes: usize,
    /// Whose helpers may make it; `None`: whoever has begun it did.
    crew: Option<&'static Crew>,
    done: AtomicBool,
}

// SAFETY: whoever has begun a copy promised its memory until it is done, and one thread makes it: the one that took it out of the
// list under the lock.
unsafe impl Send for Copy {}
// SAFETY: as above; `done` is what several threads look at.
unsafe impl Sync for Copy {}

impl Copy {
    fn make(&self) {
        // SAFETY: the promise of `Copies::begin`. `copy`, as the application's buffer may be a part of the arena.
        unsafe { std::ptr::copy(self.from, self.to, self.bytes) };
        self.done.store(true, Ordering::Release);
    }

    fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }
}

#[derive(Default)]
struct Work {
    /// Nobody makes these yet.
    copies: VecDeque<Arc<Copy>>,
    helpers: usize,
    idle: usize,
}

struct Crew {
    work: Mutex<Work>,
    ready: Condvar,
    /// Of the process whose threads these are.
    generation: u32,
}

static CREW: AtomicPtr<Crew> = AtomicPtr::new(null_mut());

/// `None`: this process has too few processors.
fn crew() -> Option<&'static Crew> {
    const UNKNOWN: u8 = 0;
    static IS_WORTH: AtomicU8 = AtomicU8::new(UNKNOWN);
    let mut known = IS_WORTH.load(Ordering::Relaxed);
    if known == UNKNOWN {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        known = 1 + u8::from(processors >= LEAST_PROCESSORS);
        IS_WORTH.store(known, Ordering::Relaxed);
    }
    (known > 1).then(|| Crew::of(generation()))
}

impl Crew {
    fn of(generation: u32) -> &'static Crew {
        let known = CREW.load(Ordering::Acquire);
        // SAFETY: a crew is never freed.
        if let Some(crew) = unsafe { known.as_ref() }.filter(|crew| crew.generation == generation) {
            return crew;
        }
        // One lock of the parent's may be held for ever.
        let new = Box::into_raw(Box::new(Crew { work: Mutex::default(), ready: Condvar::new(), generation }));
        match CREW.compare_exchange(known, new, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: it is never freed from now on.
            Ok(_) => unsafe { &*new },
            Err(other) => {
                // SAFETY: nobody else has seen it; what another thread has put there is never freed.
                unsafe {
                    drop(Box::from_raw(new));
                    &*other
                }
            }
        }
    }

    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None`: somebody has it at this moment, who may be the caller itself below a signal handler.
    fn try_work(&self) -> Option<MutexGuard<'_, Work>> {
        match self.work.try_lock() {
            Ok(work) => Some(work),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// False: the caller makes it.
    fn add(&'static self, copy: &Arc<Copy>) -> bool {
        let Some(mut work) = self.try_work() else { return false };
        if work.idle == 0 && work.helpers < HELPERS {
            let _blocked = BlockedSignals::but_faults();
            let builder = std::thread::Builder::new().name("aviary-copies".into()).stack_size(STACK);
            work.helpers += usize::from(builder.spawn(|| self.help()).is_ok());
        }
        if work.helpers == 0 {
            return false;
        }
        work.copies.push_back(copy.clone());
        drop(work);
        self.ready.notify_one();
        true
    }

    /// True: no helper has it, nor will. False: one has. `None`: not known yet.
    fn take_back(&self, copy: &Arc<Copy>) -> Option<bool> {
        let mut work = self.try_work()?;
        let place = work.copies.iter().position(|other| Arc::ptr_eq(other, copy));
        Some(place.is_some_and(|place| work.copies.remove(place).is_some()))
    }

    fn help(&self) {
        let mut work = self.work();
        loop {
            while let Some(copy) = work.copies.pop_front() {
                drop(work);
                copy.make();
                work = self.work();
            }
            work.idle += 1;
            let waited = self.ready.wait_timeout_while(work, IDLE, |work| work.copies.is_empty());
            let (again, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            work = again;
            work.idle -= 1;
            if timeout.timed_out() && work.copies.is_empty() {
                work.helpers -= 1;
                return;
            }
        }
    }
}

/// Copies of one caller, in the order in which it has begun them. Ends them all when it goes.
#[derive(Default)]
pub(crate) struct Copies(VecDeque<Arc<Copy>>);

impl Copies {
    /// Whether it is worth beginning another one before the first is done.
    pub fn has_room(&self) -> bool {
        self.0.len() < if crew().is_some() { UNDER_WAY } else { 1 }
    }

    /// # Safety
    /// `bytes` at `from` stay readable and those at `to` writable until the copy is finished; nobody else uses what is written.
    pub unsafe fn begin(&mut self, from: *const u8, to: *mut u8, bytes: usize) {
        self.begin_by(crew(), from, to, bytes);
    }

    fn begin_by(&mut self, crew: Option<&'static Crew>, from: *const u8, to: *mut u8, bytes: usize) {
        let copy = Arc::new(Copy { from, to, bytes, crew, done: AtomicBool::new(false) });
        self.0.push_back(copy.clone());
        if !crew.is_some_and(|crew| crew.add(&copy)) {
            copy.make();
        }
    }

    /// Waits until the first one is done. There may be none.
    pub fn finish_first(&mut self) {
        let Some(first) = self.0.pop_front() else { return };
        let (mut looks, mut with_helper) = (0u32, false);
        while !first.is_done() {
            // In a child of fork, in a handler of a signal, that goes on with the call there are no helpers.
            let crew = first.crew.filter(|crew| crew.generation == generation());
            let is_own = match crew {
                None => true,
                Some(_) if with_helper => false,
                Some(crew) => {
                    let own = crew.take_back(&first);
                    with_helper = own == Some(false);
                    own == Some(true)
                }
            };
            if is_own {
                first.make();
            } else if looks < PATIENCE {
                std::thread::yield_now();
            } else {
                // The helper that has it may need this very processor.
                std::thread::sleep(NAP);
            }
            looks += 1;
        }
    }

    #[inline]
    pub fn finish(&mut self) {
        while !self.0.is_empty() {
            self.finish_first();
        }
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        self.finish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new_crew() -> &'static Crew {
        Box::leak(Box::new(Crew { work: Mutex::default(), ready: Condvar::new(), generation: generation() }))
    }

    #[test]
    fn copies_of_several_callers_are_all_made_and_in_their_places() {
        let caller = |seed: u8, crew| {
            let from: Vec<u8> = (0..100_000u32).map(|at| (at / 7) as u8 ^ seed).collect();
            let (mut to, mut copies) = (vec![0u8; from.len()], Copies::default());
            for round in 0..20 {
                to.fill(round);
                for at in (0..from.len()).step_by(5000) {
                    if copies.0.len() == UNDER_WAY {
                        copies.finish_first();
                    }
                    // Both live until `finish`, and parts do not overlap.
                    copies.begin_by(crew, from[at..].as_ptr(), to[at..].as_mut_ptr(), 5000);
                }
                copies.finish();
                assert_eq!(to, from);
            }
        };
        for crew in [None, Some(new_crew())] {
            std::thread::scope(|scope| (0..4).for_each(|seed| drop(scope.spawn(move || caller(seed, crew)))));
        }
    }

    #[test]
    fn helpers_make_what_nobody_waits_for_and_end() {
        let (crew, from, mut to, mut copies) = (new_crew(), [1u8; 64], [0u8; 64], Copies::default());
        for at in (0..from.len()).step_by(8) {
            copies.begin_by(Some(crew), from[at..].as_ptr(), to[at..].as_mut_ptr(), 8);
        }
        assert!((1..=HELPERS).contains(&crew.work().helpers));
        while !copies.0.iter().all(|copy| copy.is_done()) {
            std::thread::yield_now();
        }
        assert_eq!(to, from);
        while crew.work().helpers > 0 {
            std::thread::sleep(IDLE / 10);
        }
    }

    #[test]
    fn a_child_of_fork_has_another_crew() {
        let first = Crew::of(7);
        assert!(std::ptr::eq(first, Crew::of(7)) && !std::ptr::eq(first, Crew::of(8)));
    }
}
