//! Accepting connections: who it is, whether it may, when it is its turn.

pub(crate) mod pending;

use pending::{PendingAttach, spare_descriptor};

use crate::attach::foreign::{CONNECTION, nobody};
use crate::attach::guest::Guest;
use crate::attach::identity::Identity;
use crate::epoll::Token;
use crate::error::NodeError;
use crate::gateways::Admission;
use crate::grants::entry::GrantEntry;
use crate::node::{Core, CoreState, Goal};
use crate::relocation::request::SessionMoves;
use crate::servers::late::check_late;
use crate::sessions::life::SessionState;
use crate::sessions::permissions::Permissions;
use crate::sessions::registry::{Party, Session};
use crate::users::user_database::{Entrance, Unidentified};
use aviary_control::{Foreign, refuse_card_client};
use aviary_wire::{
    WIRE_VERSION, Welcome,
    attach::welcome_status,
    tenant::{GRANT_KEY, is_reserved},
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, SocketFlags, accept_with};
use std::{
    os::fd::{AsFd, OwnedFd},
    sync::{MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime},
};

/// Pause when there are no descriptors left to accept with.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(50);

/// Connections of one user that wait for their turn; more are refused, which costs a descriptor less.
const MAX_PENDING_PER_USER: usize = 256;
/// Connections of one process: each of its guest libraries makes one.
const MOST_OF_ONE: usize = 64;
/// Connections accepted before other events have their turn.
const ACCEPTS_PER_EVENT: usize = 16;

/// Which of the node's sockets a connection was made to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Door {
    Guests,
    /// Gateways and VM devices alone are served there.
    Helpers,
    /// The socket of a grant, by the grant's place.
    Grant(u64),
}

/// A guest that connects: the source of its identity, as which guest it is served, which session it resumes.
struct Identified {
    identity: Identity,
    guest: Guest,
    resumes: Option<u128>,
}

impl PendingAttach {
    /// Whose sessions it is counted among, and who must not attach too often.
    fn party(&self, state: &CoreState) -> Party {
        match &self.identity {
            Identity::User | Identity::Loopback => Party::User(self.guest.uid),
            // Names of several certificates may be one tenant's.
            Identity::Remote(name) => Party::Tenant(state.tenants().named(name).name),
            Identity::Vm(guest) => Party::Vm(guest.vm.clone()),
            Identity::Grant(entry) => Party::Tenant(entry.name.clone()),
        }
    }
}

