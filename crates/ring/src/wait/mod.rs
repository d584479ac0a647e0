//! Waits for the peer: a side spins as long as spinning pays, then sleeps.

pub(crate) mod liveness;
pub(crate) mod predictor;
pub(crate) mod wake;

use std::hint;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::ablation::{Term, without};
use crate::doorbell::{Doorbell, Reach};
use crate::futex;
use crate::sync::{AtomicU32, Ordering, fence};
use crate::wait::liveness::{Interruption, Liveness, WaitError, WaitPoint};
use crate::wait::predictor::{WaitPlan, WaitPredictor};

/// The default spin window. Spinning pays while a wait is likely to be shorter than the time that
/// two sleepers need to wake each other. With two CPUs or fewer the accelerator's own threads may
/// need the spinning thread's CPU.
fn longest_spin() -> Duration {
    static LONGEST: OnceLock<Duration> = OnceLock::new();
    *LONGEST.get_or_init(|| match available_cpus() {
        0 | 1 => Duration::ZERO,
        2 => Duration::from_micros(16),
        3 | 4 => Duration::from_micros(30),
        5..8 => Duration::from_micros(50),
        // A wake-up takes about 50 us, which is noticeable in a call of a few hundred.
        _ => MANY_CPUS_SPIN,
    })
}

/// CPUs that this process may use; 2 if it is confined to one of several, because its peer may run
/// on the others.
fn available_cpus() -> usize {
    let ours = std::thread::available_parallelism().map_or(1, usize::from);
    // SAFETY: `sysconf` accesses no memory of ours; a negative answer means that the number is
    // unknown.
    let all = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    if ours == 1 && all > 1 { 2 } else { ours }
}

const MANY_CPUS_SPIN: Duration = Duration::from_micros(400);

/// Spin window for a peer in another machine: a wake-up is an exit of one machine and an interrupt
/// of the other, and the peer does not compete for this machine's CPUs.
const MAX_REMOTE_SPIN: Duration = Duration::from_micros(300);
/// Time that two sleepers in different machines need to wake each other on idle CPUs.
const REMOTE_WAKE_UP_TIME: Duration = Duration::from_micros(400);

/// Spin rounds before the first clock read and between two of them. A pause instruction costs 3 to
/// 50 ns by CPU, and 1 us on an emulated CPU, so a number of rounds says nothing about time. Most
/// waits end before the first read.
const ROUNDS_PER_CLOCK_READ: u32 = 64;

/// Upper bound of a spinner's confidence. With a gain of 2, a side spins while more than a third of
/// its recent waits were short.
const MAX_CONFIDENCE: u8 = 16;
const CONFIDENCE_GAIN: u8 = 2;

/// Learns from recent waits of one ring end if spinning pays.
#[derive(Debug)]
pub struct Spinner {
    /// Grows with each short wait, shrinks with each long one, spun or slept. Counting short sleeps
    /// lets two sides that both sleep discover that both could spin.
    confidence: u8,
    /// Advised spin window, from a caller that knows more than recent waits show; zero: none.
    spin_window: Duration,
    longest: Duration,
    /// A sleep of at most this length could have been a spin if the peer had not slept either.
    short_sleep: Duration,
    /// Predicts waits for replies; present if there are enough CPUs to spin before a reply is due.
    predictor: Option<WaitPredictor>,
    /// Spin time of a thread that was woken without a message, before it sleeps again.
    post_wake_spin: Duration,
}

/// Time within which a reply follows if the peer wakes this side before the reply is complete.
const POST_WAKE_SPIN: Duration = Duration::from_millis(1);

/// Spin time of a thread that was woken on its peer's CPU: the peer may have no other CPU.
const SHARED_CPU_SPIN: Duration = Duration::from_micros(300);

/// Time that the peer needs to submit a received request to its device.
const SHARED_CPU_SLEEP: Duration = Duration::from_micros(20);

