//! The node's steps with parked sessions, each under its lock.

use super::{
    Kept, Park, ParkLife, UnparkStatus, fixed_length,
    life::{ParkEvent, ParkNext},
};
use crate::{
    NodeError,
    end::end_server,
    events::{Lie, shown_reason},
    life::SessionState,
    moving::{Adopted, Asker, Part, Purpose, Refusal, tell},
    node::{Core, CoreState},
    sessions::ServerRecord,
};
use aviary_control::{MoveOrder, MoveReport, StateDescriptors, ToServer};
use aviary_gate::{HeldAmount, NoRoom};
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// Time in which a session that is parked because it is idle must stand.
const IDLE_STOP: Duration = Duration::from_secs(2);

impl Core {
    /// Before the states of a move go to an API server that will watch: an error if there is no room for them. Other moves
    /// need none.
    pub(crate) fn check_parked_memory(&self, state: &mut CoreState, source: u64) -> Result<(), Refusal> {
        // Those of sessions that are parked already and go to another API server count once.
        let used = state.parks.bytes() - state.parks.bytes_of(source).unwrap_or(0);
        let limit = self.config.parked_memory;
        let Some(one) = state.moves.of(source).filter(|one| one.purpose == Purpose::Park) else { return Ok(()) };
        let mut bytes = 0u64;
        for part in one.parts.values() {
            let length = part.state.as_ref().and_then(|state| fixed_length(&state.snapshot));
            let length =
                length.ok_or_else(|| Refusal::lasting("its API server has left no state of a fixed length"))?;
            bytes = bytes.saturating_add(length);
        }
        match used.checked_add(bytes).is_some_and(|sum| sum <= limit) {
            true => Ok(()),
            false => Err(Refusal::not_now(format!(
                "its state of {bytes} bytes has no room: parked sessions take {used} of {limit} bytes (parked_memory)"
            ))),
        }
    }

    /// Copies of what is kept of parked sessions, for a move that takes them to another API server.
    pub(crate) fn lend_kept(&self, state: &mut CoreState, source: u64) -> Result<(), Refusal> {
        let failed = |error: std::io::Error| Refusal::not_now(format!("the state cannot be handed on: {error}"));
        let CoreState { parks, moves, .. } = state;
        let (Some(park), Some(one)) = (parks.of(source), moves.of(source)) else { return Ok(()) };
        for (id, part) in &mut one.parts {
            let Some(kept) = park.sessions.get(id) else { continue };
            let copies = kept.state.list().into_iter().map(|fd| fd.try_clone_to_owned());
            part.state = StateDescriptors::of(copies.collect::<std::io::Result<_>>().map_err(failed)?);
            part.figures.bytes = kept.bytes;
        }
        one.progress.skip_capture(Instant::now());
        Ok(())
    }

    /// The sessions of `source` are parked from now on, and `server` watches their lanes. True: they were parked before.
    pub(crate) fn keep_parked(
        &self,
        state: &mut CoreState,
        source: u64,
        server: u64,
        parts: BTreeMap<u64, Part>,
        held: Vec<HeldAmount>,
    ) -> bool {
        let before = state.parks.by_server.remove(&source);
        let (now, mut sessions, mut wanted) = (Instant::now(), BTreeMap::new(), false);
        for (id, part) in parts {
            self.unschedule(id);
            wanted |= part.wanted;
            let Some(session) = state.registry.sessions.get_mut(&id) else { continue };
            session.server = server;
            session.moves.parks += u64::from(before.is_none());
            session.moves.refused = None;
            if let Some(pages) = &mut session.pages {
                (pages.devices, pages.devices_file) = (part.devices, part.devices_file);
            }
            if let Some(captured) = part.state {
                let bytes = fixed_length(&captured.snapshot).unwrap_or(0);
                sessions.insert(id, Kept { state: captured, bytes });
            }
        }
        let since = before.as_ref().map_or(now, |park| park.since);
        state.parks.by_server.insert(server, Park { sessions, held, life: ParkLife::kept(), since });
        if wanted {
            self.step_parked(state, server, ParkEvent::Wanted);
        }
        before.is_some()
    }

    /// An operator brings a session back.
    pub(crate) fn unpark(&self, session: u64) -> Result<UnparkStatus, NodeError> {
        let mut state = self.state();
        let server = state.registry.sessions.get(&session).map(|known| known.server);
        let server = server.ok_or(NodeError::NoSession(session))?;
        if state.parks.of(server).is_none() {
            let moving = state.moves.stage_of(server).map(|stage| UnparkStatus::UnderWay(stage.into()));
            return Ok(moving.unwrap_or(UnparkStatus::Running));
        }
        self.unpark_for(&mut state, server);
        // Lost at once, it is there until its API server is reaped.
        let told = state.parks.of(server).map_or_else(|| "it ends".into(), |park| park.life.told());
        Ok(UnparkStatus::UnderWay(told))
    }

