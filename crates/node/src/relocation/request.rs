//! What operators ask of relocations, and the answers.

use super::table::{Halt, Purpose};
use serde::{Deserialize, Serialize};

/// The most time, in milliseconds, that an operator lets sessions have until they are paused and their devices done.
pub const MAX_STOP_MS: u64 = 600_000;
/// Bytes that the states of parked sessions may take in a node that is told nothing.
pub const USUAL_PARKED_MEMORY: u64 = 1 << 30;

/// An operator's wish.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveRequest {
    pub session: u64,
    /// Capture it, report what that took, and let it continue where it is.
    pub check: bool,
    /// Park it: nothing of it is rebuilt in the new API server until its program calls.
    #[serde(default)]
    pub park: bool,
    /// Milliseconds within which the session must be paused and its devices done: an attempt holds the program no longer
    /// before it is refused.
    pub stop_ms: u64,
    /// For tests: the move waits there for [`crate::Request::Proceed`]. Its deadlines hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub halt: Option<Halt>,
}

/// The answer to a wish: the number of the move.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct MoveBegun {
    pub number: u64,
}

/// The state of a move, or its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MoveStatus {
    /// With the name of its stage.
    UnderWay(String),
    Moved(MoveFigures),
    /// Its state is in the node's memory, and nothing of it is on a device.
    Parked(MoveFigures),
    /// It could have moved (`check`).
    Movable(MoveFigures),
    /// It continues where it was.
    Refused {
        reason: String,
        lasting: bool,
    },
}

/// Figures of a move; of several sessions the sums, which is how long their guests were paused at most.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveFigures {
    /// Sessions that moved together.
    pub sessions: usize,
    /// Process id of the API server that has them.
    pub server: u32,
    /// Bytes of state.
    pub bytes: u64,
    /// Until there was host memory for the content of its devices, in microseconds; the sessions still ran. 0 of a move.
    #[serde(default)]
    pub reserve_us: u64,
    /// Until all lanes were paused, in microseconds.
    pub stop_us: u64,
    /// Until the devices had done everything.
    pub drain_us: u64,
    /// Until the state was written.
    pub capture_us: u64,
    /// Until it was rebuilt; 0 if it was not.
    pub rebuild_us: u64,
    /// From the wish until the new API server was prepared, as the node saw it: the sessions still ran.
    #[serde(default)]
    pub prepare_us: u64,
    /// From the order to stop until the sessions could continue, as the node saw it.
    #[serde(default)]
    pub stood_us: u64,
    /// From the wish to the end, as the node saw it.
    pub whole_us: u64,
}

/// A session's moves, for `aviary ps`.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionMoves {
    /// How often it has moved.
    pub count: u64,
    /// How often it was parked.
    #[serde(default)]
    pub parks: u64,
    /// How long it was paused the last time, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_us: Option<u64>,
    /// Why the last attempt was given up, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

impl SessionMoves {
    /// It has moved, or is parked.
    pub fn add(&mut self, purpose: Purpose, figures: &MoveFigures) {
        self.refused = None;
        match purpose {
            Purpose::Move => (self.count, self.last_us) = (self.count + 1, Some(figures.stood_us)),
            Purpose::Park => self.parks += 1,
            Purpose::Check | Purpose::Upgrade | Purpose::Keep => {}
        }
    }
}

/// The state of a parked session, for `aviary ps`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParkedReport {
    /// For people: whether it waits for something.
    pub state: String,
    /// Bytes of host memory that its state takes.
    pub bytes: u64,
    pub seconds: u64,
}

/// Host memory that the states of a node's parked sessions take.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParkedMemory {
    pub used: u64,
    /// They may take so much.
    pub limit: u64,
}

/// The answer to the request to bring sessions back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UnparkStatus {
    /// It is not parked, or not any more.
    Running,
    /// With its state, for people.
    UnderWay(String),
}
