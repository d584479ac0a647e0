//! The things that the new API server of a move gets: its place, what it has to load, the states of the sessions.

use super::{Purpose, Refusal, Stage, tell};
use crate::{
    NodeError,
    epoll::Token,
    life::ServerEvent,
    node::{Core, CoreState},
    tenants::copies,
};
use aviary_control::{Assignment, DeviceDescriptors, Preparation, SessionDescriptors, StateDescriptors, ToServer};
use aviary_gate::GrantPage;
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    time::Instant,
};

/// The way on of a session in an API server that gets its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Adopted {
    /// It is made anew at once.
    Moved,
    /// Nothing of it is made until the order to do so.
    Parked,
    /// As that, and the order follows. It does not go on there.
    Rehearsed,
}

/// The node's ends of a session's grant page and bell, and the files of both, where devices may be scheduled.
pub(crate) type OwnDevices = (Option<(GrantPage, OwnedFd)>, Option<[OwnedFd; 2]>);

impl Core {
    /// The new API server loads what the sessions need, while they still run. It is their tenant's from here on. Without
    /// their greetings it only loads the modules.
    pub(super) fn prepare(&self, state: &mut CoreState, source: u64) -> Result<(), NodeError> {
        let gone = || NodeError::HandOver(0, io::ErrorKind::NotFound.into());
        let one = state.moves.of(source).ok_or_else(gone)?;
        let target = one.target.ok_or_else(gone)?;
        let announced: Vec<_> = one.parts.iter_mut().map(|(id, part)| (*id, part.announced.take())).collect();
        for (id, announced) in announced {
            let (assignment, api, spec_hash) = self.assignment_in(state, target, id)?;
            let (modules, vendors) = (assignment.modules, assignment.vendors);
            let (user, private) = (assignment.user, assignment.private);
            let wanted = Preparation { session: id, modules, api, spec_hash, user, private, vendors };
            let announced: Vec<_> = announced.iter().map(AsFd::as_fd).collect();
            tell(state, target, &ToServer::Prepare(wanted), &announced)
                .map_err(|error| NodeError::HandOver(0, error))?;
        }
        Ok(())
    }

    /// The session as the new API server is assigned it, its API and the hash of its specification.
    fn assignment_in(
        &self,
        state: &mut CoreState,
        target: u64,
        id: u64,
    ) -> Result<(Assignment, String, u64), NodeError> {
        let gone = || NodeError::HandOver(0, io::ErrorKind::NotFound.into());
        let seat = state.registry.servers.get(&target).and_then(|server| server.seat.as_ref()).ok_or_else(gone)?;
        let slot = seat.slot;
        let session = state.registry.sessions.get(&id).ok_or_else(gone)?;
        let (tenant, is_own) = (session.tenant.clone(), session.identity.is_nodes_own(session.guest.uid));
        let user = state.user_for(&tenant, is_own)?;
        let session = state.registry.sessions.get(&id).ok_or_else(gone)?;
        Ok((self.assignment(id, session, slot, user), session.api.clone(), session.spec_hash))
    }

    /// A spare API server with a place in the tenant's page, for the guest of `source`.
    pub(crate) fn reserve_target(&self, state: &mut CoreState, source: u64) -> Result<u64, Refusal> {
        let none = |error: &dyn std::fmt::Display| Refusal::not_now(format!("there is no new API server: {error}"));
        let known = state.registry.servers.get(&source).and_then(|known| known.guest.zip(known.seat.as_ref()));
        let (guest, tenant) =
            known.map(|(guest, seat)| (guest, seat.tenant.clone())).ok_or_else(|| none(&"no guest"))?;
        if state.registry.spares() == 0 {
            self.spawn_spare(state).map_err(|error| none(&error))?;
        }
        self.refill_soon(state);
        let tenant = state.tenants.called(&tenant);
        let seat = state.accounts.assign_slot(&tenant).map_err(|error| none(&error))?;
        match state.registry.reserve_spare(guest) {
            Some((id, server)) => {
                server.seat = Some(seat);
                state.registry.change(id, ServerEvent::SessionGiven, Instant::now());
                Ok(id)
            }
            None => {
                state.accounts.release(&seat);
                Err(none(&"none is ready"))
            }
        }
    }

