//! The IOTLB's model: conflicts between slices, and working sets that exceed it. Shapes of the model only.

use aviary_card::{Board, Rights, Simulated};
use aviary_fpga::{Mediator, Owner, Settings, nanoseconds};
use aviary_schedule::{RoundRobin, Share};

use crate::common::sharing::{eight_at, read_for_ever};
use crate::common::{
    self, Client, GOLDEN, GUEST, LL_HEAD, MB_BASE, MB_MASK, MB_MODE, MB_READS, MB_STRIDE, place, run, start,
};
use crate::load::{MIB, WARM_UP};
use crate::{Measured, golden, tell};

const GIB: u64 = 1 << 30;
const SET: u64 = 128 * MIB;

/// Line 5.
pub fn conflicts(_quick: bool) -> Measured {
    let without = eight_at(|port| port * 64 * GIB)?;
    let with = eight_at(|port| port * 65 * GIB + port * GIB / 8)?;
    tell("fpga.iotlb.nogap", without);
    tell("fpga.iotlb.gap", with);
    tell("fpga.iotlb.gap_gain", with / without);
    // Two virtual accelerators of each port were made one after the other; the first of each is on its port.
    let fixed = |port: u64| 2 * port * (64 * GIB + SET);
    tell("fpga.iotlb.fixed_gap_16", eight_at(fixed)?);
    let (lines, misses) = sixteen()?;
    tell("fpga.iotlb.placed_16", lines);
    tell("fpga.iotlb.placed_16_misses", misses as f64);
    Some(())
}

/// Sixteen virtual accelerators on eight ports as the mediator places them: lines per cycle, and misses of the IOTLB in turns after
/// each has touched its pages.
fn sixteen() -> Option<(f64, u64)> {
    const TURN: u64 = 400_000;
    let card = common::card("mb8")?;
    let guid = card.description().ports[0].guid.clone();
    let mut mediator = Mediator::new(card, Settings::default(), || Box::new(RoundRobin::equal(nanoseconds(TURN))));
    let client = Client::new(SET);
    for number in 0..16 {
        let port = format!("mb{}", number / 2);
        let owner = Owner { tenant: format!("tenant {number}"), share: Share::default() };
        let id = mediator.open(&guid, owner, |name| name == port).unwrap();
        mediator.set_base(id, GUEST).unwrap();
        mediator.map(id, GUEST, SET, &client.memory, 0, Rights::ReadWrite).unwrap();
        mediator.set_state_address(id, GUEST + SET - 64).unwrap();
        let registers = [(MB_BASE, GUEST), (MB_MASK, SET / 64 - 1), (MB_STRIDE, GOLDEN), (MB_MODE, MB_READS)];
        registers.iter().for_each(|(register, value)| golden::set(&mut mediator, id, *register, *value));
        golden::set(&mut mediator, id, golden::CONTROL, 1);
    }
    let (mut lines, mut cycles, mut misses) = (0, 0, 0);
    for _ in 0..2 {
        // From the middle of a turn on; both of each port have theirs.
        mediator.run(TURN / 2);
        let (began, before) = (mediator.board().now(), mediator.board().statistics());
        mediator.run(TURN / 4);
        let after = mediator.board().statistics();
        lines += after.lines_read - before.lines_read;
        misses += after.tlb_misses - before.tlb_misses;
        cycles += mediator.board().now() - began;
        mediator.run(TURN / 4 + TURN / 16);
    }
    assert_eq!(mediator.board().escaped(), 0);
    Some((lines as f64 / cycles as f64, misses))
}

/// A card whose ports have working sets of so many bytes each, in pages of 2 MB or of 4 KB.
struct WorkingSets {
    card: Simulated,
    client: Client,
    bytes: u64,
    page: u64,
    /// The same memory again and again: the model translates addresses, and does not care about what is behind them.
    part: u64,
    /// Where that begins in the client's: small pages are not where a large one could be.
    shift: u64,
}

