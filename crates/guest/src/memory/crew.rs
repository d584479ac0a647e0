//! Copies of long memory by several threads: one alone copies less in a second than a link with several strands carries.
//!
//! The threads are helpers of whoever copies: they begin with the first long copy, and end when there was none for a while. A
//! machine of few processors has none; there, and where no thread can be started, everything is copied by the caller. A child of
//! `fork` has a crew of its own.

use std::collections::VecDeque;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
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

struct Copy {
    from: *const u8,
    to: *mut u8,
    bytes: usize,
    /// Who may make it; `None`: whoever has begun it did.
    crew: Option<&'static Crew>,
    done: AtomicBool,
}

// SAFETY: whoever has begun a copy promised its memory until it is done, and each is made by one thread.
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

/// `None`: this machine has too few processors.
fn crew() -> Option<&'static Crew> {
    static IS_WORTH: OnceLock<bool> = OnceLock::new();
    let is_worth = || std::thread::available_parallelism().is_ok_and(|processors| processors.get() >= LEAST_PROCESSORS);
    IS_WORTH.get_or_init(is_worth).then(|| Crew::of(generation()))
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

    fn add(&'static self, copy: Arc<Copy>) {
        let mut work = self.work();
        work.copies.push_back(copy);
        if work.idle == 0 && work.helpers < HELPERS {
            let _blocked = BlockedSignals::but_faults();
            let builder = std::thread::Builder::new().name("aviary-copies".into()).stack_size(STACK);
            work.helpers += usize::from(builder.spawn(|| self.help()).is_ok());
        }
        drop(work);
        self.ready.notify_one();
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
        match crew {
            None => copy.make(),
            Some(crew) => crew.add(copy),
        }
    }

    /// Waits until the first one is done, and makes others meanwhile. There may be none.
    pub fn finish_first(&mut self) {
        let Some(first) = self.0.pop_front() else { return };
        while !first.is_done() {
            let next = first.crew.and_then(|crew| crew.work().copies.pop_front());
            match next {
                Some(copy) => copy.make(),
                // A helper is about to be through with it.
                None => std::thread::yield_now(),
            }
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
        Box::leak(Box::new(Crew { work: Mutex::default(), ready: Condvar::new(), generation: 0 }))
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
