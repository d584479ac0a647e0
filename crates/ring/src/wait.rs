//! Waiting for the peer: spin as long as that pays, then sleep.

use std::hint;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::forecast::{Doze, Forecast};
use crate::sync::{AtomicU32, Ordering, fence};
use crate::{Doorbell, futex};

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

/// Spinning pays while a wait is likely to be shorter than what two sleepers need to wake each other.
/// With two CPUs or fewer the accelerator's own threads may need the one that spins.
fn longest_spin() -> Duration {
    static LONGEST: OnceLock<Duration> = OnceLock::new();
    *LONGEST.get_or_init(|| match processors() {
        0 | 1 => Duration::ZERO,
        2 => Duration::from_micros(16),
        3 | 4 => Duration::from_micros(30),
        5..8 => Duration::from_micros(50),
        // A sleeper is back after 50 us or so, which a call of a few hundred would feel.
        _ => MANY_CPUS_SPIN,
    })
}

/// How many CPUs this process may use; 2 if it is kept on one of several, because its peer may run on the others.
fn processors() -> usize {
    let ours = std::thread::available_parallelism().map_or(1, usize::from);
    // SAFETY: a question that touches no memory; a negative answer means that it is unknown.
    let all = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    if ours == 1 && all > 1 { 2 } else { ours }
}

const MANY_CPUS_SPIN: Duration = Duration::from_micros(400);

/// Between machines a wake-up is an exit of one and an interrupt of the other, and the peer's CPUs are not ours.
const LONGEST_FAR: Duration = Duration::from_micros(300);
/// What two sleepers in different machines take to wake each other, when nobody has much to do.
const WAKE_FAR: Duration = Duration::from_micros(400);

/// Rounds between two looks at the clock, and before the first: a pause costs from 3 to 50 ns by CPU, and a microsecond where
/// the processor is emulated, so rounds by themselves say nothing about time. Most waits end before the first look.
const ROUNDS: u32 = 64;

/// A side spins while more than a third of its recent waits were short.
const FULL: u8 = 16;
const GAIN: u8 = 2;

/// Learns whether spinning pays on one ring end.
#[derive(Debug)]
pub struct Spinner {
    /// Grows with each short wait, shrinks with each long one, whether this side spun or slept. Two sides
    /// that sleep therefore find out that both could spin; learning only from spins, they would not.
    confidence: u8,
    /// Somebody who knows more than recent waits tell wants this side awake for so long.
    awake: Duration,
    longest: Duration,
    /// A sleep up to so long could have been a spin, if the peer had not slept either.
    short_sleep: Duration,
    /// Of waits for answers, where there are CPUs enough to be awake before they come.
    forecast: Option<Forecast>,
    /// For how long whoever is woken without a message spins for one before it sleeps again.
    alert: Duration,
}

/// A peer that wakes this side before it has an answer expects it within so long.
const ALERT: Duration = Duration::from_millis(1);

/// What a peer needs to find out that it has woken this side into its own way, and to move to another CPU. More than it sleeps
/// meanwhile, with what Linux adds to that: it must be the first to wake up.
const MOVING: Duration = Duration::from_micros(100);

/// For how long whoever was woken into its peer's way is awake then: the peer may have no other CPU.
const BESIDE: Duration = Duration::from_micros(300);

/// What a peer needs to give what it was sent to its device.
const NAP: Duration = Duration::from_micros(20);

impl Spinner {
    /// `far`: the peer is in another machine.
    pub fn new(far: bool) -> Self {
        let longest = if far { longest_spin().max(LONGEST_FAR) } else { longest_spin() };
        let short_sleep = if far { longest + WAKE_FAR } else { longest };
        Spinner { confidence: FULL, awake: Duration::ZERO, longest, short_sleep, forecast: None, alert: Duration::ZERO }
    }

    /// From now on every wait is for an answer that somebody is at work on.
    pub fn expect_answers(&mut self) {
        if !self.longest.is_zero() && !cfg!(loom) {
            self.alert = ALERT;
        }
        if self.longest >= MANY_CPUS_SPIN && !cfg!(loom) {
            self.forecast = Some(Forecast::default());
        }
    }

    /// Whether the next wait is for an answer that this side was advised to be awake for.
    fn answers_soon(&self) -> bool {
        !self.alert.is_zero() && !self.awake.is_zero()
    }

    /// How long the next wait spins before it sleeps.
    fn time(&self) -> Duration {
        // The model checker looks at the sleeping; spinning has nothing to go wrong.
        if cfg!(loom) || self.longest.is_zero() {
            return Duration::ZERO;
        }
        if self.awake.is_zero() && self.confidence > 0 { self.longest } else { self.awake }
    }

