//! Swap: the device memory of sessions leaves for the host and returns, while their API servers, objects and addresses stay.
//!
//! Who leaves and who comes is decided in [`aviary_schedule::residency`]; this folder gives the orders, hears the answers
//! ([`hear`]) and keeps the accounts of the host's memory. A device takes part if its rule says how much memory it has; an operator
//! can turn out any session.

mod act;
mod hear;
pub(crate) mod request;

use crate::scheduling::rules::Rules;
use aviary_schedule::residency::{DeviceMemory, Patience, Place, Residency};
use request::SwapStatus;
use std::collections::BTreeMap;

/// Time that an allocation waits for room, and that a session may take to leave or return, in nanoseconds.
const PATIENCE: Patience = Patience { room: 10_000_000_000, leave: 30_000_000_000 };
/// Milliseconds in which a session that the node turns out by itself must stand.
const OWN_STOP_MS: u64 = 100;
/// The most milliseconds that an operator gives a session: well below the time after which its API server is ended.
const MOST_STOP_MS: u64 = 10_000;
/// Devices that are shared out. API servers name them.
const MOST_DEVICES: usize = 64;

/// One session whose memory was asked about, until its API server is reaped.
#[derive(Debug, Default)]
struct Swapped {
    server: u64,
    tenant: String,
    /// Number of the last order.
    attempt: u64,
    /// Bytes of host memory that the order allows, until it is answered.
    promised: u64,
    /// Bytes of host memory that its content takes.
    bytes: u64,
    outs: u64,
    ins: u64,
    figures: aviary_control::SwapFigures,
    return_us: u64,
    refused: Option<String>,
    /// Attempts in a row at which it has stayed.
    stays: u32,
    /// Calls when it was last looked at.
    calls: u64,
}

#[derive(Debug)]
pub(crate) struct Swapping {
    residency: Residency,
    /// Numbers of the residency, by name.
    devices: BTreeMap<String, usize>,
    sessions: BTreeMap<u64, Swapped>,
    last_attempt: u64,
}

impl Default for Swapping {
    fn default() -> Self {
        Self {
            residency: Residency::new(PATIENCE),
            devices: BTreeMap::new(),
            sessions: BTreeMap::new(),
            last_attempt: 0,
        }
    }
}

fn memory_of(rules: &Rules, device: &str) -> Option<DeviceMemory> {
    let settings = rules.of(device)?;
    let memory = settings.memory?;
    // Thousandths, so that no byte depends on how a computer divides.
    let most = u128::from(memory) * u128::from(settings.oversubscribe) / 1000;
    Some(DeviceMemory { memory, most: u64::try_from(most).unwrap_or(u64::MAX) })
}

impl Swapping {
    /// The number of a device that is shared; `None`: it is not, or there are too many.
    fn device(&mut self, rules: &Rules, name: &str) -> Option<usize> {
        if let Some(number) = self.devices.get(name) {
            return Some(*number);
        }
        let size = memory_of(rules, name)?;
        if self.devices.len() >= MOST_DEVICES {
            return None;
        }
        let number = self.residency.add_device(size);
        self.devices.insert(name.to_owned(), number);
        Some(number)
    }

    /// The rules have changed.
    pub fn set_rules(&mut self, rules: &Rules) {
        for (name, number) in &self.devices {
            // One that is not shared any more has room for all that is granted there.
            let size = memory_of(rules, name).unwrap_or(DeviceMemory { memory: u64::MAX, most: u64::MAX });
            self.residency.resize(*number, size);
        }
    }

    fn enter(&mut self, session: u64, server: u64, tenant: &str, now: u64) -> &mut Swapped {
        if !self.residency.knows(session) {
            self.residency.enter(session, tenant, now);
        }
        let swapped = self.sessions.entry(session).or_default();
        // It may have moved since.
        (swapped.server, swapped.tenant) = (server, tenant.to_owned());
        swapped
    }

    /// Its API server was reaped: nothing of its sessions is anywhere.
    pub fn reaped(&mut self, server: u64) {
        let residency = &mut self.residency;
        self.sessions.retain(|session, swapped| {
            if swapped.server == server {
                residency.leave(*session);
            }
            swapped.server != server
        });
    }