impl Spinner {
    pub fn new(reach: Reach) -> Self {
        let (longest, wake_up_time) = match reach {
            Reach::Near => (longest_spin(), Duration::ZERO),
            Reach::Far => (longest_spin().max(MAX_REMOTE_SPIN), REMOTE_WAKE_UP_TIME),
            Reach::Borrowing => (Duration::ZERO, Duration::ZERO),
        };
        let short_sleep = longest + wake_up_time;
        Spinner {
            confidence: MAX_CONFIDENCE,
            spin_window: Duration::ZERO,
            longest,
            short_sleep,
            predictor: None,
            post_wake_spin: Duration::ZERO,
        }
    }

    /// Declares that every later wait is for a reply that the peer is working on.
    pub fn expect_answers(&mut self) {
        if !self.longest.is_zero() && !cfg!(loom) && !without(Term::PostWakeSpin) {
            self.post_wake_spin = POST_WAKE_SPIN;
        }
        if self.longest >= MANY_CPUS_SPIN && !cfg!(loom) && !without(Term::Predictor) {
            self.predictor = Some(WaitPredictor::default());
        }
    }

    /// True if the next wait is for a reply and an advised spin window covers it.
    fn answers_soon(&self) -> bool {
        !self.post_wake_spin.is_zero() && !self.spin_window.is_zero()
    }

    /// Spin time of the next wait before it sleeps.
    fn time(&self) -> Duration {
        // The model checker explores the sleeps; a spin only polls and cannot go wrong.
        if cfg!(loom) || self.longest.is_zero() || without(Term::Spin) {
            return Duration::ZERO;
        }
        if self.spin_window.is_zero() && self.confidence > 0 { self.longest } else { self.spin_window }
    }

    /// Sets the spin window before every sleep, independent of recent waits; zero lets them decide.
    pub fn set_spin_window(&mut self, time: Duration) {
        self.spin_window = time.min(self.longest * 1000);
    }

    fn learn(&mut self, short: bool) {
        self.confidence = if short {
            (self.confidence + CONFIDENCE_GAIN).min(MAX_CONFIDENCE)
        } else {
            self.confidence.saturating_sub(1)
        };
    }
}

/// 1 + the CPU that this thread runs on; 0: unknown.
#[inline]
pub(crate) fn current_cpu() -> u32 {
    // Neither loom nor miri models CPUs.
    if cfg!(any(loom, miri)) {
        return 0;
    }
    // SAFETY: `sched_getcpu` has no arguments; a negative answer means that the CPU is unknown.
    (unsafe { libc::sched_getcpu() } + 1) as u32
}

/// The value of [`current_cpu`] for a peer that is woken by `doorbell`: 0 for a peer in another
/// machine, whose CPUs have other numbers.
pub(crate) fn here(doorbell: Option<&dyn Doorbell>) -> u32 {
    if doorbell.is_some() { 0 } else { current_cpu() }
}

/// The word in shared memory that tells the peer that this side sleeps, and the means by which it
/// sleeps. Bits 1..31 hold a CPU in the encoding of [`current_cpu`]: with [`ASLEEP`] the one where
/// this side went to sleep, with [`AWAKE`] the one where it woke up and continues to wait, with
/// neither the one of the peer that woke it. The word is 0 after a wait, and in a wait before its
/// first sleep. Written by this side; the peer writes it to wake this side.
pub(crate) struct WaitFlag<'a> {
    pub word: &'a AtomicU32,
    pub doorbell: Option<&'a dyn Doorbell>,
    /// The wait ends when this side is interrupted ([`Liveness::interrupt`]).
    pub interruptible: bool,
}

/// Bit of the [`WaitFlag`]'s word: this side sleeps.
pub(crate) const ASLEEP: u32 = 1;
/// Bit of the [`WaitFlag`]'s word: this side has woken up by itself or was woken, and runs.
const AWAKE: u32 = 1 << 31;

/// The state that the waiting peer publishes in its [`WaitFlag`]. Advice only: the peer may lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PeerWaitState {
    /// The peer sleeps, or was woken and does not run yet.
    pub asleep: bool,
    /// CPU in the encoding of [`current_cpu`] where the peer went to sleep or woke up; 0: it has
    /// not slept in this wait, or its CPU is unknown.
    pub at: u32,
}

