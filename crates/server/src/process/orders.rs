//! Orders of the node about sessions that move, and the modules' reports: carried between the node's socket and one of each
//! session.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aviary_control::{Heard, MoveOrder, MoveReport, Patience, SwapOrder, SwapReport, hear, send};

use super::node::Node;

/// The process's ends, by session.
#[derive(Default)]
pub struct Orders(Mutex<BTreeMap<u64, Arc<OwnedFd>>>);

impl Orders {
    /// The process listens to its end of a session's sockets from here on, once the main thread wakes.
    pub fn open(&self, session: u64, ours: OwnedFd) {
        self.sockets().insert(session, Arc::new(ours));
    }

    /// The session is over.
    pub fn close(&self, session: u64) {
        self.sockets().remove(&session);
    }

    pub fn all(&self) -> Vec<(u64, Arc<OwnedFd>)> {
        self.sockets().iter().map(|(session, socket)| (*session, socket.clone())).collect()
    }

    /// To the module. A session that cannot hear it answers through its process. `exports`: other processes of the
    /// application can fetch descriptors of the session.
    pub fn pass_on(&self, node: &Node, session: u64, exports: bool, order: MoveOrder, descriptors: &[OwnedFd]) {
        let socket = self.sockets().get(&session).cloned();
        let asked = match order {
            MoveOrder::Announce { attempt } | MoveOrder::Capture { attempt, .. } => Some(attempt),
            MoveOrder::Swap(SwapOrder::Evict { attempt, .. } | SwapOrder::Return { attempt, .. }) => Some(attempt),
            MoveOrder::Swap(
                SwapOrder::Room { .. } | SwapOrder::Keep { .. } | SwapOrder::Prepare { .. } | SwapOrder::Credit { .. },
            ) => None,
            MoveOrder::Resume | MoveOrder::Rebuild | MoveOrder::Go | MoveOrder::End => None,
        };
        let swaps = matches!(order, MoveOrder::Swap(_));
        // What is out comes back, whoever has its descriptors.
        let exports = exports && !matches!(order, MoveOrder::Swap(SwapOrder::Return { .. }));
        let refuse = |attempt, reason: &str, lasting| {
            let reason = reason.into();
            node.report_move(
                session,
                match swaps {
                    true => MoveReport::Swap(SwapReport::Stays { attempt, reason, kept: u64::MAX }),
                    false => MoveReport::Unmovable { attempt, reason, lasting },
                },
            );
        };
        if let Some(attempt) = asked.filter(|_| exports) {
            return refuse(attempt, "other processes of the application use memory that it exported", true);
        }
        // The node waits for no module, and this process neither.
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        let sent = socket.is_some_and(|socket| send(socket.as_fd(), &order, &descriptors, Patience::None).is_ok());
        if let Some(attempt) = asked.filter(|_| !sent) {
            refuse(attempt, "the session has not begun or is about to end", false);
        }
    }

    /// From the module.
    pub fn report(&self, node: &Node, session: u64, socket: &OwnedFd) {
        match hear::<MoveReport>(socket.as_fd()) {
            Heard::Message(report) => node.report_move(session, report),
            Heard::Nothing => {}
            Heard::Garbage(_) | Heard::Closed => self.close(session),
        }
    }

    fn sockets(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<OwnedFd>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
