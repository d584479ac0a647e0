//! Guests of grants with a way out: their connections are passed to relays, unread.

use super::{RelayProcess, USUAL_RELAYS};
use crate::attach::accept::refuse;
use crate::attach::foreign::nobody;
use crate::attach::guest::Guest;
use crate::epoll::Token;
use crate::error::NodeError;
use crate::grants::error::GrantError;
use crate::grants::request::{Grant, Via};
use crate::grants::store::key_folder;
use crate::helpers::HelperProcess;
use crate::node::{Core, CoreState};
use crate::users::server_users::ServerUsers;
use aviary_control::Foreign;
use aviary_transport::send_greeting;
use std::{
    os::{
        fd::{AsFd, OwnedFd},
        unix::{net::UnixStream, process::CommandExt},
    },
    process::{Command, Stdio},
};

impl Core {
    /// The connection goes to the relay of its process, which is started for the first one.
    pub(crate) fn carry(
        &self,
        state: &mut CoreState,
        (place, grant, via): (u64, Grant, Via),
        guest: Guest,
        socket: &Foreign,
    ) {
        let passed = match state.relays.of_guest(place, &guest) {
            Some(relay) => pass(relay, socket),
            None => self
                .start_relay(state, (place, &grant, &via), guest)
                .and_then(|id| state.relays.list.get(&id).map_or(Ok(()), |relay| pass(relay, socket))),
        };
        if let Err(why) = passed {
            refuse(socket, &why);
            self.tell_refusal(state, format_args!("connection of process {} refused: {why}", guest.pid));
        }
    }

    fn start_relay(
        &self,
        state: &mut CoreState,
        (place, grant, via): (u64, &Grant, &Via),
        guest: Guest,
    ) -> Result<u64, String> {
        let (name, most) = (&grant.name, grant.sessions.unwrap_or(USUAL_RELAYS));
        if state.relays.of_tenant(name) >= most {
            return Err(format!("tenant {name} has {most} processes on other nodes already"));
        }
        let folder = self.config.grants.as_ref().map(|folder| key_folder(folder, name)).ok_or("there are no grants")?;
        let user = state.server_users.as_mut().map_or(Ok(None), |users: &mut ServerUsers| users.helper("relays"));
        let user = user.map_err(|error| error.to_string())?;
        let failed = |error: &dyn std::fmt::Display| format!("cannot start a relay: {error}");
        let (channel, theirs) = UnixStream::pair().map_err(|error| failed(&error))?;
        channel.set_nonblocking(true).map_err(|error| failed(&error))?;
        let command = &self.config.relay;
        let mut process = Command::new(&command.program);
        process
            .arg0("aviary")
            .args(&command.arguments)
            .args(["--via", &via.node, "--pin", &via.pin, "--identity"])
            .arg(folder)
            .args(user.into_iter().flat_map(|user| ["--user".to_owned(), user.to_string()]))
            // It reads what guests send, and needs nothing of the node's.
            .env_clear()
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            // Signals from the terminal are for the node, which ends its relays itself.
            .process_group(0);
        let process = HelperProcess::spawn(&mut process, &self.aside).map_err(|error| failed(&error))?;
        state.relays.last += 1;
        let id = state.relays.last;
        if let Err(error) = self.epoll.add(process.exit.as_fd(), Token::RelayExit(id)) {
            process.kill();
            process.part();
            return Err(failed(&error));
        }
        let channel = Foreign::new(channel.into(), &self.aside, &nobody(), "the socket of a relay");
        let tenant = name.clone();
        state.relays.list.insert(id, RelayProcess { process, channel, place, tenant, guest });
        Ok(id)
    }

    pub(crate) fn reap_relay(&self, id: u64) {
        let Some(relay) = self.state().relays.list.remove(&id) else { return };
        self.epoll.remove(relay.process.exit.as_fd());
        let pid = relay.process.pid();
        let how = relay.process.part().map_or_else(|| "it does not end".to_owned(), |end| end.to_string());
        self.log.debug(format_args!("relay {pid} of grant {} ended: {how}", relay.tenant));
    }

    /// They are reaped when they have ended. `tenant`: of this grant; `None`: all.
    pub(crate) fn end_relays(&self, state: &CoreState, tenant: Option<&str>) {
        let chosen = state.relays.list.values().filter(|relay| tenant.is_none_or(|name| relay.tenant == name));
        chosen.for_each(|relay| relay.process.kill());
    }

    /// The node ends.
    pub(crate) fn part_with_relays(&self) {
        self.end_relays(&self.state(), None);
        let ids: Vec<u64> = self.state().relays.list.keys().copied().collect();
        ids.into_iter().for_each(|id| self.reap_relay(id));
    }

    /// A key for the grant's way out, if it has none: its SHA-256.
    pub(crate) fn make_key(&self, name: &str) -> Result<String, NodeError> {
        let folder = self.config.grants.as_ref().ok_or(GrantError::NoFolder)?;
        let folder = key_folder(folder, name);
        let maker = self.config.key_maker.as_ref().ok_or(GrantError::NoFolder)?;
        Ok(maker.make(&folder).map_err(|why| GrantError::Folder(folder, why))?)
    }
}

fn pass(relay: &RelayProcess, socket: &Foreign) -> Result<(), String> {
    let sent = send_greeting(&relay.channel, &[0], &[socket.as_fd()]);
    sent.map_err(|error| format!("the relay of the process takes no connection: {error}"))
}
