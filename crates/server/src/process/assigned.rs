//! A connection that the node hands over.

use std::os::fd::{AsFd, OwnedFd};

use aviary_control::{Assignment, SessionDescriptors, StateDescriptors};

/// A connection that the node hands over.
pub struct Assigned {
    pub assignment: Assignment,
    pub descriptors: SessionDescriptors<OwnedFd>,
    /// Of a session that another process has served.
    pub state: Option<StateDescriptors<OwnedFd>>,
}

/// A session that another process has served. The error is its number: descriptors are missing.
pub fn adopted(assignment: Assignment, descriptors: Vec<OwnedFd>) -> Result<Assigned, u64> {
    let mut all = descriptors.into_iter();
    let missing = assignment.session;
    let mut descriptors = SessionDescriptors::next(&mut all, assignment.schedulable).ok_or(missing)?;
    let file = all.next().ok_or(missing)?;
    let state = StateDescriptors::find(file, descriptors.guest.as_fd()).map_err(|_| missing)?;
    descriptors.guest = rustix::io::fcntl_dupfd_cloexec(&state.guest, 3).map_err(|_| missing)?;
    Ok(Assigned { assignment, descriptors, state: Some(state) })
}
