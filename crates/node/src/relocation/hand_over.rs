//! Orders to the source that come with descriptors, and what the target gets: its place, what it has to load, the states of
//! the sessions. The node looks into none of it.

use super::{
    machine::Refusal,
    records::Record,
    request::MAX_STOP_MS,
    send::tell,
    table::{Purpose, Stage},
};
use crate::attach::foreign::HeldState;
use crate::epoll::Token;
use crate::node::{Core, CoreState};
use crate::servers::late::sockets_between;
use crate::sessions::end::end_server;
use crate::sessions::life::ServerEvent;
use crate::tenants::assigned::copies;
use aviary_control::{
    Assignment, CaptureDescriptors, DeviceDescriptors, MoveOrder, Preparation, SessionDescriptors, ToServer, state_file,
};
use aviary_gate::GrantPage;
use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Instant,
};

/// The way on of a session in an API server that gets its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Adopted {
    /// It is rebuilt at once.
    Moved,
    /// Nothing of it is rebuilt until the order to do so.
    Parked,
    /// As that, and the order follows. It does not continue there.
    Rehearsed,
}

/// The node's ends of a session's grant page and bell, and the files of both, where devices may be scheduled.
type OwnDevices = (Option<(GrantPage, OwnedFd)>, Option<[OwnedFd; 2]>);

impl Core {
    /// The source reports what the sessions need, in files of the node's own.
    pub(super) fn order_announcement(state: &CoreState, record: &mut Record) -> Result<(), Refusal> {
        let announce = MoveOrder::Announce { attempt: record.number() };
        let mut copies = Vec::new();
        for part in record.parts.values_mut() {
            let file = state_file().and_then(|file| Ok((rustix::io::fcntl_dupfd_cloexec(&file, 3)?, file)));
            let (copy, file) = file.map_err(|errno| no_descriptors(&errno.into()))?;
            part.announced = Some(file);
            copies.push(copy);
        }
        let mut files = record.parts.keys().zip(&copies);
        files.try_for_each(|(id, file)| order(state, record.source, *id, announce, &[file.as_fd()]))
    }

    /// The source stops the sessions and writes their state, into a place that the node has made.
    pub(super) fn order_capture(&self, state: &mut CoreState, record: &mut Record) -> Result<(), Refusal> {
        let seat = state.registry.servers.get(&record.source).and_then(|server| server.seat.as_ref());
        let tenant = seat.map_or(String::new(), |seat| seat.tenant.clone());
        let tenant = tenant.as_str();
        let room = self.config.parked_memory.saturating_sub(state.kept_bytes());
        let room = room.min(state.tenancy.accounts.swap_room(tenant));
        let park = match record.relocation.purpose() {
            Purpose::Park | Purpose::Keep => {
                let sessions: Vec<u64> = record.parts.keys().copied().collect();
                let own = self.room_of_kept(state, &sessions, room);
                Some(room.saturating_add(own.ok_or_else(others_give)?))
            }
            _ => None,
        };
        let stop_ms = u64::try_from(record.relocation.stop().as_millis()).unwrap_or(MAX_STOP_MS);
        let capture = MoveOrder::Capture { attempt: record.number(), stop_ms, park };
        if let Some(attempt) = &mut record.attempt {
            attempt.ordered.get_or_insert(Instant::now());
        }
        for (id, part) in &mut record.parts {
            let held = HeldState::new(&self.aside, &tenant.into());
            let (held, from) = held.map_err(|error| no_descriptors(&error))?;
            let handing = sockets_between(&self.aside, tenant).map_err(|errno| no_descriptors(&errno.into()))?;
            let [first, second] = &handing;
            let handing = [first.as_fd(), second.as_fd()];
            let place = CaptureDescriptors { handing, file: held.file.as_fd(), rest: from.as_fd() };
            order(state, record.source, *id, capture, &place.list())?;
            part.state = Some(held);
        }
        Ok(())
    }

