//! Virtual accelerators of a simulated card: results, shares, switches, and clients that do wrong. All times are device cycles.

use crate::common::{
    self, Client, GOLDEN, GUEST, LL_HEAD, LL_SUM, LL_VISITED, MB_BASE, MB_COUNT, MB_HASH, MB_LINES, MB_MASK, MB_MODE,
    MB_READS, MB_STRIDE,
};
use aviary_card::{Board, Rights, Simulated};
use aviary_fpga::{
    Error, Failure, MappingError, Mediator, Owner, Phase, ReadAnswer, SLICE_BYTES, Settings, VirtualId, WriteAnswer,
    nanoseconds,
};
use aviary_schedule::{Fair, RoundRobin, Share};

const LL: &str = "6c6c0001-4a5e-4f0a-9d1b-2f4f0c110002";
const MB: &str = "6d620001-4a5e-4f0a-9d1b-2f4f0c110001";
const STUCK: &str = "73747563-4a5e-4f0a-9d1b-2f4f0c1100ff";
const CONTROL: u32 = 0x18;
const MIB: u64 = 1 << 20;
const SETTINGS: Settings = Settings { save_timeout: 50_000 };

fn mediator(image: &str, quantum: u64) -> Option<Mediator<Simulated>> {
    let discipline = || -> Box<dyn aviary_schedule::Discipline> { Box::new(Fair::new(nanoseconds(quantum))) };
    Some(Mediator::new(common::card(image)?, SETTINGS, discipline))
}

/// Each client is a tenant of its own.
fn owner(mediator: &Mediator<Simulated>, weight: u32) -> Owner {
    Owner { tenant: format!("tenant {}", mediator.slices_used()), share: Share { weight, ..Share::default() } }
}

/// A virtual accelerator with a client's memory at [`GUEST`], whose last line is for the saved state.
fn attach(mediator: &mut Mediator<Simulated>, guid: &str, weight: u32, client: &Client) -> VirtualId {
    let owner = owner(mediator, weight);
    let id = mediator.open(guid, owner, |_| true).unwrap();
    let bytes = client.memory.length();
    mediator.set_base(id, GUEST).unwrap();
    mediator.map(id, GUEST, bytes, &client.memory, 0, Rights::ReadWrite).unwrap();
    mediator.set_state_address(id, GUEST + bytes - 64).unwrap();
    id
}

fn set(mediator: &mut Mediator<Simulated>, id: VirtualId, register: u32, value: u64) {
    assert_eq!(mediator.write(id, register, 8, value), Ok(WriteAnswer::Done));
}

fn get(mediator: &mut Mediator<Simulated>, id: VirtualId, register: u32) -> u64 {
    match mediator.read(id, register, 8) {
        Ok(ReadAnswer::Value(value)) => value,
        other => panic!("{other:?}"),
    }
}

/// A list walk that is started; returns its sum. `nodes` fit into 1 MB.
fn walk(mediator: &mut Mediator<Simulated>, weight: u32, nodes: u64) -> (VirtualId, u64) {
    let client = Client::new(2 * MIB);
    let (head, sum) = client.list(nodes, MIB);
    let id = attach(mediator, LL, weight, &client);
    set(mediator, id, LL_HEAD, head);
    set(mediator, id, CONTROL, 1);
    (id, sum)
}

fn run_until_done(mediator: &mut Mediator<Simulated>, ids: &[VirtualId]) {
    for _ in 0..1000 {
        if ids.iter().all(|id| mediator.status(*id).unwrap().phase == Phase::Done) {
            return;
        }
        mediator.run(100_000);
    }
    panic!("{:?}", ids.iter().map(|id| mediator.status(*id)).collect::<Vec<_>>());
}

