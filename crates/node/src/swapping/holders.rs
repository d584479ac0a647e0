//! What processes really have on devices that are shared out, as the vendor's library says: an API server runs its tenant's calls, and
//! what it reports about memory that has left may be untrue.
//!
//! Listing takes as long as a vendor's library needs to start. So it is done beside everything else, on a thread of its own, some time
//! after a session has left, and judged when it is there. A process may have more than what its sessions allocate (`beside`: contexts,
//! code, graphs), so one that lies can keep so much.

use crate::devices::Holder;
use crate::log::Log;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

/// Nanoseconds from one list to the next.
const GAP: u64 = 5_000_000_000;
/// Nanoseconds between two looks whether the list is there.
const LOOK: u64 = 100_000_000;

/// An API server with sessions that are out, as the node knows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Claimed {
    /// Those that the node has started for it.
    pub processes: HashSet<u32>,
    /// How often each of its sessions has left: none of them has been under way meanwhile if that is the same later.
    pub outs: BTreeMap<u64, u64>,
    /// By device: the most bytes that its sessions have there.
    pub most: BTreeMap<String, u64>,
}

pub(super) type Answer = Arc<Mutex<Option<Vec<Holder>>>>;

#[derive(Debug)]
pub(super) enum ListStage {
    /// Nothing has left since the last list; the next one not before this time.
    Idle {
        next: u64,
    },
    Wanted {
        at: u64,
    },
    Running {
        begun: u64,
        claims: BTreeMap<u64, Claimed>,
        answer: Answer,
    },
}

/// When holders are listed, and what was said about that.
#[derive(Debug)]
pub(super) struct Holders {
    pub stage: ListStage,
    said_unchecked: bool,
}

impl Default for Holders {
    fn default() -> Self {
        Holders { stage: ListStage::Idle { next: 0 }, said_unchecked: false }
    }
}

impl Holders {
    /// A session says that its memory has left.
    pub fn want(&mut self, now: u64) {
        if let ListStage::Idle { next } = self.stage {
            self.stage = ListStage::Wanted { at: next.max(now) };
        }
    }

    pub fn next_look(&self, now: u64) -> Option<u64> {
        match self.stage {
            ListStage::Idle { .. } => None,
            ListStage::Wanted { at } => Some(at),
            ListStage::Running { .. } => Some(now.saturating_add(LOOK)),
        }
    }

    /// True once if it is time for the next list.
    pub fn is_due(&self, now: u64) -> bool {
        matches!(self.stage, ListStage::Wanted { at } if at <= now)
    }

    /// The list that has come, and what was claimed when it was begun.
    pub fn take(&mut self) -> Option<(Vec<Holder>, BTreeMap<u64, Claimed>)> {
        let ListStage::Running { begun, claims, answer } = &mut self.stage else { return None };
        let list = answer.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        let (claims, next) = (std::mem::take(claims), begun.saturating_add(GAP));
        self.stage = ListStage::Idle { next };
        Some((list, claims))
    }
}

/// An API server that has more than it says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct KeptMemory {
    pub server: u64,
    pub device: String,
    pub has: u64,
    pub may: u64,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Kept(Vec<KeptMemory>),
    /// The library tells of the devices, and of none of these processes, each of which has a context there at least.
    Blind,
}

/// `beside`: by device, what a process may have there that no session has allocated. `is_of`: whether a process is one of these, or
/// was started by one.
pub(super) fn judge(
    list: &[Holder],
    claims: &BTreeMap<u64, Claimed>,
    beside: impl Fn(&str) -> u64,
    is_of: impl Fn(u32, &HashSet<u32>) -> bool,
) -> Verdict {
    let told: BTreeSet<&str> = list.iter().map(|holder| holder.device.as_str()).collect();
    let (mut kept, mut looked, mut seen) = (Vec::new(), false, false);
    for (server, claimed) in claims {
        for (device, most) in claimed.most.iter().filter(|(device, _)| told.contains(device.as_str())) {
            looked = true;
            let of_device = list.iter().filter(|holder| holder.device == *device && holder.process != 0);
            let own: Vec<u64> = of_device
                .filter(|holder| is_of(holder.process, &claimed.processes))
                .map(|holder| holder.bytes)
                .collect();
            let has = own.iter().copied().fold(0, u64::saturating_add);
            seen |= !own.is_empty();
            let may = most.saturating_add(beside(device));
            if has > may {
                kept.push(KeptMemory { server: *server, device: device.clone(), has, may });
            }
        }
    }
    if looked && !seen { Verdict::Blind } else { Verdict::Kept(kept) }
}

