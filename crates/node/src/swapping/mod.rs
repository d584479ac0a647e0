//! Swap: the device memory of sessions leaves for the host and returns, while their API servers, objects and addresses stay.
//!
//! Who leaves and who comes is decided in [`aviary_schedule::residency`]; this folder gives the orders, hears the answers
//! ([`hear`]) and keeps the accounts of the host's memory. A device takes part if its rule says how much memory it has; an operator
//! can turn out any session.

mod act;
mod hear;
mod holders;
mod keep;
mod look;
mod prepare;
pub(crate) mod request;

use crate::scheduling::rules::Rules;
use aviary_schedule::residency::{DeviceMemory, Patience, Place, Residency};
use holders::Holders;
use request::SwapStatus;
use std::collections::{BTreeMap, BTreeSet};

/// Time that an allocation waits for room, and that a session may take to leave or return, in nanoseconds.
const PATIENCE: Patience = Patience { room: 10_000_000_000, leave: 30_000_000_000 };
/// Milliseconds in which a session that the node turns out by itself must stand.
const OWN_STOP_MS: u64 = 100;
/// The most milliseconds that an operator gives a session: well below the time after which its API server is ended.
const MOST_STOP_MS: u64 = 10_000;
/// Nanoseconds between two looks at what sessions do, while a device has not room for all.
const WATCH: u64 = 100_000_000;
/// Shared devices that sessions of a tenant may name: more than a host has.
const MOST_DEVICES: usize = 64;

/// No host has so many devices as the sessions of this tenant have named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooMany;

/// A device that is shared out, as API servers name it.
#[derive(Debug)]
struct NamedDevice {
    /// Of the residency.
    number: usize,
    /// Those whose sessions have named it.
    tenants: BTreeSet<String>,
}

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
    /// Of a session that is in: bytes of host memory that it keeps for the next time.
    kept: u64,
    /// Since when it is to give some of that back.
    giving: Option<u64>,
    /// Whether it makes host memory for its first eviction.
    preparing: Preparing,
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

/// Host memory that a session makes while it runs, before its memory leaves for the first time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Preparing {
    /// It makes none now, and more can be needed.
    #[default]
    No,
    /// It was told to keep so many bytes, with what it makes.
    Until(u64),
    /// It makes no more: it has what it needs, cannot have it, or was told to give some back.
    Done,
}

const UNLIMITED: DeviceMemory = DeviceMemory { memory: u64::MAX, most: u64::MAX };

#[derive(Debug)]
pub(crate) struct Swapping {
    residency: Residency,
    /// By name.
    devices: BTreeMap<String, NamedDevice>,
    /// Numbers of the residency that no device has any more.
    unused: Vec<usize>,
    sessions: BTreeMap<u64, Swapped>,
    last_attempt: u64,
    holders: Holders,
}

