//! Descriptors on their way from one API server to another: of the same tenant only, and by a socket of their own, so that they
//! never come to the node.

use crate::servers::late::sockets_between;
use crate::{
    log::Level,
    node::{Core, CoreState},
};
use aviary_control::{Foreign, OfferName, Patience, ToServer, Wanted, send};
use std::os::fd::AsFd;

impl Core {
    /// A session of that API server fetches what another one may have offered.
    pub(crate) fn ask_for(&self, state: &mut CoreState, server: u64, asker: u64, request: u64, name: OfferName) {
        let way = self.ask_giver(state, server, Wanted { asker, request, name });
        tell(state, asker, &ToServer::Fetched { request, note: 0 }, way.as_ref());
    }

    /// The socket over which the other session answers; `None`: there is no other one that could.
    fn ask_giver(&self, state: &mut CoreState, server: u64, wanted: Wanted) -> Option<Foreign> {
        let giver = wanted.name.session;
        if !self.of_one_tenant(state, server, wanted.asker, giver) {
            return None;
        }
        let tenant = state.registry.sessions.get(&giver).map(|session| session.tenant.clone())?;
        let [to, from] = sockets_between(&self.aside, &tenant).ok()?;
        tell(state, giver, &ToServer::Fetch(wanted), Some(&to)).then_some(from)
    }

    /// A session asks for a connection to a card: it is the session's tenant there. The node makes both ends.
    /// The answer waits for a card that starts.
    pub(crate) fn connect_to_card(&self, state: &mut CoreState, asker: u64, request: u64) {
        if state.cards.first_starts() && state.cards.hold(asker, request) {
            return;
        }
        match self.card_socket_of(state, asker) {
            Ok(socket) => tell(state, asker, &ToServer::Fetched { request, note: 0 }, Some(&socket)),
            Err(errno) => {
                let note = errno.raw_os_error().unsigned_abs().into();
                tell(state, asker, &ToServer::Fetched { request, note }, None)
            }
        };
    }

    /// Answers those that waited for a card, once it does not start any longer.
    pub(crate) fn connect_those_that_wait(&self) {
        let mut state = self.state();
        if state.cards.first_starts() {
            return;
        }
        for (asker, request) in state.cards.let_go() {
            self.connect_to_card(&mut state, asker, request);
        }
    }

    fn of_one_tenant(&self, state: &mut CoreState, server: u64, one: u64, other: u64) -> bool {
        let tenant = |session: u64| state.registry.sessions.get(&session).map(|session| &session.tenant);
        let same = tenant(one).is_some() && tenant(one) == tenant(other);
        if !same {
            let line = format_args!(
                "sessions {one} and {other} are of different tenants: no descriptor is passed between them"
            );
            self.tell_of(state, server, Level::Debug, line);
        }
        same
    }
}

/// False: the session's API server is not there or does not listen.
fn tell(state: &CoreState, session: u64, message: &ToServer, descriptor: Option<&Foreign>) -> bool {
    let server = state.registry.sessions.get(&session).and_then(|s| state.registry.servers.get(&s.server));
    let Some(server) = server else { return false };
    let descriptors: Vec<_> = descriptor.iter().map(|descriptor| descriptor.as_fd()).collect();
    send(server.process.control.as_fd(), message, &descriptors, Patience::None).is_ok()
}
