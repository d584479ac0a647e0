//! Clients of cards: who they are, whether they may, and what is told of them.

use super::{Card, CardReport, CardSession, CardState, Cards, Whose};
use crate::attach::foreign::CONNECTION;
use crate::attach::guest::Guest;
use crate::node::{Core, CoreState, Goal};
use crate::report::SessionReport;
use crate::scheduling::{DeviceReport, Usage};
use crate::servers::late::{check_late, sockets_between};
use crate::sessions::registry::Party;
use crate::tenants::tenant::Tenant;
use crate::users::user_database::Entrance;
use aviary_control::{CardClient, FPGA_API, FPGA_MEMORY, Foreign, Patience, ToCard, refuse_card_client, send};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use std::{
    collections::{BTreeMap, BTreeSet},
    os::fd::AsFd,
    time::{Instant, SystemTime},
};

/// Clients of a card. Each costs descriptors: its socket and its mappings.
const MOST_CLIENTS: usize = 32;
/// Those of one tenant, so that others find room.
const MOST_CLIENTS_OF_ONE: usize = 16;
/// Connections accepted before other events have their turn.
const ACCEPTS_PER_EVENT: usize = 16;

/// The reason why a client is not handed to a card.
#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub(crate) enum CardRefusal {
    /// the card is not running
    NoCard,
    /// user {0} is one of this node's API servers
    ApiServer(u32),
    /// process {0} is an API server of this node or was started by one
    ApiServerProcess(u32),
    /// user {0} has neither a tenant nor an entry in the user database (unknown_users = "refuse")
    Unknown(u32),
    /// tenant {0} may not use the API {FPGA_API:}
    Denied(String),
    /// {whose} has {most} sessions already, which is the limit
    Crowded { whose: String, most: usize },
    /// {0}
    Failed(String),
    /// {0}
    Waits(String),
}

impl CardRefusal {
    /// For the client, whose library explains it.
    fn errno(&self) -> Errno {
        match self {
            CardRefusal::NoCard => Errno::NODEV,
            CardRefusal::ApiServer(_)
            | CardRefusal::ApiServerProcess(_)
            | CardRefusal::Unknown(_)
            | CardRefusal::Denied(_) => Errno::ACCESS,
            CardRefusal::Crowded { .. } | CardRefusal::Waits(_) => Errno::USERS,
            CardRefusal::Failed(_) => Errno::AGAIN,
        }
    }
}

/// Counts of sessions and their limits, and whose they are.
fn check_room<const N: usize>(limits: [(usize, Option<usize>, String); N]) -> Result<(), CardRefusal> {
    for (count, most, whose) in limits {
        if let Some(most) = most.filter(|most| count >= *most) {
            return Err(CardRefusal::Crowded { whose, most });
        }
    }
    Ok(())
}

fn check_fpga(tenant: &Tenant) -> Result<(), CardRefusal> {
    match &tenant.apis {
        Some(apis) if !apis.iter().any(|api| api == FPGA_API) => Err(CardRefusal::Denied(tenant.name.clone())),
        _ => Ok(()),
    }
}

/// For [`check_room`].
fn of_tenant(state: &CoreState, tenant: &Tenant) -> (usize, Option<usize>, String) {
    let whole = format!("tenant {}", tenant.name.escape_debug());
    (state.sessions_of_tenant(&tenant.name), tenant.sessions, whole)
}

