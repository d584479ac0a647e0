//! The arbiter and holders against each other, on a device and a clock of their own.
//!
//! Everything is exact and takes no time: a thread wakes up [`WAKE`] after it could, a launch takes [`LAUNCH`].

use crate::residency::simulated::Memory;
use crate::*;
use std::collections::VecDeque;

pub(crate) const US: u64 = 1_000;
pub(crate) const MS: u64 = 1_000 * US;
pub(crate) const S: u64 = 1_000 * MS;
/// A thread that sleeps runs so long after it was woken.
const WAKE: u64 = 20 * US;
/// A thread that waits for the device sees the end of its work so much later.
const SEEN: u64 = 3 * US;
const LAUNCH: u64 = 2 * US;
/// A program submits again so long after it saw the end of its work.
const RETURN: u64 = 10 * US;
const LINGER: u64 = 200 * US;

/// A program: `batch` kernels of `kernel` nanoseconds, a wait for all of them, a pause.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub job: &'static str,
    pub share: Share,
    pub kernel: u64,
    pub batch: u64,
    pub pause: u64,
    pub from: u64,
    pub to: u64,
    /// Its kernels end only when that session has completed so many.
    pub waits_for: Option<(usize, u64)>,
    /// It ends after so many batches.
    pub batches: u64,
    pub lies: Lie,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Lie {
    No,
    /// Its API server reports that nothing was used, and that nothing is in flight.
    Nothing,
    /// The same, but every other look sees the truth: another thread of its API server writes over what the first one reports.
    Flickers,
    /// It waits for the device all the time and never uses it.
    Waits,
    /// It will use the device in a moment, as it says all the time.
    Wants,
}

pub(crate) fn program(job: &'static str, weight: u32, kernel: u64, batch: u64) -> Program {
    let share = Share { weight, ..Share::default() };
    let (from, to, pause) = (0, u64::MAX, 0);
    Program { job, share, kernel, batch, pause, from, to, waits_for: None, batches: u64::MAX, lies: Lie::No }
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum State {
    /// Until then it does nothing.
    Away(u64),
    /// So many kernels are to be submitted.
    Submits(u64),
    /// For the device.
    Waits,
    Over,
}

#[derive(Debug)]
struct Session {
    program: Program,
    state: State,
    /// When its thread runs next, if nothing else happens.
    runs_at: u64,
    holder: Holder,
    limits: Limits,
    waiting: bool,
    wanted: bool,
    /// As of the last refusal.
    position: u64,
    /// The allowance at which it rang last.
    rang_at: u64,
    parked: bool,
    /// The number of its kernels that were submitted before the mark.
    marked: u64,
    submitted: u64,
    completed: u64,
    /// When the batch began, and how long each took.
    began: u64,
    latencies: Vec<u64>,
    /// Device time that its kernels had.
    used: u64,
}

struct Slotted<'a> {
    sessions: &'a mut Vec<Session>,
    now: u64,
}

impl Slots for Slotted<'_> {
    fn report(&self, member: MemberId) -> Report {
        let session = &self.sessions[member];
        let report = session.holder.report(self.now);
        let (waiting, wanted) = (session.waiting, session.wanted);
        let truth = Report { waiting, wanted, position: report.position.max(session.position), ..report };
        match session.program.lies {
            Lie::No => truth,
            Lie::Flickers if (self.now / US).is_multiple_of(2) => truth,
            Lie::Flickers => Report { used: 0, busy_since: 0, ..truth },
            Lie::Nothing => Report { waiting, wanted, ..Report::default() },
            Lie::Waits => Report { waiting: true, wanted: true, ..Report::default() },
            Lie::Wants => Report { wanted: true, ..Report::default() },
        }
    }

    fn set_limits(&mut self, member: MemberId, limits: Limits, opens: bool, _now: u64) {
        let session = &mut self.sessions[member];
        session.limits = limits;
        if opens {
            session.runs_at = session.runs_at.min(self.now + WAKE);
        }
    }

    fn park(&mut self, member: MemberId) {
        self.sessions[member].parked = true;
    }
}

