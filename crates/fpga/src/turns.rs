//! The order at a port: tenants as a discipline of devices says, and the virtual accelerators of a tenant in turn. Time is the
//! card's, in nanoseconds of its clock.

use std::collections::BTreeMap;

use aviary_schedule::{Charge, Decision, Discipline, JobIndex, Share};

use crate::virtual_accelerator::{Owner, VirtualId};

/// Half nanoseconds that a cycle of the monitor's clock takes: 400 MHz.
const HALF_NANOSECONDS: u64 = 5;
/// Tenants whose history at a port is kept after their last virtual accelerator has gone: one that opens anew all the time must
/// not begin anew.
const REMEMBERED: usize = 256;

/// Device time of so many cycles.
pub fn nanoseconds(cycles: u64) -> u64 {
    cycles.saturating_mul(HALF_NANOSECONDS) / 2
}

fn cycles(nanoseconds: u64) -> u64 {
    nanoseconds.saturating_mul(2) / HALF_NANOSECONDS
}

/// A tenant at a port.
#[derive(Debug)]
struct Job {
    tenant: String,
    share: Share,
    members: Vec<VirtualId>,
    /// The member that had the tenant's last turn.
    last: VirtualId,
    /// The discipline knows that it wants the port.
    wants: bool,
    /// Cycles that its jobs ran, over all members.
    cycles: u64,
}

/// The use of a port by a tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortUse {
    pub tenant: String,
    pub share: Share,
    /// Device time in which its jobs ran.
    pub used_ns: u64,
    pub members: Vec<VirtualId>,
}

/// The order of a port's virtual accelerators.
#[derive(Debug)]
pub struct PortOrder {
    discipline: Box<dyn Discipline>,
    jobs: Vec<Job>,
    job_of: BTreeMap<VirtualId, JobIndex>,
}

impl PortOrder {
    pub fn new(discipline: Box<dyn Discipline>) -> PortOrder {
        PortOrder { discipline, jobs: Vec::new(), job_of: BTreeMap::new() }
    }

    /// Another discipline from now on, which begins without a history.
    pub fn replace(&mut self, discipline: Box<dyn Discipline>) {
        self.discipline = discipline;
        for (index, job) in self.jobs.iter_mut().enumerate() {
            job.wants = false;
            self.discipline.set_share(index, job.share);
        }
    }

    pub fn enter(&mut self, id: VirtualId, owner: &Owner) {
        let known = self.jobs.iter().position(|job| job.tenant == owner.tenant);
        let index = known.unwrap_or_else(|| {
            let new = Job {
                tenant: owner.tenant.clone(),
                share: owner.share,
                members: Vec::new(),
                last: 0,
                wants: false,
                cycles: 0,
            };
            let idle = self.jobs.iter().position(|job| job.members.is_empty());
            match idle.filter(|_| self.jobs.len() >= REMEMBERED) {
                Some(index) => {
                    self.jobs[index] = new;
                    index
                }
                None => {
                    self.jobs.push(new);
                    self.jobs.len() - 1
                }
            }
        });
        self.jobs[index].members.push(id);
        self.jobs[index].share = owner.share;
        self.discipline.set_share(index, owner.share);
        self.job_of.insert(id, index);
    }

    pub fn leave(&mut self, id: VirtualId) {
        if let Some(index) = self.job_of.remove(&id) {
            self.jobs[index].members.retain(|member| *member != id);
        }
    }

    pub fn set_share(&mut self, tenant: &str, share: Share) {
        if let Some(index) = self.jobs.iter().position(|job| job.tenant == tenant) {
            self.jobs[index].share = share;
            self.discipline.set_share(index, share);
        }
    }

    /// Cycles in which the virtual accelerator's job ran. `now`: cycles of the card's clock.
    pub fn charge(&mut self, id: VirtualId, ran: u64, now: u64) {
        let Some(index) = self.job_of.get(&id).copied() else { return };
        self.jobs[index].cycles += ran;
        let used = nanoseconds(ran);
        self.discipline.charge(index, Charge { used, held: used, calls: 0 }, nanoseconds(now));
    }

    /// The next of `waiting`, while none has the port, and the length of its turn in cycles. `None`: none waits.
    pub fn next(&mut self, waiting: &[VirtualId], now: u64) -> Option<(VirtualId, u64)> {
        let now = nanoseconds(now);
        let mut wanting: Vec<JobIndex> = waiting.iter().filter_map(|id| self.job_of.get(id).copied()).collect();
        wanting.sort_unstable();
        wanting.dedup();
        for (index, job) in self.jobs.iter_mut().enumerate() {
            let wants = wanting.binary_search(&index).is_ok();
            match (std::mem::replace(&mut job.wants, wants), wants) {
                (false, true) => self.discipline.enqueue(index, now),
                (true, false) => self.discipline.dequeue(index),
                _ => {}
            }
        }
        let first = wanting.first().copied()?;
        // Disciplines that let a port stand idle are not for cards: the clock would stand still with it.
        let (index, turn) = match self.discipline.pick(&wanting, now) {
            Decision::Grant(index, turn) if wanting.contains(&index) => (index, turn),
            _ => (first, 0),
        };
        let job = &mut self.jobs[index];
        let own = || waiting.iter().copied().filter(|id| job.members.contains(id));
        let id = own().filter(|id| *id > job.last).min().or_else(|| own().min())?;
        job.last = id;
        Some((id, cycles(turn).max(1)))
    }

