//! The end of a wait without its event: the peer's process has died, or this side is interrupted. All lanes of a
//! connection share one [`Liveness`]; nothing in it is memory that the peer can write.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use thiserror::Error;

use crate::sync::Ordering;

/// The reason why a wait ended without its event.
///
/// ```
/// use aviary_ring::{RingError, WaitError};
///
/// assert_eq!(RingError::from(WaitError::Gone), RingError::Dead);
/// assert_eq!(WaitError::Gone.to_string(), "the peer has ended");
/// ```
#[derive(Debug, Error, displaydoc::Display, Clone, Copy, PartialEq, Eq)]
pub enum WaitError {
    /// the peer has ended
    Gone,
    /// this side was asked to stop waiting for messages
    Interrupted,
}

/// A point of a wait for a message that is not there yet.
///
/// ```
/// # use aviary_ring::{Consumer, Liveness, RingError, RingMemory, WaitPoint};
/// # use std::sync::Arc;
/// # #[repr(align(4096))]
/// # struct Page([u8; 4096]);
/// # let page: &'static mut Page = Box::leak(Box::new(Page([0; 4096])));
/// # // SAFETY: the page is never freed, and only the ring uses it.
/// # let memory = unsafe { RingMemory::new(page.0.as_mut_ptr(), 4096, Arc::new(())) }?;
/// # let alive = Arc::new(Liveness::probed(std::time::Duration::from_millis(1), || true));
/// let mut points = Vec::new();
/// let mut interrupted = |point| {
///     points.push(point);
///     point == WaitPoint::Check
/// };
/// let mut consumer = Consumer::new(memory, alive, 1000);
/// consumer.set_interruptible(true);
/// let answer = consumer.receive_unless(&mut interrupted, &mut Vec::new());
/// assert_eq!(answer, Err(RingError::Interrupted));
/// assert_eq!((points[0], points[points.len() - 1]), (WaitPoint::Begin, WaitPoint::End));
/// # Ok::<(), RingError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitPoint {
    /// Before the wait. Every one is followed by an [`WaitPoint::End`] on the same thread.
    Begin,
    /// A sleeper checks the peer.
    Check,
    /// After the wait, before the message is read.
    End,
}

/// Called at each point of a wait. True at [`WaitPoint::Check`] ends the wait as an interruption does; the answer at other
/// points is ignored.
pub type Interruption<'a> = dyn FnMut(WaitPoint) -> bool + 'a;

/// Of a wait that nothing ends but its message and the end of the peer.
pub fn uninterrupted(_: WaitPoint) -> bool {
    false
}

type Probe = Box<dyn Fn() -> bool + Send + Sync>;

/// The state of the peer's process, alive or dead; shared by all lanes of a connection.
///
/// ```
/// use aviary_ring::Liveness;
/// use std::{sync::Arc, sync::atomic::{AtomicBool, Ordering}, time::Duration};
///
/// let there = Arc::new(AtomicBool::new(true));
/// let alive = Liveness::probed(Duration::from_millis(100), {
///     let there = there.clone();
///     move || there.load(Ordering::Relaxed)
/// });
/// assert!(alive.check());
/// there.store(false, Ordering::Relaxed);
/// assert!(!alive.check() && alive.dead());
/// ```
pub struct Liveness {
    dead: AtomicBool,
    /// Waits for the beginning of a message end. Written by a thread of this side, never by the peer.
    interrupted: AtomicBool,
    /// The interval at which a sleeper checks the peer, and the check.
    probe: Option<(Duration, Probe)>,
}

impl Liveness {
    /// A liveness that another thread ends: it calls [`Liveness::kill`] and wakes the sleepers.
    pub fn notified() -> Self {
        Liveness { dead: AtomicBool::new(false), interrupted: AtomicBool::new(false), probe: None }
    }

    /// A liveness that sleepers check: each wakes up every `interval` and calls `alive`.
    pub fn probed(interval: Duration, alive: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Liveness { probe: Some((interval, Box::new(alive))), ..Self::notified() }
    }

    #[inline]
    pub fn dead(&self) -> bool {
        self.dead.load(Ordering::SeqCst)
    }

    /// Makes every later wait fail. Sleepers without a probe must be woken afterwards.
    pub fn kill(&self) {
        self.dead.store(true, Ordering::SeqCst);
    }

    /// Makes waits for the beginning of a message fail until [`Liveness::resume`], in consumers that
    /// allow it ([`crate::consumer::Consumer::set_interruptible`]). Waits for room and for the rest of a
    /// message go on, because half a message cannot be put back. Sleepers must be woken afterwards.
    pub fn interrupt(&self) {
        self.interrupted.store(true, Ordering::SeqCst);
    }

    /// Ends [`Liveness::interrupt`].
    pub fn resume(&self) {
        self.interrupted.store(false, Ordering::SeqCst);
    }

    /// Between [`Liveness::interrupt`] and [`Liveness::resume`].
    pub(super) fn interrupted(&self) -> bool {
        self.interrupted.load(Ordering::SeqCst)
    }

    /// Calls the probe, if there is one; false if the peer is dead.
    pub fn check(&self) -> bool {
        if let Some((_, alive)) = &self.probe
            && !self.dead()
            && !alive()
        {
            self.kill();
        }
        !self.dead()
    }

    /// The time after which a sleeper checks the peer; `None`: another thread ends the liveness.
    pub(super) fn interval(&self) -> Option<Duration> {
        self.probe.as_ref().map(|(interval, _)| *interval)
    }
}
