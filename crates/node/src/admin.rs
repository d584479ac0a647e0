//! The admin socket: one request line, one JSON answer. Only the node's own user reaches it.

use crate::{
    CardMoveRequest, EndRequest, NodeError, NodeReport, TenantChange, UpgradeRequest, log::Log, moving::MoveRequest,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use std::{
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    time::Duration,
};

const MAX_REQUEST_BYTES: u64 = 64 << 10;
const MAX_ANSWER_BYTES: u64 = 64 << 20;
/// After an error, for instance when there are no descriptors left.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(100);
const ADMIN_IO_TIMEOUT: Duration = Duration::from_secs(2);

/// A request to a node; one line of JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Request {
    Ps,
    Tenants,
    Set(TenantChange),
    End(EndRequest),
    Reload,
    /// Replaces the node's program. An answer is an error: otherwise the connection ends without one.
    Upgrade(UpgradeRequest),
    /// Begin to move the sessions of a program; how that goes on is asked with `MoveStatus`.
    Migrate(MoveRequest),
    /// By the number of the move.
    MoveStatus(u64),
    /// Bring a parked session back; asked again, it says how far that is.
    Unpark(u64),
    /// Move a program to another port of its FPGA card; how that goes on is asked with `CardMoveStatus`.
    MoveAtCard(CardMoveRequest),
    /// By the number of the session.
    CardMoveStatus(u64),
    /// For tests: the move goes on that waits where its request said.
    Proceed(u64),
}

type Answerer<'a> = &'a dyn Fn(Request) -> Result<Value, String>;

/// The admin socket that belongs to a node's socket.
pub fn admin_path(socket: &Path) -> PathBuf {
    socket.with_extension("admin")
}

/// Answers until the listener is shut down. Runs on a thread of its own, so
/// that a slow client holds up other `aviary ps` only, and those briefly.
pub fn serve(listener: &UnixListener, answerer: Answerer<'_>, log: Log) {
    for connection in listener.incoming() {
        let connection = match connection {
            Ok(connection) => connection,
            // `shutdown` of the listener makes `accept` fail like this: that is how this thread ends.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return,
            Err(error) => {
                log.debug(format_args!("cannot accept an admin request: {error}"));
                std::thread::sleep(ACCEPT_RETRY_INTERVAL);
                continue;
            }
        };
        if let Err(error) = answer(connection, answerer) {
            log.debug(format_args!("admin request failed: {error}"));
        }
    }
}

fn answer(mut connection: UnixStream, answerer: Answerer<'_>) -> io::Result<()> {
    connection.set_read_timeout(Some(ADMIN_IO_TIMEOUT))?;
    connection.set_write_timeout(Some(ADMIN_IO_TIMEOUT))?;
    let mut request = String::new();
    BufReader::new(connection.try_clone()?.take(MAX_REQUEST_BYTES)).read_line(&mut request)?;
    let result = serde_json::from_str(&request).map_err(|error| format!("the request is not understood: {error}"));
    let answer = result.and_then(answerer).unwrap_or_else(|error| json!({ "error": error }));
    connection.write_all(&serde_json::to_vec(&answer)?)
}

/// Asks the node that listens on `socket`.
pub fn ask<T: DeserializeOwned>(socket: &Path, request: &Request) -> Result<T, NodeError> {
    ask_within(socket, request, ADMIN_IO_TIMEOUT)
}

/// The same for an answer that takes the node longer.
pub fn ask_within<T: DeserializeOwned>(socket: &Path, request: &Request, timeout: Duration) -> Result<T, NodeError> {
    let no_node = |error: io::Error| match error.kind() {
        io::ErrorKind::PermissionDenied => NodeError::NotItsUser(socket.into()),
        _ => NodeError::NoNode(socket.into(), error),
    };
    let strange = |error: serde_json::Error| NodeError::Answer(socket.into(), error.to_string());
    let mut connection = UnixStream::connect(admin_path(socket)).map_err(no_node)?;
    connection.set_read_timeout(Some(timeout)).map_err(no_node)?;
    let mut line = serde_json::to_vec(request).map_err(strange)?;
    line.push(b'\n');
    connection.write_all(&line).map_err(no_node)?;
    let mut answer = Vec::new();
    connection.take(MAX_ANSWER_BYTES).read_to_end(&mut answer).map_err(no_node)?;
    let answer: Value = serde_json::from_slice(&answer).map_err(strange)?;
    match answer.get("error").and_then(Value::as_str) {
        Some(error) => Err(NodeError::Denied(socket.into(), error.to_owned())),
        None => serde_json::from_value(answer).map_err(strange),
    }
}

/// Its sessions.
pub fn query(socket: &Path) -> Result<NodeReport, NodeError> {
    ask(socket, &Request::Ps)
}
