//! Sessions and the vendor sets of their API servers, which keep theirs whatever the configuration says later.

use crate::node::CoreState;
use crate::relocation::machine::Refusal;
use crate::report::VendorReport;
use crate::sessions::registry::{ServerRecord, Session};
use crate::tenants::vendor_set::VendorSet;
use std::{collections::BTreeMap, sync::Arc};

/// Sessions that a note has the numbers of; more are counted.
const MAX_NAMED_SESSIONS: usize = 20;

impl CoreState {
    /// Why sessions of this API server cannot continue in another one: no new one would have the libraries that their state
    /// is of.
    pub fn other_vendor(&self, server: u64) -> Option<Refusal> {
        let set = self.registry.servers.get(&server)?.vendor.as_ref()?;
        (!self.tenants().has_vendor(set)).then(|| {
            Refusal::lasting(format!(
                "its API server has vendor set {} as it was before the configuration was read again: a new one would have \
                 other libraries",
                set.name
            ))
        })
    }

    /// What a session's tenant would get now, if that is not what its API server has.
    fn present_vendor(&self, session: &Session) -> Option<String> {
        let tenants = self.tenants();
        let now = tenants.vendor_of(&tenants.called(&session.tenant));
        let had = self.registry.vendor_of(session);
        (had != now).then(|| match (had, now) {
            (Some(had), Some(now)) if had.name == now.name => format!("vendor set {} has changed", now.name),
            (_, Some(now)) => format!("tenant {} has vendor set {} now", session.tenant, now.name),
            (_, None) => format!("tenant {} has no vendor set now", session.tenant),
        })
    }

    /// Notes for the caller that changed the configuration.
    pub fn vendor_notes(&self) -> Vec<String> {
        let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (id, session) in &self.registry.sessions {
            if let Some(why) = self.present_vendor(session) {
                found.entry(why).or_default().push(id.to_string());
            }
        }
        let note = |(why, ids): (&String, &Vec<String>)| {
            let (named, more) = ids.split_at(ids.len().min(MAX_NAMED_SESSIONS));
            let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
            let keep = if ids.len() == 1 { "session keeps" } else { "sessions keep" };
            format!("{why}: running {keep} the libraries of before ({}{more})", named.join(", "))
        };
        found.iter().map(note).collect()
    }

    /// Vendor sets in use, those that are not in the configuration any more after the one that is.
    pub fn report_vendors(&self) -> Vec<VendorReport> {
        let tenants = self.tenants();
        let mut reports: Vec<(Arc<VendorSet>, VendorReport)> = Vec::new();
        let of_configuration = tenants.vendors.values().cloned();
        let of_servers = self.registry.servers.values().filter_map(|server| server.vendor.clone());
        for set in of_configuration.chain(of_servers) {
            if reports.iter().any(|(known, _)| *known == set) {
                continue;
            }
            let has = |server: &&ServerRecord| server.vendor.as_ref() == Some(&set) && server.guest.is_some();
            let report = VendorReport {
                name: set.name.clone(),
                zygote: self.spares.ready(Some(&set)).map_or(0, |zygote| zygote.process.pid()),
                servers: self.registry.servers.values().filter(has).count(),
                spares: self.registry.spares(Some(&set)),
                replaced: !tenants.has_vendor(&set),
            };
            reports.push((set, report));
        }
        reports.into_iter().map(|(_, report)| report).collect()
    }
}
