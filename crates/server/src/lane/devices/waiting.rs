//! Waiting: for the allowance, for the device, for more messages.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use aviary_control::cpu;
use aviary_gate::{DeviceSlot, GrantPage, monotonic};
use aviary_ring::ablation::{Term, without};
use aviary_schedule::{ALONE, UNMANAGED, Verdict};

use super::{Devices, DrainRequest, Known, Locked, WAITS, limits, note_boosted};

/// How often a thread that waits for its allowance looks whether its session still lives.
const LIVENESS_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// How long a call waits until less is in flight: what is in flight may wait for this very call.
const MAX_DEPTH_WAIT_NS: u64 = 100_000_000;
/// How long a thread that has nothing else to do waits for a device before it looks for what else there is to do.
const DRAIN_POLL_TIMEOUT: Duration = Duration::from_millis(1);
/// The longest that a lane without messages waits for one before it looks again whether the device has completed its
/// work.
const MAX_DRAIN_POLL_PAUSE_NS: u64 = 50_000;

impl Devices {
    /// True if the threads of this session wait by spinning while it may use the device.
    pub(super) fn spins(&self, slot: &DeviceSlot) -> bool {
        slot.spin_window_ns.load(Ordering::Relaxed) > 0
            && (self.latency_sensitive.is.load(Ordering::Relaxed) || without(Term::LatencySensitive))
    }

    /// The session has used its allowance up: the node is told once for each.
    pub(super) fn tell_exhausted(&self, entry: &mut Known, slot: &DeviceSlot, now: u64) {
        slot.position.store(entry.holder.position(now), Ordering::SeqCst);
        let allowance = limits(slot).allowance;
        if std::mem::replace(&mut entry.told, allowance) != allowance {
            self.ring();
        }
    }