#[derive(Debug)]
pub(crate) struct Simulation {
    pub now: u64,
    arbiter: Arbiter,
    sessions: Vec<Session>,
    kind: DeviceKind,
    /// Kernels of each session: nanoseconds left. And the sessions in the order of submission.
    kernels: Vec<VecDeque<u64>>,
    order: VecDeque<usize>,
    held_back: Vec<usize>,
    look: Option<u64>,
    pub steps: u64,
    pub ended: Vec<usize>,
    pub busy: u64,
    /// The node's thread runs so long after its doorbell rang.
    pub node_delay: u64,
    /// `None`: the device has room for all.
    pub memory: Option<Memory>,
}

pub(crate) fn settings(kind: DeviceKind) -> Settings {
    let quantum = if kind == DeviceKind::Exclusive { 6 * MS } else { 30 * MS };
    Settings { kind, quantum, latency: 2 * MS, hold_limit: 3 * S }
}

pub(crate) fn fair(kind: DeviceKind) -> Box<dyn Discipline> {
    let quantum = settings(kind).quantum;
    Box::new(if kind == DeviceKind::Exclusive { Fair::new(quantum) } else { Fair::in_rounds(quantum) })
}

impl Simulation {
    pub fn new(settings: Settings, discipline: Box<dyn Discipline>, programs: Vec<Program>) -> Simulation {
        let session = |program: Program| Session {
            state: State::Away(program.from),
            runs_at: program.from,
            program,
            holder: Holder::default(),
            limits: Limits { allowance: 0, depth: 0 },
            waiting: false,
            wanted: false,
            position: 0,
            rang_at: u64::MAX,
            parked: false,
            marked: 0,
            submitted: 0,
            completed: 0,
            began: 0,
            latencies: Vec::new(),
            used: 0,
        };
        let mut sessions: Vec<Session> = programs.into_iter().map(session).collect();
        let mut arbiter = Arbiter::new(settings, discipline);
        for id in 0..sessions.len() {
            let (job, share) = (sessions[id].program.job, sessions[id].program.share);
            arbiter.join(job, share, 0, &mut Slotted { sessions: &mut sessions, now: 0 }, id);
        }
        let (order, held_back, ended) = (VecDeque::new(), Vec::new(), Vec::new());
        let kernels = vec![VecDeque::new(); sessions.len()];
        let kind = settings.kind;
        Simulation {
            now: 0,
            arbiter,
            sessions,
            kind,
            kernels,
            order,
            held_back,
            look: Some(0),
            steps: 0,
            ended,
            busy: 0,
            node_delay: WAKE,
            memory: None,
        }
    }

    pub fn run(&mut self, until: u64) -> &mut Simulation {
        while self.now < until {
            let thread = self.sessions.iter().map(|session| session.runs_at).min().unwrap_or(u64::MAX);
            let node = self.look.unwrap_or(u64::MAX);
            let memory = self.memory.as_ref().map_or(u64::MAX, |memory| memory.next(self.now));
            let next = thread.min(node).min(memory).min(self.next_completion()).min(until).max(self.now);
            self.advance(next);
            self.exchange();
            for id in 0..self.sessions.len() {
                if self.sessions[id].runs_at <= self.now && self.thread_runs(id) {
                    self.arbiter.woke(id);
                    let at = self.now + self.node_delay;
                    self.look = Some(self.look.map_or(at, |look| look.min(at)));
                }
            }
            if self.look.is_some_and(|at| at <= self.now) {
                self.steps += 1;
                assert!(self.steps < 2_000_000, "{:?} {} {:?}", self.look, self.now, self.arbiter);
                let now = self.now;
                self.look = self.arbiter.step(now, &mut Slotted { sessions: &mut self.sessions, now });
                if let Some((member, _)) = self.arbiter.take_overdue(now) {
                    self.ended.push(member);
                    self.end(member);
                }
            }
        }
        self
    }

