//! Time for people, in the machine's time zone.

use std::{
    mem,
    time::{SystemTime, UNIX_EPOCH},
};

/// Room for what a format makes of a time.
const ROOM: usize = 128;

/// The time now, in seconds since 1970 and the rest in nanoseconds.
pub fn now() -> (u64, u32) {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or((0, 0), |since| (since.as_secs(), since.subsec_nanos()))
}

/// As `2026/11/25 17:37:48.003`.
pub fn timestamp() -> String {
    let (seconds, nanoseconds) = now();
    format!("{}.{:03}", format(seconds, "%Y/%m/%d %H:%M:%S"), nanoseconds / 1_000_000)
}

/// As `Tue Nov 25 17:20:04 2025`.
pub fn date(seconds: u64) -> String {
    format(seconds, "%a %b %e %H:%M:%S %Y")
}

/// As `strftime` writes it.
pub fn format(seconds: u64, format: &str) -> String {
    let seconds = libc::time_t::try_from(seconds).unwrap_or(0);
    let mut text = vec![0u8; ROOM];
    let Ok(format) = std::ffi::CString::new(format) else { return String::new() };
    // SAFETY: `parts` has room for what localtime_r writes, `text` for ROOM bytes, and the format is a string.
    let length = unsafe {
        let mut parts: libc::tm = mem::zeroed();
        libc::localtime_r(&raw const seconds, &raw mut parts);
        libc::strftime(text.as_mut_ptr().cast(), ROOM, format.as_ptr(), &raw const parts)
    };
    text.truncate(length);
    String::from_utf8_lossy(&text).into_owned()
}