    /// Spins for about so long before every sleep, whatever recent waits were like; zero: as they suggest.
    pub fn stay_awake(&mut self, time: Duration) {
        self.awake = time.min(self.longest * 1000);
    }

    fn learn(&mut self, short: bool) {
        self.confidence = if short { (self.confidence + GAIN).min(FULL) } else { self.confidence.saturating_sub(1) };
    }
}

/// 1 + the CPU that this thread runs on, or 0.
#[inline]
pub(crate) fn current_cpu() -> u32 {
    // Neither checker knows CPUs.
    if cfg!(any(loom, miri)) {
        return 0;
    }
    // SAFETY: no arguments; a negative answer means that it is unknown.
    (unsafe { libc::sched_getcpu() } + 1) as u32
}

/// Where this thread runs, for a peer that is woken by `doorbell`: CPUs of another machine have other numbers.
pub(crate) fn here(doorbell: Option<&dyn Doorbell>) -> u32 {
    if doorbell.is_some() { 0 } else { current_cpu() }
}

/// The word by which the peer knows that this side sleeps, and how it sleeps. Beside what it does there is a CPU, as
/// [`current_cpu`] says, times two: where this side went to sleep ([`ASLEEP`]), where it woke up and waits on ([`AWAKE`]), or where who
/// woke it runs (neither). 0 when a wait is over, and before it has slept in one.
pub(crate) struct Flag<'a> {
    pub word: &'a AtomicU32,
    pub doorbell: Option<&'a dyn Doorbell>,
}

/// In a [`Flag`]'s word.
pub(crate) const ASLEEP: u32 = 1;
/// In a [`Flag`]'s word.
const AWAKE: u32 = 1 << 31;

/// What a side says of itself while it waits. Nothing but advice: it may lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Waiting {
    /// It sleeps, or was woken and does not run yet.
    pub asleep: bool,
    /// Where it went to sleep or woke up, if it has slept since it began to wait, as [`current_cpu`] says.
    pub at: u32,
}

impl Waiting {
    pub(crate) fn look(word: &AtomicU32) -> Waiting {
        let word = word.load(Ordering::Relaxed);
        let own = word & (ASLEEP | AWAKE) != 0;
        Waiting { asleep: word != 0 && word & AWAKE == 0, at: if own { (word & !AWAKE) >> 1 } else { 0 } }
    }
}

impl Flag<'_> {
    /// This side is about to sleep: what [`Flag::sleep`] wants to know.
    fn raise(&self) -> u32 {
        let word = ASLEEP | here(self.doorbell) << 1;
        self.word.store(word, Ordering::SeqCst);
        // Pairs with the fence in `wake_if_asleep`: what the peer published before it saw the word
        // clear is visible to the second look that follows. Likewise for `Liveness::kill` followed by a wake.
        fence(Ordering::SeqCst);
        word
    }

    /// Awake, and it may wait on.
    fn lower(&self) {
        self.word.store(AWAKE | here(self.doorbell) << 1, Ordering::Relaxed);
    }

    /// The wait in which this side slept is over.
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

/// Returns when `ready` is true. `peer_cpu`: where the peer last ran, as far as known; on the same CPU
/// spinning would only keep it from answering.
pub(crate) fn wait(
    flag: Flag,
    liveness: &Liveness,
    spinner: &mut Spinner,
    peer_cpu: u32,
    ready: impl Fn() -> bool,
) -> Result<(), WaitError> {
    let time = spin_time(spinner, peer_cpu);
    if spin(time, &ready) {
        spinner.learn(true);
        return Ok(());
    }
    let result = if shares_cpu(peer_cpu) && spinner.answers_soon() && let_pass(&flag, liveness, spinner.awake, &ready) {
        spinner.learn(true);
        Ok(())
    } else {
        sleep_and_learn(&flag, liveness, spinner, peer_cpu, time, ready)
    };
    flag.clear();
    result
}

fn sleep_and_learn(
    flag: &Flag,
    liveness: &Liveness,
    spinner: &mut Spinner,
    peer_cpu: u32,
    spun: Duration,
    ready: impl Fn() -> bool,
) -> Result<(), WaitError> {
    let asleep = Instant::now();
    let doze = spinner.forecast.as_ref().filter(|_| !shares_cpu(peer_cpu)).and_then(|forecast| forecast.doze(spun));
    let in_time = doze.is_some_and(|doze| wake_up_before(flag, liveness, doze, &ready));
    let result = if in_time { Ok(()) } else { sleep(flag, liveness, spinner.alert, ready) };
    let slept = asleep.elapsed();
    spinner.learn(spun.is_zero() && slept < spinner.short_sleep);
    if let Some(forecast) = &mut spinner.forecast {
        forecast.learn(spun + slept);
    }
    result
}

