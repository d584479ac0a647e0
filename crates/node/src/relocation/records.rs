//! The relocations of a node, by the API server that has their sessions, and the ends of those that are over.

use super::{
    machine::{Effects, Relocation},
    request::{MoveFigures, MoveStatus, ParkedReport},
    table::Halt,
};
use crate::attach::foreign::HeldState;
use aviary_control::CaptureFigures;
use aviary_gate::{GrantPage, HeldAmount};
use rustix::fs::SealFlags;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    os::fd::{AsFd, OwnedFd},
    time::{Duration, Instant},
};

/// Outcomes that are remembered for `aviary migrate`.
const REMEMBERED_OUTCOMES: usize = 256;
/// Seals that keep a state's file as long as it is.
const OF_FIXED_LENGTH: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::WRITE);

/// One session's part of a relocation.
#[derive(Debug, Default)]
pub struct Part {
    /// A file of the node's own for the session's greeting, until the target has it.
    pub announced: Option<OwnedFd>,
    /// From the order to capture until the target of a move has it; of a parked session until it continues. It is filled once
    /// the source has answered.
    pub state: Option<HeldState>,
    /// Length of the state's file, which its seals keep, once the session is parked.
    pub bytes: u64,
    pub figures: CaptureFigures,
    pub rebuild_us: u64,
    /// The node's end of the new grant page and bell, until the scheduler has them.
    pub devices: Option<(GrantPage, OwnedFd)>,
    /// Their files.
    pub devices_file: Option<[OwnedFd; 2]>,
}

/// A move, park, check or upgrade that an operator can ask about, from the wish to its end.
#[derive(Debug)]
pub struct Attempt {
    pub number: u64,
    /// The new API server; `None`: nothing shall move.
    pub target: Option<u64>,
    /// The API server in which the sessions were rehearsed: it has been told to end.
    pub rehearser: Option<u64>,
    pub since: Instant,
    /// Since when the source has its order to capture, which it answers once for each session.
    pub ordered: Option<Instant>,
    /// Where it is to be halted.
    pub halt: Option<Halt>,
    /// The effects before which it was halted.
    pub halted: Option<Effects>,
}

/// All sessions of one API server, which move or are parked together.
#[derive(Debug)]
pub struct Record {
    /// The API server that has the sessions.
    pub source: u64,
    pub relocation: Relocation,
    pub parts: BTreeMap<u64, Part>,
    /// `None` of sessions that are parked, and of their way back.
    pub attempt: Option<Attempt>,
    /// Amounts that their API server held when the sessions were parked, and that the next one will hold.
    pub held: Vec<HeldAmount>,
    /// Since when they are parked.
    pub parked: Instant,
}

impl Record {
    pub fn target(&self) -> Option<u64> {
        self.attempt.as_ref().and_then(|attempt| attempt.target)
    }

    /// Of its attempt.
    pub fn number(&self) -> u64 {
        self.attempt.as_ref().map_or(0, |attempt| attempt.number)
    }

    /// Its sessions, for people.
    pub fn ids(&self) -> String {
        self.parts.keys().map(u64::to_string).collect::<Vec<_>>().join(", ")
    }

    /// Its stage, for people.
    fn told(&self, attempt: &Attempt) -> String {
        let halted = if attempt.halted.is_some() { ", halted" } else { "" };
        format!("{}{halted}", self.relocation.told())
    }

    /// Bytes of the states that their API server has written.
    pub fn bytes_written(&self) -> u64 {
        let written = self.parts.values().filter_map(|part| fixed_length(&part.state.as_ref()?.file));
        written.fold(0, u64::saturating_add)
    }

    /// Bytes of the states of parked sessions.
    pub fn bytes(&self) -> u64 {
        self.parts.values().map(|part| part.bytes).sum()
    }

    /// `server`: process id of the API server that has the sessions at the end.
    pub fn figures(&self, attempt: &Attempt, server: u32, now: Instant) -> MoveFigures {
        let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let ordered = attempt.ordered.unwrap_or(now);
        let sum = |of: fn(&Part) -> u64| self.parts.values().map(of).fold(0, u64::saturating_add);
        MoveFigures {
            sessions: self.parts.len(),
            server,
            bytes: sum(|part| part.figures.bytes),
            reserve_us: sum(|part| part.figures.reserve_us),
            stop_us: sum(|part| part.figures.stop_us),
            drain_us: sum(|part| part.figures.drain_us),
            capture_us: sum(|part| part.figures.capture_us),
            rebuild_us: sum(|part| part.rebuild_us),
            prepare_us: us(ordered - attempt.since),
            stood_us: us(now - ordered).saturating_sub(sum(|part| part.figures.reserve_us)),
            whole_us: us(now - attempt.since),
        }
    }
}

/// The relocations of a node.
#[derive(Debug, Default)]
pub struct Relocations {
    /// By source.
    records: BTreeMap<u64, Record>,
    /// Attempts that are over once their source has ended, and the API server that has rehearsed them: by these.
    leaving: BTreeMap<u64, (u64, MoveStatus)>,
    ended: VecDeque<(u64, MoveStatus)>,
    /// The number of the last attempt.
    pub last: u64,
}

impl Relocations {
    pub fn next_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    pub fn insert(&mut self, record: Record) {
        self.records.insert(record.source, record);
    }

    pub fn remove(&mut self, source: u64) -> Option<Record> {
        self.records.remove(&source)
    }

    pub fn clear(&mut self) {
        self.records.clear();
    }

    pub fn iter(&self) -> impl Iterator<Item = &Record> {
        self.records.values()
    }

    pub fn get(&self, source: u64) -> Option<&Record> {
        self.records.get(&source)
    }

