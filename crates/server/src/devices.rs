//! The devices that a session gives work: waiting for the grant, measuring what was done with it, giving it back.
//!
//! The node grants one session at a time a slice of a device (FairGV 3.2, 3.3). The device is not preemptive, so
//! the session itself gives it back: when the slice is used up, or when there is nothing more to do. What a call
//! costs is found by waiting for the device after it. Waiting after every call would cost up to 7 percent;
//! therefore only the first calls of a slice are measured, and how many more fit is inferred (FairGV 3.3.2). Where the
//! library can be asked whether the device has come to a certain place, a call is given its work before the one before it is
//! waited for: then the device does not stand still for that.
//!
//! Between the end of one slice and the first work of the next two threads must wake up, and the device would stand
//! still. So a session says when it is at the last work of its slice, and the node lets the next one queue its work
//! behind that; what the next one is charged for begins where the other ended.

mod habits;
mod holding;
mod measuring;

use std::borrow::Cow;
use std::ffi::{CStr, c_char, c_int};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use aviary_gate::{DEVICE_SEATS, DeviceSeat, GrantPage, Manner, grant, monotonic};

use aviary_control::cpu;
use habits::{Interactive, Lingering, Waiting};
use holding::{Holding, comes_behind_another};
/// A question to a specification's `drain`; `struct aviary_drain` of `aviary/server.h`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrainRequest {
    /// The number that stands for the device.
    pub device: u64,
    /// The number of the wait. Work that the device had at the first question with this number is waited for; work that
    /// it gets between two questions is not.
    pub wait: u64,
    /// ns to wait at most before the answer "not drained yet".
    pub patience_ns: u64,
}

/// Waits until a device has done everything that this process gave it. Positive: it gave up waiting; negative: not yet, ask
/// again, and let the thread do meanwhile what it has to do besides.
pub type Drain = unsafe extern "C" fn(*const DrainRequest) -> c_int;
/// The name of a device, NUL-terminated and never freed; NULL: unknown.
pub type Name = unsafe extern "C" fn(u64) -> *const c_char;

/// How often a thread that waits for its grant looks whether its session still lives.
const LOOK: Duration = Duration::from_millis(100);
/// How often a thread looks whether another one has given the slice back, or another session is done.
const GLANCE: Duration = Duration::from_micros(50);
/// Answers that take longer are not worth being awake for from the beginning of a slice on.
const SOON: Duration = Duration::from_micros(500);
/// How far a session may be ahead of a device that nobody else wants, as far as is known. Who comes then waits for about as long,
/// once: what it waits for is charged. Long enough for a thread to wake up meanwhile, on any machine.
const AHEAD: Duration = Duration::from_millis(20);
/// How long a call waits after that.
const ENOUGH: Duration = Duration::from_millis(100);
/// How long a thread that has nothing else to do waits for a device before it looks for what else there is to do.
const PATIENCE: Duration = Duration::from_millis(1);
/// How long it takes at most to see that a device is through.
const THROUGH: Duration = Duration::from_micros(100);
/// The longest that a lane without messages waits for one before it looks again whether the device is through.
const LONGEST_PAUSE: Duration = Duration::from_micros(50);

/// The seats of one session, and the bell that the node hears.
pub struct Devices {
    page: Option<GrantPage>,
    bell: Option<OwnedFd>,
    known: Mutex<Vec<Known>>,
    /// See [`Devices::note_preemptive`].
    preemptive: Mutex<Vec<u64>>,
    interactive: Interactive,
    /// See [`Devices::slice`].
    slice: u64,
}

/// All that is known of the devices, while nobody else changes it.
type Locked<'a> = MutexGuard<'a, Vec<Known>>;

/// A device of the vendor's that has a seat.
struct Known {
    device: u64,
    seat: usize,
    drain: Drain,
    state: Holding,
    /// After it had nothing to do.
    lingering: Lingering,
    /// After a call that may have waited for the device.
    after_wait: Lingering,
    waiting: Waiting,
}

/// A call's stay on a device: ended by [`Devices::vacate`].
#[derive(Debug, Clone, Copy)]
pub struct Stay {
    known: usize,
    /// The device was just granted to a program that calls often: its thread sleeps, and the first answer comes after so long or
    /// somewhat later.
    pub answers_after: Option<Duration>,
}

/// What wants to be done with a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entry {
    /// A call comes behind what the device has.
    Call,
    /// The device gets the rest of what it has: what comes behind that waits for this.
    GoesOn,
}

