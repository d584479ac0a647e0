//! The object log: the calls that would make a session's objects again.
//!
//! It is bounded by what lives, not by how long a session runs: a record that changes an object takes the place of the
//! last one of the same function, object and key, and an object's records go with it. An ended object stays as long as
//! the records of a live one name it. Objects that only ended ones name in a circle are found by looking from the live
//! ones, whenever the ended objects have doubled.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::content::Content;
use crate::record::{Effect, Owner, Record};
use crate::store::Store;

/// Ended objects that are kept before the log looks which of them no live one needs.
const MIN_ENDED: usize = 64;

/// Bytes that a record, an object and their places in the tables are counted with, beside contents and lists.
const RECORD_BYTES: usize = 320;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Alive,
    Ended,
}

struct LoggedObject {
    life: Life,
    /// Records that belong to it, those of [`Effect::Ends`], `Retains` and `GivesBack` not among them.
    owned: BTreeSet<u64>,
    /// Records that name it as an input.
    named: usize,
    /// The call that ended it.
    end: Option<u64>,
    retain: Option<u64>,
    give_back: Option<u64>,
}

impl LoggedObject {
    /// Only the records that it shares with others can still hold it.
    fn is_idle(&self) -> bool {
        self.life == Life::Ended && self.named == 0
    }
}

impl Default for LoggedObject {
    fn default() -> LoggedObject {
        LoggedObject { life: Life::Alive, owned: BTreeSet::new(), named: 0, end: None, retain: None, give_back: None }
    }
}

type RecordKey = (u32, Owner, Vec<u64>);

struct KeptRecord {
    record: Record,
    /// Of its owners, those that are not idle.
    open: usize,
    bytes: usize,
}

/// The size of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogSize {
    pub records: usize,
    /// Objects that it knows, ended ones that are still needed among them.
    pub objects: usize,
    /// Memory that it is charged with: contents, records, tables.
    pub bytes: usize,
}

/// The kept calls of one session.
pub struct Log {
    next: u64,
    /// By order of execution.
    records: BTreeMap<u64, KeptRecord>,
    objects: HashMap<u64, LoggedObject>,
    keys: HashMap<RecordKey, u64>,
    of_thread: HashMap<u32, BTreeSet<u64>>,
    ended: usize,
    /// Number of ended objects at which the log looks for circles.
    ended_limit: usize,
    store: Store,
    bytes: usize,
    /// Bytes that the log may be charged with.
    limit: usize,
    keeps: Keeps,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keeps {
    Calls,
    /// It has been larger than its limit.
    TooMuch,
    /// The session stays where it is: nothing will be made again.
    Nothing,
}

impl Log {
    /// `limit`: bytes. A log that would exceed it keeps nothing from then on.
    pub fn new(limit: usize) -> Log {
        Log {
            next: 0,
            records: BTreeMap::new(),
            objects: HashMap::new(),
            keys: HashMap::new(),
            of_thread: HashMap::new(),
            ended: 0,
            ended_limit: MIN_ENDED,
            store: Store::default(),
            bytes: 0,
            limit,
            keeps: Keeps::Calls,
        }
    }

    /// True: it has been larger than its limit, and knows nothing any longer.
    pub fn is_overflown(&self) -> bool {
        self.keeps == Keeps::TooMuch
    }

    /// Forgets all calls, and keeps none from now on.
    pub fn close(&mut self) {
        *self = Log { keeps: Keeps::Nothing, ..Log::new(self.limit) };
    }

    /// As if it were larger than its limit.
    pub fn overflow(&mut self) {
        *self = Log { keeps: Keeps::TooMuch, ..Log::new(self.limit) };
    }

    pub fn size(&self) -> LogSize {
        let objects = self.objects.len();
        LogSize { records: self.records.len(), objects, bytes: self.bytes + self.store.bytes() }
    }