impl Default for Swapping {
    fn default() -> Self {
        Self {
            residency: Residency::new(PATIENCE),
            devices: BTreeMap::new(),
            unused: Vec::new(),
            sessions: BTreeMap::new(),
            last_attempt: 0,
            holders: Holders::default(),
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
    /// The number of a device that a session of this tenant names; `None`: it is not shared.
    fn device(&mut self, rules: &Rules, name: &str, tenant: &str) -> Result<Option<usize>, TooMany> {
        if let Some(known) = self.devices.get(name).filter(|known| known.tenants.contains(tenant)) {
            return Ok(Some(known.number));
        }
        let size = memory_of(rules, name);
        if size.is_none() && !self.devices.contains_key(name) {
            return Ok(None);
        }
        if self.devices.values().filter(|known| known.tenants.contains(tenant)).count() >= MOST_DEVICES {
            return Err(TooMany);
        }
        let (residency, unused) = (&mut self.residency, &mut self.unused);
        let device = self.devices.entry(name.to_owned()).or_insert_with(|| {
            let size = size.unwrap_or(UNLIMITED);
            let number = unused.pop().inspect(|number| residency.resize(*number, size));
            NamedDevice { number: number.unwrap_or_else(|| residency.add_device(size)), tenants: BTreeSet::new() }
        });
        device.tenants.insert(tenant.to_owned());
        Ok(Some(device.number))
    }

    /// Devices that only tenants without sessions have named are unknown again.
    fn forget_devices(&mut self) {
        let tenants: BTreeSet<&str> = self.sessions.values().map(|swapped| swapped.tenant.as_str()).collect();
        let unused = &mut self.unused;
        self.devices.retain(|_, device| {
            device.tenants.retain(|tenant| tenants.contains(tenant.as_str()));
            if device.tenants.is_empty() {
                unused.push(device.number);
            }
            !device.tenants.is_empty()
        });
    }

    /// The rules have changed.
    pub fn set_rules(&mut self, rules: &Rules) {
        for (name, device) in &self.devices {
            // One that is not shared any more has room for all that is granted there.
            self.residency.resize(device.number, memory_of(rules, name).unwrap_or(UNLIMITED));
        }
    }

    fn enter(&mut self, session: u64, server: u64, tenant: &str, now: u64) -> &mut Swapped {
        if !self.residency.knows(session) {
            self.residency.enter(session, tenant, now);
        }
        let swapped = self.sessions.entry(session).or_default();
        if swapped.server != server {
            // It has moved, and its old process keeps nothing.
            (swapped.kept, swapped.giving, swapped.preparing) = (0, None, Preparing::No);
        }
        (swapped.server, swapped.tenant) = (server, tenant.to_owned());
        swapped
    }

    /// An API server was reaped. What its sessions have counts until all that it has started has ended; `lives_on`: sessions that
    /// another one has now.
    pub fn reaped(&mut self, server: u64, lives_on: impl Fn(u64) -> bool) {
        let residency = &mut self.residency;
        self.sessions.retain(|session, swapped| {
            let (is_its, goes) = (swapped.server == server, lives_on(*session));
            match is_its {
                true if goes => residency.leave(*session),
                true => residency.retire(*session),
                false => {}
            }
            !(is_its && goes)
        });
    }

    /// Nothing is left of an API server: nothing of its sessions is anywhere.
    pub fn emptied(&mut self, server: u64) {
        let residency = &mut self.residency;
        self.sessions.retain(|session, swapped| {
            if swapped.server == server {
                residency.leave(*session);
            }
            swapped.server != server
        });
        self.forget_devices();
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
        self.sessions.values().map(Swapped::host_bytes).fold(0, u64::saturating_add)
    }

    pub fn status(&self, session: u64) -> SwapStatus {
        let place = self.residency.place(session).unwrap_or(Place::In).told().to_owned();
        let Some(swapped) = self.sessions.get(&session) else { return SwapStatus { place, ..SwapStatus::default() } };
        let Swapped { bytes, kept, outs, ins, figures, return_us, refused, .. } = swapped;
        SwapStatus {
            place,
            bytes: *bytes,
            kept: *kept,
            outs: *outs,
            ins: *ins,
            figures: *figures,
            return_us: *return_us,
            refused: refused.clone(),
        }
    }

    /// For `aviary ps`: where its memory is, if any of it is or can be in the host's, and what is there of each shared device.
    pub fn report(&self, session: u64) -> (Option<SwapStatus>, BTreeMap<String, u64>) {
        let is_out = self.residency.place(session).is_some_and(|place| place != Place::In);
        let is_out = is_out || self.sessions.get(&session).is_some_and(|swapped| swapped.kept > 0);
        (is_out.then(|| self.status(session)), self.resident(session))
    }

    /// By shared device: the bytes of a session that are on it, or may be.
    fn resident(&self, session: u64) -> BTreeMap<String, u64> {
        let name_of =
            |number: usize| self.devices.iter().find(|(_, known)| known.number == number).map(|(name, _)| name);
        let resident = self.residency.resident(session).into_iter();
        resident.filter_map(|(number, bytes)| Some((name_of(number)?.clone(), bytes))).collect()
    }
}

fn stop_of(request: u64) -> u64 {
    request.min(MOST_STOP_MS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduling::DeviceSettings;
    use aviary_schedule::residency::Order;

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
        let mut named = |name: &str, tenant: &str| {
            swapping.enter(tenant.len() as u64, 7, tenant, 0);
            swapping.device(&rules, name, tenant)
        };
        assert_eq!((named("card 0", "a"), named("card 1", "a")), (Ok(Some(0)), Ok(Some(1))));
        assert_eq!((named("card 0", "a"), named("other", "a")), (Ok(Some(0)), Ok(None)));
        // One that invents devices finds an end, and takes none from others.
        assert!((2..MOST_DEVICES).all(|number| named(&format!("card of a liar {number}"), "a") == Ok(Some(number))));
        assert_eq!((named("card of a liar", "a"), named("card 1", "a")), (Err(TooMany), Ok(Some(1))));
        assert_eq!((named("card 0", "bb"), named("card 2", "bb")), (Ok(Some(0)), Ok(Some(MOST_DEVICES))));
        swapping.enter(2, 8, "bb", 0);
        swapping.emptied(7);
        assert_eq!(swapping.devices.keys().collect::<Vec<_>>(), ["card 0", "card 2"]);
        assert!(
            swapping
                .device(&rules, "card 3", "bb")
                .is_ok_and(|number| number.is_some_and(|number| number < MOST_DEVICES))
        );
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
        swapping.reaped(7, |_| false);
        assert_eq!((swapping.host_bytes(), swapping.sessions.len()), (11, 2), "its children have not ended");
        swapping.emptied(7);
        assert_eq!((swapping.host_bytes(), swapping.report(1).0), (6, None));
        swapping.reaped(8, |session| session == 2);
        assert_eq!(swapping.host_bytes(), 0, "it is another one's");
    }

    #[test]
    fn room_comes_free_when_all_that_an_api_server_has_started_has_ended() {
        let mut swapping = Swapping::default();
        let number = swapping.device(&rules(100, 10_000), "card 0", "a").unwrap().unwrap();
        let granted = |session| vec![Order::Grant { session, request: 1 }];
        for (session, server) in [(1, 7), (2, 8)] {
            swapping.enter(session, server, "a", 0);
            swapping.residency.ask(session, 1, (number, 100), 0).unwrap();
            let orders = swapping.residency.decide(0);
            assert_eq!(orders, if session == 1 { granted(1) } else { vec![Order::Evict { session: 1, part: None }] });
        }
        swapping.reaped(7, |_| false);
        assert_eq!(swapping.residency.decide(0), [], "a child may hold the memory");
        swapping.emptied(7);
        assert_eq!(swapping.residency.decide(0), granted(2));
    }
}
