//! The node again, in the program that has taken its place.

use super::{
    account_image::{AccountsImage, BalanceImage},
    image::{Image, ParkImage, ProcessImage, ServerImage, SessionImage, StateImage},
    inheritance::Inherited,
};
use crate::attach::foreign::{HeldState, nobody};
use crate::attach::identity::Identity;
use crate::epoll::Token;
use crate::node::Core;
use crate::relocation::machine::Relocation;
use crate::relocation::records::{Part, Record};
use crate::servers::api_server::{ApiServer, InitEnd};
use crate::servers::line_limit::LineLimit;
use crate::servers::server_log::ServerLog;
use crate::sessions::life::{ServerEvent, ServerState, SessionState};
use crate::sessions::permissions::Permissions;
use crate::sessions::registry::{ServerRecord, Session, SessionPages};
use crate::tenants::accounts::{AssignedSlot, TenantPageState};
use crate::tenants::tenant::Tenants;
use aviary_control::{Aside, Foreign, PartyName, stats::StatsPage};
use aviary_gate::{Balance, GrantPage, HeldAmount, Kind, TenantPage, Watch};
use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsFd, OwnedFd, RawFd},
    sync::Arc,
    time::Instant,
};

impl Core {
    /// Before the node's loop begins.
    pub(crate) fn restore(&self, image: &Image, inherited: &mut Inherited) -> io::Result<()> {
        let mut guard = self.state();
        let state = &mut *guard;
        for (name, accounts) in &image.accounts {
            let restored = tenant_page(accounts, inherited)?;
            state.tenancy.accounts.tenants.insert(name.clone(), restored);
        }
        self.restore_cards(state, &image.cards, inherited)?;
        let tenants = Tenants::clone(&state.tenants());
        let notes = self.change_shares(state, tenants, None, None).map_err(io::Error::other)?;
        notes.iter().for_each(|note| self.log.warn(note));
        let (devices, cards) = (self.config.fpga_devices.clone(), self.config.cards.clone());
        let mut notes = self.change_fpga_devices(state, &devices);
        notes.extend(self.change_cards(state, &cards));
        notes.iter().for_each(|note| self.log.warn(note));
        self.tell_cards_rules(state);
        let now = Instant::now();
        for server in &image.servers {
            let record = self::server(server, inherited, now, &self.aside)?;
            self.watch(server.number, &record)?;
            state.registry.servers.insert(server.number, record);
        }
        for image in &image.parks {
            let tenant = state.registry.servers.get(&image.server).and_then(|known| known.seat.as_ref());
            let tenant = tenant.map_or_else(nobody, |seat| seat.tenant.as_str().into());
            state.relocations.insert(self::park(image, inherited, now, (&self.aside, &tenant))?);
        }
        for session in &image.sessions {
            let (mut restored, devices) = self::session(session, inherited)?;
            if session.of_grant {
                restored.identity = Identity::Grant(state.grants.again(&session.tenant));
            }
            if state.relocations.has_parked(restored.server, session.number) {
                if let Some(pages) = &mut restored.pages {
                    pages.devices = devices;
                }
                state.registry.sessions.insert(session.number, restored);
                continue;
            }
            if let (Some(scheduling), Some((page, bell))) = (&self.scheduling, devices) {
                let process = state.registry.process_of(restored.server);
                scheduling.enter_again(session.number, &restored.tenant, process, page, bell);
            }
            state.registry.sessions.insert(session.number, restored);
        }
        let registry = &mut state.registry;
        registry.by_guest = image.by_guest.iter().copied().collect();
        (registry.last_server, registry.last_session) = (image.last_server, image.last_session);
        state.relocations.last = image.last_move;
        state.upgrades = image.upgrades;
        self.log.info(format_args!(
            "the node's program was replaced: {} sessions continue (upgrade {})",
            image.sessions.len(),
            image.upgrades
        ));
        Ok(())
    }

    fn watch(&self, number: u64, record: &ServerRecord) -> io::Result<()> {
        let watch = |fd: std::os::fd::BorrowedFd<'_>, token| self.epoll.add(fd, token).map_err(io::Error::other);
        if !matches!(record.state, ServerState::Doomed { .. } | ServerState::Killed { .. }) {
            watch(record.process.control.as_fd(), Token::Control(number))?;
        }
        watch(record.process.exit.as_fd(), Token::ServerExit(number))?;
        watch(record.log.as_fd(), Token::Log(number))?;
        record.guest_exit.iter().try_for_each(|exit| watch(exit.as_fd(), Token::GuestExit(number)))
    }
}

