//! How a node ends that keeps its sessions: for each program its gateways hold, its API server is captured, its gateways save;
//! then all files are written. What cannot be kept in time ends with the node, and the log says why.

use super::{
    file::{KeptWriter, Stop},
    folder::KeepFolder,
    image::{KeptSession, ProgramImage, Software},
    progress::{Captured, Keeping, KeepingProgram, Progress},
};
use crate::gateways::yielding::Yielding;
use crate::node::{Core, CoreState, Goal};
use crate::relocation::machine::Refusal;
use crate::relocation::records::{Part, fixed_length};
use crate::relocation::request::MoveStatus;
use crate::relocation::table::Purpose;
use crate::sessions::end::end_server;
use crate::sessions::life::SessionState;
use aviary_control::state_file;
use aviary_gate::HeldAmount;
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
    time::{Duration, Instant},
};

/// Time in which a session must stand, at each attempt.
const STOP: Duration = Duration::from_secs(5);
/// After an attempt that failed for a while.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Whether all of these gateways have said this.
///
/// # Errors
/// One never will, and why.
fn all_say(gateways: &BTreeMap<u64, u32>, wanted: &Yielding, state: &mut CoreState) -> Result<bool, String> {
    let mut all = true;
    for pid in gateways.values() {
        let (alive, ended) = (state.gateways.yielding(*pid), state.keeping.last_words.get(pid));
        match alive.as_ref().or(ended) {
            Some(said) if said == wanted => {}
            Some(Yielding::Stays(why)) => return Err(why.clone()),
            _ if alive.is_some() => all = false,
            _ => return Err("its gateway has ended".into()),
        }
    }
    Ok(all)
}

impl Core {
    /// One look at a node that ends and keeps its sessions. Once all is done the node ends.
    pub(crate) fn keep_sessions(&self, now: Instant) {
        if !self.aims_at(Goal::Keep) || self.aims_at(Goal::Stop) {
            return;
        }
        let mut guard = self.state();
        let state = &mut *guard;
        if state.keeping.begun.is_none() {
            self.begin_keeping(state, now);
        }
        let servers: Vec<u64> = state.keeping.programs.keys().copied().collect();
        for server in servers {
            let Some(leaving) = state.keeping.programs.get(&server) else { continue };
            let (gateways, progress) = (leaving.gateways.clone(), leaving.progress.clone());
            let next = self.keep_step(state, server, &gateways, progress, now);
            if let Some(leaving) = state.keeping.programs.get_mut(&server) {
                leaving.progress = next.unwrap_or_else(Progress::Stays);
            }
        }
        if state.keeping.is_over(now) {
            drop(guard);
            self.aim(Goal::Stop);
        }
    }

    /// All sessions whose connection is a gateway's.
    fn begin_keeping(&self, state: &mut CoreState, now: Instant) {
        state.keeping.begun = Some(now);
        let mut programs: BTreeMap<u64, BTreeMap<u64, u32>> = BTreeMap::new();
        for (id, session) in &state.registry.sessions {
            let running = matches!(session.state, SessionState::Running) && !session.api.is_empty();
            if running && state.gateways.kept_origin(session.peer).is_some() {
                programs.entry(session.server).or_default().insert(*id, session.peer);
            }
        }
        let sessions: usize = programs.values().map(BTreeMap::len).sum();
        self.log
            .info(format_args!("the node ends: {sessions} sessions of other machines are to go on in the next one"));
        for (server, gateways) in programs {
            let heard = gateways.values().all(|pid| state.gateways.hold(*pid));
            let deaf = || Progress::Stays("its gateway does not listen".into());
            let progress = if heard { Progress::Holding } else { deaf() };
            state.keeping.programs.insert(server, KeepingProgram { gateways, progress });
        }
    }