    /// One of `waiting` goes before `resident` whatever is left of its turn.
    pub fn ends_turn(&self, resident: VirtualId, waiting: &[VirtualId]) -> bool {
        let share = |id: &VirtualId| self.job_of.get(id).map(|index| self.jobs[*index].share);
        let Some(present) = share(&resident) else { return false };
        waiting.iter().filter_map(share).any(|other| self.discipline.may_precede(present, other))
    }

    /// By tenant; those whose last virtual accelerator has gone, too.
    pub fn uses(&self) -> Vec<PortUse> {
        let of = |job: &Job| PortUse {
            tenant: job.tenant.clone(),
            share: job.share,
            used_ns: nanoseconds(job.cycles),
            members: job.members.clone(),
        };
        self.jobs.iter().map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aviary_schedule::{Fair, RoundRobin};

    fn owner(tenant: &str, weight: u32) -> Owner {
        Owner { tenant: tenant.into(), share: Share { weight, ..Share::default() } }
    }

    /// Turns that each of the waiting ones has.
    fn turns(order: &mut PortOrder, waiting: &[VirtualId], count: usize) -> BTreeMap<VirtualId, u64> {
        let mut had = BTreeMap::new();
        for _ in 0..count {
            let (id, turn) = order.next(waiting, 0).unwrap();
            order.charge(id, turn, 0);
            *had.entry(id).or_default() += 1;
        }
        had
    }

    #[test]
    fn each_has_its_turn() {
        let mut order = PortOrder::new(Box::new(RoundRobin::equal(nanoseconds(1000))));
        assert_eq!(order.next(&[], 0), None);
        for (id, tenant) in [(3, "a"), (5, "b"), (7, "c")] {
            order.enter(id, &owner(tenant, 1));
        }
        assert_eq!(order.next(&[3, 5, 7], 0).unwrap().1, 1000);
        assert_eq!(turns(&mut order, &[3, 5, 7], 30), [(3, 10), (5, 10), (7, 10)].into());
    }

    #[test]
    fn weights_are_tenants_however_many_clients_they_have() {
        let mut order = PortOrder::new(Box::new(Fair::new(nanoseconds(1000))));
        order.enter(1, &owner("one", 1));
        (2..=4).for_each(|id| order.enter(id, &owner("two", 2)));
        let had = turns(&mut order, &[1, 2, 3, 4], 900);
        assert!((299..=301).contains(&had[&1]), "{had:?}");
        assert!((2..=4).all(|id| (199..=201).contains(&had[&id])), "{had:?}");
        order.set_share("two", Share { weight: 1, ..Share::default() });
        let had = turns(&mut order, &[1, 2, 3, 4], 600);
        assert!((299..=301).contains(&had[&1]), "{had:?}");
    }

    #[test]
    fn tenant_that_comes_again_does_not_begin_anew() {
        let mut order = PortOrder::new(Box::new(Fair::new(nanoseconds(1000))));
        order.enter(1, &owner("a", 1));
        order.enter(2, &owner("b", 1));
        let mut had = [0_u64; 2];
        for id in 10..1010 {
            // It opens a new one for each turn.
            order.enter(id, &owner("a", 1));
            let (next, turn) = order.next(&[2, id], 0).unwrap();
            order.charge(next, turn, 0);
            had[usize::from(next == 2)] += 1;
            order.leave(id);
        }
        assert!(had[1] >= 499, "{had:?}");
        assert_eq!(order.uses().len(), 2);
        assert_eq!(order.uses()[0].used_ns, nanoseconds(1000 * had[0]));
    }

    #[test]
    fn idle_time_earns_no_turns() {
        let mut order = PortOrder::new(Box::new(Fair::new(nanoseconds(1000))));
        order.enter(1, &owner("a", 1));
        order.enter(2, &owner("b", 1));
        turns(&mut order, &[1], 100);
        let had = turns(&mut order, &[1, 2], 20);
        // Two turns are made up for at most.
        assert!((10..=12).contains(&had[&2]), "{had:?}");
    }

    #[test]
    fn higher_priority_ends_a_turn() {
        let mut order = PortOrder::new(Box::new(RoundRobin::by_priority(1000)));
        order.enter(1, &owner("low", 1));
        order.enter(2, &Owner { tenant: "high".into(), share: Share { priority: 1, ..Share::default() } });
        assert!(order.ends_turn(1, &[2]) && !order.ends_turn(2, &[1]));
        order.replace(Box::new(Fair::new(1000)));
        assert!(!order.ends_turn(1, &[2]));
        assert!(order.next(&[1, 2], 0).is_some());
    }

    #[test]
    fn tenants_of_the_past_are_bounded() {
        let mut order = PortOrder::new(Box::new(Fair::new(1000)));
        for id in 0..3 * REMEMBERED as u64 {
            order.enter(id, &owner(&format!("tenant {id}"), 1));
            order.next(&[id], 0);
            order.leave(id);
        }
        assert_eq!(order.uses().len(), REMEMBERED);
    }
}
