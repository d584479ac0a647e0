//! Places for connections of other machines that have not shown who they are: how many, for how long, who makes room.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    time::{Duration, Instant},
};

/// Strangers at a time. Each that has said something is served by a process.
pub const MAX_UNIDENTIFIED: usize = 64;
/// Until then the first byte has come: a relay sends it as soon as it is connected.
pub const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(2);
/// Until then, since it connected, a peer has shown who it is.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Addresses that are in one hand as a rule. An IPv6 host has a /64 for itself. An IPv4 /24 is the smallest network that is
/// routed in the Internet: its holder has 256 addresses, four times the places that there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Network {
    V4([u8; 3]),
    V6([u8; 8]),
    /// Not told apart: virtual machines at a vsock.
    Other,
}

impl Network {
    fn of(source: Option<IpAddr>) -> Self {
        match source.map(|address| address.to_canonical()) {
            Some(IpAddr::V4(address)) => {
                let [a, b, c, _] = address.octets();
                Network::V4([a, b, c])
            }
            Some(IpAddr::V6(address)) => {
                let mut prefix = [0; 8];
                prefix.copy_from_slice(&address.octets()[..8]);
                Network::V6(prefix)
            }
            None => Network::Other,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Silent,
    Speaking,
}

#[derive(Debug)]
struct Stranger {
    source: Option<IpAddr>,
    since: Instant,
    phase: Phase,
}

impl Stranger {
    fn deadline(&self) -> Instant {
        self.since
            + match self.phase {
                Phase::Silent => FIRST_BYTE_TIMEOUT,
                Phase::Speaking => HANDSHAKE_TIMEOUT,
            }
    }
}

/// By their ids, which grow: the oldest is the first.
#[derive(Debug, Default)]
pub struct Strangers(BTreeMap<u64, Stranger>);

impl Strangers {
    pub fn is_full(&self) -> bool {
        self.0.len() >= MAX_UNIDENTIFIED
    }

    /// Takes the newest in, and says who must go for it: of the network with the most strangers, and there of the address
    /// with the most, the oldest. A flood displaces itself; who comes alone stays for as long as there is a flood.
    pub fn arrive(&mut self, id: u64, source: Option<IpAddr>, now: Instant) -> Option<u64> {
        let leaves = if self.is_full() { self.displaced() } else { None };
        leaves.map(|id| self.0.remove(&id));
        self.0.insert(id, Stranger { source, since: now, phase: Phase::Silent });
        leaves
    }

    fn displaced(&self) -> Option<u64> {
        let (mut networks, mut addresses) = (HashMap::<_, usize>::new(), HashMap::<_, usize>::new());
        for stranger in self.0.values() {
            *networks.entry(Network::of(stranger.source)).or_default() += 1;
            *addresses.entry(stranger.source).or_default() += 1;
        }
        let crowd = |stranger: &Stranger| (networks[&Network::of(stranger.source)], addresses[&stranger.source]);
        let by_crowd = self.0.iter().map(|(id, stranger)| (crowd(stranger), std::cmp::Reverse(*id)));
        by_crowd.max().map(|(_, id)| id.0)
    }

    /// Its first byte has come.
    pub fn speaks(&mut self, id: u64) {
        if let Some(stranger) = self.0.get_mut(&id) {
            stranger.phase = Phase::Speaking;
        }
    }

    /// It has shown who it is, or has gone.
    pub fn leave(&mut self, id: u64) {
        self.0.remove(&id);
    }

    /// Those whose time is over.
    pub fn overdue(&self, now: Instant) -> Vec<u64> {
        self.0.iter().filter(|(_, stranger)| stranger.deadline() <= now).map(|(id, _)| *id).collect()
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        self.0.values().map(Stranger::deadline).min()
    }
}

#[cfg(test)]
mod tests {
    use crate::attach::strangers::*;

    fn address(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    fn filled(source: impl Fn(usize) -> Option<IpAddr>, now: Instant) -> Strangers {
        let mut strangers = Strangers::default();
        for n in 0..MAX_UNIDENTIFIED {
            assert_eq!(strangers.arrive(n as u64, source(n), now), None);
        }
        assert!(strangers.is_full());
        strangers
    }

    #[test]
    fn a_flood_displaces_itself_and_nobody_else() {
        let now = Instant::now();
        let mut strangers = filled(|_| address("192.0.2.1"), now);
        assert_eq!(strangers.arrive(100, address("198.51.100.9"), now), Some(0), "the oldest of the flood");
        for id in 101..10_000 {
            let gone = strangers.arrive(id, address("192.0.2.1"), now);
            assert!(gone.is_some_and(|gone| gone != 100), "{gone:?}");
        }
    }

    #[test]
    fn many_addresses_of_one_network_are_one_flood() {
        let now = Instant::now();
        let v4 = |n: usize| address(&format!("192.0.2.{n}"));
        let v6 = |n: usize| address(&format!("2001:db8:1:2::{n:x}"));
        let mapped = |n: usize| address(&format!("::ffff:192.0.2.{n}"));
        let floods: [&dyn Fn(usize) -> Option<IpAddr>; 4] = [&v4, &v6, &mapped, &|_| None];
        for flood in floods {
            let mut strangers = filled(flood, now);
            assert_eq!(strangers.arrive(100, address("198.51.100.9"), now), Some(0));
            for id in 101..300 {
                assert_ne!(strangers.arrive(id, flood(id as usize % 200), now), Some(100));
            }
        }
    }

    #[test]
    fn a_neighbour_of_the_flood_stays() {
        let now = Instant::now();
        let mut strangers = filled(|_| address("192.0.2.1"), now);
        assert_eq!(strangers.arrive(100, address("192.0.2.2"), now), Some(0));
        for id in 101..1000 {
            assert_ne!(strangers.arrive(id, address("192.0.2.1"), now), Some(100));
        }
    }

    #[test]
    fn known_peers_take_no_place() {
        let now = Instant::now();
        let mut strangers = filled(|_| address("192.0.2.1"), now);
        strangers.leave(7);
        assert_eq!(strangers.arrive(100, address("192.0.2.1"), now), None);
        assert_eq!(strangers.arrive(101, address("192.0.2.1"), now), Some(0));
        assert!((0..1000).all(|id| strangers.arrive(200 + id, address("192.0.2.1"), now) != Some(7)));
    }

    #[test]
    fn silence_ends_before_a_handshake_does() {
        let (mut strangers, start) = (Strangers::default(), Instant::now());
        assert_eq!(strangers.next_deadline(), None);
        strangers.arrive(1, address("192.0.2.1"), start);
        strangers.arrive(2, address("192.0.2.1"), start);
        strangers.speaks(2);
        let moment = Duration::from_nanos(1);
        assert_eq!(strangers.next_deadline(), Some(start + FIRST_BYTE_TIMEOUT));
        assert_eq!(strangers.overdue(start + FIRST_BYTE_TIMEOUT - moment), [0; 0]);
        assert_eq!(strangers.overdue(start + FIRST_BYTE_TIMEOUT), [1]);
        strangers.leave(1);
        assert_eq!(strangers.next_deadline(), Some(start + HANDSHAKE_TIMEOUT));
        assert_eq!(strangers.overdue(start + HANDSHAKE_TIMEOUT - moment), [0; 0]);
        assert_eq!(strangers.overdue(start + HANDSHAKE_TIMEOUT), [2], "bytes now and then keep nobody");
    }
}
