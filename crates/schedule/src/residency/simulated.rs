//! The memory of simulated programs on a device that is too small for all of it, on the clock of the simulation.

use super::*;

const MS: u64 = 1_000_000;
const PATIENCE: Patience = Patience { room: 10_000 * MS, leave: 30_000 * MS };
/// Bytes that the bus carries in a nanosecond, each way.
const RATE: u64 = 55;
/// A session whose work is not done within this time stays.
const DRAIN: u64 = 100 * MS;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Until then its work must be done; so many bytes leave then.
    Drains(u64, u64),
    Leaves(u64, u64),
    Returns(u64),
}

/// What the node knows of the programs' memory, and what is on its way.
#[derive(Debug)]
pub(crate) struct Memory {
    residency: Residency,
    bytes: u64,
    ways: Vec<Option<Way>>,
    submitted: Vec<u64>,
    pub exchanges: u64,
}

impl Memory {
    /// Each of `count` programs of tenants of its own has so many bytes of a device with `memory`.
    pub fn new(tenants: &[(&str, u32)], bytes: u64, memory: u64) -> Memory {
        let count = tenants.len();
        let mut residency = Residency::new(PATIENCE);
        residency.add_device(DeviceMemory { memory, most: bytes * count as u64 });
        let (ways, submitted) = (vec![None; count], vec![0; count]);
        let mut made = Memory { residency, bytes, ways, submitted, exchanges: 0 };
        for (session, (tenant, weight)) in (0..).zip(tenants) {
            made.residency.set_claim(tenant, Claim { weight: *weight, guarantee: 0 });
            made.residency.enter(session, tenant, 0);
            // As if it had been given all before: those for which there is no room are out.
            let member = made.residency.members.entry(session);
            let is_in = bytes * (session + 1) <= memory;
            member.and_modify(|member| {
                member.held.insert(0, bytes);
                if !is_in {
                    member.place = Place::Out;
                }
            });
        }
        made
    }

    /// False: its next call waits for its memory.
    pub fn is_in(&mut self, id: usize, now: u64) -> bool {
        let is_in = self.residency.place(id as u64) == Some(Place::In);
        if !is_in {
            self.residency.want(id as u64, now);
        }
        is_in
    }

    /// When something happens next.
    pub fn next(&self, now: u64) -> u64 {
        let ways = self.ways.iter().flatten().map(|way| match way {
            Way::Drains(at, _) | Way::Leaves(at, _) | Way::Returns(at) => *at,
        });
        ways.chain(self.residency.next_look(now)).filter(|at| *at > now).min().unwrap_or(u64::MAX)
    }

    /// `submitted`: kernels of each session up to now; `idle`: whether none of them is on the device;
    /// `waits`: for its turn; `used`: device time of each.
    /// Answers who goes on.
    pub fn step(&mut self, submitted: &[u64], idle: &[bool], waits: &[bool], used: &[u64], now: u64) -> Vec<usize> {
        let mut goes_on = Vec::new();
        for id in 0..self.ways.len() {
            let session = id as u64;
            match self.ways[id] {
                Some(Way::Drains(_, bytes)) if idle[id] => self.ways[id] = Some(Way::Leaves(now + bytes / RATE, bytes)),
                Some(Way::Drains(until, _)) if until <= now => {
                    self.residency.stayed(session, now).unwrap();
                    self.ways[id] = None;
                    goes_on.push(id);
                }
                Some(Way::Leaves(at, bytes)) if at <= now => {
                    let rest = self.residency.members[&session].occupies(0) - bytes;
                    self.residency.left(session, &[(0, bytes)], Some(rest), now).unwrap();
                    self.ways[id] = None;
                    // Its program calls at once.
                    self.residency.want(session, now);
                }
                Some(Way::Returns(at)) if at <= now => {
                    self.residency.back(session, now).unwrap();
                    self.ways[id] = None;
                    goes_on.push(id);
                }
                _ => {}
            }
            let active = std::mem::replace(&mut self.submitted[id], submitted[id]) != submitted[id];
            let tenant = self.residency.members[&session].tenant.clone();
            self.residency.note_used(&tenant, used[id]);
            self.residency.note_activity(session, active, waits[id], now);
        }
        for order in self.residency.decide(now) {
            let (session, way) = match order {
                Order::Evict { session, part } if self.residency.place(session) == Some(Place::GoingFurther) => {
                    let bytes = part.unwrap_or(self.residency.members[&session].occupies(0));
                    (session, Way::Leaves(now + bytes / RATE, bytes))
                }
                Order::Evict { session, part } => (session, Way::Drains(now + DRAIN, part.unwrap_or(self.bytes))),
                Order::Return { session } => {
                    let kept = self.residency.members[&session].kept.get(&0).copied().unwrap_or(0);
                    (session, Way::Returns(now + (self.bytes - kept) / RATE))
                }
                Order::Grant { .. } | Order::Refuse { .. } => panic!("nobody asked"),
                Order::Credit { .. } => panic!("nobody leaves in parts"),
            };
            self.exchanges += 1;
            self.ways[session as usize] = Some(way);
        }
        assert!(self.residency.occupied(0) <= self.residency.devices[0].memory);
        goes_on
    }
}
