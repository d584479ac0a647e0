//! Connects a relay to its node.

use std::io;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use aviary_transport::RemoteAddress;

use crate::carry::link::{Compression, Link};
use crate::dialer::Dialer;
use crate::keys::security::{ClientSecurity, explain};

pub struct RelayOptions {
    pub node: RemoteAddress,
    pub security: ClientSecurity,
    /// The time without data after which a connection counts as broken.
    pub patience: Duration,
    pub compression: Compression,
    /// Connections of a session, the first included; `None`: as many as pay.
    pub strands: Option<usize>,
    /// Print the reason on standard error when a connection ends.
    pub verbose: bool,
    /// Makes the connections, where this process may make none.
    pub dialer: Option<Dialer>,
}

/// Connects to the node. `timeout`: for each step.
pub(crate) fn connect(options: &RelayOptions, timeout: Duration) -> Result<Link, String> {
    let node = &options.node;
    let unreachable = |e: io::Error| match e.kind() {
        io::ErrorKind::ConnectionRefused => {
            "connection refused; is `aviary serve --listen` running there, with this port?".to_owned()
        }
        io::ErrorKind::TimedOut => "no answer; is the address right and the port open?".to_owned(),
        _ => format!("cannot connect: {e}"),
    };
    let connected = match &options.dialer {
        Some(dialer) => dialer.connect(),
        None => node.connect(timeout),
    };
    let socket = connected.map_err(unreachable)?;
    let _ = socket.set_nodelay(true);
    secure(options, socket, timeout)
}

/// Begins a TLS session over a connection that has none at the moment.
pub(crate) fn secure(options: &RelayOptions, mut socket: TcpStream, timeout: Duration) -> Result<Link, String> {
    let limited = socket.set_read_timeout(Some(timeout)).and_then(|()| socket.set_write_timeout(Some(timeout)));
    limited.map_err(|e| e.to_string())?;
    let deadline = Instant::now() + timeout;
    let tls = options.security.shake_hands(&options.node, &mut socket, deadline).map_err(|e| lost(&e, options))?;
    Link::new(socket, tls, options.patience).map_err(|e| e.to_string())
}

/// Why a connection failed, for the user.
pub(crate) fn lost(error: &io::Error, options: &RelayOptions) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset if options.security.is_plain() => {
            "it closed the connection; if it uses TLS, leave out --plain-loopback and give --tls-dir".into()
        }
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
            "it closed the connection; it may be too busy, or it is not an Aviary node".into()
        }
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => "it does not answer".into(),
        _ => explain(error, &options.node),
    }
}
