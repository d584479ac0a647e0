//! Sockets between API servers, and the closes that take longer than any of an honest tenant: a descriptor in flight in them waits
//! for its peer or its file system. They are the burden of their tenant, which gets no more sessions while there are too many.

use crate::attach::foreign::BETWEEN;
use crate::sessions::registry::Registry;
use aviary_control::{Aside, Foreign, LateJob, MOST_OF_ONE};
use aviary_wire::Shown;
use std::time::Instant;

/// Two connected sockets for API servers of this tenant. They may have put something into one before the node has closed its
/// copy.
pub fn sockets_between(aside: &Aside, tenant: &str) -> rustix::io::Result<[Foreign; 2]> {
    let tenant = tenant.into();
    Ok(aviary_control::order_sockets()?.map(|socket| Foreign::new(socket, aside, &tenant, BETWEEN)))
}

/// Lines about closes that are slower than any of an honest tenant.
pub fn late_lines(aside: &Aside, now: Instant) -> impl Iterator<Item = String> {
    aside.look(now).into_iter().map(|LateJob { party, what }| {
        format!(
            "tenant {}: {what} is being closed for more than 5 s: a descriptor in it waits for its peer or its file system",
            Shown(&party)
        )
    })
}

/// An error if so much of a tenant does not end that it gets no more sessions.
pub fn check_late(aside: &Aside, registry: &Registry, tenant: &str, now: Instant) -> Result<(), String> {
    let late = aside.late_of(tenant, now) + registry.unending_of(tenant);
    if late < MOST_OF_ONE {
        return Ok(());
    }
    Err(format!(
        "tenant {tenant} has {late} descriptors or API servers whose end waits for a peer or a file system: it gets no \
         session before they have ended"
    ))
}