    /// The parked sessions of an API server, if it has any, are wanted: by an operator, or since their guest has opened
    /// another connection.
    pub(crate) fn unpark_for(&self, state: &mut CoreState, server: u64) {
        if state.parks.of(server).is_some_and(|park| !park.life.is_wanted()) {
            self.step_parked(state, server, ParkEvent::Wanted);
        }
    }

    /// A report of an API server about a session that is parked in it.
    pub(crate) fn hear_parked(
        &self,
        state: &mut CoreState,
        server: u64,
        session: u64,
        report: MoveReport,
    ) -> Result<(), Lie> {
        let event = match report {
            // The hang-up of a program that ends: nothing is made for that.
            MoveReport::Wanted if state.registry.servers.get(&server).is_some_and(ServerRecord::has_lost_guest) => {
                return Ok(());
            }
            MoveReport::Wanted => ParkEvent::Wanted,
            MoveReport::Parked => ParkEvent::Kept(session),
            MoveReport::Rebuilt { rebuild_us } => {
                self.log.at(self.level_of_moves(), format_args!("session {session}: made anew in {rebuild_us} us"));
                ParkEvent::Rebuilt(session)
            }
            MoveReport::Unmovable { reason, .. } => ParkEvent::Failed(shown_reason(&reason)),
            MoveReport::Differs { reason } => ParkEvent::Differs(shown_reason(&reason)),
            MoveReport::Announced | MoveReport::Prepared | MoveReport::Captured(_) => {
                return Err(Lie::NoSuchMove(session));
            }
        };
        if self.step_parked(state, server, event) { Ok(()) } else { Err(Lie::NoSuchMove(session)) }
    }

    /// An API server says that a session which is parked in it is over: it could not be made anew. False: it is not parked.
    pub(crate) fn hear_parked_end(&self, state: &mut CoreState, server: u64, session: u64, reason: &str) -> bool {
        if !state.parks.has_session(server, session) {
            return false;
        }
        self.step_parked(state, server, ParkEvent::Failed(shown_reason(reason)))
    }

    /// The API server that has watched lanes has ended by itself. Its parked sessions go to another one.
    pub(crate) fn parked_lose_server(&self, state: &mut CoreState, server: u64) {
        if state.parks.of(server).is_some() {
            self.step_parked(state, server, ParkEvent::ServerGone);
        }
    }

    /// False: the event cannot be.
    fn step_parked(&self, state: &mut CoreState, server: u64, event: ParkEvent) -> bool {
        let now = Instant::now();
        if let Some(one) = state.moves.of(server) {
            if matches!(event, ParkEvent::Wanted | ParkEvent::Looked) {
                // The end of the move, however it ends, comes back to this.
                one.parts.values_mut().for_each(|part| part.wanted = true);
                return true;
            }
            self.give_up(state, server, &Refusal::not_now("the API server that watches for its calls has failed"));
        }
        let Some(park) = state.parks.by_server.get_mut(&server) else { return true };
        let next = park.life.after(event, &park.ids(), now);
        match next {
            ParkNext::Wait => true,
            ParkNext::Charge => {
                let event = match self.charge_parked(state, server) {
                    Ok(()) => ParkEvent::Charged,
                    Err(why) => ParkEvent::NoRoom(why),
                };
                self.step_parked(state, server, event)
            }
            ParkNext::Rebuild => {
                let sessions = state.parks.of(server).map(Park::ids).unwrap_or_default();
                for session in sessions {
                    // One that does not listen has ended, or is late: both are seen.
                    let _ = tell(state, server, &ToServer::Move { session, order: MoveOrder::Rebuild }, &[]);
                }
                true
            }
            ParkNext::Go => {
                self.let_parked_go(state, server);
                true
            }
            ParkNext::Replace => {
                if let Err(error) = self.replace_watcher(state, server) {
                    self.lose_parked(state, server, &format!("there is no API server for it: {error}"));
                }
                true
            }
            ParkNext::Lose(why) => {
                self.lose_parked(state, server, &why);
                true
            }
            ParkNext::Lie => false,
        }
    }

    /// Charges their new API server with all that the sessions held, if the tenant's limits have room for it.
    fn charge_parked(&self, state: &CoreState, server: u64) -> Result<(), String> {
        let seat = state.registry.servers.get(&server).and_then(|server| server.seat.as_ref());
        let held = state.parks.of(server).map_or(&[][..], |park| &park.held);
        let charged = seat.map(|seat| state.accounts.charge_all(seat, held));
        charged.unwrap_or(Ok(())).map_err(|error: NoRoom| error.to_string())
    }

