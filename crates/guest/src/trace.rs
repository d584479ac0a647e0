//! `AVIARY_TRACE=FILE`: one line for each call that the application makes, with what it returned.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Instant;

const UNKNOWN: u8 = 0;
const OFF: u8 = 1;
const ON: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);
static TRACE: OnceLock<Option<Trace>> = OnceLock::new();

struct Trace {
    file: File,
    begin: Instant,
}

/// Whether calls are to be traced: one relaxed load, once it is known.
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

fn thread() -> i32 {
    // SAFETY: takes no arguments and cannot fail.
    unsafe { libc::gettid() }
}

/// Writes the line of one call: microseconds since the first, process, thread, function and result.
pub fn line(function: &str, result: Option<i64>) {
    let Some(Some(trace)) = TRACE.get() else { return };
    let (micros, thread) = (trace.begin.elapsed().as_micros(), thread());
    let line = match result {
        Some(value) => format!("{micros} {} {thread} {function} = {value}\n", std::process::id()),
        None => format!("{micros} {} {thread} {function}\n", std::process::id()),
    };
    // A full disk must not disturb the application.
    let _ = (&trace.file).write_all(line.as_bytes());
}
