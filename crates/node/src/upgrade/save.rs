//! The node as it is, for the program that takes its place.

use super::account_image::{AccountsImage, BalanceImage};
use super::card_image::CardsImage;
use super::image::{
    FolderImage, Image, KeptImage, ParkImage, ProcessImage, ServerImage, SessionImage, StateImage, UsersImage,
};
use crate::attach::identity::Identity;
use crate::attach::private::PrivateDir;
use crate::node::CoreState;
use crate::relocation::records::Record;
use crate::servers::api_server::ApiServer;
use crate::servers::cgroups::GroupsImage;
use crate::sessions::life::{EndReason, ServerState, SessionState};
use crate::sessions::registry::{ServerRecord, Session};
use crate::tenants::accounts::{Accounts, TenantPageState};
use crate::users::server_users::{Ids, ServerUsers};
use aviary_control::{Aside, DeviceContext};
use aviary_gate::{Balance, HeldAmount, Kind};
use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd, RawFd},
};

/// Copies of descriptors that survive `exec`. Dropping it takes all of that back.
#[derive(Debug, Default)]
pub struct Bequest(Vec<OwnedFd>);

impl Bequest {
    pub fn add(&mut self, descriptor: impl AsFd) -> io::Result<RawFd> {
        let copy = rustix::io::dup(descriptor)?;
        let number = copy.as_raw_fd();
        self.0.push(copy);
        Ok(number)
    }

    pub fn copies(&self) -> &[OwnedFd] {
        &self.0
    }
}

/// Something in the way of an upgrade.
#[derive(Debug, PartialEq, Eq)]
pub struct Obstacle {
    pub why: String,
    /// It may be over in a moment.
    pub passes: bool,
}

/// The first thing in the way of an upgrade now.
pub fn obstacle(state: &CoreState, aside: &Aside) -> Option<Obstacle> {
    let busy = |what: &str| Some(Obstacle { why: format!("{what}; try again"), passes: true });
    if let Some(party) = aside.busy() {
        return busy(&format!("sockets of tenant {party} are still being closed"));
    }
    if state.relocations.are_moving() {
        return busy("a session is being moved");
    }
    if state.relocations.are_returning() {
        return busy("a parked session is being brought back");
    }
    if !state.swapping.is_quiet() {
        let why = "device memory of sessions is swapped out, or shared out by the node (oversubscribe)";
        return Some(Obstacle { why: why.into(), passes: false });
    }
    if state.swapping.host_bytes() > 0 {
        return busy("host memory that sessions have kept for swaps is given back");
    }
    if state.grants.are_leaving() {
        return busy("a grant is being revoked");
    }
    if !state.tenancy.emptying.is_empty() {
        return busy("what ended API servers had started still ends");
    }
    if !state.relays.is_empty() {
        return Some(Obstacle { why: "it carries guests to other nodes".into(), passes: false });
    }
    if state.attaching.throttle.next_due().is_some() || state.attaching.further.next_due().is_some() {
        return busy("connections wait for their turn");
    }
    if state.cards.are_waited_for() {
        return busy("API servers wait for a card that starts");
    }
    for session in state.registry.sessions.values() {
        match (&session.identity, &session.state) {
            (Identity::Remote(_) | Identity::Vm(_), _) => {
                return Some(Obstacle { why: "it has sessions of other machines".into(), passes: false });
            }
            (_, SessionState::Offered { .. }) => return busy("a session is still attaching"),
            (Identity::User | Identity::Loopback | Identity::Grant(_), SessionState::Running) => {}
        }
    }
    None
}

/// All of `state`, whose spares are gone. `contexts`: what was measured of devices. `cards`: of its cards. `groups`: of its API servers' control groups.
pub fn save(
    state: &CoreState,
    (admin, upgrades): (impl AsFd, u64),
    contexts: &[DeviceContext],
    (cards, groups): (CardsImage, Option<GroupsImage>),
    bequest: &mut Bequest,
) -> io::Result<Image> {
    let gone = || io::Error::other("the node is ending");
    let listener = state.attaching.listener.as_ref().ok_or_else(gone)?;
    let registry = &state.registry;
    let mut servers = Vec::new();
    for (number, server) in &registry.servers {
        servers.push(self::server(*number, server, bequest)?);
    }
    let mut sessions = Vec::new();
    for (number, session) in &registry.sessions {
        sessions.push(self::session(*number, session, bequest)?);
    }
    let mut parks = Vec::new();
    for record in state.relocations.iter() {
        parks.push(self::park(record, bequest)?);
    }
    Ok(Image {
        upgrades,
        socket: listener.path.clone(),
        listener: bequest.add(&listener.socket)?,
        lock: bequest.add(&listener.lock)?,
        admin: bequest.add(admin)?,
        users: state.server_users.as_ref().map(|users| self::users(users, bequest)).transpose()?,
        accounts: accounts(&state.tenancy.accounts, bequest)?,
        servers,
        sessions,
        parks,
        cards,
        groups,
        grants: grants(state, bequest)?,
        by_guest: registry.by_guest.iter().map(|(guest, server)| (*guest, *server)).collect(),
        last_server: registry.last_server,
        last_session: registry.last_session,
        last_move: state.relocations.last,
        contexts: Some(contexts.to_vec()),
    })
}

fn grants(state: &CoreState, bequest: &mut Bequest) -> io::Result<BTreeMap<String, RawFd>> {
    state.grants.listeners().map(|(name, _, socket)| Ok((name.to_owned(), bequest.add(socket)?))).collect()
}

