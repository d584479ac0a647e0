//! One device: which job may submit work now, and how much. See the crate's documentation.

use crate::cap::Bucket;
use crate::discipline::{AccountingMode, Charge, Decision, Discipline, JobIndex, Precedence, Share};
use crate::holder::{ALONE, Limits, Report, UNMANAGED};
use crate::job::{Demand, Job, Member, Turn, TurnState};
use crate::split::{DeviceKind, split};

/// Nanoseconds before the expected end of a turn's last work at which the next job may submit behind it. Two threads
/// must wake up for that, which takes up to 250 us on machines with few CPUs.
const OVERLAP_NS: u64 = 300_000;
/// Nanoseconds of work that a job may have in flight while no other job used the device within [`RECENT_NS`]. A
/// newcomer waits that long, once. Less than 10 ms costs programs with large batches throughput (0.90 of native).
const AHEAD_NS: u64 = 20_000_000;
/// Nanoseconds after which a job that used the device is not expected back any more.
const RECENT_NS: u64 = 1_000_000_000;
/// A job pays for one part of so many of the time for which it kept the device from others, whatever it says to have
/// used. Programs that wait after kernels of 20 us use 0.4 to 0.5 of their turns.
const HELD_PART: u64 = 4;
/// Nanoseconds after the expected end of work at which the API server is asked to look at the device, then after twice
/// as long each time, up to [`ATTEND_MAX_NS`].
const ATTEND_NS: u64 = 1_000_000;
const ATTEND_MAX_NS: u64 = 100_000_000;
/// Nanoseconds of overdue work after which the members of the job that wait are let in, as the work may wait for
/// theirs; then after four times as long each time.
const RELIEF_NS: u64 = 10_000_000;
/// A turn ends when so many quanta passed without a reaction of the API server.
const UNRESPONSIVE_QUANTA: u64 = 4;

/// A session on one device. Used again after the session has left.
pub type MemberId = usize;

/// How a device is scheduled, but for the order of jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    pub kind: DeviceKind,
    /// Nanoseconds of device time of one turn.
    pub quantum: u64,
    /// Nanoseconds of work that a job may have in flight that another one can come before.
    pub latency: u64,
    /// Nanoseconds beyond its turn for which a job may keep the device from others before its session is ended; 0: no
    /// limit.
    pub hold_limit: u64,
}

/// The slots of the members in their grant pages.
pub trait Slots {
    fn report(&self, member: MemberId) -> Report;
    /// Writes limits; wakes the threads that wait, if `opens`.
    fn set_limits(&mut self, member: MemberId, limits: Limits, opens: bool);
    /// The API server shall look whether the device has completed its work.
    fn attend(&mut self, member: MemberId);
}

/// The use of a device by one tenant.
#[derive(Debug, Clone, PartialEq)]
pub struct Usage {
    pub job: String,
    pub share: Share,
    /// Nanoseconds that its work took on the device.
    pub used_ns: u64,
    /// Sessions that have used the device.
    pub sessions: usize,
    /// Sessions that wait for it now.
    pub waiting: usize,
}

#[derive(Debug)]
pub struct Arbiter {
    settings: Settings,
    discipline: Box<dyn Discipline>,
    jobs: Vec<Job>,
    members: Vec<Option<Member>>,
    /// The members that want the device, have work there or may submit some: only these are looked at.
    active: Vec<MemberId>,
    /// The jobs of those that want something.
    runnable: Vec<JobIndex>,
    /// The jobs that have work on the device or may submit some, in the order in which they were admitted.
    admitted: Vec<JobIndex>,
    turn: Option<Turn>,
    /// When it was brought up to date last.
    looked: u64,
    /// Since when no job waits, and nanoseconds of device time since then.
    calm: Option<(u64, u64)>,
    /// Since when the first of `admitted` keeps the device from others beyond its turn.
    blocked: Option<(JobIndex, u64)>,
    /// When an overdue member was reported last.
    reported: u64,
    /// The two jobs that used the device last, and when.
    recent: [(JobIndex, u64); 2],
}

