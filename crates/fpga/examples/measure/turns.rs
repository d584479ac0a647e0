//! Virtual accelerators that take turns at a port: the cost of a switch, and running cycles against what is due.

use aviary_card::{Board, Simulated};
use aviary_fpga::{Mediator, Owner, Settings, USUAL_TURN, VirtualId, nanoseconds};
use aviary_schedule::{Discipline, Fair, RoundRobin, Share};

use crate::load::{Load, WARM_UP, eight, generated, names};
use crate::{Measured, tell};

type Made = Box<dyn Discipline>;

/// Cycles between two looks at what has happened.
const STEP: u64 = 100;
/// Cycles of a turn in which the cost of a switch is measured.
const SHORT_TURN: u64 = 30_000;

fn owner(number: usize, share: Share) -> Owner {
    Owner { tenant: format!("tenant {number}"), share }
}

fn preemptions(mediator: &Mediator<Simulated>, ids: &[VirtualId]) -> u64 {
    ids.iter().map(|id| mediator.figures(*id).map_or(0, |figures| figures.preemptions)).sum()
}

/// Runs until there were so many switches in all.
fn run_until(mediator: &mut Mediator<Simulated>, ids: &[VirtualId], switches: u64) {
    while preemptions(mediator, ids) < switches {
        mediator.run(STEP);
    }
}

/// Virtual accelerators with jobs without end at the first port of a card.
struct Sharers {
    mediator: Mediator<Simulated>,
    load: Load,
    ids: Vec<VirtualId>,
}

impl Sharers {
    fn new(card: Simulated, shares: &[Share], discipline: impl Fn() -> Made) -> Self {
        let load = Load::of(&card, 0);
        let port = format!("{}0", card.description().ports[0].name);
        let mut mediator = Mediator::new(card, Settings::default(), discipline);
        let open = |(number, share): (usize, &Share)| load.open(&mut mediator, owner(number, *share), &port);
        let ids = shares.iter().enumerate().map(open).collect();
        Self { mediator, load, ids }
    }

    /// The clock, and the work of all.
    fn look(&mut self) -> (u64, u64) {
        let now = self.mediator.board().now();
        (now, self.ids.iter().map(|id| self.load.progress_of(&mut self.mediator, *id)).sum())
    }
}

/// Work per cycle of a job that is alone.
fn alone(name: &str, cycles: u64) -> Option<f64> {
    let mut one = Sharers::new(eight(name)?, &[Share::default()], || Box::new(RoundRobin::equal(1)));
    one.mediator.run(WARM_UP);
    let (from, before) = one.look();
    one.mediator.run(cycles);
    let (to, after) = one.look();
    Some((after - before) as f64 / (to - from) as f64)
}

/// Cycles of work that a switch costs: saving, the time between two owners, loading, and until the pipelines are full again.
fn cost(name: &str, rate: f64, sharers: usize, turn: u64, switches: u64) -> Option<f64> {
    let discipline = || -> Made { Box::new(RoundRobin::equal(nanoseconds(turn))) };
    let mut all = Sharers::new(eight(name)?, &vec![Share::default(); sharers], discipline);
    // Each begins once, and is resumed from then on.
    let first = sharers as u64 + 1;
    // In the middle of a turn: a job whose state is still being loaded says that it has done nothing.
    let mut look = |switches| {
        run_until(&mut all.mediator, &all.ids, switches);
        all.mediator.run(turn / 2);
        all.look()
    };
    let (from, before) = look(first);
    let (to, after) = look(first + switches);
    assert_eq!(all.mediator.board().escaped(), 0);
    Some(((to - from) as f64 - (after - before) as f64 / rate) / switches as f64)
}

/// Line 7, Figure 8.
pub fn switches(quick: bool) -> Measured {
    let count = if quick { 16 } else { 48 };
    for name in names()? {
        let rate = alone(&name, if quick { 100_000 } else { 400_000 })?;
        let usual = USUAL_TURN as f64;
        let micro = ["ll", "mb"].contains(&name.as_str());
        let several: &[usize] = match (quick, micro) {
            (true, _) => &[2],
            (false, true) => &[2, 4, 8, 16],
            (false, false) => &[2, 16],
        };
        for sharers in several {
            let cost = cost(&name, rate, *sharers, SHORT_TURN, count)?;
            if *sharers == 2 {
                tell(&format!("fpga.{name}.switch_cycles"), cost);
            }
            tell(&format!("fpga.{name}.temporal.{sharers}"), cost / (usual + cost));
        }
        if micro && !quick {
            let cost = cost(&name, rate, 2, USUAL_TURN, 4)?;
            tell(&format!("fpga.{name}.temporal.10ms"), cost / (usual + cost));
        }
    }
    Some(())
}

