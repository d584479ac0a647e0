//! One-line messages on standard error, and the output that the vendor's library prints.

/// Writes `aviary: TEXT` with one system call, so that lines of several processes do not mix;
/// nothing is buffered, and a closed descriptor does no harm.
pub(crate) fn line(text: &str) {
    let line = format!("aviary: {}\n", text.replace('\n', " "));
    // SAFETY: the buffer is live for the call. The application may have replaced descriptor 2;
    // libraries write their messages there all the same.
    unsafe { libc::write(2, line.as_ptr().cast(), line.len()) };
}

/// Writes printed text of the vendor's library to the application's standard output (1) or error
/// (2), as the library would do inside this process.
pub(crate) fn print(number: i32, mut text: &[u8]) {
    while !text.is_empty() {
        // SAFETY: the bytes are live for the call. The application may have replaced or closed the
        // descriptor.
        let written = unsafe { libc::write(number, text.as_ptr().cast(), text.len()) };
        match usize::try_from(written) {
            Ok(written) => text = &text[written..],
            Err(_) => match std::io::Error::last_os_error().raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::EAGAIN) => await_room(number),
                _ => return,
            },
        }
    }
}

/// Waits until the descriptor, which the application may have made non-blocking, can be written.
fn await_room(number: i32) {
    let mut polled = libc::pollfd { fd: number, events: libc::POLLOUT, revents: 0 };
    // SAFETY: one element, live for the call.
    unsafe { libc::poll(&raw mut polled, 1, -1) };
}
