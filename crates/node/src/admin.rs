//! The admin socket: one request line, one JSON answer. Only the node's own user reaches it.

use crate::{NodeError, NodeReport, log::Log};
use std::{
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    time::Duration,
};

const REQUEST_LIMIT: u64 = 4096;
const ANSWER_LIMIT: u64 = 64 << 20;
/// After an error, for instance when there are no descriptors left.
const PAUSE: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(2);

/// The admin socket that belongs to a node's socket.
pub fn admin_path(socket: &Path) -> PathBuf {
    socket.with_extension("admin")
}

/// Answers until the listener is shut down. Runs on a thread of its own, so
/// that a slow client holds up other `aviary ps` only, and those briefly.
pub fn serve(listener: &UnixListener, report: &dyn Fn() -> NodeReport, log: Log) {
    for connection in listener.incoming() {
        let connection = match connection {
            Ok(connection) => connection,
            // `shutdown` of the listener makes `accept` fail like this: that is how this thread ends.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return,
            Err(error) => {
                log.debug(format_args!("cannot accept an admin request: {error}"));
                std::thread::sleep(PAUSE);
                continue;
            }
        };
        if let Err(error) = answer(connection, report) {
            log.debug(format_args!("admin request failed: {error}"));
        }
    }
}

fn answer(mut connection: UnixStream, report: &dyn Fn() -> NodeReport) -> io::Result<()> {
    connection.set_read_timeout(Some(PATIENCE))?;
    connection.set_write_timeout(Some(PATIENCE))?;
    let mut request = String::new();
    BufReader::new(connection.try_clone()?.take(REQUEST_LIMIT)).read_line(&mut request)?;
    let text = match request.trim_end() {
        "ps" => serde_json::to_vec(&report())?,
        other => {
            serde_json::to_vec(&serde_json::json!({ "error": format!("unknown request `{other}`: expected `ps`") }))?
        }
    };
    connection.write_all(&text)
}

/// Asks the node that listens on `socket`.
pub fn query(socket: &Path) -> Result<NodeReport, NodeError> {
    let no_node = |error| NodeError::NoNode(socket.into(), error);
    let mut connection = UnixStream::connect(admin_path(socket)).map_err(no_node)?;
    connection.set_read_timeout(Some(PATIENCE)).map_err(no_node)?;
    connection.write_all(b"ps\n").map_err(no_node)?;
    let mut answer = Vec::new();
    connection.take(ANSWER_LIMIT).read_to_end(&mut answer).map_err(no_node)?;
    serde_json::from_slice(&answer).map_err(|error| NodeError::Answer(socket.into(), error.to_string()))
}