impl PeerWaitState {
    pub(crate) fn look(word: &AtomicU32) -> PeerWaitState {
        let word = word.load(Ordering::Relaxed);
        let own = word & (ASLEEP | AWAKE) != 0;
        PeerWaitState { asleep: word != 0 && word & AWAKE == 0, at: if own { (word & !AWAKE) >> 1 } else { 0 } }
    }
}

impl WaitFlag<'_> {
    /// The reason why the wait shall not go on; `None`: it shall.
    fn stopped(&self, liveness: &Liveness) -> Option<WaitError> {
        if liveness.dead() {
            return Some(WaitError::Gone);
        }
        let interrupted = self.interruptible && liveness.interrupted();
        interrupted.then_some(WaitError::Interrupted)
    }

    /// Announces that this side is about to sleep; returns the word's value, which
    /// [`WaitFlag::sleep`] expects.
    fn raise(&self) -> u32 {
        let word = ASLEEP | here(self.doorbell) << 1;
        self.word.store(word, Ordering::SeqCst);
        // Pairs with the fence in `wake_if_asleep`: a publication that the peer made before it saw
        // the word clear is visible to the check that follows. Likewise for `Liveness::kill`
        // followed by a wake.
        fence(Ordering::SeqCst);
        word
    }

    /// Announces that this side runs again and may continue to wait.
    fn lower(&self) {
        self.word.store(AWAKE | here(self.doorbell) << 1, Ordering::Relaxed);
    }

    /// Ends a wait in which this side slept.
    fn clear(&self) {
        self.word.store(0, Ordering::Relaxed);
    }

    fn sleep(&self, raised: u32, at_most: Option<Duration>) {
        match self.doorbell {
            Some(doorbell) => doorbell.wait(self.word, raised, at_most),
            None => futex::wait(self.word, raised, at_most),
        }
    }
}

/// Waits until `ready` returns true. `peer_cpu`: the CPU where the peer last ran, as far as known;
/// spinning on the peer's CPU would only delay its reply.
pub(crate) fn wait(
    flag: WaitFlag,
    liveness: &Liveness,
    spinner: &mut Spinner,
    peer_cpu: u32,
    interrupted: &mut Interruption,
    ready: impl Fn() -> bool,
) -> Result<(), WaitError> {
    let time = spin_time(spinner, peer_cpu);
    if spin(time, &ready) {
        spinner.learn(true);
        return Ok(());
    }
    let result = if shares_cpu(peer_cpu)
        && spinner.answers_soon()
        && yield_to_peer(&flag, liveness, spinner.spin_window, &ready)
    {
        spinner.learn(true);
        Ok(())
    } else {
        sleep_and_learn(&flag, liveness, spinner, peer_cpu, time, interrupted, ready)
    };
    flag.clear();
    result
}

fn sleep_and_learn(
    flag: &WaitFlag,
    liveness: &Liveness,
    spinner: &mut Spinner,
    peer_cpu: u32,
    spun: Duration,
    interrupted: &mut Interruption,
    ready: impl Fn() -> bool,
) -> Result<(), WaitError> {
    let asleep = Instant::now();
    let plan = spinner.predictor.as_ref().filter(|_| !shares_cpu(peer_cpu)).and_then(|predictor| predictor.plan(spun));
    let in_time = plan.is_some_and(|plan| wake_up_before(flag, liveness, plan, &ready));
    let result = if in_time { Ok(()) } else { sleep(flag, liveness, spinner.post_wake_spin, interrupted, ready) };
    let slept = asleep.elapsed();
    spinner.learn(spun.is_zero() && slept < spinner.short_sleep);
    if let Some(predictor) = &mut spinner.predictor {
        predictor.learn(spun + slept);
    }
    result
}

/// Sleeps and spins as planned. True: `ready` became true without a wake-up by the peer.
fn wake_up_before(flag: &WaitFlag, liveness: &Liveness, plan: WaitPlan, ready: impl Fn() -> bool) -> bool {
    sleep_once(flag, liveness, plan.sleep, &ready);
    spin(plan.spin, ready)
}

/// Sleeps briefly so that a peer on this CPU can submit the request that it has just received, and
/// then spins for the reply while the peer waits; Linux moves one of them to another CPU.
fn yield_to_peer(flag: &WaitFlag, liveness: &Liveness, spin_window: Duration, ready: impl Fn() -> bool) -> bool {
    sleep_once(flag, liveness, SHARED_CPU_SLEEP, &ready);
    spin(spin_window, ready)
}