impl Arbiter {
    pub fn new(settings: Settings, discipline: Box<dyn Discipline>) -> Arbiter {
        Arbiter {
            settings,
            discipline,
            jobs: Vec::new(),
            members: Vec::new(),
            active: Vec::new(),
            runnable: Vec::new(),
            admitted: Vec::new(),
            turn: None,
            looked: 0,
            calm: None,
            blocked: None,
            reported: 0,
            recent: [(JobIndex::MAX, 0); 2],
        }
    }

    /// Other settings from now on, and another discipline if it is given. The turn ends with its quantum.
    pub fn configure(&mut self, settings: Settings, discipline: Option<Box<dyn Discipline>>, now: u64) {
        self.settings = settings;
        let Some(mut discipline) = discipline else { return };
        self.jobs.iter().enumerate().for_each(|(at, job)| discipline.set_share(at, job.share));
        self.runnable.iter().for_each(|job| discipline.enqueue(*job, now));
        self.discipline = discipline;
    }

    /// A job is there, or has another share than before. Jobs stay known: their use counts when they come back.
    pub fn set_share(&mut self, name: &str, share: Share, now: u64) -> JobIndex {
        let at = self.jobs.iter().position(|job| job.name == name).unwrap_or_else(|| {
            self.jobs.push(Job {
                name: name.to_owned(),
                share,
                cap: None,
                used: 0,
                sessions: 0,
                now: Demand::default(),
                is_new: false,
                unresponsive: false,
                progress: (0, 0),
            });
            self.jobs.len() - 1
        });
        let job = &mut self.jobs[at];
        job.share = share;
        match (&mut job.cap, share.cap) {
            (Some(bucket), Some(rate)) => bucket.set_rate(rate, now),
            (bucket, rate) => *bucket = rate.map(|rate| Bucket::new(rate, now)),
        }
        self.discipline.set_share(at, share);
        at
    }

    /// A session of a job uses the device from `now` on. Its slot is [`Arbiter::woke`] once it waits.
    pub fn join(&mut self, job: &str, share: Share, now: u64, slots: &mut dyn Slots, id: MemberId) {
        let job = self.set_share(job, share, now);
        self.jobs[job].sessions += 1;
        if self.members.len() <= id {
            self.members.resize_with(id + 1, || None);
        }
        let member = Member::new(job, slots.report(id), now);
        slots.set_limits(id, member.limits, false);
        self.members[id] = Some(member);
        self.woke(id);
    }

    /// The doorbell of that session rang.
    pub fn woke(&mut self, id: MemberId) {
        let Some(Some(member)) = self.members.get_mut(id) else { return };
        self.jobs[member.job].unresponsive = false;
        if !std::mem::replace(&mut member.active, true) {
            self.active.push(id);
        }
    }

    /// The session has ended. What it had in flight is charged until now.
    pub fn leave(&mut self, id: MemberId, now: u64, slots: &mut dyn Slots) {
        self.read(now, slots);
        let Some(member) = self.members.get_mut(id).and_then(Option::take) else { return };
        self.jobs[member.job].sessions -= 1;
        self.active.retain(|active| *active != id);
    }

    /// The device is not scheduled any longer.
    pub fn set_unmanaged(&mut self, slots: &mut dyn Slots) {
        for id in (0..self.members.len()).filter(|id| self.members[*id].is_some()) {
            slots.set_limits(id, Limits { allowance: UNMANAGED, depth: u64::MAX }, true);
        }
    }

    pub fn usage(&self) -> Vec<Usage> {
        let waiting = |job| self.active_members(job).filter(|member| member.report.waiting).count();
        let one = |(at, job): (usize, &Job)| Usage {
            job: job.name.clone(),
            share: job.share,
            used_ns: job.used,
            sessions: job.sessions,
            waiting: waiting(at),
        };
        self.jobs.iter().enumerate().map(one).collect()
    }

    /// Brings everything up to date and decides. The result is when to look again.
    pub fn step(&mut self, now: u64, slots: &mut dyn Slots) -> Option<u64> {
        self.read(now, slots);
        let look = self.review(now, slots);
        self.refresh(now, slots);
        self.forget_idle_members(now, slots);
        let attend = self.attend(now, slots);
        let relieve = self.relieve(now, slots);
        let limit = self.limit(now).map(|at| at.max(now + ATTEND_NS));
        [look, attend, relieve, limit].into_iter().flatten().min().map(|at| at.max(now + 1))
    }

