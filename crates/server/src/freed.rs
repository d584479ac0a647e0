//! Memory of the vendor's library that the guest's application frees.
//!
//! The guest has a copy and the id of the original. An id is used once: a second call that frees the same memory, and an
//! id that was never given out, are refused here and never reach the library.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::api::Reject;
use crate::call::Call;
use crate::config::MAX_FREED;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LentMemory {
    address: usize,
    /// The functions that free it, by number in the specification.
    group: u32,
}

#[derive(Default)]
struct LentTable {
    last_id: u64,
    lent: HashMap<u64, LentMemory>,
}

/// Memory that a session's application may free.
#[derive(Default)]
pub struct FreedMemory {
    table: Mutex<LentTable>,
}

/// Memory that a call is about to free.
pub(crate) struct Freeing {
    id: u64,
    memory: LentMemory,
}

impl FreedMemory {
    fn table(&self) -> MutexGuard<'_, LentTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None`: the application holds too much.
    fn lend(&self, address: usize, group: u32) -> Option<u64> {
        let mut table = self.table();
        if table.lent.len() >= MAX_FREED {
            return None;
        }
        table.last_id += 1;
        let id = table.last_id;
        table.lent.insert(id, LentMemory { address, group });
        Some(id)
    }

    fn take(&self, id: u64, groups: &[u32]) -> Option<Freeing> {
        let mut table = self.table();
        let memory = *table.lent.get(&id).filter(|memory| groups.contains(&memory.group))?;
        table.lent.remove(&id);
        Some(Freeing { id, memory })
    }

    fn put_back(&self, freeing: Freeing) {
        self.table().lent.insert(freeing.id, freeing.memory);
    }

    /// True if the application has something to free.
    pub fn any(&self) -> bool {
        !self.table().lent.is_empty()
    }
}

impl Call {
    /// Behind the content of memory that the library has handed out: the id under which the guest frees it, 0 if it
    /// will not. Nothing is said of NULL.
    pub fn reply_freed(&mut self, address: usize, group: u32, success: bool) {
        if address == 0 {
            return;
        }
        let id = success.then(|| self.session.freed.lend(address, group)).flatten();
        if id.is_none() && success {
            self.session.note(&format!("{}: the application frees too little of what it gets", self.function_name()));
        }
        self.reply_word(id.unwrap_or(0));
    }

    /// The library's memory that the call frees, or NULL.
    pub fn frees(&mut self, groups: &[u32]) -> Result<usize, Reject> {
        let id = self.word()?;
        if id == 0 {
            return Ok(0);
        }
        let freeing = self.session.freed.take(id, groups).ok_or(Reject::Refused)?;
        let address = freeing.memory.address;
        self.freeing.push(freeing);
        Ok(address)
    }

    /// The vendor's function has returned: the memory is gone if it succeeded. What a call frees that is rejected before
    /// stays allocated, and nobody can free it any more.
    pub fn end_freeing(&mut self, success: bool) {
        for freeing in std::mem::take(&mut self.freeing) {
            if !success {
                self.session.freed.put_back(freeing);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_freed_once() {
        let freed = FreedMemory::default();
        let id = freed.lend(0x1000, 3).unwrap();
        assert!(freed.take(id, &[2]).is_none(), "another function's");
        assert!(freed.take(id + 1, &[3]).is_none(), "never given out");
        let freeing = freed.take(id, &[2, 3]).unwrap();
        assert_eq!(freeing.memory.address, 0x1000);
        assert!(freed.take(id, &[3]).is_none(), "at the same time");
        freed.put_back(freeing);
        assert!(freed.any());
        assert!(freed.take(id, &[3]).is_some(), "the library had refused");
        assert!(!freed.any());
        assert!(freed.lend(0x1000, 3).unwrap() > id, "the same address again");
    }
}