    /// All of the state to the new API server.
    pub(super) fn hand_to_target(&self, state: &mut CoreState, source: u64) -> Result<(), NodeError> {
        let gone = || NodeError::HandOver(0, io::ErrorKind::NotFound.into());
        let one = state.moves.of(source).ok_or_else(gone)?;
        let (target, parked) = (one.target.ok_or_else(gone)?, one.purpose == Purpose::Park);
        let adopted = match (parked, one.progress.stage()) {
            (false, _) => Adopted::Moved,
            (true, Stage::Rehearsing) => Adopted::Rehearsed,
            (true, _) => Adopted::Parked,
        };
        let captured: Vec<_> = one.parts.iter_mut().map(|(id, part)| (*id, part.state.take())).collect();
        for (id, captured) in captured {
            let captured = captured.ok_or_else(gone)?;
            let (own, devices_file) = self.adopt(state, target, id, &captured, adopted)?;
            if let Some(part) = state.moves.of(source).and_then(|one| one.parts.get_mut(&id)) {
                (part.devices, part.devices_file) = (own, devices_file);
                part.state = parked.then_some(captured);
            }
        }
        Ok(())
    }

    /// The state of one session to an API server. Answers the node's ends of its new grant page and bell, and their files.
    pub(crate) fn adopt(
        &self,
        state: &mut CoreState,
        target: u64,
        id: u64,
        captured: &StateDescriptors<OwnedFd>,
        adopted: Adopted,
    ) -> Result<OwnDevices, NodeError> {
        let gone = || NodeError::HandOver(0, io::ErrorKind::NotFound.into());
        let (own, theirs) = self.new_devices().map_err(|errno| NodeError::HandOver(0, errno.into()))?.unzip();
        let (assignment, ..) = self.assignment_in(state, target, id)?;
        let (parked, rehearsal) = (adopted != Adopted::Moved, adopted == Adopted::Rehearsed);
        let assignment = Assignment { parked, rehearsal, ..assignment };
        let session = state.registry.sessions.get(&id).ok_or_else(gone)?;
        let seat = state.registry.servers.get(&target).and_then(|server| server.seat.as_ref()).ok_or_else(gone)?;
        let page = state.accounts.descriptor(seat).ok_or_else(gone)?;
        let stats = session.pages.as_ref().map(|pages| pages.stats_file.as_fd()).ok_or_else(gone)?;
        let devices = theirs.as_ref();
        let devices = devices
            .map(|(page, bell): &(OwnedFd, OwnedFd)| DeviceDescriptors { page: page.as_fd(), bell: bell.as_fd() });
        let guest = captured.guest.as_fd();
        let orders = aviary_control::order_sockets().map_err(|errno| NodeError::HandOver(0, errno.into()))?;
        let orders = [orders[0].as_fd(), orders[1].as_fd()];
        let session_descriptors = SessionDescriptors { guest, tenant_page: page, stats, orders, devices };
        let mut all = session_descriptors.list();
        // The guest's socket goes once.
        all.extend(captured.list().into_iter().skip(1));
        let devices_file = theirs.as_ref().map(copies).transpose();
        let devices_file = devices_file.map_err(|errno| NodeError::HandOver(0, errno.into()))?;
        let adopt = ToServer::Adopt { assignment: Box::new(assignment), heap: captured.heap.is_some() };
        tell(state, target, &adopt, &all).map_err(|error| NodeError::HandOver(0, error))?;
        if let Some(server) = state.registry.servers.get_mut(&target) {
            server.log.serves(id);
        }
        Ok((own, devices_file))
    }

    /// Further connections of a guest go to another API server from now on, and its end is that one's.
    pub(crate) fn hand_on(&self, state: &mut CoreState, source: u64, target: u64) {
        state.registry.hand_on(source, target);
        let watched = state.registry.servers.get(&target).and_then(|server| server.guest_exit.as_ref());
        if let Some(exit) = watched {
            self.epoll.remove(exit.as_fd());
            // Without it the guest's hang-up still ends the session.
            if let Err(error) = self.epoll.add(exit.as_fd(), Token::GuestExit(target)) {
                self.log.warn(error);
            }
        }
    }
}

/// The new API server did not take a message. Its end may be seen there first.
pub(super) fn refusal_of_target(error: &NodeError) -> Refusal {
    match error {
        NodeError::HandOver(_, error)
            if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) =>
        {
            Refusal::not_now("the new API server has ended")
        }
        error => Refusal::not_now(format!("the new API server: {error}")),
    }
}
