//! How a node begins that goes on with the sessions of the one before it: before anybody can connect, each file becomes gateways
//! and an API server that watches for the calls of its program, as of a parked one.

use super::{
    file::{KeptFile, Stop},
    folder::KeepFolder,
    image::{KeptSession, ProgramImage, Software},
};
use crate::attach::accept::remote_identity;
use crate::attach::foreign::HeldState;
use crate::attach::guest::Guest;
use crate::epoll::Token;
use crate::gateways::yielding::Yielding;
use crate::node::{Core, CoreState};
use crate::relocation::machine::Relocation;
use crate::relocation::records::{Part, Record, fixed_length};
use crate::sessions::end::end_server;
use crate::sessions::life::{ServerEvent, SessionState};
use crate::sessions::registry::Session;
use crate::tenants::tenant::Tenant;
use aviary_control::state_file;
use aviary_gate::HeldAmount;
use rustix::fs::SealFlags;
use std::{
    collections::BTreeMap,
    fs::{self, File},
    os::fd::AsFd,
    path::Path,
    time::{Duration, Instant},
};

/// How long a gateway may take until it has its session.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
const LOOK_INTERVAL: Duration = Duration::from_millis(2);
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::WRITE).union(SealFlags::SEAL);

/// A session on its way back.
struct Coming {
    kept: KeptSession,
    state: HeldState,
    /// The gateway's number, and its process.
    gateway: u64,
    process: Guest,
}

impl Core {
    /// All that the last stop has left. Before the node's loop begins.
    pub(crate) fn bring_back(&self) {
        let Some(folder) = &self.keep else { return };
        let of_folder = |error| format!("{}: {error}", folder.path().display());
        let (stop, files) = match folder.last_stop().and_then(|stop| Ok((stop, folder.files()?))) {
            Ok(found) => found,
            Err(error) => return self.log.error(format_args!("no session is restored: {}", of_folder(error))),
        };
        for path in &files {
            match self.bring_back_file(path, stop.as_ref()) {
                Ok(ids) => {
                    self.log.info(format_args!("session {ids}: restored from {}", path.display()));
                    if let Err(error) = fs::remove_file(path) {
                        self.log.error(format_args!("{}: cannot be removed: {error}", path.display()));
                    }
                }
                Err(why) => {
                    self.log.error(format_args!("{}: not restored: {why}", path.display()));
                    if let Err(error) = KeepFolder::refuse(path) {
                        self.log.error(format_args!("{}: cannot be renamed: {error}", path.display()));
                    }
                }
            }
        }
        // Nobody was served meanwhile: from here on no file of that stop counts.
        if let Err(error) = folder.forget() {
            self.log.error(format_args!("the key cannot be removed: {}", of_folder(error)));
        }
    }

    /// Answers the sessions, for people.
    fn bring_back_file(&self, path: &Path, stop: Option<&Stop>) -> Result<String, String> {
        let file = File::open(path).map_err(|error| error.to_string())?;
        let mut file = KeptFile::open(file, stop).map_err(|error| error.to_string())?;
        let mut guard = self.state();
        let state = &mut *guard;
        let tenant = self.check_kept(state, &file.program)?;
        let mut coming = Vec::new();
        let back = self
            .start_gateways(state, &mut file, &tenant, &mut coming)
            .and_then(|()| wait_for(state, &coming))
            .and_then(|()| self.seat_kept(state, &file.program, &tenant, &mut coming));
        if back.is_err() {
            for left in &coming {
                state.gateways.get(left.gateway).into_iter().for_each(|gateway| gateway.end());
                state.registry.sessions.remove(&left.kept.number);
            }
        }
        back
    }

    /// Whether the configuration and the machine are still those of a program. Answers its tenant.
    fn check_kept(&self, state: &mut CoreState, program: &ProgramImage) -> Result<Tenant, String> {
        let named = program.tenant.escape_debug();
        let first = program.sessions.first().ok_or("it has no sessions")?;
        let shown = remote_identity(state, first.origin.tenant.clone()).map_err(|error| error.to_string())?;
        let found = state.owner(&shown, rustix::process::geteuid().as_raw());
        let found = found.ok_or_else(|| format!("its tenant {named} may no longer attach"))?;
        let same = program.sessions.iter().all(|session| session.origin.tenant == first.origin.tenant);
        if found.name != program.tenant || !same {
            return Err(format!("it is of tenant {named}, but who showed its certificate is another tenant now"));
        }
        let tenants = state.tenants();
        if program.vendor.as_ref().is_some_and(|set| !tenants.has_vendor(set)) {
            return Err(format!("the vendor set of tenant {named} is another one now"));
        }
        let apis = program.sessions.iter().map(|session| session.api.as_str());
        match program.software.changed(&Software::of(apis, &self.config.vendors)) {
            Some(changed) => return Err(format!("{changed} (tenant {named})")),
            None if self.config.remote.is_none() => return Err("this node serves no other machines (--listen)".into()),
            None => {}
        }
        let twice = program.sessions.iter().find(|session| state.registry.sessions.contains_key(&session.number));
        if let Some(session) = twice {
            return Err(format!("there is a session {} already", session.number));
        }
        let most = state.tenancy.most_tenants;
        state.admit_tenant(&found.name, most)?;
        state.user_for(&found.name, false).map_err(|error| error.to_string())?;
        Ok(found)
    }