impl Devices {
    /// `page` and `bell`: none if the node schedules nothing.
    pub fn new(page: Option<GrantPage>, bell: Option<OwnedFd>, slice: u64) -> Devices {
        Devices {
            page,
            bell,
            known: Mutex::default(),
            preemptive: Mutex::default(),
            interactive: Interactive::default(),
            slice,
        }
    }

    /// Nanoseconds that a part of long work shall take; 0: work goes whole.
    pub fn slice(&self) -> u64 {
        self.slice
    }

    /// A synchronous call is being answered. For how long the threads on both sides should stay awake.
    pub fn answering(&self) -> Duration {
        let Some(page) = &self.page else { return Duration::ZERO };
        let held = |seat: &&DeviceSeat| matches!(seat.grant.load(Ordering::Relaxed), grant::SLICE | grant::ALONE);
        let seats = page.seats().iter().take_while(|seat| seat.taken.load(Ordering::Relaxed) != 0);
        let longest = seats.filter(held).map(|seat| seat.awake.load(Ordering::Relaxed)).max().unwrap_or(0);
        if longest > 0 && self.interactive.count(Instant::now()) {
            Duration::from_nanos(longest)
        } else {
            Duration::ZERO
        }
    }

    /// Whether the session may give some device work now.
    pub fn any_held(&self) -> bool {
        let Some(page) = &self.page else { return false };
        let mut seats = page.seats().iter().take_while(|seat| seat.taken.load(Ordering::Relaxed) != 0);
        seats.any(|seat| matches!(seat.grant.load(Ordering::Relaxed), grant::SLICE | grant::ALONE))
    }

    /// The node schedules devices.
    #[inline]
    pub fn scheduled(&self) -> bool {
        self.page.as_ref().is_some_and(GrantPage::is_scheduled)
    }

    /// Waits until the session may give the device work. `None`: nobody schedules it. An error: the session is over.
    pub fn occupy(&self, device: u64, drain: Drain, name: Name, over: impl Fn() -> bool) -> Result<Option<Stay>, ()> {
        let Some(page) = &self.page else { return Ok(None) };
        if device == 0 {
            return Ok(None);
        }
        let mut known = self.known();
        let Some(at) = self.seat_of(&mut known, page, device, drain, name) else { return Ok(None) };
        let linger = Duration::from_nanos(page.seats()[known[at].seat].linger.load(Ordering::Relaxed));
        known[at].lingering.back(linger);
        known[at].after_wait.back(linger);
        let Some(mut known) = self.await_grant(known, page, at, Entry::Call, over)? else { return Ok(None) };
        let seat = &page.seats()[known[at].seat];
        let state = &mut known[at].state;
        let first = self.spins(seat) && state.since.is_none();
        let answers_after = state.each().filter(|each| first && *each <= SOON);
        state.active += 1;
        state.depth = Duration::from_nanos(seat.depth.load(Ordering::Relaxed));
        let now = Instant::now();
        if state.busy_since.is_none() {
            (state.busy_since, state.woke) = (Some(now), !comes_behind_another(seat));
        }
        state.since.get_or_insert(now);
        Ok(Some(Stay { known: at, answers_after }))
    }

    /// Whether the threads of this session wait by spinning while it has the device.
    fn spins(&self, seat: &DeviceSeat) -> bool {
        seat.awake.load(Ordering::Relaxed) > 0 && self.interactive.is.load(Ordering::Relaxed)
    }