    /// # Errors
    /// The program is not kept, and why.
    fn keep_step(
        &self,
        state: &mut CoreState,
        server: u64,
        gateways: &BTreeMap<u64, u32>,
        progress: Progress,
        now: Instant,
    ) -> Result<Progress, String> {
        Ok(match progress {
            Progress::Holding if all_say(gateways, &Yielding::Held, state)? => {
                Progress::Capturing { attempt: None, retry_at: now, why: "its API server was not asked in time".into() }
            }
            Progress::Capturing { .. } if state.keeping.captured.contains_key(&server) => Progress::Saving,
            Progress::Capturing { attempt, retry_at, why } => {
                all_say(gateways, &Yielding::Held, state)?;
                self.capture_step(state, server, gateways, (attempt, retry_at, why), now)?
            }
            Progress::Saving if all_say(gateways, &Yielding::Saved, state)? => {
                // Nothing of it is left here.
                end_server(&mut state.registry, server);
                Progress::Kept
            }
            other => other,
        })
    }

    /// Orders the API server to write its sessions down, or takes the states of a parked program.
    fn capture_step(
        &self,
        state: &mut CoreState,
        server: u64,
        gateways: &BTreeMap<u64, u32>,
        (attempt, retry_at, why): (Option<u64>, Instant, String),
        now: Instant,
    ) -> Result<Progress, String> {
        let same = state.registry.sessions_of(server).iter().eq(gateways.keys());
        if !same {
            return Err("a session of its program has begun or ended meanwhile".into());
        }
        if let Some(record) = state.relocations.get(server) {
            if record.relocation.is_parked() && record.attempt.is_none() {
                let held = record.held.clone();
                self.keep_states(state, server, &held).map_err(|refusal| refusal.reason)?;
            }
            return Ok(Progress::Capturing { attempt, retry_at, why });
        }
        if let Some(MoveStatus::Refused { reason, lasting }) =
            attempt.and_then(|number| state.relocations.status(number))
        {
            return if lasting {
                Err(reason)
            } else {
                Ok(Progress::Capturing { attempt: None, retry_at: now + RETRY_PAUSE, why: reason })
            };
        }
        let Some(session) = gateways.keys().next().filter(|_| now >= retry_at) else {
            return Ok(Progress::Capturing { attempt, retry_at, why });
        };
        let retry_at = now + RETRY_PAUSE;
        match self.start_relocation(state, *session, Purpose::Keep, STOP) {
            Ok(number) => Ok(Progress::Capturing { attempt: Some(number), retry_at, why }),
            Err(Refusal { reason, lasting: true }) => Err(reason),
            Err(Refusal { reason, .. }) => Ok(Progress::Capturing { attempt: None, retry_at, why: reason }),
        }
    }

    /// The API server has written all states: the next node has the sessions from here on.
    ///
    /// # Errors
    /// They continue here.
    pub(crate) fn keep_captured(&self, state: &mut CoreState, server: u64) -> Result<(), Refusal> {
        let seat = state.registry.servers.get(&server).and_then(|known| known.seat.as_ref());
        let held = seat.map_or_else(Vec::new, |seat| state.tenancy.accounts.held_by(seat));
        self.keep_states(state, server, &held)
    }

    /// # Errors
    /// Nothing has changed.
    fn keep_states(&self, state: &mut CoreState, server: u64, held: &[HeldAmount]) -> Result<(), Refusal> {
        let none = || Refusal::lasting("its state is not complete");
        let image = self.image_of(state, server, held).ok_or_else(none)?;
        let record = state.relocations.get(server).ok_or_else(none)?;
        let complete = |part: &Part| part.state.as_ref().is_some_and(|state| fixed_length(&state.file).is_some());
        if !record.parts.values().all(complete) || record.parts.len() != image.sessions.len() {
            return Err(none());
        }
        let files: io::Result<Vec<OwnedFd>> = record.parts.keys().map(|_| Ok(state_file()?)).collect();
        let files = files.map_err(|error| Refusal::lasting(format!("there is no place for its state: {error}")))?;
        let record = state.relocations.remove(server).ok_or_else(none)?;
        let mut parts = BTreeMap::new();
        for ((id, part), file) in record.parts.into_iter().zip(files) {
            if let Some(session) = state.registry.sessions.remove(&id) {
                // One that does not listen does not say that it has saved.
                state.gateways.save(session.peer, file.as_fd());
            }
            self.unschedule(id);
            self.end_swap(state, server, id);
            parts.extend(part.state.map(|held| (id, (file, held))));
        }
        state.keeping.captured.insert(server, Captured { image, parts });
        Ok(())
    }

