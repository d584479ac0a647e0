//! The node's tenants: the tenant of a guest, the assignment of a session, changes while the node runs.

use crate::attach::guest::Guest;
use crate::attach::identity::Identity;
use crate::attach::throttle::further_rate;
use crate::config::Settings;
use crate::error::NodeError;
use crate::node::{Core, CoreState};
use crate::report::{self, TenantReport};
use crate::scheduling::rules::Rules;
use crate::servers::late::sockets_between;
use crate::sessions::registry::{Party, Session, SessionPages};
use crate::tenants::accounts::AssignedSlot;
use crate::tenants::tenancy::Tenancy;
use crate::tenants::tenant::{Tenant, TenantChange, Tenants};
use aviary_control::{
    Assignment, DeviceDescriptors, Patience, ServerUser, SessionDescriptors, ToServer, stats::StatsPage,
};
use aviary_gate::{DEVICE_LIMITS, GrantPage, PageError};
use rustix::event::{EventfdFlags, eventfd};
use std::{
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::Instant,
};

impl CoreState {
    /// The settings of tenants now.
    pub fn tenants(&self) -> Arc<Tenants> {
        self.tenancy.shares.tenants()
    }

    /// Tells the sessions of a tenant what it may have now. Answers what did not work.
    fn limit_sessions(&self, tenant: &Tenant) -> Option<String> {
        let of_tenant = self.registry.sessions.values().filter(|session| session.tenant == tenant.name);
        let files = of_tenant.filter_map(|session| Some(session.pages.as_ref()?.stats_file.as_fd()));
        let limit = |file| StatsPage::limit(file, &tenant.limits, &tenant.device_limits);
        let failed: Vec<_> = files.filter_map(|file| limit(file).err()).collect();
        let failed = failed.first()?;
        let name = tenant.name.escape_debug();
        Some(format!("tenant {name}: not all sessions have the new limits ({failed}): they keep the earlier ones"))
    }

    /// A tenant is known by its entry, or because it has attached once.
    pub fn check_known(&self, name: &str) -> Result<(), NodeError> {
        let configured = self.tenants().list.iter().any(|tenant| tenant.name == name);
        match configured || self.tenancy.names_of_accounts().contains(name) {
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

    /// The tenant of a user of this machine; `None`: it has none, and is refused.
    pub fn tenant_of_user(&self, uid: u32) -> Option<Tenant> {
        self.tenants().of(uid, self.tenancy.users.has(uid, Instant::now()).unwrap_or(false))
    }

    /// Whose a guest is, as the configuration says now. `None`: a VM that may not attach any more, or a user who may not.
    pub fn owner(&self, identity: &Identity, uid: u32) -> Option<Tenant> {
        Some(match identity {
            Identity::User | Identity::Loopback => self.tenant_of_user(uid)?,
            Identity::Remote(name) => self.tenants().named(name),
            Identity::Vm(guest) => self.tenants().called(self.vms.tenant_of(&guest.vm)?),
            Identity::Grant(entry) => self.grants.admits(entry).then(|| self.tenants().called(&entry.name))?,
        })
    }
}

/// Page and bell of a session's devices: the node's, and those for its API server.
pub(crate) type NewDevices = ((GrantPage, OwnedFd), (OwnedFd, OwnedFd));

/// Descriptors for an API server.
pub(crate) struct NewPages {
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
            // A grant's guests are its own alone: a process is not served for it and for another one.
            Some(seat) if self.is_of_another_grant(state, guest, identity, &seat.tenant) => {
                return Err(format!("process {} is served as tenant {} already", guest.pid, seat.tenant));
            }
            // A process stays with its tenant, also if the configuration has changed.
            Some(seat) => Some(state.tenants().called(&seat.tenant)),
            None => state.owner(identity, guest.uid),
        };
        let tenant = tenant.ok_or_else(|| match identity {
            Identity::Vm(_) | Identity::Grant(_) => {
                format!("{} may no longer attach", identity.user_name(guest.uid))
            }
            _ => format!(
                "user {} has neither a tenant ([tenants] users) nor an entry in the user database (unknown_users = \"refuse\")",
                guest.uid
            ),
        })?;
        match tenant.sessions {
            Some(most) if state.sessions_of_tenant(&tenant.name) >= most => {
                Err(format!("tenant {} has {most} sessions already", tenant.name))
            }
            _ => Ok(tenant.name),
        }
    }

