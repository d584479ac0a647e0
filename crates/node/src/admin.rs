//! The admin socket: one request line, one JSON answer. Only the node's own user reaches it; where API servers are that user,
//! too, a line with the node's secret comes first, and what an API server has started is refused.

use crate::attach::guest::Guest;
use crate::attach::secret::{self, Secret};
use crate::cards::CardMoveRequest;
use crate::error::NodeError;
use crate::grants::request::GrantRequest;
use crate::log::Log;
use crate::relocation::request::MoveRequest;
use crate::report::NodeReport;
use crate::sessions::end::EndRequest;
use crate::swapping::request::SwapRequest;
use crate::tenants::tenant::TenantChange;
use crate::upgrade::UpgradeRequest;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use std::{
    io::{self, BufRead, BufReader, Read, Write},
    os::{
        fd::AsFd,
        unix::net::{UnixListener, UnixStream},
    },
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
    /// Take a session's device memory to the host, or bring it back; how that goes on is asked with `SwapStatus`.
    Swap(SwapRequest),
    /// By the number of the session.
    SwapStatus(u64),
    /// Move a program to another port of its FPGA card; how that goes on is asked with `CardMoveStatus`.
    MoveAtCard(CardMoveRequest),
    /// By the number of the session.
    CardMoveStatus(u64),
    /// Make a tenant, or change it.
    Grant(Box<GrantRequest>),
    Grants,
    /// The machine's devices, as far as they are known; who asks asks again.
    Devices,
    /// Take a grant back, by its name; asked again, it says how far that is.
    Revoke(String),
    /// For tests: the move goes on that waits where its request said.
    Proceed(u64),
}

/// Who is let in, and what answers.
pub struct Desk<'a> {
    pub answer: &'a dyn Fn(Request) -> Result<Value, String>,
    /// True for a process that is an API server or was started by one.
    pub is_api_servers: &'a dyn Fn(&Guest) -> bool,
    /// `None`: API servers have users of their own, whom the socket's permissions keep out.
    pub secret: Option<&'a Secret>,
}

/// The admin socket that belongs to a node's socket.
pub fn admin_path(socket: &Path) -> PathBuf {
    socket.with_extension("admin")
}

/// Answers until the listener is shut down. Runs on a thread of its own, so
/// that a slow client holds up other `aviary ps` only, and those briefly.
pub fn serve(listener: &UnixListener, desk: &Desk<'_>, log: Log) {
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
        if let Err(error) = answer(connection, desk, log) {
            log.debug(format_args!("admin request failed: {error}"));
        }
    }
}

fn answer(mut connection: UnixStream, desk: &Desk<'_>, log: Log) -> io::Result<()> {
    connection.set_read_timeout(Some(ADMIN_IO_TIMEOUT))?;
    connection.set_write_timeout(Some(ADMIN_IO_TIMEOUT))?;
    let peer = Guest::of(connection.as_fd()).map_err(io::Error::other)?;
    let result = if (desk.is_api_servers)(&peer) {
        let pid = peer.pid;
        log.warn(format_args!("admin request of process {pid} refused: an API server has started it"));
        Err("processes of API servers cannot ask for anything here".to_owned())
    } else {
        let mut lines = BufReader::new(connection.try_clone()?.take(MAX_REQUEST_BYTES));
        let mut request = String::new();
        lines.read_line(&mut request)?;
        let known = desk.secret.is_none_or(|secret| secret.is_said_by(&request));
        if secret::says_secret(&request) {
            request.clear();
            lines.read_line(&mut request)?;
        }
        match known {
            true => understand(&request).and_then(desk.answer),
            false => Err(
                "the request does not say the node's secret, a file beside the node's socket that the node's user can read"
                    .to_owned(),
            ),
        }
    };
    let answer = result.unwrap_or_else(|error| json!({ "error": error }));
    connection.write_all(&serde_json::to_vec(&answer)?)
}

fn understand(request: &str) -> Result<Request, String> {
    serde_json::from_str(request).map_err(|error| format!("the request is not understood: {error}"))
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
    let mut line = secret::first_line(socket).map_err(no_node)?.into_bytes();
    line.extend(serde_json::to_vec(request).map_err(strange)?);
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