impl Core {
    /// Programs connect to a card.
    pub(crate) fn accept_card_clients(&self, place: u64) {
        let mut state = self.state();
        for _ in 0..ACCEPTS_PER_EVENT {
            let Some(card) = state.cards.list.get(&place) else { return };
            match accept_with(&card.listener.socket, SocketFlags::CLOEXEC) {
                Ok(socket) => self.admit_card_client(&mut state, place, self.foreign_socket(socket)),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::WOULDBLOCK) => return,
                Err(errno) => return self.pause_accepting(state, errno),
            }
        }
    }

    /// The end of a connection to the first card for the API server of a session.
    pub(crate) fn card_socket_of(&self, state: &mut CoreState, asker: u64) -> Result<Foreign, Errno> {
        let session = state.registry.sessions.get(&asker).ok_or(Errno::NOTCONN)?;
        let (guest, tenant) = (session.guest, session.tenant.clone());
        let place = *state.cards.list.keys().next().ok_or(Errno::NODEV)?;
        let tenant = state.tenants().called(&tenant);
        let [own, theirs] = sockets_between(&self.aside, &tenant.name)?;
        self.hand_to_card(state, place, (guest, Whose::Session(asker)), tenant, &own).map(|_| theirs).map_err(
            |refusal| {
                self.tell_refusal(state, format_args!("connection of session {asker} to a card refused: {refusal}"));
                refusal.errno()
            },
        )
    }

    fn admit_card_client(&self, state: &mut CoreState, place: u64, socket: Foreign) {
        let guest = match Guest::of(socket.as_fd()) {
            Ok(guest) => guest,
            Err(error) => return self.tell_refusal(state, format_args!("connection to a card refused: {error}")),
        };
        match state.tenants().ask_for(guest.uid) && state.tenancy.users.has(guest.uid, Instant::now()).is_none() {
            true => self.ask_for_user(state, socket, guest, Entrance::Card(place)),
            false => self.admit_identified(state, place, socket, guest),
        }
    }

    /// The node knows whether its user has an entry in the user database.
    pub(crate) fn admit_identified(&self, state: &mut CoreState, place: u64, mut socket: Foreign, guest: Guest) {
        if let Some(tenant) = state.tenant_of_user(guest.uid) {
            socket.becomes(&self.aside, &tenant.name.into(), CONNECTION);
        }
        if let Err(refusal) = self.hand_program_to_card(state, place, guest, &socket) {
            refuse_card_client(socket.as_fd(), refusal.errno());
            let pid = guest.pid;
            self.tell_refusal(state, format_args!("connection of process {pid} to a card refused: {refusal}"));
        }
    }

    fn hand_program_to_card(
        &self,
        state: &mut CoreState,
        place: u64,
        guest: Guest,
        socket: &Foreign,
    ) -> Result<(), CardRefusal> {
        self.refuse_api_server(state, &guest)?;
        let tenant = state.tenant_of_user(guest.uid).ok_or(CardRefusal::Unknown(guest.uid))?;
        check_fpga(&tenant)?;
        let user = Party::User(guest.uid);
        check_room([
            (state.sessions_of_party(&user), Some(state.attaching.sessions_per_user), user.to_string()),
            of_tenant(state, &tenant),
        ])?;
        self.hand_to_card(state, place, (guest, Whose::Program), tenant, socket).map(|_| ())
    }

    /// Otherwise a tenant that has taken its API server over would be another tenant, with a fresh quota.
    fn refuse_api_server(&self, state: &CoreState, guest: &Guest) -> Result<(), CardRefusal> {
        if self.config.server_users.as_ref().is_some_and(|users| users.has(guest.uid)) {
            return Err(CardRefusal::ApiServer(guest.uid));
        }
        match state.is_api_servers(guest) {
            true => Err(CardRefusal::ApiServerProcess(guest.pid)),
            false => Ok(()),
        }
    }

    /// A connection to a card for the device of a VM, whose VMM is `guest`, and its session.
    pub(crate) fn hand_vm_to_card(
        &self,
        state: &mut CoreState,
        place: u64,
        (guest, vm): (Guest, &str),
        tenant: &str,
    ) -> Result<(u64, Foreign), CardRefusal> {
        self.refuse_api_server(state, &guest)?;
        let tenant = state.tenants().called(tenant);
        check_fpga(&tenant)?;
        check_room([of_tenant(state, &tenant)])?;
        let sockets = sockets_between(&self.aside, &tenant.name);
        let [own, theirs] = sockets.map_err(|errno| CardRefusal::Failed(errno.to_string()))?;
        let session = self.hand_to_card(state, place, (guest, Whose::Vm(vm.to_owned())), tenant, &own)?;
        Ok((session, theirs))
    }

    fn hand_to_card(
        &self,
        state: &mut CoreState,
        place: u64,
        (guest, whose): (Guest, Whose),
        tenant: Tenant,
        socket: &Foreign,
    ) -> Result<u64, CardRefusal> {
        check_late(&self.aside, &state.registry, &tenant.name, Instant::now()).map_err(CardRefusal::Waits)?;
        let here = |one: &CardSession| one.card == place;
        let on_card = state.cards.sessions.values().filter(|one| here(one)).count();
        let of_tenant = state.cards.sessions.values().filter(|one| here(one) && one.tenant == tenant.name).count();
        let own = format!("at this card tenant {}", tenant.name.escape_debug());
        check_room([
            (of_tenant, Some(MOST_CLIENTS_OF_ONE), own),
            (on_card, Some(MOST_CLIENTS), "the card".to_owned()),
        ])?;
        let serving = |card: &Card| matches!(card.state, CardState::Serving { .. }) && !self.aims_at(Goal::Drain);
        if !state.cards.list.get(&place).is_some_and(serving) {
            return Err(CardRefusal::NoCard);
        }
        let failed = |error: String| CardRefusal::Failed(error);
        let most = state.tenancy.most_tenants;
        state.admit_tenant(&tenant.name, most).map_err(CardRefusal::Waits)?;
        let seat = state.tenancy.card_accounts.assign_slot(&tenant).map_err(|error| failed(error.to_string()))?;
        let session = state.registry.new_session_id();
        let client = CardClient {
            session,
            tenant: tenant.name.clone(),
            weight: tenant.weight,
            priority: tenant.priority,
            slot: seat.slot,
            only_devices: tenant.only_devices.clone(),
        };
        let process = state.cards.list.get(&place).and_then(Card::process);
        let page = state.tenancy.card_accounts.descriptor(&seat);
        let sent = match (process, page) {
            (Some(process), Some(page)) => {
                let message = ToCard::Admit(Box::new(client));
                let descriptors = [socket.as_fd(), page];
                send(process.control.as_fd(), &message, &descriptors, Patience::None).map_err(|error| error.to_string())
            }
            _ => Err("it has no process".to_owned()),
        };
        if let Err(error) = sent {
            state.tenancy.card_accounts.release(&seat);
            return Err(failed(error));
        }
        let (since, tenant) = (SystemTime::now(), tenant.name);
        self.log.info(format_args!(
            "session {session}: process {} of tenant {} at a card",
            guest.pid,
            tenant.escape_debug()
        ));
        let own = CardSession { card: place, guest, whose, tenant, since, seat, figures: None, moving: None };
        state.cards.sessions.insert(session, own);
        Ok(session)
    }

    /// A client has gone: what it held is its tenant's again.
    pub(super) fn settle_card_session(&self, state: &mut CoreState, id: u64) {
        let Some(session) = state.cards.sessions.remove(&id) else { return };
        state.tenancy.card_accounts.release(&session.seat);
        self.log.info(format_args!("session {id}: ended"));
    }

    /// An operator ends sessions at cards. They are gone when their cards say so.
    pub(crate) fn end_card_sessions(&self, state: &CoreState, chosen: &BTreeSet<u64>) -> Vec<SessionReport> {
        let mut by_card: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for (id, session) in state.cards.sessions.iter().filter(|(id, _)| chosen.contains(id)) {
            by_card.entry(session.card).or_default().push(*id);
        }
        let mut ended = Vec::new();
        for (place, sessions) in by_card {
            let Some(process) = state.cards.list.get(&place).and_then(Card::process) else { continue };
            let order = ToCard::End { sessions: sessions.clone() };
            if let Err(error) = send(process.control.as_fd(), &order, &[], Patience::None) {
                self.log.warn(format_args!("sessions of a card were not ended: {error}"));
                continue;
            }
            for id in sessions {
                if let Some(session) = state.cards.sessions.get(&id) {
                    let (tenant, pid) = (session.tenant.escape_debug(), session.guest.pid);
                    let why = "by an operator (aviary end)";
                    self.log.warn(format_args!("ended: tenant={tenant} session={id} pid={pid}: {why}"));
                    ended.push(report(id, session));
                }
            }
        }
        ended
    }
}

