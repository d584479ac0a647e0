//! Accepting connections: who it is, whether it may, when it is its turn.

use crate::{
    NodeError,
    epoll::Token,
    guest::Guest,
    life::SessionState,
    node::{Core, Goal, State},
    permissions::Permissions,
    sessions::Session,
    tenancy::Identity,
};
use aviary_wire::{WIRE_VERSION, Welcome, attach::welcome_status};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, SocketFlags, accept_with};
use std::{
    os::fd::{AsFd, OwnedFd},
    sync::{MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime},
};

/// Pause when there are no descriptors left to accept with.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(50);

/// Connections of one user that wait for their turn; more are refused, which costs a descriptor less.
const MOST_WAITING: usize = 256;
/// Connections accepted before other events have their turn.
const ACCEPTED_AT_A_TIME: usize = 16;

/// A connection whose other end is known.
#[derive(Debug)]
pub(crate) struct Newcomer {
    identity: Identity,
    guest: Guest,
    socket: OwnedFd,
}

impl Newcomer {
    /// Who must not attach too often.
    fn key(&self) -> String {
        match &self.identity {
            Identity::Remote(name) => format!("tenant {name}"),
            _ => self.whose(),
        }
    }

    /// Whose sessions are counted.
    fn whose(&self) -> String {
        match &self.identity {
            Identity::Vm(guest) => format!("VM {}", guest.vm),
            _ => format!("user {}", self.guest.uid),
        }
    }

    fn sessions(&self, state: &State) -> usize {
        match &self.identity {
            Identity::Vm(guest) => state.registry.sessions_of_vm(&guest.vm),
            _ => state.registry.sessions_of_user(self.guest.uid),
        }
    }
}

