//! The word of a berth: who runs the context that is there.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, Ordering};

/// Who runs the context of a lane's thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum BerthState {
    /// Its own thread.
    Awake,
    /// Its own thread, whose next sleep ends at once: it was woken before that began.
    Woken,
    /// Nobody: the context lies in the berth, and a borrower may claim it.
    Asleep,
    /// A borrower.
    Borrowed,
    /// A borrower, after which its own thread continues: it was woken meanwhile.
    Recalled,
    /// Nobody yet: its own thread continues where a borrower has left it.
    HandedOver,
}

/// What changes a berth's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// By its own thread, which has left the context in the berth.
    Sleep,
    /// By a guest's thread that wants to continue in the context.
    Claim,
    /// By the borrower, which has left the context asleep.
    Release,
    /// By the borrower, which has left the context where it has something to do that no borrower may.
    HandOver,
    /// By its own thread, which continues after a hand-over.
    Resume,
    /// By anybody: a message without a borrower, the end of the peer, a pause.
    Wake,
    /// By its own thread, which sleeps no longer than it was to.
    Expire,
}

impl BerthState {
    /// The state after a step; `None`: the step is not possible, and nothing changes.
    pub const fn after(self, step: Step) -> Option<BerthState> {
        use BerthState::{Asleep, Awake, Borrowed, HandedOver, Recalled, Woken};
        Some(match (self, step) {
            (Awake, Step::Sleep) => Asleep,
            (Woken, Step::Sleep) => Awake,
            (Asleep, Step::Claim) => Borrowed,
            (Borrowed, Step::Release) => Asleep,
            (Recalled, Step::Release) => Awake,
            (Borrowed | Recalled, Step::HandOver) => HandedOver,
            (HandedOver, Step::Resume) => Awake,
            (Asleep, Step::Wake | Step::Expire) => Awake,
            (Awake | Woken, Step::Wake) => Woken,
            (Borrowed | Recalled, Step::Wake) => Recalled,
            // Its own thread continues in any case, but may be about to sleep there.
            (HandedOver, Step::Wake) => Woken,
            _ => return None,
        })
    }

    const fn of(word: u32) -> BerthState {
        use BerthState::{Asleep, Awake, Borrowed, HandedOver, Recalled, Woken};
        match word {
            0 => Awake,
            1 => Woken,
            2 => Asleep,
            3 => Borrowed,
            4 => Recalled,
            _ => HandedOver,
        }
    }

    /// Its own thread runs the context, or is to.
    pub const fn is_own(self) -> bool {
        matches!(self, BerthState::Awake | BerthState::Woken | BerthState::HandedOver)
    }
}

/// The word of a berth, in memory that only the server's side and the door write: a sleep word in a
/// ring is the guest's to write, too, and no more than a hint.
pub struct BerthWord(AtomicU32);

impl Default for BerthWord {
    fn default() -> Self {
        BerthWord(AtomicU32::new(BerthState::Awake as u32))
    }
}

impl BerthWord {
    pub fn state(&self) -> BerthState {
        BerthState::of(self.0.load(Ordering::SeqCst))
    }

    /// Makes a step: the states before and after it. The error is the state in which it is not possible.
    pub fn step(&self, step: Step) -> Result<(BerthState, BerthState), BerthState> {
        let mut word = self.0.load(Ordering::SeqCst);
        loop {
            let from = BerthState::of(word);
            let to = from.after(step).ok_or(from)?;
            match self.0.compare_exchange(word, to as u32, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return Ok((from, to)),
                Err(found) => word = found,
            }
        }
    }

    /// Where its own thread sleeps.
    #[cfg(not(loom))]
    pub(crate) fn address(&self) -> *const u32 {
        self.0.as_ptr()
    }
}
