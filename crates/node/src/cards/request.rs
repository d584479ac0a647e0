//! What operators ask of moves to other ports, and the answers.

use serde::{Deserialize, Serialize};

/// A move that an operator orders.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardMoveRequest {
    pub session: u64,
    /// Card and port, such as `card0/ll1`.
    pub port: String,
}

/// Where a move is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CardMoveReport {
    /// The card was told, and has not answered.
    Moving,
    /// The program's accelerator is at this port, as card and port.
    Moved { port: String },
    /// It is where it was.
    Refused { reason: String },
}

/// The last move of a session.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CardMove {
    pub port: String,
    pub report: CardMoveReport,
}
