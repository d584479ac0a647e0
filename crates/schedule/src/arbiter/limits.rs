//! What the members of a job may do now, and when waiting ones are let in without a turn.

use super::{Arbiter, RECENT_NS, Relief, Settings, Slots};
use crate::discipline::JobIndex;
use crate::holder::{ALONE, Limits, UNKNOWN_END};
use crate::job::{Demand, Member, MemberId};
use crate::split::DeviceKind;

/// Nanoseconds of work that a job may have in flight while no other job used the device within [`RECENT_NS`]. A
/// newcomer waits that long, once. Less than 10 ms costs programs with large batches throughput (0.90 of native).
const AHEAD_NS: u64 = 20_000_000;
/// Nanoseconds of overdue work after which waiting members of the same job are let in, as the work may wait for
/// theirs; again after twice as long each time.
const RELIEF_NS: u64 = 20_000_000;

impl Arbiter {
    /// Writes what the members of the turn's job may do now.
    pub(super) fn write(&mut self, now: u64, slots: &mut dyn Slots) {
        let Some(turn) = &self.turn else { return };
        let (job, left, over) = (turn.job, turn.left(), turn.over.is_some());
        let (others, _) = self.candidates(Some(job), now);
        let alone = others.is_empty() && self.jobs[job].cap.is_none();
        let depth = self.depth(job, alone, now);
        let relieved = self.relief.as_ref().is_some_and(|relief| relief.job == job);
        let blind = self.is_blind();
        for id in self.jobs[job].members.clone() {
            let Some(member) = self.member(id) else { continue };
            if alone || blind {
                self.allow(id, Limits { allowance: ALONE, depth }, now, slots);
            } else if !over && member.active {
                let allowance = member.busy(now).saturating_add(left).min(ALONE - 1);
                self.allow(id, Limits { allowance, depth }, now, slots);
            } else if !relieved {
                self.withdraw(id, now, slots);
            }
        }
    }

    /// Work that is overdue may wait for work of another member of the same job, or of another
    /// thread: those that wait are let in, although the job has no turn. The result is when to let them in again.
    pub(super) fn relieve(&mut self, now: u64, slots: &mut dyn Slots) -> Option<u64> {
        let in_flight = self.admitted.iter().copied().filter(|job| self.jobs[*job].now.in_flight);
        let first = match self.settings.kind {
            DeviceKind::Exclusive => self.admitted.first().copied(),
            DeviceKind::Preemptive => in_flight.min_by_key(|job| self.jobs[*job].progress_at),
        };
        let runs = |job| self.turn.as_ref().is_some_and(|turn| turn.job == job && turn.over.is_none());
        let demand = first.map_or(Demand::default(), |first| self.jobs[first].now);
        let stuck = first.filter(|first| demand.in_flight && demand.waiting && !runs(*first) && !self.is_blind());
        if let Some(Relief { job, .. }) = self.relief.take_if(|relief| Some(relief.job) != stuck)
            && !runs(job)
        {
            self.jobs[job].members.clone().into_iter().for_each(|id| self.withdraw(id, now, slots));
        }
        let job = stuck?;
        let expected = if demand.drains_at == UNKNOWN_END { now } else { demand.drains_at };
        let relief = self.relief.get_or_insert(Relief { job, since: now.max(expected), count: 0 });
        let due = |count| relief.since.saturating_add(RELIEF_NS.saturating_mul(2u64.saturating_pow(count)));
        if due(relief.count) > now {
            return Some(due(relief.count));
        }
        let again = due(relief.count + 1);
        relief.count += 1;
        for id in self.jobs[job].members.clone() {
            let Some(member) = self.member(id).filter(|member| member.report.waiting) else { continue };
            // Its position may be estimated to be beyond what has passed.
            let position = member.busy(now).max(member.report.position);
            let allowance = position.saturating_add(self.settings.quantum).min(ALONE - 1);
            self.allow(id, Limits { allowance, depth: u64::MAX }, now, slots);
        }
        Some(again)
    }

    pub(super) fn allow(&mut self, id: MemberId, limits: Limits, now: u64, slots: &mut dyn Slots) {
        let Some(Some(member)) = self.members.get_mut(id) else { return };
        if member.limits != limits {
            let opens = limits.allowance > member.limits.allowance || limits.depth > member.limits.depth;
            member.limits = limits;
            slots.set_limits(id, limits, opens, now);
        }
    }

    /// The member may submit nothing more.
    pub(super) fn withdraw(&mut self, id: MemberId, now: u64, slots: &mut dyn Slots) {
        let Some(member) = self.member(id) else { return };
        let limits = Limits { allowance: member.busy(now).min(member.limits.allowance), ..member.limits };
        self.allow(id, limits, now, slots);
    }

    /// Nanoseconds of work that a job may have in flight.
    fn depth(&self, job: JobIndex, alone: bool, now: u64) -> u64 {
        let Settings { kind, quantum, latency, .. } = self.settings;
        let latency = if latency == 0 { quantum } else { latency };
        let share = self.jobs[job].share;
        let preceded = self.foremost.is_some_and(|other| self.discipline.may_precede(share, other));
        let others_come = self.recent.iter().any(|(other, at)| *other != job && *at > 0 && now < at + RECENT_NS);
        match kind {
            _ if self.is_blind() => u64::MAX,
            DeviceKind::Preemptive if others_come || !alone => latency,
            DeviceKind::Exclusive if preceded => latency,
            DeviceKind::Exclusive if others_come || !alone => quantum,
            _ => AHEAD_NS,
        }
    }

    /// Members that want nothing are not looked at until their doorbells ring. On a device that preempts they keep what
    /// they were allowed, so that a program that comes back waits for nothing; it is compared with the holder then.
    pub(super) fn park_idle_members(&mut self, now: u64, slots: &mut dyn Slots) {
        for at in (0..self.active.len()).rev() {
            let id = self.active[at];
            if !self.member(id).is_some_and(Member::is_idle) {
                continue;
            }
            slots.park(id);
            let report = slots.report(id);
            let Some(Some(member)) = self.members.get_mut(id) else { continue };
            // Its work meanwhile counts with the next look.
            if member.silent || !report.waiting && !report.wanted && report.busy_since == 0 {
                member.active = false;
                self.active.swap_remove(at);
                let exclusive = self.settings.kind == DeviceKind::Exclusive;
                if exclusive && self.turn.as_ref().map(|turn| turn.job) != self.member(id).map(|m| m.job) {
                    self.withdraw(id, now, slots);
                }
            }
        }
    }
}