    /// Memory leaves and comes; who has its own goes on.
    fn exchange(&mut self) {
        let Some(memory) = &mut self.memory else { return };
        let submitted: Vec<u64> = self.sessions.iter().map(|session| session.submitted).collect();
        let idle: Vec<bool> = self.kernels.iter().map(VecDeque::is_empty).collect();
        let waits: Vec<bool> = self.sessions.iter().map(|session| session.waiting).collect();
        let used: Vec<u64> = self.arbiter.usage().iter().map(|usage| usage.used_ns).collect();
        for id in memory.step(&submitted, &idle, &waits, &used, self.now) {
            self.sessions[id].runs_at = self.sessions[id].runs_at.min(self.now + WAKE);
        }
    }

    fn end(&mut self, id: usize) {
        let now = self.now;
        self.arbiter.leave(id, now, &mut Slotted { sessions: &mut self.sessions, now });
        self.kernels[id].clear();
        self.order.retain(|session| *session != id);
        self.held_back.retain(|session| *session != id);
        (self.sessions[id].state, self.sessions[id].runs_at) = (State::Over, u64::MAX);
        self.look = Some(now);
    }

    /// The sessions at whose kernels the device is.
    fn running(&self) -> Vec<usize> {
        match self.kind {
            DeviceKind::Exclusive => self.order.iter().copied().take(1).collect(),
            DeviceKind::Preemptive => (0..self.kernels.len()).filter(|id| !self.kernels[*id].is_empty()).collect(),
        }
    }

    fn next_completion(&self) -> u64 {
        let running = self.running();
        let left = running.iter().filter_map(|id| self.kernels[*id].front()).min();
        left.map_or(u64::MAX, |left| self.now.saturating_add(left.saturating_mul(running.len() as u64)))
    }

    fn advance(&mut self, to: u64) {
        let running = self.running();
        let each = (to - self.now) / (running.len() as u64).max(1);
        self.now = to;
        for id in running {
            let Some(left) = self.kernels[id].front_mut() else { continue };
            let used = each.min(*left);
            *left -= used;
            let done = *left == 0;
            self.sessions[id].used += used;
            self.busy += used;
            if done {
                self.kernels[id].pop_front();
                if let Some(at) = self.order.iter().position(|of| *of == id) {
                    self.order.remove(at);
                }
                self.complete(id);
            }
        }
        for id in std::mem::take(&mut self.held_back) {
            let done = self.sessions[id].program.waits_for;
            if done.is_some_and(|(other, count)| self.sessions[other].completed < count) {
                self.held_back.push(id);
            } else {
                self.complete(id);
            }
        }
    }

    fn complete(&mut self, id: usize) {
        let session = &mut self.sessions[id];
        session.completed += 1;
        // Nobody looks while its thread is in the library's own wait for all work.
        let looks = session.state != State::Waits && session.completed == session.marked;
        let awaited = looks || session.completed == session.submitted;
        if awaited {
            session.runs_at = session.runs_at.min(self.now + SEEN);
        }
    }

