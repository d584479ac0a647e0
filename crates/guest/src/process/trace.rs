//! `AVIARY_TRACE=FILE`: one line for each call of the application, with its result and the time
//! that it waited for the server, if it did.

use std::cell::Cell;
use std::fs::OpenOptions;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use aviary_transport::{KeptFile, out_of_the_way};

const UNKNOWN: u8 = 0;
const OFF: u8 = 1;
const ON: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);
static TRACE: OnceLock<Option<Trace>> = OnceLock::new();

struct Trace {
    file: KeptFile,
    begin: Instant,
}

impl Trace {
    /// Appends a line. A full disk must not disturb the application, and no line may get into a file of the application, which
    /// may have closed the number and reused it.
    fn write(&self, line: &[u8]) {
        let Some(file) = self.file.get() else { return };
        while rustix::io::write(file, line) == Err(rustix::io::Errno::INTR) {}
    }
}

/// True if calls are traced: one relaxed load, once it is known.
#[inline]
pub fn wanted() -> bool {
    match STATE.load(Ordering::Relaxed) {
        OFF => false,
        ON => true,
        _ => open(),
    }
}

#[cold]
fn open() -> bool {
    let trace = TRACE.get_or_init(|| {
        let path = std::env::var_os("AVIARY_TRACE")?;
        // Appended, each line in one write: all libraries and children of a process share the file.
        match OpenOptions::new().create(true).append(true).open(&path) {
            Ok(file) => Some(Trace { file: KeptFile::new(out_of_the_way(file.into())), begin: Instant::now() }),
            Err(error) => {
                crate::process::log::line(&format!("AVIARY_TRACE: {}: {error}", path.to_string_lossy()));
                None
            }
        }
    });
    STATE.store(if trace.is_some() { ON } else { OFF }, Ordering::Relaxed);
    trace.is_some()
}

/// Runs `wait`, which waits for the server's reply, and adds its duration to `waited`, which is the thread's.
#[inline]
pub(crate) fn waiting<T>(waited: &Cell<Option<Duration>>, wait: impl FnOnce() -> T) -> T {
    if !wanted() {
        return wait();
    }
    let begin = Instant::now();
    let answer = wait();
    waited.set(Some(waited.take().unwrap_or_default() + begin.elapsed()));
    answer
}

fn thread() -> i32 {
    // The system call itself: the C library's function came with glibc 2.30.
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// Writes the line of one call: microseconds since the first call, process, thread, function,
/// result, and the microseconds that it waited, if it did. A call that makes other calls does not
/// include their waits.
pub(crate) fn line(function: &str, result: Option<i64>, waited: Option<Duration>) {
    let Some(Some(trace)) = TRACE.get() else { return };
    let (micros, thread) = (trace.begin.elapsed().as_micros(), thread());
    let value = result.map_or_else(String::new, |value| format!(" = {value}"));
    let waited = waited.map_or_else(String::new, |time| format!(" waited {}", time.as_micros()));
    let line = format!("{micros} {} {thread} {function}{value}{waited}\n", std::process::id());
    trace.write(line.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn no_line_gets_into_a_file_of_the_application() {
        let file = |name| rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let (ours, own) = (file("trace"), file("own"));
        let seen = rustix::io::dup(&ours).unwrap();
        let trace = Trace { file: KeptFile::new(ours), begin: Instant::now() };
        trace.write(b"first\n");
        // SAFETY: as a program does it that reuses the number.
        assert!(unsafe { libc::dup2(own.as_raw_fd(), trace.file.number().as_raw_fd()) } >= 0);
        trace.write(b"second\n");
        let size = |file| rustix::fs::fstat(file).unwrap().st_size;
        assert_eq!((size(&seen), size(&own)), (6, 0));
    }
}
