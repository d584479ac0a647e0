//! The means by which the two ends of a connection meet.
//!
//! A connection is a control socket, an [`Arena`] and any number of lanes. Both sides use a lane
//! through [`LaneEnd`], which is a pair of rings in shared memory or a stream; code above this
//! crate does not depend on the kind, except that it names the arena regions that belong to a
//! message.

pub mod bounds;
mod control;
mod descriptors;
mod device;
mod lane;
mod memory;
mod remote;
mod stream;
mod user_entry;

pub use aviary_ring::{
    Consumer, ConsumerPosition, Doorbell, Liveness, Producer, ProducerPosition, Reserve, RingError, WaitPoint,
};
pub use control::{ControlError, ControlSocket, PeerCredentials, receive_greeting, receive_hello, send_greeting};
pub use descriptors::{
    Identity, KeptFile, connect_through, connections_through, inherit, may_have_file, out_of_the_way,
};
pub use device::{Device, Pin};
pub use lane::{LaneEnd, LanePosition, LaneWaker, Side, accept_lane, take_regions};
pub use memory::arena::{Arena, ArenaError, DEFAULT_ARENA, HUGE_PAGE, LOWEST_ADDRESS, huge_from};
pub use memory::changes::{copy_changes, mask_bytes};
pub use memory::rows::Rows;
pub use memory::window::Extent;
pub use remote::{AddressError, RemoteAddress, limit_unsent, min_round_trip};
pub use stream::StreamLane;
pub use user_entry::has_user_entry;

use thiserror::Error;

/// Bytes of a long input that a guest sends ahead of its message at a time, while it copies the rest: long enough for strands,
/// and a whole number of their pieces.
pub const AHEAD_BYTES: usize = 5 * (224 << 10);

/// A part of the arena that belongs to a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    pub offset: u64,
    pub length: usize,
}

/// The reason why a lane can no longer be used, or a message not be sent.
#[derive(Debug, Error, displaydoc::Display)]
pub enum LaneError {
    /// the peer is gone
    Dead,
    /// this side was asked to stop waiting for messages
    Interrupted,
    /// {0}
    Ring(RingError),
    /// a message names memory outside the arena: {0}
    Arena(#[from] ArenaError),
    /// a frame of {length} bytes with {regions} regions exceeds the limits
    Frame { length: u64, regions: u64 },
    /// the lane's socket failed: {0}
    Socket(#[from] std::io::Error),
    /// the peer opened a lane without what it consists of: {0}
    Open(&'static str),
}

impl From<RingError> for LaneError {
    fn from(e: RingError) -> Self {
        match e {
            RingError::Dead => LaneError::Dead,
            RingError::Interrupted => LaneError::Interrupted,
            e => LaneError::Ring(e),
        }
    }
}