/// Sleeps once, for at most `at_most`; returns at once if `ready` returns true or the peer is dead.
fn sleep_once(flag: &WaitFlag, liveness: &Liveness, at_most: Duration, ready: impl Fn() -> bool) {
    let raised = flag.raise();
    if !ready() && flag.stopped(liveness).is_none() {
        flag.sleep(raised, Some(at_most));
    }
    flag.lower();
}

/// Waits as [`wait`] does, but sleeps at most `at_most`; true if `ready` returns true. A sleep that
/// ends too early teaches the spinner nothing, because the caller continues the wait in another
/// place.
pub(crate) fn wait_within(
    flag: WaitFlag,
    liveness: &Liveness,
    spinner: &mut Spinner,
    peer_cpu: u32,
    at_most: Duration,
    ready: impl Fn() -> bool,
) -> Result<bool, WaitError> {
    let time = spin_time(spinner, peer_cpu);
    if spin(time, &ready) {
        spinner.learn(true);
        return Ok(true);
    }
    let asleep = Instant::now();
    sleep_once(&flag, liveness, at_most, &ready);
    flag.clear();
    match ready() {
        true => {
            spinner.learn(time.is_zero() && asleep.elapsed() < spinner.short_sleep);
            Ok(true)
        }
        false => flag.stopped(liveness).map_or(Ok(false), Err),
    }
}

fn spin_time(spinner: &Spinner, peer_cpu: u32) -> Duration {
    if shares_cpu(peer_cpu) { Duration::ZERO } else { spinner.time() }
}

pub(crate) fn shares_cpu(peer_cpu: u32) -> bool {
    !without(Term::SharedCpu) && peer_cpu != 0 && peer_cpu == current_cpu()
}

fn spin(time: Duration, ready: impl Fn() -> bool) -> bool {
    if time.is_zero() {
        return false;
    }
    let mut began = None;
    loop {
        for _ in 0..ROUNDS_PER_CLOCK_READ {
            if ready() {
                return true;
            }
            hint::spin_loop();
        }
        if began.get_or_insert_with(Instant::now).elapsed() >= time {
            return ready();
        }
    }
}

