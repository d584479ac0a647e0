//! Jobs without end of any accelerator that has a golden model, on a port or on a virtual accelerator, and how far they come.

use std::ops::Range;
use std::path::PathBuf;

use aviary_card::monitor::JobState;
use aviary_card::{Board, Monitor, PortDescription, Rights, Simulated};
use aviary_fpga::{Mediator, Owner, ReadAnswer, VirtualId};

use crate::common::{self, Client, GUEST, attach, get, run, start};
use crate::golden::{self, Endless, Places, bytes, words};

pub const MIB: u64 = 1 << 20;
/// Bytes of a client's memory: input, then output in its second half, whose last MB is for state and scratch.
const MEMORY: u64 = 64 * MIB;
const TARGET: u64 = MEMORY / 2;
const SCRATCH: u64 = MEMORY - MIB;
const STATE: u64 = MEMORY - MIB / 2;
const LINES: u64 = (SCRATCH - TARGET) / 64;
/// Cycles until caches of the model and queues of the hardware are full.
pub const WARM_UP: u64 = 20_000;

/// A card with an image that only measurements have: `ports` as in an image's description, and more of its lines.
pub fn generated(name: &str, ports: &str, more: &str) -> Option<Simulated> {
    let folder = golden::root().join("target/bench/fpga");
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join(format!("bench-{name}.toml"));
    let text = format!("summary = \"for measurements\"\naccelerators = [\"{ports}\"]\n{more}\n");
    if std::fs::read_to_string(&file).ok().as_ref() != Some(&text) {
        std::fs::write(&file, text).unwrap();
    }
    eprintln!("  image {name}");
    common::card(file.to_str().unwrap())
}

/// Eight of a kind behind a binary tree of three levels.
pub fn eight(name: &str) -> Option<Simulated> {
    if ["ll", "mb"].contains(&name) {
        return common::card(&format!("{name}8"));
    }
    generated(&format!("{name}-8"), &format!("{name}*8"), "")
}

/// One without a monitor.
pub fn bypass(name: &str) -> Option<Simulated> {
    generated(&format!("{name}-bypass"), name, "bypass = true")
}

pub fn accelerators() -> PathBuf {
    golden::root().join("fpga/accelerators")
}

/// Names of the accelerators that say how far a job without end is, in the order of the image `all`.
pub fn names() -> Option<Vec<String>> {
    let description = common::image("all")?.with_extension("json");
    let ports = aviary_card::ImageDescription::read(&description).unwrap().ports;
    let known = |port: &PortDescription| {
        let job = golden::endless(&accelerators(), &port.name, LINES, GUEST);
        job.is_some_and(|job| job.progress.iter().all(|name| port.registers.contains_key(name)))
    };
    Some(ports.iter().filter(|port| known(port)).map(|port| port.name.clone()).collect())
}

/// A job without end.
pub struct Load {
    kind: PortDescription,
    job: Endless,
}

impl Load {
    pub fn new(kind: &PortDescription) -> Self {
        let job = golden::endless(&accelerators(), &kind.name, LINES, GUEST).expect("it has a golden model");
        Self { kind: kind.clone(), job }
    }

    /// The job for one port's accelerator.
    pub fn of(card: &Simulated, port: usize) -> Self {
        Self::new(&card.description().ports[port])
    }

    fn client(&self) -> Client {
        let client = Client::new(MEMORY);
        client.put(0, &words(&bytes(&self.job.input)));
        client
    }

    fn registers(&self) -> Vec<(u32, u64)> {
        let places = Places { source: GUEST, target: GUEST + TARGET, lines: LINES, scratch: GUEST + SCRATCH };
        golden::registers(&self.kind, &self.job.registers, &self.job.streams, &places)
    }

    fn progress_registers(&self) -> impl Iterator<Item = u32> {
        self.job.progress.iter().map(|name| self.kind.registers[name].at)
    }

    /// Starts it at a port in reset, in the slice `number`: those of eight in a row do not meet in the IOTLB.
    pub fn begin(&self, card: &mut Simulated, port: usize, number: u64) {
        let client = self.client();
        if card.description().bypass {
            card.map(GUEST, &client.memory, 0, MEMORY, Rights::ReadWrite).unwrap();
            Monitor(card).release(0);
        } else {
            attach(card, port, number, &client);
        }
        start(card, port, &self.registers());
    }

    fn progress(&self, card: &mut Simulated, port: usize) -> u64 {
        self.progress_registers().map(|register| get(card, port, register)).sum()
    }

    /// Work per cycle at each of these ports, over about so many cycles: as long at each.
    pub fn rates(&self, card: &mut Simulated, ports: Range<usize>, cycles: u64) -> Vec<f64> {
        let look = |card: &mut Simulated, port| (card.now(), self.progress(card, port));
        let before: Vec<(u64, u64)> = ports.clone().map(|port| look(card, port)).collect();
        run(card, cycles);
        let after: Vec<(u64, u64)> = ports.clone().map(|port| look(card, port)).collect();
        for port in ports {
            assert_eq!(Monitor(card).job(port), JobState::Running, "{} ended", self.kind.name);
        }
        let rate = |((from, done), (to, more)): (&(u64, u64), &(u64, u64))| (more - done) as f64 / (to - from) as f64;
        before.iter().zip(&after).map(rate).collect()
    }

    /// Starts it on a new virtual accelerator at the port of this name.
    pub fn open(&self, mediator: &mut Mediator<Simulated>, owner: Owner, port: &str) -> VirtualId {
        let client = self.client();
        let id = mediator.open(&self.kind.guid, owner, |name| name == port).unwrap();
        mediator.set_base(id, GUEST).unwrap();
        mediator.map(id, GUEST, MEMORY, &client.memory, 0, Rights::ReadWrite).unwrap();
        mediator.set_state_address(id, GUEST + STATE).unwrap();
        for (register, value) in self.registers() {
            golden::set(mediator, id, register, value);
        }
        golden::begin(mediator, id, &self.kind);
        id
    }

    pub fn progress_of(&self, mediator: &mut Mediator<Simulated>, id: VirtualId) -> u64 {
        let mut of = |register| match mediator.read(id, register, 8) {
            Ok(ReadAnswer::Value(value)) => value,
            other => panic!("{other:?}"),
        };
        self.progress_registers().map(&mut of).sum()
    }
}
