//! A berth: where a lane's sleeping thread has left its context, so that a guest's thread can continue in it.
//!
//! The thread itself sleeps on a *park stack*: its own stack belongs to whoever runs the context.

use std::cell::{Cell, UnsafeCell};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering, compiler_fence};
use std::time::{Duration, Instant};

use crate::door::Entered;
use crate::parking::{self, ParkStack};
use crate::state::{BerthState, BerthWord, Step};
use crate::switch::{Context, leave, may_write_fs, switch, vectors};

/// How a borrowed context has come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    /// It would sleep until somebody wakes it.
    Asleep,
    /// It would do something that only its own thread does.
    Busy,
}

/// A lane's thread and its context. The states of [`BerthWord`] say whose the other fields are.
pub struct Berth {
    word: BerthWord,
    /// The lane's context while nobody runs it.
    lane: UnsafeCell<Context>,
    /// The borrower's while it runs the lane's.
    borrower: UnsafeCell<Context>,
    left: Cell<Left>,
    /// That of the lane's thread on the park stack while that thread runs the lane's context.
    parked: UnsafeCell<Context>,
    /// How long the thread sleeps at most; written before each sleep by the thread itself.
    at_most: Cell<Option<Duration>>,
    stack: UnsafeCell<Option<ParkStack>>,
    vectors: u32,
}

// SAFETY: `word` decides which one thread uses the other fields: the lane's thread while the state is its own, the claimer
// after `Claim`. `parked`, `at_most` and `stack` are the lane's thread's at all times.
unsafe impl Sync for Berth {}
// SAFETY: as above; nothing belongs to the thread that makes a berth.
unsafe impl Send for Berth {}

impl Berth {
    /// A berth for a thread that runs. `None`: FS cannot be written here without a system call, and nothing can be borrowed.
    pub fn new() -> Option<Berth> {
        may_write_fs().then(|| Berth {
            word: BerthWord::default(),
            lane: UnsafeCell::default(),
            borrower: UnsafeCell::default(),
            left: Cell::new(Left::Asleep),
            parked: UnsafeCell::default(),
            at_most: Cell::new(None),
            stack: UnsafeCell::new(None),
            vectors: vectors(),
        })
    }

    pub fn state(&self) -> BerthState {
        self.word.state()
    }

    /// Sleeps until the berth is woken, or for so long. In a borrowed context: ends the borrowing. May return early.
    ///
    /// # Safety
    /// Called by the lane's thread, or by a borrower in its context; the berth lives as long as that thread.
    pub unsafe fn sleep(&self, at_most: Option<Duration>) {
        if matches!(self.word.state(), BerthState::Borrowed | BerthState::Recalled) {
            // A borrower has no time to spend: the thread itself continues, as if this sleep had ended early.
            let left = if at_most.is_some() { Left::Busy } else { Left::Asleep };
            // SAFETY: only a borrower runs this context in these two states.
            return unsafe { self.end_borrowing(left) };
        }
        self.at_most.set(at_most);
        // SAFETY: the lane's thread runs its own context, so the park stack and its cells are its own; `park` has its berth as
        // long as the thread lives, as the caller promises.
        unsafe {
            if (*self.stack.get()).is_none() {
                let Some(stack) = ParkStack::new() else { return std::thread::yield_now() };
                *self.parked.get() = Context::new(stack.top(), park, std::ptr::from_ref(self).addr());
                *self.stack.get() = Some(stack);
            }
            switch(self.lane.get(), self.parked.get());
        }
    }

    /// Ends a borrowing where the context has something to do that is its own thread's: this call returns there. Returns at
    /// once if nobody borrows.
    ///
    /// # Safety
    /// Called in the lane's context.
    pub unsafe fn hand_over(&self) {
        if matches!(self.word.state(), BerthState::Borrowed | BerthState::Recalled) {
            // SAFETY: only a borrower runs this context in these two states.
            unsafe { self.end_borrowing(Left::Busy) }
        }
    }

    /// # Safety
    /// Called in the lane's context by a borrower.
    unsafe fn end_borrowing(&self, left: Left) {
        self.left.set(left);
        // SAFETY: the borrower came by `enter`, which has left its own context here.
        unsafe { leave(self.lane.get(), self.borrower.get(), self.vectors) }
    }

    /// Wakes the thread, or has it go on when its borrower comes back.
    pub fn wake(&self) {
        if let Ok((BerthState::Asleep, _)) = self.word.step(Step::Wake) {
            self.call_thread();
        }
    }

    fn call_thread(&self) {
        parking::wake(self.word.address());
    }

    /// Continues in the sleeping context until it would sleep again. `mark` is 1 while that runs.
    pub fn enter(&self, mark: &AtomicU8) -> Entered {
        if self.word.step(Step::Claim).is_err() {
            return Entered::Refused;
        }
        // SAFETY: the claim has made both contexts this thread's: the lane's thread has left its own there before it said that
        // it is asleep, and touches nothing but the word until the state is its own again.
        unsafe {
            mark.store(1, Ordering::Relaxed);
            compiler_fence(Ordering::SeqCst);
            switch(self.borrower.get(), self.lane.get());
            compiler_fence(Ordering::SeqCst);
            mark.store(0, Ordering::Relaxed);
        }
        let (step, entered) = match self.left.get() {
            Left::Asleep => (Step::Release, Entered::Returned),
            Left::Busy => (Step::HandOver, Entered::HandedOver),
        };
        if let Ok((_, after)) = self.word.step(step)
            && after.is_own()
        {
            self.call_thread();
        }
        entered
    }
}

/// The life of a lane's thread on its park stack. It shares its thread-locals with whoever runs the lane's context, so it touches
/// none: no library's function that sets `errno`.
extern "C" fn park(berth: usize) -> ! {
    // SAFETY: the berth that `sleep` has named, which lives as long as this thread.
    let berth = unsafe { NonNull::new_unchecked(berth as *mut Berth).as_ref() };
    loop {
        let until = berth.at_most.get().map(|at_most| Instant::now() + at_most);
        let mut state = berth.word.step(Step::Sleep).map_or_else(|state| state, |(_, after)| after);
        while !state.is_own() {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) && berth.word.step(Step::Expire).is_ok() {
                break;
            }
            // A borrower that came in time will not sleep for long.
            parking::wait(berth.word.address(), state as u32, left.filter(|left| !left.is_zero()));
            state = berth.word.state();
        }
        let _ = berth.word.step(Step::Resume);
        // SAFETY: the state is this thread's own again, so the context is, too.
        unsafe { switch(berth.parked.get(), berth.lane.get()) };
    }
}