    /// The target loads what the sessions need, while they still run. It is their tenant's from here on. Without their
    /// greetings it only loads the modules.
    pub(super) fn prepare(&self, state: &mut CoreState, record: &mut Record) -> Result<(), Refusal> {
        let target = record.target().ok_or_else(no_target)?;
        for (id, part) in &mut record.parts {
            let announced = part.announced.take();
            let (assignment, api, spec_hash) = self.assignment_in(state, target, *id)?;
            let Assignment { modules, vendors, user, private, .. } = assignment;
            let wanted = Preparation { session: *id, modules, api, spec_hash, user, private, vendors };
            let announced: Vec<_> = announced.iter().map(AsFd::as_fd).collect();
            tell(state, target, &ToServer::Prepare(wanted), &announced).map_err(refusal_of_target)?;
        }
        Ok(())
    }

    /// The target has rehearsed the sessions, or could not, and ends: a fresh API server is the target from now on.
    pub(super) fn replace_target(&self, state: &mut CoreState, record: &mut Record) -> Result<(), Refusal> {
        let attempt = record.attempt.as_mut().ok_or_else(no_target)?;
        let rehearser = attempt.target.ok_or_else(no_target)?;
        // Before the next one is reserved, which is for the same guest.
        end_server(&mut state.registry, rehearser);
        (attempt.target, attempt.rehearser) = (Some(self.reserve_target(state, record.source)?), Some(rehearser));
        Ok(())
    }

    /// The session as the new API server is assigned it, its API and the hash of its specification.
    fn assignment_in(&self, state: &mut CoreState, target: u64, id: u64) -> Result<(Assignment, String, u64), Refusal> {
        let seat = state.registry.servers.get(&target).and_then(|server| server.seat.as_ref());
        let slot = seat.ok_or_else(no_target)?.slot;
        let session = state.registry.sessions.get(&id).ok_or_else(no_target)?;
        let (tenant, is_own) = (session.tenant.clone(), session.identity.is_nodes_own(session.guest.uid));
        let user = state.user_for(&tenant, is_own);
        let user = user.map_err(|error| Refusal::not_now(format!("the new API server: {error}")))?;
        let session = state.registry.sessions.get(&id).ok_or_else(no_target)?;
        let assignment = self.assignment(&state.tenancy.shares.rules(), id, session, slot, user);
        Ok((assignment, session.api.clone(), session.spec_hash))
    }

    /// A spare API server with a place in the tenant's page and the libraries of `source`, for the guest of that.
    pub(super) fn reserve_target(&self, state: &mut CoreState, source: u64) -> Result<u64, Refusal> {
        let none = |error: &dyn std::fmt::Display| Refusal::not_now(format!("no new API server is available: {error}"));
        let known = state.registry.servers.get(&source).and_then(|known| known.guest.zip(known.seat.as_ref()));
        let (guest, tenant) =
            known.map(|(guest, seat)| (guest, seat.tenant.clone())).ok_or_else(|| none(&"no guest"))?;
        let vendor = state.registry.servers.get(&source).and_then(|known| known.vendor.clone());
        self.have_spare(state, vendor.as_ref()).map_err(|error| none(&error))?;
        let tenant = state.tenants().called(&tenant);
        let seat = state.tenancy.accounts.assign_slot(&tenant).map_err(|error| none(&error))?;
        match state.registry.reserve_spare(guest, vendor.as_ref()) {
            Some((id, server)) => {
                server.seat_at(seat, &self.aside);
                state.registry.change(id, ServerEvent::SessionGiven, Instant::now());
                Ok(id)
            }
            None => {
                state.tenancy.accounts.release(&seat);
                Err(none(&"none is ready"))
            }
        }
    }

    /// The states of all sessions to the target.
    pub(super) fn hand_over(&self, state: &mut CoreState, record: &mut Record) -> Result<(), Refusal> {
        self.check_parked_memory(state, record)?;
        let target = record.target().ok_or_else(no_target)?;
        let adopted = match (record.relocation.purpose(), record.relocation.stage()) {
            (Purpose::Move | Purpose::Check | Purpose::Keep, _) => Adopted::Moved,
            (_, Stage::Rehearsing) => Adopted::Rehearsed,
            (Purpose::Park | Purpose::Upgrade, _) => Adopted::Parked,
        };
        self.hand_states(state, record, target, adopted)
    }

