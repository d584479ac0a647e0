//! Virtual accelerators that go to another port, or to another card.

use aviary_card::{Board, PortDescription};

use super::{Error, Mediator};
use crate::virtual_accelerator::{Failure, Phase, VirtualAccelerator, VirtualId};

/// A virtual accelerator between two cards, with its memory. A job that ran is saved in that memory.
#[derive(Debug)]
pub struct Departed {
    own: VirtualAccelerator,
    kind: PortDescription,
}

impl<B: Board> Mediator<B> {
    /// Moves a virtual accelerator to another port of the same type. Its job goes on there.
    ///
    /// # Errors
    /// [`Error::WrongPort`]; [`Error::Mapping`] if its memory cannot be mapped there: it stays at its port, and its job goes on
    /// there. If the memory cannot be mapped where it was either, nothing is mapped, and the job has failed.
    pub fn move_to(&mut self, id: VirtualId, port: usize) -> Result<(), Error> {
        let from = self.own(id)?.port;
        let described = &self.board.description().ports;
        if described.get(port).is_none_or(|there| there.guid != described[from].guid) {
            return Err(Error::WrongPort(port));
        }
        if from == port {
            return Ok(());
        }
        self.pause(id);
        let ports = self.ports.len();
        let own = self.accelerators.get_mut(&id).ok_or(Error::Unknown)?;
        if let Some(base) = own.base {
            let (old, new) = (own.place.base(from, ports), own.place.base(port, ports));
            if let Err(error) = own.mappings.change_slice(&mut self.board, base, old, new) {
                if own.mappings.is_empty() {
                    own.phase = Phase::Failed(Failure::Silent);
                }
                return Err(error.into());
            }
        }
        own.port = port;
        self.ports[from].order.leave(id);
        self.ports[port].order.enter(id, &own.owner);
        Ok(())
    }

    /// Takes a virtual accelerator from the card. Afterwards nothing of it is under way or mapped here.
    ///
    /// # Errors
    /// [`Error::Unknown`].
    pub fn depart(&mut self, id: VirtualId) -> Result<Departed, Error> {
        self.pause(id);
        let own = self.accelerators.remove(&id).ok_or(Error::Unknown)?;
        own.mappings.hide(&mut self.board, own.place.base(own.port, self.ports.len()));
        self.places.give_back(own.place);
        self.ports[own.port].order.leave(id);
        let kind = self.board.description().ports[own.port].clone();
        Ok(Departed { own, kind })
    }

    /// Takes in a virtual accelerator of another card, whose job goes on here, at the port that [`Mediator::open`] chooses.
    ///
    /// # Errors
    /// [`Error::NoAccelerator`] also if the card's accelerator of this type is another version: with other registers, or another
    /// saved state. [`Error::NoPlace`]; [`Error::Mapping`]. The virtual accelerator is given back.
    pub fn arrive(
        &mut self,
        departed: Departed,
        may: impl Fn(&str) -> bool,
    ) -> Result<VirtualId, (Box<Departed>, Error)> {
        let Departed { own, kind } = &departed;
        let known = self.board.description().ports.contains(kind);
        let opened = match known {
            true => self.open(&kind.guid, own.owner.clone(), may),
            false => Err(Error::NoAccelerator),
        };
        let id = match opened {
            Ok(id) => id,
            Err(error) => return Err((Box::new(departed), error)),
        };
        let ports = self.ports.len();
        let Some(fresh) = self.accelerators.get_mut(&id) else { return Err((Box::new(departed), Error::Unknown)) };
        let slice = fresh.place.base(fresh.port, ports);
        let shown = own.base.map_or(Ok(()), |base| own.mappings.show(&mut self.board, base, slice));
        if let Err(error) = shown {
            // Mappings from before the failure go, too.
            own.mappings.hide(&mut self.board, slice);
            self.close(id);
            return Err((Box::new(departed), error.into()));
        }
        let (port, place) = (fresh.port, fresh.place);
        *fresh = VirtualAccelerator { port, place, ..departed.own };
        Ok(id)
    }
}