#[test]
fn jobs_of_many_clients_on_one_port_have_the_golden_results() {
    let Some(mut mediator) = mediator("pair", 20_000) else { return };
    let walks: Vec<(VirtualId, u64)> = (0..5).map(|_| walk(&mut mediator, 1, 900)).collect();
    let client = Client::new(4 * MIB);
    client.fill(11);
    let expected = client.hash(0x3fff, 60_000, GOLDEN);
    let hashes: Vec<VirtualId> = (0..3)
        .map(|_| {
            let id = attach(&mut mediator, MB, 1, &client);
            for (register, value) in
                [(MB_BASE, GUEST), (MB_MASK, 0x3fff), (MB_COUNT, 60_000), (MB_STRIDE, GOLDEN), (MB_MODE, MB_READS)]
            {
                set(&mut mediator, id, register, value);
            }
            set(&mut mediator, id, CONTROL, 1);
            assert_eq!(get(&mut mediator, id, CONTROL), 1);
            id
        })
        .collect();
    // All save their state to the same line of their common memory: each must have a line of its own to be right.
    for (number, id) in hashes.iter().enumerate() {
        assert_eq!(mediator.set_state_address(*id, GUEST), Err(Error::Busy));
        mediator.reset(*id).unwrap();
        mediator.set_state_address(*id, GUEST + 4 * MIB - 64 * (number as u64 + 1)).unwrap();
        for (register, value) in
            [(MB_BASE, GUEST), (MB_MASK, 0x3fff), (MB_COUNT, 60_000), (MB_STRIDE, GOLDEN), (MB_MODE, MB_READS)]
        {
            set(&mut mediator, *id, register, value);
        }
        set(&mut mediator, *id, CONTROL, 1);
    }
    let all: Vec<VirtualId> = walks.iter().map(|(id, _)| *id).chain(hashes.iter().copied()).collect();
    run_until_done(&mut mediator, &all);
    for (id, sum) in walks {
        assert_eq!((get(&mut mediator, id, LL_SUM), get(&mut mediator, id, LL_VISITED)), (sum, 900));
        assert_eq!(get(&mut mediator, id, CONTROL), 5);
        assert_eq!(mediator.take_interrupts(id), Ok(1));
        assert!(mediator.status(id).unwrap().preemptions > 2);
    }
    for id in hashes {
        assert_eq!((get(&mut mediator, id, MB_HASH), get(&mut mediator, id, MB_LINES)), (expected, 60_000));
    }
    assert_eq!(mediator.board().escaped(), 0);
}

#[test]
fn weights_divide_a_port_and_a_switch_costs_little() {
    let Some(mut mediator) = mediator("pair", 100_000) else { return };
    // Lists that do not end here.
    let ids: Vec<VirtualId> = (1..=3)
        .map(|weight| {
            let client = Client::new(2 * MIB);
            client.put(0, &[GUEST, 1]);
            let id = attach(&mut mediator, LL, weight, &client);
            set(&mut mediator, id, LL_HEAD, GUEST);
            set(&mut mediator, id, CONTROL, 1);
            id
        })
        .collect();
    mediator.run(18_000_000);
    let status: Vec<_> = ids.iter().map(|id| mediator.status(*id).unwrap()).collect();
    let all: u64 = status.iter().map(|status| status.cycles).sum();
    let turns: u64 = status.iter().map(|status| status.preemptions).sum();
    let switching = mediator.switching_cycles(0);
    let cost = switching / turns.max(1);
    println!("weights 1:2:3 on a port: {:?} cycles", status.iter().map(|status| status.cycles).collect::<Vec<_>>());
    println!("a switch of LL takes {cost} cycles, {:.3}% of a turn of 10 ms", cost as f64 / 40_000.0);
    for (index, status) in status.iter().enumerate() {
        let (share, due) = (status.cycles as f64 / all as f64, (index + 1) as f64 / 6.0);
        assert!((share - due).abs() <= 0.01, "{share} of {due}: {status:?}");
    }
    // 0.3% of 4,000,000 cycles.
    assert!(cost <= 12_000, "{cost}");
    assert!(turns > 100, "{turns}");
    // Nearly all of the time a job runs, saves or loads, or the port is between two.
    assert!(all + switching + turns * 2000 >= 18_000_000, "{all} {switching}");
    assert_eq!(mediator.board().escaped(), 0);
}

#[test]
fn accelerator_that_never_saves_is_reset_and_its_neighbours_go_on() {
    let Some(mut mediator) = mediator("rogue", 20_000) else { return };
    let (walker, sum) = walk(&mut mediator, 1, 2000);
    let clients = [Client::new(2 * MIB), Client::new(2 * MIB)];
    let stuck: Vec<VirtualId> = clients
        .iter()
        .map(|client| {
            let id = attach(&mut mediator, STUCK, 1, client);
            set(&mut mediator, id, 0x40, GUEST);
            set(&mut mediator, id, CONTROL, 1);
            id
        })
        .collect();
    mediator.run(150_000);
    let phases: Vec<Phase> = stuck.iter().map(|id| mediator.status(*id).unwrap().phase).collect();
    assert_eq!(phases, [Phase::Failed(Failure::Stuck), Phase::Running]);
    assert_eq!(get(&mut mediator, stuck[0], CONTROL), 6);
    run_until_done(&mut mediator, &[walker]);
    assert_eq!(get(&mut mediator, walker, LL_SUM), sum);
    assert_eq!(mediator.status(walker).unwrap().preemptions, 0);
    // A closed one leaves nothing, though its burst was never complete.
    for id in stuck {
        mediator.close(id);
    }
    assert!(clients.iter().all(|client| client.get(0) == 0));
    assert_eq!(mediator.slices_used(), 1);
    assert_eq!(mediator.board().escaped(), 0);
}

