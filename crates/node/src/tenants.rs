//! The node's tenants: the tenant of a guest, the assignment of a session, changes while the node runs.

use crate::{
    NodeError, Settings, Tenant, TenantChange,
    accounts::AssignedSlot,
    guest::Guest,
    node::{Core, CoreState},
    report::{self, TenantReport},
    sessions::{Party, Session, SessionPages},
    throttle::further_rate,
    vms::VmGuest,
};
use aviary_control::{
    Assignment, DeviceDescriptors, Patience, ServerUser, SessionDescriptors, ToServer, stats::StatsPage,
};
use aviary_gate::{DEVICE_LIMITS, GrantPage, PageError};
use rustix::event::{EventfdFlags, eventfd};
use std::{
    collections::BTreeSet,
    os::fd::{AsFd, OwnedFd},
};

/// The source of a new session's identity, beside the kernel.
#[derive(Debug)]
pub(crate) enum Identity {
    /// No other: a process of this machine, and the kernel says whose.
    User,
    /// Neither another nor the kernel (`--plain-loopback`): any process of this machine.
    Loopback,
    /// The name in a certificate or token from another machine.
    Remote(String),
    /// The socket at which a virtual machine attached.
    Vm(VmGuest),
}

impl Identity {
    /// True if the kernel says that the guest, of user `uid`, is the node's own user, who may end the node and see
    /// its reports. A tenant's name, which others choose, decides nothing here.
    pub fn is_nodes_own(&self, uid: u32) -> bool {
        matches!(self, Self::User) && uid == rustix::process::geteuid().as_raw()
    }

    /// For people; `uid` is the guest's.
    pub fn user_name(&self, uid: u32) -> String {
        match self {
            Self::User => format!("user {uid}"),
            Self::Loopback => "who shows nothing (--plain-loopback)".into(),
            Self::Remote(name) => format!("who shows {:?}", name),
            Self::Vm(guest) => format!("VM {}", guest.vm.escape_debug()),
        }
    }
}

impl CoreState {
    /// A tenant is known by its entry, or because it has attached once.
    pub fn check_known(&self, name: &str) -> Result<(), NodeError> {
        let configured = self.tenants.list.iter().any(|tenant| tenant.name == name);
        let attached =
            [&self.accounts, &self.card_accounts].iter().flat_map(|all| all.names()).any(|known| known == name);
        match configured || attached {
            true => Ok(()),
            false => Err(NodeError::NoTenantNamed(name.to_owned())),
        }
    }

    /// Those at cards, too.
    pub fn sessions_of_tenant(&self, name: &str) -> usize {
        self.registry.sessions_of_tenant(name) + self.cards.sessions_of_tenant(name)
    }

    /// Those at cards, too.
    pub fn sessions_of_party(&self, party: &Party) -> usize {
        let at_cards = if let Party::User(uid) = party { self.cards.sessions_of_user(*uid) } else { 0 };
        self.registry.sessions_of_party(party) + at_cards
    }

    /// Whose a guest is, as the configuration says now. `None`: a VM that may not attach any more.
    pub fn owner(&self, identity: &Identity, uid: u32) -> Option<Tenant> {
        Some(match identity {
            Identity::User | Identity::Loopback => self.tenants.of(uid),
            Identity::Remote(name) => self.tenants.named(name),
            Identity::Vm(guest) => self.tenants.called(self.vms.tenant_of(&guest.vm)?),
        })
    }
}

/// Page and bell of a session's devices: the node's, and those for its API server.
pub(crate) type NewDevices = ((GrantPage, OwnedFd), (OwnedFd, OwnedFd));

/// Descriptors for an API server.
struct NewPages {
    stats: OwnedFd,
    devices: Option<(OwnedFd, OwnedFd)>,
}

/// Page and bell, once more.
pub(crate) fn copies((page, bell): &(OwnedFd, OwnedFd)) -> rustix::io::Result<[OwnedFd; 2]> {
    Ok([rustix::io::fcntl_dupfd_cloexec(page, 3)?, rustix::io::fcntl_dupfd_cloexec(bell, 3)?])
}

impl Core {
    /// The tenant of a new session, unless that has too many.
    pub(crate) fn tenant_for(&self, state: &CoreState, guest: &Guest, identity: &Identity) -> Result<String, String> {
        let seated = state.registry.server_of(guest).and_then(|id| state.registry.servers.get(&id)?.seat.as_ref());
        let tenant = match seated {
            // A process stays with its tenant, also if the configuration has changed.
            Some(seat) => Some(state.tenants.called(&seat.tenant)),
            None => state.owner(identity, guest.uid),
        };
        let tenant = tenant.ok_or_else(|| format!("{} may not attach any more", identity.user_name(guest.uid)))?;
        match tenant.sessions {
            Some(most) if state.sessions_of_tenant(&tenant.name) >= most => {
                Err(format!("tenant {} has {most} sessions already", tenant.name))
            }
            _ => Ok(tenant.name),
        }
    }

