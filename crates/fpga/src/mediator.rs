//! The mediator: opens and closes virtual accelerators, and gives them their turns in device time.

pub(crate) mod moving;
mod port;
mod turning;

use port::PortTurns;

use std::collections::BTreeMap;
use std::sync::Arc;

use aviary_card::{Board, ClientMemory, HUGE_PAGE, Monitor, RegisterKind, Rights};
use aviary_schedule::{Discipline, Fair, Share};
use thiserror::Error;

use crate::faults::JobFault;
use crate::mappings::{MappingError, Mappings};
use crate::registers::{self, ReadAnswer, StartEdge, WriteAnswer};
use crate::slices::{SLICE_BYTES, SlicePlaces};
use crate::turns::{PortOrder, PortUse, nanoseconds};
use crate::virtual_accelerator::{Owner, Phase, StartBits, Status, VirtualAccelerator, VirtualId};

/// Header and GUID of an accelerator's page.
const HEADER: [u32; 3] = [0x00, 0x08, 0x10];

/// A client's request is refused.
#[derive(Debug, Error, displaydoc::Display, Clone, Copy, PartialEq, Eq)]
pub enum Error {
    /// the card has no accelerator of this type
    NoAccelerator,
    /// the card's IO address space has no room for another virtual accelerator
    NoPlace,
    /// there is no such virtual accelerator
    Unknown,
    /// BASE {0:#x} is not a multiple of 2 MB, or the 64 GB from there on exceed 48 bits of address space
    Base(u64),
    /// STATE_ADDRESS {0:#x} is not in the accelerator's IO slice, or not a multiple of 64
    StateAddress(u64),
    /// not possible while a job is queued or running, or memory is mapped
    Busy,
    /// a job was started without BASE or STATE_ADDRESS
    NotReady,
    /// port {0} has an accelerator of another type
    WrongPort(usize),
    /// {0}
    Mapping(#[from] MappingError),
}

/// Times in device cycles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// How long an accelerator may take to save its state; 1 ms.
    pub save_timeout: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { save_timeout: 400_000 }
    }
}

/// Cycles of a turn while others wait, unless it is said otherwise: 10 ms.
pub const USUAL_TURN: u64 = 4_000_000;

/// The discipline of a port unless it is said otherwise: shares by weight, in turns of [`USUAL_TURN`].
pub fn usual_discipline() -> Box<dyn Discipline> {
    Box::new(Fair::new(nanoseconds(USUAL_TURN)))
}

/// The mediator of one board.
pub struct Mediator<B: Board> {
    board: B,
    settings: Settings,
    ports: Vec<PortTurns>,
    places: SlicePlaces,
    accelerators: BTreeMap<VirtualId, VirtualAccelerator>,
    next_id: VirtualId,
}

impl<B: Board> Mediator<B> {
    /// `discipline` makes that of each port.
    pub fn new(board: B, settings: Settings, discipline: impl Fn() -> Box<dyn Discipline>) -> Self {
        let port = |name| PortTurns::new(name, PortOrder::new(discipline()));
        let ports = port_names(&board).into_iter().map(port).collect();
        Self { board, settings, ports, places: SlicePlaces::new(), accelerators: BTreeMap::new(), next_id: 1 }
    }

    pub fn board(&self) -> &B {
        &self.board
    }

    /// For what only one kind of board has.
    pub fn board_mut(&mut self) -> &mut B {
        &mut self.board
    }

    /// Cycles in which a port was between two owners.
    pub fn switching_cycles(&self, port: usize) -> u64 {
        self.ports.get(port).map_or(0, |port| port.switching)
    }

    /// IO slices that are taken.
    pub fn slices_used(&self) -> usize {
        self.places.used()
    }

    /// Names of the ports: the accelerator's and a number, such as `ll0`.
    pub fn port_names(&self) -> impl Iterator<Item = &str> {
        self.ports.iter().map(|port| port.name.as_str())
    }

    /// The order of a port from now on.
    pub fn set_discipline(&mut self, port: usize, discipline: Box<dyn Discipline>) {
        if let Some(port) = self.ports.get_mut(port) {
            port.order.replace(discipline);
        }
    }

