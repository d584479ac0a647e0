//! Errors of a node; the doc comments are the messages.

use crate::grants::error::GrantError;
use crate::servers::cgroups::GroupError;
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
    /// cannot serve another connection from {0}: too many connections from other machines
    Crowded(String),
    /// user {0} belongs to this node's API servers (api_server_users), which cannot attach: run guests as users outside of that range
    ApiServerUser(u32),
    /// process {0} is an API server of this node or was started by one: it cannot attach
    ApiServerProcess(u32),
    /// cannot write the node's secret beside its socket: {0}
    Secret(io::Error),
    /// `{0}` is the name of a local user without a tenant, which a guest on another machine cannot have: give it a certificate or token with another name
    ReservedName(String),
    /// gateway {0} attached without reporting a tenant
    NoTenant(u32),
    /// XDG_RUNTIME_DIR={0} is not used: {1}; sockets and private folders of this user must be where no other user can create files (with sudo, leave the variable out)
    RuntimeDirectory(PathBuf, String),
    /// cannot create a private directory in {0} ($XDG_RUNTIME_DIR, or /tmp where that cannot be used): {1}
    PrivateDir(PathBuf, io::Error),
    /// cannot set the permissions of the private directory {0}: {1}
    PrivateDirMode(PathBuf, io::Error),
    /// cannot start an API server ({0}): {1}
    Spawn(PathBuf, io::Error),
    /// cannot fork an API server from the zygote: {0}
    Copy(io::Error),
    /// there is no session {0} (`aviary ps` lists them)
    NoSession(u64),
    /// there was no move {0}, or it ended too long ago
    NoMove(u64),
    /// cannot pass a connection to API server {0}: {1}
    HandOver(u32, io::Error),
    /// tenant `{0}` has {1} guest processes already, which is the limit
    NoSlot(String, usize),
    /// cannot assign a user id to the API servers of tenant `{0}`: {1}
    ServerUser(String, String),
    /// cannot make the accounts of tenant `{0}`: {1}
    Page(String, String),
    /// there is no tenant `{0}`: it is neither in the configuration nor has it ever attached
    NoTenantNamed(String),
    /// the configuration was not reloaded: {0}
    Reload(String),
    /// the node was not upgraded: {0}
    Upgrade(String),
    /// the node cannot take over from the program before it: {0}
    Handover(io::Error),
    /// the node on {0} refused: {1}
    Denied(PathBuf, String),
    /// {0}
    Grant(#[from] GrantError),
    /// tenant `{0}` is a grant, whose guests come by its own socket or key
    OfGrant(String),
    /// no grant has the key of this certificate any more
    NoGrant,
    /// cannot set up control groups for API servers: {0}
    Groups(#[from] GroupError),
    /// cannot keep sessions in {0} (--keep): {1}
    Keep(PathBuf, String),
    /// cannot watch file descriptors: {0}
    Watch(io::Error),
    /// the kernel does not identify the connecting process: {0}
    Credentials(io::Error),
    /// the node on {0} answers only its own user and root
    NotItsUser(PathBuf),
    /// no node answers on {0}: {1}
    NoNode(PathBuf, io::Error),
    /// the node on {0} sent an answer that this program does not understand (is it another version?): {1}
    Answer(PathBuf, String),
}
