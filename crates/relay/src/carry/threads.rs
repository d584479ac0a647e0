//! Threads of a session.

use std::thread::JoinHandle;

pub(crate) fn thread<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> std::io::Result<JoinHandle<T>> {
    std::thread::Builder::new().name(name.to_owned()).stack_size(512 << 10).spawn(run)
}