impl Core {
    /// Not for ever: more of them make the listener readable again.
    pub(crate) fn accept_some(&self) {
        let mut state = self.state();
        for _ in 0..ACCEPTED_AT_A_TIME {
            let Some(listener) = &state.listener else { return };
            match accept_with(&listener.socket, SocketFlags::CLOEXEC) {
                Ok(socket) => {
                    self.admit(&mut state, socket);
                    self.keep_reserve();
                }
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::WOULDBLOCK) => return,
                // The kernel says so even if nobody waits.
                Err(Errno::MFILE | Errno::NFILE) => match self.turn_away(&listener.socket) {
                    Ok(()) | Err(Errno::INTR | Errno::CONNABORTED) => {}
                    Err(Errno::WOULDBLOCK) => return,
                    Err(errno) => return self.pause_accepting(state, errno),
                },
                Err(errno) => return self.pause_accepting(state, errno),
            }
        }
    }

    fn pause_accepting(&self, state: MutexGuard<'_, State>, errno: Errno) {
        self.log.error(format_args!("cannot accept a connection: {errno}"));
        drop(state);
        std::thread::sleep(EXHAUSTED_PAUSE);
    }

    /// With no descriptor left, a connection is accepted with the one kept for this, told why, and closed: it
    /// would wait for a minute otherwise.
    fn turn_away(&self, listener: &OwnedFd) -> Result<(), Errno> {
        let mut reserve = self.reserve.lock().unwrap_or_else(PoisonError::into_inner);
        drop(reserve.take());
        let result = accept_with(listener, SocketFlags::CLOEXEC).map(|socket| {
            self.log.error("connection refused: no descriptor is left; raise the node's limit (ulimit -n)");
            refuse(&socket, "the node has no descriptor left");
        });
        *reserve = spare_descriptor();
        result
    }

    /// There may have been none to keep when it was needed last.
    fn keep_reserve(&self) {
        let mut reserve = self.reserve.lock().unwrap_or_else(PoisonError::into_inner);
        if reserve.is_none() {
            *reserve = spare_descriptor();
        }
    }

    /// One connection; more of them make the listener readable again, after other events had their turn.
    pub(crate) fn accept_remote(&self, place: u64) {
        let (Some(listener), Some((_, command))) = (self.remote.get(place as usize), &self.config.remote) else {
            return;
        };
        let socket = match accept_with(listener, SocketFlags::CLOEXEC) {
            Ok(socket) => socket,
            Err(Errno::INTR | Errno::CONNABORTED | Errno::WOULDBLOCK) => return,
            Err(errno) => {
                self.log.error(format_args!("cannot accept a connection: {errno}"));
                return std::thread::sleep(EXHAUSTED_PAUSE);
            }
        };
        if self.aims_at(Goal::Drain) {
            return;
        }
        let mut state = self.state();
        let watched = state.gateways.start(command, &self.config.socket, socket).and_then(|id| {
            let Some(gateway) = state.gateways.get(id) else { return Ok(()) };
            self.epoll.add(gateway.exit.as_fd(), Token::GatewayExit(id))
        });
        if let Err(error) = watched {
            self.log.warn(format_args!("connection refused: {error}"));
        }
    }

    pub(crate) fn reap_gateway(&self, id: u64) {
        let Some(gateway) = self.state().gateways.remove(id) else { return };
        self.epoll.remove(gateway.exit.as_fd());
        let status = gateway.wait().ok();
        let how = status.map_or_else(|| "status unknown".to_owned(), |status| status.to_string());
        self.log.debug(format_args!("a gateway ended: {how}"));
    }

    fn admit(&self, state: &mut State, socket: OwnedFd) {
        let guest = match Guest::of(socket.as_fd()) {
            Ok(guest) => guest,
            Err(error) => return self.log.warn(format_args!("connection refused: {error}")),
        };
        let (identity, guest) = match self.identify(state, guest, &socket) {
            Ok(identified) => identified,
            Err(error) => return self.log.warn(format_args!("connection refused: {error}")),
        };
        let newcomer = Newcomer { identity, guest, socket };
        // Whoever is the node's user may end the node; and one more connection to an API server costs little.
        let own = matches!(newcomer.identity, Identity::User) && guest.uid == rustix::process::geteuid().as_raw();
        let passed = match own || state.registry.server_of(&guest).is_some() {
            true => Some(newcomer),
            false if state.throttle.waiting(&newcomer.key()) >= MOST_WAITING => {
                return refuse(&newcomer.socket, &format!("{} attaches too often", newcomer.key()));
            }
            false => state.throttle.pass(&newcomer.key(), newcomer, Instant::now()),
        };
        if let Some(newcomer) = passed {
            self.welcome(state, newcomer);
        }
    }

    /// Connections that had to wait for their turn.
    pub(crate) fn welcome_due(&self) {
        let mut state = self.state();
        while let Some(newcomer) = state.throttle.due(Instant::now()) {
            if !has_hung_up(&newcomer.socket) {
                self.welcome(&mut state, newcomer);
            }
        }
    }

    fn welcome(&self, state: &mut State, newcomer: Newcomer) {
        if newcomer.sessions(state) >= state.sessions_per_user {
            let why = format!("{} has {} sessions already", newcomer.whose(), state.sessions_per_user);
            self.log.warn(format_args!("connection of process {} refused: {why}", newcomer.guest.pid));
            return refuse(&newcomer.socket, &why);
        }
        let Newcomer { identity, guest, socket } = newcomer;
        let tenant = self.tenant_for(state, &guest, &identity).and_then(|tenant| {
            // Who its API server will be must be clear before there is one.
            state.user_for(&tenant).map(|_| tenant).map_err(|error| error.to_string())
        });
        let tenant = match tenant {
            Ok(tenant) => tenant,
            Err(why) => {
                self.log.warn(format_args!("connection of process {} refused: {why}", guest.pid));
                return refuse(&socket, &why);
            }
        };
        let id = state.registry.new_session_id();
        let session = Session {
            server: 0,
            guest,
            identity,
            tenant,
            permissions: Permissions::default(),
            since: SystemTime::now(),
            state: SessionState::Offered { socket, moved: false },
            api: String::new(),
            pages: None,
        };
        self.place(state, id, session);
    }

    /// Who speaks, and as which guest it is served.
    fn identify(&self, state: &mut State, guest: Guest, socket: &OwnedFd) -> Result<(Identity, Guest), NodeError> {
        if let Some(in_vm) = state.vms.guest_of(guest.pid, socket) {
            let process = guest.within(&in_vm.origin);
            return Ok((Identity::Vm(in_vm), process));
        }
        Ok(match state.gateways.admit(guest).transpose()? {
            Some((tenant, first)) if !tenant.is_empty() => (Identity::Remote(tenant), first),
            Some((_, first)) => (Identity::User, first),
            None => (Identity::User, guest),
        })
    }
}

pub(crate) fn spare_descriptor() -> Option<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC).ok()
}

/// Says why to a guest that gets no API server. It may have gone, and it may be
/// slow: the answer fits the socket's buffer or is dropped.
pub(crate) fn refuse(socket: &OwnedFd, why: &str) {
    let answer =
        Welcome { wire_version: WIRE_VERSION, status: welcome_status::REFUSED, text: why.into(), ..Welcome::default() };
    let _ = rustix::net::send(socket, &answer.to_bytes(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
}

fn has_hung_up(socket: &OwnedFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut polled = [PollFd::new(socket, PollFlags::RDHUP)];
    poll(&mut polled, Some(&now)).is_ok_and(|ready| ready > 0)
}
