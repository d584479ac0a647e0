//! Requests with memory that is bound to objects.

use std::collections::HashMap;

use aviary_wire::SAME_OBJECT;

use super::Call;
use crate::lane::frame::End;
use crate::memory::outputs::OutputSource;
use crate::memory::overlaps::Place;

impl Call {
    /// Writes memory of the application that the library uses as long as an object that the call makes. Returns what
    /// [`Reply::bind`] is told after the call has succeeded.
    ///
    /// # Safety
    /// `p` is NULL or `n` bytes at it can be read and written as long as that object is used.
    pub unsafe fn bound(&mut self, p: *mut u8, n: usize) -> u64 {
        if p.is_null() {
            self.null();
            return 0;
        }
        if let Some(union) = self.joins(p, n, None, Place::Arena) {
            // SAFETY: the caller's promise, for each argument.
            return match unsafe { self.part(union, p, n) } {
                OutputSource::Block(offset) => offset,
                _ => 0,
            };
        }
        if let Some(offset) = self.shared(p, n) {
            self.arena(offset, n);
            return 0;
        }
        self.connection().free_retired();
        let Some(block) = self.block(n) else { return 0 };
        // SAFETY: the caller's promise.
        unsafe { self.copy_in(p, n, block) };
        self.arena(block.offset, n);
        block.offset
    }

    /// Writes what is bound to the object that the request has just named. `writes`: the call may change it.
    pub fn uses(&mut self, value: u64, writes: bool) {
        let mut groups = self.connection().objects.bound.used(value);
        let mut kept = HashMap::new();
        for memory in groups.iter().flat_map(|used| &used.memory) {
            let from = memory.to as *const u8;
            if memory.resident == 0 && writes {
                // SAFETY: the application has promised the memory to the library as long as the object is used.
                let at = unsafe { self.copy_in_and_keep(from, memory.bytes, memory.block, None) };
                kept.extend(at.map(|at| (memory.block.offset, at)));
            } else if memory.resident == 0 {
                // SAFETY: as above.
                unsafe { self.copy_in(from, memory.bytes, memory.block) };
            } else {
                self.block_changed(memory.block.offset, memory.bytes);
            }
        }
        if !writes {
            // Memory that is only read is in its block; resident memory has to be put into the library's.
            groups.iter_mut().for_each(|used| used.memory.retain(|memory| memory.resident != 0));
            groups.retain(|used| !used.memory.is_empty());
        }
        self.word(groups.len() as u64);
        for used in groups {
            match used.value {
                0 => self.word(SAME_OBJECT),
                value => {
                    self.word(u64::from(used.ty));
                    self.handle(used.ty, value);
                }
            }
            self.word(used.memory.len() as u64);
            for memory in used.memory {
                self.word(memory.resident);
                self.arena(memory.block.offset, memory.bytes);
                if memory.resident == 0 && writes {
                    let (to, offset) = (memory.to as *mut u8, memory.block.offset);
                    let before = kept.get(&offset).copied();
                    self.ends(End::Shadow { to, bytes: memory.bytes, offset, before, end: false });
                }
            }
        }
    }
}
