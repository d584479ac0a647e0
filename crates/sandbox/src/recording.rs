//! Findings: calls and files that the sandbox would refuse, noted while nothing is refused (`--sandbox log`).
//!
//! The process has the namespaces of a sandbox, and the root that it would have is built, but it goes on in the host's.
//! The kernel tells a thread without a filter of each call that the allow-list does not have and of each path that is
//! opened; the thread notes what is new and lets the call go on. A call takes a few microseconds longer then.

mod listener;
mod paths;

use std::collections::BTreeSet;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::system_calls::{Allowed, FilterError, failed, name_of, recording};
use listener::{Listener, Notice};
use paths::Paths;

/// Lines for a log come at most this often: the log takes ten a second.
const INTERVAL: Duration = Duration::from_millis(150);
/// Bytes of findings in a line: a log's lines have at most 4095.
const MAX_LINE_BYTES: usize = 3500;
/// Findings that are remembered, and so told once: a process that makes up paths cannot take more memory.
const MAX_FINDINGS: usize = 4096;

/// Something that the sandbox does not allow.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Finding {
    /// By its name.
    Call(&'static str),
    /// A number that has no name here.
    UnnamedCall(i32),
    /// `ioctl` of a descriptor of this file.
    Request { request: u32, file: String },
    /// A file of the host that the sandbox's root does not have.
    File(String),
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::Call(name) => write!(f, "system call {name}"),
            Finding::UnnamedCall(number) => write!(f, "system call number {number}"),
            Finding::Request { request, file } => write!(f, "ioctl {request:#x} of {file}"),
            Finding::File(path) => write!(f, "file {path}"),
        }
    }
}

/// Takes a line for the log.
pub type Tell = Box<dyn Fn(&str) + Send>;

/// Findings on their way to the log.
struct Findings {
    known: BTreeSet<Finding>,
    /// Not told yet.
    fresh: Vec<Finding>,
    told_at: Option<Instant>,
    tell: Tell,
}

impl Findings {
    fn add(&mut self, finding: Finding) {
        if self.known.len() < MAX_FINDINGS && self.known.insert(finding.clone()) {
            self.fresh.push(finding);
        }
    }

    /// How long what is there has to wait; `None`: nothing is there.
    fn due_in(&self, now: Instant) -> Option<Duration> {
        let told_at = self.told_at.filter(|_| !self.fresh.is_empty());
        let wait = told_at.map(|at| (at + INTERVAL).saturating_duration_since(now));
        wait.or((!self.fresh.is_empty()).then_some(Duration::ZERO))
    }

    /// One line of what is fresh.
    fn tell_some(&mut self, now: Instant) {
        let mut line = String::new();
        let mut taken = 0;
        for finding in &self.fresh {
            let text = finding.to_string();
            if !line.is_empty() && line.len() + text.len() > MAX_LINE_BYTES {
                break;
            }
            line = if line.is_empty() { text } else { format!("{line}; {text}") };
            taken += 1;
        }
        if taken > 0 {
            self.fresh.drain(..taken);
            self.told_at = Some(now);
            (self.tell)(&format!("the sandbox would refuse: {line}"));
        }
    }
}

/// A process that is recorded.
pub struct Recording {
    findings: Arc<Mutex<Findings>>,
}

fn locked(findings: &Mutex<Findings>) -> MutexGuard<'_, Findings> {
    findings.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Recording {
    /// Begins for this thread and all that it starts, for good. `root` is the one that the sandbox would have.
    ///
    /// # Errors
    /// The kernel has no filters or cannot tell of calls (before Linux 5.5), or there is no thread.
    pub fn begin(allowed: &Allowed, root: OwnedFd, tell: Tell) -> Result<Recording, FilterError> {
        let program = recording(allowed, &paths::observed())?;
        let findings = Findings { known: BTreeSet::new(), fresh: Vec::new(), told_at: None, tell };
        let findings = Arc::new(Mutex::new(findings));
        let theirs = findings.clone();
        let (hand_over, take) = sync_channel(1);
        let attend = move || {
            if let Ok(listener) = take.recv() {
                attend(&listener, &Paths::new(root), &theirs);
            }
        };
        // It is started first, so that it has no filter.
        std::thread::Builder::new().name("sandbox-log".into()).spawn(attend).map_err(failed)?;
        let listener = Listener::install(&program).map_err(failed)?;
        hand_over.send(listener).map_err(failed)?;
        Ok(Recording { findings })
    }

    /// Tells all that was found, before the process ends.
    pub fn finish(&self) {
        let mut findings = locked(&self.findings);
        while !findings.fresh.is_empty() {
            findings.tell_some(Instant::now());
        }
    }
}

