//! One device: which job may submit work now, and how much. See the crate's documentation.

mod interface;
mod limits;

pub use interface::{Settings, Slots, Usage};

use crate::cap::Bucket;
use crate::discipline::{AccountingMode, Charge, Decision, Discipline, JobIndex, Precedence, Share};
use crate::holder::{ALONE, Limits, UNKNOWN_END, UNMANAGED};
use crate::job::{Demand, Job, Member, MemberId, Turn};
use crate::split::{DeviceKind, split};

/// Nanoseconds before the expected end of a turn's last work at which the next job may submit behind it. Two threads
/// must wake up for that, which takes up to 250 us on machines with few CPUs.
const OVERLAP_NS: u64 = 300_000;
/// Nanoseconds after which a job that used the device is not expected back any more.
const RECENT_NS: u64 = 1_000_000_000;

/// When another job's work may come behind work that ends at `drains_at`; `None`: only once it has ended.
fn overlap_begins(drains_at: u64) -> Option<u64> {
    (drains_at != UNKNOWN_END).then(|| drains_at.saturating_sub(OVERLAP_NS))
}

/// Work of a job is overdue, and its members that wait are let in.
#[derive(Debug)]
struct Relief {
    job: JobIndex,
    since: u64,
    count: u32,
}

/// One device: decides which job may submit work now, and how much.
///
/// ```
/// # use aviary_schedule::{Arbiter, DeviceKind, Fair, Limits, MemberId, Report, Settings, Share, Slots};
/// # struct Pages(Vec<(Report, Limits)>);
/// #
/// # impl Slots for Pages {
/// #     fn report(&self, member: MemberId) -> Report {
/// #         self.0[member].0
/// #     }
/// #     fn set_limits(&mut self, member: MemberId, limits: Limits, _opens: bool, _now: u64) {
/// #         self.0[member].1 = limits;
/// #     }
/// #     fn park(&mut self, _: MemberId) {}
/// # }
/// let waits = Report { waiting: true, wanted: true, ..Report::default() };
/// let none = Limits { allowance: 0, depth: 0 };
/// let mut pages = Pages(vec![(waits, none), (waits, none)]);
/// let settings = Settings { kind: DeviceKind::Exclusive, quantum: 6_000_000, latency: 0, hold_limit: 0 };
/// let mut arbiter = Arbiter::new(settings, Box::new(Fair::new(settings.quantum)));
/// arbiter.join("alice", Share::default(), 1, &mut pages, 0);
/// arbiter.join("bob", Share::default(), 1, &mut pages, 1);
/// arbiter.step(1_000, &mut pages);
/// // Both wait: one of them may submit a turn's work now, the other one nothing yet.
/// let allowed: Vec<u64> = pages.0.iter().map(|(_, limits)| limits.allowance).collect();
/// assert_eq!(allowed.iter().filter(|allowance| **allowance > 0).count(), 1, "{allowed:?}");
/// ```
#[derive(Debug)]
pub struct Arbiter {
    settings: Settings,
    discipline: Box<dyn Discipline>,
    jobs: Vec<Job>,
    members: Vec<Option<Member>>,
    /// The members that want the device or have work there, and those that may have some in a moment: only these are
    /// looked at.
    active: Vec<MemberId>,
    /// The jobs of those that want something.
    runnable: Vec<JobIndex>,
    /// The jobs that have the turn or have work on the device, in the order in which they were admitted.
    admitted: Vec<JobIndex>,
    turn: Option<Turn>,
    relief: Option<Relief>,
    /// The highest priority of the jobs that have sessions here.
    foremost: Option<Share>,
    /// When it was brought up to date last.
    looked: u64,
    /// Since when no job waits, and nanoseconds of device time since then.
    calm: Option<(u64, u64)>,
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
            relief: None,
            foremost: None,
            looked: 0,
            calm: None,
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
            self.jobs.push(Job { name: name.to_owned(), ..Job::default() });
            self.jobs.len() - 1
        });
        let job = &mut self.jobs[at];
        job.share = share;
        match (&mut job.cap, share.cap) {
            (Some(bucket), Some(rate)) => bucket.set_rate(rate, now),
            (bucket, rate) => *bucket = rate.map(|rate| Bucket::new(rate, now)),
        }
        self.discipline.set_share(at, share);
        self.find_foremost();
        at
    }

    fn find_foremost(&mut self) {
        let shares = self.jobs.iter().filter(|job| !job.members.is_empty()).map(|job| job.share);
        self.foremost = shares.max_by_key(|share| share.priority);
    }

    /// A session of a job uses the device from `now` on.
    pub fn join(&mut self, job: &str, share: Share, now: u64, slots: &mut dyn Slots, id: MemberId) {
        let job = self.set_share(job, share, now);
        self.jobs[job].members.push(id);
        self.find_foremost();
        if self.members.len() <= id {
            self.members.resize_with(id + 1, || None);
        }
        let member = Member::new(job, slots.report(id), now);
        slots.set_limits(id, member.limits, false, now);
        self.members[id] = Some(member);
        self.woke(id);
    }

    /// The doorbell of that session rang.
    pub fn woke(&mut self, id: MemberId) {
        let Some(Some(member)) = self.members.get_mut(id) else { return };
        member.silent = false;
        if !std::mem::replace(&mut member.active, true) {
            self.active.push(id);
        }
    }

    /// The session has ended. What it had in flight is charged until now.
    pub fn leave(&mut self, id: MemberId, now: u64, slots: &mut dyn Slots) {
        self.read(now, slots);
        let Some(member) = self.members.get_mut(id).and_then(Option::take) else { return };
        self.jobs[member.job].members.retain(|member| *member != id);
        self.find_foremost();
        self.active.retain(|active| *active != id);
    }

    /// The device is not scheduled any longer.
    pub fn open_to_all(&mut self, now: u64, slots: &mut dyn Slots) {
        for id in (0..self.members.len()).filter(|id| self.members[*id].is_some()) {
            slots.set_limits(id, Limits { allowance: UNMANAGED, depth: u64::MAX }, true, now);
        }
    }

    /// Takes in what the sessions have done until `now`: a job that is alone is not looked at otherwise.
    pub fn refresh(&mut self, now: u64, slots: &dyn Slots) {
        self.read(now, slots);
    }

    pub fn usage(&self) -> Vec<Usage> {
        let waits = |id: &&MemberId| self.member(**id).is_some_and(|member| member.report.waiting);
        let one = |job: &Job| Usage {
            job: job.name.clone(),
            share: job.share,
            used_ns: job.used,
            sessions: job.members.len(),
            waiting: job.members.iter().filter(waits).count(),
        };
        self.jobs.iter().map(one).collect()
    }

    /// Brings everything up to date and decides. The result is when to look again.
    pub fn step(&mut self, now: u64, slots: &mut dyn Slots) -> Option<u64> {
        self.read(now, slots);
        let look = self.decide(now, slots);
        self.write(now, slots);
        let relief = self.relieve(now, slots);
        self.park_idle_members(now, slots);
        let limit = self.limit().map(|at| at.max(now.saturating_add(OVERLAP_NS)));
        [look, relief, limit].into_iter().flatten().min().map(|at| at.max(now + 1))
    }

    fn member(&self, id: MemberId) -> Option<&Member> {
        self.members.get(id)?.as_ref()
    }

    fn is_blind(&self) -> bool {
        self.discipline.accounting() == AccountingMode::WallClock
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
            let job = &mut self.jobs[member.job];
            let (busy, calls) = member.hear(slots.report(id), now, &mut job.doubt);
            let demand = &mut job.now;
            let in_flight = member.in_flight();
            if !member.is_idle() {
                demand.exhausted = (demand.exhausted || !demand.runnable) && member.is_exhausted();
                demand.runnable = true;
            }
            demand.waiting |= member.report.waiting;
            demand.in_flight |= in_flight;
            demand.drains_at = demand.drains_at.max(if in_flight { member.report.drains_at } else { 0 });
            // Members that have work at the same time have the device together.
            demand.busy = demand.busy.saturating_add(busy).min(passed);
            demand.calls = demand.calls.saturating_add(calls);
            let job = member.job;
            if (demand.runnable || demand.busy > 0) && !self.runnable.contains(&job) {
                self.runnable.push(job);
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
        let blind = self.is_blind();
        for (job, used) in order.into_iter().zip(busy) {
            let (mut due, mut held) = (used, 0);
            if let Some(turn) = self.turn.as_mut().filter(|turn| turn.job == job) {
                held = if turn.contended || blind { passed } else { 0 };
                turn.used = turn.used.saturating_add(used);
                turn.held = turn.held.saturating_add(held);
                due = turn.due(self.jobs[job].doubt.is_doubted(now));
            }
            let entry = &mut self.jobs[job];
            let calls = std::mem::take(&mut entry.now.calls);
            entry.used = entry.used.saturating_add(due);
            if let Some(bucket) = &mut entry.cap {
                bucket.charge(due, now);
            }
            if calls > 0 {
                entry.progress_at = now;
            }
            if let Some((_, sum)) = &mut self.calm {
                *sum = sum.saturating_add(due);
            }
            if due > 0 || held > 0 || calls > 0 {
                self.discipline.charge(job, Charge { used: due, held, calls }, now);
            }
            if used > 0 && std::mem::replace(&mut self.recent[0], (job, now)).0 != job {
                self.recent.swap(0, 1);
                self.recent[0] = (job, now);
            }
        }
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
            job.is_new = job.now.runnable && (job.is_new || (job.now.waiting && !before.waiting) || !before.runnable);
            if job.now.in_flight && !before.in_flight {
                job.progress_at = now;
            }
            if job.now.in_flight && !self.admitted.contains(&index) {
                self.admitted.push(index);
            }
        }
        let (jobs, holder) = (&self.jobs, self.turn.as_ref().map(|turn| turn.job));
        self.runnable.retain(|job| jobs[*job].now.runnable);
        self.admitted.retain(|job| jobs[*job].now.in_flight || Some(*job) == holder);
    }

    // ---- The turn -----------------------------------------------------------------------------

    /// The jobs but `holder` that wait and may have a turn now, and when one that is at its cap may.
    fn candidates(&mut self, holder: Option<JobIndex>, now: u64) -> (Vec<JobIndex>, Option<u64>) {
        let (mut found, mut later) = (Vec::new(), None::<u64>);
        for index in self.runnable.iter().copied().filter(|job| Some(*job) != holder) {
            let job = &mut self.jobs[index];
            match job.cap.as_mut().map(|bucket| (bucket.available(now), bucket.available_at())) {
                Some((0, at)) if job.now.waiting => later = Some(later.map_or(at, |later| later.min(at))),
                _ if job.now.waiting => found.push(index),
                _ => {}
            }
        }
        (found, later)
    }

    fn decide(&mut self, now: u64, slots: &mut dyn Slots) -> Option<u64> {
        let holder = self.turn.as_ref().map(|turn| turn.job);
        let (others, later) = self.candidates(holder, now);
        if others.is_empty() && self.calm.is_none() {
            self.calm = Some((now, 0));
        }
        let look = match holder {
            None => self.pick(None, now),
            Some(holder) => self.review_turn(holder, &others, now, slots),
        };
        [look, later].into_iter().flatten().min()
    }

    /// Lets the turn go on or ends it.
    fn review_turn(&mut self, holder: JobIndex, others: &[JobIndex], now: u64, slots: &mut dyn Slots) -> Option<u64> {
        let demand = self.jobs[holder].now;
        let newcomer = self.newcomer(holder, now, slots);
        if let Some(job) = newcomer
            && (self.settings.kind == DeviceKind::Preemptive || self.is_blind())
        {
            self.end_turn(now, slots);
            return if self.jobs[job].now.waiting { self.pick(Some(holder), now) } else { self.give_to(job, now) };
        }
        let (quantum, overlapped) = (self.settings.quantum, self.is_behind(holder));
        let front = self.admitted.first() == Some(&holder);
        if self.is_blind() {
            let end = self.turn.as_ref()?.since.saturating_add(quantum);
            return if end <= now { self.hand_over(holder, now, slots) } else { Some(end) };
        }
        let capped = self.jobs[holder].cap.is_some();
        if others.is_empty() && !capped {
            if !demand.runnable && self.runnable.iter().any(|job| *job != holder) {
                self.end_turn(now, slots);
                return self.pick(None, now);
            }
            // As many turns as it likes: whoever comes waits for the rest of one.
            let turn = self.turn.as_mut()?;
            let fresh = Turn::new(holder, quantum, turn.since);
            if turn.left() == 0 || turn.over.is_some() {
                *turn = fresh;
            }
            turn.contended = false;
            let other = self.recent.iter().find(|(job, _)| *job != holder).map(|(_, at)| *at + RECENT_NS);
            return other.filter(|at| *at > now);
        }
        let turn = self.turn.as_mut()?;
        turn.contended = !others.is_empty() && front;
        if !others.is_empty() {
            turn.quantum = self.discipline.turn_beside_others(holder, turn.quantum);
        }
        if !demand.runnable {
            self.end_turn(now, slots);
            return self.pick(None, now);
        }
        if turn.over.is_none() && (newcomer.is_some() || turn.left() == 0 || demand.exhausted) {
            turn.over = Some(now);
        }
        if turn.over.is_none() {
            // Its device time passes no faster than the clock.
            return Some(now.saturating_add(turn.left().max(OVERLAP_NS)));
        }
        let drained = if demand.in_flight { overlap_begins(demand.drains_at) } else { Some(now) };
        let at = match self.settings.kind {
            // Two jobs' work at a time costs both of them more than a wait that is not long.
            DeviceKind::Preemptive => drained.unwrap_or(now).min(turn.over.unwrap_or(now).saturating_add(quantum)),
            // One job at a time comes behind another.
            DeviceKind::Exclusive if overlapped => return None,
            DeviceKind::Exclusive => drained?,
        };
        if at <= now { self.hand_over(holder, now, slots) } else { Some(at) }
    }

    /// A job that has just begun to want the device and goes before the holder.
    fn newcomer(&mut self, holder: JobIndex, now: u64, slots: &mut dyn Slots) -> Option<JobIndex> {
        let mut found = None;
        for at in 0..self.runnable.len() {
            let job = self.runnable[at];
            if job == holder || !std::mem::take(&mut self.jobs[job].is_new) {
                continue;
            }
            let admitted = self.settings.kind == DeviceKind::Preemptive;
            match self.discipline.precedence(job, holder, now) {
                Precedence::First => found = Some(job),
                Precedence::Entitled if admitted => found = found.or(Some(job)),
                // It had a standing allowance, and others come first now.
                _ => self.jobs[job].members.clone().into_iter().for_each(|id| self.withdraw(id, now, slots)),
            }
        }
        found
    }

    /// True if another job has work in flight that was admitted before.
    fn is_behind(&self, job: JobIndex) -> bool {
        let before = self.admitted.iter().take_while(|admitted| **admitted != job);
        before.into_iter().any(|admitted| self.jobs[*admitted].now.in_flight)
    }

    /// The turn is used up. Its job may have another one, as programs go on: with its next call, if not now.
    fn hand_over(&mut self, holder: JobIndex, now: u64, slots: &mut dyn Slots) -> Option<u64> {
        self.end_turn(now, slots);
        self.pick(Some(holder), now)
    }

    /// Its members may submit nothing more, but for one that is idle and entitled on a device that preempts.
    fn end_turn(&mut self, now: u64, slots: &mut dyn Slots) {
        let Some(turn) = self.turn.take() else { return };
        self.jobs[turn.job].ended_at = now;
        let stands =
            self.settings.kind == DeviceKind::Preemptive && !self.jobs[turn.job].now.runnable && !self.is_blind();
        for id in self.jobs[turn.job].members.clone() {
            let unused = turn.used == 0 && now >= turn.since.saturating_add(turn.quantum);
            if let (true, Some(Some(member))) = (unused, self.members.get_mut(id)) {
                // It did nothing with all of a turn: not waited for until its doorbell rings.
                member.silent = true;
            }
            if stands {
                let Some(member) = self.member(id) else { continue };
                let allowance = member.busy(now).saturating_add(self.settings.quantum).min(ALONE - 1);
                self.allow(id, Limits { allowance, ..member.limits }, now, slots);
            } else {
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
        let quantum = capped.map_or(quantum, |capped| capped.min(quantum));
        self.begin_turn(job, quantum, now);
        let contended = candidates.len() > 1 && self.admitted.first() == Some(&job);
        self.turn.iter_mut().for_each(|turn| turn.contended = contended);
        // The end of the turn is heard; this is for an API server that does not say it.
        Some(now.saturating_add(quantum.max(OVERLAP_NS)))
    }

    /// A job that kept its allowance while it was idle and works already has the turn.
    fn give_to(&mut self, job: JobIndex, now: u64) -> Option<u64> {
        let quantum = match self.discipline.pick(&[job], now) {
            Decision::Grant(_, quantum) => quantum,
            Decision::IdleUntil { until } => return Some(until),
        };
        self.begin_turn(job, quantum, now);
        Some(now.saturating_add(quantum))
    }

    /// An error: the device may get no other job's work now, but then, if that is known.
    fn is_free(&self, now: u64) -> Result<(), Option<u64>> {
        if self.settings.kind == DeviceKind::Preemptive || self.is_blind() {
            return Ok(());
        }
        let mut in_flight = self.admitted.iter().filter(|job| self.jobs[**job].now.in_flight);
        match (in_flight.next(), in_flight.next()) {
            (None, _) => Ok(()),
            (Some(job), None) => match overlap_begins(self.jobs[*job].now.drains_at) {
                Some(at) if at <= now => Ok(()),
                later => Err(later),
            },
            _ => Err(None),
        }
    }

    fn begin_turn(&mut self, job: JobIndex, quantum: u64, now: u64) {
        self.turn = Some(Turn::new(job, quantum, now));
        if !self.admitted.contains(&job) {
            self.admitted.push(job);
        }
        self.jobs[job].progress_at = now;
        for job in &self.runnable {
            self.jobs[*job].is_new = false;
        }
    }

    // ---- Work that takes long -----------------------------------------------------------------

    /// When a job will have kept the device from others for too long, and which.
    fn blocked(&self) -> Option<(JobIndex, u64)> {
        let mut in_flight = self.admitted.iter().copied().filter(|job| self.jobs[*job].now.in_flight);
        match self.settings.kind {
            DeviceKind::Exclusive => {
                let first = in_flight.next()?;
                let waits = |job: &&JobIndex| {
                    **job != first && (self.jobs[**job].now.waiting || self.jobs[**job].now.in_flight)
                };
                self.runnable.iter().find(waits)?;
                let turn = self.turn.as_ref().filter(|turn| turn.job == first);
                let since = turn.map_or(self.jobs[first].ended_at, |turn| turn.over.unwrap_or(self.looked));
                Some((first, since))
            }
            // All that are admitted stand still: the one that has done so for longest keeps it from the others.
            DeviceKind::Preemptive => {
                let first = in_flight.clone().min_by_key(|job| self.jobs[*job].progress_at)?;
                let moved = in_flight.clone().map(|job| self.jobs[job].progress_at).max()?;
                (in_flight.count() > 1).then_some((first, moved))
            }
        }
    }

    fn limit(&self) -> Option<u64> {
        let limit = Some(self.settings.hold_limit).filter(|limit| *limit > 0)?;
        let (_, since) = self.blocked()?;
        Some(since.max(self.reported).saturating_add(self.settings.quantum).saturating_add(limit))
    }

    /// The member that has kept the device from others beyond the limit, and for how many nanoseconds they wait.
    pub fn overdue(&self, now: u64) -> Option<(MemberId, u64)> {
        self.limit().filter(|at| *at <= now)?;
        let (job, waiting_since) = self.blocked()?;
        let of_job = |id: &&MemberId| self.member(**id).is_some_and(|member| member.job == job && member.in_flight());
        let since = |id: &&MemberId| self.member(**id).map_or(0, |member| member.report.busy_since);
        let member = *self.active.iter().filter(of_job).min_by_key(since)?;
        Some((member, now.saturating_sub(waiting_since)))
    }

    /// The same for the one who ends it; reported again only after as long again.
    pub fn take_overdue(&mut self, now: u64) -> Option<(MemberId, u64)> {
        let overdue = self.overdue(now)?;
        self.reported = now;
        Some(overdue)
    }
}
