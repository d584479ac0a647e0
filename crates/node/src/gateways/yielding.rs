//! What gateways say of sessions that go on, or have gone on, in another process.

use serde::{Deserialize, Serialize};

/// Longest reason of a gateway, in bytes.
const MAX_WHY_BYTES: usize = 200;

/// What a gateway has said last about a session that goes on, or has gone on, in another process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Yielding {
    #[default]
    Nothing,
    /// It has no connection, and its API server gets nothing more.
    Held,
    /// Its session is in the node's file, and it ends.
    Saved,
    /// It has taken the session over.
    Ready,
    /// The session stays what it is. For people.
    Stays(String),
}

/// Whose session a gateway has, for the gateway that takes it over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptOrigin {
    /// The name that it has shown; empty: none.
    pub tenant: String,
    /// In hexadecimal digits: of the process on the other machine, and of the session.
    pub process: String,
    pub session: String,
}

impl Yielding {
    /// Of a line of a gateway. `None`: it is about something else.
    pub fn of(line: &str) -> Option<Yielding> {
        let why = |why: &str| why[..why.floor_char_boundary(MAX_WHY_BYTES)].escape_debug().to_string();
        match line.split_once(' ') {
            Some(("stays", text)) => Some(Yielding::Stays(why(text))),
            Some(("saved", _)) => Some(Yielding::Saved),
            None if line == "held" => Some(Yielding::Held),
            None if line == "ready" => Some(Yielding::Ready),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_gateways_that_yield_are_understood() {
        assert_eq!(Yielding::of("held"), Some(Yielding::Held));
        assert_eq!(Yielding::of("saved 4096"), Some(Yielding::Saved));
        assert_eq!(Yielding::of("ready"), Some(Yielding::Ready));
        assert_eq!(Yielding::of("stays no\u{1b}[m way"), Some(Yielding::Stays("no\\u{1b}[m way".into())));
        let long = format!("stays {}", "\u{e9}".repeat(MAX_WHY_BYTES));
        assert!(matches!(Yielding::of(&long), Some(Yielding::Stays(why)) if why.len() <= MAX_WHY_BYTES));
        for other in ["", "away 5", "back", "saved", "held 1", "stays"] {
            assert_eq!(Yielding::of(other), None, "{other:?}");
        }
    }
}
