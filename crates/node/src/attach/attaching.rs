//! Connections on their way to an API server, as one value: where they come in, which wait for their turn, and which were
//! refused.

use crate::attach::accept::pending::PendingAttach;
use crate::attach::listener::Listener;
use crate::attach::throttle::{Throttle, further_rate};
use crate::servers::line_limit::LineLimit;

/// All state of attaching, part of the node's state.
#[derive(Debug)]
pub(crate) struct Attaching {
    /// Taken when the node ends, which removes the socket.
    pub listener: Option<Listener>,
    /// Processes that attach, and further connections of processes that have an API server.
    pub throttle: Throttle<PendingAttach>,
    pub further: Throttle<PendingAttach>,
    /// Connections that one user may have at a time.
    pub sessions_per_user: usize,
    /// Lines of the log about connections that were refused.
    pub refusals: LineLimit,
}

impl Attaching {
    pub fn new(listener: Listener, attach_rate: u32, sessions_per_user: usize) -> Attaching {
        Attaching {
            listener: Some(listener),
            throttle: Throttle::new(attach_rate),
            further: Throttle::new(further_rate(attach_rate)),
            sessions_per_user,
            refusals: LineLimit::default(),
        }
    }
}
