//! The grants of a node that starts: those of its folder, with the sockets of the program before if it takes one's place.

use super::{
    entrance,
    request::{Grant, GrantEntrance},
    store::GrantStore,
    table::{Grants, MOST_GRANTS},
};
use crate::attach::foreign::{LISTENER, nobody};
use crate::epoll::Token;
use crate::node::Core;
use crate::tenants::tenant::Tenants;
use crate::upgrade::inheritance::Handover;
use aviary_control::Foreign;
use std::{
    os::fd::{AsFd, OwnedFd},
    time::{Instant, SystemTime},
};

impl Core {
    /// Before the node's loop begins, and before sessions are restored. A grant that cannot be is left out, and the log says why:
    /// the others, and the node, do not wait for it.
    pub(crate) fn begin_grants(&self, mut before: Option<&mut Handover>) {
        let Ok(mut guard) = self.grant_store() else { return };
        let Some(store) = guard.as_mut() else { return };
        let (grants, notes) = store.load();
        notes.iter().for_each(|note| self.log.error(note));
        let mut state = self.state();
        for grant in grants.into_iter().take(MOST_GRANTS) {
            if grant.is_over(SystemTime::now()) {
                self.drop_expired(store, &grant);
                continue;
            }
            let name = grant.name.clone();
            let inherited = before.as_deref_mut().and_then(|before| {
                let number = *before.image.grants.get(&name)?;
                before.inherited.take(number).ok()
            });
            match self.begin_with(&mut state.grants, grant, inherited) {
                Ok(()) => {}
                Err(why) => self.log.error(format_args!("grant {name} is not in force: {why}")),
            }
        }
        let (tenants, mut notes) = state.with_grants(Tenants::clone(&state.tenants()));
        match self.change_shares(&mut state, tenants, None, None) {
            Ok(more) => notes.extend(more),
            Err(error) => self.log.error(error),
        }
        notes.iter().for_each(|note| self.log.warn(note));
        if !state.grants.held.is_empty() {
            // For the next one: how much memory there is.
            if let Some(lister) = &self.config.device_lister {
                lister.answer(Instant::now());
            }
            self.log.info(format_args!("{} grants are in force", state.grants.held.len()));
        }
    }

    fn begin_with(&self, grants: &mut Grants, grant: Grant, inherited: Option<OwnedFd>) -> Result<(), String> {
        let listener = match (&grant.entrance, inherited) {
            (GrantEntrance::Socket(_), Some(socket)) => Some(socket),
            (GrantEntrance::Socket(folder), None) => {
                Some(entrance::open(folder, false).map_err(|error| error.to_string())?)
            }
            (GrantEntrance::Key(_), _) => None,
        };
        let listener = listener.map(|socket| Foreign::new(socket, &self.aside, &nobody(), LISTENER));
        let place = grants.put(grant, listener);
        match grants.listener_at(place) {
            Some(socket) => self.epoll.add(socket.as_fd(), Token::Grant(place)).map_err(|error| error.to_string()),
            None => Ok(()),
        }
    }

    fn drop_expired(&self, store: &mut GrantStore, grant: &Grant) {
        self.log.info(format_args!("grant {}: its time was over when the node started", grant.name));
        if let Err(error) = store.remove(grant, true) {
            self.log.error(error);
        }
        if let GrantEntrance::Socket(folder) = &grant.entrance {
            let _ = entrance::close(folder, true);
        }
    }

    /// The node ends: nobody answers at the sockets. The folders stay, which containers may have mounted.
    pub(crate) fn end_grants(&self) {
        self.part_with_relays();
        let mut state = self.state();
        for held in std::mem::take(&mut state.grants.held).into_values() {
            if let Some(listener) = &held.listener {
                self.epoll.remove(listener.as_fd());
            }
            if let GrantEntrance::Socket(folder) = &held.grant.entrance {
                let _ = entrance::close(folder, false);
            }
        }
    }
}
