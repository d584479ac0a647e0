//! `AVIARY_TRACE=FILE`: one line for each call of the application, with its result and the time
//! that it waited for the server, if it did.

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

const UNKNOWN: u8 = 0;
const OFF: u8 = 1;
const ON: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);
static TRACE: OnceLock<Option<Trace>> = OnceLock::new();

struct Trace {
    file: File,
    begin: Instant,
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
            Ok(file) => Some(Trace { file, begin: Instant::now() }),
            Err(error) => {
                crate::log::line(&format!("AVIARY_TRACE: {}: {error}", path.to_string_lossy()));
                None
            }
        }
    });
    STATE.store(if trace.is_some() { ON } else { OFF }, Ordering::Relaxed);
    trace.is_some()
}

thread_local! {
    /// Time that this thread's present call has waited for the server; `None`: it has not waited.
    static WAITED: Cell<Option<Duration>> = const { Cell::new(None) };
}

/// Runs `f`, which waits for the server's reply, and adds its duration to the present call.
#[inline]
pub fn waiting<T>(wait: impl FnOnce() -> T) -> T {
    if !wanted() {
        return wait();
    }
    let begin = Instant::now();
    let answer = wait();
    WAITED.set(Some(WAITED.take().unwrap_or_default() + begin.elapsed()));
    answer
}

fn thread() -> i32 {
    // SAFETY: `gettid` takes no arguments and cannot fail.
    unsafe { libc::gettid() }
}

/// Writes the line of one call: microseconds since the first call, process, thread, function,
/// result, and the microseconds that it waited, if it did. A call that makes other calls does not
/// include their waits.
pub fn line(function: &str, result: Option<i64>) {
    let Some(Some(trace)) = TRACE.get() else { return };
    let (micros, thread) = (trace.begin.elapsed().as_micros(), thread());
    let value = result.map_or_else(String::new, |value| format!(" = {value}"));
    let waited = WAITED.take().map_or_else(String::new, |time| format!(" waited {}", time.as_micros()));
    let line = format!("{micros} {} {thread} {function}{value}{waited}\n", std::process::id());
    // A full disk must not disturb the application.
    let _ = (&trace.file).write_all(line.as_bytes());
}