    fn active_members(&self, job: JobIndex) -> impl Iterator<Item = &Member> {
        let members = self.active.iter().filter_map(|id| self.members[*id].as_ref());
        members.filter(move |member| member.job == job)
    }

    fn member(&self, id: MemberId) -> Option<&Member> {
        self.members.get(id)?.as_ref()
    }

    // ---- What happened since the last look ----------------------------------------------------

    /// Reads the reports, charges the use and notices which jobs want the device.
    fn read(&mut self, now: u64, slots: &dyn Slots) {
        let passed = now.saturating_sub(std::mem::replace(&mut self.looked, now));
        let before: Vec<(JobIndex, Demand)> =
            self.runnable.iter().map(|job| (*job, std::mem::take(&mut self.jobs[*job].now))).collect();
        for at in 0..self.active.len() {
            let id = self.active[at];
            let Some(member) = &mut self.members[id] else { continue };
            let (busy, calls) = member.hear(slots.report(id), now);
            let job = &mut self.jobs[member.job];
            let demand = &mut job.now;
            let (report, in_flight) = (&member.report, member.in_flight());
            let uses = report.waiting || report.wanted || in_flight;
            if uses {
                demand.exhausted = (demand.exhausted || !demand.runnable) && member.is_exhausted();
                demand.runnable = true;
            }
            demand.waiting |= report.waiting;
            demand.wanted |= report.wanted;
            demand.in_flight |= in_flight;
            demand.drains_at = demand.drains_at.max(if in_flight { report.drains_at } else { 0 });
            // Members that have work at the same time have the device together.
            demand.busy = demand.busy.saturating_add(busy).min(passed);
            demand.calls = demand.calls.saturating_add(calls);
            if (demand.busy > 0 || uses) && !self.runnable.contains(&member.job) {
                self.runnable.push(member.job);
            }
        }
        self.charge(now, passed);
        self.note_demand(now, &before);
    }

    fn charge(&mut self, now: u64, passed: u64) {
        let others = self.runnable.iter().copied().filter(|job| !self.admitted.contains(job));
        let order: Vec<JobIndex> = self.admitted.iter().copied().chain(others).collect();
        let mut busy: Vec<u64> = order.iter().map(|job| self.jobs[*job].now.busy).collect();
        split(self.settings.kind, passed, &mut busy);
        let held = self.held(passed);
        for (job, used) in order.into_iter().zip(busy) {
            let entry = &mut self.jobs[job];
            let held = if self.turn.as_ref().is_some_and(|turn| turn.job == job) { held } else { 0 };
            let calls = std::mem::take(&mut entry.now.calls);
            if used == 0 && held == 0 && calls == 0 {
                continue;
            }
            entry.used = entry.used.saturating_add(used);
            if let Some(bucket) = &mut entry.cap {
                bucket.charge(used, now);
            }
            if calls > 0 {
                entry.progress = (entry.progress.0.saturating_add(calls), now);
            }
            if let Some(turn) = self.turn.as_mut().filter(|turn| turn.job == job) {
                turn.charged = turn.charged.saturating_add(used);
                turn.held = turn.held.saturating_add(held);
            }
            if let Some((_, sum)) = &mut self.calm {
                *sum = sum.saturating_add(used);
            }
            self.discipline.charge(job, Charge { used, held, calls }, now);
            if used > 0 {
                self.note_use(job, now);
            }
        }
    }

    /// Nanoseconds of the time that passed in which the turn's job kept the device from others.
    fn held(&self, passed: u64) -> u64 {
        let Some(turn) = self.turn.as_ref() else { return 0 };
        let blind = self.discipline.accounting() == AccountingMode::WallClock;
        if turn.contended || blind { passed } else { 0 }
    }

    fn note_use(&mut self, job: JobIndex, now: u64) {
        if self.recent[0].0 != job {
            self.recent.swap(0, 1);
        }
        self.recent[0] = (job, now);
    }

