//! What a session does with one device while it has it, and what that costs (FairGV 3.3.2).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use aviary_gate::{DeviceSeat, NOT_YET};

/// Calls at the beginning of a slice that are measured one by one.
const SAMPLES: u32 = 5;
/// What a session gives a device behind another's last work before it waits for that: enough for the device to be busy until its
/// thread has woken up. Where the device's threads are this machine's, they may go before the other's, at its cost.
const ENOUGH_BEHIND: Duration = Duration::from_micros(150);
/// A thread that takes longer to wake up than this is an exception.
const LONGEST_WAKING: Duration = Duration::from_micros(200);

/// What the device had when somebody began to wait for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wait {
    /// Another one for each wait.
    pub(super) number: u64,
    pub(super) calls: u32,
}

static WAITS: AtomicU64 = AtomicU64::new(0);

/// What this session does with a device now.
#[derive(Default)]
pub(super) struct Holding {
    /// Threads between `occupy` and `vacate`.
    pub(super) active: u32,
    /// Calls that the device may not have done yet.
    pub(super) under_way: u32,
    /// The end of some of them is waited for.
    pub(super) wait: Option<Wait>,
    /// When it pays to ask again whether that has come.
    pub(super) look_at: Option<Instant>,
    /// When the device got the first of them, or was done with those before it.
    pub(super) busy_since: Option<Instant>,
    /// It had nothing to do before: a thread of its own may have had to wake up.
    pub(super) woke: bool,
    /// When a slice began that lasts a span of time.
    pub(super) since: Option<Instant>,
    /// Of this slice.
    pub(super) used: Duration,
    /// What its first call cost that was measured.
    first: Option<Duration>,
    /// It cost what calls cost in the last slice, and so will the others.
    as_before: bool,
    /// The others that were measured, and what they cost together.
    samples: u32,
    sampled: Duration,
    /// Work that may be in flight; zero: as much as fits into the slice.
    pub(super) depth: Duration,
    /// Calls to let pass before the next measurement.
    pub(super) unmeasured: u32,
    /// The slice is used up: nobody gets in until it is given back and granted anew.
    pub(super) closing: bool,
    /// The device was asked in vain whether it is through: it is asked again before more work or the end of the slice.
    pub(super) late: bool,
    /// The node knows that this is the slice's last work (`grant::LAST`), unless it has granted another slice since.
    pub(super) announced: bool,
    /// What a call cost in the last slice.
    last_slice: Duration,
    /// What one cost of those measured last that found the device at work. A program that waits after each call has none.
    steady: Option<Duration>,
    /// How much longer a call takes that finds the device with nothing to do.
    wakes_in: Duration,
}