    pub fn get_mut(&mut self, source: u64) -> Option<&mut Record> {
        self.records.get_mut(&source)
    }

    /// The source of the relocation in which this API server is source or target.
    pub fn source_of(&self, server: u64) -> Option<u64> {
        let own = self.records.contains_key(&server).then_some(server);
        own.or_else(|| self.iter().find(|record| record.target() == Some(server)).map(|record| record.source))
    }

    /// The record of an API server whose sessions are parked.
    pub fn parked(&self, source: u64) -> Option<&Record> {
        self.get(source).filter(|record| record.relocation.is_parked())
    }

    pub fn has_parked(&self, source: u64, session: u64) -> bool {
        self.parked(source).is_some_and(|record| record.parts.contains_key(&session))
    }

    /// Bytes of the states of one API server's parked sessions.
    pub fn parked_bytes_of(&self, source: u64) -> Option<u64> {
        self.parked(source).map(Record::bytes)
    }

    /// Bytes of all states of parked sessions.
    pub fn parked_bytes(&self) -> u64 {
        self.records.keys().filter_map(|source| self.parked_bytes_of(*source)).sum()
    }

    /// How many others of those that `others` chooses wait longer for room than the sessions of an API server.
    pub fn ahead_of(&self, source: u64, others: impl Fn(u64) -> bool) -> usize {
        let since = |record: &Record| record.relocation.waits_for_room_since().map(|since| (since, record.source));
        let own = self.get(source).and_then(since);
        let is_ahead = |record: &&Record| {
            let longer = since(record).is_some_and(|other| own.is_none_or(|own| other < own));
            longer && record.source != source && others(record.source)
        };
        self.iter().filter(is_ahead).count()
    }

    pub fn report_parked(&self, source: u64, session: u64, now: Instant) -> Option<ParkedReport> {
        let record = self.parked(source)?;
        let part = record.parts.get(&session)?;
        let seconds = now.saturating_duration_since(record.parked).as_secs();
        Some(ParkedReport { state: record.relocation.told_of_parked(), bytes: part.bytes, seconds })
    }

    // Attempts.

    pub fn numbered(&mut self, number: u64) -> Option<&mut Record> {
        self.records.values_mut().find(|record| record.attempt.as_ref().is_some_and(|it| it.number == number))
    }

    pub fn attempt(&mut self, source: u64) -> Option<&mut Attempt> {
        self.records.get_mut(&source)?.attempt.as_mut()
    }

    pub fn is_under_way(&self, number: u64) -> bool {
        self.iter().any(|record| record.attempt.as_ref().is_some_and(|attempt| attempt.number == number))
    }

    /// For people: what an attempt to move the sessions of an API server does.
    pub fn stage_of(&self, source: u64) -> Option<&'static str> {
        self.get(source).filter(|record| record.attempt.is_some()).map(|record| record.relocation.told())
    }

    /// The sessions are not the source's any more. The attempt ends with that one, and with the one that has rehearsed them.
    pub fn leave(&mut self, number: u64, status: &MoveStatus, servers: impl IntoIterator<Item = u64>) {
        for server in servers {
            self.leaving.insert(server, (number, status.clone()));
        }
    }

    /// Nothing is left of an API server, and what it held is its tenant's.
    pub fn left(&mut self, server: u64) {
        if let Some((number, status)) = self.leaving.remove(&server)
            && !self.leaving.values().any(|(leaving, _)| *leaving == number)
        {
            self.remember(number, status);
        }
    }

    /// True while an attempt is under way, or its source is about to end.
    pub fn are_moving(&self) -> bool {
        !self.leaving.is_empty() || self.iter().any(|record| record.attempt.is_some())
    }

    /// True while parked sessions are on their way back.
    pub fn are_returning(&self) -> bool {
        self.iter().any(|record| record.relocation.is_parked() && !record.relocation.is_quiet())
    }

    /// Keeps the end of an attempt for questions about it.
    pub fn remember(&mut self, number: u64, status: MoveStatus) {
        if self.ended.len() == REMEMBERED_OUTCOMES {
            self.ended.pop_front();
        }
        self.ended.push_back((number, status));
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        self.iter().filter_map(|record| record.relocation.deadline()).min()
    }

    /// The sources of relocations whose time is over at `now`.
    pub fn due(&self, now: Instant) -> BTreeSet<u64> {
        let due = |record: &&Record| record.relocation.deadline().is_some_and(|at| at <= now);
        self.iter().filter(due).map(|record| record.source).collect()
    }

    pub fn status(&self, number: u64) -> Option<MoveStatus> {
        let under_way = self.iter().find_map(|record| {
            let attempt = record.attempt.as_ref().filter(|attempt| attempt.number == number)?;
            Some(MoveStatus::UnderWay(record.told(attempt)))
        });
        let leaves = self.leaving.values().any(|(leaving, _)| *leaving == number);
        let leaves = leaves.then(|| MoveStatus::UnderWay("ending the old API server".into()));
        let ended = || self.ended.iter().find(|(ended, _)| *ended == number).map(|(_, status)| status.clone());
        under_way.or(leaves).or_else(ended)
    }
}

/// Length of a session's state, if it cannot change any more; `None`: whoever wrote it could still make it longer.
pub fn fixed_length(snapshot: &OwnedFd) -> Option<u64> {
    let seals = rustix::fs::fcntl_get_seals(snapshot.as_fd()).ok()?;
    let length = rustix::fs::fstat(snapshot).ok()?.st_size;
    seals.contains(OF_FIXED_LENGTH).then(|| u64::try_from(length).unwrap_or(0))
}
