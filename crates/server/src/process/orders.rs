//! Orders of the node about sessions that move, and the modules' reports: carried between the node's socket and one of each
//! session.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aviary_control::{
    Assignment, MoveOrder, MoveReport, Patience, Received, SessionDescriptors, StateDescriptors, receive, send,
};

use super::node::Node;
use super::{Assigned, ProcessState};

/// The process's ends, by session.
#[derive(Default)]
pub struct Orders(Mutex<BTreeMap<u64, Arc<OwnedFd>>>);

impl Orders {
    /// The process listens to its end of a session's sockets from here on.
    pub fn open(&self, shared: &ProcessState, session: u64, ours: OwnedFd) {
        self.sockets().insert(session, Arc::new(ours));
        // The main thread has one more to listen to.
        shared.wake();
    }

    /// The session is over.
    pub fn close(&self, session: u64) {
        self.sockets().remove(&session);
    }

    pub fn all(&self) -> Vec<(u64, Arc<OwnedFd>)> {
        self.sockets().iter().map(|(session, socket)| (*session, socket.clone())).collect()
    }

    /// To the module. A session that cannot hear it answers through its process.
    pub fn pass_on(&self, shared: &ProcessState, session: u64, order: MoveOrder) {
        let socket = self.sockets().get(&session).cloned();
        let refuse = |reason: &str, lasting| {
            let report = MoveReport::Unmovable { reason: reason.into(), lasting };
            shared.node.report_move(session, report, &[]);
        };
        let asks = matches!(order, MoveOrder::Announce | MoveOrder::Capture { .. });
        if asks && shared.exchange.offers_of(session) > 0 {
            return refuse("other processes of the application use memory of its", true);
        }
        // The node waits for no module, and this process neither.
        let sent = socket.is_some_and(|socket| send(socket.as_fd(), &order, &[], Patience::None).is_ok());
        if asks && !sent {
            refuse("the session has not begun or is about to end", false);
        }
    }

    /// From the module.
    pub fn report(&self, node: &Node, session: u64, socket: &OwnedFd) {
        match receive::<MoveReport>(socket.as_fd()) {
            Received::Message(report, descriptors) => {
                let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
                node.report_move(session, report, &descriptors);
            }
            Received::Nothing => {}
            Received::Garbage(_) | Received::Closed => self.close(session),
        }
    }

    fn sockets(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<OwnedFd>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A session that another process has served. The error is its number: descriptors are missing.
pub fn adopted(assignment: Assignment, descriptors: Vec<OwnedFd>) -> Result<Assigned, u64> {
    let mut all = descriptors.into_iter();
    let missing = assignment.session;
    let descriptors = SessionDescriptors::next(&mut all, assignment.schedulable).ok_or(missing)?;
    let guest = rustix::io::fcntl_dupfd_cloexec(&descriptors.guest, 3).map_err(|_| missing)?;
    let state = StateDescriptors::behind(guest, all).ok_or(missing)?;
    Ok(Assigned { assignment, descriptors, state: Some(state) })
}