impl Holding {
    pub(super) fn account(&mut self, seat: &DeviceSeat, time: Duration) {
        self.used += time;
        seat.used.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Nothing more is done in this slice: what is known for the next one.
    pub(super) fn end(&mut self) {
        let others = self.sampled.checked_div(self.samples);
        let last_slice = others.or(self.first).unwrap_or(self.last_slice);
        let (steady, wakes_in, depth) = (self.steady, self.wakes_in, self.depth);
        *self = Holding { last_slice, steady, wakes_in, depth, ..Holding::default() };
    }

    /// `calls` took `time` together: how many more fit into the slice without a look at the clock.
    pub(super) fn learn(&mut self, calls: u32, time: Duration, budget: Duration) {
        let each = time / calls.max(1);
        if !self.woke {
            self.steady = Some(each);
        } else if let (1, Some(steady)) = (calls, self.steady) {
            self.wakes_in = (self.wakes_in + time.saturating_sub(steady).min(LONGEST_WAKING)) / 2;
        }
        // What came first after a rest says what the others cost without that only.
        let time = time - self.waking().min(time / 2);
        if self.first.is_none() {
            let each = time / calls.max(1);
            self.first = Some(each);
            self.as_before = each > self.last_slice / 2 && each / 2 < self.last_slice;
        } else {
            self.samples += calls;
            self.sampled += time;
        }
        self.unmeasured = 0;
        if self.as_before || self.samples + 1 >= SAMPLES {
            self.fill(budget);
        }
    }

    /// How much longer than its calls what is under way takes because the device had nothing to do before.
    pub(super) fn waking(&self) -> Duration {
        if self.woke { self.wakes_in } else { Duration::ZERO }
    }

    /// As many calls as fit into what is left of the budget need no look at the clock, but for the last of them. Some of them may
    /// be under way.
    pub(super) fn fill(&mut self, budget: Duration) {
        let mut left = budget.saturating_sub(self.used);
        if !self.depth.is_zero() {
            // The measured calls are in flight until its end is seen, and as much comes behind it.
            left = left.min(self.depth / 2);
        }
        let left = left.as_nanos();
        let each = self.each().unwrap_or_default().as_nanos();
        let fit = (left + each / 2).checked_div(each).unwrap_or(0);
        self.unmeasured = u32::try_from(fit.saturating_sub(1 + u128::from(self.under_way))).unwrap_or(u32::MAX);
    }

    /// What a call costs, as far as known.
    pub(super) fn each(&self) -> Option<Duration> {
        let others = self.sampled.checked_div(self.samples);
        let each = others.or(self.first.filter(|_| !self.as_before)).unwrap_or(self.last_slice);
        Some(each).filter(|each| !each.is_zero())
    }

    /// What the device needs for all that it has of this session, as far as known.
    fn to_do(&self) -> Duration {
        self.each().map_or(Duration::ZERO, |each| each * self.under_way)
    }

    /// Whether the device may still be at what another session gave it, so that waiting for the device would not
    /// measure this session's work; and it would have too little of that to be busy meanwhile.
    pub(super) fn may_be_another_sessions(&self, seat: &DeviceSeat) -> bool {
        self.under_way < SAMPLES && self.to_do() < ENOUGH_BEHIND && comes_behind_another(seat)
    }

    /// Whether what is under way uses the budget up, as far as known. Half a call too little is as good as half a call
    /// too much.
    pub(super) fn fills(&self, budget: Duration) -> bool {
        budget.is_zero() || self.each().is_some_and(|each| self.used + each * self.under_way + each / 2 >= budget)
    }

    /// Whether the device is late with what it got, but got the first of that less than `most` ago, and has no more than that to do
    /// as far as known.
    pub(super) fn runs_ahead(&self, most: Duration) -> bool {
        self.late && self.to_do() < most && self.busy_since.is_some_and(|since| since.elapsed() < most)
    }

    /// What is waited for, or is from now on.
    pub(super) fn awaited(&mut self) -> Wait {
        let calls = self.under_way;
        *self.wait.get_or_insert_with(|| Wait { number: WAITS.fetch_add(1, Ordering::Relaxed) + 1, calls })
    }

    /// The device is not through with what is waited for. When it should be, or not much later than it is.
    pub(super) fn look_later(&mut self) {
        let expected = self.each().zip(self.wait).map_or(Duration::ZERO, |(each, wait)| each * wait.calls);
        let passed = self.busy_since.map_or(Duration::ZERO, |since| since.elapsed());
        self.look_at = Some(Instant::now() + expected.saturating_sub(passed).max(passed / 16));
    }

    /// Whether it is time to ask whether what is waited for has come.
    pub(super) fn is_due(&self) -> bool {
        self.wait.is_none() || self.look_at.is_none_or(|at| Instant::now() >= at)
    }

    /// A further slice, granted before the last one was over: what calls cost is known from that one.
    pub(super) fn go_on(&mut self, budget: Duration) {
        self.renew();
        self.last_slice = self.each().unwrap_or_default();
        (self.first, self.as_before) = (Some(self.last_slice), true);
        (self.samples, self.sampled) = (0, Duration::ZERO);
        self.fill(budget);
    }

    /// A further slice for who is alone.
    pub(super) fn renew(&mut self) {
        self.used = Duration::ZERO;
        self.since = None;
        self.unmeasured = 0;
        (self.closing, self.announced) = (false, false);
    }
}

/// Whether the session's work came behind another one's, and when the device was done with that is not known yet.
pub(super) fn comes_behind_another(seat: &DeviceSeat) -> bool {
    seat.free_at.load(Ordering::SeqCst) == NOT_YET
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: Duration = Duration::from_millis(6);

    fn us(microseconds: u64) -> Duration {
        Duration::from_micros(microseconds)
    }

    /// A slice with these measurements: how many calls of what length together.
    fn slice(state: &mut Holding, measured: &[(u32, u64)]) {
        measured.iter().for_each(|(calls, time)| state.learn(*calls, us(*time), BUDGET));
        state.end();
    }

    #[test]
    fn a_device_that_wakes_up_for_the_first_call_does_not_make_the_others_longer() {
        let mut state = Holding::default();
        slice(&mut state, &[(1, 230), (1, 150), (1, 150), (1, 150), (1, 150), (33, 33 * 150)]);
        assert_eq!(state.each(), Some(us(150)));
        state.learn(1, us(230), BUDGET);
        assert_eq!((state.each(), state.unmeasured), (Some(us(150)), 39), "40 calls fit, and the last one is measured");
        state.learn(20, us(20 * 170), BUDGET);
        assert_eq!(state.each(), Some(us(170)), "what is measured is believed");
        state.end();
        assert_eq!(state.each(), Some(us(170)));
    }

    #[test]
    fn what_finds_the_device_with_nothing_to_do_takes_longer_and_says_what_others_cost_without_that() {
        let mut state = Holding::default();
        slice(&mut state, &[(40, 6000)]);
        for _ in 0..10 {
            state.woke = true;
            state.learn(1, us(250), BUDGET);
            state.learn(20, us(20 * 150) + state.waking(), BUDGET);
            let each = state.each().unwrap();
            assert!((us(150)..us(155)).contains(&each), "{each:?}");
            state.woke = false;
            assert_eq!(state.waking(), us(0));
            state.end();
        }
        state.woke = true;
        assert!((us(95)..=us(100)).contains(&state.waking()), "also in the next slice");
        (0..10).for_each(|_| state.learn(1, us(5000), BUDGET));
        assert!(state.waking() <= LONGEST_WAKING, "a longer call is a longer call");
        state.learn(2, us(4), BUDGET);
        assert!(state.each().is_some(), "no call costs nothing");
    }

    #[test]
    fn who_waits_after_each_call_has_none_that_is_shorter() {
        let mut state = Holding::default();
        for slices in 0..100 {
            for call in 0..20 {
                state.woke = true;
                state.learn(1, us(if (slices + call) % 2 == 0 { 280 } else { 320 }), BUDGET);
            }
            state.end();
        }
        state.woke = true;
        let each = state.each().unwrap();
        assert!((us(295)..us(305)).contains(&each) && state.waking().is_zero(), "{each:?}");
    }

    #[test]
    fn calls_that_cost_something_else_are_measured_again() {
        let mut state = Holding::default();
        slice(&mut state, &[(40, 6000)]);
        state.learn(1, us(400), BUDGET);
        assert_eq!((state.each(), state.unmeasured), (Some(us(400)), 0));
        (0..SAMPLES - 2).for_each(|_| state.learn(1, us(300), BUDGET));
        assert_eq!((state.each(), state.unmeasured), (Some(us(300)), 0));
        state.learn(1, us(300), BUDGET);
        assert_eq!(state.unmeasured, 19);
    }

    #[test]
    fn depth_bounds_the_calls_that_are_not_measured() {
        let mut state = Holding { depth: us(1000), ..Holding::default() };
        slice(&mut state, &[(5, 500)]);
        state.learn(5, us(500), BUDGET);
        assert_eq!(state.unmeasured, 4, "half of a millisecond, and the last of these is measured");
        state.depth = us(0);
        state.fill(BUDGET);
        assert_eq!(state.unmeasured, 59);
    }

    #[test]
    fn slices_of_one_call_are_learned_from() {
        let mut state = Holding::default();
        for time in [7000, 8000, 5000] {
            slice(&mut state, &[(1, time)]);
            assert_eq!(state.each(), Some(us(time)));
        }
    }

    #[test]
    fn a_slice_that_follows_at_once_is_as_the_last_one() {
        let mut state = Holding::default();
        state.learn(40, us(6000), BUDGET);
        state.go_on(BUDGET);
        assert_eq!((state.each(), state.unmeasured), (Some(us(150)), 39));
        state.learn(10, us(2000), BUDGET);
        assert_eq!(state.each(), Some(us(200)));
    }
}