    /// Waits until the grant is open. `None`: nobody schedules the device. An error: the session is over.
    fn await_grant<'a>(
        &'a self,
        mut known: Locked<'a>,
        page: &GrantPage,
        at: usize,
        entry: Entry,
        over: impl Fn() -> bool,
    ) -> Result<Option<Locked<'a>>, ()> {
        let seat = &page.seats()[known[at].seat];
        let mut waiting_since: Option<Instant> = None;
        let came = Instant::now();
        let outcome = loop {
            match seat.grant.load(Ordering::SeqCst) {
                grant::FREE => break Ok(false),
                grant::SLICE | grant::ALONE if entry == Entry::GoesOn => break Ok(true),
                grant::SLICE if !known[at].state.closing && !known[at].state.late => break Ok(true),
                // What is at work may wait for this very call.
                grant::ALONE
                    if !known[at].state.late
                        || known[at].state.active > 0
                        || known[at].state.runs_ahead(ahead(seat))
                        || came.elapsed() > ENOUGH =>
                {
                    // What was to be given back is not wanted any more.
                    if known[at].state.closing {
                        known[at].state.renew();
                    }
                    break Ok(true);
                }
                grant::IDLE => {
                    seat.change(grant::IDLE, grant::ALONE);
                    continue;
                }
                _ => {}
            }
            if known[at].state.late && known[at].state.active == 0 && entry == Entry::Call {
                known = self.catch_up(known, at, seat);
                if over() {
                    break Err(());
                }
                continue;
            }
            let since = *waiting_since.get_or_insert_with(|| {
                cpu::request_short_quantum();
                seat.waiting.fetch_add(1, Ordering::SeqCst);
                Instant::now()
            });
            // Who keeps one device while it waits for another would have others wait for both, and perhaps for ever.
            let linger = Duration::from_nanos(seat.linger.load(Ordering::Relaxed));
            let look = match known.iter().any(|other| self.is_held_idle(page, other)) {
                true if since.elapsed() >= linger => {
                    known = self.give_back_others(known, page, at);
                    LOOK
                }
                true => linger,
                false => LOOK,
            };
            drop(known);
            match seat.grant.load(Ordering::SeqCst) {
                now @ (grant::CLOSED | grant::ENDED) => {
                    // Who spins would have to become an ordinary thread as soon as it has answered its first call. A thread
                    // that does that is set aside for all others, and the device is its own meanwhile.
                    let sleeper = if self.spins(seat) { 0 } else { cpu::current_tid() };
                    seat.sleeper.store(sleeper, Ordering::SeqCst);
                    self.ring();
                    seat.sleep(now, look);
                }
                // Another thread of this session is about to give the slice back.
                grant::SLICE | grant::LAST => std::thread::sleep(GLANCE),
                _ => {}
            }
            known = self.known();
            if over() {
                break Err(());
            }
        };
        if let Some(since) = waiting_since {
            is_awake(seat);
            seat.waiting.fetch_sub(1, Ordering::SeqCst);
            seat.waited.fetch_add(since.elapsed().as_nanos() as u64, Ordering::Relaxed);
            self.interactive.resume();
        }
        Ok(outcome?.then_some(known))
    }

    /// Whether the session has a device that no thread is giving work now.
    fn is_held_idle(&self, page: &GrantPage, entry: &Known) -> bool {
        let granted = page.seats()[entry.seat].grant.load(Ordering::SeqCst);
        entry.state.active == 0 && matches!(granted, grant::SLICE | grant::ALONE)
    }

    /// Gives back the devices but `but` that no thread is giving work now, once they have done what they have.
    fn give_back_others<'a>(&'a self, mut known: Locked<'a>, page: &GrantPage, but: usize) -> Locked<'a> {
        for at in (0..known.len()).filter(|at| *at != but) {
            let seat = &page.seats()[known[at].seat];
            if self.is_held_idle(page, &known[at]) && known[at].state.under_way > 0 {
                known = self.measure(known, at, seat, PATIENCE).0;
            }
            let state = &known[at].state;
            if state.under_way == 0 && self.is_held_idle(page, &known[at]) {
                self.close(&mut known[at], seat, grant::CLOSED);
            }
        }
        known
    }

    /// Work of many parts, done by a thread that makes no calls, is between two of them: the device has finished
    /// the last one. If the slice is used up, this waits for the next.
    pub fn pause(&self, device: u64, over: impl Fn() -> bool) {
        let Some(page) = &self.page else { return };
        let mut known = self.known();
        let Some(at) = known.iter().position(|k| k.device == device) else { return };
        let seat = &page.seats()[known[at].seat];
        let state = &mut known[at].state;
        let now = Instant::now();
        if let Some(since) = state.busy_since.replace(now) {
            state.account(seat, now - since);
        }
        if state.used < budget(seat) {
            return;
        }
        if seat.grant.load(Ordering::SeqCst) == grant::ALONE {
            return state.renew();
        }
        // Calls of other threads may be under way: they wait for this work, or come after it.
        seat.freed_at.store(monotonic(), Ordering::SeqCst);
        if [grant::SLICE, grant::LAST].iter().any(|from| seat.change(*from, grant::ENDED)) {
            state.renew();
            state.busy_since = None;
            self.ring();
        }
        let granted = self.await_grant(known, page, at, Entry::GoesOn, over);
        // What this thread does next may be the device's work itself.
        cpu::unboost();
        if let Ok(Some(mut known)) = granted {
            known[at].state.busy_since = Some(Instant::now());
        }
    }

    /// The call has given the device its work. `measured`: what that cost, if the library says so.
    pub fn vacate(&self, stay: Stay, measured: Option<Duration>) {
        let Some(page) = &self.page else { return };
        let mut known = self.known();
        let entry = &mut known[stay.known];
        let seat = &page.seats()[entry.seat];
        seat.calls.fetch_add(1, Ordering::Relaxed);
        if seat.manner() == Manner::Blind {
            let over = entry.state.since.is_some_and(|since| since.elapsed() >= budget(seat));
            entry.state.active -= 1;
            if over {
                self.close(entry, seat, grant::ENDED);
            }
            return;
        }
        // Read once: the node may cut the slice at any moment.
        let enough = budget(seat);
        let state = &mut entry.state;
        match measured {
            Some(time) => state.account(seat, time),
            None => {
                state.under_way += 1;
                let alone = seat.grant.load(Ordering::SeqCst) == grant::ALONE;
                // A slice that was cut ends with this call, and what is in flight is measured first.
                if state.unmeasured > 0 && !enough.is_zero() {
                    state.unmeasured -= 1;
                } else if alone {
                    if state.is_due() || !state.runs_ahead(ahead(seat)) {
                        known = self.measure_last(known, stay.known, seat, Duration::ZERO);
                    }
                } else {
                    known = self.sample(known, stay.known, seat);
                }
            }
        }
        let entry = &mut known[stay.known];
        entry.state.active -= 1;
        if entry.state.under_way == 0 && entry.state.active == 0 {
            entry.state.busy_since = None;
        }
        if entry.state.used >= enough || entry.state.closing {
            self.close(entry, seat, grant::ENDED);
        }
    }

    /// A lane has no message. Work that was not waited for yet is waited for and a slice is given back, if no message
    /// comes meanwhile: `message` waits for one, for at most the time given.
    pub fn rest(&self, mut message: impl FnMut(Duration) -> bool) {
        let Some(page) = &self.page else { return };
        let mut known = self.known();
        for at in 0..known.len() {
            let seat = &page.seats()[known[at].seat];
            let granted = seat.grant.load(Ordering::SeqCst);
            let open = matches!(granted, grant::SLICE | grant::ALONE | grant::ENDED | grant::LAST);
            if known[at].state.active > 0 || !open {
                continue;
            }
            if seat.manner() == Manner::Blind {
                drop(known);
                known = self.rest_blindly(at, seat, &mut message);
                continue;
            }
            let linger = Duration::from_nanos(seat.linger.load(Ordering::Relaxed));
            // Alone on the device, the work goes on while this lane is ready for the next call. So it does while nobody knows
            // yet when the device was done with what came before.
            if known[at].state.under_way > 0 && (granted == grant::ALONE || comes_behind_another(seat)) {
                drop(known);
                if message(linger) {
                    return;
                }
                known = self.known();
            }
            while known[at].state.under_way > 0 && known[at].state.active == 0 {
                let through;
                (known, through) = self.measure(known, at, seat, Duration::ZERO);
                if !through {
                    let pause = pause_before_look(seat, &known[at].state);
                    drop(known);
                    if message(pause) {
                        return;
                    }
                    known = self.known();
                }
            }
            if known[at].state.closing {
                // A call on another lane waits for the device, and then the slice is over.
            } else if known[at].lingering.confidence > 0 {
                drop(known);
                let comes = message(linger);
                known = self.known();
                known[at].lingering.learn(comes);
                if comes {
                    return;
                }
            } else {
                known[at].lingering.left = Some(Instant::now());
            }
            let state = &known[at].state;
            if state.active == 0 && state.under_way == 0 {
                self.close(&mut known[at], seat, grant::CLOSED);
            }
        }
        // Who gives it up with the device in hand may then wait with it for a processor.
        if !self.any_held() {
            cpu::unboost();
        }
    }

    /// A slice that is a span of time lasts as long as it lasts, with or without work.
    fn rest_blindly(&self, at: usize, seat: &DeviceSeat, message: &mut impl FnMut(Duration) -> bool) -> Locked<'_> {
        loop {
            let mut known = self.known();
            let passed = known[at].state.since.map_or(Duration::MAX, |since| since.elapsed());
            if passed >= budget(seat) {
                if known[at].state.active == 0 {
                    self.close(&mut known[at], seat, grant::CLOSED);
                }
                return known;
            }
            drop(known);
            if message((budget(seat) - passed).min(LOOK)) {
                return self.known();
            }
        }
    }

    /// The device gives several processes parts of its time by itself. Counts for devices that have had no work yet.
    pub fn note_preemptive(&self, device: u64) {
        let mut preemptive = self.preemptive.lock().unwrap_or_else(PoisonError::into_inner);
        if !preemptive.contains(&device) && preemptive.len() < DEVICE_SEATS {
            preemptive.push(device);
        }
    }

    /// Whether a call is about to give the device work, or has just done so.
    pub fn is_given_work(&self, device: u64) -> bool {
        self.known().iter().any(|entry| entry.device == device && entry.state.active > 0)
    }

    /// A call begins of a function that gives the device no work and may wait until it has done what it has. Programs that hardly
    /// ever come back soon after such calls will then not need the rest of their slice: the node is told now. The answer is for
    /// [`Devices::end_wait`].
    pub fn begin_wait(&self, function: u32) -> Option<usize> {
        let page = self.page.as_ref()?;
        let mut known = self.known();
        let at = known.iter().position(|entry| entry.state.under_way > 0 && self.is_held_idle(page, entry))?;
        let entry = &mut known[at];
        let seat = &page.seats()[entry.seat];
        if entry.after_wait.confidence == 0 {
            self.announce_last(&mut entry.state, seat, None);
        } else if !self.interactive.is.load(Ordering::Relaxed) && entry.waiting.waits(function) {
            // Others may have a short rest of the slice: their work then comes while the program's thread wakes up. Not where that
            // is kept awake.
            self.announce_last(&mut entry.state, seat, Some(budget(seat) / 2));
        }
        Some(at)
    }

    /// That call is over.
    pub fn end_wait(&self, at: usize, function: u32) {
        let Some(page) = &self.page else { return };
        let mut known = self.known();
        known[at].after_wait.left = Some(Instant::now());
        let seat = &page.seats()[known[at].seat];
        if known[at].state.announced && known[at].state.active == 0 {
            let since = Instant::now();
            known = self.measure_last(known, at, seat, PATIENCE);
            // If the device was not through, the program has waited for that here, and not in its call.
            let waited = !known[at].state.late && since.elapsed() < THROUGH;
            known[at].waiting.learn(function, waited);
            if known[at].state.announced && known[at].state.active == 0 {
                let comes_back = known[at].after_wait.confidence > 0;
                self.close(&mut known[at], seat, if comes_back { grant::ENDED } else { grant::CLOSED });
            }
        } else if known[at].waiting.is_to_be_learned(function) {
            let mut through = true;
            // What was waited for already, and what came behind that.
            while through && known[at].state.under_way > 0 && known[at].state.active == 0 {
                (known, through) = self.measure(known, at, seat, Duration::ZERO);
            }
            let waited = known[at].state.under_way == 0;
            known[at].waiting.learn(function, waited);
        } else if known[at].state.wait.is_some() && seat.grant.load(Ordering::SeqCst) == grant::SLICE {
            // What was waited for may have ended with this call, and not later.
            drop(self.measure(known, at, seat, Duration::ZERO));
        }
    }

    /// Tells the node that the slice ends when the device has done what it has: if as much as `enough` will be used then.
    /// `None`: in any case, as nothing will follow.
    fn announce_last(&self, state: &mut Holding, seat: &DeviceSeat, enough: Option<Duration>) {
        let Some(each) = state.each() else { return };
        let expected = each * state.under_way + state.waking();
        if state.active > 1 || state.closing || enough.is_some_and(|enough| !state.fills(enough)) {
            return;
        }
        let passed = state.busy_since.map_or(Duration::ZERO, |since| since.elapsed());
        seat.ends_at.store(monotonic() + expected.saturating_sub(passed).as_nanos() as u64, Ordering::Relaxed);
        seat.remaining.store(expected.as_nanos() as u64, Ordering::Relaxed);
        seat.goes_on.store(u32::from(enough.is_some()), Ordering::Relaxed);
        if seat.change(grant::SLICE, grant::LAST) {
            (state.closing, state.announced) = (true, true);
            // Another thread may wait for the next slice already.
            let _ = seat.sleeper.compare_exchange(0, cpu::current_tid(), Ordering::SeqCst, Ordering::SeqCst);
            self.ring();
        }
    }

    /// Gives the slice back as `to` says: `ENDED` or `CLOSED`. Who is alone on the device keeps it.
    fn close(&self, entry: &mut Known, seat: &DeviceSeat, to: u32) {
        let state = &mut entry.state;
        if state.late && seat.grant.load(Ordering::SeqCst) != grant::ALONE {
            // When it is through: another call asks, or a lane that has nothing to do.
            state.closing = true;
            return;
        }
        if seat.grant.load(Ordering::SeqCst) == grant::ALONE
            && (to == grant::ENDED || seat.change(grant::ALONE, grant::IDLE))
        {
            return state.renew();
        }
        // Before the last one was over, the node has granted another slice.
        if state.announced && seat.grant.load(Ordering::SeqCst) == grant::SLICE {
            return state.go_on(budget(seat));
        }
        state.closing = true;
        if state.active == 0 {
            state.end();
            seat.freed_at.store(monotonic(), Ordering::SeqCst);
            // If the node has made it `ALONE` meanwhile, giving it back costs a moment and harms nobody.
            if [grant::LAST, grant::SLICE, grant::ALONE].iter().any(|from| seat.change(*from, to)) {
                self.ring();
                cpu::unboost();
            }
        }
    }

    /// Where the device is in the list. `None`: there is no seat for it.
    fn seat_of(
        &self,
        known: &mut Vec<Known>,
        page: &GrantPage,
        device: u64,
        drain: Drain,
        name: Name,
    ) -> Option<usize> {
        if let Some(at) = known.iter().position(|k| k.device == device) {
            return Some(at);
        }
        let seat = known.len();
        let taken = page.seats().get(seat)?;
        if self.preemptive.lock().unwrap_or_else(PoisonError::into_inner).contains(&device) {
            taken.set_preempts();
        }
        taken.take(&device_name(device, name));
        known.push(Known {
            device,
            seat,
            drain,
            state: Holding::default(),
            lingering: Lingering::default(),
            after_wait: Lingering::default(),
            waiting: Waiting::default(),
        });
        Some(seat)
    }

    fn ring(&self) {
        // A bell that is full has been rung.
        let _ = self.bell.as_ref().map(|bell| rustix::io::write(bell, &1u64.to_ne_bytes()));
    }

    fn known(&self) -> Locked<'_> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How long a lane may look for messages only, while the device is at what it has: shortly after the end is early enough, but
