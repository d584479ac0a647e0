//! Sessions that go on with what the configuration does not give them any more.

use crate::node::CoreState;
use crate::sessions::permissions::Permissions;
use crate::sessions::registry::Session;
use std::collections::{BTreeMap, BTreeSet};

/// Sessions that a note has the numbers of; more are counted.
const MAX_NAMED_SESSIONS: usize = 20;

impl CoreState {
    /// Why a process that attached like this one did would get something else now; `None`: it would not.
    pub fn revoked(&self, session: &Session) -> Option<String> {
        // A guest without a tenant is a VM that was removed from the configuration: its device has ended, and so do its
        // sessions.
        let owner = self.owner(&session.identity, session.guest.uid)?;
        let name = owner.name.escape_debug();
        if owner.name != session.tenant {
            return Some(format!("{} is tenant {name} now", session.identity.user_name(session.guest.uid)));
        }
        let beyond = session.permissions.beyond(&Permissions::of(&owner), &session.api);
        (!beyond.is_empty()).then(|| format!("tenant {name} may do less now ({})", beyond.join(", ")))
    }

    /// Numbers of the sessions that are.
    pub fn revoked_sessions(&self) -> BTreeSet<u64> {
        let outdated = self.registry.sessions.iter().filter(|(_, session)| self.revoked(session).is_some());
        outdated.map(|(id, _)| *id).collect()
    }

    /// Notes for the caller that changed the configuration.
    pub fn revocation_notes(&self) -> Vec<String> {
        let mut found: BTreeMap<(String, &str), Vec<String>> = BTreeMap::new();
        for (id, session) in &self.registry.sessions {
            if let Some(why) = self.revoked(session) {
                found.entry((why, &session.tenant)).or_default().push(id.to_string());
            }
        }
        let note = |((why, tenant), ids): (&(String, &str), &Vec<String>)| {
            let (named, more) = ids.split_at(ids.len().min(MAX_NAMED_SESSIONS));
            let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
            let (sessions, keep) = if ids.len() == 1 { ("session", "keeps its") } else { ("sessions", "keep their") };
            let tenant = tenant.escape_debug();
            format!("{why}: {sessions} {}{more} {keep} old permissions (tenant {tenant})", named.join(", "))
        };
        let mut notes: Vec<String> = found.iter().map(note).collect();
        if !notes.is_empty() {
            notes.push("`aviary end --outdated` ends these sessions, `aviary end SESSION` one of them".into());
        }
        notes
    }
}