/// What both say: API servers of which nothing was under way between.
pub(super) fn unchanged(before: BTreeMap<u64, Claimed>, now: &BTreeMap<u64, Claimed>) -> BTreeMap<u64, Claimed> {
    let both = before.into_iter().filter_map(|(server, mut claimed)| {
        let later = now.get(&server).filter(|later| later.outs == claimed.outs)?;
        for (device, bytes) in &later.most {
            let most = claimed.most.entry(device.clone()).or_default();
            *most = (*most).max(*bytes);
        }
        Some((server, claimed))
    });
    both.collect()
}

impl Holders {
    pub fn say_unchecked(&mut self, log: &Log) {
        if !std::mem::replace(&mut self.said_unchecked, true) {
            log.warn(format_args!(
                "what API servers have of devices is not checked (the driver lists none of their processes, as in a container \
                 without the host's PID namespace): memory that a session reports as swapped out is believed to be"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(device: &str, process: u32, bytes: u64) -> Holder {
        Holder { device: device.into(), process, bytes }
    }

    fn claims(most: &[(&str, u64)]) -> BTreeMap<u64, Claimed> {
        let most = most.iter().map(|(device, bytes)| ((*device).to_owned(), *bytes)).collect();
        BTreeMap::from([(7, Claimed { processes: HashSet::from([70]), outs: BTreeMap::from([(1, 3)]), most })])
    }

    /// 71 was started by 70.
    fn is_of(process: u32, known: &HashSet<u32>) -> bool {
        known.contains(&(process / 10 * 10))
    }

    #[test]
    fn api_server_that_has_more_than_it_says_is_found_with_what_it_has_started() {
        let beside = |_: &str| 100;
        let judged = |list: &[Holder]| judge(list, &claims(&[("card", 50), ("other", 0)]), beside, is_of);
        let card = holder("card", 0, 0);
        assert_eq!(judged(&[card.clone(), holder("card", 70, 150), holder("card", 80, 900)]), Verdict::Kept(vec![]));
        let excess = |has| KeptMemory { server: 7, device: "card".into(), has, may: 150 };
        assert_eq!(judged(&[card.clone(), holder("card", 70, 151)]), Verdict::Kept(vec![excess(151)]));
        assert_eq!(judged(&[holder("card", 70, 100), holder("card", 71, 51)]), Verdict::Kept(vec![excess(151)]));
    }

    #[test]
    fn what_cannot_be_seen_is_told_apart_from_nothing() {
        let judged = |list: &[Holder], most: &[(&str, u64)]| judge(list, &claims(most), |_| 0, is_of);
        assert_eq!(judged(&[holder("card", 0, 0)], &[("card", 0)]), Verdict::Blind);
        assert_eq!(judged(&[holder("card", 0, 0), holder("card", 80, 9)], &[("card", 0)]), Verdict::Blind);
        assert_eq!(judged(&[holder("card", 0, 0)], &[("a device of another API", 0)]), Verdict::Kept(vec![]));
        assert_eq!(judged(&[], &[("card", 0)]), Verdict::Kept(vec![]));
    }

    #[test]
    fn api_servers_whose_sessions_went_or_came_meanwhile_are_not_judged() {
        let before = claims(&[("card", 5)]);
        assert_eq!(unchanged(before.clone(), &claims(&[("card", 9), ("new", 1)])), claims(&[("card", 9), ("new", 1)]));
        assert_eq!(unchanged(before.clone(), &claims(&[("card", 4)])), before);
        let mut later = before.clone();
        later.entry(7).and_modify(|claimed| claimed.outs = BTreeMap::from([(1, 4)]));
        assert_eq!(unchanged(before.clone(), &later), BTreeMap::new());
        assert_eq!(unchanged(before, &BTreeMap::new()), BTreeMap::new(), "it is on its way, or over");
    }

    #[test]
    fn lists_are_made_after_sessions_have_left_and_not_too_often() {
        let mut holders = Holders::default();
        assert_eq!((holders.next_look(3), holders.is_due(3), holders.take()), (None, false, None));
        holders.want(3);
        assert_eq!((holders.next_look(3), holders.is_due(3)), (Some(3), true));
        let answer = Answer::default();
        holders.stage = ListStage::Running { begun: 3, claims: claims(&[]), answer: answer.clone() };
        holders.want(4);
        assert_eq!((holders.next_look(4), holders.take()), (Some(4 + LOOK), None));
        *answer.lock().unwrap() = Some(vec![holder("card", 0, 0)]);
        assert_eq!(holders.take(), Some((vec![holder("card", 0, 0)], claims(&[]))));
        holders.want(5);
        assert_eq!((holders.next_look(5), holders.is_due(5)), (Some(3 + GAP), false));
    }
}
