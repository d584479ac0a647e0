//! The node again, in the program that has taken its place.

use super::{
    image::{
        AccountsImage, BalanceImage, FolderImage, Image, ParkImage, ProcessImage, ServerImage, SessionImage,
        StateImage, UsersImage,
    },
    inheritance::Inherited,
};
use crate::{
    accounts::{AssignedSlot, TenantPageState},
    api_server::{ApiServer, InitEnd},
    claims::Claims,
    epoll::Token,
    life::{ServerEvent, ServerState, SessionState},
    line_limit::LineLimit,
    node::Core,
    parking::{Kept, Park, ParkLife},
    permissions::Permissions,
    private::PrivateDir,
    server_log::ServerLog,
    server_users::{Ids, ServerUsers, UserRange},
    sessions::{ServerRecord, Session, SessionPages},
    tenants::Identity,
};
use aviary_control::{StateDescriptors, stats::StatsPage};
use aviary_gate::{Balance, GrantPage, HeldAmount, Kind, TenantPage};
use std::{
    collections::BTreeMap,
    fs::File,
    io,
    os::fd::{AsFd, OwnedFd, RawFd},
    time::Instant,
};

/// The users of API servers.
pub fn users(image: &UsersImage, inherited: &mut Inherited) -> io::Result<ServerUsers> {
    let mut take = |number: &RawFd| inherited.take(*number).map(File::from);
    let claims = image.claims.as_ref().map(|held| held.iter().map(&mut take).collect::<io::Result<Vec<File>>>());
    let claims = claims.transpose()?;
    let ids = match image.range {
        Some(bounds) => {
            let claims = claims.map(|held| Claims { folder: crate::claims::FOLDER.into(), held });
            Ids::Range { range: UserRange::between(bounds), next: image.next, claims }
        }
        None => Ids::Shared(image.next),
    };
    let mut users = ServerUsers::within(
        ids,
        folder(&image.homes, inherited)?,
        image.shared_memory.as_ref().map(|memory| folder(memory, inherited)).transpose()?,
    );
    (users.by_tenant, users.helpers) = (image.by_tenant.clone(), image.helpers.clone());
    Ok(users)
}

fn folder(image: &FolderImage, inherited: &mut Inherited) -> io::Result<PrivateDir> {
    Ok(PrivateDir { path: image.path.clone(), lock: inherited.take(image.lock)?.into() })
}

impl Core {
    /// Before the node's loop begins.
    pub(crate) fn restore(&self, image: &Image, inherited: &mut Inherited) -> io::Result<()> {
        let mut guard = self.state();
        let state = &mut *guard;
        for (name, accounts) in &image.accounts {
            let restored = tenant_page(accounts, inherited)?;
            state.accounts.tenants.insert(name.clone(), restored);
            let tenant = state.tenants.called(name);
            if let Err(error) = state.accounts.apply(&tenant) {
                self.log.warn(format_args!("tenant {} keeps some of its earlier limits: {error}", name.escape_debug()));
            }
        }
        let now = Instant::now();
        for server in &image.servers {
            let record = self::server(server, inherited, now)?;
            self.watch(server.number, &record)?;
            state.registry.servers.insert(server.number, record);
        }
        for image in &image.parks {
            let park = self::park(image, inherited, now)?;
            state.parks.by_server.insert(image.server, park);
        }
        for session in &image.sessions {
            let (mut restored, devices) = self::session(session, inherited)?;
            if state.parks.has_session(restored.server, session.number) {
                if let Some(pages) = &mut restored.pages {
                    pages.devices = devices;
                }
                state.registry.sessions.insert(session.number, restored);
                continue;
            }
            if let (Some(scheduling), Some((page, bell))) = (&self.scheduling, devices) {
                let share = state.tenants.called(&restored.tenant).share();
                let process = state.registry.servers.get(&restored.server).map_or(0, |known| known.process.pid());
                scheduling.enter_again(session.number, &restored.tenant, share, process, page, bell);
            }
            state.registry.sessions.insert(session.number, restored);
        }
        let registry = &mut state.registry;
        registry.by_guest = image.by_guest.iter().copied().collect();
        (registry.last_server, registry.last_session) = (image.last_server, image.last_session);
        state.moves.last = image.last_move;
        state.upgrades = image.upgrades;
        self.log.info(format_args!(
            "the node's program was replaced: {} sessions go on (upgrade {})",
            image.sessions.len(),
            image.upgrades
        ));
        Ok(())
    }