    /// Why a session of this API server cannot move now.
    pub fn obstacle(&self, server: u64) -> Option<&'static str> {
        let of_server = self.sessions.iter().filter(|(_, swapped)| swapped.server == server);
        let mut sessions = of_server.map(|(session, _)| *session);
        sessions.find_map(|session| match self.residency.place(session) {
            Some(Place::In) if self.residency.holds_any(session) => {
                Some("its memory is on a device whose memory is shared out (oversubscribe): only `aviary swap` takes it away")
            }
            Some(Place::In) | None => None,
            Some(_) => Some("its device memory is swapped out (aviary swap in)"),
        })
    }

    /// Anything that an upgrade of the node has no place for.
    pub fn is_quiet(&self) -> bool {
        let quiet = |session: &u64| {
            self.residency.place(*session).is_none_or(|place| place == Place::In) && !self.residency.holds_any(*session)
        };
        self.sessions.keys().all(quiet)
    }

    /// Bytes of host memory, with those that orders allow.
    pub fn host_bytes(&self) -> u64 {
        self.sessions
            .values()
            .map(|swapped| swapped.bytes.saturating_add(swapped.promised))
            .fold(0, u64::saturating_add)
    }

    pub fn status(&self, session: u64) -> SwapStatus {
        let place = self.residency.place(session).unwrap_or(Place::In).told().to_owned();
        let Some(swapped) = self.sessions.get(&session) else { return SwapStatus { place, ..SwapStatus::default() } };
        let Swapped { bytes, outs, ins, figures, return_us, refused, .. } = swapped;
        SwapStatus {
            place,
            bytes: *bytes,
            outs: *outs,
            ins: *ins,
            figures: *figures,
            return_us: *return_us,
            refused: refused.clone(),
        }
    }

    /// For `aviary ps`: where its memory is, if not on its devices, and what is there of each shared device.
    pub fn report(&self, session: u64) -> (Option<SwapStatus>, BTreeMap<String, u64>) {
        let is_out = self.residency.place(session).is_some_and(|place| place != Place::In);
        let name_of = |number: usize| self.devices.iter().find(|(_, known)| **known == number).map(|(name, _)| name);
        let resident = self.residency.resident(session).into_iter();
        let resident = resident.filter_map(|(number, bytes)| Some((name_of(number)?.clone(), bytes)));
        (is_out.then(|| self.status(session)), resident.collect())
    }
}

fn stop_of(request: u64) -> u64 {
    request.min(MOST_STOP_MS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduling::DeviceSettings;

    fn rules(memory: u64, oversubscribe: u32) -> Rules {
        Rules(vec![(
            "card*".into(),
            DeviceSettings { memory: Some(memory), oversubscribe, ..DeviceSettings::default() },
        )])
    }

    #[test]
    fn devices_are_shared_that_a_rule_says_so_of() {
        let mut swapping = Swapping::default();
        let rules = rules(1000, 1500);
        assert_eq!(memory_of(&rules, "card 0"), Some(DeviceMemory { memory: 1000, most: 1500 }));
        assert_eq!((swapping.device(&rules, "card 0"), swapping.device(&rules, "card 1")), (Some(0), Some(1)));
        assert_eq!((swapping.device(&rules, "card 0"), swapping.device(&rules, "other")), (Some(0), None));
        assert!((2..MOST_DEVICES).all(|number| swapping.device(&rules, &format!("card {number}")) == Some(number)));
        assert_eq!(swapping.device(&rules, "card of a liar"), None);
    }

    #[test]
    fn sessions_go_with_their_api_server() {
        let mut swapping = Swapping::default();
        swapping.enter(1, 7, "a", 0).bytes = 5;
        swapping.enter(2, 8, "a", 0).promised = 6;
        assert_eq!((swapping.host_bytes(), swapping.is_quiet(), swapping.obstacle(7)), (11, true, None));
        swapping.residency.evict(1, 0).unwrap();
        assert!(!swapping.is_quiet() && swapping.obstacle(7).is_some() && swapping.obstacle(8).is_none());
        assert_eq!(swapping.report(1).0.map(|status| status.place), Some("going out".into()));
        swapping.reaped(7);
        assert_eq!((swapping.host_bytes(), swapping.report(1).0), (6, None));
    }
}
