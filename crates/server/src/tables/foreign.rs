//! Memory in this process that the guest names by an id.
//!
//! | kind | who gives it out | when it ends |
//! |---|---|---|
//! | lent | a call that hands memory out (`freed_by`) | a call of a function of its group frees it |
//! | resident | a call that answers an object's memory (`resident`) | with that object, or when the library has other memory at the address |
//! | mapped | a call that maps memory (`mapped_*`) outside the arena | a call unmaps it |
//! | state | a call that makes a struct's library part (`state`), or uses a copy of the struct | a call ends it, or the guest reports that the struct has ended and nothing can name a copy any more |
//!
//! All kinds have one space of ids, from 1, and an id is given out once. A call that ends memory marks it first, so that a
//! second call which would end it finds nothing; the memory is removed once the library has ended it, and the mark is removed
//! if the library has refused. Content that is still to be copied is not read from marked memory. A state is marked while only
//! copies of its struct may still name it.
//!
//! Where the session moves, the calls that gave memory out are repeated, and the new memory gets the id of the old. Ids above
//! all that are in use are then given out a second time: the guest has forgotten them.
//!
//! A hostile guest may name any id: one that was never given out, one that has ended, one of another kind, group or owner,
//! one that another call is ending. It finds nothing: the library never gets an address that the id's own kind does not allow
//! for this use. How many ids a session has is bounded for each kind.

mod kind;
pub(crate) mod logged;
#[cfg(test)]
mod model_tests;
mod states;

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::api::Poll;
use crate::tables::states::{State, StateBudget, lock};
use kind::Kind;
use logged::{Logged, MemoryAgain};

/// Whether memory may be read. A copy holds it, so that whoever ends the memory waits for the copy.
#[derive(Debug, Clone)]
pub struct Readable(Arc<Mutex<bool>>);

impl Default for Readable {
    fn default() -> Readable {
        Readable(Arc::new(Mutex::new(true)))
    }
}

impl Readable {
    /// Copies unless the memory has ended or is about to.
    pub fn copy_if_readable(&self, copy: impl FnOnce()) {
        let readable = lock(&self.0);
        if *readable {
            copy();
        }
    }

    pub(crate) fn set(&self, readable: bool) {
        *lock(&self.0) = readable;
    }
}

/// One piece.
#[derive(Clone)]
pub(crate) struct ForeignMemory {
    kind: Kind,
    pub address: usize,
    /// 0 for lent memory and states, of which the guest fetches nothing.
    pub bytes: usize,
    /// Of memory that the guest fetches.
    pub readable: Option<Readable>,
    /// Content of mapped memory is valid once this says so.
    pub ready: Option<(u64, Poll)>,
    /// A call is about to end it, or its struct has ended.
    pub ending: bool,
    pub state: Option<Arc<State>>,
}

impl ForeignMemory {
    fn new(kind: Kind, address: usize, bytes: usize) -> ForeignMemory {
        let readable = matches!(kind, Kind::Resident { .. } | Kind::Mapped).then(Readable::default);
        ForeignMemory { kind, address, bytes, readable, ready: None, ending: false, state: None }
    }

    pub fn pointer(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.address)
    }

    fn stop_reading(&self) {
        self.readable.iter().for_each(|readable| readable.set(false));
    }
}

/// An object's memory that the library named, once it is in the table.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Entered {
    /// The guest knows it already, by this id.
    Known(u64),
    /// By `id` from now on. `replaced`: the id of other memory that was at the address.
    New { id: u64, replaced: Option<u64> },
}

#[derive(Default)]
pub(crate) struct Table {
    last_id: u64,
    pub by_id: HashMap<u64, ForeignMemory>,
    /// Ids of resident memory, by the owner's id.
    by_owner: HashMap<u64, Vec<u64>>,
    /// Pieces, by the number of [`Kind::bound`].
    counts: [usize; 3],
    /// States whose struct has ended, and their bytes; the oldest first.
    pub retired_states: VecDeque<(u64, usize)>,
}