    /// Which jobs began to want the device, or want nothing any longer.
    fn note_demand(&mut self, now: u64, before: &[(JobIndex, Demand)]) {
        let was = |job: JobIndex| before.iter().find(|(of, _)| *of == job).map(|(_, demand)| *demand);
        for at in 0..self.runnable.len() {
            let (index, before) = (self.runnable[at], was(self.runnable[at]).unwrap_or_default());
            let job = &mut self.jobs[index];
            if job.now.runnable && !before.runnable {
                self.discipline.enqueue(index, now);
            } else if !job.now.runnable && before.runnable {
                self.discipline.dequeue(index);
            }
            job.is_new = job.now.waiting && (job.is_new || !before.waiting);
            if job.now.in_flight && !before.in_flight {
                job.progress.1 = now;
            }
            if job.now.in_flight && !self.admitted.contains(&index) {
                self.admitted.push(index);
            }
        }
        let (jobs, turn) = (&self.jobs, self.turn.as_ref().map(|turn| turn.job));
        self.runnable.retain(|job| jobs[*job].now.runnable);
        self.admitted.retain(|job| jobs[*job].now.in_flight || Some(*job) == turn);
    }

    // ---- Decisions ----------------------------------------------------------------------------

    /// The jobs that wait and may have a turn now; and when a capped one may, if it waits.
    fn candidates(&mut self, but: Option<JobIndex>, now: u64) -> (Vec<JobIndex>, Option<u64>) {
        let (mut found, mut later) = (Vec::new(), None::<u64>);
        for index in self.runnable.iter().copied().filter(|job| Some(*job) != but) {
            let job = &mut self.jobs[index];
            if !job.now.waiting || job.unresponsive {
                continue;
            }
            match job.cap.as_mut().map(|bucket| (bucket.available(now), bucket.available_at())) {
                Some((0, at)) => later = Some(later.map_or(at, |later| later.min(at))),
                _ => found.push(index),
            }
        }
        (found, later)
    }

    fn review(&mut self, now: u64, slots: &mut dyn Slots) -> Option<u64> {
        let holder = self.turn.as_ref().map(|turn| turn.job);
        let (others, later) = self.candidates(holder, now);
        if others.is_empty() && self.calm.is_none() {
            self.calm = Some((now, 0));
        }
        self.note_blocked(now);
        let look = match holder {
            None => self.pick(None, now),
            Some(holder) if others.is_empty() && self.jobs[holder].cap.is_none() => self.go_on_alone(holder, now, slots),
            Some(_) => self.review_turn(&others, now, slots),
        };
        [look, later].into_iter().flatten().min()
    }

    /// No other job waits.
    fn go_on_alone(&mut self, holder: JobIndex, now: u64, slots: &mut dyn Slots) -> Option<u64> {
        let others_run = self.runnable.iter().any(|job| *job != holder);
        if !self.jobs[holder].now.runnable && others_run {
            self.end_turn(now, slots);
            return self.pick(None, now);
        }
        let turn = self.turn.as_mut()?;
        // As many turns as it likes: whoever comes waits for the rest of one.
        turn.charged %= turn.quantum.max(1);
        (turn.contended, turn.state, turn.idle) = (false, TurnState::Running, None);
        // What it may have in flight grows when the others are not expected back.
        let other = self.recent_other(holder)?;
        (now < other + RECENT_NS).then_some(other + RECENT_NS)
    }

    /// Whether the turn goes on although others wait, or although its job is capped.
    fn review_turn(&mut self, others: &[JobIndex], now: u64, slots: &mut dyn Slots) -> Option<u64> {
        let turn = self.turn.as_mut()?;
        let holder = turn.job;
        turn.contended = !others.is_empty() && self.admitted.first() == Some(&holder);
        let demand = self.jobs[holder].now;
        if self.discipline.accounting() == AccountingMode::WallClock {
            let preempted = self.is_preempted(others, holder, now);
            let end = self.turn.as_ref()?.since.saturating_add(self.settings.quantum);
            return if end <= now || preempted { self.hand_over(now, slots) } else { Some(end) };
        }
        let unresponsive = self.is_unresponsive(now);
        if !demand.runnable || unresponsive {
            self.end_turn(now, slots);
            return self.pick(None, now);
        }
        let preempted = self.is_preempted(others, holder, now);
        let turn = self.turn.as_mut()?;
        if preempted {
            turn.state = TurnState::Preempted;
        } else if turn.state == TurnState::Running && (turn.left() == 0 || demand.exhausted) {
            turn.state = TurnState::Closing;
        }
        if turn.state == TurnState::Running {
            // Its device time passes no faster than the clock.
            return Some(now.saturating_add(turn.left().max(OVERLAP_NS)));
        }
        let at = self.hand_over_at(now)?;
        if at <= now { self.hand_over(now, slots) } else { Some(at) }
    }

