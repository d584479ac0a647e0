//! The door of this process, if it has one: its threads may continue in those of its API servers' lanes.

use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Arc;

use aviary_delegate::door::{DoorTable, GuestBell};
use aviary_transport::Doorbell;

/// The door to one API server.
pub(crate) struct OpenDoor {
    table: &'static DoorTable,
    session: u64,
}

impl OpenDoor {
    /// A new API server behind the door. `None`: the program has no door, or nothing is behind it for this process.
    pub fn connect() -> Option<(OpenDoor, OwnedFd)> {
        let table = DoorTable::find()?;
        let mut session = 0;
        let socket = (table.connect)(&raw mut session);
        // SAFETY: a descriptor without another owner, as it is not negative.
        (socket >= 0).then(|| (OpenDoor { table, session }, unsafe { OwnedFd::from_raw_fd(socket) }))
    }

    /// The doorbell of a lane; `None`: its thread cannot be borrowed.
    pub fn bell(&self, lane: u32) -> Option<Arc<dyn Doorbell>> {
        let berth = self.table.berth(self.session, lane)?;
        Some(Arc::new(GuestBell::new(berth)))
    }
}
