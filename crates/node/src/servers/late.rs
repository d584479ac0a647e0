//! Sockets between API servers, and the closes that take longer than any of an honest tenant: a descriptor in flight in them waits
//! for its peer or its file system. They are the burden of their tenant, which gets no more sessions while there are too many.

use crate::attach::foreign::BETWEEN;
use crate::node::{Core, CoreState};
use aviary_control::{Foreign, LateJob, MOST_OF_ONE};
use aviary_wire::Shown;
use std::time::Instant;

impl Core {
    /// Two connected sockets for API servers of this tenant. They may have put something into one before the node has closed
    /// its copy.
    pub(crate) fn sockets_between(&self, tenant: &str) -> rustix::io::Result<[Foreign; 2]> {
        let tenant = tenant.into();
        Ok(aviary_control::order_sockets()?.map(|socket| Foreign::new(socket, &self.aside, &tenant, BETWEEN)))
    }

    /// Lines about closes that are slower than any of an honest tenant.
    pub(crate) fn tell_late(&self, now: Instant) {
        for LateJob { party, what } in self.aside.look(now) {
            self.log.warn(format_args!(
                "tenant {}: {what} is being closed for more than 5 s: a descriptor in it waits for its peer or its file system",
                Shown(&party)
            ));
        }
    }

    /// An error if so much of a tenant does not end that it gets no more sessions.
    pub(crate) fn check_late(&self, state: &CoreState, tenant: &str) -> Result<(), String> {
        let late = self.aside.late_of(tenant, Instant::now()) + state.registry.unending_of(tenant);
        if late < MOST_OF_ONE {
            return Ok(());
        }
        Err(format!(
            "tenant {tenant} has {late} descriptors or API servers whose end waits for a peer or a file system: it gets no \
             session before they have ended"
        ))
    }
}
