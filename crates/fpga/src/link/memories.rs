//! Memories of a client, from which it maps parts: each is known to the card once, however many parts there are.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use aviary_card::{ClientMemory, ClientMemoryError, Rights};
use rustix::io::Errno;

/// The memories, by the numbers that the client has given them.
#[derive(Debug, Default)]
pub struct Memories {
    by_id: BTreeMap<u64, Arc<ClientMemory>>,
}

impl Memories {
    /// Makes the first `length` bytes of a file known. `most`: memories at the same time.
    ///
    /// # Errors
    /// EXIST: the number is taken. MFILE: there are `most` already. BADF: no file came, or not a memfd of ordinary pages that is
    /// sealed against shrinking and has so many. NOMEM: this process cannot map it.
    pub fn add(
        &mut self,
        id: u64,
        file: Option<OwnedFd>,
        length: u64,
        rights: Rights,
        most: usize,
    ) -> Result<(), Errno> {
        let file = file.ok_or(Errno::BADF)?;
        if self.by_id.contains_key(&id) {
            return Err(Errno::EXIST);
        }
        if self.by_id.len() >= most {
            return Err(Errno::MFILE);
        }
        let memory = ClientMemory::map(File::from(file), 0, length, rights).map_err(|error| match error {
            ClientMemoryError::Unsealed | ClientMemoryError::Range { .. } => Errno::BADF,
            ClientMemoryError::Map(_) => Errno::NOMEM,
        })?;
        self.by_id.insert(id, Arc::new(memory));
        Ok(())
    }

    pub fn get(&self, id: u64) -> Option<&Arc<ClientMemory>> {
        self.by_id.get(&id)
    }

    /// Lets the card forget one.
    ///
    /// # Errors
    /// NOENT: there is none of this number. BUSY: parts of it are mapped; a memory that stayed for them would not count any more.
    pub fn forget(&mut self, id: u64) -> Result<(), Errno> {
        let memory = self.by_id.get(&id).ok_or(Errno::NOENT)?;
        if Arc::strong_count(memory) > 1 {
            return Err(Errno::BUSY);
        }
        self.by_id.remove(&id);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

    fn file(seals: SealFlags) -> Option<OwnedFd> {
        let file = memfd_create("memory", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 8192).unwrap();
        fcntl_add_seals(&file, seals).unwrap();
        Some(file)
    }

    #[test]
    fn numbers_are_the_clients_and_their_count_is_bounded() {
        let mut memories = Memories::default();
        let add = |memories: &mut Memories, id, file, length| memories.add(id, file, length, Rights::ReadWrite, 2);
        assert_eq!(add(&mut memories, 7, file(SealFlags::SHRINK), 8192), Ok(()));
        assert_eq!(add(&mut memories, 7, file(SealFlags::SHRINK), 8192), Err(Errno::EXIST));
        assert_eq!(add(&mut memories, 8, file(SealFlags::GROW), 8192), Err(Errno::BADF));
        assert_eq!(add(&mut memories, 8, file(SealFlags::SHRINK), 12288), Err(Errno::BADF));
        assert_eq!(add(&mut memories, 8, None, 8192), Err(Errno::BADF));
        assert_eq!(add(&mut memories, 8, file(SealFlags::SHRINK), 4096), Ok(()));
        assert_eq!(add(&mut memories, 9, file(SealFlags::SHRINK), 4096), Err(Errno::MFILE));
        assert_eq!(memories.forget(9), Err(Errno::NOENT));
        assert_eq!(memories.forget(7), Ok(()));
        assert_eq!(add(&mut memories, 9, file(SealFlags::SHRINK), 4096), Ok(()));
    }

    #[test]
    fn memory_of_which_parts_are_mapped_stays() {
        let mut memories = Memories::default();
        memories.add(0, file(SealFlags::SHRINK), 8192, Rights::Read, 2).unwrap();
        let part = Arc::clone(memories.get(0).unwrap());
        assert_eq!(memories.forget(0), Err(Errno::BUSY));
        drop(part);
        assert_eq!(memories.forget(0), Ok(()));
        assert!(memories.get(0).is_none());
    }
}