/// True: it is ready, and nobody had to wake this side.
fn wake_up_before(flag: &Flag, liveness: &Liveness, doze: Doze, ready: impl Fn() -> bool) -> bool {
    sleep_once(flag, liveness, doze.sleep, &ready);
    spin(doze.alert, ready)
}

/// The peer runs on this CPU and has something to do with what it was sent a moment ago; then it waits itself, and this side can
/// be awake until the answer comes. The peer finds it so and moves to another CPU.
fn let_pass(flag: &Flag, liveness: &Liveness, awake: Duration, ready: impl Fn() -> bool) -> bool {
    sleep_once(flag, liveness, NAP, &ready);
    spin(awake, ready)
}

/// Not at all if there is nothing to wait for any more.
fn sleep_once(flag: &Flag, liveness: &Liveness, at_most: Duration, ready: impl Fn() -> bool) {
    let raised = flag.raise();
    if !ready() && !liveness.dead() {
        flag.sleep(raised, Some(at_most));
    }
    flag.lower();
}

/// As [`wait`], but sleeps for at most so long; true if `ready` is. A sleep that was not long enough teaches the
/// spinner nothing: the wait goes on elsewhere.
pub(crate) fn wait_within(
    flag: Flag,
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
        false if liveness.dead() => Err(WaitError),
        false => Ok(false),
    }
}

fn spin_time(spinner: &Spinner, peer_cpu: u32) -> Duration {
    if shares_cpu(peer_cpu) { Duration::ZERO } else { spinner.time() }
}

pub(crate) fn shares_cpu(peer_cpu: u32) -> bool {
    peer_cpu != 0 && peer_cpu == current_cpu()
}

