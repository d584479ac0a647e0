//! The order of virtual accelerators at a port, and the length of their turns in device cycles.

use std::collections::HashMap;
use std::fmt;

use crate::VirtualId;

/// Decides about turns. Pure bookkeeping in device cycles.
pub trait Turns: fmt::Debug + Send {
    /// A virtual accelerator is there, with a weight of at least 1.
    fn enter(&mut self, id: VirtualId, weight: u32);
    fn leave(&mut self, id: VirtualId);
    /// A virtual accelerator that did not wait does so from now on.
    fn enqueue(&mut self, id: VirtualId);
    /// Cycles in which the virtual accelerator's job ran.
    fn charge(&mut self, id: VirtualId, cycles: u64);
    /// The next of `waiting`, which is not empty.
    fn next(&mut self, waiting: &[VirtualId]) -> VirtualId;
}

/// Each in turn.
#[derive(Debug, Default)]
pub struct RoundRobin {
    last: VirtualId,
}

impl Turns for RoundRobin {
    fn enter(&mut self, _id: VirtualId, _weight: u32) {}
    fn leave(&mut self, _id: VirtualId) {}
    fn enqueue(&mut self, _id: VirtualId) {}
    fn charge(&mut self, _id: VirtualId, _cycles: u64) {}

    fn next(&mut self, waiting: &[VirtualId]) -> VirtualId {
        let behind = waiting.iter().filter(|id| **id > self.last).min();
        self.last = behind.or(waiting.iter().min()).copied().unwrap_or_default();
        self.last
    }
}

/// By weight: the least served for its weight is next. What was idle gets no credit for it.
#[derive(Debug, Default)]
pub struct Fair {
    served: HashMap<VirtualId, Served>,
    /// Virtual time of the latest turn's owner when it began. It never falls.
    floor: u64,
}

#[derive(Debug, Clone, Copy)]
struct Served {
    weight: u32,
    /// Cycles times [`SCALE`], divided by the weight.
    virtual_time: u64,
}

/// Keeps the fraction of a division by the weight.
const SCALE: u64 = 1024;

impl Turns for Fair {
    fn enter(&mut self, id: VirtualId, weight: u32) {
        self.served.insert(id, Served { weight: weight.max(1), virtual_time: self.floor });
    }

    fn leave(&mut self, id: VirtualId) {
        self.served.remove(&id);
    }

    fn enqueue(&mut self, id: VirtualId) {
        let floor = self.floor;
        if let Some(served) = self.served.get_mut(&id) {
            served.virtual_time = served.virtual_time.max(floor);
        }
    }

    fn charge(&mut self, id: VirtualId, cycles: u64) {
        if let Some(served) = self.served.get_mut(&id) {
            served.virtual_time += cycles * SCALE / u64::from(served.weight);
        }
    }

    fn next(&mut self, waiting: &[VirtualId]) -> VirtualId {
        let least = waiting.iter().map(|id| (self.served.get(id).map_or(0, |served| served.virtual_time), *id)).min();
        let (time, id) = least.unwrap_or_default();
        self.floor = self.floor.max(time);
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_robin_takes_each_in_turn() {
        let mut turns = RoundRobin::default();
        let order: Vec<VirtualId> = (0..5).map(|_| turns.next(&[7, 3, 5])).collect();
        assert_eq!(order, [3, 5, 7, 3, 5]);
        assert_eq!(turns.next(&[3, 7]), 7);
    }

    #[test]
    fn fair_turns_follow_weights() {
        let mut turns = Fair::default();
        for (id, weight) in [(1, 1), (2, 2), (3, 3)] {
            turns.enter(id, weight);
        }
        let mut cycles = [0; 4];
        for _ in 0..6000 {
            let id = turns.next(&[1, 2, 3]);
            turns.charge(id, 1000);
            cycles[id as usize] += 1;
        }
        assert_eq!(cycles.map(|count: i32| (count + 5) / 10 * 10), [0, 1000, 2000, 3000]);
    }

    #[test]
    fn idle_time_earns_no_turns() {
        let mut turns = Fair::default();
        turns.enter(1, 1);
        turns.enter(2, 1);
        for _ in 0..100 {
            assert_eq!(turns.next(&[1]), 1);
            turns.charge(1, 1000);
        }
        turns.enqueue(2);
        let order: Vec<VirtualId> = (0..4)
            .map(|_| {
                let id = turns.next(&[1, 2]);
                turns.charge(id, 1000);
                id
            })
            .collect();
        assert_eq!(order.iter().filter(|id| **id == 2).count(), 2, "{order:?}");
    }
}