impl Core {
    /// Not for ever: more of them make the listener readable again.
    pub(crate) fn accept_some(&self) {
        let mut state = self.state();
        for _ in 0..ACCEPTS_PER_EVENT {
            let Some(listener) = &state.attaching.listener else { return };
            match accept_with(&listener.socket, SocketFlags::CLOEXEC) {
                Ok(socket) => {
                    self.queue_attach(&mut state, self.foreign_socket(socket), Door::Guests);
                    self.keep_reserve();
                }
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::WOULDBLOCK) => return,
                // The kernel says so even if nobody waits.
                Err(Errno::MFILE | Errno::NFILE) => match self.refuse_without_descriptors(&listener.socket) {
                    Ok(()) | Err(Errno::INTR | Errno::CONNABORTED) => {}
                    Err(Errno::WOULDBLOCK) => return,
                    Err(errno) => return self.pause_accepting(state, errno),
                },
                Err(errno) => return self.pause_accepting(state, errno),
            }
        }
    }

    /// A connection that came to a private node in another way than by its listener.
    pub(crate) fn admit(&self, socket: OwnedFd) {
        let mut state = self.state();
        if state.attaching.listener.is_some() {
            self.queue_attach(&mut state, self.foreign_socket(socket), Door::Guests);
        }
    }

    /// One connection of a helper process; more of them make the listener readable again.
    pub(crate) fn accept_helper(&self) {
        let Some(door) = &self.helper_door else { return };
        let mut state = self.state();
        if state.attaching.listener.is_none() {
            return;
        }
        match accept_with(&door.listener, SocketFlags::CLOEXEC) {
            Ok(socket) => self.queue_attach(&mut state, self.foreign_socket(socket), Door::Helpers),
            Err(Errno::INTR | Errno::CONNABORTED | Errno::WOULDBLOCK) => {}
            Err(errno) => self.pause_accepting(state, errno),
        }
    }

    /// One connection at a grant's socket; more of them make the listener readable again.
    pub(crate) fn accept_at_grant(&self, place: u64) {
        let mut state = self.state();
        let Some(listener) = state.grants.listener_at(place) else { return };
        if state.attaching.listener.is_none() {
            return;
        }
        match accept_with(listener, SocketFlags::CLOEXEC) {
            Ok(socket) => self.queue_attach(&mut state, self.foreign_socket(socket), Door::Grant(place)),
            Err(Errno::INTR | Errno::CONNABORTED | Errno::WOULDBLOCK) => {}
            Err(errno) => self.pause_accepting(state, errno),
        }
    }

    /// A connection that was accepted. Descriptors may be in flight in it from its first moment on.
    pub(crate) fn foreign_socket(&self, socket: OwnedFd) -> Foreign {
        Foreign::new(socket, &self.aside, &nobody(), CONNECTION)
    }

    pub(crate) fn pause_accepting(&self, state: MutexGuard<'_, CoreState>, errno: Errno) {
        self.log.error(format_args!("cannot accept a connection: {errno}"));
        drop(state);
        std::thread::sleep(EXHAUSTED_PAUSE);
    }

    /// With no descriptor left, a connection is accepted with the one kept for this, told why, and closed: it
    /// would wait for a minute otherwise.
    fn refuse_without_descriptors(&self, listener: &Foreign) -> Result<(), Errno> {
        let mut reserve = self.reserve.lock().unwrap_or_else(PoisonError::into_inner);
        drop(reserve.take());
        let result = accept_with(listener, SocketFlags::CLOEXEC).map(|socket| {
            self.log.error("connection refused: the node has no free file descriptor; raise its limit (ulimit -n)");
            refuse(&self.foreign_socket(socket), "the node has no free file descriptor");
        });
        *reserve = spare_descriptor();
        result
    }

    /// There may have been none to keep when it was needed last.
    fn keep_reserve(&self) {
        let mut reserve = self.reserve.lock().unwrap_or_else(PoisonError::into_inner);
        if reserve.is_none() {
            *reserve = spare_descriptor();
        }
    }

    /// One connection; more of them make the listener readable again, after other events had their turn.
    pub(crate) fn accept_remote(&self, place: u64) {
        let Some(listener) = self.remote.get(place as usize) else { return };
        let socket = match accept_with(listener, SocketFlags::CLOEXEC) {
            Ok(socket) => socket,
            Err(Errno::INTR | Errno::CONNABORTED | Errno::WOULDBLOCK) => return,
            Err(errno) => {
                self.log.error(format_args!("cannot accept a connection: {errno}"));
                return std::thread::sleep(EXHAUSTED_PAUSE);
            }
        };
        if self.aims_at(Goal::Drain) {
            return;
        }
        let mut state = self.state();
        let (id, displaced) = state.gateways.arrive(socket, Instant::now());
        if let Some(other) = displaced {
            self.turn_out(&mut state, other, "a newer connection displaced it");
        }
        let watched = state.gateways.silent(id).map(|socket| self.epoll.add(socket, Token::Stranger(id)));
        if let Some(Err(error)) = watched {
            self.tell_refusal(&mut state, format_args!("connection refused: {error}"));
            state.gateways.turn_out(id);
        }
    }

    /// A process is started for a connection that says something, and for no other.
    pub(crate) fn hear_stranger(&self, id: u64) {
        let (mut state, Some((_, command))) = (self.state(), &self.config.remote) else { return };
        let Some(socket) = state.gateways.take_silent(id) else { return };
        // The gateway's copy would keep it registered.
        self.epoll.remove(socket.as_fd());
        let CoreState { gateways, server_users, .. } = &mut *state;
        let access = self.helper_access(server_users.as_mut(), "gateways");
        let started =
            access.and_then(|access| gateways.start(command, &access, id, socket, &self.aside)).and_then(|started| {
                let exit = started.then(|| state.gateways.get(id)).flatten().map(|gateway| gateway.exit.as_fd());
                exit.map_or(Ok(()), |exit| self.epoll.add(exit, Token::GatewayExit(id)))
            });
        if let Err(error) = started {
            self.tell_refusal(&mut state, format_args!("connection refused: {error}"));
        }
    }

    /// Strangers that are silent or slow.
    pub(crate) fn turn_out_overdue(&self, now: Instant) {
        let mut state = self.state();
        for id in state.gateways.overdue(now) {
            self.turn_out(&mut state, id, "authentication timed out");
        }
    }

    /// Its connection is closed now, or when its process has been reaped.
    fn turn_out(&self, state: &mut CoreState, id: u64, why: &str) {
        self.log.debug(format_args!("unauthenticated connection {id} closed: {why}"));
        if let Some(socket) = state.gateways.turn_out(id) {
            self.epoll.remove(socket.as_fd());
        }
    }

    pub(crate) fn reap_gateway(&self, id: u64) {
        let mut state = self.state();
        let Some(mut gateway) = state.gateways.remove(id) else { return };
        // What it has said before it ended counts.
        gateway.hear();
        state.keeping.note_end(gateway.pid(), gateway.yielding());
        drop(state);
        self.epoll.remove(gateway.exit.as_fd());
        let status = gateway.wait().ok();
        let how = status.map_or_else(|| "status unknown".to_owned(), |status| status.to_string());
        self.log.debug(format_args!("a gateway process ended: {how}"));
    }

    fn queue_attach(&self, state: &mut CoreState, socket: Foreign, door: Door) {
        let guest = match Guest::of(socket.as_fd()) {
            Ok(guest) => guest,
            Err(error) => return self.tell_refusal(state, format_args!("connection refused: {error}")),
        };
        if let Door::Grant(place) = door
            && let Some((grant, via)) = state.grants.way_out(place)
        {
            return match self.is_own_process(state, &guest) {
                Some(error) => refuse(&socket, &error.to_string()),
                None => self.carry(state, (place, grant, via), guest, &socket),
            };
        }
        if door == Door::Guests
            && state.tenants().ask_for(guest.uid)
            && state.tenancy.users.has(guest.uid, Instant::now()).is_none()
        {
            return self.ask_for_user(state, socket, guest, Entrance::Guests);
        }
        self.queue_identified(state, socket, guest, door);
    }

    /// It comes back when the user database has answered.
    pub(crate) fn ask_for_user(&self, state: &mut CoreState, socket: Foreign, guest: Guest, entrance: Entrance) {
        if let Err(socket) = state.tenancy.users.ask(socket, guest, entrance, Instant::now()) {
            let why = "too many connections wait for the machine's user database";
            match entrance {
                Entrance::Guests => refuse(&socket, why),
                Entrance::Card(_) => refuse_card_client(socket.as_fd(), Errno::AGAIN),
            }
            self.tell_refusal(state, format_args!("connection of process {} refused: {why}", guest.pid));
        }
    }

    /// Connections about whose users the user database has answered.
    pub(crate) fn accept_identified(&self) {
        let mut state = self.state();
        for Unidentified { socket, guest, entrance, .. } in state.tenancy.users.answered(Instant::now()) {
            match entrance {
                Entrance::Guests => self.queue_identified(&mut state, socket, guest, Door::Guests),
                Entrance::Card(place) => self.admit_identified(&mut state, place, socket, guest),
            }
        }
    }

    fn queue_identified(&self, state: &mut CoreState, mut socket: Foreign, guest: Guest, door: Door) {
        let peer = guest.pid;
        if let (Some(tenant), false) = (state.tenant_of_user(guest.uid), matches!(door, Door::Grant(_))) {
            socket.becomes(&self.aside, &tenant.name.into(), CONNECTION);
        }
        let Identified { identity, guest, resumes } = match self.identify(state, guest, &socket, door) {
            Ok(identified) => identified,
            Err(error) => {
                refuse(&socket, &error.to_string());
                return self.tell_refusal(state, format_args!("connection of process {} refused: {error}", guest.pid));
            }
        };
        if let Some(tenant) = state.owner(&identity, guest.uid) {
            socket.becomes(&self.aside, &tenant.name.into(), CONNECTION);
        }
        let pending = PendingAttach { identity, guest, socket, peer, resumes };
        // The node's own user may end the node.
        let passed = match pending.identity.is_nodes_own(guest.uid) {
            true => Some(pending),
            false => take_turn(state, pending),
        };
        if let Some(pending) = passed {
            self.accept(state, pending);
        }
    }

    /// Connections that wait for their turn do not get it.
    pub(crate) fn refuse_waiting(&self, state: &mut CoreState, why: &str) {
        let waiting: Vec<PendingAttach> =
            state.attaching.throttle.take_all().chain(state.attaching.further.take_all()).collect();
        waiting.iter().for_each(|pending| refuse(&pending.socket, why));
    }

    /// Connections that had to wait for their turn.
    pub(crate) fn accept_due(&self) {
        let mut state = self.state();
        let now = Instant::now();
        while let Some(pending) = state.attaching.throttle.due(now).or_else(|| state.attaching.further.due(now)) {
            if !has_hung_up(&pending.socket) {
                self.accept(&mut state, pending);
            }
        }
    }

    fn accept(&self, state: &mut CoreState, pending: PendingAttach) {
        if let Some(session) = pending.resumes {
            return self.resume(state, &pending, session);
        }
        if let Err(why) = check_room(state, &pending) {
            return self.turn_down(state, &pending, &why, &why);
        }
        let own = pending.identity.is_nodes_own(pending.guest.uid);
        let tenant = match self.tenant_for(state, &pending.guest, &pending.identity) {
            Ok(tenant) => tenant,
            Err(why) => return self.turn_down(state, &pending, &why, &why),
        };
        if let Err(why) = check_late(&self.aside, &state.registry, &tenant, Instant::now()) {
            return self.turn_down(state, &pending, &why, &why);
        }
        let most = state.tenancy.most_tenants;
        if let Err(why) = state.admit_tenant(&tenant, most) {
            return self.turn_down(state, &pending, &why, &why);
        }
        // The user of the API server must be known before the server is started.
        if let Err(error) = state.user_for(&tenant, own) {
            let told = "the node has no user id for the tenant's API servers; its log says why";
            return self.turn_down(state, &pending, told, &error.to_string());
        }
        let PendingAttach { identity, guest, socket, peer, .. } = pending;
        let id = state.registry.new_session_id();
        let session = Session {
            server: 0,
            guest,
            peer,
            identity,
            tenant,
            permissions: Permissions::default(),
            since: SystemTime::now(),
            state: SessionState::Offered { socket, moved: false },
            greeted: false,
            api: String::new(),
            spec_hash: 0,
            pages: None,
            moves: SessionMoves::default(),
            swaps: false,
        };
        self.place(state, id, session);
    }

    /// A tenant's connection for a session that one of its gateways has goes to that gateway, which asks for the ticket.
    fn resume(&self, state: &mut CoreState, pending: &PendingAttach, session: u128) {
        let tenant = match &pending.identity {
            Identity::Remote(name) => name.as_str(),
            Identity::Grant(GrantEntry { key: Some(key), .. }) => key.as_str(),
            _ => "",
        };
        if self.aims_at(Goal::Keep) {
            // Its relay tries again, until it reaches the node that goes on with it.
            return refuse(&pending.socket, "the node is ending");
        }
        if !state.gateways.pass(tenant, session, pending.socket.as_fd()) {
            answer(&pending.socket, welcome_status::OVER, "the session has ended");
        }
    }

    /// `told`: to the guest, who need not know where the node has its files; `why`: in the log.
    fn turn_down(&self, state: &mut CoreState, pending: &PendingAttach, told: &str, why: &str) {
        refuse(&pending.socket, told);
        self.tell_refusal(state, format_args!("connection of process {} refused: {why}", pending.guest.pid));
    }

    /// Guests decide how often there is one: at most ten a second are told.
    pub(crate) fn tell_refusal(&self, state: &mut CoreState, text: std::fmt::Arguments<'_>) {
        if state.attaching.refusals.admit(Instant::now()) {
            self.log.warn(text);
        }
    }

    /// Once in a second in which there were more.
    pub(crate) fn tell_refusals_left_out(&self) {
        if let Some(count) = self.state().attaching.refusals.settle(Instant::now()) {
            self.log.warn(format_args!("{count} more connections were refused in that second and not logged"));
        }
    }

    fn is_of_range(&self, guest: &Guest) -> bool {
        self.config.server_users.as_ref().is_some_and(|users| users.has(guest.uid))
    }

    /// Why a process of the node's own is no guest of a grant; `None`: it is none.
    fn is_own_process(&self, state: &CoreState, guest: &Guest) -> Option<NodeError> {
        match self.is_of_range(guest) {
            true => Some(NodeError::ApiServerUser(guest.uid)),
            false => state.is_api_servers(guest).then_some(NodeError::ApiServerProcess(guest.pid)),
        }
    }

    /// The guest at the other end, and as which it is served. A tenant that has taken its API server over would be
    /// another tenant by attaching from there, with a fresh quota, as often as there are user ids.
    fn identify(
        &self,
        state: &mut CoreState,
        guest: Guest,
        socket: &Foreign,
        door: Door,
    ) -> Result<Identified, NodeError> {
        let of_range = self.is_of_range(&guest);
        if let Door::Grant(place) = door {
            return match (self.is_own_process(state, &guest), state.grants.at(place)) {
                (Some(error), _) => Err(error),
                (None, Some(entry)) => Ok(Identified { identity: Identity::Grant(entry), guest, resumes: None }),
                (None, None) => Err(NodeError::NoGrant),
            };
        }
        if let Some(in_vm) = state.vms.guest_of(guest.pid, socket.as_fd()) {
            let process = guest.within(&in_vm.origin);
            return Ok(Identified { identity: Identity::Vm(in_vm), guest: process, resumes: None });
        }
        let Some(admission) = state.gateways.admit(guest).transpose()? else {
            return match of_range || door == Door::Helpers {
                true => Err(NodeError::ApiServerUser(guest.uid)),
                false if state.is_api_servers(&guest) => Err(NodeError::ApiServerProcess(guest.pid)),
                false => Ok(Identified { identity: Identity::User, guest, resumes: None }),
            };
        };
        let (tenant, guest_as, resumes) = match admission {
            Admission::Attach { tenant, guest } => (tenant, guest, None),
            Admission::Resume { tenant, session } => (tenant, guest, Some(session)),
        };
        let identity = remote_identity(state, tenant)?;
        if resumes.is_none() {
            let memory = match &identity {
                Identity::Remote(name) => state.tenants().named(name).remote_memory(),
                Identity::Grant(entry) => state.tenants().called(&entry.name).remote_memory(),
                _ => u64::MAX,
            };
            state.gateways.tell_memory(guest.pid, memory);
        }
        Ok(Identified { identity, guest: guest_as, resumes })
    }
}