pub(super) fn tenant_page(image: &AccountsImage, inherited: &mut Inherited) -> io::Result<TenantPageState> {
    Ok(match image {
        AccountsImage::InUse { page, taken } => {
            let descriptor = inherited.take(*page)?;
            let page = TenantPage::open(descriptor.as_fd())?;
            taken.iter().for_each(|slot| page.note_slot(*slot));
            // It has its rules when the tenant's limits are applied.
            TenantPageState::InUse { page, descriptor, taken: taken.iter().copied().collect(), watch: Watch::default() }
        }
        AccountsImage::Idle(balances) => TenantPageState::Idle(balances.iter().map(balance).collect()),
    })
}

fn balance(image: &BalanceImage) -> Balance {
    let BalanceImage { name, device, instantaneous, limit, used, peak, refused, held } = image;
    let kind = instantaneous.map(|once| if once { Kind::Instantaneous } else { Kind::Continuous });
    let (name, device) = (name.clone(), device.clone());
    Balance { name, device, kind, limit: *limit, used: *used, peak: *peak, refused: *refused, held: *held }
}

fn process(image: &ProcessImage, inherited: &mut Inherited) -> io::Result<ApiServer> {
    let init = match image.init {
        Some((pid, status, server)) => {
            Some(InitEnd { pid, status: inherited.take(status)?, server: inherited.take(server)? })
        }
        None => None,
    };
    Ok(ApiServer::of(image.pid, Foreign::own(inherited.take(image.control)?), inherited.take(image.exit)?, init))
}

fn server(image: &ServerImage, inherited: &mut Inherited, now: Instant, aside: &Aside) -> io::Result<ServerRecord> {
    let state = match image.state {
        StateImage::Serving => ServerState::Serving,
        StateImage::Idle => ServerState::Serving.after(ServerEvent::LastSessionOver, now),
        StateImage::GuestEnded => ServerState::Serving.after(ServerEvent::GuestEnded, now),
        StateImage::HungUp => ServerState::Serving.after(ServerEvent::HungUp, now),
        StateImage::Killed => ServerState::Serving.after(ServerEvent::Killed, now),
    };
    let mut record = ServerRecord {
        process: process(&image.process, inherited)?,
        log: ServerLog::again(inherited.take(image.log)?, image.begun.clone(), &image.spoke_for),
        guest: image.guest,
        seat: None,
        guest_exit: image.guest_exit.map(|exit| inherited.take(exit)).transpose()?,
        state,
        lines: LineLimit::default(),
        by_operator: false,
        vendor: image.vendor.clone().map(Arc::new),
    };
    if let Some(tenant) = &image.tenant {
        record.seat_at(AssignedSlot { tenant: tenant.clone(), slot: image.slot }, aside);
    }
    Ok(record)
}

fn park(
    image: &ParkImage,
    inherited: &mut Inherited,
    now: Instant,
    (aside, tenant): (&Aside, &PartyName),
) -> io::Result<Record> {
    let mut parts = BTreeMap::new();
    for kept in &image.sessions {
        let (file, rest) = (inherited.take(kept.file)?, inherited.take(kept.rest)?);
        let state = Some(HeldState::again(file, rest, aside, tenant));
        parts.insert(kept.number, Part { state, bytes: kept.bytes, ..Part::default() });
    }
    let held = |(name, device, amount): &(String, Option<String>, u64)| HeldAmount {
        name: name.clone(),
        device: device.clone(),
        amount: *amount,
    };
    let relocation = Relocation::kept(parts.keys().copied().collect());
    let held = image.held.iter().map(held).collect();
    Ok(Record { source: image.server, relocation, parts, attempt: None, held, parked: now })
}

type Devices = Option<(GrantPage, OwnedFd)>;

fn session(image: &SessionImage, inherited: &mut Inherited) -> io::Result<(Session, Devices)> {
    let stats_file = inherited.take(image.stats)?;
    let take = |number: RawFd, inherited: &mut Inherited| inherited.take(number);
    let devices_file = match image.devices {
        Some([page, bell]) => Some([take(page, inherited)?, take(bell, inherited)?]),
        None => None,
    };
    let devices = match &devices_file {
        Some([page, bell]) => Some((GrantPage::open(page.as_fd())?, bell.as_fd().try_clone_to_owned()?)),
        None => None,
    };
    let pages = SessionPages { stats: StatsPage::open(stats_file.as_fd())?, stats_file, devices: None, devices_file };
    let session = Session {
        server: image.server,
        guest: image.guest,
        // A node that serves other machines is not upgraded in place.
        peer: image.guest.pid,
        identity: if image.of_user { Identity::User } else { Identity::Loopback },
        tenant: image.tenant.clone(),
        permissions: Permissions {
            threads: image.threads,
            apis: image.apis.clone(),
            functions: image.functions.clone(),
            only_devices: image.only_devices.clone(),
        },
        since: image.since,
        state: SessionState::Running,
        greeted: true,
        api: image.api.clone(),
        spec_hash: image.spec_hash,
        pages: Some(pages),
        moves: image.moves.clone(),
        swaps: image.swaps,
    };
    Ok((session, devices))
}