    /// Hands a session to its API server, which gets a place in the tenant's page with its first one.
    pub(crate) fn assign(&self, state: &mut CoreState, id: u64, session: &mut Session) -> Result<u32, NodeError> {
        let gone = || NodeError::HandOver(0, std::io::ErrorKind::NotFound.into());
        let own = session.identity.is_nodes_own(session.guest.uid);
        let user = state.user_for(&session.tenant, own)?;
        let server = state.registry.servers.get_mut(&session.server).ok_or_else(gone)?;
        let tenant = state.tenants.called(&session.tenant);
        let seat: &AssignedSlot = match &mut server.seat {
            Some(seat) => seat,
            none => {
                if let Some(groups) = &self.groups {
                    groups.join(session.server, &tenant.name);
                }
                none.insert(state.accounts.assign_slot(&tenant)?)
            }
        };
        let socket = session.socket().ok_or_else(gone)?;
        let page = state.accounts.descriptor(seat).ok_or_else(gone)?;
        let slot = seat.slot;
        let assignment = self.assignment(id, session, slot, user);
        let pid = server.process.pid();
        server.log.serves(id);
        let failed = |error: std::io::Error| NodeError::HandOver(pid, error);
        let (pages, theirs) = self.new_pages().map_err(|errno| failed(errno.into()))?;
        let devices = theirs.devices.as_ref();
        let devices = devices.map(|(page, bell)| DeviceDescriptors { page: page.as_fd(), bell: bell.as_fd() });
        let orders = aviary_control::order_sockets().map_err(|errno| failed(errno.into()))?;
        let descriptors = SessionDescriptors {
            guest: socket.as_fd(),
            tenant_page: page,
            stats: theirs.stats.as_fd(),
            orders: [orders[0].as_fd(), orders[1].as_fd()],
            devices,
        };
        let message = ToServer::Assign(Box::new(assignment));
        let sent = aviary_control::send(server.process.control.as_fd(), &message, &descriptors.list(), Patience::None);
        sent.map_err(failed)?;
        session.pages = Some(pages);
        Ok(pid)
    }

    /// A session as an API server with this slot in the tenant's page hears of it.
    pub(crate) fn assignment(&self, id: u64, session: &Session, slot: u32, user: Option<ServerUser>) -> Assignment {
        let permissions = &session.permissions;
        Assignment {
            session: id,
            tenant: session.tenant.clone(),
            guest: session.guest_pid(),
            modules: self.config.modules.clone(),
            vendors: self.config.vendors.clone(),
            slot,
            threads: permissions.threads,
            apis: permissions.apis.clone(),
            functions: permissions.functions.clone(),
            only_devices: permissions.only_devices.clone(),
            schedulable: self.scheduling.is_some(),
            slice_ns: self.slice(),
            private: self.config.private,
            own: session.identity.is_nodes_own(session.guest.uid),
            in_vm: session.in_vm().is_some(),
            user,
            movable: self.config.movable,
            move_every: self.config.test_move_every,
            ..Assignment::default()
        }
    }

    /// Nanoseconds that a part of long work shall take now; 0: work goes whole.
    fn slice(&self) -> u64 {
        match &self.scheduling {
            Some(scheduling) => scheduling.slice(),
            None => self.config.launch_slice.map_or(0, |slice| u64::try_from(slice.as_nanos()).unwrap_or(0)),
        }
    }

    /// The memory that one session shares with one API server; new each time: a process that an earlier one has left
    /// behind may still have the last ones.
    fn new_pages(&self) -> rustix::io::Result<(SessionPages, NewPages)> {
        let stats = StatsPage::create()?;
        let shown = StatsPage::open(stats.as_fd())?;
        let stats_file = rustix::io::fcntl_dupfd_cloexec(&stats, 3)?;
        let (own, theirs) = self.new_devices()?.unzip();
        let devices_file = theirs.as_ref().map(copies).transpose()?;
        let pages = SessionPages { stats: shown, stats_file, devices: own, devices_file };
        Ok((pages, NewPages { stats, devices: theirs }))
    }

    /// Grant page and bell, where devices may be scheduled: the node's and the API server's.
    pub(crate) fn new_devices(&self) -> rustix::io::Result<Option<NewDevices>> {
        let Some(scheduling) = &self.scheduling else { return Ok(None) };
        let page = GrantPage::create()?;
        let own = GrantPage::open(page.as_fd())?;
        scheduling.prepare(&own);
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let own_bell = rustix::io::fcntl_dupfd_cloexec(&bell, 3)?;
        Ok(Some(((own, own_bell), (page, bell))))
    }