/// The foreign memory of a session.
#[derive(Default)]
pub struct ForeignTable {
    table: Mutex<Table>,
    /// Mappings that lie in the arena, which need no entry. A guest that unmaps more than it has mapped only deceives
    /// itself about when it can be moved.
    in_arena: AtomicI64,
    pub(crate) states: StateBudget,
}

impl Table {
    /// Enters memory with the next id, or with the one that it had before the session moved. `None`: there is too much, or
    /// that id is in use.
    pub fn enter(&mut self, memory: ForeignMemory, again: Option<&mut MemoryAgain>) -> Option<u64> {
        let id = match again {
            None => self.last_id + 1,
            Some(again) => again.next(memory.kind)?,
        };
        if self.is_full(memory.kind) {
            return None;
        }
        let kind = memory.kind;
        let Entry::Vacant(place) = self.by_id.entry(id) else { return None };
        place.insert(memory);
        self.last_id = self.last_id.max(id);
        self.counts[kind.bound().0] += 1;
        if let Kind::Resident { owner } = kind {
            self.by_owner.entry(owner).or_default().push(id);
        }
        Some(id)
    }

    pub fn remove(&mut self, id: u64) -> Option<ForeignMemory> {
        let memory = self.by_id.remove(&id)?;
        self.counts[memory.kind.bound().0] -= 1;
        Some(memory)
    }

    pub fn is_full(&self, kind: Kind) -> bool {
        let (count, most) = kind.bound();
        self.counts[count] >= most
    }

    /// The id of an owner's memory at an address, and its place in the owner's list.
    fn resident_at(&self, owner: u64, address: usize) -> Option<(usize, u64)> {
        let ids = self.by_owner.get(&owner)?;
        let at = ids.iter().position(|id| self.by_id.get(id).is_some_and(|memory| memory.address == address))?;
        Some((at, ids[at]))
    }
}