    /// The share of a tenant at all ports from now on.
    pub fn set_share(&mut self, tenant: &str, share: Share) {
        self.ports.iter_mut().for_each(|port| port.order.set_share(tenant, share));
        self.accelerators.values_mut().filter(|own| own.owner.tenant == tenant).for_each(|own| own.owner.share = share);
    }

    /// The use of a port by tenants, and how many virtual accelerators of each wait for it.
    pub fn port_uses(&self, port: usize) -> Vec<(PortUse, usize)> {
        let Some(port) = self.ports.get(port) else { return Vec::new() };
        let waits = |id: &&VirtualId| self.accelerators.get(id).is_some_and(VirtualAccelerator::is_waiting);
        let present = |id: &VirtualId| if port.resident == Some(*id) { nanoseconds(self.uncharged(port)) } else { 0 };
        let of = |mut of: PortUse| {
            of.used_ns += of.members.iter().map(present).sum::<u64>();
            let waiting = of.members.iter().filter(waits).count();
            (of, waiting)
        };
        port.order.uses().into_iter().map(of).collect()
    }

    /// Cycles since the resident of a port came for which its job ran: an estimate that reads nothing from the card.
    fn uncharged(&self, port: &PortTurns) -> u64 {
        let own = port.resident.and_then(|id| self.accelerators.get(&id));
        let runs = own.is_some_and(|own| own.phase == Phase::Running);
        let until = if runs { Some(self.board.now()) } else { port.ended };
        until.map_or(0, |until| until.saturating_sub(port.came))
    }