    /// Whether one of the jobs that have just begun to wait goes before the holder.
    fn is_preempted(&mut self, others: &[JobIndex], holder: JobIndex, now: u64) -> bool {
        let mut preempted = false;
        for other in others.iter().copied() {
            if std::mem::take(&mut self.jobs[other].is_new) {
                preempted |= match self.discipline.precedence(other, holder, now) {
                    Precedence::Behind => false,
                    Precedence::Entitled => self.settings.kind == DeviceKind::Preemptive,
                    Precedence::First => true,
                };
            }
        }
        preempted
    }

    /// When the next job may have the device. `None`: when a doorbell rings.
    fn hand_over_at(&self, now: u64) -> Option<u64> {
        let turn = self.turn.as_ref()?;
        let demand = &self.jobs[turn.job].now;
        let drained = if demand.in_flight { demand.drains_at.saturating_sub(OVERLAP_NS) } else { now };
        match self.settings.kind {
            DeviceKind::Preemptive if turn.state == TurnState::Preempted => Some(now),
            DeviceKind::Preemptive => Some(drained.min(now.saturating_add(turn.left()))),
            // One job at a time comes behind another.
            DeviceKind::Exclusive if self.is_behind(turn.job) => None,
            DeviceKind::Exclusive => Some(drained),
        }
    }

    /// Whether another job has work in flight that was admitted before.
    fn is_behind(&self, job: JobIndex) -> bool {
        let before = self.admitted.iter().take_while(|admitted| **admitted != job);
        before.into_iter().any(|admitted| self.jobs[*admitted].now.in_flight)
    }

    /// Nothing of the turn's job is in flight, and that was so too long ago.
    fn is_unresponsive(&mut self, now: u64) -> bool {
        let Some(turn) = &mut self.turn else { return false };
        let job = &mut self.jobs[turn.job];
        if job.now.in_flight {
            turn.idle = None;
            return false;
        }
        let completed = job.progress.0;
        let since = match turn.idle {
            Some((since, calls)) if calls == completed => since,
            _ => now,
        };
        turn.idle = Some((since, completed));
        // A thread that was woken may wait for a CPU; one that is between two calls usually comes back at once.
        let quanta = if job.now.waiting { UNRESPONSIVE_QUANTA } else { 1 };
        let over = now.saturating_sub(since) >= self.settings.quantum.saturating_mul(quanta);
        job.unresponsive = over && job.now.waiting;
        if over {
            // All of it: programs that go on come back sooner.
            turn.held = turn.held.saturating_mul(HELD_PART);
        }
        over
    }

    /// The turn is used up. Its job may have another one, as programs go on: with its next call, if not now.
    fn hand_over(&mut self, now: u64, slots: &mut dyn Slots) -> Option<u64> {
        let holder = self.turn.as_ref().map(|turn| turn.job);
        self.end_turn(now, slots);
        self.pick(holder, now)
    }

    fn end_turn(&mut self, now: u64, slots: &mut dyn Slots) {
        let Some(turn) = self.turn.take() else { return };
        // An API server that says to have used nothing pays for the time for which others waited.
        let least = turn.held / HELD_PART;
        let used = least.saturating_sub(turn.charged);
        if used > 0 {
            let job = &mut self.jobs[turn.job];
            job.used = job.used.saturating_add(used);
            self.discipline.charge(turn.job, Charge { used, ..Charge::default() }, now);
        }
        for id in self.active.clone() {
            if self.member(id).is_some_and(|member| member.job == turn.job) {
                self.withdraw(id, now, slots);
            }
        }
        let jobs = &self.jobs;
        self.admitted.retain(|job| jobs[*job].now.in_flight);
    }

