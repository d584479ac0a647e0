//! What operators ask of swapped sessions, and the answers.

use aviary_control::SwapFigures;
use serde::{Deserialize, Serialize};

/// An operator's wish.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwapRequest {
    pub session: u64,
    /// False: bring its memory back.
    pub out: bool,
    /// Milliseconds within which the session must be paused and its devices done.
    pub stop_ms: u64,
}

/// Where the device memory of a session is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwapStatus {
    /// `in`, `going out`, `out` or `coming in`.
    pub place: String,
    /// Bytes of host memory that it takes.
    pub bytes: u64,
    /// Of a session that is in: bytes of host memory that it keeps for the next time.
    #[serde(default)]
    pub kept: u64,
    /// How often it has left, and returned.
    pub outs: u64,
    pub ins: u64,
    /// Of the last time that it left.
    #[serde(default)]
    pub figures: SwapFigures,
    /// Of the last time that it returned, in microseconds.
    #[serde(default)]
    pub return_us: u64,
    /// Why the last order was not followed, if it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}