    pub(super) fn hand_states(
        &self,
        state: &mut CoreState,
        record: &mut Record,
        target: u64,
        adopted: Adopted,
    ) -> Result<(), Refusal> {
        for (id, part) in &mut record.parts {
            let held = part.state.take().ok_or_else(no_target)?;
            let devices = self.adopt(state, target, *id, &held, adopted);
            // A state that is kept outlives an attempt that fails.
            part.state = Some(held).filter(|_| adopted != Adopted::Moved);
            (part.devices, part.devices_file) = devices?;
        }
        Ok(())
    }

    /// The state of one session to an API server. Answers the node's ends of its new grant page and bell, and their files.
    fn adopt(
        &self,
        state: &mut CoreState,
        target: u64,
        id: u64,
        captured: &HeldState,
        adopted: Adopted,
    ) -> Result<OwnDevices, Refusal> {
        let (own, theirs) = self.new_devices().map_err(refusal_of_target)?.unzip();
        let (assignment, ..) = self.assignment_in(state, target, id)?;
        let (parked, rehearsal) = (adopted != Adopted::Moved, adopted == Adopted::Rehearsed);
        let assignment = Assignment { parked, rehearsal, ..assignment };
        let session = state.registry.sessions.get(&id).ok_or_else(no_target)?;
        let seat = state.registry.servers.get(&target).and_then(|server| server.seat.as_ref());
        let page = seat.and_then(|seat| state.tenancy.accounts.descriptor(seat)).ok_or_else(no_target)?;
        let stats = session.pages.as_ref().map(|pages| pages.stats_file.as_fd()).ok_or_else(no_target)?;
        let devices = theirs.as_ref();
        let devices = devices.map(|(page, bell)| DeviceDescriptors { page: page.as_fd(), bell: bell.as_fd() });
        let orders = sockets_between(&self.aside, &session.tenant).map_err(refusal_of_target)?;
        let orders = [orders[0].as_fd(), orders[1].as_fd()];
        // In place of the guest's socket the one in which that waits.
        let guest = captured.rest.as_fd();
        let session_descriptors = SessionDescriptors { guest, tenant_page: page, stats, orders, devices };
        let mut all = session_descriptors.list();
        all.push(captured.file.as_fd());
        let devices_file = theirs.as_ref().map(copies).transpose().map_err(refusal_of_target)?;
        tell(state, target, &ToServer::Adopt(Box::new(assignment)), &all).map_err(refusal_of_target)?;
        if let Some(server) = state.registry.servers.get_mut(&target) {
            server.log.serves(id);
        }
        Ok((own, devices_file))
    }

    /// Further connections of a guest go to another API server from now on, and its end is that one's.
    pub(super) fn hand_on(&self, state: &mut CoreState, source: u64, target: u64) {
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
fn refusal_of_target(error: impl Into<io::Error>) -> Refusal {
    let error = error.into();
    match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Refusal::not_now("the new API server has ended"),
        _ => Refusal::not_now(format!("cannot pass a session to the new API server: {error}")),
    }
}

fn no_target() -> Refusal {
    Refusal::not_now("there is no new API server")
}

fn others_give() -> Refusal {
    Refusal::not_now("other sessions give back host memory that they have kept for swaps: try again")
}

fn no_descriptors(error: &io::Error) -> Refusal {
    Refusal::not_now(format!("there is no place for its state: {error}"))
}

/// An order without which the relocation cannot continue.
fn order(
    state: &CoreState,
    source: u64,
    session: u64,
    order: MoveOrder,
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), Refusal> {
    tell(state, source, &ToServer::Move { session, order }, descriptors)
        .map_err(|_| Refusal::not_now("its API server does not accept messages"))
}