    /// Waits until the position is below the allowance, and less is in flight than may be. The second result: whether that
    /// took a wait. `None`: the device is not scheduled. An error: the session is over.
    pub(super) fn await_allowance<'a>(
        &'a self,
        mut known: Locked<'a>,
        page: &GrantPage,
        at: usize,
        over: impl Fn() -> bool,
    ) -> Result<Option<(Locked<'a>, bool)>, ()> {
        let slot = &page.slots()[known[at].slot];
        slot.wanted.store(1, Ordering::SeqCst);
        if slot.parked.load(Ordering::SeqCst) != 0 && slot.parked.swap(0, Ordering::SeqCst) != 0 {
            self.ring();
        }
        let (came, mut waiting_since, mut slept) = (monotonic(), None::<Instant>, false);
        let outcome = loop {
            let (openings, limits, now) = (slot.openings(), limits(slot), monotonic());
            if limits.allowance == UNMANAGED {
                break Ok(false);
            }
            match known[at].holder.verdict(limits, now) {
                Verdict::Submit => break Ok(true),
                Verdict::Deep if known[at].holder.is_active() || now - came > MAX_DEPTH_WAIT_NS => break Ok(true),
                Verdict::Deep => known = self.measure(known, at, slot, DRAIN_POLL_TIMEOUT).0,
                Verdict::Exhausted => {
                    let since = *waiting_since.get_or_insert_with(|| {
                        cpu::request_short_quantum();
                        slot.waiters.fetch_add(1, Ordering::SeqCst);
                        Instant::now()
                    });
                    self.tell_exhausted(&mut known[at], slot, now);
                    if known[at].holder.in_flight() > 0 {
                        let through;
                        (known, through) = self.measure(known, at, slot, DRAIN_POLL_TIMEOUT);
                        if through && known[at].holder.in_flight() == 0 {
                            self.ring();
                        }
                    } else {
                        let look = self.release_other_devices(&mut known, page, at, since, slot);
                        drop(known);
                        // One that spins would be an ordinary one from its first answer on, and set aside for all others.
                        let sleeper = if self.spins(slot) { 0 } else { cpu::current_tid() };
                        slot.waiter_tid.store(sleeper, Ordering::SeqCst);
                        cpu::unboost();
                        slot.sleep(openings, look);
                        note_boosted(slot);
                        slept = true;
                        known = self.known();
                        // The node may have passed this session over, as it slept so long.
                        known[at].told = UNMANAGED;
                    }
                }
            }
            if over() {
                break Err(());
            }
        };
        if let Some(since) = waiting_since {
            self.end_wait(slot, since);
        }
        Ok(outcome?.then_some((known, slept)))
    }

    /// The thread that was one of the slot's waiters `since` then waits no longer.
    fn end_wait(&self, slot: &DeviceSlot, since: Instant) {
        note_boosted(slot);
        slot.waiters.fetch_sub(1, Ordering::SeqCst);
        slot.note_wait(u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX));
        self.latency_sensitive.resume();
    }

    /// Gives up the devices but `but` that no thread is giving work now: a session that kept one while it waits for another
    /// would have others wait for both, and perhaps for ever. The result is how long to sleep before the next look.
    fn release_other_devices(
        &self,
        known: &mut Locked<'_>,
        page: &GrantPage,
        but: usize,
        since: Instant,
        slot: &DeviceSlot,
    ) -> Duration {
        let idle_hold = Duration::from_nanos(slot.idle_hold_ns.load(Ordering::Relaxed));
        let mut look = LIVENESS_POLL_INTERVAL;
        for at in (0..known.len()).filter(|at| *at != but) {
            let other = &page.slots()[known[at].slot];
            let held = other.wanted.load(Ordering::SeqCst) != 0 && !known[at].holder.is_active();
            if !held {
                continue;
            }
            if known[at].holder.in_flight() == 0 && since.elapsed() >= idle_hold {
                self.give_up(&known[at], other);
            } else {
                look = look.min(idle_hold.max(DRAIN_POLL_TIMEOUT));
                self.look(&mut known[at], other, Duration::ZERO);
            }
        }
        look
    }

    /// Work of many parts, done by a thread that makes no calls, is between two of them: the device has completed
    /// the last one. If the allowance is used up, this waits for the next.
    pub fn end_submission(&self, device: u64, over: impl Fn() -> bool) {
        let Some(page) = &self.page else { return };
        let mut known = self.known();
        let Some(at) = known.iter().position(|k| k.device == device) else { return };
        let slot = &page.slots()[known[at].slot];
        let now = monotonic();
        known[at].holder.pause(now);
        if !known[at].holder.may_resume(limits(slot)) {
            known[at].publish(slot, now);
            slot.waiters.fetch_add(1, Ordering::SeqCst);
            slot.position.store(known[at].holder.position(now), Ordering::SeqCst);
            self.ring();
            loop {
                let openings = slot.openings();
                if known[at].holder.may_resume(limits(slot)) || over() {
                    break;
                }
                drop(known);
                slot.waiter_tid.store(cpu::current_tid(), Ordering::SeqCst);
                slot.sleep(openings, LIVENESS_POLL_INTERVAL);
                note_boosted(slot);
                known = self.known();
            }
            slot.waiters.fetch_sub(1, Ordering::SeqCst);
            // This thread may do the device's work itself next.
            cpu::unboost();
        }
        known[at].holder.resume(monotonic());
        known[at].publish(slot, monotonic());
    }

    /// A lane has no message. Work in flight is waited for, and the device is given up, if no message comes meanwhile:
    /// `message` waits for one, for at most the time given.
    pub fn lane_idle(&self, mut message: impl FnMut(Duration) -> bool) {
        let Some(page) = &self.page else { return };
        let mut known = self.known();
        for at in 0..known.len() {
            let slot = &page.slots()[known[at].slot];
            if known[at].holder.is_active() || slot.wanted.load(Ordering::SeqCst) == 0 {
                continue;
            }
            let idle_hold = Duration::from_nanos(slot.idle_hold_ns.load(Ordering::Relaxed));
            // Alone on the device, the work goes on while this lane is ready for the next call.
            if known[at].holder.in_flight() > 0 && limits(slot).allowance >= ALONE {
                drop(known);
                if message(idle_hold) {
                    return;
                }
                known = self.known();
            }
            let since = monotonic();
            while known[at].holder.in_flight() > 0 && !known[at].holder.is_active() {
                let through;
                (known, through) = self.measure(known, at, slot, Duration::ZERO);
                if !through {
                    drop(known);
                    if message(poll_pause(since)) {
                        return;
                    }
                    known = self.known();
                }
            }
            if known[at].reuse_hint.confidence > 0 {
                drop(known);
                let comes = message(idle_hold);
                known = self.known();
                known[at].reuse_hint.learn(comes);
                if comes {
                    return;
                }
            } else {
                known[at].reuse_hint.left = Some(Instant::now());
            }
            if !known[at].holder.is_active() && known[at].holder.in_flight() == 0 {
                self.give_up(&known[at], slot);
            }
        }
        // A thread that keeps its priority while it sleeps would have it for its next call.
        if !self.may_submit() {
            cpu::unboost();
        }
    }

    /// The session wants nothing of the device for now. A session that is alone there need not say so.
    fn give_up(&self, entry: &Known, slot: &DeviceSlot) {
        entry.publish(slot, monotonic());
        slot.wanted.store(0, Ordering::SeqCst);
        if slot.waiters.load(Ordering::SeqCst) == 0 && limits(slot).allowance < ALONE {
            self.ring();
        }
    }

    /// Waits until the device has completed what it had when this wait began, at most so long, and accounts it: whether it
    /// has. The lock is free meanwhile.
    pub(super) fn measure<'a>(
        &'a self,
        mut known: Locked<'a>,
        at: usize,
        slot: &DeviceSlot,
        patience: Duration,
    ) -> (Locked<'a>, bool) {
        let Some((request, drain)) = known[at].question(patience) else { return (known, true) };
        drop(known);
        // SAFETY: the specification's own function, which waits for what this process gave the device; it may be
        // called at any time, from any thread, and reads the request, which lives until it returns.
        let through = unsafe { drain(&raw const request) } >= 0;
        let mut known = self.known();
        if through {
            self.account(&mut known[at], slot, request.wait);
        } else {
            known[at].waited_at = None;
        }
        (known, through)
    }

    /// The same at once, with the lock.
    fn look(&self, entry: &mut Known, slot: &DeviceSlot, patience: Duration) {
        let Some((request, drain)) = entry.question(patience) else { return };
        // SAFETY: as above; the specification's function makes no call of this library.
        if unsafe { drain(&raw const request) } >= 0 {
            self.account(entry, slot, request.wait);
        }
    }

    fn account(&self, entry: &mut Known, slot: &DeviceSlot, wait: u64) {
        let now = monotonic();
        // A call that waited for it has come back since, and no work came after that.
        let completed_at = entry.waited_at.unwrap_or(now).min(now);
        if entry.holder.completed(wait, completed_at) {
            entry.publish(slot, now);
            let allowance = limits(slot).allowance;
            // The node waits for the end of what was in flight when the allowance was used up.
            if entry.holder.in_flight() == 0 && allowance < ALONE && entry.told == allowance {
                self.ring();
            }
        }
    }
}

impl Known {
    /// The question for the mark behind what is in flight; `None`: nothing is.
    fn question(&mut self, patience: Duration) -> Option<(DrainRequest, super::Drain)> {
        let wait = self.holder.mark(|| WAITS.fetch_add(1, Ordering::Relaxed) + 1)?;
        let patience_ns = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
        Some((DrainRequest { device: self.device, wait, patience_ns }, self.drain))
    }
}

/// How long a lane may look for messages only, while the device is at what it has: shortly after the end is early enough.
fn poll_pause(since: u64) -> Duration {
    // Ordinary threads sleep for about as long in any case. One that is woken exactly, and before all others, would keep its
    // own program from making the next call.
    let shortest = if cpu::is_boosted() { MAX_DRAIN_POLL_PAUSE_NS } else { 0 };
    Duration::from_nanos((monotonic().saturating_sub(since) / 16).clamp(shortest, MAX_DRAIN_POLL_PAUSE_NS))
}
