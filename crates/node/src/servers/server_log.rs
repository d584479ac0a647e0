//! Lines of API servers in the node's log.
//!
//! It holds the write end of a pipe, never the log itself: whatever a tenant's native code does with it cannot truncate,
//! rewrite or imitate the node's lines. The node reads a bounded number of bytes a second, prefixes each line, and tells
//! twenty a second.

mod hearing;

use crate::log::Log;
use crate::servers::line_limit::LineLimit;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::{Duration, Instant},
};

/// Longest line, in bytes; what follows in it is left out.
const LONGEST: usize = 4096;
/// Bytes of one API server that the node reads in a second: more than twenty longest lines.
const BUDGET: usize = 128 << 10;
const SECOND: Duration = Duration::from_secs(1);
/// Sessions of one API server whose lines are told under their numbers: more than it may have at a time.
const REMEMBERED: usize = 256;

/// The node's end of the pipe, and the API server's. An API server that writes more than the node reads loses it and does
/// not wait.
pub fn pipe() -> io::Result<(ServerLog, OwnedFd)> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    Ok((ServerLog::of(read), write))
}

/// For a private node, which serves one program, whose user reads the log: the API server writes to the node's standard
/// error itself, so that its lines stay in order with the program's. The node's end of the pipe is at its end.
pub fn direct() -> io::Result<(ServerLog, OwnedFd)> {
    let (read, _) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    Ok((ServerLog::of(read), io::stderr().as_fd().try_clone_to_owned()?))
}

/// The node's end, and what was read of it.
#[derive(Debug)]
pub struct ServerLog {
    pipe: OwnedFd,
    lines: Lines,
    pace: Pace,
    /// Of this API server, the newest last.
    sessions: VecDeque<u64>,
}

impl ServerLog {
    fn of(pipe: OwnedFd) -> ServerLog {
        ServerLog { pipe, lines: Lines::default(), pace: Pace::default(), sessions: VecDeque::new() }
    }

    /// One that this process has had since before its program was replaced.
    pub fn again(pipe: OwnedFd, begun: Vec<u8>, sessions: &[u64]) -> ServerLog {
        let mut log = ServerLog::of(pipe);
        // A longer one is cut where the line goes on.
        log.lines.begun = begun.into_iter().take(LONGEST).collect();
        sessions.iter().for_each(|session| log.serves(*session));
        log
    }

    /// The line that is begun, and the sessions.
    pub fn parts(&self) -> (Vec<u8>, Vec<u64>) {
        (self.lines.begun.clone(), self.sessions.iter().copied().collect())
    }

    /// From now on its lines may be this session's.
    pub fn serves(&mut self, session: u64) {
        if self.sessions.len() == REMEMBERED {
            self.sessions.pop_front();
        }
        self.sessions.push_back(session);
    }