impl ForeignTable {
    pub(crate) fn table(&self) -> MutexGuard<'_, Table> {
        lock(&self.table)
    }

    /// Memory that the application frees. `again`: the call is repeated.
    pub(crate) fn lend(&self, address: usize, group: u32, again: Option<&mut MemoryAgain>) -> Option<u64> {
        self.table().enter(ForeignMemory::new(Kind::Lent { group }, address, 0), again)
    }

    /// Memory that the application maps. `ready`: its content is valid once that says so.
    pub(crate) fn map(&self, pointer: *mut u8, bytes: usize, ready: Option<(u64, Poll)>) -> Option<u64> {
        let memory = ForeignMemory::new(Kind::Mapped, pointer.expose_provenance(), bytes);
        self.table().enter(ForeignMemory { ready, ..memory }, None)
    }

    /// Memory of the object `owner`. `again`: the call is repeated.
    pub(crate) fn reside(
        &self,
        owner: u64,
        (address, bytes): (usize, usize),
        again: Option<&mut MemoryAgain>,
    ) -> Option<Entered> {
        let mut table = self.table();
        let known = table.resident_at(owner, address);
        if let Some((_, id)) = known.filter(|(_, id)| table.by_id[id].bytes == bytes) {
            return Some(Entered::Known(id));
        }
        // The library has other memory there now.
        let replaced = known.map(|(at, id)| {
            table.by_owner.get_mut(&owner).into_iter().for_each(|ids| _ = ids.swap_remove(at));
            table.remove(id).iter().for_each(ForeignMemory::stop_reading);
            id
        });
        let id = table.enter(ForeignMemory::new(Kind::Resident { owner }, address, bytes), again)?;
        Some(Entered::New { id, replaced })
    }

    /// Address and size of an object's memory.
    pub(crate) fn resident(&self, owner: u64, id: u64) -> Option<(usize, usize)> {
        let table = self.table();
        let memory = table.by_id.get(&id).filter(|memory| memory.kind == Kind::Resident { owner })?;
        Some((memory.address, memory.bytes))
    }

    /// Memory whose content the guest may fetch.
    pub(crate) fn readable(&self, id: u64) -> Option<ForeignMemory> {
        self.table().by_id.get(&id).filter(|memory| memory.readable.is_some()).cloned()
    }

    /// Takes what has to be asked before mapped memory is read: it is asked until it says yes, by one asker only.
    pub(crate) fn take_ready(&self, id: u64) -> Option<(u64, Poll)> {
        self.table().by_id.get_mut(&id)?.ready.take()
    }

    /// The address of lent memory that a function of these groups is about to free.
    pub(crate) fn begin_freeing(&self, id: u64, groups: &[u32]) -> Option<usize> {
        let is_freed = |kind| matches!(kind, Kind::Lent { group } if groups.contains(&group));
        self.begin_ending(id, is_freed).map(|memory| memory.address)
    }

    /// Memory that a call is about to unmap: nothing reads it from now on.
    pub(crate) fn begin_unmapping(&self, id: u64) -> Option<ForeignMemory> {
        let memory = self.begin_ending(id, |kind| kind == Kind::Mapped)?;
        // A copy that is under way ends first.
        memory.stop_reading();
        Some(memory)
    }

    fn begin_ending(&self, id: u64, may_end: impl FnOnce(Kind) -> bool) -> Option<ForeignMemory> {
        let mut table = self.table();
        let memory = table.by_id.get_mut(&id).filter(|memory| !memory.ending && may_end(memory.kind))?;
        memory.ending = true;
        Some(memory.clone())
    }

    /// The library has refused to end the memory.
    pub(crate) fn keep(&self, id: u64) {
        if let Some(memory) = self.table().by_id.get_mut(&id) {
            memory.readable.iter().for_each(|readable| readable.set(true));
            memory.ending = false;
        }
    }

    /// The library has ended the memory.
    pub(crate) fn end(&self, id: u64) -> Option<ForeignMemory> {
        self.table().remove(id)
    }

    /// The object has ended, and its memory with it. Returns the ids of that.
    pub(crate) fn owner_ended(&self, owner: u64) -> Vec<u64> {
        let mut table = self.table();
        let ids = table.by_owner.remove(&owner).unwrap_or_default();
        let ended: Vec<ForeignMemory> = ids.iter().filter_map(|id| table.remove(*id)).collect();
        drop(table);
        // A copy that is under way ends first.
        ended.iter().for_each(ForeignMemory::stop_reading);
        ids
    }

    /// So many more mappings lie in the arena.
    pub(crate) fn in_arena(&self, more: i64) {
        self.in_arena.fetch_add(more, Ordering::Relaxed);
    }

    /// Why the session cannot move with this memory. `recreates`: the log has the call that gives out what this word is for.
    pub(crate) fn stays(&self, recreates: impl Fn(u64) -> bool) -> Option<&'static str> {
        let table = self.table();
        let is_recreated = |id, kind| Logged::of(kind).and_then(|kind| kind.word(id)).is_some_and(&recreates);
        let stay = table.by_id.iter().filter_map(|(id, memory)| match memory.kind {
            kind if is_recreated(*id, kind) => None,
            Kind::Lent { .. } => Some("the application has memory of the library's to free"),
            Kind::State { .. } if memory.ending => None,
            Kind::State { .. } => Some("the library's part of structs of the application lies in this process"),
            Kind::Mapped => Some(MAPPED),
            Kind::Resident { .. } => Some("the application uses memory of the library's"),
        });
        let mapped = self.in_arena.load(Ordering::Relaxed) > 0;
        // The same reason in whatever order the table has its memory.
        stay.chain(mapped.then_some(MAPPED)).min()
    }

    /// How many pieces there are: lent ones, mapped and resident ones, and states.
    #[cfg(test)]
    pub(crate) fn counts(&self) -> [usize; 3] {
        self.table().counts
    }
}

const MAPPED: &str = "memory of the library is mapped";