/// Answers the kernel until no filtered process is left.
fn attend(listener: &Listener, paths: &Paths, findings: &Mutex<Findings>) {
    loop {
        let due = locked(findings).due_in(Instant::now());
        match listener.next(due) {
            Ok(Some(notice)) => {
                let found = judge(&notice, paths);
                if let Some(finding) = found {
                    locked(findings).add(finding);
                }
                listener.permit(&notice);
            }
            Ok(None) => {}
            Err(_) => return,
        }
        let mut findings = locked(findings);
        if findings.due_in(Instant::now()).is_some_and(|due| due.is_zero()) {
            findings.tell_some(Instant::now());
        }
    }
}

fn judge(notice: &Notice, paths: &Paths) -> Option<Finding> {
    if let Some(path) = paths.argument(notice) {
        return paths.is_only_outside(&path).then(|| Finding::File(path.display().to_string()));
    }
    if paths::is_observed(notice.number) {
        return None;
    }
    if i64::from(notice.number) == libc::SYS_ioctl {
        let file = paths.of_descriptor(notice.thread, notice.arguments[0]);
        return Some(Finding::Request { request: notice.arguments[1] as u32, file });
    }
    Some(name_of(notice.number.into()).map_or(Finding::UnnamedCall(notice.number), Finding::Call))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Status and told lines of a process that is recorded while it runs `act`.
    fn recorded(act: impl FnOnce() -> bool) -> (i32, String) {
        let (read, write) = rustix::pipe::pipe().expect("a pipe");
        // SAFETY: the child of a test with several threads makes system calls and allocates little, in memory that the C
        // library's fork handlers keep usable.
        match unsafe { libc::fork() } {
            0 => {
                let tell: Tell = Box::new(move |line| {
                    let _ = rustix::io::write(&write, format!("{line}\n").as_bytes());
                });
                let root = std::fs::File::open("/usr").map(OwnedFd::from);
                let recording = root.map(|root| Recording::begin(&Allowed::usual(), root, tell));
                let status = match recording {
                    Ok(Ok(recording)) if act() => {
                        recording.finish();
                        0
                    }
                    _ => 1,
                };
                // SAFETY: ends the child.
                unsafe { libc::_exit(status) }
            }
            child => {
                drop(write);
                let mut told = String::new();
                std::io::Read::read_to_string(&mut std::fs::File::from(read), &mut told).expect("text");
                let mut status = 0;
                // SAFETY: a child of this process and a place for its status.
                assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
                (libc::WEXITSTATUS(status), told)
            }
        }
    }

    #[test]
    fn calls_outside_the_lists_are_made_and_told_once() {
        let (status, told) = recorded(|| {
            for _ in 0..3 {
                // SAFETY: a group id is asked for; no memory is touched.
                if unsafe { libc::syscall(libc::SYS_getpgid, 0) } <= 0 {
                    return false;
                }
            }
            std::net::UdpSocket::bind("127.0.0.1:0").is_ok()
        });
        assert_eq!(status, 0, "{told}");
        for (found, times) in [("system call getpgid", 1), ("system call socket", 1), ("system call read", 0)] {
            assert_eq!(told.matches(found).count(), times, "{told}");
        }
    }

    #[test]
    fn files_and_requests_outside_are_told() {
        let (status, told) = recorded(|| {
            let passwd = std::fs::File::open("/etc/passwd");
            let Ok(passwd) = passwd else { return false };
            let mut version: libc::c_int = 0;
            // SAFETY: FS_IOC_GETVERSION writes a number, where a file system has it.
            unsafe { libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(&passwd), 0x8008_7601, &raw mut version) };
            std::fs::read("/bin/sh").is_ok() && std::fs::read("/nonexistent/file").is_err()
        });
        assert_eq!(status, 0, "{told}");
        assert!(told.contains("file /etc/passwd"), "{told}");
        assert!(told.contains("ioctl 0x80087601 of"), "{told}");
        assert!(!told.contains("/bin/sh") && !told.contains("nonexistent"), "{told}");
    }

    #[test]
    fn findings_wait_for_their_line_and_are_bounded() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let heard = told.clone();
        let tell: Tell = Box::new(move |line| heard.lock().unwrap().push(line.to_owned()));
        let mut findings = Findings { known: BTreeSet::new(), fresh: Vec::new(), told_at: None, tell };
        let start = Instant::now();
        assert_eq!(findings.due_in(start), None);
        for number in 0..MAX_FINDINGS + 10 {
            findings.add(Finding::File(format!("/{number}")));
        }
        assert_eq!(findings.fresh.len(), MAX_FINDINGS);
        assert_eq!(findings.due_in(start), Some(Duration::ZERO));
        findings.tell_some(start);
        assert_eq!(findings.due_in(start), Some(INTERVAL));
        assert_eq!(findings.due_in(start + INTERVAL), Some(Duration::ZERO));
        let line = told.lock().unwrap()[0].clone();
        assert!(line.starts_with("the sandbox would refuse: file /0; file /1; ") && line.len() < 4000, "{line}");
    }
}
