//! Descriptors on their way from one API server to another: of the same tenant only.

use crate::{
    control,
    node::{Core, State},
};
use aviary_server::OfferName;
use serde_json::json;
use std::os::fd::{AsFd, OwnedFd};

impl Core {
    /// A session fetches what another one may have offered.
    pub(crate) fn ask_for(&self, state: &State, asker: u64, request: u64, name: &OfferName) {
        let question = json!({"fetch": {"asker": asker, "request": request, "name": name}});
        let asked = self.of_one_tenant(state, asker, name.session) && self.tell(state, name.session, &question, None);
        if !asked {
            self.tell(state, asker, &json!({"fetched": {"request": request}}), None);
        }
    }

    /// What that other one says.
    pub(crate) fn hand_over(
        &self,
        state: &State,
        giver: u64,
        asker: u64,
        request: u64,
        note: u64,
        descriptor: Option<&OwnedFd>,
    ) {
        if self.of_one_tenant(state, giver, asker) {
            self.tell(state, asker, &json!({"fetched": {"request": request, "note": note}}), descriptor);
        }
    }

    fn of_one_tenant(&self, state: &State, one: u64, other: u64) -> bool {
        let tenant = |session: u64| state.registry.sessions.get(&session).map(|session| &session.tenant);
        let same = tenant(one).is_some() && tenant(one) == tenant(other);
        if !same {
            self.log.debug(format_args!("sessions {one} and {other} share no tenant: nothing passes between them"));
        }
        same
    }

    /// False: its API server is not there or does not listen.
    fn tell(&self, state: &State, session: u64, message: &serde_json::Value, descriptor: Option<&OwnedFd>) -> bool {
        let server = state.registry.sessions.get(&session).and_then(|s| state.registry.servers.get(&s.server));
        let Some(server) = server else { return false };
        let descriptors: Vec<_> = descriptor.iter().map(|descriptor| descriptor.as_fd()).collect();
        control::send(server.process.control.as_fd(), message, &descriptors).is_ok()
    }
}