/// A discipline, the shares of those who take turns, and how many turns make a round.
struct Policy {
    name: &'static str,
    share: fn(usize) -> Share,
    discipline: fn(u64) -> Made,
    /// The weight of a turn: 1 where all turns are as long.
    turns: fn(&[Share]) -> u64,
}

fn weight(number: usize) -> Share {
    Share { weight: number as u32 % 4 + 1, ..Share::default() }
}

const POLICIES: [Policy; 4] = [
    Policy {
        name: "round-robin",
        share: |_| Share { weight: 1, ..Share::default() },
        discipline: |turn| Box::new(RoundRobin::equal(turn)),
        turns: |shares| shares.len() as u64,
    },
    Policy {
        name: "slices",
        share: weight,
        discipline: |turn| Box::new(RoundRobin::weighted(turn)),
        turns: |shares| shares.len() as u64,
    },
    Policy {
        name: "priority",
        // Every second one is above the others, who wait.
        share: |number| Share { weight: 1, priority: (number % 2) as i32, ..Share::default() },
        discipline: |turn| Box::new(RoundRobin::by_priority(turn)),
        turns: |shares| shares.len() as u64 / 2,
    },
    Policy {
        name: "fair",
        share: weight,
        discipline: |turn| Box::new(Fair::new(turn)),
        turns: |shares| shares.iter().map(|share| u64::from(share.weight)).sum(),
    },
];

/// Running cycles of each against what is due after whole rounds, relative; of one to whom nothing is due, against all cycles.
fn errors(policy: &Policy, sharers: usize, turn: u64, rounds: u64) -> Option<Vec<f64>> {
    let shares: Vec<Share> = (0..sharers).map(policy.share).collect();
    let card = generated("ll-1", "ll", "")?;
    let mut all = Sharers::new(card, &shares, || (policy.discipline)(nanoseconds(turn)));
    let turns = (policy.turns)(&shares);
    // The one that is alone at the top is never preempted.
    if turns == 1 {
        all.mediator.run(rounds * turn);
    } else {
        run_until(&mut all.mediator, &all.ids, rounds * turns);
    }
    let ran: Vec<f64> = all.ids.iter().map(|id| all.mediator.status(*id).unwrap().cycles as f64).collect();
    let top = shares.iter().map(|share| share.priority).max().unwrap_or(0);
    let due = |share: &Share| if share.priority == top { f64::from(share.weight) } else { 0.0 };
    let (cycles, whole) = (ran.iter().sum::<f64>(), shares.iter().map(due).sum::<f64>());
    let error = |(ran, share): (&f64, &Share)| match due(share) {
        0.0 => ran / cycles,
        due => (ran / cycles * whole / due - 1.0).abs(),
    };
    Some(ran.iter().zip(&shares).map(error).collect())
}

/// Line 8.
pub fn slices(quick: bool) -> Measured {
    /// How many, and cycles of a turn: 1 ms and 10 ms.
    const EXPERIMENTS: [(usize, u64); 5] = [(2, 400_000), (4, 400_000), (8, 400_000), (16, 400_000), (4, USUAL_TURN)];
    let experiments = if quick { &EXPERIMENTS[..2] } else { &EXPERIMENTS[..] };
    for policy in &POLICIES {
        let mut all = Vec::new();
        for (sharers, turn) in experiments {
            eprintln!("  {} of {sharers}, turns of {turn} cycles", policy.name);
            all.extend(errors(policy, *sharers, *turn, 2)?);
        }
        let name = policy.name;
        tell(&format!("fpga.slices.{name}.mean_error"), all.iter().sum::<f64>() / all.len() as f64);
        tell(&format!("fpga.slices.{name}.worst_error"), all.iter().copied().fold(0.0, f64::max));
    }
    Some(())
}