    fn image_of(&self, state: &mut CoreState, server: u64, held: &[HeldAmount]) -> Option<ProgramImage> {
        let mut sessions = Vec::new();
        let mut tenant = None;
        for id in state.registry.sessions_of(server) {
            let session = state.registry.sessions.get(&id)?;
            tenant = Some(session.tenant.clone());
            let permissions = session.permissions.clone();
            sessions.push(KeptSession {
                number: id,
                origin: state.gateways.kept_origin(session.peer)?,
                since: session.since,
                threads: permissions.threads,
                apis: permissions.apis,
                functions: permissions.functions,
                only_devices: permissions.only_devices,
                api: session.api.clone(),
                spec_hash: session.spec_hash,
                moves: session.moves.clone(),
                swaps: session.swaps,
            });
        }
        let vendor = state.registry.servers.get(&server)?.vendor.as_deref().cloned();
        let software = Software::of(sessions.iter().map(|session| session.api.as_str()), &self.config.vendors);
        let held = held.iter().map(|held| (held.name.clone(), held.device.clone(), held.amount)).collect();
        Some(ProgramImage { tenant: tenant?, vendor, software, held, sessions })
    }

    /// The node's loop is over: writes the files of all programs that can go on, and names the others.
    pub(crate) fn write_kept(&self) {
        let Some(folder) = &self.keep else { return };
        let mut state = self.state();
        let Keeping { programs, mut captured, .. } = std::mem::take(&mut state.keeping);
        let present: BTreeSet<u64> = state.registry.sessions.keys().copied().collect();
        drop(state);
        let stop = match KeepFolder::new_stop() {
            Ok(stop) => stop,
            Err(error) => return self.log.error(format_args!("no session is kept: {error}")),
        };
        let mut written = Vec::new();
        for (server, KeepingProgram { gateways, progress }) in programs {
            if !captured.contains_key(&server) && !gateways.keys().any(|id| present.contains(id)) {
                // The program has ended meanwhile.
                continue;
            }
            let ids = gateways.keys().map(u64::to_string).collect::<Vec<_>>().join(", ");
            let why = match progress {
                Progress::Kept => match captured.remove(&server).map(|captured| write(folder, &stop, &captured)) {
                    Some(Ok(path)) => {
                        written.push((ids, path));
                        continue;
                    }
                    Some(Err(error)) => format!("its file cannot be written: {error}"),
                    None => "it has no state".into(),
                },
                Progress::Stays(why) | Progress::Capturing { why, .. } => why,
                Progress::Holding | Progress::Saving => "its gateway did not answer in time".into(),
            };
            self.log.error(format_args!("session {ids}: not kept, it ends with the node: {why}"));
        }
        if written.is_empty() {
            return;
        }
        match folder.leave(&stop) {
            Ok(()) => written.iter().for_each(|(ids, path)| {
                self.log.info(format_args!("session {ids}: kept in {}", path.display()));
            }),
            Err(error) => {
                self.log.error(format_args!(
                    "no session is kept: the key of {} cannot be written: {error}",
                    folder.path().display()
                ));
            }
        }
    }
}

fn write(folder: &KeepFolder, stop: &Stop, captured: &Captured) -> io::Result<PathBuf> {
    let first = captured.image.sessions.first().map_or(0, |session| session.number);
    folder.write(first, |file| {
        let mut writer = KeptWriter::begin(file, stop, &captured.image)?;
        for (gateway, state) in captured.parts.values() {
            writer.session(gateway, &state.file)?;
        }
        writer.finish()
    })
}