pub(super) fn accounts(accounts: &Accounts, bequest: &mut Bequest) -> io::Result<BTreeMap<String, AccountsImage>> {
    let image = |(name, state): (&String, &TenantPageState)| {
        let image = match state {
            TenantPageState::InUse { descriptor, taken, .. } => {
                AccountsImage::InUse { page: bequest.add(descriptor)?, taken: taken.iter().copied().collect() }
            }
            TenantPageState::Idle(balances) => AccountsImage::Idle(balances.iter().map(balance).collect()),
        };
        Ok((name.clone(), image))
    };
    accounts.tenants.iter().map(image).collect()
}

fn balance(balance: &Balance) -> BalanceImage {
    let Balance { name, device, kind, limit, used, peak, refused, held } = balance.clone();
    let instantaneous = kind.map(|kind| kind == Kind::Instantaneous);
    BalanceImage { name, device, instantaneous, limit, used, peak, refused, held }
}

/// Of sessions that are parked and quiet: nothing else is there during an upgrade.
fn park(record: &Record, bequest: &mut Bequest) -> io::Result<ParkImage> {
    let mut sessions = Vec::new();
    for (number, part) in &record.parts {
        let state = part.state.as_ref().ok_or_else(|| io::Error::other("a parked session has no state"))?;
        let (file, rest) = (bequest.add(&state.file)?, bequest.add(&state.rest)?);
        sessions.push(KeptImage { number: *number, bytes: part.bytes, file, rest });
    }
    let held = |held: &HeldAmount| (held.name.clone(), held.device.clone(), held.amount);
    Ok(ParkImage { server: record.source, held: record.held.iter().map(held).collect(), sessions })
}

fn folder(folder: &PrivateDir, bequest: &mut Bequest) -> io::Result<FolderImage> {
    Ok(FolderImage { path: folder.path().to_owned(), lock: bequest.add(&folder.lock)? })
}

fn users(users: &ServerUsers, bequest: &mut Bequest) -> io::Result<UsersImage> {
    let (range, next, claims) = match &users.ids {
        Ids::Range { range, next, claims } => (Some(range.bounds()), *next, claims.as_ref()),
        Ids::Shared(id) => (None, *id, None),
    };
    let claims = claims.map(|claims| claims.held.iter().map(|file| bequest.add(file)).collect()).transpose()?;
    Ok(UsersImage {
        range,
        claims,
        next,
        by_tenant: users.by_tenant.clone(),
        free: users.free.clone(),
        helpers: users.helpers.clone(),
        homes: folder(&users.homes, bequest)?,
        shared_memory: users.shared_memory.as_ref().map(|memory| folder(memory, bequest)).transpose()?,
        limits_homes: users.mounts.limited,
        mounted: users.mounts.mounted.clone(),
    })
}

fn process(process: &ApiServer, bequest: &mut Bequest) -> io::Result<ProcessImage> {
    let init = process.init.as_ref().map(|init| {
        let status = bequest.add(&init.status)?;
        Ok::<_, io::Error>((init.pid, status, bequest.add(&init.server)?))
    });
    Ok(ProcessImage {
        pid: process.pid(),
        control: bequest.add(&process.control)?,
        exit: bequest.add(&process.exit)?,
        init: init.transpose()?,
    })
}

fn server(number: u64, server: &ServerRecord, bequest: &mut Bequest) -> io::Result<ServerImage> {
    let (begun, spoke_for) = server.log.parts();
    Ok(ServerImage {
        number,
        process: process(&server.process, bequest)?,
        log: bequest.add(&server.log)?,
        begun,
        spoke_for,
        guest: server.guest,
        tenant: server.seat.as_ref().map(|seat| seat.tenant.clone()),
        slot: server.seat.as_ref().map_or(0, |seat| seat.slot),
        guest_exit: server.guest_exit.as_ref().map(|exit| bequest.add(exit)).transpose()?,
        vendor: server.vendor.as_deref().cloned(),
        state: match server.state {
            // A spare has no guest, and is not here.
            ServerState::Spare | ServerState::Serving => StateImage::Serving,
            ServerState::Idle { .. } => StateImage::Idle,
            ServerState::Doomed { why: EndReason::GuestEnded, .. } => StateImage::GuestEnded,
            ServerState::Doomed { why: EndReason::HungUp, .. } => StateImage::HungUp,
            ServerState::Killed { .. } | ServerState::Unending | ServerState::Ended => StateImage::Killed,
        },
    })
}

fn session(number: u64, session: &Session, bequest: &mut Bequest) -> io::Result<SessionImage> {
    let pages = session.pages.as_ref().ok_or_else(|| io::Error::other("a session has no shared pages"))?;
    let devices =
        pages.devices_file.as_ref().map(|[page, bell]| Ok::<_, io::Error>([bequest.add(page)?, bequest.add(bell)?]));
    Ok(SessionImage {
        number,
        server: session.server,
        guest: session.guest,
        of_user: matches!(session.identity, Identity::User),
        of_grant: matches!(session.identity, Identity::Grant(_)),
        tenant: session.tenant.clone(),
        threads: session.permissions.threads,
        apis: session.permissions.apis.clone(),
        functions: session.permissions.functions.clone(),
        only_devices: session.permissions.only_devices.clone(),
        since: session.since,
        api: session.api.clone(),
        spec_hash: session.spec_hash,
        stats: bequest.add(&pages.stats_file)?,
        devices: devices.transpose()?,
        moves: session.moves.clone(),
        swaps: session.swaps,
    })
}