/// `told`: what a gateway reports of the peer; empty: it shows nothing.
pub(crate) fn remote_identity(state: &CoreState, told: String) -> Result<Identity, NodeError> {
    if is_reserved(&told) {
        return Err(NodeError::ReservedName(told));
    }
    if told.starts_with(GRANT_KEY) {
        return state.grants.of_key(&told).map(Identity::Grant).ok_or(NodeError::NoGrant);
    }
    if state.grants.knows(&told) {
        return Err(NodeError::OfGrant(told));
    }
    Ok(if told.is_empty() { Identity::Loopback } else { Identity::Remote(told) })
}

/// `None`: it waits, or was refused.
fn take_turn(state: &mut CoreState, pending: PendingAttach) -> Option<PendingAttach> {
    let party = pending.party(state).to_string();
    let throttle = match state.registry.server_of(&pending.guest) {
        Some(_) => &mut state.attaching.further,
        None => &mut state.attaching.throttle,
    };
    if throttle.waiting(&party) >= MAX_PENDING_PER_USER {
        refuse(&pending.socket, &format!("{party} attaches too often"));
        return None;
    }
    throttle.pass(&party, pending, Instant::now())
}

fn check_room(state: &CoreState, pending: &PendingAttach) -> Result<(), String> {
    let (party, most) = (pending.party(state), state.attaching.sessions_per_user);
    if state.sessions_of_party(&party) >= most {
        return Err(format!("{party} has {most} sessions already"));
    }
    let server = state.registry.server_of(&pending.guest);
    if server.is_some_and(|server| state.registry.sessions_of(server).len() >= MOST_OF_ONE) {
        return Err(format!("the process has {MOST_OF_ONE} connections already"));
    }
    Ok(())
}

/// Says why to a guest that gets no API server. It may have gone, and it may be
/// slow: the answer fits the socket's buffer or is dropped.
pub(crate) fn refuse(socket: &Foreign, why: &str) {
    answer(socket, welcome_status::REFUSED, why);
}

/// `status`: one of [`welcome_status`].
fn answer(socket: &Foreign, status: u64, why: &str) {
    let answer = Welcome { wire_version: WIRE_VERSION, status, text: why.into(), ..Welcome::default() };
    let _ = rustix::net::send(socket, &answer.to_bytes(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
}

fn has_hung_up(socket: &Foreign) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut polled = [PollFd::new(socket, PollFlags::RDHUP)];
    poll(&mut polled, Some(&now)).is_ok_and(|ready| ready > 0)
}