    /// Keeps these bytes for a record that is about to be kept.
    pub fn content(&mut self, bytes: &[u8]) -> Content {
        if self.keeps == Keeps::Calls { self.store.add(bytes) } else { Content::Inline(Box::default()) }
    }

    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Keeps a call that makes or changes its owners. False: that was too much for the limit, for the first time.
    #[must_use]
    pub fn keep(&mut self, record: Record) -> bool {
        if self.keeps != Keeps::Calls {
            return true;
        }
        let replaced = match (record.effect, record.owners.as_slice()) {
            (Effect::Changes, [owner]) => self.keys.get(&(record.function, *owner, record.key.clone())).copied(),
            (Effect::Retains | Effect::GivesBack | Effect::Ends, [Owner::Object(id)]) => {
                return self.keep_of_life(*id, record);
            }
            _ => None,
        };
        let order = self.insert(record);
        // After the new one: an object that both name stays.
        replaced.into_iter().for_each(|order| self.remove(order));
        let Some(KeptRecord { record, open, .. }) = self.records.get(&order) else { return true };
        if *open == 0 {
            // All its owners have ended meanwhile.
            self.remove(order);
            return true;
        }
        if let (Effect::Changes, [owner]) = (record.effect, record.owners.as_slice()) {
            self.keys.insert((record.function, *owner, record.key.clone()), order);
        }
        self.within_limit()
    }

    /// A call that gave or took references of one object: the last one of each kind is enough.
    fn keep_of_life(&mut self, id: u64, record: Record) -> bool {
        // An object without records is none that could be made again.
        if !self.objects.contains_key(&id) {
            record.contents().for_each(|content| self.store.release(content));
            return true;
        }
        let effect = record.effect;
        let order = self.insert(record);
        let Some(object) = self.objects.get_mut(&id) else { return true };
        let place = match effect {
            Effect::Ends => &mut object.end,
            Effect::Retains => &mut object.retain,
            _ => &mut object.give_back,
        };
        if let Some(old) = place.replace(order) {
            self.remove(old);
        }
        self.within_limit()
    }

    fn insert(&mut self, record: Record) -> u64 {
        let order = self.next;
        self.next += 1;
        for id in &record.inputs {
            let object = self.objects.entry(*id).or_default();
            let was_idle = object.is_idle();
            object.named += 1;
            if was_idle {
                // The records that it owns have lost this owner already.
                let owned = object.owned.iter();
                owned.for_each(|order| self.records.get_mut(order).into_iter().for_each(|kept| kept.open += 1));
            }
        }
        let belongs = matches!(record.effect, Effect::Makes | Effect::Changes);
        let mut open = 0;
        for owner in &record.owners {
            match owner {
                Owner::Object(id) if belongs => {
                    let object = self.objects.entry(*id).or_default();
                    object.owned.insert(order);
                    open += usize::from(!object.is_idle());
                }
                Owner::Object(_) => {}
                Owner::Session => open += 1,
                Owner::Thread(lane) => {
                    self.of_thread.entry(*lane).or_default().insert(order);
                    open += 1;
                }
            }
        }
        let lists = record.owners.len() + record.key.len() + record.inputs.len() + record.outputs.len();
        let inline = record.contents().map(|content| if let Content::Inline(b) = content { b.len() } else { 0 });
        let bytes = RECORD_BYTES + 8 * lists + inline.sum::<usize>();
        self.bytes += bytes;
        self.records.insert(order, KeptRecord { record, open, bytes });
        order
    }

    fn within_limit(&mut self) -> bool {
        if self.size().bytes <= self.limit {
            return true;
        }
        self.overflow();
        false
    }

    /// The object has ended: its records go, and those of ended objects that only it needed. The call that ended it
    /// ([`Effect::Ends`]) is kept before, if there is one.
    pub fn object_ended(&mut self, id: u64) {
        let Some(object) = self.objects.get_mut(&id).filter(|object| object.life == Life::Alive) else { return };
        object.life = Life::Ended;
        self.ended += 1;
        self.settle(vec![id]);
        if self.ended >= self.ended_limit {
            self.collect();
            self.ended_limit = 2 * self.ended + MIN_ENDED;
        }
    }

    /// The lane has closed: its thread has no state any longer.
    pub fn thread_ended(&mut self, lane: u32) {
        for order in self.of_thread.remove(&lane).unwrap_or_default() {
            self.remove(order);
        }
    }

    /// These objects may have become idle: what only they hold goes.
    fn settle(&mut self, mut idle: Vec<u64>) {
        while let Some(id) = idle.pop() {
            let Some(object) = self.objects.get(&id).filter(|object| object.is_idle()) else { continue };
            let owned: Vec<u64> = object.owned.iter().copied().collect();
            if owned.is_empty() {
                idle.extend(self.drop_object(id));
                continue;
            }
            for order in owned {
                let Some(kept) = self.records.get_mut(&order) else { continue };
                kept.open = kept.open.saturating_sub(1);
                if kept.open == 0 {
                    idle.extend(self.take(order));
                }
            }
        }
    }

