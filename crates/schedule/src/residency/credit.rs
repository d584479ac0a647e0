//! A session that comes in while another one, which makes room for it, is still leaving: it has credit for as much as has left.
//!
//! A session that says that some of it has left does not stay any more: the rest leaves, or is ended with it, or stays on the device
//! while the session counts as out. So what was begun comes to its end, and the sum of what is on a device, what may come and what has
//! not left is never more than there is.

use super::room::Room;
use super::{Impossible, Order, Residency, Step};
use std::collections::BTreeMap;

/// A session hears of more credit in steps of such a part of what it has, so that others' copies are not slowed by messages.
const STEPS: u64 = 16;

impl Residency {
    /// So much of a session that is leaving has left, in all; by device.
    ///
    /// # Errors
    /// It is not leaving, has not so much, or has said more before.
    pub fn leaving(&mut self, session: u64, gone: &[(usize, u64)]) -> Result<(), Impossible> {
        let member = self.members.get_mut(&session).filter(|member| member.place.is_leaving()).ok_or(Impossible)?;
        let (mut next, there) = (member.gone.clone(), member.remains());
        for (device, bytes) in gone {
            let before = next.insert(*device, *bytes).unwrap_or(0);
            let most = there.get(device).map_or(0, |there| there.saturating_add(before));
            if *bytes < before || *bytes > most {
                return Err(Impossible);
            }
        }
        next.retain(|_, bytes| *bytes > 0);
        member.gone = next;
        Ok(())
    }

    /// Bytes of what had left of a session that may be on its device again; `None`: all of them.
    pub fn credit(&self, session: u64) -> Option<u64> {
        let credit = self.members.get(&session)?.credit.as_ref()?;
        Some(credit.values().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes)))
    }

    /// Whether the rest of what it needs is leaving for it: on one device, as a credit has no names of devices.
    pub(super) fn may_begin(&self, session: u64, need: &BTreeMap<usize, u64>, room: &Room) -> bool {
        let mut wanted = need.iter().filter(|(_, bytes)| **bytes > 0);
        let (Some((device, bytes)), None) = (wanted.next(), wanted.next()) else { return false };
        let leaves = self.members.values().filter(|member| {
            member.place.is_leaving() && member.leaves_for == Some(session) && !member.gone.is_empty()
        });
        let rest = leaves.filter_map(|member| member.leaves().get(device).copied()).fold(0, u64::saturating_add);
        let free = room.free_on(*device);
        free > 0 && free < *bytes && rest > 0 && free.saturating_add(rest) >= *bytes
    }

    pub(super) fn begin_return(&mut self, session: u64, room: &mut Room, orders: &mut Vec<Order>, now: u64) {
        if self.step(session, Step::Return, now).is_err() {
            return;
        }
        if let Some(member) = self.members.get_mut(&session) {
            member.credit = Some(BTreeMap::new());
        }
        self.add_credit(session, room);
        orders.push(Order::Return { session });
    }

    /// Of what it has not come for yet, as much as is free. What is missing then others make room for, as for one that is out.
    pub(super) fn give_credit(&mut self, session: u64, room: &mut Room, orders: &mut Vec<Order>, now: u64) {
        let Some(member) = self.members.get(&session) else { return };
        let (need, held) = (member.need(), member.held.values().sum::<u64>());
        let missing: u64 = need.values().sum();
        let free: u64 = need.iter().map(|(device, bytes)| room.free_on(*device).min(*bytes)).sum();
        let victims = self.parts(session, &room.lacking(&need), now);
        self.turn_out(session, victims, room, orders, now);
        if free > 0 && (free == missing || free >= held / STEPS) {
            self.add_credit(session, room);
            self.members.entry(session).and_modify(|member| member.heard_at = now);
            orders.push(Order::Credit { session });
        } else {
            room.take(&need);
        }
    }

    /// Nobody else has what it needs: what is free, and what comes free.
    fn add_credit(&mut self, session: u64, room: &mut Room) {
        let Some(member) = self.members.get_mut(&session) else { return };
        let need = member.need();
        let free: Vec<(usize, u64)> =
            need.iter().map(|(device, bytes)| (*device, room.free_on(*device).min(*bytes))).collect();
        room.take(&need);
        let Some(credit) = &mut member.credit else { return };
        for (device, bytes) in free {
            *credit.entry(device).or_default() += bytes;
        }
    }
}
