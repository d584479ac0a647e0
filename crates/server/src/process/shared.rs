//! What the connections' threads and the main thread of an API server share.

use std::collections::BTreeMap;
use std::os::fd::{OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Once, OnceLock};

use aviary_control::ServerUser;

use super::attaching::Attaching;
use super::exchange::Exchange;
use super::modules::preload;
use super::node::Node;
use super::orders::Orders;
use super::sandboxing::Sandbox;
use crate::process::confine::{self, flush_output};
use crate::session::Journal;

/// State that the connections' threads and the main thread share.
pub struct ProcessState {
    pub node: Node,
    /// Where the node reads lines for its log, kept when the guest's standard error takes that place.
    pub journal: RawFd,
    /// `None`: this process is confined by its user and the short list of refused system calls only.
    pub sandbox: Option<Sandbox>,
    pub active: AtomicUsize,
    pub served: AtomicBool,
    /// Lowers the limit of descriptors: once, as it is a part of what it was.
    pub bounded: Once,
    /// The outcome of the confinement for the tenant, once there was a reason for it.
    pub confined: OnceLock<Result<(), String>>,
    /// The output descriptors of the first guest, or its pipes: once per process.
    pub output: OnceLock<Option<[OwnedFd; 2]>>,
    pub attaching: Attaching,
    pub exchange: Exchange,
    pub orders: Orders,
    /// Tells the main thread that a connection ended.
    pub ended: OwnedFd,
}

impl ProcessState {
    /// One line in the node's log.
    pub fn note(&self, session: u64, text: &str) {
        Journal { fd: self.journal, session }.note(text);
    }

    /// With the first session, or before it comes: from here on the process is its tenant's.
    pub fn confine_for(
        &self,
        user: Option<&ServerUser>,
        modules: &[PathBuf],
        vendors: &BTreeMap<String, String>,
    ) -> Result<(), String> {
        let confined = self.confined.get_or_init(|| confine_for(self.sandbox.as_ref(), user, modules, vendors));
        confined.clone().map_err(|error| format!("cannot sandbox this API server: {error}"))
    }

    pub fn finished(&self) {
        flush_output();
        self.active.fetch_sub(1, Ordering::SeqCst);
        self.wake();
    }

    /// The main thread looks what there is to do.
    pub fn wake(&self) {
        // A full counter means that it is about to wake anyway.
        let _ = rustix::io::write(&self.ended, &1u64.to_ne_bytes());
    }
}

fn confine_for(
    sandbox: Option<&Sandbox>,
    user: Option<&ServerUser>,
    modules: &[PathBuf],
    vendors: &BTreeMap<String, String>,
) -> Result<(), String> {
    let home = match (sandbox, user) {
        (Some(sandbox), Some(user)) => Some(sandbox.join_tenant(user)?),
        (None, Some(user)) => Some(user.home.clone()),
        (Some(sandbox), None) => sandbox.join_node()?,
        (None, None) => None,
    };
    if let Some(user) = user {
        // This user must be able to read all that is loaded later. A copy of the zygote has it already.
        preload(modules, vendors).for_each(drop);
        confine::become_user(user).map_err(|error| error.to_string())?;
    }
    if let Some(home) = &home {
        confine::live_in(home).map_err(|error| format!("{}: {error}", home.display()))?;
    }
    sandbox.map_or(Ok(()), |sandbox| sandbox.lock(home.as_deref()))
}
