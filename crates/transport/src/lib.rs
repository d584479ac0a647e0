//! The means by which the two ends of a connection meet.
//!
//! A connection is a control socket, an [`Arena`] and any number of lanes. Both sides use a lane
//! through [`LaneEnd`], which is a pair of rings in shared memory or a stream; code above this
//! crate does not depend on the kind, except that it names the arena regions that belong to a
//! message.

mod arena;
pub mod bounds;
mod control;
mod descriptors;
mod device;
mod lane;
mod remote;
mod stream;
mod window;

pub use arena::{Arena, ArenaError, DEFAULT_ARENA, HUGE_PAGE, LOWEST_ADDRESS, huge_from};
pub use aviary_ring::{
    Consumer, ConsumerPosition, Doorbell, Liveness, Producer, ProducerPosition, RingError, WaitPoint,
};
pub use control::{
    ControlError, ControlSocket, Identity, PeerCredentials, receive_greeting, receive_hello, send_greeting,
};
pub use descriptors::{inherit, may_have_file, out_of_the_way};
pub use device::{Device, Pin};
pub use lane::{LaneEnd, LanePosition, LaneWaker, Side, accept_lane, take_regions};
pub use remote::{AddressError, RemoteAddress, limit_unsent};
pub use stream::StreamLane;
pub use window::Extent;

use thiserror::Error;

/// A part of the arena that belongs to a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    pub offset: u64,
    pub length: usize,
}

/// The reason why a lane can no longer be used, or a message not be sent.
#[derive(Debug, Error)]
pub enum LaneError {
    /// the peer is gone
    #[error("the peer is gone")]
    Dead,
    /// this side was asked to stop waiting for messages
    #[error("this side was asked to stop waiting for messages")]
    Interrupted,
    /// {0}
    #[error(transparent)]
    Ring(RingError),
    /// a message names memory outside the arena: {0}
    #[error("a message names memory outside the arena: {0}")]
    Arena(#[from] ArenaError),
    /// a frame of {length} bytes with {regions} regions exceeds the limits
    #[error("a frame of {length} bytes with {regions} regions exceeds the limits")]
    Frame { length: u64, regions: u64 },
    /// the lane's socket failed: {0}
    #[error("the lane's socket failed: {0}")]
    Socket(#[from] std::io::Error),
    /// the peer opened a lane without what it consists of: {0}
    #[error("the peer opened a lane without what it consists of: {0}")]
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