impl WorkingSets {
    fn new(image: &str, ports: usize, bytes: u64, huge: bool) -> Option<Self> {
        let mut card = common::card(image)?;
        let part = bytes.min(64 * MIB);
        let (page, shift) = if huge { (2 * MIB, 0) } else { (4096, 4096) };
        let client = Client::new(part + shift);
        for port in 0..ports {
            let base = port as u64 * (65 * GIB + SET);
            for at in (0..bytes).step_by(part as usize) {
                card.map(base + at, &client.memory, shift, part, Rights::Read).unwrap();
            }
            place(&mut card, port, base, 64 * GIB);
        }
        Some(Self { card, client, bytes, page, part, shift })
    }

    /// A list without an end that is in another page with each node, and in all of them before it is in one again. Returns its head.
    fn ring(&self) -> u64 {
        let (pages, own, lines) = (self.bytes / self.page, self.part / self.page, self.page / 64);
        let nodes = pages.max(4096).min(self.part / 64);
        // Nodes in one page of the client's memory have different lines: their numbers differ by multiples of its pages.
        let place = |i: u64| i.wrapping_mul(GOLDEN) % pages * self.page + (i / own).wrapping_mul(GOLDEN) % lines * 64;
        for i in 0..nodes {
            self.client.put(self.shift + place(i) % self.part, &[GUEST + place((i + 1) % nodes), 1]);
        }
        GUEST + place(0)
    }

    /// Lines per cycle of all ports, after so many cycles.
    fn lines_per_cycle(&mut self, warm_up: u64, cycles: u64) -> f64 {
        run(&mut self.card, warm_up);
        let before = self.card.statistics().lines_read;
        run(&mut self.card, cycles);
        assert_eq!(self.card.escaped(), 0);
        (self.card.statistics().lines_read - before) as f64 / cycles as f64
    }
}

/// Calls for each size of the working sets of all ports together, and each number of ports.
fn each_size(quick: bool, mut measure: impl FnMut(usize, u64, bool, &str) -> Measured) -> Measured {
    let ports: &[usize] = if quick { &[8] } else { &[1, 2, 4, 8] };
    let sets = [(true, "2M", [16, 256, 1024, 2048, 4096, 8192]), (false, "4K", [1, 2, 4, 16, 64, 128])];
    for (huge, page, sizes) in sets {
        for size in sizes {
            for count in ports {
                let figure = format!("pages_{page}.{size}MB.{count}");
                measure(*count, size * MIB / *count as u64, huge, &figure)?;
            }
        }
    }
    Some(())
}

/// Figure 5: cycles of a node of LL.
pub fn walks(quick: bool) -> Measured {
    let cycles = if quick { 50_000 } else { 200_000 };
    each_size(quick, |ports, bytes, huge, figure| {
        let mut sets = WorkingSets::new("ll8", ports, bytes, huge)?;
        let head = sets.ring();
        (0..ports).for_each(|port| start(&mut sets.card, port, &[(LL_HEAD, head)]));
        // Each has touched all of its pages, or more than the IOTLB has.
        let warm_up = WARM_UP + (bytes / sets.page).min(1024) * 400;
        let lines = sets.lines_per_cycle(warm_up, cycles);
        tell(&format!("fpga.ll.{figure}"), ports as f64 / lines);
        Some(())
    })
}

/// Line 4, Figure 6: lines per cycle of MB that read at places all over their working sets.
pub fn working_sets(quick: bool) -> Measured {
    let cycles = if quick { 20_000 } else { 100_000 };
    each_size(quick, |ports, bytes, huge, figure| {
        let mut sets = WorkingSets::new("mb8", ports, bytes, huge)?;
        (0..ports).for_each(|port| read_for_ever(&mut sets.card, port, bytes / 64 - 1, GOLDEN));
        tell(&format!("fpga.mb.{figure}"), sets.lines_per_cycle(WARM_UP, cycles));
        Some(())
    })
}
