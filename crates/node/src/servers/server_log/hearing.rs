//! When the node reads what API servers write, and when it stops for a while.

use crate::servers::server_log::{Heard, Pace, ServerLog, speaker};
use crate::{
    epoll::Token,
    node::{Core, CoreState},
};
use std::{os::fd::AsFd, time::Instant};

impl Core {
    pub(crate) fn hear_log(&self, id: u64) {
        let mut state = self.state();
        let Some(server) = state.registry.servers.get_mut(&id) else { return };
        match server.log.hear(server.process.pid(), Instant::now(), self.log) {
            Heard::Empty => {}
            Heard::Over => self.epoll.remove(server.log.as_fd()),
            Heard::TooMuch => {
                server.log.pace.paused = true;
                self.epoll.remove(server.log.as_fd());
            }
        }
    }

    /// Pipes that were left alone for the rest of a second, and numbers of lines that were left out in it.
    pub(crate) fn resume_logs(&self) {
        let now = Instant::now();
        let mut state = self.state();
        for (id, server) in &mut state.registry.servers {
            if server.log.pace.resume_at().is_some_and(|at| at <= now) {
                // Where it cannot be watched the API server's further lines are lost, nothing else.
                server.log.pace.paused = self.epoll.add(server.log.as_fd(), Token::Log(*id)).is_err();
            }
            server.log.tell_left_out(server.process.pid(), now, self.log);
        }
    }

    /// The last words of an API server that has ended. What it started may hold the pipe and go on writing.
    pub(crate) fn hear_last_words(&self, log: &mut ServerLog, pid: u32) {
        self.epoll.remove(log.as_fd());
        log.pace = Pace { limit: std::mem::take(&mut log.pace.limit), ..Pace::default() };
        let now = Instant::now();
        log.hear(pid, now, self.log);
        if let Some(line) = log.lines.take()
            && log.pace.limit.admit(now)
        {
            self.log.passed(&speaker(&log.sessions, pid, &line));
        }
        if let Some(count) = log.pace.limit.finish() {
            self.log.warn(format_args!("API server {pid}: {count} more lines were not logged"));
        }
    }
}

impl CoreState {
    /// When there is something to do for a log.
    pub fn next_log_event(&self) -> Option<Instant> {
        let of_one = |log: &ServerLog| log.pace.resume_at().into_iter().chain(log.pace.limit.next_settle()).min();
        self.registry.servers.values().filter_map(|server| of_one(&server.log)).min()
    }
}