/// for others, who may wait for it.
fn pause_before_look(seat: &DeviceSeat, state: &Holding) -> Duration {
    let ends_at = Duration::from_nanos(seat.ends_at.load(Ordering::Relaxed));
    let ends_soon = state.announced && Duration::from_nanos(monotonic()) + 2 * LONGEST_PAUSE >= ends_at;
    let since = state.busy_since.filter(|_| !ends_soon);
    // Ordinary threads sleep for about as long in any case. One that is woken exactly, and before all others, would keep its own
    // program from making the next call.
    let shortest = if cpu::is_boosted() { LONGEST_PAUSE } else { Duration::ZERO };
    since.map_or(Duration::ZERO, |since| LONGEST_PAUSE.min(since.elapsed() / 16).max(shortest))
}

/// What a specification calls a device that it answered.
pub fn device_name(device: u64, name: Name) -> Cow<'static, str> {
    // SAFETY: the specification's own function, given a device that its own expression answered.
    let text = unsafe { name(device) };
    match text.is_null() {
        true => "unknown".into(),
        // SAFETY: not NULL, so it ends with a NUL and is never freed, as `Name` says.
        false => unsafe { CStr::from_ptr(text) }.to_string_lossy(),
    }
}

/// This thread does not wait any longer, and learns whether the node has hurried it.
fn is_awake(seat: &DeviceSeat) {
    let me = cpu::current_tid();
    let _ = seat.sleeper.compare_exchange(me, 0, Ordering::SeqCst, Ordering::SeqCst);
    // If the node hurries it only now, the node takes that back.
    if seat.hurried.compare_exchange(me, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
        cpu::note_boosted();
    }
}

/// How far a session that is alone may be ahead of the device.
fn ahead(seat: &DeviceSeat) -> Duration {
    match seat.depth.load(Ordering::Relaxed) {
        0 => AHEAD,
        depth => AHEAD.min(Duration::from_nanos(depth)),
    }
}

fn budget(seat: &DeviceSeat) -> Duration {
    Duration::from_nanos(seat.budget.load(Ordering::Relaxed))
}

#[cfg(test)]
#[path = "devices_tests.rs"]
mod tests;