#[test]
fn job_that_is_moved_between_ports_ends_with_its_result() {
    let Some(mut mediator) = mediator("rogue", 20_000) else { return };
    let (id, sum) = walk(&mut mediator, 1, 6000);
    for turn in 0..12 {
        mediator.run(20_000 + turn * 777);
        let port = mediator.status(id).unwrap().port;
        assert_eq!(mediator.move_to(id, if port == 4 { 1 } else { port + 1 }), Ok(()));
    }
    assert_eq!(mediator.move_to(id, 0), Err(Error::WrongPort(0)));
    assert_eq!(mediator.move_to(id, 99), Err(Error::WrongPort(99)));
    run_until_done(&mut mediator, &[id]);
    assert_eq!((get(&mut mediator, id, LL_SUM), get(&mut mediator, id, LL_VISITED)), (sum, 6000));
    assert_eq!(mediator.status(id).unwrap().preemptions, 12);
    assert_eq!(mediator.board().escaped(), 0);
}

#[test]
fn job_that_is_moved_while_it_loads_ends_with_its_result() {
    let Some(mut mediator) = mediator("rogue", 20_000) else { return };
    let (id, sum) = walk(&mut mediator, 1, 500);
    // Loading takes the latency of the link: some of these moves come before its end, some behind it.
    let first = mediator.status(id).unwrap().port;
    for turn in 0..12 {
        // To ask for the port would give the job time to load.
        mediator.run(1 + 10 * turn as u64);
        assert_eq!(mediator.move_to(id, 1 + (first + turn) % 4), Ok(()));
        assert_eq!(mediator.status(id).unwrap().phase, Phase::Queued { saved: true }, "turn {turn}");
    }
    run_until_done(&mut mediator, &[id]);
    assert_eq!((get(&mut mediator, id, LL_SUM), get(&mut mediator, id, LL_VISITED)), (sum, 500));
    assert_eq!(mediator.board().escaped(), 0);
}

#[test]
fn closed_accelerator_does_not_touch_its_memory_any_more() {
    let Some(mut mediator) = mediator("pair", 20_000) else { return };
    for _ in 0..100 {
        let client = Client::new(2 * MIB);
        let id = attach(&mut mediator, MB, 1, &client);
        for (register, value) in [(0x68, GUEST), (MB_MASK, 0x3fff), (MB_STRIDE, 1), (MB_MODE, 8)] {
            set(&mut mediator, id, register, value);
        }
        set(&mut mediator, id, CONTROL, 1);
        mediator.run(3000);
        assert_eq!(mediator.status(id).unwrap().phase, Phase::Running);
        mediator.close(id);
        assert_ne!(client.get(64), 0);
        client.put(0, &[0x55; 8192]);
        let (other, _) = walk(&mut mediator, 1, 10);
        run_until_done(&mut mediator, &[other]);
        mediator.close(other);
        assert!((0..8192).all(|word| client.get(word * 8) == 0x55));
        assert_eq!(mediator.read(id, 0x40, 8), Err(Error::Unknown));
    }
    assert_eq!(mediator.slices_used(), 0);
    assert_eq!(mediator.board().escaped(), 0);
    // Nothing is under way: the clock stands still.
    let before = mediator.board().statistics();
    mediator.run(1_000_000_000);
    assert_eq!(mediator.board().statistics(), before);
}

#[test]
fn registers_of_a_queued_accelerator_are_cached() {
    let Some(mut mediator) = mediator("pair", 1 << 40) else { return };
    // The port's owner never ends.
    let client = Client::new(2 * MIB);
    client.put(0, &[GUEST, 1]);
    let owner = attach(&mut mediator, LL, 1, &client);
    set(&mut mediator, owner, LL_HEAD, GUEST);
    set(&mut mediator, owner, CONTROL, 1);
    mediator.run(10_000);
    let (id, _) = walk(&mut mediator, 1, 10);
    let before = mediator.board().now();
    assert_eq!(mediator.write(id, LL_HEAD + 4, 4, 0x7777), Ok(WriteAnswer::Done));
    assert_eq!(get(&mut mediator, id, LL_HEAD) >> 32, 0x7777);
    assert_eq!(mediator.read(id, LL_HEAD + 4, 4), Ok(ReadAnswer::Value(0x7777)));
    assert_eq!((get(&mut mediator, id, LL_SUM), get(&mut mediator, id, CONTROL)), (0, 1));
    // The hidden registers, no register, and the page's own type.
    assert_eq!((get(&mut mediator, id, 0x20), get(&mut mediator, id, 0x28), get(&mut mediator, id, 0x38)), (0, 0, 0));
    assert_eq!(get(&mut mediator, id, 0x10), 0x6c6c_0001_4a5e_4f0a);
    set(&mut mediator, id, LL_SUM, 5);
    assert_eq!(get(&mut mediator, id, LL_SUM), 0);
    // None of this reached the card.
    assert_eq!(mediator.board().now(), before);
    for (offset, bytes) in [(0x40, 1), (0x40, 2), (0x40, 16), (0x44, 8), (0x1000, 8), (0xffc, 8)] {
        assert_eq!(mediator.read(id, offset, bytes), Ok(ReadAnswer::Value(0)));
        assert_eq!(mediator.write(id, offset, bytes, 1), Ok(WriteAnswer::Done));
    }
    assert_eq!(mediator.status(id).unwrap().bad_accesses, 12);
}

