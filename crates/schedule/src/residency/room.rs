//! Room on the devices, while the arbiter gives it out.

use std::collections::BTreeMap;

#[derive(Debug)]
pub struct Room {
    free: Vec<u64>,
    /// What sessions on their way out give up, if nobody waits for it.
    coming: Vec<u64>,
}

impl Room {
    /// `free`: of each device.
    pub fn new(free: Vec<u64>) -> Room {
        let coming = vec![0; free.len()];
        Room { free, coming }
    }

    pub fn free_on(&self, device: usize) -> u64 {
        self.free.get(device).copied().unwrap_or(0)
    }

    pub fn comes_free(&mut self, leaves: &BTreeMap<usize, u64>) {
        for (device, bytes) in leaves {
            self.coming[*device] = self.coming[*device].saturating_add(*bytes);
        }
    }

    pub fn has(&self, need: &BTreeMap<usize, u64>) -> bool {
        need.iter().all(|(device, bytes)| self.free[*device] >= *bytes)
    }

    /// Free room first, then what comes free.
    pub fn take(&mut self, need: &BTreeMap<usize, u64>) {
        for (device, bytes) in need {
            let now = self.free[*device].min(*bytes);
            self.free[*device] -= now;
            self.coming[*device] = self.coming[*device].saturating_sub(bytes - now);
        }
    }

    pub fn lacking(&self, need: &BTreeMap<usize, u64>) -> BTreeMap<usize, u64> {
        let lacks = |(device, bytes): (&usize, &u64)| {
            let there = self.free[*device].saturating_add(self.coming[*device]);
            Some((*device, bytes.checked_sub(there).filter(|bytes| *bytes > 0)?))
        };
        need.iter().filter_map(lacks).collect()
    }
}
