//! The folder that `aviary tls init` writes, with files of the operator.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::keys::security::{REVOKED, SecurityError};

/// Identities could not be made or revoked.
#[derive(Debug, Error, displaydoc::Display)]
pub enum IdentityError {
    /// `{0}` is not a tenant's name: expected up to 40 characters of a-z, 0-9 and `-`
    Name(String),
    /// `{0}` is the name of a local user without a tenant: choose one that does not begin with `uid-`
    Reserved(String),
    /// {0}: {1}
    File(PathBuf, io::Error),
    /// {0} exists already; to replace it, remove it first
    Exists(PathBuf),
    /// {0} has no certificate of a node: expected a folder that `aviary tls init` wrote
    NoNode(PathBuf),
    /// nothing was issued to tenant `{0}` under {1}: `aviary tls list` lists what was issued; --certificate revokes a certificate by its file
    NothingIssued(String, PathBuf),
    /// {0}: expected a certificate of tenant `{1}`, but it is of `{2}`
    AnotherTenant(PathBuf, String, String),
    /// {0}
    Unreadable(#[from] SecurityError),
    /// {0}
    Index(#[from] IndexError),
    /// cannot make a certificate: {0}
    Certificate(#[from] rcgen::Error),
}

/// The index cannot be used.
#[derive(Debug, Error, displaydoc::Display)]
pub enum IndexError {
    /// {0}:{1}: expected a tenant, a certificate's SHA-256, its serial number and two dates; restore the file from a backup
    Line(PathBuf, usize),
    /// {0}: expected a certificate of a tenant, as `aviary tls init` writes it
    NoTenant(PathBuf),
}

pub(crate) fn node_folder(directory: &Path) -> PathBuf {
    directory.join("node")
}

/// Fingerprints in the node's list of revoked certificates.
pub(crate) fn revoked_fingerprints(node: &Path) -> Result<Vec<String>, IdentityError> {
    let list = node.join(REVOKED);
    let text = if list.exists() { read(&list)? } else { String::new() };
    Ok(text.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect())
}

/// Tenants with tokens.
pub(crate) fn token_holders(node: &Path) -> Result<Vec<String>, IdentityError> {
    let path = node.join("tokens");
    let text = if path.exists() { read(&path)? } else { String::new() };
    Ok(text.lines().filter_map(|line| line.split_once(' ')).map(|(name, _)| name.to_owned()).collect())
}

pub(crate) fn read(path: &Path) -> Result<String, IdentityError> {
    fs::read_to_string(path).map_err(|error| IdentityError::File(path.into(), error))
}

pub(crate) fn write_private(path: &Path, text: &str) -> Result<(), IdentityError> {
    let _ = fs::remove_file(path);
    append_private(path, text)
}

pub(crate) fn append_private(path: &Path, text: &str) -> Result<(), IdentityError> {
    let file = File::options().append(true).create(true).mode(0o600).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes())).map_err(|error| IdentityError::File(path.into(), error))
}