fn report(id: u64, session: &CardSession) -> SessionReport {
    let figures = session.figures.as_ref();
    let count = |of: fn(&aviary_control::ClientFigures) -> u64| figures.map_or(0, of);
    let counters = [
        ("calls".to_owned(), count(|figures| figures.requests)),
        ("device_ns".to_owned(), count(|figures| figures.device_ns)),
        (format!("{FPGA_MEMORY}.used"), count(|figures| figures.mapped_bytes)),
        ("preemptions".to_owned(), count(|figures| figures.preemptions)),
        ("refused".to_owned(), count(|figures| figures.refused)),
    ];
    SessionReport {
        session: id,
        api: FPGA_API.to_owned(),
        program: session.guest.program(),
        guest: session.guest.pid,
        uid: session.guest.uid,
        tenant: session.tenant.clone(),
        vm: if let Whose::Vm(name) = &session.whose { Some(name.clone()) } else { None },
        vendor: None,
        outdated: None,
        server: 0,
        seconds: SystemTime::now().duration_since(session.since).map_or(0, |time| time.as_secs()),
        moving: None,
        moves: crate::relocation::request::SessionMoves::default(),
        parked: None,
        swapped: None,
        away_ms: None,
        counters: counters.into(),
    }
}

impl Cards {
    /// The numbers of a tenant's sessions.
    pub fn ids_of(&self, tenant: &str) -> Vec<u64> {
        self.sessions.iter().filter(|(_, session)| session.tenant == tenant).map(|(id, _)| *id).collect()
    }

