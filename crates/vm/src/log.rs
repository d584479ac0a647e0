//! One line per event on standard error, which is the node's log.

use std::fmt;
use std::io::Write;
use std::time::{Duration, Instant};

/// Between lines about errors of the queues, of which a guest can cause as many as it likes.
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct Log {
    name: String,
    told: Option<Instant>,
    untold: u64,
}

impl Log {
    pub fn new(name: &str) -> Self {
        Log { name: name.escape_debug().to_string(), told: None, untold: 0 }
    }

    pub fn line(&self, message: impl fmt::Display) {
        // A closed standard error must not end the device.
        let _ = std::io::stderr().write_all(format!("aviary vm-device {}: {message}\n", self.name).as_bytes());
    }

    /// At most one such line per second.
    pub fn complain(&mut self, message: impl fmt::Display) {
        if self.told.is_some_and(|told| told.elapsed() < PAUSE) {
            self.untold += 1;
            return;
        }
        match std::mem::take(&mut self.untold) {
            0 => self.line(message),
            untold => self.line(format_args!("{message} ({untold} earlier complaints were not told)")),
        }
        self.told = Some(Instant::now());
    }
}
