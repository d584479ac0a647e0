//! Homes of limited size: home and shared memory of a tenant in one file system in memory.
//!
//! It is mounted when the tenant gets its first API server, and taken away with the last one, so that nothing of it is left. The
//! mount outlives an upgrade of the node, and a node that was killed: the next one of this user takes it away with the folder that
//! it is in. Only a node of root can mount; elsewhere homes are folders without a limit.

use crate::error::NodeError;
use aviary_control::ServerUser;
use aviary_sandbox::mounts::{detach, mount_memory, resize_memory};
use std::{
    collections::BTreeSet,
    fs::DirBuilder,
    io,
    os::unix::fs::{DirBuilderExt, chown},
    path::Path,
    thread,
};

/// Names in a tenant's file system.
pub(crate) const HOME: &str = "home";
pub(crate) const SHARED_MEMORY: &str = "shm";

/// Which homes are file systems of their own.
#[derive(Debug, Default)]
pub(crate) struct Homes {
    /// New ones are.
    pub limited: bool,
    /// Tenants whose file system is mounted.
    pub mounted: BTreeSet<String>,
}

/// Makes an empty folder of a user, or of this process's own.
pub(crate) fn make_folder(folder: &Path, owner: Option<u32>) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(folder).and_then(|()| chown(folder, owner, owner))
}

impl Homes {
    /// Before an API server of this tenant is told its user: the folders are there.
    ///
    /// # Errors
    /// They cannot be mounted or made.
    pub fn furnish(&mut self, tenant: &str, user: &ServerUser, bytes: u64) -> Result<(), NodeError> {
        if !user.mounted || self.mounted.contains(tenant) {
            return Ok(());
        }
        let place = place_of(user);
        let failed =
            |error: io::Error| NodeError::ServerUser(tenant.to_owned(), format!("{}: {error}", place.display()));
        mount_memory(place, bytes).map_err(failed)?;
        let mut folders = [&user.home, &user.shared_memory].into_iter();
        if let Err(error) = folders.try_for_each(|folder| make_folder(folder, Some(user.id))) {
            // It is empty.
            let _ = detach(place);
            return Err(failed(error));
        }
        self.mounted.insert(tenant.to_owned());
        Ok(())
    }

    /// Nothing of the tenant's files is left, and their memory is free when no process uses it any more.
    pub fn clear(&mut self, tenant: &str, user: &ServerUser) {
        if !self.mounted.contains(tenant) {
            return;
        }
        if let Ok(held) = detach(place_of(user)) {
            self.mounted.remove(tenant);
            // A gigabyte takes tenths of a second. Without another thread it is freed here.
            let _ = thread::Builder::new().name("removal".into()).spawn(move || drop(held));
        }
    }

    /// What the tenant's home may hold from here on. What it holds stays.
    ///
    /// # Errors
    /// It holds more.
    pub fn resize(&self, tenant: &str, user: &ServerUser, bytes: u64) -> io::Result<()> {
        if self.mounted.contains(tenant) { resize_memory(place_of(user), bytes) } else { Ok(()) }
    }
}

/// Where the file system of a user with one is mounted.
pub(crate) fn place_of(user: &ServerUser) -> &Path {
    user.home.parent().unwrap_or(&user.home)
}
