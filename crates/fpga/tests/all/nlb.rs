//! OPAE's native loopback as a virtual accelerator: its modes, its line of results, and jobs that start and end by bits of its own
//! register. All times are device cycles of a simulation.

use crate::common::{self, Client, GUEST};
use aviary_card::{Board, Rights, Simulated};
use aviary_fpga::{Mediator, Owner, Phase, ReadAnswer, Settings, VirtualId, WriteAnswer, nanoseconds};
use aviary_schedule::Fair;

const NLB: &str = "d8424dc4-a4a3-c413-f89e-433683f9040b";
const DSM_BASE: u32 = 0x110;
const SRC_ADDR: u32 = 0x120;
const DST_ADDR: u32 = 0x128;
const NUM_LINES: u32 = 0x130;
const CTL: u32 = 0x138;
const CFG: u32 = 0x140;
const STATUS0: u32 = 0x160;
const STATUS1: u32 = 0x168;
const MIB: u64 = 1 << 20;
/// Where a client's memory has source, target, results and saved state.
const SOURCE: u64 = 0;
const TARGET: u64 = MIB;
const DSM: u64 = MIB + MIB / 2;
const STATE: u64 = DSM + MIB / 4;
const LINES: u64 = 1000;
const MANY_LINES: u64 = 8000;
const CONTINUOUS: u32 = 2;
const MODE_READ: u32 = 1 << 2;
const MODE_WRITE: u32 = 2 << 2;
const MODE_BOTH: u32 = 3 << 2;

struct Loopback {
    mediator: Mediator<Simulated>,
}

impl Loopback {
    fn new(turn: u64) -> Option<Loopback> {
        let discipline = move || -> Box<dyn aviary_schedule::Discipline> { Box::new(Fair::new(nanoseconds(turn))) };
        let settings = Settings { save_timeout: 50_000 };
        Some(Loopback { mediator: Mediator::new(common::card("movable-2")?, settings, discipline) })
    }

    fn set32(&mut self, id: VirtualId, register: u32, value: u32) {
        assert_eq!(self.mediator.write(id, register, 4, value.into()), Ok(WriteAnswer::Done));
    }

    fn get(&mut self, id: VirtualId, register: u32) -> u64 {
        match self.mediator.read(id, register, 8) {
            Ok(ReadAnswer::Value(value)) => value,
            other => panic!("{other:?}"),
        }
    }

    fn phase(&mut self, id: VirtualId) -> Phase {
        self.mediator.status(id).unwrap().phase
    }

    /// A virtual accelerator with the addresses of its client's memory, out of reset. `tenant` takes turns with others.
    fn attach(&mut self, tenant: &str, client: &Client, port: &str) -> VirtualId {
        client.fill(7);
        client.put(DSM, &[0; 16]);
        let owner = Owner { tenant: tenant.into(), ..Owner::default() };
        let id = self.mediator.open(NLB, owner, |name| name == port).unwrap();
        self.mediator.set_base(id, GUEST).unwrap();
        self.mediator.map(id, GUEST, 2 * MIB, &client.memory, 0, Rights::ReadWrite).unwrap();
        self.mediator.set_state_address(id, GUEST + STATE).unwrap();
        // The register of 64 bits in halves, as it may be written.
        let dsm = GUEST + DSM;
        self.set32(id, DSM_BASE, dsm as u32);
        self.set32(id, DSM_BASE + 4, (dsm >> 32) as u32);
        for (register, at) in [(SRC_ADDR, SOURCE), (DST_ADDR, TARGET)] {
            assert_eq!(self.mediator.write(id, register, 8, (GUEST + at) >> 6), Ok(WriteAnswer::Done));
        }
        self.set32(id, CTL, 0);
        self.set32(id, CTL, 1);
        self.set32(id, NUM_LINES, LINES as u32);
        id
    }

    fn finish(&mut self, id: VirtualId) {
        let end = self.mediator.board().now() + 500_000;
        while self.phase(id) != Phase::Done {
            self.mediator.run(1000);
            assert!(self.mediator.board().now() < end, "{:?}", self.phase(id));
        }
        assert_eq!(self.mediator.board().escaped(), 0);
    }
}

/// The line of results: its first word, cycles, lines read, lines written.
fn results(client: &Client) -> (u64, u64, u64, u64) {
    let counts = client.get(DSM + 0x50);
    (client.get(DSM + 0x40), client.get(DSM + 0x48), counts & 0xffff_ffff, counts >> 32)
}

fn part(client: &Client, at: u64, lines: u64) -> Vec<u8> {
    client.bytes()[at as usize..(at + 64 * lines) as usize].to_vec()
}

#[test]
fn loopback_copies_and_tells_its_results() {
    let Some(mut nlb) = Loopback::new(1_000_000) else { return };
    let client = Client::new(2 * MIB);
    let id = nlb.attach("one", &client, "nlb0");
    nlb.set32(id, CFG, 0x42000);
    assert_eq!(nlb.phase(id), Phase::Idle);
    nlb.set32(id, CTL, 3);
    nlb.finish(id);
    assert_eq!(part(&client, SOURCE, LINES), part(&client, TARGET, LINES));
    let (done, cycles, reads, writes) = results(&client);
    assert_eq!((done, reads, writes), (1, LINES, LINES));
    assert!((LINES..10 * LINES).contains(&cycles), "{cycles}");
    assert_eq!(nlb.get(id, STATUS0), LINES << 32 | LINES);
    assert_eq!(nlb.get(id, STATUS1), 0);
    // The order to stop starts nothing.
    client.put(DSM + 0x40, &[0]);
    nlb.set32(id, CTL, 7);
    assert_eq!(nlb.phase(id), Phase::Done);
    nlb.mediator.run(10_000);
    assert_eq!(client.get(DSM + 0x40), 0);
}