#[cold]
fn sleep(
    flag: &WaitFlag,
    liveness: &Liveness,
    post_wake_spin: Duration,
    interrupted: &mut Interruption,
    ready: impl Fn() -> bool,
) -> Result<(), WaitError> {
    let interval = liveness.interval();
    let mut probed = interval.map(|_| Instant::now());
    loop {
        let raised = flag.raise();
        if ready() {
            return Ok(());
        }
        if let Some(reason) = flag.stopped(liveness) {
            return Err(reason);
        }
        flag.sleep(raised, interval);
        // Only the peer clears the ASLEEP bit of a sleeper.
        let word = flag.word.load(Ordering::SeqCst);
        if word & ASLEEP == 0 {
            flag.lower();
            // The peer runs on the CPU where this thread has just been woken, and needs it to go
            // on.
            let on_peers_cpu = shares_cpu(word >> 1);
            if spin(if on_peers_cpu { post_wake_spin.min(SHARED_CPU_SPIN) } else { post_wake_spin }, &ready) {
                return Ok(());
            }
        }
        // A peer that keeps clearing the flag keeps this loop turning, on its own CPU account, but
        // cannot hide a death: `dead` is checked in every turn. Signals that end a sleep early
        // cannot suppress the probe either: the interval counts from the last probe.
        if let (Some(interval), Some(last)) = (interval, probed)
            && last.elapsed() >= interval
        {
            liveness.check();
            if interrupted(WaitPoint::Check) {
                return Err(WaitError::Interrupted);
            }
            probed = Some(Instant::now());
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::wait::liveness::uninterrupted;
    use std::cell::Cell;

    #[test]
    fn spin_lasts_its_full_time() {
        let (time, began) = (Duration::from_millis(2), Instant::now());
        assert!(!spin(time, || false));
        assert!(began.elapsed() >= time, "{:?}", began.elapsed());
        // No round is spun in zero time.
        assert!(!spin(Duration::ZERO, || panic!("polled in zero time")));
    }

    #[test]
    fn spin_ends_when_ready_and_polls_once_more_at_its_end() {
        let asked = Cell::new(0);
        let after = |n| {
            asked.set(0);
            let asked = &asked;
            move || asked.replace(asked.get() + 1) == n
        };
        assert!(spin(Duration::from_secs(3600), after(3)));
        assert_eq!(asked.get(), 4);
        // A thread that was off its CPU until the time was over has not polled since.
        assert!(spin(Duration::from_nanos(1), after(ROUNDS_PER_CLOCK_READ)));
    }

    #[test]
    fn predicted_sleeper_spins_before_its_wait_ends() {
        let word = AtomicU32::new(0);
        let (flag, liveness) = (WaitFlag { word: &word, doorbell: None, interruptible: false }, Liveness::notified());
        let (sleep, spin, began) = (Duration::from_millis(3), Duration::from_secs(10), Instant::now());
        // Becomes true without a wake-up by the peer.
        let ready = || began.elapsed() > Duration::from_millis(5);
        assert!(wake_up_before(&flag, &liveness, WaitPlan { sleep, spin }, ready));
        assert!(!PeerWaitState::look(&word).asleep);
        assert!(!wake_up_before(&flag, &liveness, WaitPlan { sleep, spin: Duration::from_millis(1) }, || false));
    }

    /// A doorbell whose sleeps end at once, as if a peer on the CPU given by `waker` had ended
    /// them.
    struct Restless {
        sleeps: std::sync::atomic::AtomicU32,
        waker: fn() -> u32,
    }

    impl Doorbell for Restless {
        fn wait(&self, word: &AtomicU32, _: u32, _: Option<Duration>) {
            self.sleeps.fetch_add(1, Ordering::SeqCst);
            word.store((self.waker)() << 1, Ordering::SeqCst);
        }
        fn wake_peer(&self, _: &AtomicU32) {}
        fn wake_own(&self, _: &AtomicU32) {}
    }

    /// Becomes true after a fixed number of polls, so that the speed of the machine does not
    /// matter. The number exceeds the polls within `SHARED_CPU_SPIN` and is below the polls within
    /// seconds.
    fn asked_often() -> impl Fn() -> bool {
        let (asked, enough) = (Cell::new(0), if cfg!(miri) { 1_000 } else { 1_000_000 });
        move || asked.replace(asked.get() + 1) > enough
    }

    #[test]
    fn early_wake_up_spins_for_the_message() {
        let sleeps = |post_wake_spin: Duration, waker: fn() -> u32| {
            let word = AtomicU32::new(0);
            let doorbell = Restless { sleeps: 0.into(), waker };
            let flag = WaitFlag { word: &word, doorbell: Some(&doorbell), interruptible: false };
            let ready = asked_often();
            assert!(sleep(&flag, &Liveness::notified(), post_wake_spin, &mut uninterrupted, ready).is_ok());
            doorbell.sleeps.load(Ordering::SeqCst)
        };
        assert_eq!(sleeps(Duration::from_secs(10), || 0), 1);
        assert_eq!(sleeps(Duration::from_secs(10), || u32::from(u16::MAX)), 1, "on another CPU");
        assert!(cfg!(miri) || sleeps(Duration::from_secs(10), current_cpu) > 1, "the waker needs this CPU");
        assert!(sleeps(Duration::ZERO, || 0) > 1);
    }

    #[test]
    #[cfg_attr(miri, ignore = "knows no CPUs")]
    fn sleeper_publishes_its_cpu() {
        let word = AtomicU32::new(0);
        let fresh = PeerWaitState::look(&word);
        assert_eq!((fresh.asleep, fresh.at), (false, 0), "no CPU is known before the first sleep");
        let flag = WaitFlag { word: &word, doorbell: None, interruptible: false };
        // Any CPU is accepted: this thread may migrate between any two lines.
        let somewhere = |at: u32| (1..=1 << 16).contains(&at);
        flag.raise();
        let asleep = PeerWaitState::look(&word);
        assert!(asleep.asleep && somewhere(asleep.at), "{asleep:?}");
        word.store(7 << 1, Ordering::SeqCst);
        let woken = PeerWaitState::look(&word);
        assert_eq!((woken.asleep, woken.at), (true, 0), "the waker's CPU does not say where this side will run");
        flag.lower();
        let awake = PeerWaitState::look(&word);
        assert!(!awake.asleep && somewhere(awake.at), "{awake:?}");
        // The end of a wait clears the word after a short sleep as well as after a long one.
        let mut spinner = Spinner::new(Reach::Near);
        spinner.expect_answers();
        let began = Instant::now();
        let ready = || began.elapsed() > Duration::from_millis(5);
        spinner.set_spin_window(Duration::from_millis(300));
        assert!(wait(flag, &Liveness::notified(), &mut spinner, current_cpu(), &mut uninterrupted, ready).is_ok());
        assert_eq!(word.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn thread_woken_on_its_peers_cpu_spins() {
        let (word, began) = (AtomicU32::new(0), Instant::now());
        let doorbell = Restless { sleeps: 0.into(), waker: current_cpu };
        let flag = WaitFlag { word: &word, doorbell: Some(&doorbell), interruptible: false };
        // Becomes true within the spin time of a thread on its peer's CPU.
        let ready = || began.elapsed() > SHARED_CPU_SPIN / 2;
        assert!(sleep(&flag, &Liveness::notified(), Duration::from_secs(10), &mut uninterrupted, ready).is_ok());
        assert_eq!(doorbell.sleeps.load(Ordering::SeqCst), 1);
    }

    #[test]
    #[cfg_attr(miri, ignore = "knows no CPUs")]
    fn spinning_thread_yields_to_a_peer_on_its_cpu() {
        let sleeps = |advised: bool| {
            let word = AtomicU32::new(0);
            let doorbell = Restless { sleeps: 0.into(), waker: || 0 };
            let flag = WaitFlag { word: &word, doorbell: Some(&doorbell), interruptible: false };
            let mut spinner = Spinner::new(Reach::Far);
            spinner.expect_answers();
            spinner.post_wake_spin = Duration::from_nanos(1);
            if advised {
                // Not a thousand times the usual spin, which ends on a loaded machine before the wait does.
                spinner.longest = Duration::from_secs(60);
                spinner.set_spin_window(spinner.longest);
            }
            let ready = asked_often();
            assert!(wait(flag, &Liveness::notified(), &mut spinner, current_cpu(), &mut uninterrupted, ready).is_ok());
            doorbell.sleeps.load(Ordering::SeqCst)
        };
        assert_eq!(sleeps(true), 1, "one nap, then it spins");
        assert!(sleeps(false) > 1);
    }

    #[test]
    fn long_wait_asks_for_an_interruption_and_a_short_one_does_not() {
        let word = AtomicU32::new(0);
        let interrupted_after = |asks: u32, ready: bool| {
            let liveness = Liveness::probed(Duration::from_millis(1), || true);
            let mut spinner = Spinner::new(Reach::Near);
            let mut asked = 0;
            let mut interrupted = |_| {
                asked += 1;
                asked == asks
            };
            let flag = WaitFlag { word: &word, doorbell: None, interruptible: false };
            let result = wait(flag, &liveness, &mut spinner, 0, &mut interrupted, || ready);
            (result, asked)
        };
        assert_eq!(interrupted_after(3, false), (Err(WaitError::Interrupted), 3));
        assert_eq!(interrupted_after(1, true), (Ok(()), 0));
        assert_eq!(word.load(Ordering::SeqCst), 0, "the peer need not wake a side that has left");
    }

    #[test]
    fn advised_spin_window_outlasts_confidence() {
        let mut spinner = Spinner::new(Reach::Far);
        assert_eq!(spinner.time(), spinner.longest);
        (0..MAX_CONFIDENCE).for_each(|_| spinner.learn(false));
        assert_eq!(spinner.time(), Duration::ZERO);
        spinner.set_spin_window(Duration::from_millis(7));
        assert_eq!(spinner.time(), Duration::from_millis(7));
        spinner.set_spin_window(Duration::ZERO);
        spinner.learn(true);
        assert_eq!(spinner.time(), spinner.longest);
    }
}
