//! Waiting for the peer: spin as long as that pays, then sleep.

use std::hint;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::futex;
use crate::sync::{AtomicU32, Ordering, fence};

/// the peer is gone
#[derive(Debug, Error, Clone, Copy, PartialEq, Eq)]
#[error("the peer is gone")]
pub struct WaitError;

type Probe = Box<dyn Fn() -> bool + Send + Sync>;

/// Whether the peer still lives; shared by all lanes of a connection.
pub struct Liveness {
    dead: AtomicBool,
    /// How often a sleeper looks for itself, and how.
    probe: Option<(Duration, Probe)>,
}

impl Liveness {
    /// Somebody else calls [`Liveness::kill`] and wakes the sleepers.
    pub fn notified() -> Self {
        Liveness { dead: AtomicBool::new(false), probe: None }
    }

    /// Sleepers wake up every `interval` and ask `alive`.
    pub fn probed(interval: Duration, alive: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Liveness { dead: AtomicBool::new(false), probe: Some((interval, Box::new(alive))) }
    }

    #[inline]
    pub fn dead(&self) -> bool {
        self.dead.load(Ordering::SeqCst)
    }

    /// Every wait fails from now on; sleepers without a probe must be woken afterwards.
    pub fn kill(&self) {
        self.dead.store(true, Ordering::SeqCst);
    }

    /// Asks the probe now.
    pub fn check(&self) -> bool {
        if let Some((_, alive)) = &self.probe
            && !self.dead()
            && !alive()
        {
            self.kill();
        }
        !self.dead()
    }

    fn interval(&self) -> Option<Duration> {
        self.probe.as_ref().map(|(interval, _)| *interval)
    }
}

/// Spinning pays while a wait is likely to be shorter than a sleep and a wake-up cost. With two
/// CPUs or fewer the peer may need the one that spins.
fn longest_spin() -> Duration {
    static LONGEST: OnceLock<Duration> = OnceLock::new();
    *LONGEST.get_or_init(|| match std::thread::available_parallelism().map_or(1, usize::from) {
        0 | 1 => Duration::ZERO,
        2 => Duration::from_micros(5),
        3 | 4 => Duration::from_micros(20),
        _ => Duration::from_micros(50),
    })
}

/// Rounds of the spin loop in [`longest_spin`]: pause instructions cost from 3 to 50 ns, by CPU.
fn longest_rounds() -> u32 {
    static ROUNDS: OnceLock<u32> = OnceLock::new();
    *ROUNDS.get_or_init(|| {
        const TRIAL: u32 = 256;
        let start = Instant::now();
        for _ in 0..TRIAL {
            hint::spin_loop();
        }
        let trial = start.elapsed().as_nanos().max(1) as u64;
        let rounds = longest_spin().as_nanos() as u64 * u64::from(TRIAL) / trial;
        u32::try_from(rounds).unwrap_or(u32::MAX).min(1 << 20)
    })
}

const FULL: u8 = 32;
const GAIN: u8 = 4;
const PROBE_EVERY: u8 = 32;

/// Learns whether spinning pays on one ring end.
#[derive(Debug)]
pub struct Spinner {
    /// Grows with each spin that succeeded, shrinks with each that did not.
    confidence: u8,
    skipped: u8,
}

impl Spinner {
    pub fn new() -> Self {
        Spinner { confidence: FULL, skipped: 0 }
    }

    fn rounds(&mut self) -> u32 {
        // The model checker looks at the sleeping; spinning has nothing to go wrong.
        if cfg!(loom) {
            return 0;
        }
        if self.confidence > 0 {
            return longest_rounds();
        }
        // Without confidence, try now and then, longer than usual: when both sides sleep, one of them
        // must outlast the other's wake-up once before both find each other awake.
        self.skipped += 1;
        if self.skipped < PROBE_EVERY {
            return 0;
        }
        self.skipped = 0;
        longest_rounds().saturating_mul(4)
    }

    fn learn(&mut self, paid: bool) {
        self.confidence = if paid { (self.confidence + GAIN).min(FULL) } else { self.confidence.saturating_sub(1) };
    }
}

/// Returns when `ready` is true. `flag` is the word by which the peer knows that this side sleeps.
pub(crate) fn wait(
    flag: &AtomicU32,
    liveness: &Liveness,
    spinner: &mut Spinner,
    ready: impl Fn() -> bool,
) -> Result<(), WaitError> {
    let rounds = spinner.rounds();
    for _ in 0..rounds {
        if ready() {
            spinner.learn(true);
            return Ok(());
        }
        hint::spin_loop();
    }
    if rounds > 0 {
        spinner.learn(false);
    }
    sleep(flag, liveness, ready)
}

#[cold]
fn sleep(flag: &AtomicU32, liveness: &Liveness, ready: impl Fn() -> bool) -> Result<(), WaitError> {
    let interval = liveness.interval();
    let mut probed = interval.map(|_| Instant::now());
    loop {
        flag.store(1, Ordering::SeqCst);
        // Pairs with the fence in `wake_if_asleep`: what the peer published before it saw the flag
        // clear is visible to this second look. Likewise for `Liveness::kill` followed by a wake.
        fence(Ordering::SeqCst);
        if ready() {
            flag.store(0, Ordering::Relaxed);
            return Ok(());
        }
        if liveness.dead() {
            flag.store(0, Ordering::Relaxed);
            return Err(WaitError);
        }
        futex::wait(flag, 1, interval);
        // A peer that keeps clearing the flag makes this loop turn, on that peer's own account, but
        // cannot keep it from noticing a death: `dead` is looked at in every turn. Nor can signals, which
        // end the sleep early, keep it from asking: the time counts from the last probe.
        if let (Some(interval), Some(last)) = (interval, probed)
            && last.elapsed() >= interval
        {
            liveness.check();
            probed = Some(Instant::now());
        }
    }
}
