//! Waiting for a device, and what that says of what calls cost (FairGV 3.3.2).

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use aviary_gate::{DeviceSeat, NOT_YET, grant, monotonic};

use super::{Devices, DrainRequest, GLANCE, Locked, PATIENCE, budget, is_awake};

/// How long a session whose work came behind another's waits to hear when that ended, once its own is done.
const UNHEARD: Duration = Duration::from_millis(10);

impl Devices {
    /// The slice goes on, and it is time to see what calls cost, or it ends with this one.
    pub(super) fn sample<'a>(&'a self, mut known: Locked<'a>, at: usize, seat: &DeviceSeat) -> Locked<'a> {
        let enough = budget(seat);
        if known[at].state.wait.is_some() && !known[at].state.fills(enough) {
            // The device has more behind what is waited for.
            let through;
            (known, through) = self.measure(known, at, seat, PATIENCE);
            known[at].state.late = !through;
            if !through || known[at].state.unmeasured > 0 {
                return known;
            }
        }
        let state = &mut known[at].state;
        if state.fills(enough) {
            self.announce_last(state, seat, Some(enough));
            known = self.measure_last(known, at, seat, PATIENCE);
        } else if !state.may_be_another_sessions(seat) {
            known = self.measure(known, at, seat, Duration::ZERO).0;
        }
        known
    }

    /// Nothing comes behind what the device is late with: waits until it is through with that, and with all that it has if the
    /// slice is used up then.
    pub(super) fn catch_up<'a>(&'a self, mut known: Locked<'a>, at: usize, seat: &DeviceSeat) -> Locked<'a> {
        if !known[at].state.closing && !known[at].state.fills(budget(seat)) {
            // What came behind it meanwhile keeps the device busy until there is more.
            known = self.measure(known, at, seat, PATIENCE).0;
            known[at].state.late = known[at].state.wait.is_some();
            if known[at].state.late || !known[at].state.fills(budget(seat)) {
                return known;
            }
        }
        known = self.measure_last(known, at, seat, PATIENCE);
        if known[at].state.closing || known[at].state.used >= budget(seat) {
            self.close(&mut known[at], seat, grant::ENDED);
        }
        known
    }

    /// As [`Devices::measure`], and what came after that; no more work comes before the device is through.
    pub(super) fn measure_last<'a>(
        &'a self,
        mut known: Locked<'a>,
        at: usize,
        seat: &DeviceSeat,
        patience: Duration,
    ) -> Locked<'a> {
        let since = Instant::now();
        let mut through = true;
        // What is waited for already, and all that came behind it.
        for _ in 0..2 {
            (known, through) = self.measure(known, at, seat, patience.saturating_sub(since.elapsed()));
            if !through || known[at].state.under_way == 0 {
                break;
            }
        }
        // Another thread's wait may have seen the end of it.
        known[at].state.late = !through && known[at].state.under_way > 0;
        known
    }

    /// Waits until the device has done what it had when this wait began, for so long if the library lets itself be asked again, and
    /// accounts it: whether it is done. The lock is free meanwhile.
    pub(super) fn measure<'a>(
        &'a self,
        mut known: Locked<'a>,
        at: usize,
        seat: &DeviceSeat,
        patience: Duration,
    ) -> (Locked<'a>, bool) {
        let (device, drain) = (known[at].device, known[at].drain);
        let wait = known[at].state.awaited();
        drop(known);
        let patience_ns = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
        let request = DrainRequest { device, wait: wait.number, patience_ns };
        // SAFETY: the specification's own function, which waits for what this process gave the device; it may be
        // called at any time, from any thread, and reads the request, which lives until it returns.
        let through = unsafe { drain(&raw const request) } >= 0;
        is_awake(seat);
        if !through {
            let mut known = self.known();
            known[at].state.look_later();
            return (known, false);
        }
        let own = own_work(seat);
        let mut known = self.known();
        let state = &mut known[at].state;
        // Another thread may have waited for the same.
        if state.wait.take_if(|other| *other == wait).is_none() {
            return (known, true);
        }
        state.under_way = state.under_way.saturating_sub(wait.calls);
        state.late &= state.under_way > 0;
        if let Some(since) = state.busy_since {
            let now = Instant::now();
            state.busy_since = (state.under_way > 0 || state.active > 1).then_some(now);
            let took = own.map_or(now - since, |own| own.min(now - since));
            state.account(seat, took);
            state.learn(wait.calls, took, budget(seat));
            // What it goes on with came behind that.
            state.woke = false;
        }
        (known, true)
    }
}

/// How long the device has been at this session's work at most, if another session's came before it. The device has
/// just done all of it, so the other one's end is known, or will be in a moment.
fn own_work(seat: &DeviceSeat) -> Option<Duration> {
    let done = monotonic();
    loop {
        match seat.free_at.load(Ordering::SeqCst) {
            0 => return None,
            NOT_YET if monotonic() - done < UNHEARD.as_nanos() as u64 => std::thread::sleep(GLANCE),
            NOT_YET => return None,
            since => return Some(Duration::from_nanos(done.saturating_sub(since))),
        }
    }
}
