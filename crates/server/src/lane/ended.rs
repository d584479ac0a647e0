//! Why a lane stops.

use aviary_transport::LaneError;

/// Why a lane stops.
pub enum LaneEnded {
    /// The guest closed it or is gone.
    Closed,
    /// The guest broke the protocol: the session ends with this reason.
    Broken(String),
    /// The session is paused, and the message can be executed later. Never below a callback.
    Paused,
}

impl From<LaneError> for LaneEnded {
    fn from(error: LaneError) -> LaneEnded {
        match error {
            LaneError::Dead => LaneEnded::Closed,
            LaneError::Interrupted => LaneEnded::Paused,
            LaneError::Socket(error) => LaneEnded::Broken(error.to_string()),
            other => LaneEnded::Broken(other.to_string()),
        }
    }
}