    fn remove(&mut self, order: u64) {
        let idle = self.take(order);
        self.settle(idle);
    }

    /// Answers the objects that became idle, or have nothing any longer.
    fn take(&mut self, order: u64) -> Vec<u64> {
        let Some(KeptRecord { record, bytes, .. }) = self.records.remove(&order) else { return Vec::new() };
        self.bytes -= bytes;
        record.contents().for_each(|content| self.store.release(content));
        if let [owner] = record.owners.as_slice() {
            let key = (record.function, *owner, record.key);
            if self.keys.get(&key) == Some(&order) {
                self.keys.remove(&key);
            }
        }
        let mut idle = Vec::new();
        for id in record.inputs {
            let Some(object) = self.objects.get_mut(&id) else { continue };
            object.named -= 1;
            if object.is_idle() {
                idle.push(id);
            }
        }
        for owner in record.owners {
            match owner {
                Owner::Object(id) => {
                    let Some(object) = self.objects.get_mut(&id) else { continue };
                    // An idle one with other records is held by those: it has been through `settle`.
                    if object.owned.remove(&order) && object.is_idle() && object.owned.is_empty() {
                        idle.push(id);
                    }
                }
                Owner::Thread(lane) => {
                    self.of_thread.get_mut(&lane).map(|orders| orders.remove(&order));
                }
                Owner::Session => {}
            }
        }
        idle
    }

    fn drop_object(&mut self, id: u64) -> Vec<u64> {
        let Some(object) = self.objects.remove(&id) else { return Vec::new() };
        self.ended -= 1;
        let of_life = [object.end, object.retain, object.give_back];
        of_life.into_iter().flatten().flat_map(|order| self.take(order)).collect()
    }

    /// Drops what no live object needs, also where ended objects name each other in a circle.
    pub fn collect(&mut self) {
        let mut needed: HashSet<u64> = HashSet::new();
        let mut records: HashSet<u64> = HashSet::new();
        let live = self.objects.iter().filter(|(_, object)| object.life == Life::Alive);
        let mut look: Vec<u64> = live.map(|(id, _)| *id).collect();
        for (order, kept) in &self.records {
            if kept.record.owners.iter().any(|owner| owner.object().is_none()) {
                records.insert(*order);
                look.extend(&kept.record.inputs);
            }
        }
        while let Some(id) = look.pop() {
            let Some(object) = self.objects.get(&id).filter(|_| needed.insert(id)) else { continue };
            let of_life = [object.end, object.retain, object.give_back];
            for order in object.owned.iter().copied().chain(of_life.into_iter().flatten()) {
                let Some(kept) = self.records.get(&order).filter(|_| records.insert(order)) else { continue };
                // An ended one that was made by the same call is made again with it, and has to be ended again.
                look.extend(
                    kept.record.inputs.iter().copied().chain(kept.record.owners.iter().filter_map(|o| o.object())),
                );
            }
        }
        let garbage: Vec<u64> = self.records.keys().filter(|order| !records.contains(order)).copied().collect();
        let idle: Vec<u64> = garbage.into_iter().flat_map(|order| self.take(order)).collect();
        self.settle(idle);
        let empty = |(id, object): (&u64, &LoggedObject)| (object.is_idle() && object.owned.is_empty()).then_some(*id);
        let empty: Vec<u64> = self.objects.iter().filter_map(empty).collect();
        self.settle(empty);
    }

    /// The kept calls, in the order in which they were made.
    pub fn records(&self) -> impl Iterator<Item = &Record> {
        self.records.values().map(|kept| &kept.record)
    }

    /// Those of the kept calls that are wanted, with what they need of the store.
    pub fn excerpt(&self, wanted: impl Fn(&Record) -> bool) -> (Vec<Record>, Store) {
        let records: Vec<Record> = self.records().filter(|record| wanted(record)).cloned().collect();
        let mut store = Store::default();
        for content in records.iter().flat_map(Record::contents) {
            self.store.bytes_of(content).into_iter().for_each(|bytes| _ = store.add(bytes));
        }
        (records, store)
    }

    /// True if a call is kept that makes this object.
    pub fn makes(&self, id: u64) -> bool {
        let Some(object) = self.objects.get(&id) else { return false };
        object.owned.iter().filter_map(|order| self.records.get(order)).any(|kept| kept.record.effect == Effect::Makes)
    }
}

#[cfg(test)]
#[path = "log_tests.rs"]
mod tests;