    /// An API server was reaped: what it held is its tenant's again.
    pub(crate) fn settle_accounts(&self, state: &mut CoreState, seat: &AssignedSlot) {
        let suppressed = state.accounts.release(seat);
        if suppressed > 0 {
            self.log.warn(format_args!(
                "{suppressed} refusals of tenant {} were not logged (rate limit)",
                seat.tenant.escape_debug()
            ));
        }
    }

    /// Until the configuration is read again.
    pub fn change_tenant(&self, change: &TenantChange) -> Result<TenantReport, NodeError> {
        let mut state = self.state();
        state.check_known(&change.name)?;
        let mut tenants = state.tenants.clone();
        tenants.change(change);
        let tenant = tenants.called(&change.name);
        if tenant.device_limits.len() > DEVICE_LIMITS {
            return Err(NodeError::Page(tenant.name, PageError::ManyLimits.to_string()));
        }
        let CoreState { accounts, card_accounts, .. } = &mut *state;
        for accounts in [accounts, card_accounts] {
            accounts.apply(&tenant).map_err(|error| NodeError::Page(tenant.name.clone(), error.to_string()))?;
        }
        state.tenants = tenants;
        self.publish_shares(&tenant);
        self.tell_cards_share(&state, &tenant);
        self.log.info(format_args!("tenant {} was changed: {change:?}", tenant.name));
        Ok(report::tenant(&state, tenant))
    }

    /// Reads the configuration again. What does not work leaves everything as it was. Answers what is worth knowing.
    pub fn reload(&self) -> Result<Vec<String>, NodeError> {
        let read = self
            .config
            .reload
            .as_ref()
            .ok_or_else(|| NodeError::Reload("the node has no configuration file (--config)".into()))?;
        // Without the lock: a slow disk holds up nobody else.
        let answer = read.run().map_err(NodeError::Reload);
        if let Err(error) = &answer {
            self.log.error(error);
        }
        let Settings { tenants, sessions_per_user, attach_rate, devices, vms, cards, mut notes } = answer?;
        if let (Some(scheduling), Some(rules)) = (&self.scheduling, &devices) {
            scheduling.set_rules(rules.clone());
        }
        let mut state = self.state();
        state.tenants = tenants;
        state.sessions_per_user = sessions_per_user;
        state.throttle.set_rate(attach_rate);
        state.further.set_rate(further_rate(attach_rate));
        notes.extend(self.change_vms(&mut state, &vms));
        notes.extend(self.change_cards(&mut state, &cards, devices.as_ref()));
        let names: BTreeSet<String> = state.accounts.names().into_iter().chain(state.card_accounts.names()).collect();
        for name in names {
            let tenant = state.tenants.called(&name);
            let CoreState { accounts, card_accounts, .. } = &mut *state;
            for accounts in [accounts, card_accounts] {
                if let Err(error) = accounts.apply(&tenant) {
                    notes.push(format!("tenant {name} keeps some of its earlier limits: {error}"));
                }
            }
            self.publish_shares(&tenant);
            self.tell_cards_share(&state, &tenant);
            let sessions = state.sessions_of_tenant(&name);
            if let Some(most) = tenant.sessions.filter(|most| sessions > *most) {
                let name = name.escape_debug();
                notes.push(format!("tenant {name} has more sessions than it may have now: {sessions}, not {most}"));
            }
        }
        notes.extend(state.revocation_notes());
        drop(state);
        // Idle sessions may be parked from now on.
        self.wake();
        self.listen_for_vms();
        if let Some(scheduling) = &self.scheduling {
            let refused = scheduling.reload_policies();
            notes.extend(refused.into_iter().map(|why| format!("the policy that runs stays: {why}")));
        }
        self.log.info("the configuration was read again");
        notes.iter().for_each(|note| self.log.warn(note));
        Ok(notes)
    }

    fn publish_shares(&self, tenant: &Tenant) {
        if let Some(scheduling) = &self.scheduling {
            scheduling.set_share(&tenant.name, tenant.share());
        }
    }

    pub fn tenants(&self) -> Vec<TenantReport> {
        let state = self.state();
        let configured = state.tenants.list.iter().map(|tenant| tenant.name.clone());
        let attached = state.accounts.names().into_iter().chain(state.card_accounts.names());
        let mut names: Vec<String> = configured.chain(attached).collect();
        names.sort();
        names.dedup();
        let whole = |name: &String| -> Tenant { state.tenants.called(name) };
        names.iter().map(|name| report::tenant(&state, whole(name))).collect()
    }
}