    /// Gives the device to the job that is next: one that waits, or `holder`, which had it. The result is when to look
    /// again.
    fn pick(&mut self, holder: Option<JobIndex>, now: u64) -> Option<u64> {
        if let Err(later) = self.is_free(now) {
            return later;
        }
        let (mut candidates, later) = self.candidates(None, now);
        let comes_back = |job: &JobIndex| {
            let job = &self.jobs[*job];
            job.now.runnable && !job.now.waiting && job.cap.is_none()
        };
        candidates.extend(holder.filter(|holder| !candidates.is_empty() && comes_back(holder)));
        if candidates.is_empty() {
            // A job that does not wait yet goes on as before, if it is the only one.
            if let [job] = self.runnable[..]
                && self.jobs[job].cap.is_none()
            {
                self.begin_turn(job, self.settings.quantum, now);
            }
            return later;
        }
        let (job, quantum) = match self.discipline.pick(&candidates, now) {
            Decision::Grant(job, quantum) => (job, quantum),
            Decision::IdleUntil { until } => return Some(later.map_or(until, |later| later.min(until))),
        };
        if candidates.len() > 1
            && let Some((since, used)) = self.calm.take()
        {
            self.discipline.device_idle(now.saturating_sub(since).saturating_sub(used));
        }
        let capped = self.jobs[job].cap.as_mut().map(|bucket| bucket.available(now));
        self.begin_turn(job, capped.map_or(quantum, |capped| capped.min(quantum)), now);
        let turn = self.turn.as_mut()?;
        turn.contended = candidates.len() > 1 && self.admitted.first() == Some(&job);
        // The end of the turn is heard; this is for an API server that does not say it.
        Some(now.saturating_add(turn.quantum.max(OVERLAP_NS)))
    }

    /// Whether the device may get another job's work. Otherwise when, if that is known.
    fn is_free(&self, now: u64) -> Result<(), Option<u64>> {
        if self.settings.kind == DeviceKind::Preemptive
            || self.discipline.accounting() == AccountingMode::WallClock
        {
            return Ok(());
        }
        let mut in_flight = self.admitted.iter().filter(|job| self.jobs[**job].now.in_flight);
        match (in_flight.next(), in_flight.next()) {
            (None, _) => Ok(()),
            (Some(job), None) => match self.jobs[*job].now.drains_at.saturating_sub(OVERLAP_NS) {
                at if at > now => Err(Some(at)),
                _ => Ok(()),
            },
            _ => Err(None),
        }
    }

    fn begin_turn(&mut self, job: JobIndex, quantum: u64, now: u64) {
        self.turn = Some(Turn::new(job, quantum, now));
        if !self.admitted.contains(&job) {
            self.admitted.push(job);
        }
        self.jobs[job].progress.1 = now;
        for job in &self.runnable {
            self.jobs[*job].is_new = false;
        }
        if self.blocked.is_some_and(|(blocked, _)| blocked == job) {
            self.blocked = None;
        }
    }

    // ---- Limits -------------------------------------------------------------------------------

    /// Writes what the members of the turn's job may do now.
    fn refresh(&mut self, now: u64, slots: &mut dyn Slots) {
        let Some(turn) = &self.turn else { return };
        let (job, left) = (turn.job, turn.left());
        let (others, _) = self.candidates(Some(job), now);
        let alone = others.is_empty() && self.jobs[job].cap.is_none();
        let depth = self.depth(job, alone, now);
        let running = self.turn.as_ref().is_some_and(|turn| turn.state == TurnState::Running);
        let blind = self.discipline.accounting() == AccountingMode::WallClock;
        for id in self.active.clone() {
            let Some(member) = self.member(id).filter(|member| member.job == job) else { continue };
            if alone || blind {
                self.allow(id, Limits { allowance: ALONE, depth }, slots);
            } else if running {
                let allowance = member.busy(now).saturating_add(left).min(ALONE - 1);
                self.allow(id, Limits { allowance, depth }, slots);
            } else if self.turn.as_ref().is_some_and(|turn| turn.reliefs.is_none()) {
                self.withdraw(id, now, slots);
            }
        }
    }

