//! What API servers say.

use crate::{
    control::{self, Event, Received},
    node::{Core, State},
};
use std::os::fd::{AsFd, OwnedFd};

impl Core {
    /// Takes one message; more of them make the socket readable again.
    pub(crate) fn hear(&self, id: u64) {
        let mut state = self.state();
        let Some(server) = state.registry.servers.get(&id) else { return };
        match control::receive(server.process.control.as_fd()) {
            Received::Event(event, descriptors) => self.note(&mut state, id, event, descriptors),
            Received::Garbage(why) => {
                let pid = server.process.pid();
                self.log.warn(format_args!("API server {pid} sent a message that is not understood: {why}"));
            }
            Received::Nothing => {}
            Received::Closed => {
                self.epoll.remove(server.process.control.as_fd());
                state.registry.retire(id);
            }
        }
    }

    /// An API server speaks for its own sessions only.
    fn note(&self, state: &mut State, server: u64, event: Event, descriptors: Vec<OwnedFd>) {
        let (Event::Started { session: id, .. }
        | Event::Ended { session: id, .. }
        | Event::Fetch { session: id, .. }
        | Event::Fetched { session: id, .. }) = &event
        else {
            return;
        };
        let Some(session) = state.registry.sessions.get_mut(id).filter(|session| session.server == server) else {
            return self.log.debug(format_args!("news of session {id}, which is not known"));
        };
        match event {
            Event::Started { session: id, api } => {
                self.log.info(format_args!("session {id}: {api} started"));
                session.pending = None;
                session.api = api;
                // The statistics, and page and bell of the devices.
                let mut descriptors = descriptors.into_iter();
                session.stats = descriptors.next();
                if let (Some(scheduling), Some(page), Some(bell)) =
                    (&self.scheduling, descriptors.next(), descriptors.next())
                {
                    let share = state.tenants.called(&session.tenant).share();
                    let process = state.registry.servers.get(&server).map_or(0, |known| known.process.pid());
                    scheduling.enter(id, &session.tenant, share, process, &page, bell);
                }
            }
            Event::Ended { session: id, reason } => {
                let separator = if reason.is_empty() { "" } else { ": " };
                self.log.info(format_args!("session {id}: ended{separator}{}", reason.escape_debug()));
                state.registry.sessions.remove(&id);
                self.unschedule(id);
            }
            Event::Fetch { session: asker, request, name } => self.ask_for(state, asker, request, &name),
            Event::Fetched { session: giver, asker, request, note } => {
                self.hand_over(state, giver, asker, request, note, descriptors.first());
            }
            Event::Born { .. } | Event::Ready | Event::Unfit { .. } | Event::Unknown => {}
        }
    }

    pub(crate) fn hear_rest(&self, id: u64) {
        loop {
            let mut state = self.state();
            let Some(server) = state.registry.servers.get(&id) else { return };
            match control::receive(server.process.control.as_fd()) {
                Received::Event(event, descriptors) => self.note(&mut state, id, event, descriptors),
                Received::Garbage(_) => {}
                Received::Nothing | Received::Closed => return,
            }
        }
    }
}