#[test]
fn modes_read_write_or_do_both() {
    let Some(mut nlb) = Loopback::new(1_000_000) else { return };
    for (mode, reads, writes) in [(MODE_READ, LINES, 0), (MODE_WRITE, 0, LINES), (MODE_BOTH, LINES, LINES)] {
        let client = Client::new(2 * MIB);
        let id = nlb.attach("one", &client, "nlb0");
        let before = part(&client, TARGET, LINES);
        nlb.set32(id, CFG, mode);
        nlb.set32(id, CTL, 3);
        nlb.finish(id);
        let (done, _, read, written) = results(&client);
        assert_eq!((done, read, written), (1, reads, writes), "{mode}");
        let numbers: Vec<u8> =
            (0..LINES as u32).flat_map(|line| std::iter::repeat_n(line.to_le_bytes(), 16)).flatten().collect();
        assert!(part(&client, TARGET, LINES) == if writes > 0 { numbers } else { before }, "{mode}");
        nlb.mediator.close(id);
    }
    // A mode that does not exist ends with an error.
    let client = Client::new(2 * MIB);
    let id = nlb.attach("one", &client, "nlb0");
    nlb.set32(id, CFG, 5 << 2);
    nlb.set32(id, CTL, 3);
    nlb.finish(id);
    let (done, _, reads, writes) = results(&client);
    assert_eq!((done, reads, writes), (1 << 32 | 1, 0, 0));
}

#[test]
fn endless_mode_goes_on_until_it_is_stopped() {
    let Some(mut nlb) = Loopback::new(1_000_000) else { return };
    for mode in [0, MODE_READ, MODE_WRITE, MODE_BOTH] {
        let client = Client::new(2 * MIB);
        let id = nlb.attach("one", &client, "nlb0");
        nlb.set32(id, CFG, CONTINUOUS | mode);
        nlb.set32(id, CTL, 3);
        nlb.mediator.run(20_000);
        assert_eq!((nlb.phase(id), client.get(DSM + 0x40)), (Phase::Running, 0));
        nlb.set32(id, CTL, 7);
        nlb.finish(id);
        let (done, _, reads, writes) = results(&client);
        assert_eq!((done, reads > 2 * LINES, writes > 2 * LINES), (1, mode != MODE_WRITE, mode != MODE_READ));
        nlb.mediator.close(id);
    }
}

#[test]
fn job_that_is_ended_and_started_again_begins_anew() {
    let Some(mut nlb) = Loopback::new(2_000) else { return };
    let (client, other) = (Client::new(2 * MIB), Client::new(2 * MIB));
    let endless = nlb.attach("other", &other, "nlb0");
    nlb.set32(endless, CFG, CONTINUOUS);
    nlb.set32(endless, CTL, 3);
    let id = nlb.attach("one", &client, "nlb0");
    // Longer than the accesses that end it.
    nlb.set32(id, NUM_LINES, MANY_LINES as u32);
    // Ended before its first turn, while it runs, and while it is saved for its next turn.
    for wanted in ["queued", "running", "saved"] {
        nlb.set32(id, CTL, 3);
        for _ in 0..100 {
            let phase = match nlb.phase(id) {
                Phase::Queued { saved: false } => "queued",
                Phase::Queued { saved: true } => "saved",
                Phase::Running => "running",
                other => panic!("{other:?}"),
            };
            if phase == wanted {
                break;
            }
            nlb.mediator.run(500);
        }
        nlb.set32(id, CTL, 0);
        assert_eq!(nlb.phase(id), Phase::Idle, "{wanted}");
        assert_eq!(nlb.get(id, STATUS1), 0);
        nlb.mediator.run(20_000);
        assert_eq!(client.get(DSM + 0x40), 0, "{wanted}");
        nlb.set32(id, CTL, 1);
    }
    client.put(TARGET, &vec![0; 8 * MANY_LINES as usize]);
    nlb.set32(id, CTL, 3);
    nlb.finish(id);
    assert!(part(&client, SOURCE, MANY_LINES) == part(&client, TARGET, MANY_LINES));
    let (done, _, reads, writes) = results(&client);
    assert_eq!((done, reads, writes), (1, MANY_LINES, MANY_LINES));
    // The other one was interrupted again and again, and has lost nothing.
    nlb.set32(endless, CTL, 7);
    nlb.finish(endless);
    assert_eq!(part(&other, SOURCE, LINES), part(&other, TARGET, LINES));
    assert!(nlb.mediator.status(endless).unwrap().preemptions > 0);
}

#[test]
fn start_by_bits_needs_a_slice_like_any_start() {
    let Some(mut nlb) = Loopback::new(1_000_000) else { return };
    let id = nlb.mediator.open(NLB, Owner::default(), |_| true).unwrap();
    assert_eq!(nlb.mediator.write(id, CTL, 4, 3), Err(aviary_fpga::Error::NotReady));
    assert_eq!((nlb.phase(id), nlb.get(id, CTL)), (Phase::Idle, 0));
    // A half that has no start bit, and a size that does not exist.
    assert_eq!(nlb.mediator.write(id, CTL + 4, 4, 3), Ok(WriteAnswer::Done));
    assert_eq!(nlb.mediator.write(id, CTL, 2, 3), Ok(WriteAnswer::Done));
    assert_eq!(nlb.phase(id), Phase::Idle);
}