    fn allow(&mut self, id: MemberId, limits: Limits, slots: &mut dyn Slots) {
        let Some(Some(member)) = self.members.get_mut(id) else { return };
        if member.limits != limits {
            let opens = limits.allowance > member.limits.allowance || limits.depth > member.limits.depth;
            member.limits = limits;
            slots.set_limits(id, limits, opens);
        }
    }

    /// The member may submit nothing more.
    fn withdraw(&mut self, id: MemberId, now: u64, slots: &mut dyn Slots) {
        let Some(member) = self.member(id) else { return };
        let limits = Limits { allowance: member.busy(now).min(member.limits.allowance), ..member.limits };
        self.allow(id, limits, slots);
    }

    fn recent_other(&self, job: JobIndex) -> Option<u64> {
        let other = self.recent.iter().find(|(other, _)| *other != job && *other != JobIndex::MAX);
        other.map(|(_, at)| *at)
    }

    /// Nanoseconds of work that a job may have in flight.
    fn depth(&self, job: JobIndex, alone: bool, now: u64) -> u64 {
        let Settings { kind, quantum, latency, .. } = self.settings;
        let share = self.jobs[job].share;
        let preceded = |other: &Job| other.sessions > 0 && self.discipline.may_precede(share, other.share);
        let others_come = self.recent_other(job).is_some_and(|at| now < at + RECENT_NS);
        match kind {
            _ if self.discipline.accounting() == AccountingMode::WallClock => u64::MAX,
            DeviceKind::Preemptive if others_come || !alone => latency,
            DeviceKind::Exclusive if self.jobs.iter().any(preceded) => latency,
            DeviceKind::Exclusive if !alone => quantum,
            _ => AHEAD_NS,
        }
    }

    /// Members that want nothing and may submit nothing are not looked at until their doorbells ring.
    fn forget_idle_members(&mut self, now: u64, slots: &mut dyn Slots) {
        let turn = self.turn.as_ref().map(|turn| turn.job);
        for id in self.active.clone() {
            let Some(member) = self.member(id) else { continue };
            let report = &member.report;
            let idle = !report.waiting && !report.wanted && !member.in_flight() && Some(member.job) != turn;
            if idle {
                self.withdraw(id, now, slots);
                if let Some(Some(member)) = self.members.get_mut(id) {
                    member.active = false;
                }
                self.active.retain(|active| *active != id);
            }
        }
    }

    // ---- Work that takes long -----------------------------------------------------------------

    /// Asks API servers to look at work that should be completed, while somebody depends on that.
    fn attend(&mut self, now: u64, slots: &mut dyn Slots) -> Option<u64> {
        let mut look = None::<u64>;
        let running = self.turn.as_ref().filter(|turn| turn.state == TurnState::Running).map(|turn| turn.job);
        let waited_for = |job: JobIndex| self.jobs.len() > 1 && Some(job) != running;
        let ids: Vec<MemberId> = self.active.iter().copied().filter(|id| {
            self.member(*id).is_some_and(|member| member.in_flight() && waited_for(member.job))
        }).collect();
        for id in ids {
            let Some(Some(member)) = self.members.get_mut(id) else { continue };
            let (mut at, mut pause) = member.attend;
            if at <= member.report.drains_at {
                (at, pause) = (member.report.drains_at.saturating_add(ATTEND_NS), ATTEND_NS);
            }
            if at <= now {
                slots.attend(id);
                pause = pause.saturating_mul(2).min(ATTEND_MAX_NS);
                at = now.saturating_add(pause);
            }
            member.attend = (at, pause);
            look = Some(look.map_or(at, |look| look.min(at)));
        }
        look
    }