#[test]
fn wishes_of_clients_are_checked() {
    let Some(mut mediator) = mediator("pair", 20_000) else { return };
    assert_eq!(
        mediator.open("00000000-0000-0000-0000-000000000000", Owner::default(), |_| true),
        Err(Error::NoAccelerator)
    );
    let client = Client::new(4 * MIB);
    let map = |mediator: &mut Mediator<Simulated>, id, address, length| {
        mediator.map(id, address, length, &client.memory, 0, Rights::ReadWrite)
    };
    assert_eq!(mediator.open(LL, Owner::default(), |port| port != "ll0"), Err(Error::NoAccelerator));
    let id = mediator.open(LL, Owner::default(), |port| port == "ll0").unwrap();
    assert_eq!(map(&mut mediator, id, GUEST, MIB), Err(MappingError::NoBase.into()));
    assert_eq!(mediator.set_state_address(id, GUEST), Err(Error::StateAddress(GUEST)));
    assert_eq!(mediator.write(id, CONTROL, 8, 1), Err(Error::NotReady));
    for base in [GUEST + 4096, !0x1f_ffff_u64, (1 << 48) - SLICE_BYTES + 0x20_0000] {
        assert_eq!(mediator.set_base(id, base), Err(Error::Base(base)));
    }
    mediator.set_base(id, GUEST).unwrap();
    let outside = |address, length| Err(MappingError::Outside { address, length }.into());
    for (address, length) in
        [(GUEST - 4096, 4096), (GUEST + SLICE_BYTES, 4096), (GUEST + SLICE_BYTES - 4096, 8192), (0, u64::MAX)]
    {
        assert_eq!(map(&mut mediator, id, address, length), outside(address, length));
        assert_eq!(mediator.unmap(id, address, length), outside(address, length).map(|()| 0));
    }
    map(&mut mediator, id, GUEST, 2 * MIB).unwrap();
    assert!(matches!(map(&mut mediator, id, GUEST + MIB, 2 * MIB), Err(Error::Mapping(MappingError::Iommu(_)))));
    assert!(matches!(map(&mut mediator, id, GUEST + 8 * MIB, 8 * MIB), Err(Error::Mapping(MappingError::Iommu(_)))));
    assert!(matches!(mediator.unmap(id, GUEST + 1, MIB), Err(Error::Mapping(MappingError::Iommu(_)))));
    assert_eq!(mediator.unmap(id, GUEST + 2 * MIB, MIB), Ok(0));
    assert_eq!(mediator.set_base(id, GUEST + 2 * MIB), Err(Error::Busy));
    for address in [GUEST - 64, GUEST + SLICE_BYTES, GUEST + 1] {
        assert_eq!(mediator.set_state_address(id, address), Err(Error::StateAddress(address)));
    }
    assert_eq!(mediator.write(id, CONTROL, 8, 1), Err(Error::NotReady));
    mediator.set_state_address(id, GUEST + MIB).unwrap();
    set(&mut mediator, id, LL_HEAD, GUEST - 64);
    set(&mut mediator, id, CONTROL, 1);
    mediator.run(20_000);
    assert_eq!(mediator.status(id).unwrap().phase, Phase::Failed(Failure::Job));
    // A reset keeps what is mapped; the refused request was counted.
    mediator.reset(id).unwrap();
    let status = mediator.status(id).unwrap();
    assert_eq!((status.phase, status.mapped_bytes, status.refused), (Phase::Idle, 2 * MIB, 1));
    assert_eq!(get(&mut mediator, id, LL_HEAD), 0);
    mediator.unmap(id, GUEST, 2 * MIB).unwrap();
    assert_eq!(mediator.board().escaped(), 0);
}

#[test]
fn same_calls_take_the_same_cycles() {
    let history = || {
        let discipline = || -> Box<dyn aviary_schedule::Discipline> { Box::new(RoundRobin::equal(nanoseconds(5000))) };
        let mut mediator = Mediator::new(common::card("pair")?, SETTINGS, discipline);
        let ids: Vec<VirtualId> = (0..4).map(|_| walk(&mut mediator, 1, 200).0).collect();
        run_until_done(&mut mediator, &ids);
        let status: Vec<_> = ids.iter().map(|id| mediator.status(*id).unwrap()).collect();
        Some((mediator.board().now(), mediator.board().statistics(), status))
    };
    assert_eq!(history(), history());
}
