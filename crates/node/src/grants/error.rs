//! Why a grant is refused; the doc comments are the messages.

use std::{io, path::PathBuf};

#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub enum GrantError {
    /// `{0}` cannot be the name of a grant: expected up to 100 letters, digits, `-`, `_` and `.`, with no `.` at first and no `uid-`
    Name(String),
    /// grant `{0}`: {1}
    Value(String, String),
    /// tenant `{0}` is no grant, but {1}: choose another name
    Taken(String, &'static str),
    /// grant `{0}` is still being revoked: grant it again when `aviary revoke` has answered
    Leaving(String),
    /// grant `{0}` has another socket, key or way out: revoke it first (`aviary revoke {0}`)
    OtherEntrance(String),
    /// grant `{0}`: grant `{1}` has this socket or key already
    SameEntrance(String, String),
    /// grant `{name}` would give away more of device `{device}` than there is: {what} of all grants would be {sum}, there is {most}; revoke another one or use --overcommit
    Overcommitted { name: String, device: String, what: &'static str, sum: u64, most: u64 },
    /// this node keeps no grants: it needs a folder for them (--grants DIR, or `grants` in the configuration file)
    NoFolder,
    /// the folder of grants {0} cannot be used: {1}
    Folder(PathBuf, String),
    /// cannot write the grant in {0}: {1}
    Write(PathBuf, io::Error),
    /// grant `{0}`: a key is for guests of other machines, and this node has no --listen HOST:PORT with --tls-dir
    NoRemote(String),
    /// the folder of the socket {0} cannot be used: {1}
    Socket(PathBuf, String),
    /// the node has {0} grants already, which is the limit
    Many(usize),
}