    /// A session's thread runs. True: it rings its doorbell.
    fn thread_runs(&mut self, id: usize) -> bool {
        let now = self.now;
        let is_in = self.memory.as_mut().is_none_or(|memory| memory.is_in(id, now));
        let session = &mut self.sessions[id];
        session.runs_at = u64::MAX;
        let is_blocked = session.state == State::Waits && session.completed < session.submitted;
        let mut rings = !is_blocked && session.see_completions(now);
        loop {
            match session.state {
                State::Over => return rings,
                State::Away(until) if until > now => {
                    session.runs_at = until;
                    // It does not come back at once.
                    if session.wanted && session.holder.in_flight() == 0 && until - now > LINGER {
                        session.wanted = false;
                        rings |= session.limits.allowance < ALONE;
                    }
                    return rings;
                }
                State::Away(_) => {
                    if now >= session.program.to || session.latencies.len() as u64 >= session.program.batches {
                        session.state = State::Over;
                        session.wanted = false;
                        return true;
                    }
                    session.began = now;
                    session.state = State::Submits(session.program.batch);
                }
                State::Submits(0) => session.state = State::Waits,
                // The call is not begun.
                State::Submits(_) if !is_in => {
                    rings |= std::mem::take(&mut session.waiting) | std::mem::take(&mut session.wanted);
                    return rings;
                }
                // It has been stopped.
                State::Submits(_) if matches!(session.program.lies, Lie::Waits | Lie::Wants) => return true,
                State::Submits(left) => {
                    session.wanted = true;
                    rings |= std::mem::take(&mut session.parked);
                    match session.holder.verdict(session.limits, now) {
                        Verdict::Submit => {
                            let waited = std::mem::take(&mut session.waiting);
                            session.holder.begin(waited, now);
                            session.holder.submitted(None, now);
                            session.submitted += 1;
                            session.state = State::Submits(left - 1);
                            session.runs_at = now + LAUNCH;
                            if session.holder.wants_mark(session.limits.depth) {
                                session.mark();
                            }
                            rings |= session.ring_if_exhausted(now);
                            match session.program.waits_for {
                                Some(_) => self.held_back.push(id),
                                None => {
                                    self.kernels[id].push_back(session.program.kernel);
                                    self.order.push_back(id);
                                }
                            }
                        }
                        verdict => {
                            session.mark();
                            rings |= session.ring_if_exhausted(now);
                            if verdict == Verdict::Exhausted && !std::mem::replace(&mut session.waiting, true) {
                                rings = true;
                            }
                            session.runs_at = now + 100 * MS;
                        }
                    }
                    return rings;
                }
                State::Waits if is_blocked || session.completed < session.submitted => return rings,
                State::Waits => {
                    session.latencies.push(now - session.began);
                    session.state = State::Away(now + session.program.pause.max(RETURN));
                }
            }
        }
    }

    pub fn used(&self) -> Vec<u64> {
        self.sessions.iter().map(|session| session.used).collect()
    }

    /// Device time that the arbiter charged, by job.
    pub fn charged(&self) -> Vec<u64> {
        self.arbiter.usage().iter().map(|usage| usage.used_ns).collect()
    }

    pub fn is_over(&self, id: usize) -> bool {
        self.sessions[id].state == State::Over
    }

    /// In microseconds, of batches.
    pub fn latency(&self, id: usize, percent: usize) -> u64 {
        let mut all = self.sessions[id].latencies.clone();
        all.sort_unstable();
        all[(all.len() - 1) * percent / 100] / US
    }

    /// The least of what sessions had by their weights, divided by the most.
    pub fn min_max_ratio(&self) -> f64 {
        let normalized = self.sessions.iter().map(|s| s.used as f64 / f64::from(s.program.share.weight));
        let (low, high) = normalized.fold((f64::MAX, 0f64), |(low, high), x| (low.min(x), high.max(x)));
        low / high
    }

    pub fn utilization(&self) -> f64 {
        self.busy as f64 / self.now as f64
    }

    pub fn set_share(&mut self, job: &str, share: Share) {
        self.arbiter.set_share(job, share, self.now);
    }
}

impl Session {
    fn mark(&mut self) {
        let before = self.holder.in_flight();
        let submitted = self.submitted;
        let mut made = false;
        self.holder.mark(|| {
            made = true;
            submitted
        });
        if made {
            self.marked = submitted;
        }
        debug_assert_eq!(before, self.holder.in_flight());
    }

    /// True: the node waits for this.
    fn see_completions(&mut self, now: u64) -> bool {
        let mut seen = false;
        while self.holder.in_flight() > 0 {
            self.mark();
            if self.completed < self.marked || !self.holder.completed(self.marked, now) {
                break;
            }
            seen = true;
        }
        seen && self.holder.in_flight() == 0 && self.limits.allowance < ALONE && self.rang_at == self.limits.allowance
    }

    fn ring_if_exhausted(&mut self, now: u64) -> bool {
        let limit = self.limits.allowance;
        let is = limit < ALONE && self.holder.position(now) >= limit;
        self.position = if is { self.holder.position(now) } else { self.position };
        is && std::mem::replace(&mut self.rang_at, limit) != limit
    }
}

#[path = "simulation_tests.rs"]
mod tests;
