//! One line per event on standard error.

use aviary_wire::Shown;
use std::{fmt, io::Write, str::FromStr};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Error,
    Warn,
    Info,
    Debug,
}

impl FromStr for Level {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "error" => Ok(Level::Error),
            "warn" => Ok(Level::Warn),
            "info" => Ok(Level::Info),
            "debug" => Ok(Level::Debug),
            _ => Err(format!("`{text}` is not a log level: expected error, warn, info or debug")),
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub struct Log {
    /// `None`: nothing is told.
    level: Option<Level>,
}

impl Log {
    pub fn new(level: Level) -> Self {
        Self { level: Some(level) }
    }

    #[cfg(test)]
    pub fn silent() -> Self {
        Self { level: None }
    }

    /// True if lines of this level are written.
    pub fn tells(&self, level: Level) -> bool {
        self.level.is_some_and(|told| level <= told)
    }

    pub fn at(&self, level: Level, message: impl fmt::Display) {
        match level {
            Level::Error => self.error(message),
            Level::Warn => self.warn(message),
            Level::Info => self.info(message),
            Level::Debug => self.debug(message),
        }
    }

    pub fn error(&self, message: impl fmt::Display) {
        self.line(Level::Error, "error", message);
    }

    pub fn warn(&self, message: impl fmt::Display) {
        self.line(Level::Warn, "warning", message);
    }

    pub fn info(&self, message: impl fmt::Display) {
        self.line(Level::Info, "info", message);
    }

    pub fn debug(&self, message: impl fmt::Display) {
        self.line(Level::Debug, "debug", message);
    }

    /// A line of an API server, at every level.
    pub fn passed(&self, line: &str) {
        if self.level.is_some() {
            write(line);
        }
    }

    fn line(&self, level: Level, name: &str, message: impl fmt::Display) {
        if self.tells(level) {
            write(&format!("aviary[node]: {name}: {message}"));
        }
    }
}

/// One `write` per line, so that lines of several processes do not mix. Names, reasons and whole lines of guests and API
/// servers are in it: nothing that a terminal obeys passes, and no end of a line.
fn write(line: &str) {
    // A closed standard error must not end the node.
    let _ = std::io::stderr().write_all(format!("{}\n", Shown(line)).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_ordered_and_named() {
        assert!(Level::Error < Level::Debug);
        assert_eq!("warn".parse(), Ok(Level::Warn));
        assert!("loud".parse::<Level>().is_err());
    }
}
