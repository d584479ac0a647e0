//! The sessions, and the API servers that serve them. Plain bookkeeping: no I/O but what dropping a descriptor does.

use crate::attach::foreign::CONTROL;
use crate::attach::guest::Guest;
use crate::attach::identity::Identity;
use crate::epoll::is_readable;
use crate::relocation::request::SessionMoves;
use crate::servers::api_server::ApiServer;
use crate::servers::line_limit::LineLimit;
use crate::servers::server_log::ServerLog;
use crate::sessions::life::{ServerEvent, ServerState, SessionState};
use crate::sessions::permissions::Permissions;
use crate::tenants::accounts::AssignedSlot;
use crate::tenants::vendor_set::VendorSet;
use crate::vms::VmGuest;
use aviary_control::{Aside, PartyName, stats::StatsPage};
use aviary_gate::GrantPage;
use aviary_wire::Shown;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    os::fd::OwnedFd,
    sync::Arc,
    time::{Instant, SystemTime},
};

/// Whose sessions are counted together, and how often it attaches: all remote guests reach the node by way of one user's
/// gateways, and all of a VM by way of its device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Party {
    User(u32),
    /// Of other machines, or of a grant.
    Tenant(String),
    Vm(String),
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Party::User(uid) => write!(f, "user {uid}"),
            Party::Tenant(name) => write!(f, "tenant {}", Shown(name)),
            Party::Vm(name) => write!(f, "VM {}", Shown(name)),
        }
    }
}

/// One accepted connection, handed to an API server.
#[derive(Debug)]
pub struct Session {
    pub server: u64,
    pub guest: Guest,
    /// The process that has attached: that of `guest`, or the session's own gateway.
    pub peer: u32,
    pub identity: Identity,
    /// Whose limits it has.
    pub tenant: String,
    /// With which it goes on whatever the configuration says later.
    pub permissions: Permissions,
    pub since: SystemTime,
    pub state: SessionState,
    /// The guest has said what it wants, as its API server says.
    pub greeted: bool,
    /// Empty until it has started.
    pub api: String,
    /// Of the specification that its guest library was made from, once it has started.
    pub spec_hash: u64,
    /// The memory that it shares with its API server; `None`: it was given to none yet.
    pub pages: Option<SessionPages>,
    pub moves: SessionMoves,
    /// Its API server has said that it knows the orders about device memory, and has objects whose memory can leave.
    pub swaps: bool,
}

/// Pages that the node makes for one session in one API server. No other process of the node's ever maps them.
#[derive(Debug)]
pub struct SessionPages {
    pub stats: StatsPage,
    /// For the API server that the session may move to: its counters go on.
    pub stats_file: OwnedFd,
    /// Page and bell, where devices may be scheduled, until the session has started: then the scheduler has them.
    pub devices: Option<(GrantPage, OwnedFd)>,
    /// Files of the same page and bell, for the program that may take the node's place.
    pub devices_file: Option<[OwnedFd; 2]>,
}

impl Session {
    /// The process in a virtual machine for which `guest`, the VM's device, has attached.
    pub fn in_vm(&self) -> Option<&VmGuest> {
        if let Identity::Vm(guest) = &self.identity { Some(guest) } else { None }
    }

    /// Whose sessions it is counted among.
    pub fn party(&self) -> Party {
        match &self.identity {
            Identity::User | Identity::Loopback => Party::User(self.guest.uid),
            Identity::Remote(_) | Identity::Grant(_) => Party::Tenant(self.tenant.clone()),
            Identity::Vm(guest) => Party::Vm(guest.vm.clone()),
        }
    }

    /// For people: the guest's process id, in its VM if it is in one.
    pub fn guest_pid(&self) -> u32 {
        self.in_vm().map_or(self.guest.pid, |guest| guest.origin.pid)
    }

    /// For people.
    pub fn owner(&self) -> String {
        match self.in_vm() {
            Some(VmGuest { vm, origin }) => format!("process {} in VM {}", origin.pid, vm.escape_debug()),
            None => format!("guest {} (user {})", self.guest.pid, self.guest.uid),
        }
    }