    fn watch(&self, number: u64, record: &ServerRecord) -> io::Result<()> {
        let watch = |fd: std::os::fd::BorrowedFd<'_>, token| self.epoll.add(fd, token).map_err(io::Error::other);
        if !matches!(record.state, ServerState::Doomed { .. } | ServerState::Killed) {
            watch(record.process.control.as_fd(), Token::Control(number))?;
        }
        watch(record.process.exit.as_fd(), Token::ServerExit(number))?;
        watch(record.log.as_fd(), Token::Log(number))?;
        record.guest_exit.iter().try_for_each(|exit| watch(exit.as_fd(), Token::GuestExit(number)))
    }
}

fn tenant_page(image: &AccountsImage, inherited: &mut Inherited) -> io::Result<TenantPageState> {
    Ok(match image {
        AccountsImage::InUse { page, taken } => {
            let descriptor = inherited.take(*page)?;
            let page = TenantPage::open(descriptor.as_fd())?;
            taken.iter().for_each(|slot| page.note_slot(*slot));
            TenantPageState::InUse { page, descriptor, taken: taken.iter().copied().collect() }
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
    Ok(ApiServer::of(image.pid, inherited.take(image.control)?, inherited.take(image.exit)?, init))
}

fn server(image: &ServerImage, inherited: &mut Inherited, now: Instant) -> io::Result<ServerRecord> {
    let state = match image.state {
        StateImage::Serving => ServerState::Serving,
        StateImage::Idle => ServerState::Serving.after(ServerEvent::LastSessionOver, now),
        StateImage::GuestEnded => ServerState::Serving.after(ServerEvent::GuestEnded, now),
        StateImage::HungUp => ServerState::Serving.after(ServerEvent::HungUp, now),
        StateImage::Killed => ServerState::Killed,
    };
    Ok(ServerRecord {
        process: process(&image.process, inherited)?,
        log: ServerLog::again(inherited.take(image.log)?, image.begun.clone(), &image.spoke_for),
        guest: image.guest,
        seat: image.tenant.as_ref().map(|tenant| AssignedSlot { tenant: tenant.clone(), slot: image.slot }),
        guest_exit: image.guest_exit.map(|exit| inherited.take(exit)).transpose()?,
        state,
        lines: LineLimit::default(),
    })
}

fn park(image: &ParkImage, inherited: &mut Inherited, now: Instant) -> io::Result<Park> {
    let mut sessions = BTreeMap::new();
    for kept in &image.sessions {
        let state = kept.state.iter().map(|number| inherited.take(*number)).collect::<io::Result<Vec<_>>>()?;
        let missing = || io::Error::other("descriptors of a parked session are missing");
        let state = StateDescriptors::of(state).ok_or_else(missing)?;
        sessions.insert(kept.number, Kept { state, bytes: kept.bytes });
    }
    let held = |(name, device, amount): &(String, Option<String>, u64)| HeldAmount {
        name: name.clone(),
        device: device.clone(),
        amount: *amount,
    };
    Ok(Park { sessions, held: image.held.iter().map(held).collect(), life: ParkLife::kept(), since: now })
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
        api: image.api.clone(),
        spec_hash: image.spec_hash,
        pages: Some(pages),
        moves: image.moves.clone(),
    };
    Ok((session, devices))
}
