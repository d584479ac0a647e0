//! What `aviary ps` is told.

use crate::{DeviceReport, sessions::Registry, stats};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, time::SystemTime};

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NodeReport {
    pub address: String,
    pub pid: u32,
    /// API servers that wait for a guest.
    pub spares: usize,
    /// Process that is copied for new guests; 0: there is none, or it is not ready.
    #[serde(default)]
    pub zygote: u32,
    pub sessions: Vec<SessionReport>,
    /// Devices that are scheduled.
    #[serde(default)]
    pub devices: Vec<DeviceReport>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SessionReport {
    pub session: u64,
    pub api: String,
    pub program: String,
    pub guest: u32,
    pub uid: u32,
    /// Process id of the API server.
    pub server: u32,
    pub seconds: u64,
    /// Calls, bytes and resources by name; empty until the session has started.
    pub counters: BTreeMap<String, u64>,
}

pub fn sessions(registry: &Registry) -> Vec<SessionReport> {
    let now = SystemTime::now();
    let entry = |(id, session): (&u64, &crate::sessions::Session)| SessionReport {
        session: *id,
        api: session.api.clone(),
        program: session.guest.program(),
        guest: session.guest.pid,
        uid: session.guest.uid,
        server: registry.servers.get(&session.server).map_or(0, |server| server.process.pid()),
        seconds: now.duration_since(session.since).map_or(0, |time| time.as_secs()),
        counters: session.stats.as_ref().map(stats::read).unwrap_or_default(),
    };
    registry.sessions.iter().map(entry).collect()
}
