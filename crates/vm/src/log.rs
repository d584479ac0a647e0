//! One line per event on standard error, which is the node's log.

use std::fmt;
use std::io::Write;
use std::time::{Duration, Instant};

/// Interval between lines about errors of the queues, of which a guest can cause any number.
const MIN_LINE_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct Log {
    name: String,
    last_line: Option<Instant>,
    suppressed: u64,
}

impl Log {
    pub fn new(name: &str) -> Self {
        Log { name: name.escape_debug().to_string(), last_line: None, suppressed: 0 }
    }

    pub fn line(&self, message: impl fmt::Display) {
        // A closed standard error must not end the device.
        let _ = std::io::stderr().write_all(format!("aviary vm-device {}: {message}\n", self.name).as_bytes());
    }

    /// Logs an error that the guest causes: at most one line per `MIN_LINE_INTERVAL`.
    pub fn complain(&mut self, message: impl fmt::Display) {
        if self.last_line.is_some_and(|last_line| last_line.elapsed() < MIN_LINE_INTERVAL) {
            self.suppressed += 1;
            return;
        }
        match std::mem::take(&mut self.suppressed) {
            0 => self.line(message),
            suppressed => self.line(format_args!("{message} ({suppressed} earlier lines were not logged: rate limit)")),
        }
        self.last_line = Some(Instant::now());
    }
}
