//! The turns at the ports: which virtual accelerator has one, and until when. Time is the card's.

use aviary_card::{Board, Stop};

use super::Mediator;
use super::port::PortTurns;
use crate::faults::JobFault;
use crate::switching;
use crate::virtual_accelerator::{Phase, VirtualId};

impl<B: Board> Mediator<B> {
    /// Does the virtual accelerator have its port at the moment?
    pub(super) fn is_scheduled(&self, id: VirtualId) -> bool {
        self.accelerators.get(&id).is_some_and(|own| self.ports[own.port].resident == Some(id))
    }

    /// Takes the port away from a virtual accelerator, if it has it; a running job is saved.
    pub(super) fn pause(&mut self, id: VirtualId) {
        let Some(own) = self.accelerators.get_mut(&id) else { return };
        let port = &mut self.ports[own.port];
        if port.resident != Some(id) {
            return;
        }
        let began = self.board.now();
        let cycles = switching::leave(&mut self.board, own, port.since, self.settings.save_timeout);
        port.order.charge(id, cycles, self.board.now());
        port.switching += self.board.now() - began;
        let port = own.port;
        // Interrupts and faults up to here are this one's: the port raises none in reset.
        self.note_interrupts();
        self.note_io_faults();
        self.ports[port].resident = None;
    }

    /// The same, without saving the job.
    pub(super) fn evict(&mut self, id: VirtualId) {
        if let Some(own) = self.accelerators.get_mut(&id)
            && self.ports[own.port].resident == Some(id)
            && own.phase == Phase::Running
        {
            own.phase = Phase::Idle;
        }
        self.pause(id);
    }

    /// Runs the card for at most this many cycles of device time. Returns early when no job runs or waits.
    pub fn run(&mut self, cycles: u64) {
        let end = self.board.now().saturating_add(cycles);
        while self.board.now() < end {
            for port in 0..self.ports.len() {
                self.turn(port);
            }
            let running = |port: &&PortTurns| {
                port.resident.and_then(|id| self.accelerators.get(&id)).is_some_and(|own| own.phase == Phase::Running)
            };
            let contended: Vec<bool> = (0..self.ports.len()).map(|port| !self.waiting(port).is_empty()).collect();
            let busy = self.ports.iter().filter(running).count();
            if busy == 0 && !contended.contains(&true) {
                return;
            }
            // The next turn that ends while others wait.
            let ends =
                self.ports.iter().zip(&contended).filter(|(_, contended)| **contended).map(|(port, _)| port.ends);
            let until = ends.min().unwrap_or(end).min(end);
            let now = self.board.now();
            if until > now {
                let stopped = self.board.advance(until - now);
                self.note_interrupts();
                self.note_io_faults();
                if stopped != Stop::Elapsed {
                    self.look_at_jobs();
                }
            }
        }
    }

    /// A job runs, or a virtual accelerator waits for its port: [`Mediator::run`] has something to do.
    pub fn is_busy(&self) -> bool {
        self.accelerators.values().any(|own| own.phase == Phase::Running || own.is_waiting())
    }

    /// Virtual accelerators that wait for this port.
    fn waiting(&self, port: usize) -> Vec<VirtualId> {
        let at = self.accelerators.iter().filter(|(_, own)| own.port == port && own.is_waiting());
        at.map(|(id, _)| *id).collect()
    }

    /// Gives the port to the next one, if it is its turn.
    fn turn(&mut self, port: usize) {
        let waiting = self.waiting(port);
        if waiting.is_empty() {
            return;
        }
        let resident = self.ports[port].resident;
        let runs = resident.and_then(|id| self.accelerators.get(&id)).is_some_and(|own| own.phase == Phase::Running);
        let slot = &self.ports[port];
        let precedes = || resident.is_some_and(|resident| slot.order.ends_turn(resident, &waiting));
        if runs && self.board.now() < slot.ends && !precedes() {
            return;
        }
        if let Some(resident) = resident {
            self.pause(resident);
        }
        // The one that was paused waits again.
        let waiting = self.waiting(port);
        let began = self.board.now();
        let Some((next, turn)) = self.ports[port].order.next(&waiting, began) else { return };
        let Some(own) = self.accelerators.get_mut(&next) else { return };
        let since = switching::enter(&mut self.board, own);
        let slot = &mut self.ports[port];
        slot.resident = Some(next);
        slot.since = since;
        slot.switching += self.board.now() - began;
        slot.came = self.board.now();
        slot.ended = None;
        slot.ends = slot.came + turn;
        self.note_interrupts();
    }

    /// Hands interrupts to the residents of their ports.
    pub(super) fn note_interrupts(&mut self) {
        let raised = self.board.take_interrupts();
        for (number, port) in self.ports.iter().enumerate() {
            let vectors = (raised >> (4 * number) & 0xf) as u8;
            if vectors != 0
                && let Some(own) = port.resident.and_then(|id| self.accelerators.get_mut(&id))
            {
                own.interrupts |= vectors;
            }
        }
    }

    /// Hands refusals of the IO page table to the residents of their ports.
    fn note_io_faults(&mut self) {
        let (faults, _) = self.board.take_io_faults();
        for fault in &faults {
            let port = self.ports.get(usize::from(fault.port));
            let own = port.and_then(|port| port.resident).and_then(|id| self.accelerators.get_mut(&id));
            let Some(own) = own.filter(|own| own.refusal.is_none()) else { continue };
            let Some(base) = own.base else { continue };
            own.refusal = Some(JobFault::of_io(fault, own.place.base(own.port, self.ports.len()), base));
        }
    }

    pub(super) fn look_at_jobs(&mut self) {
        for port in &mut self.ports {
            let Some(id) = port.resident else { continue };
            if let Some(own) = self.accelerators.get_mut(&id)
                && switching::look(&mut self.board, own)
            {
                // The port may go to the next one; its owner reads the registers until then.
                port.ends = 0;
                port.ended = Some(self.board.now());
                if matches!(own.phase, Phase::Failed(_)) {
                    self.board.note_failed_job();
                }
            }
        }
    }
}
