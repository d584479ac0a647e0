//! Moves to another port that the card refuses to map memory for. The board is a table of mappings that fails when it is told to.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::Arc;

use crate::common::{Client, GUEST};
use aviary_card::{
    Board, ClientMemory, Escape, ImageDescription, IoFault, IommuError, MmioRefused, ModelParameters, PortDescription,
    Rights, Stop,
};
use aviary_fpga::device::CardSocket;
use aviary_fpga::link::{Limits, Service};
use aviary_fpga::{Error, Failure, MappingError, Mediator, Owner, Phase, Settings, VirtualId, usual_discipline};

const GUID: &str = "6c6c0001-4a5e-4f0a-9d1b-2f4f0c110002";
const CONTROL: u32 = 0x18;
const MIB: u64 = 1 << 20;

/// Of no meaning here.
const MODEL: ModelParameters = ModelParameters {
    read_latency: 0,
    write_latency: 0,
    lines_per_1000_cycles: 600,
    requests: 1,
    tlb_entries: 512,
    walk_cycles: 0,
    mmio_read_cycles: 0,
    mmio_write_cycles: 0,
};

/// A board whose accelerators are never reached.
struct Table {
    description: ImageDescription,
    /// Lengths, by IO virtual address.
    mapped: BTreeMap<u64, u64>,
    /// Of each call of `map` from now on: may it succeed? Those that are missing may.
    answers: RefCell<Vec<bool>>,
    escape: Option<Escape>,
}

impl Table {
    fn new() -> Table {
        let port = PortDescription {
            name: "ll".into(),
            guid: GUID.into(),
            summary: String::new(),
            clock_mhz: 400,
            state_lines: 1,
            registers: BTreeMap::new(),
        };
        let description = ImageDescription {
            abi: 1,
            name: "table".into(),
            ports: vec![port.clone(), port],
            arity: 2,
            arbiter: "round_robin".into(),
            bypass: false,
            shell_pages: 0,
            model: MODEL,
        };
        Table { description, mapped: BTreeMap::new(), answers: RefCell::default(), escape: None }
    }
}

impl Board for Table {
    fn description(&self) -> &ImageDescription {
        &self.description
    }

    fn now(&self) -> u64 {
        0
    }

    fn read(&mut self, _: u32) -> u64 {
        u64::MAX
    }

    fn write(&mut self, address: u32, _: u64) -> Result<(), MmioRefused> {
        Err(MmioRefused(address))
    }

    fn write_half(&mut self, address: u32, _: u32) -> Result<(), MmioRefused> {
        Err(MmioRefused(address))
    }

    fn map(&mut self, address: u64, _: &Arc<ClientMemory>, _: u64, length: u64, _: Rights) -> Result<(), IommuError> {
        let mut answers = self.answers.borrow_mut();
        let may = answers.is_empty() || answers.remove(0);
        match may && self.mapped.insert(address, length).is_none() {
            true => Ok(()),
            false => Err(IommuError::Taken(address)),
        }
    }

    fn unmap(&mut self, address: u64, length: u64) -> Result<(), IommuError> {
        self.mapped.retain(|at, _| !(address..address + length).contains(at));
        Ok(())
    }

    fn advance(&mut self, _: u64) -> Stop {
        Stop::Idle
    }

    fn take_interrupts(&mut self) -> u64 {
        0
    }

    fn first_escape(&self) -> Option<Escape> {
        self.escape
    }

    fn take_io_faults(&mut self) -> (Vec<IoFault>, u64) {
        (Vec::new(), 0)
    }
}

/// A virtual accelerator at port 0 with two mappings and a job that waits.
fn waiting() -> (Mediator<Table>, VirtualId, Client) {
    let mut mediator = Mediator::new(Table::new(), Settings::default(), usual_discipline);
    let client = Client::new(4 * MIB);
    let owner = Owner { tenant: "lab".into(), ..Owner::default() };
    let id = mediator.open(GUID, owner, |_| true).unwrap();
    mediator.set_base(id, GUEST).unwrap();
    for part in [0, 2 * MIB] {
        // With a gap between them, so that they stay two.
        mediator.map(id, GUEST + 2 * part, 2 * MIB, &client.memory, part, Rights::ReadWrite).unwrap();
    }
    mediator.set_state_address(id, GUEST).unwrap();
    mediator.write(id, CONTROL, 8, 1).unwrap();
    (mediator, id, client)
}

/// Members and waiting virtual accelerators of each port.
fn turns(mediator: &Mediator<Table>) -> [(usize, usize); 2] {
    [0, 1].map(|port| {
        let uses = mediator.port_uses(port);
        (uses.iter().map(|(tenant, _)| tenant.members.len()).sum(), uses.iter().map(|(_, waiting)| waiting).sum())
    })
}

fn refused(error: Error) -> bool {
    matches!(error, Error::Mapping(MappingError::Iommu(IommuError::Taken(_))))
}

#[test]
fn move_whose_memory_is_refused_leaves_all_where_it_was() {
    let (mut mediator, id, _client) = waiting();
    let before = mediator.board().mapped.clone();
    // The second mapping of the new slice.
    mediator.board().answers.borrow_mut().extend([true, false]);
    assert!(refused(mediator.move_to(id, 1).unwrap_err()));
    assert_eq!(mediator.board().mapped, before);
    let figures = mediator.figures(id).unwrap();
    assert_eq!((figures.port, figures.phase), (0, Phase::Queued { saved: false }));
    assert_eq!(turns(&mediator), [(1, 1), (0, 0)]);
    // The next one succeeds.
    mediator.move_to(id, 1).unwrap();
    assert_eq!(turns(&mediator), [(0, 0), (1, 1)]);
    assert_eq!((mediator.figures(id).unwrap().port, mediator.board().mapped.len()), (1, 2));
    mediator.close(id);
    assert_eq!((mediator.board().mapped.len(), mediator.slices_used()), (0, 0));
    assert_eq!(turns(&mediator), [(0, 0); 2]);
}

#[test]
fn memory_that_no_slice_takes_fails_the_job() {
    let (mut mediator, id, client) = waiting();
    // The second mapping of the new slice, and that of the old one.
    mediator.board().answers.borrow_mut().extend([true, false, true, false]);
    assert!(refused(mediator.move_to(id, 1).unwrap_err()));
    assert!(mediator.board().mapped.is_empty());
    let figures = mediator.figures(id).unwrap();
    assert_eq!((figures.port, figures.phase), (0, Phase::Failed(Failure::Silent)));
    assert_eq!(turns(&mediator), [(1, 0), (0, 0)]);
    // The client may begin anew.
    mediator.map(id, GUEST, 2 * MIB, &client.memory, 0, Rights::ReadWrite).unwrap();
    mediator.close(id);
    assert_eq!((mediator.board().mapped.len(), mediator.slices_used()), (0, 0));
}

#[test]
fn service_of_a_card_whose_monitor_is_broken_ends() {
    let escape = Escape { at: 7, port: 1, address: 0x40, lines: 1, write: true };
    let mediator = Mediator::new(Table { escape: Some(escape), ..Table::new() }, Settings::default(), usual_discipline);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("card.sock");
    let mut service = Service::listen(mediator, path.to_str().unwrap(), Limits::default(), |_| {}).unwrap();
    // A client wakes it.
    let _client = CardSocket::connect(&path).unwrap();
    let (stop, _kept) = std::io::pipe().unwrap();
    let error = service.serve(stop.as_fd()).unwrap_err();
    assert!(error.to_string().contains("a write of 0x40 by port 1 at cycle 7"), "{error}");
}
