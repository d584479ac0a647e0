//! Functions of the application that the server may call.

use std::collections::{HashMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::connection::incoming::{CallbackTarget, Given};
use crate::descriptor::Lost;
use crate::handles::Handles;

/// The call that registered a callback.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Registration {
    /// It has not returned: the application cannot rely on the callback yet.
    Underway,
    /// It has succeeded.
    Done,
}

#[derive(Clone, Copy)]
pub(crate) struct CallbackEntry {
    pub target: CallbackTarget,
    once: bool,
    registration: Registration,
    /// The application's value of the handle that it hands back; 0: none.
    pub handed: u64,
    /// Arguments of the call that registered it, which it is given again.
    pub given: Given,
    /// That handle, if it stays valid until the callback has run; 0: none.
    pub keeps: u64,
}

/// The callback thread.
#[derive(Default)]
enum Serving {
    #[default]
    NotStarted,
    Running,
    /// The API server is gone. The ids of callbacks that are called at most once, and that the thread still has to call.
    Lost(VecDeque<u64>),
}

#[derive(Default)]
struct CallbackTable {
    last: u64,
    by_id: HashMap<u64, CallbackEntry>,
    /// Ids of callbacks that live as long as the session: a callback that is registered repeatedly
    /// keeps one id.
    lasting: HashMap<CallbackTarget, u64>,
    serving: Serving,
}

impl CallbackTable {
    /// A callback; one that is called at most once is removed.
    fn resolve(&mut self, id: u64) -> Option<CallbackEntry> {
        let entry = *self.by_id.get(&id)?;
        if entry.once {
            self.by_id.remove(&id);
        }
        Some(entry)
    }
}

#[derive(Default)]
pub(crate) struct Callbacks {
    table: Mutex<CallbackTable>,
    /// A callback has to be called because the API server is gone.
    owed: Condvar,
}

impl Callbacks {
    fn table(&self) -> MutexGuard<'_, CallbackTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The API server is gone, and will call none of them: the callback thread does, in the order in which they were
    /// registered. Those whose registration has not succeeded yet follow if it does.
    pub fn lose(&self) {
        let mut table = self.table();
        let pending = |(id, entry): (&u64, &CallbackEntry)| {
            (entry.once && entry.registration == Registration::Done).then_some(*id)
        };
        let mut ids: Vec<u64> = table.by_id.iter().filter_map(pending).collect();
        ids.sort_unstable();
        table.serving = Serving::Lost(ids.into());
    }

    /// Waits for a callback that is pending although the API server is gone, and removes it.
    pub fn next_lost(&self) -> CallbackEntry {
        let mut table = self.table();
        loop {
            // An answer that had arrived may have been faster.
            if let Serving::Lost(owed) = &mut table.serving
                && let Some(id) = owed.pop_front()
            {
                match table.resolve(id) {
                    Some(entry) => return entry,
                    None => continue,
                }
            }
            table = self.owed.wait(table).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A callback that the server calls; one that is called at most once is removed.
    pub fn resolve(&self, id: u64) -> Option<CallbackEntry> {
        self.table().resolve(id)
    }

    /// The id of a callback. The first one starts the thread that serves callbacks of vendor threads, by `start`.
    pub fn register(
        &self,
        target: CallbackTarget,
        once: bool,
        start: impl FnOnce() -> Result<(), Lost>,
    ) -> Result<u64, Lost> {
        let mut table = self.table();
        if let Serving::NotStarted = table.serving {
            start()?;
            table.serving = Serving::Running;
        }
        if !once && let Some(id) = table.lasting.get(&target) {
            return Ok(*id);
        }
        table.last += 1;
        let id = table.last;
        let registration = Registration::Underway;
        table
            .by_id
            .insert(id, CallbackEntry { target, once, registration, handed: 0, given: Given::default(), keeps: 0 });
        if !once {
            table.lasting.insert(target, id);
        }
        Ok(id)
    }

    /// Notes the handle that the callback hands back, which stays valid until it has run or is forgotten.
    pub fn keep_for(&self, id: u64, value: u64, handles: &Handles) {
        if let Some(entry) = self.table().by_id.get_mut(&id)
            && entry.once
            && entry.handed == 0
        {
            entry.handed = value;
            if handles.is_handle(value) {
                handles.retain(value);
                entry.keeps = value;
            }
        }
    }

    /// Notes what a callback that is called at most once is given.
    pub fn give(&self, id: u64, values: &[u64]) {
        if let Some(entry) = self.table().by_id.get_mut(&id)
            && entry.once
        {
            entry.given.iter_mut().zip(values).for_each(|(given, value)| *given = *value);
        }
    }

    /// The call that registered a callback, called at most once, has succeeded.
    pub fn confirm(&self, id: u64) {
        let mut table = self.table();
        let Some(entry) = table.by_id.get_mut(&id) else { return };
        entry.registration = Registration::Done;
        if let Serving::Lost(owed) = &mut table.serving {
            owed.push_back(id);
            self.owed.notify_one();
        }
    }

    /// Removes a callback that will not be called. Returns the handle that it kept valid, which the caller releases; 0: none.
    pub fn forget(&self, id: u64) -> u64 {
        self.table().by_id.remove(&id).map_or(0, |entry| entry.keeps)
    }
}
