//! One-line messages for people, on standard error.

/// Writes `aviary: TEXT`. One system call, so that lines of several processes do not mix; nothing
/// is buffered and a closed descriptor does no harm.
pub(crate) fn line(text: &str) {
    let line = format!("aviary: {}\n", text.replace('\n', " "));
    // SAFETY: the buffer is live for the call. Descriptor 2 may be anything the application made of it;
    // writing a message there is what libraries do.
    unsafe { libc::write(2, line.as_ptr().cast(), line.len()) };
}