    /// The sessions are made anew and charged: from here on they are as if they had never been parked.
    fn let_parked_go(&self, state: &mut CoreState, server: u64) {
        let Some(park) = state.parks.by_server.remove(&server) else { return };
        let process = state.registry.servers.get(&server).map_or(0, |known| known.process.pid());
        for id in park.sessions.keys() {
            if let Some(session) = state.registry.sessions.get_mut(id) {
                let devices = session.pages.as_mut().and_then(|pages| pages.devices.take());
                self.schedule(&state.tenants, *id, &session.tenant, process, devices);
            }
            // One that has just ended is seen when it is reaped.
            let _ = tell(state, server, &ToServer::Move { session: *id, order: MoveOrder::Go }, &[]);
        }
        let ids: Vec<String> = park.sessions.keys().map(u64::to_string).collect();
        let seconds = park.since.elapsed().as_secs_f64();
        self.log.at(
            self.level_of_moves(),
            format_args!("session {}: unparked after {seconds:.3} s by API server {process}", ids.join(", ")),
        );
    }

    /// Another API server watches the lanes, and makes the sessions anew when that is due. The present one ends.
    fn replace_watcher(&self, state: &mut CoreState, server: u64) -> Result<(), NodeError> {
        let target = self.reserve_target(state, server).map_err(|refusal| NodeError::Parked(refusal.reason))?;
        let Some(park) = state.parks.by_server.remove(&server) else { return Ok(()) };
        for (id, kept) in &park.sessions {
            match self.adopt(state, target, *id, &kept.state, Adopted::Parked) {
                Ok((own, file)) => {
                    let Some(session) = state.registry.sessions.get_mut(id) else { continue };
                    session.server = target;
                    if let Some(pages) = &mut session.pages {
                        (pages.devices, pages.devices_file) = (own, file);
                    }
                }
                Err(error) => {
                    end_server(&mut state.registry, target);
                    state.parks.by_server.insert(server, park);
                    return Err(error);
                }
            }
        }
        self.hand_on(state, server, target);
        state.parks.by_server.insert(target, park);
        end_server(&mut state.registry, server);
        Ok(())
    }

    /// The state is given up, and the API server ended: the guests see the hang-up.
    fn lose_parked(&self, state: &mut CoreState, server: u64, why: &str) {
        let Some(park) = state.parks.by_server.remove(&server) else { return };
        for session in park.sessions.keys() {
            self.log.error(format_args!("session {session}: parked, and cannot go on: {why}"));
        }
        // Some may be a new API server's already, if others could not follow.
        let servers = park.sessions.keys().filter_map(|id| Some(state.registry.sessions.get(id)?.server));
        for server in servers.chain([server]).collect::<std::collections::BTreeSet<_>>() {
            end_server(&mut state.registry, server);
        }
    }

    /// Sessions that wait for room, and API servers that are late.
    pub(crate) fn look_at_parked(&self, now: Instant) {
        let mut state = self.state();
        let due = |park: &Park| park.life.next_look().is_some_and(|at| at <= now);
        let due: Vec<u64> =
            state.parks.by_server.iter().filter(|(_, park)| due(park)).map(|(server, _)| *server).collect();
        for server in due {
            self.step_parked(&mut state, server, ParkEvent::Looked);
        }
    }

    /// Parks what has made no call for long enough.
    pub(crate) fn park_idle(&self, now: Instant) {
        let mut guard = self.state();
        let state = &mut *guard;
        let Some(least) = state.tenants.least_idle_limit().filter(|_| state.idle.is_due(now)) else { return };
        let mut limits: BTreeMap<String, Option<Duration>> = BTreeMap::new();
        // By API server: one of its sessions, its limit and its calls.
        let mut there: BTreeMap<u64, (u64, Duration, u64)> = BTreeMap::new();
        for (id, session) in &state.registry.sessions {
            let parked = state.parks.of(session.server).is_some();
            let limit = limits.entry(session.tenant.clone());
            let limit = *limit.or_insert_with(|| state.tenants.called(&session.tenant).idle_limit());
            let (Some(limit), false, SessionState::Running) = (limit, parked, &session.state) else { continue };
            let made = session.pages.as_ref().map_or(0, |pages| crate::stats::activity(&pages.stats));
            let all = there.entry(session.server).or_insert((*id, limit, 0));
            all.2 = all.2.wrapping_add(made);
        }
        let is_idle =
            |(server, (_, limit, made)): &(&u64, &(u64, Duration, u64))| state.idle.look(**server, *made, *limit, now);
        let idle: Vec<u64> = there.iter().filter(is_idle).map(|(_, (session, ..))| *session).collect();
        state.idle.looked(least, now, |server| there.contains_key(&server));
        for session in idle {
            self.log.debug(format_args!("session {session}: is idle and is parked"));
            if let Err(refusal) = self.start_move(state, session, Asker::Idle, IDLE_STOP) {
                self.log.debug(format_args!("session {session}: not parked: {}", refusal.reason));
            }
        }
    }
}