    fn start_gateways(
        &self,
        state: &mut CoreState,
        file: &mut KeptFile,
        tenant: &Tenant,
        coming: &mut Vec<Coming>,
    ) -> Result<(), String> {
        let Some((_, command)) = &self.config.remote else { return Err("this node serves no other machines".into()) };
        for kept in file.program.sessions.clone() {
            let failed = |error: &dyn std::fmt::Display| format!("session {}: {error}", kept.number);
            let (held, from) =
                HeldState::new(&self.aside, &tenant.name.as_str().into()).map_err(|error| failed(&error))?;
            let image = state_file().map_err(|error| failed(&error))?;
            file.next_session(&image, &held.file).map_err(|error| failed(&error))?;
            rustix::fs::fcntl_add_seals(&held.file, SEALS).map_err(|error| failed(&error))?;
            let CoreState { gateways, server_users, .. } = &mut *state;
            let access = self.helper_access(server_users.as_mut(), "gateways").map_err(|error| failed(&error))?;
            let first = coming.first().map(|first| first.process);
            let started = gateways.start_kept(command, &access, image, (&kept.origin, first), &from, &self.aside);
            let (gateway, process) = started.map_err(|error| failed(&error))?;
            let watched = gateways.get(gateway).map(|it| self.epoll.add(it.exit.as_fd(), Token::GatewayExit(gateway)));
            coming.push(Coming { kept, state: held, gateway, process });
            if let Some(Err(error)) = watched {
                return Err(error.to_string());
            }
        }
        Ok(())
    }

    /// An API server for the program, which watches for its calls.
    fn seat_kept(
        &self,
        state: &mut CoreState,
        program: &ProgramImage,
        tenant: &Tenant,
        coming: &mut Vec<Coming>,
    ) -> Result<String, String> {
        let guest = coming.first().map(|first| first.process).ok_or("it has no sessions")?;
        let tenants = state.tenants();
        // One of the configuration's, which API servers share.
        let vendor = program.vendor.as_ref().and_then(|set| tenants.vendors.get(&set.name));
        let server = self.server_for(state, guest, vendor).map_err(|error| error.to_string())?;
        let seated = self.seat(state, server, tenant).map_err(|error| error.to_string());
        let seated = seated.and_then(|()| self.park_kept(state, server, program, tenant, coming));
        if seated.is_err() {
            state.relocations.remove(server);
            end_server(&mut state.registry, server);
        }
        seated
    }

    fn park_kept(
        &self,
        state: &mut CoreState,
        server: u64,
        program: &ProgramImage,
        tenant: &Tenant,
        coming: &mut Vec<Coming>,
    ) -> Result<String, String> {
        let now = Instant::now();
        let guest = coming.first().map(|first| first.process).ok_or("it has no sessions")?;
        let mut parts = BTreeMap::new();
        for Coming { kept, state: held, process, .. } in coming.drain(..) {
            let (pages, _) = self.new_pages(tenant).map_err(|errno| errno.to_string())?;
            let session = Session {
                server,
                guest,
                peer: process.pid,
                identity: remote_identity(state, kept.origin.tenant.clone()).map_err(|error| error.to_string())?,
                tenant: tenant.name.clone(),
                permissions: kept.permissions(),
                since: kept.since,
                state: SessionState::Running,
                greeted: true,
                api: kept.api.clone(),
                spec_hash: kept.spec_hash,
                pages: Some(pages),
                moves: kept.moves.clone(),
                swaps: kept.swaps,
            };
            state.registry.last_session = state.registry.last_session.max(kept.number);
            state.registry.sessions.insert(kept.number, session);
            let bytes = fixed_length(&held.file).unwrap_or(0);
            parts.insert(kept.number, Part { state: Some(held), bytes, ..Part::default() });
        }
        state.registry.change(server, ServerEvent::SessionGiven, now);
        let held: Vec<HeldAmount> = program.held_amounts();
        let relocation = Relocation::coming(parts.keys().copied().collect(), now);
        let record = Record { source: server, relocation, parts, attempt: None, held, parked: now };
        let ids = record.ids();
        state.relocations.insert(record);
        self.hand_kept(state, server).map_err(|refusal| refusal.reason)?;
        Ok(ids)
    }
}

/// Waits until all gateways have their sessions.
fn wait_for(state: &mut CoreState, coming: &[Coming]) -> Result<(), String> {
    let until = Instant::now() + READY_TIMEOUT;
    for Coming { kept, process, .. } in coming {
        loop {
            match state.gateways.yielding(process.pid) {
                // It may have said more since.
                Some(Yielding::Ready) => break,
                Some(_) if state.gateways.has_ended(process.pid) => {}
                Some(_) if Instant::now() < until => {
                    std::thread::sleep(LOOK_INTERVAL);
                    continue;
                }
                Some(_) | None => {}
            }
            return Err(format!("session {}: its gateway did not take it over", kept.number));
        }
    }
    Ok(())
}