    pub fn has(&self, session: u64) -> bool {
        self.sessions.contains_key(&session)
    }

    pub fn report_sessions(&self) -> Vec<SessionReport> {
        let of = |(id, session): (&u64, &CardSession)| {
            let process = self.list.get(&session.card).and_then(Card::process);
            SessionReport { server: process.map_or(0, |process| process.helper.pid()), ..report(*id, session) }
        };
        self.sessions.iter().map(of).collect()
    }

    /// Ports as devices.
    pub fn report_ports(&self) -> Vec<DeviceReport> {
        let mut all = Vec::new();
        for card in self.list.values() {
            let CardState::Serving { ports, .. } = &card.state else { continue };
            for (port, figures) in ports {
                let usage = |tenant: &aviary_control::PortTenant| Usage {
                    tenant: tenant.tenant.clone(),
                    weight: tenant.weight,
                    priority: tenant.priority,
                    used_ns: tenant.used_ns,
                    sessions: tenant.sessions,
                    waiting: tenant.waiting,
                    waits: Default::default(),
                };
                let tenants: Vec<Usage> = figures.tenants.iter().map(usage).collect();
                // Ports that were never used would fill the list.
                if !tenants.is_empty() {
                    all.push(DeviceReport { device: format!("{}/{port}", card.settings.name), tenants });
                }
            }
        }
        all
    }

    pub fn report(&self) -> Vec<CardReport> {
        let of = |card: &Card| {
            let (state, ports) = match &card.state {
                CardState::Due(_) | CardState::Starting(_) => ("starting", Vec::new()),
                CardState::Serving { ports, .. } => ("serving", ports.keys().cloned().collect()),
                CardState::Failed => ("failed", Vec::new()),
            };
            CardReport {
                card: card.settings.name.clone(),
                image: card.settings.image.clone(),
                socket: card.settings.socket.display().to_string(),
                state: state.to_owned(),
                process: card.process().map_or(0, |process| process.helper.pid()),
                ports,
            }
        };
        self.list.values().map(of).collect()
    }
}