    /// For people.
    pub fn program(&self) -> String {
        self.in_vm().map_or_else(|| self.guest.program(), |guest| guest.origin.program.clone())
    }
}

/// An API server process and, once it is taken, the guest process it belongs to.
#[derive(Debug)]
pub struct ServerRecord {
    pub process: ApiServer,
    pub log: ServerLog,
    pub guest: Option<Guest>,
    /// From its first session to its end.
    pub seat: Option<AssignedSlot>,
    /// Watches the guest process.
    pub guest_exit: Option<OwnedFd>,
    pub state: ServerState,
    /// Of the log.
    pub lines: LineLimit,
    /// An operator has ended it.
    pub by_operator: bool,
    /// The libraries that it has loaded or will; `None`: the node's own.
    pub vendor: Option<Arc<VendorSet>>,
}

impl ServerRecord {
    /// From here on it is the seat's tenant's, and so is what is in its control socket.
    pub fn seat_at(&mut self, seat: AssignedSlot, aside: &Aside) -> &AssignedSlot {
        let tenant: PartyName = seat.tenant.as_str().into();
        self.process.control.becomes(aside, &tenant, CONTROL);
        self.seat.insert(seat)
    }

    /// True if its guest process has ended, whether or not the node's loop has seen that.
    pub fn has_lost_guest(&self) -> bool {
        self.guest_exit.as_ref().is_some_and(is_readable)
    }
}

#[derive(Debug, Default)]
pub struct Registry {
    pub servers: HashMap<u64, ServerRecord>,
    pub sessions: BTreeMap<u64, Session>,
    pub(crate) by_guest: HashMap<Guest, u64>,
    spares: Vec<u64>,
    pub(crate) last_server: u64,
    pub(crate) last_session: u64,
}

impl Registry {
    pub fn add_spare(&mut self, process: ApiServer, log: ServerLog, vendor: Option<Arc<VendorSet>>) -> u64 {
        self.last_server += 1;
        let server = ServerRecord {
            process,
            log,
            guest: None,
            seat: None,
            guest_exit: None,
            state: ServerState::Spare,
            lines: LineLimit::default(),
            by_operator: false,
            vendor,
        };
        self.servers.insert(self.last_server, server);
        self.spares.push(self.last_server);
        self.last_server
    }

    /// Process id of an API server; 0: it is not there.
    pub fn process_of(&self, server: u64) -> u32 {
        self.servers.get(&server).map_or(0, |known| known.process.pid())
    }

    /// Spares with these libraries.
    pub fn spares(&self, vendor: Option<&Arc<VendorSet>>) -> usize {
        self.spares.iter().filter(|id| self.loads(**id, vendor)).count()
    }

    fn loads(&self, server: u64, vendor: Option<&Arc<VendorSet>>) -> bool {
        self.servers.get(&server).is_some_and(|known| known.vendor.as_ref() == vendor)
    }

    /// The last one that was started.
    fn pop_spare(&mut self, vendor: Option<&Arc<VendorSet>>) -> Option<u64> {
        let at = self.spares.iter().rposition(|id| self.loads(*id, vendor))?;
        Some(self.spares.remove(at))
    }

    /// The vendor set of a session's API server.
    pub fn vendor_of(&self, session: &Session) -> Option<&Arc<VendorSet>> {
        self.servers.get(&session.server)?.vendor.as_ref()
    }

    /// Guests served now. Nobody waits for a process that cannot end.
    pub fn busy(&self) -> usize {
        let unending = self.servers.values().filter(|server| server.state == ServerState::Unending).count();
        self.servers.len() - self.spares.len() - unending
    }

    pub fn server_of(&self, guest: &Guest) -> Option<u64> {
        self.by_guest.get(guest).copied()
    }