    fn is_of_another_grant(&self, state: &CoreState, guest: &Guest, identity: &Identity, seated: &str) -> bool {
        let of_grant = matches!(identity, Identity::Grant(_)) || state.grants.knows(seated);
        of_grant && state.owner(identity, guest.uid).is_none_or(|tenant| tenant.name != seated)
    }

    /// Hands a session to its API server, which gets a place in the tenant's page with its first one.
    pub(crate) fn assign(&self, state: &mut CoreState, id: u64, session: &mut Session) -> Result<u32, NodeError> {
        let gone = || NodeError::HandOver(0, std::io::ErrorKind::NotFound.into());
        let own = session.identity.is_nodes_own(session.guest.uid);
        let user = state.user_for(&session.tenant, own)?;
        let tenant = state.tenants().called(&session.tenant);
        self.seat(state, session.server, &tenant)?;
        let server = state.registry.servers.get_mut(&session.server).ok_or_else(gone)?;
        let seat = server.seat.as_ref().ok_or_else(gone)?;
        let socket = session.socket().ok_or_else(gone)?;
        let page = state.tenancy.accounts.descriptor(seat).ok_or_else(gone)?;
        let slot = seat.slot;
        let assignment = self.assignment(&state.tenancy.shares.rules(), id, session, slot, user);
        let pid = server.process.pid();
        server.log.serves(id);
        let failed = |error: std::io::Error| NodeError::HandOver(pid, error);
        let (pages, theirs) = self.new_pages(&tenant).map_err(|errno| failed(errno.into()))?;
        let devices = theirs.devices.as_ref();
        let devices = devices.map(|(page, bell)| DeviceDescriptors { page: page.as_fd(), bell: bell.as_fd() });
        let orders = sockets_between(&self.aside, &tenant.name).map_err(|errno| failed(errno.into()))?;
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

    /// The API server has a place in the tenant's page from here on.
    pub(crate) fn seat(&self, state: &mut CoreState, id: u64, tenant: &Tenant) -> Result<(), NodeError> {
        let gone = || NodeError::HandOver(0, std::io::ErrorKind::NotFound.into());
        let server = state.registry.servers.get_mut(&id).ok_or_else(gone)?;
        if server.seat.is_none() {
            if let Some(groups) = &self.groups {
                groups.join(id, &tenant.name);
            }
            server.seat_at(state.tenancy.accounts.assign_slot(tenant)?, &self.aside);
        }
        Ok(())
    }

    /// A session as an API server with this slot in the tenant's page hears of it.
    pub(crate) fn assignment(
        &self,
        rules: &Rules,
        id: u64,
        session: &Session,
        slot: u32,
        user: Option<ServerUser>,
    ) -> Assignment {
        let permissions = &session.permissions;
        Assignment {
            shared_memory: rules.shared(),
            // What the file says goes first.
            contexts: rules.contexts().into_iter().chain(self.config.contexts.iter().cloned()).collect(),
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
            swappable: true,
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
    pub(crate) fn new_pages(&self, tenant: &Tenant) -> rustix::io::Result<(SessionPages, NewPages)> {
        let stats = StatsPage::create()?;
        StatsPage::limit(stats.as_fd(), &tenant.limits, &tenant.device_limits)?;
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
        let suppressed = state.tenancy.accounts.release(seat);
        if suppressed > 0 {
            self.log.warn(format_args!(
                "{suppressed} refusals of tenant {} were not logged (rate limit)",
                seat.tenant.escape_debug()
            ));
        }
        state.clear_home_if_idle(&seat.tenant);
    }

    /// Until the configuration is read again.
    pub fn change_tenant(&self, change: &TenantChange) -> Result<TenantReport, NodeError> {
        let mut state = self.state();
        state.check_known(&change.name)?;
        let mut tenants = Tenants::clone(&state.tenants());
        tenants.change(change);
        let tenant = tenants.called(&change.name);
        if tenant.device_limits.len() > DEVICE_LIMITS {
            return Err(NodeError::Page(tenant.name, PageError::ManyLimits.to_string()));
        }
        self.change_shares(&mut state, tenants, None, Some(&tenant.name))?;
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
        let Settings {
            tenants,
            most_tenants,
            sessions_per_user,
            attach_rate,
            devices,
            vms,
            cards,
            fpga_devices,
            mut notes,
        } = answer?;
        let mut state = self.state();
        state.tenancy.most_tenants = most_tenants;
        state.attaching.sessions_per_user = sessions_per_user;
        state.attaching.throttle.set_rate(attach_rate);
        state.attaching.further.set_rate(further_rate(attach_rate));
        notes.extend(self.change_vms(&mut state, &vms));
        notes.extend(self.change_fpga_devices(&mut state, &fpga_devices));
        notes.extend(self.change_cards(&mut state, &cards));
        let (tenants, of_grants) = state.with_grants(tenants);
        notes.extend(of_grants);
        notes.extend(self.change_shares(&mut state, tenants, devices, None)?);
        for name in state.tenancy.names_of_accounts() {
            let tenant = state.tenants().called(&name);
            let sessions = state.sessions_of_tenant(&name);
            if let Some(most) = tenant.sessions.filter(|most| sessions > *most) {
                let name = name.escape_debug();
                notes.push(format!("tenant {name} has more sessions than it may have now: {sessions}, not {most}"));
            }
        }
        self.end_stale_zygotes(&mut state);
        notes.extend(state.vendor_notes());
        notes.extend(state.revocation_notes());
        drop(state);
        // Idle sessions may be parked from now on.
        self.wake();
        self.listen_for_vms();
        if let Some(scheduling) = &self.scheduling {
            let refused = scheduling.reload_policies();
            notes.extend(
                refused
                    .into_iter()
                    .map(|why| format!("the policy was not reloaded, the one that runs continues: {why}")),
            );
        }
        self.log.info("the configuration was reloaded");
        notes.iter().for_each(|note| self.log.warn(note));
        Ok(notes)
    }

    /// The one way by which settings of tenants and devices reach those that have asked for them before: accounts, sessions,
    /// scheduler and cards. `only`: of this tenant, and a limit that is not possible leaves everything as it was; `None`: of all, and
    /// what is not possible is among the notes. Rules that are `None` stay.
    pub(crate) fn change_shares(
        &self,
        state: &mut CoreState,
        tenants: Tenants,
        rules: Option<Rules>,
        only: Option<&str>,
    ) -> Result<Vec<String>, NodeError> {
        let names = only.map_or_else(|| state.tenancy.names_of_accounts(), |name| [name.to_owned()].into());
        let mut notes = Vec::new();
        for name in &names {
            let tenant = tenants.called(name);
            let Tenancy { accounts, card_accounts, .. } = &mut state.tenancy;
            for error in [accounts, card_accounts].into_iter().filter_map(|accounts| accounts.apply(&tenant).err()) {
                if only.is_some() {
                    return Err(NodeError::Page(tenant.name, error.to_string()));
                }
                let name = name.escape_debug();
                notes.push(format!(
                    "tenant {name}: not all new limits are in effect ({error}): it keeps the earlier ones"
                ));
            }
        }
        for name in &names {
            let tenant = tenants.called(name);
            notes.extend(state.limit_sessions(&tenant));
            let resized = state.server_users.as_ref().map(|users| users.resize_home(name, tenant.home_bytes()));
            if let Some(Err(error)) = resized {
                let name = name.escape_debug();
                notes.push(format!("tenant {name}: its home keeps its size ({error}): it holds more than it may"));
            }
        }
        let before = state.tenancy.shares.rules();
        let version = state.tenancy.shares.replace(tenants, rules);
        state.swapping.set_rules(&state.tenancy.shares.rules());
        self.log.debug(format_args!("settings of tenants and devices: version {version}"));
        if let Some(scheduling) = &self.scheduling {
            scheduling.change(&names);
        }
        notes.extend(self.tell_cards_shares(state, &before, &names));
        Ok(notes)
    }

    pub fn tenants(&self) -> Vec<TenantReport> {
        let state = self.state();
        let tenants = state.tenants();
        let mut names = state.tenancy.names_of_accounts();
        names.extend(tenants.list.iter().map(|tenant| tenant.name.clone()));
        let whole = |name: &String| -> Tenant { tenants.called(name) };
        names.iter().map(|name| report::tenant(&state, whole(name))).collect()
    }
}