    /// A new virtual accelerator of a type, given by its GUID, at the port of that type with the fewest among those whose names
    /// `may` allows.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn open(&mut self, guid: &str, owner: Owner, may: impl Fn(&str) -> bool) -> Result<VirtualId, Error> {
        let ports = &self.board.description().ports;
        let used = |port: usize| self.accelerators.values().filter(|other| other.port == port).count();
        let fits = |port: &usize| ports[*port].guid == guid && may(&self.ports[*port].name);
        let port = (0..ports.len()).filter(fits).min_by_key(|port| used(*port));
        let port = port.ok_or(Error::NoAccelerator)?;
        let kinds = ports[port].registers.values().map(|register| (register.at, register.kind)).collect();
        let starting = ports[port].registers.values().find(|register| register.starts != 0);
        let starts = starting.filter(|register| register.kind == RegisterKind::Plain);
        let starts = starts.map(|register| StartBits { register: register.at, bits: register.starts });
        let place = self.places.take().ok_or(Error::NoPlace)?;
        let id = self.next_id;
        self.next_id += 1;
        let new = VirtualAccelerator {
            port,
            place,
            owner,
            phase: Phase::Idle,
            base: None,
            state_address: None,
            mappings: Mappings::default(),
            kinds,
            cache: header(guid),
            starts,
            queue: std::collections::VecDeque::new(),
            wants_port: false,
            interrupts: 0,
            cycles: 0,
            preemptions: 0,
            refused: 0,
            bad_accesses: 0,
            refusal: None,
            jobs: 0,
        };
        self.ports[port].order.enter(id, &new.owner);
        self.accelerators.insert(id, new);
        Ok(id)
    }

    /// Ends a virtual accelerator, whatever it does. Afterwards nothing of it is under way or mapped.
    pub fn close(&mut self, id: VirtualId) {
        self.evict(id);
        let Some(mut own) = self.accelerators.remove(&id) else { return };
        own.mappings.unmap_all(&mut self.board, own.place.base(own.port, self.ports.len()));
        self.places.give_back(own.place);
        self.ports[own.port].order.leave(id);
    }

    fn own(&mut self, id: VirtualId) -> Result<&mut VirtualAccelerator, Error> {
        self.accelerators.get_mut(&id).ok_or(Error::Unknown)
    }

    /// Sets the guest virtual address of the slice.
    ///
    /// # Errors
    /// [`Error::Base`]; [`Error::Busy`] while a job is queued or runs, or memory is mapped.
    pub fn set_base(&mut self, id: VirtualId, base: u64) -> Result<(), Error> {
        let own = self.own(id)?;
        let inside = base.checked_add(SLICE_BYTES).is_some_and(|end| end <= 1 << 48);
        if !base.is_multiple_of(HUGE_PAGE) || !inside {
            return Err(Error::Base(base));
        }
        if matches!(own.phase, Phase::Queued { .. } | Phase::Running) || !own.mappings.is_empty() {
            return Err(Error::Busy);
        }
        own.base = Some(base);
        own.state_address = None;
        // A port that has the old slice gets the new one at the next turn.
        self.evict(id);
        Ok(())
    }

    /// Sets the place where the state of a paused job is saved.
    ///
    /// # Errors
    /// [`Error::StateAddress`]; [`Error::Busy`] while a job is queued or runs.
    pub fn set_state_address(&mut self, id: VirtualId, address: u64) -> Result<(), Error> {
        let port = self.own(id)?.port;
        let bytes = u64::from(self.board.description().ports[port].state_lines) * aviary_card::LINE;
        let own = self.own(id)?;
        let within = own.base.and_then(|base| address.checked_sub(base));
        if !address.is_multiple_of(aviary_card::LINE) || within.is_none_or(|within| within > SLICE_BYTES - bytes) {
            return Err(Error::StateAddress(address));
        }
        if matches!(own.phase, Phase::Queued { .. } | Phase::Running) {
            return Err(Error::Busy);
        }
        own.state_address = Some(address);
        self.evict(id);
        Ok(())
    }

    /// Makes `length` bytes of a memory from `offset` on known to the virtual accelerator at a guest virtual address.
    ///
    /// # Errors
    /// [`Error::Mapping`].
    pub fn map(
        &mut self,
        id: VirtualId,
        address: u64,
        length: u64,
        memory: &Arc<ClientMemory>,
        offset: u64,
        rights: Rights,
    ) -> Result<(), Error> {
        let ports = self.ports.len();
        let own = self.accelerators.get_mut(&id).ok_or(Error::Unknown)?;
        let base = own.base.ok_or(MappingError::NoBase)?;
        let slice = own.place.base(own.port, ports);
        Ok(own.mappings.map(&mut self.board, base, slice, address, length, memory, offset, rights)?)
    }

    /// Takes away what is mapped in a range, and returns how many bytes that were. Afterwards no request to them is under way.
    ///
    /// # Errors
    /// [`Error::Mapping`].
    pub fn unmap(&mut self, id: VirtualId, address: u64, length: u64) -> Result<u64, Error> {
        let ports = self.ports.len();
        let own = self.accelerators.get_mut(&id).ok_or(Error::Unknown)?;
        let base = own.base.ok_or(MappingError::NoBase)?;
        let slice = own.place.base(own.port, ports);
        Ok(own.mappings.unmap(&mut self.board, base, slice, address, length)?)
    }

    /// A read of the page.
    ///
    /// # Errors
    /// [`Error::Unknown`].
    pub fn read(&mut self, id: VirtualId, offset: u32, bytes: u32) -> Result<ReadAnswer, Error> {
        let scheduled = self.is_scheduled(id);
        let own = self.accelerators.get_mut(&id).ok_or(Error::Unknown)?;
        Ok(registers::read(&mut self.board, own, scheduled, offset, bytes))
    }

    /// A write of the page. A write of 1 to CONTROL queues a job, as does one that sets the last start bit; one that clears a start
    /// bit ends it.
    ///
    /// # Errors
    /// [`Error::Unknown`]; [`Error::NotReady`] for a start.
    pub fn write(&mut self, id: VirtualId, offset: u32, bytes: u32, value: u64) -> Result<WriteAnswer, Error> {
        if registers::is_start(offset, bytes, value) {
            return self.start(id).map(|()| WriteAnswer::Done);
        }
        match registers::start_edge(self.own(id)?, offset, bytes, value) {
            Some(StartEdge::Rises) => self.start(id)?,
            Some(StartEdge::Falls) => self.end_job(id)?,
            None => {}
        }
        let scheduled = self.is_scheduled(id);
        let own = self.accelerators.get_mut(&id).ok_or(Error::Unknown)?;
        Ok(registers::write(&mut self.board, own, scheduled, offset, bytes, value))
    }

    fn start(&mut self, id: VirtualId) -> Result<(), Error> {
        let own = self.own(id)?;
        if matches!(own.phase, Phase::Queued { .. } | Phase::Running) {
            return Ok(());
        }
        if own.base.is_none() || own.state_address.is_none() {
            return Err(Error::NotReady);
        }
        // A resident one starts through the same door: its next turn begins at once if no other waits.
        own.phase = Phase::Queued { saved: false };
        own.refusal = None;
        own.jobs += 1;
        Ok(())
    }

    /// Jobs of a virtual accelerator that were started.
    pub fn jobs(&self, id: VirtualId) -> u64 {
        self.accelerators.get(&id).map_or(0, |own| own.jobs)
    }

    /// What went wrong first in the job, if it has failed.
    pub fn fault(&self, id: VirtualId) -> Option<JobFault> {
        self.accelerators.get(&id)?.fault(self.board.now())
    }

    /// Ends a job that runs or waits; registers stay. One that runs is drained as for another's turn, so that its status tells of no
    /// request that is still under way.
    fn end_job(&mut self, id: VirtualId) -> Result<(), Error> {
        let preemptions = self.own(id)?.preemptions;
        self.pause(id);
        let own = self.own(id)?;
        own.preemptions = preemptions;
        if matches!(own.phase, Phase::Queued { .. }) {
            own.phase = Phase::Idle;
        }
        Ok(())
    }

    /// Ends the job, empties the queue of writes and forgets the registers; what is mapped stays.
    ///
    /// # Errors
    /// [`Error::Unknown`].
    pub fn reset(&mut self, id: VirtualId) -> Result<(), Error> {
        self.evict(id);
        let own = self.own(id)?;
        own.phase = Phase::Idle;
        own.wants_port = false;
        own.queue.clear();
        own.cache.retain(|register, _| HEADER.contains(register));
        Ok(())
    }

    /// Interrupts since the last call, a bit per vector. A job whose end raised one of them has ended for its client, too.
    ///
    /// # Errors
    /// [`Error::Unknown`].
    pub fn take_interrupts(&mut self, id: VirtualId) -> Result<u8, Error> {
        self.note_interrupts();
        let raised = std::mem::take(&mut self.own(id)?.interrupts);
        if raised != 0 {
            self.look_at_jobs();
        }
        Ok(raised)
    }

    /// Without an access to the card. `None`: it does not exist.
    pub fn figures(&self, id: VirtualId) -> Option<Status> {
        let own = self.accelerators.get(&id)?;
        let scheduled = self.is_scheduled(id);
        let present = if scheduled { self.uncharged(&self.ports[own.port]) } else { 0 };
        let status = own.status(scheduled);
        Some(Status { cycles: status.cycles + present, ..status })
    }

    /// # Errors
    /// [`Error::Unknown`].
    pub fn status(&mut self, id: VirtualId) -> Result<Status, Error> {
        let scheduled = self.is_scheduled(id);
        let port = self.own(id)?.port;
        let since = self.ports[port].since;
        let present = if scheduled { Monitor(&mut self.board).cycles(port).saturating_sub(since) } else { 0 };
        let status = self.own(id)?.status(scheduled);
        Ok(Status { cycles: status.cycles + present, ..status })
    }
}

/// Names of a board's ports: the accelerator's and its number among those of its type.
fn port_names<B: Board>(board: &B) -> Vec<String> {
    let ports = &board.description().ports;
    let number = |at: usize| ports[..at].iter().filter(|other| other.name == ports[at].name).count();
    (0..ports.len()).map(|at| format!("{}{}", ports[at].name, number(at))).collect()
}

/// The two halves of a GUID, the first one higher.
pub fn guid_halves(guid: &str) -> [u64; 2] {
    let digits: String = guid.chars().filter(char::is_ascii_hexdigit).collect();
    let number = u128::from_str_radix(&digits, 16).unwrap_or(0);
    [(number >> 64) as u64, number as u64]
}

/// The header and the GUID as the page shows them.
fn header(guid: &str) -> BTreeMap<u32, u64> {
    let [high, low] = guid_halves(guid);
    BTreeMap::from([(HEADER[0], 0x1000_0100_0000_0000), (HEADER[1], low), (HEADER[2], high)])
}