    /// Work that is overdue on an exclusive device may wait for work of another member of the same job, or of another
    /// thread: those that wait may submit, although the turn is used up.
    fn relieve(&mut self, now: u64, slots: &mut dyn Slots) -> Option<u64> {
        let turn = self.turn.as_ref()?;
        let (job, quantum) = (turn.job, turn.quantum);
        let demand = self.jobs[job].now;
        let stuck = turn.state != TurnState::Running && demand.in_flight && demand.waiting;
        if self.settings.kind != DeviceKind::Exclusive || !stuck || demand.drains_at > now {
            return Some(demand.drains_at).filter(|at| stuck && *at > now);
        }
        let turn = self.turn.as_mut()?;
        let (since, count) = *turn.reliefs.get_or_insert((now, 0));
        let due = since.saturating_add(RELIEF_NS.saturating_mul(4u64.saturating_pow(count)));
        if due > now {
            return Some(due);
        }
        turn.reliefs = Some((since, count + 1));
        for id in self.active.clone() {
            let Some(member) = self.member(id).filter(|member| member.job == job && member.report.waiting) else {
                continue;
            };
            // Its position may be estimated to be beyond what has passed.
            let estimated = member.report.drains_at.saturating_sub(member.report.busy_since);
            let position = member.busy(now).max(member.report.used.saturating_add(estimated));
            let limits = Limits { allowance: position.saturating_add(quantum).min(ALONE - 1), depth: quantum };
            self.allow(id, limits, slots);
        }
        Some(since.saturating_add(RELIEF_NS.saturating_mul(4u64.saturating_pow(count + 1))))
    }

    /// Notes since when the first admitted job keeps others from the device: they wait, or have work behind it, and do
    /// not get on.
    fn note_blocked(&mut self, now: u64) {
        let first = self.admitted.first().copied().filter(|first| self.jobs[*first].now.in_flight);
        let (mut kept, mut moved) = (false, 0);
        for job in self.runnable.iter().copied().filter(|job| Some(*job) != first) {
            let Job { now: demand, progress, .. } = &self.jobs[job];
            kept |= demand.waiting || demand.in_flight;
            moved = moved.max(if demand.in_flight { progress.1 } else { 0 });
        }
        self.blocked = match (first.filter(|_| kept), self.blocked) {
            (Some(first), Some((job, since))) if first == job => Some((job, since.max(moved))),
            (Some(first), _) => Some((first, now)),
            (None, _) => None,
        };
    }

    /// When the first admitted job will have kept the device from others for too long.
    fn limit(&self, now: u64) -> Option<u64> {
        let limit = Some(self.settings.hold_limit).filter(|limit| *limit > 0)?;
        let since = match self.settings.kind {
            DeviceKind::Exclusive => self.blocked?.1.saturating_add(self.settings.quantum),
            // All that are admitted stand still: the one that has the device for longest keeps it from the others.
            DeviceKind::Preemptive => {
                let admitted = self.admitted.iter().filter(|job| self.jobs[**job].now.in_flight);
                let moved = admitted.clone().map(|job| self.jobs[*job].progress.1).max()?;
                (admitted.count() > 1).then_some(moved)?
            }
        };
        let at = since.max(self.reported).saturating_add(limit);
        Some(at).filter(|_| now > 0)
    }

    /// The member that has kept the device from others beyond the limit, and for how many nanoseconds they wait.
    pub fn overdue(&self, now: u64) -> Option<(MemberId, u64)> {
        let at = self.limit(now).filter(|at| *at <= now)?;
        let in_flight = self.admitted.iter().filter(|job| self.jobs[**job].now.in_flight);
        let job = *in_flight.min_by_key(|job| match self.settings.kind {
            DeviceKind::Exclusive => 0,
            DeviceKind::Preemptive => self.jobs[**job].progress.1,
        })?;
        let of_job = |id: &&MemberId| self.member(**id).is_some_and(|member| member.job == job && member.in_flight());
        let since = |id: &&MemberId| self.member(**id).map_or(0, |member| member.report.busy_since);
        let member = *self.active.iter().filter(of_job).min_by_key(since)?;
        Some((member, now.saturating_sub(at).saturating_add(self.settings.hold_limit)))
    }

    /// The same for the one who ends it; reported again only after as long again.
    pub fn take_overdue(&mut self, now: u64) -> Option<(MemberId, u64)> {
        let overdue = self.overdue(now)?;
        self.reported = now;
        Some(overdue)
    }
}
