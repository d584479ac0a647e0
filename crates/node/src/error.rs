//! Errors of a node; the doc comments are the messages.

use crate::cgroups::GroupError;
use aviary_transport::RemoteAddress;
use std::{io, path::PathBuf};

#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub enum NodeError {
    /// bad address `{0}`: expected unix:/PATH/TO/node.sock
    Address(String),
    /// the socket path {0} is too long: at most 107 bytes
    PathTooLong(PathBuf),
    /// a node already listens on {0}
    AlreadyRunning(PathBuf),
    /// {0} exists and is not a socket: remove it or choose another --listen address
    NotASocket(PathBuf),
    /// cannot listen on {0}: {1}
    Listen(PathBuf, io::Error),
    /// cannot listen on {0}: {1}
    ListenRemote(RemoteAddress, io::Error),
    /// too many connections of other machines are served for one more of {0}
    Crowded(String),
    /// user {0} is one of this node's API servers (api_server_users), which attach nowhere; run guests as users outside of that range
    ApiServerUser(u32),
    /// `{0}` is the name of a local user without a tenant: a guest of another machine cannot have it; give it a certificate or token with another name
    ReservedName(String),
    /// gateway {0} attached without saying for whom
    NoTenant(u32),
    /// XDG_RUNTIME_DIR={0} is not used: {1}; sockets and private folders of this user must lie where nobody else can put files (with sudo, leave the variable out)
    RuntimeDirectory(PathBuf, String),
    /// cannot create a private directory under {0}: {1}
    PrivateDir(PathBuf, io::Error),
    /// cannot start an API server ({0}): {1}
    Spawn(PathBuf, io::Error),
    /// cannot copy the zygote: {0}
    Copy(io::Error),
    /// there is no session {0} (`aviary ps` lists them)
    NoSession(u64),
    /// there was no move {0}, or it is forgotten
    NoMove(u64),
    /// no API server watches for calls of a parked session: {0}
    Parked(String),
    /// cannot hand a connection to API server {0}: {1}
    HandOver(u32, io::Error),
    /// tenant `{0}` has {1} guest processes already
    NoSlot(String, usize),
    /// no user id for the API servers of tenant `{0}`: {1}
    ServerUser(String, String),
    /// no accounts for tenant `{0}`: {1}
    Page(String, String),
    /// there is no tenant `{0}`: it is not configured, and it never attached
    NoTenantNamed(String),
    /// the configuration was not read again: {0}
    Reload(String),
    /// the node was not upgraded: {0}
    Upgrade(String),
    /// the node cannot take over from the program before it: {0}
    Handover(io::Error),
    /// the node on {0} says: {1}
    Denied(PathBuf, String),
    /// control groups of API servers: {0}
    Groups(#[from] GroupError),
    /// cannot watch descriptors: {0}
    Watch(io::Error),
    /// no credentials of the connecting process: {0}
    Credentials(io::Error),
    /// the node on {0} answers its own user and root only
    NotItsUser(PathBuf),
    /// no node answers on {0}: {1}
    NoNode(PathBuf, io::Error),
    /// the node on {0} gave an answer that is not understood: {1}
    Answer(PathBuf, String),
}