fn spin(time: Duration, ready: impl Fn() -> bool) -> bool {
    if time.is_zero() {
        return false;
    }
    let mut began = None;
    loop {
        for _ in 0..ROUNDS {
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
fn sleep(flag: &Flag, liveness: &Liveness, alert: Duration, ready: impl Fn() -> bool) -> Result<(), WaitError> {
    let interval = liveness.interval();
    let mut probed = interval.map(|_| Instant::now());
    loop {
        let raised = flag.raise();
        if ready() {
            return Ok(());
        }
        if liveness.dead() {
            return Err(WaitError);
        }
        flag.sleep(raised, interval);
        // Only the peer lowers the flag of a sleeper.
        let word = flag.word.load(Ordering::SeqCst);
        if word & ASLEEP == 0 {
            flag.lower();
            // Where the peer runs itself, and this side was woken into its way, it needs the CPU to go on.
            let in_its_way = shares_cpu(word >> 1);
            if in_its_way && !alert.is_zero() {
                sleep_once(flag, liveness, MOVING, &ready);
            }
            if spin(if in_its_way { alert.min(BESIDE) } else { alert }, &ready) {
                return Ok(());
            }
        }
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_spin_lasts_as_long_as_it_may() {
        let (time, began) = (Duration::from_millis(2), Instant::now());
        assert!(!spin(time, || false));
        assert!(began.elapsed() >= time, "{:?}", began.elapsed());
        // Not a round without time for one.
        assert!(!spin(Duration::ZERO, || panic!("nobody asked")));
    }

    #[test]
    fn a_spin_ends_when_it_is_ready_and_looks_again_at_its_end() {
        let asked = Cell::new(0);
        let after = |n| {
            asked.set(0);
            let asked = &asked;
            move || asked.replace(asked.get() + 1) == n
        };
        assert!(spin(Duration::from_secs(3600), after(3)));
        assert_eq!(asked.get(), 4);
        // Whoever is kept from its CPU until the time is over has not looked since.
        assert!(spin(Duration::from_nanos(1), after(ROUNDS)));
    }

    #[test]
    fn a_sleeper_that_knows_when_is_awake_before() {
        let word = AtomicU32::new(0);
        let (flag, liveness) = (Flag { word: &word, doorbell: None }, Liveness::notified());
        let (sleep, alert, began) = (Duration::from_millis(3), Duration::from_secs(10), Instant::now());
        // Nobody wakes it.
        let ready = || began.elapsed() > Duration::from_millis(5);
        assert!(wake_up_before(&flag, &liveness, Doze { sleep, alert }, ready));
        assert!(!Waiting::look(&word).asleep);
        assert!(!wake_up_before(&flag, &liveness, Doze { sleep, alert: Duration::from_millis(1) }, || false));
    }

    /// Whose sleeps end at once, as if the peer had ended them from where `waker` says.
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

    /// Becomes true when it has been asked so often: a count, so that the speed of the machine does not matter. It is more
    /// than a side asks while it is awake for `BESIDE`, and less than it asks in seconds.
    fn asked_often() -> impl Fn() -> bool {
        let (asked, enough) = (Cell::new(0), if cfg!(miri) { 1_000 } else { 1_000_000 });
        move || asked.replace(asked.get() + 1) > enough
    }

    #[test]
    fn who_is_woken_without_a_message_stays_awake_for_it() {
        let sleeps = |alert: Duration, waker: fn() -> u32| {
            let word = AtomicU32::new(0);
            let doorbell = Restless { sleeps: 0.into(), waker };
            let flag = Flag { word: &word, doorbell: Some(&doorbell) };
            let ready = asked_often();
            assert!(sleep(&flag, &Liveness::notified(), alert, ready).is_ok());
            doorbell.sleeps.load(Ordering::SeqCst)
        };
        assert_eq!(sleeps(Duration::from_secs(10), || 0), 1);
        assert_eq!(sleeps(Duration::from_secs(10), || u32::from(u16::MAX)), 1, "on another CPU");
        assert!(cfg!(miri) || sleeps(Duration::from_secs(10), current_cpu) > 1, "the waker needs this CPU");
        assert!(sleeps(Duration::ZERO, || 0) > 1);
    }

    #[test]
    #[cfg_attr(miri, ignore = "knows no CPUs")]
    fn who_sleeps_in_a_wait_says_where() {
        let word = AtomicU32::new(0);
        let fresh = Waiting::look(&word);
        assert_eq!((fresh.asleep, fresh.at), (false, 0), "nothing is known of who has not slept");
        let flag = Flag { word: &word, doorbell: None };
        // Not which: this thread may be moved to another CPU between any two lines.
        let somewhere = |at: u32| (1..=1 << 16).contains(&at);
        flag.raise();
        let asleep = Waiting::look(&word);
        assert!(asleep.asleep && somewhere(asleep.at), "{asleep:?}");
        word.store(7 << 1, Ordering::SeqCst);
        let woken = Waiting::look(&word);
        assert_eq!((woken.asleep, woken.at), (true, 0), "where the waker runs says nothing of where this side will");
        flag.lower();
        let awake = Waiting::look(&word);
        assert!(!awake.asleep && somewhere(awake.at), "{awake:?}");
        // Whether it napped or slept: when the wait is over, so is what was said in it.
        let mut spinner = Spinner::new(false);
        spinner.expect_answers();
        let began = Instant::now();
        let ready = || began.elapsed() > Duration::from_millis(5);
        spinner.stay_awake(Duration::from_millis(300));
        assert!(wait(flag, &Liveness::notified(), &mut spinner, current_cpu(), ready).is_ok());
        assert_eq!(word.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn who_was_woken_into_its_peers_way_naps_and_is_awake_then() {
        let (word, began) = (AtomicU32::new(0), Instant::now());
        let doorbell = Restless { sleeps: 0.into(), waker: current_cpu };
        let flag = Flag { word: &word, doorbell: Some(&doorbell) };
        // As long as it is awake beside its peer is enough for this.
        let ready = || began.elapsed() > BESIDE / 2;
        assert!(sleep(&flag, &Liveness::notified(), Duration::from_secs(10), ready).is_ok());
        let sleeps = doorbell.sleeps.load(Ordering::SeqCst);
        assert!(sleeps <= 2, "woken once, and one nap: {sleeps}");
    }

    #[test]
    #[cfg_attr(miri, ignore = "knows no CPUs")]
    fn who_is_awake_for_answers_lets_a_peer_on_its_cpu_go_first() {
        let sleeps = |advised: bool| {
            let word = AtomicU32::new(0);
            let doorbell = Restless { sleeps: 0.into(), waker: || 0 };
            let flag = Flag { word: &word, doorbell: Some(&doorbell) };
            let mut spinner = Spinner::new(true);
            spinner.expect_answers();
            spinner.alert = Duration::from_nanos(1);
            spinner.stay_awake(Duration::from_secs(if advised { 60 } else { 0 }));
            let ready = asked_often();
            assert!(wait(flag, &Liveness::notified(), &mut spinner, current_cpu(), ready).is_ok());
            doorbell.sleeps.load(Ordering::SeqCst)
        };
        assert_eq!(sleeps(true), 1, "a nap, and then it is awake");
        assert!(sleeps(false) > 1);
    }

    #[test]
    fn advice_to_stay_awake_outlasts_confidence() {
        let mut spinner = Spinner::new(true);
        assert_eq!(spinner.time(), spinner.longest);
        (0..FULL).for_each(|_| spinner.learn(false));
        assert_eq!(spinner.time(), Duration::ZERO);
        spinner.stay_awake(Duration::from_millis(7));
        assert_eq!(spinner.time(), Duration::from_millis(7));
        spinner.stay_awake(Duration::ZERO);
        spinner.learn(true);
        assert_eq!(spinner.time(), spinner.longest);
    }
}