    /// Takes what is there and may be taken now. `pid`: the API server's.
    fn hear(&mut self, pid: u32, now: Instant, log: Log) -> Heard {
        if self.pace.begin(now) {
            self.tell_left_out(pid, now, log);
        }
        let mut part = [0; LONGEST];
        while let room @ 1.. = self.pace.room().min(part.len()) {
            match rustix::io::read(&self.pipe, &mut part[..room]) {
                Ok(0) => return Heard::Over,
                Ok(count) => {
                    self.pace.taken += count;
                    for line in self.lines.add(&part[..count]) {
                        if self.pace.limit.admit(now) {
                            log.passed(&speaker(&self.sessions, pid, &line));
                        }
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => return Heard::Empty,
                Err(_) => return Heard::Over,
            }
        }
        Heard::TooMuch
    }

    fn tell_left_out(&mut self, pid: u32, now: Instant, log: Log) {
        if let Some(count) = self.pace.limit.settle(now) {
            log.warn(format_args!("API server {pid}: {count} more lines in that second were not logged"));
        }
    }
}

/// True if there may be more.
#[derive(Debug, PartialEq, Eq)]
enum Heard {
    /// Not now.
    Empty,
    /// The API server and all that it started have closed their ends.
    Over,
    /// There may be, and it is left until the second is over.
    TooMuch,
}

/// How much was taken in the present second.
#[derive(Debug, Default)]
struct Pace {
    since: Option<Instant>,
    taken: usize,
    /// The pipe is not watched until the second is over.
    paused: bool,
    limit: LineLimit,
}

impl Pace {
    /// True if a new second begins.
    fn begin(&mut self, now: Instant) -> bool {
        let over = self.since.is_none_or(|since| now.saturating_duration_since(since) >= SECOND);
        if over {
            (self.since, self.taken) = (Some(now), 0);
        }
        over
    }

    fn room(&self) -> usize {
        BUDGET.saturating_sub(self.taken)
    }

    fn resume_at(&self) -> Option<Instant> {
        self.since.filter(|_| self.paused).map(|since| since + SECOND)
    }
}

/// Lines out of bytes that come in any pieces.
#[derive(Debug, Default)]
struct Lines {
    begun: Vec<u8>,
    /// The present line is longer than it may be.
    cut: bool,
}

impl Lines {
    fn add(&mut self, bytes: &[u8]) -> Vec<String> {
        let mut lines = Vec::new();
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (text, ends) = piece.strip_suffix(b"\n").map_or((piece, false), |text| (text, true));
            let room = LONGEST - self.begun.len();
            self.cut |= text.len() > room;
            self.begun.extend_from_slice(&text[..text.len().min(room)]);
            if ends {
                lines.extend(self.take());
            }
        }
        lines
    }

    /// The text without a line end so far; nothing of an empty line.
    fn take(&mut self) -> Option<String> {
        let (bytes, cut) = (std::mem::take(&mut self.begun), std::mem::take(&mut self.cut));
        let text = String::from_utf8_lossy(&bytes);
        (!bytes.is_empty()).then(|| if cut { format!("{text} [cut]") } else { text.into_owned() })
    }
}

/// `aviary[SESSION]: TEXT` where that is a session of this API server, as the node knows; `aviary[api-server PID]: LINE`
/// otherwise.
fn speaker(sessions: &VecDeque<u64>, pid: u32, line: &str) -> String {
    let said = line.strip_prefix("aviary[").and_then(|rest| rest.split_once("]: "));
    let session = said.and_then(|(number, text)| Some((number.parse::<u64>().ok()?, text)));
    match session {
        Some((0, text)) => format!("aviary[api-server {pid}]: {text}"),
        Some((number, text)) if sessions.contains(&number) => format!("aviary[{number}]: {text}"),
        _ => format!("aviary[api-server {pid}]: {line}"),
    }
}

impl AsFd for ServerLog {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use crate::servers::server_log::*;

    fn lines(pieces: &[&[u8]]) -> Vec<String> {
        let mut lines = Lines::default();
        let whole: Vec<String> = pieces.iter().flat_map(|piece| lines.add(piece)).collect();
        whole.into_iter().chain(lines.take()).collect()
    }

    #[test]
    fn lines_come_whole_and_bounded() {
        assert_eq!(lines(&[b"on", b"e\n\ntw", b"o\nthr", b"ee"]), ["one", "two", "three"]);
        assert_eq!(lines(&[b"\xff\n"]), ["\u{fffd}"]);
        let long = [b'x'; 3 * LONGEST];
        let cut = format!("{} [cut]", "x".repeat(LONGEST));
        assert_eq!(lines(&[&long, &long, b"\nnext\n"]), [cut.as_str(), "next"]);
        assert_eq!(lines(&[&long[..LONGEST], b"\n"]), ["x".repeat(LONGEST)]);
    }

    #[test]
    fn a_line_is_told_under_a_session_of_its_own_only() {
        let sessions = VecDeque::from([7, 8]);
        for (line, told) in [
            ("aviary[7]: refused", "aviary[7]: refused"),
            ("aviary[9]: refused", "aviary[api-server 4]: aviary[9]: refused"),
            ("aviary[0]: no filter", "aviary[api-server 4]: no filter"),
            ("aviary[node]: info: ended", "aviary[api-server 4]: aviary[node]: info: ended"),
            ("aviary[7]:", "aviary[api-server 4]: aviary[7]:"),
            ("pocl: warning", "aviary[api-server 4]: pocl: warning"),
        ] {
            assert_eq!(speaker(&sessions, 4, line), told);
        }
    }

    #[test]
    fn a_flood_is_read_a_little_at_a_time_and_never_waits() {
        let (mut log, theirs) = pipe().unwrap();
        let (silent, start) = (Log::silent(), Instant::now());
        let flood = || while rustix::io::write(&theirs, &[b'\n'; 4096]).is_ok() {};
        let mut heard = Vec::new();
        for _ in 0..4 {
            flood();
            heard.push(log.hear(1, start, silent));
        }
        assert_eq!(heard[3], Heard::TooMuch, "{heard:?}");
        assert_eq!(log.pace.taken, BUDGET);
        log.pace.paused = true;
        assert_eq!(log.pace.resume_at(), Some(start + SECOND));
        log.hear(1, start + SECOND, silent);
        assert!(log.pace.taken <= BUDGET);
        for session in 0..=REMEMBERED as u64 {
            log.serves(session);
        }
        assert_eq!((log.sessions.len(), log.sessions[0]), (REMEMBERED, 1));
    }
}
