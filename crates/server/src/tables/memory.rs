//! The memory that a session shares with its guest, as far as handlers need it.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use aviary_transport::{Arena, Reserve};

/// Where the arena is mapped here. All of it is the guest's: offsets are checked, contents are never believed.
pub struct SessionMemory {
    base: *mut u8,
    size: u64,
    /// Both sides see the same memory (not a mirrored copy).
    shared: bool,
    /// The arena itself, for its file.
    arena: Weak<Arena>,
    /// Opens the parts that calls name.
    reserve: Option<Arc<Reserve>>,
}

// SAFETY: the mapping belongs to the whole process and is never unmapped (see `new`).
unsafe impl Send for SessionMemory {}
// SAFETY: only addresses are computed here.
unsafe impl Sync for SessionMemory {}

impl SessionMemory {
    /// # Safety
    /// `size` bytes at `base` stay mapped until the process ends: vendor threads may use them longer than
    /// the session lives. They are readable and writable, except those of an arena that `of` names. The memory
    /// behind them must not shrink (seals).
    pub unsafe fn new(base: *mut u8, size: u64, shared: bool) -> SessionMemory {
        SessionMemory { base, size, shared, arena: Weak::new(), reserve: None }
    }

    /// With the file of this arena, which is the one that is mapped, and whose parts are opened as calls name them.
    pub fn of(self, arena: &Arc<Arena>) -> SessionMemory {
        SessionMemory { arena: Arc::downgrade(arena), reserve: Some(arena.reserve().clone()), ..self }
    }

    /// A copy of the arena's descriptor, and where these bytes lie in its file. `None`: they are not all there, or it has none.
    pub fn file_of(&self, pointer: *const u8, bytes: usize) -> Option<(OwnedFd, u64)> {
        let offset = self.shared_offset(pointer, bytes)?;
        let file = self.arena.upgrade()?.file()?.try_clone_to_owned().ok()?;
        Some((file, offset))
    }

    /// No arena at all.
    #[cfg(test)]
    pub fn none() -> SessionMemory {
        SessionMemory { base: std::ptr::null_mut(), size: 0, shared: false, arena: Weak::new(), reserve: None }
    }

    /// The address of a range that a guest named, opened; `None` unless all of it lies in the arena.
    pub fn range(&self, offset: u64, bytes: u64) -> Option<*mut u8> {
        let end = offset.checked_add(bytes)?;
        if end > self.size || self.base.is_null() {
            return None;
        }
        if let Some(reserve) = &self.reserve {
            reserve.open(offset as usize, bytes as usize).ok()?;
        }
        // SAFETY: `offset <= end <= size`: inside the mapping or one past its end.
        Some(unsafe { self.base.add(offset as usize) })
    }

    /// Where a vendor's pointer lies in memory that the guest sees too.
    pub fn shared_offset(&self, pointer: *const u8, bytes: usize) -> Option<u64> {
        if !self.shared {
            return None;
        }
        self.offset_of(pointer, bytes)
    }

    /// Where in the arena, shared or mirrored, `bytes` bytes at a pointer lie.
    pub fn offset_of(&self, pointer: *const u8, bytes: usize) -> Option<u64> {
        let offset = (pointer.addr() as u64).checked_sub(self.base.addr() as u64)?;
        let end = offset.checked_add(bytes as u64)?;
        (end <= self.size).then_some(offset)
    }

    /// True if a pointer lies in the arena.
    pub fn contains(&self, pointer: *const u8) -> bool {
        let offset = (pointer.addr() as u64).wrapping_sub(self.base.addr() as u64);
        !self.base.is_null() && offset < self.size
    }

    /// Publishes the last finished ticket in the arena's first word, which the guest only reads.
    pub fn show_finished(&self, ticket: u64) {
        let Some(word) = self.range(0, 8).filter(|_| self.shared) else { return };
        // SAFETY: page-aligned, mapped (see `new`), and used as an atomic by both sides; a guest that writes it
        // misleads itself only.
        unsafe { AtomicU64::from_ptr(word.cast()) }.fetch_max(ticket, Ordering::Release);
    }

    pub fn is_shared(&self) -> bool {
        self.shared
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn memory(block: &mut [u8]) -> SessionMemory {
        // SAFETY: the tests only compute addresses.
        unsafe { SessionMemory::new(block.as_mut_ptr(), block.len() as u64, true) }
    }

    proptest! {
        #[test]
        fn a_range_is_inside_or_refused(offset in prop_oneof![0u64..300, any::<u64>()], bytes in prop_oneof![0u64..300, any::<u64>()]) {
            let mut block = [0u8; 256];
            let inside = offset.checked_add(bytes).is_some_and(|end| end <= 256);
            let found = memory(&mut block).range(offset, bytes);
            prop_assert_eq!(found.is_some(), inside);
        }
    }

    #[test]
    fn offsets_lead_back() {
        let mut block = [0u8; 256];
        let memory = memory(&mut block);
        let pointer = memory.range(40, 8).unwrap();
        assert_eq!(memory.shared_offset(pointer, 216), Some(40));
        assert_eq!(memory.shared_offset(pointer, 217), None);
        assert_eq!(memory.shared_offset(pointer.wrapping_sub(41), 8), None);
        assert!(memory.contains(pointer) && !memory.contains(pointer.wrapping_add(216)));
        assert_eq!(SessionMemory::none().range(0, 0), None);
    }

    #[test]
    fn bytes_of_the_arena_are_found_in_its_file() {
        let arena = Arena::create(1 << 20).unwrap();
        let base = arena.pointer(0, 1 << 20).unwrap();
        // SAFETY: the arena is mapped as long as the test.
        let memory = unsafe { SessionMemory::new(base, 1 << 20, true) }.of(&arena);
        let (file, offset) = memory.file_of(base.wrapping_add(8192), 4096).unwrap();
        assert_eq!(offset, 8192);
        let inode = |file: std::os::fd::BorrowedFd<'_>| rustix::fs::fstat(file).unwrap().st_ino;
        assert_eq!(inode(std::os::fd::AsFd::as_fd(&file)), inode(arena.file().unwrap()));
        assert!(memory.file_of(base.wrapping_add(8192), 1 << 20).is_none());
        assert!(memory.file_of(base.wrapping_sub(1), 1).is_none());
        // SAFETY: as above.
        let mirrored = unsafe { SessionMemory::new(base, 1 << 20, false) }.of(&arena);
        assert!(mirrored.file_of(base, 4096).is_none());
        let memory = memory.of(&Arena::mirror(1 << 20).unwrap());
        assert!(memory.file_of(base, 4096).is_none());
    }
}
