//! What is answered about grants at the admin socket.

use super::request::Grant;
use crate::node::CoreState;
use crate::report::{self, AccountReport};
use serde::{Deserialize, Serialize};
use std::{path::PathBuf, time::SystemTime};

/// A grant, and how much of it is used.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct GrantReport {
    #[serde(flatten)]
    pub grant: Grant,
    /// What its guests connect to; `None`: they show a key.
    pub socket: Option<PathBuf>,
    /// Seconds until it ends.
    pub expires_in: Option<u64>,
    pub sessions: usize,
    pub accounts: Vec<AccountReport>,
}

pub(super) fn report_of(state: &CoreState, grant: &Grant) -> GrantReport {
    let left = grant.expiry().map(|end| end.duration_since(SystemTime::now()).unwrap_or_default().as_secs());
    GrantReport {
        grant: grant.clone(),
        socket: grant.socket(),
        expires_in: left,
        sessions: state.sessions_of_tenant(&grant.name) + state.relays.of_tenant(&grant.name),
        accounts: report::tenant(state, state.tenants().called(&grant.name)).accounts,
    }
}