    /// Gives a spare API server with these libraries to a guest.
    pub fn take_spare(&mut self, guest: Guest, vendor: Option<&Arc<VendorSet>>) -> Option<u64> {
        let id = self.pop_spare(vendor)?;
        let server = self.servers.get_mut(&id)?;
        server.guest = Some(guest);
        server.guest_exit = guest.watch();
        if guest.is_named() {
            self.by_guest.insert(guest, id);
        }
        Some(id)
    }

    /// Takes a spare API server for the sessions of a guest that has one; connections of the guest still go to that.
    pub fn reserve_spare(&mut self, guest: Guest, vendor: Option<&Arc<VendorSet>>) -> Option<(u64, &mut ServerRecord)> {
        let id = self.pop_spare(vendor)?;
        let server = self.servers.get_mut(&id)?;
        server.guest = Some(guest);
        Some((id, server))
    }

    /// The sessions of `source` have moved: connections of its guest go to `target`, which ends with it.
    pub fn hand_on(&mut self, source: u64, target: u64) {
        let Some(old) = self.servers.get_mut(&source) else { return };
        let (guest, exit) = (old.guest, old.guest_exit.take());
        if let Some(new) = self.servers.get_mut(&target) {
            new.guest_exit = exit;
        }
        if let Some(guest) = guest.filter(Guest::is_named) {
            self.by_guest.insert(guest, target);
        }
    }

    /// No further connection of its guest goes to this API server.
    pub fn retire(&mut self, id: u64) {
        if let Some(guest) = self.servers.get(&id).and_then(|server| server.guest)
            && self.by_guest.get(&guest) == Some(&id)
        {
            self.by_guest.remove(&guest);
        }
        self.spares.retain(|spare| *spare != id);
    }

    pub fn remove_server(&mut self, id: u64) -> Option<ServerRecord> {
        self.retire(id);
        self.servers.remove(&id)
    }

    pub fn new_session_id(&mut self) -> u64 {
        self.last_session += 1;
        self.last_session
    }

    pub fn sessions_of(&self, server: u64) -> Vec<u64> {
        self.sessions.iter().filter(|(_, session)| session.server == server).map(|(id, _)| *id).collect()
    }

    pub fn sessions_of_party(&self, party: &Party) -> usize {
        self.sessions.values().filter(|session| session.party() == *party).count()
    }

    pub fn sessions_of_tenant(&self, name: &str) -> usize {
        self.sessions.values().filter(|session| session.tenant == name).count()
    }

    /// When the next API server is due to be killed, or to be given up.
    pub fn next_kill(&self) -> Option<Instant> {
        self.servers.values().filter_map(|server| server.state.due_at()).min()
    }

    /// An API server, unless it is not heard any more.
    pub fn heard(&self, id: u64) -> Option<&ServerRecord> {
        self.servers.get(&id).filter(|server| server.state.is_heard())
    }

    /// API servers of a tenant that cannot end.
    pub fn unending_of(&self, tenant: &str) -> usize {
        let whose = |server: &&ServerRecord| server.seat.as_ref().is_some_and(|seat| seat.tenant == tenant);
        self.servers.values().filter(whose).filter(|server| server.state == ServerState::Unending).count()
    }

    pub fn change(&mut self, server: u64, event: ServerEvent, now: Instant) {
        if let Some(server) = self.servers.get_mut(&server) {
            server.state = server.state.after(event, now);
        }
    }

    /// After an API server has lost a session: whether that was its last one.
    pub fn look_for_sessions(&mut self, server: u64, now: Instant) {
        if !self.sessions.values().any(|session| session.server == server) {
            self.change(server, ServerEvent::LastSessionOver, now);
        }
    }

    /// API servers that had a guest and have no session.
    pub fn without_sessions(&self) -> impl Iterator<Item = (&u64, &ServerRecord)> {
        let busy: BTreeSet<u64> = self.sessions.values().map(|session| session.server).collect();
        self.servers.iter().filter(move |(id, server)| server.guest.is_some() && !busy.contains(id))
    }
}
