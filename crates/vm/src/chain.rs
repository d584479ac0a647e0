//! One descriptor chain: bytes from the driver, room for bytes to it. Each value is read once and
//! then checked.

use std::ops::Deref;

use thiserror::Error;
use virtio_queue::DescriptorChain;
use vm_memory::{Bytes, GuestAddress, GuestMemory, GuestMemoryMmap, Permissions};

/// Bound of the descriptors of one chain; indirect tables could hold more.
const MAX_DESCRIPTORS: usize = 2048;

/// The reason why a chain is returned unread.
#[derive(Debug, Error, displaydoc::Display, Clone, Copy, PartialEq, Eq)]
pub enum ChainError {
    /// the guest's driver sent a descriptor chain without an end; it is returned unread
    Endless,
    /// the guest's driver sent a buffer at {0:#x}, which is not in the VM's memory; it is returned unread
    Outside(u64),
    /// the guest's driver sent a buffer with room for {0} bytes instead of {1}; it is returned unread
    Room(usize, usize),
}

/// The driver's buffers for an answer, in the VM's memory.
#[derive(Debug, Default)]
pub struct Room {
    parts: Vec<(GuestAddress, usize)>,
    size: usize,
}

impl Room {
    pub fn size(&self) -> usize {
        self.size
    }

    /// Writes as many bytes as fit and returns their number. The memory may have been removed since
    /// the chain was read.
    pub fn write(&self, memory: &GuestMemoryMmap, mut bytes: &[u8]) -> Result<u32, ChainError> {
        let mut written = 0;
        for (address, length) in &self.parts {
            let (now, rest) = bytes.split_at(bytes.len().min(*length));
            memory.write_slice(now, *address).map_err(|_| ChainError::Outside(address.0))?;
            written += now.len() as u32;
            bytes = rest;
        }
        Ok(written)
    }
}

#[derive(Debug)]
pub struct Parcel {
    /// The driver's bytes; one more than the limit if there were more.
    pub bytes: Vec<u8>,
    pub room: Room,
}

impl Parcel {
    /// Reads a chain; copies at most one byte more than `most`.
    pub fn take<M>(chain: DescriptorChain<M>, memory: &GuestMemoryMmap, most: usize) -> Result<Self, ChainError>
    where
        M: Deref,
        M::Target: GuestMemory,
    {
        let (mut bytes, mut room, mut goes_on) = (Vec::new(), Room::default(), true);
        // The iterator stops silently at a malformed descriptor: the last descriptor then names a
        // successor.
        for descriptor in chain.take(MAX_DESCRIPTORS) {
            let (address, length) = (descriptor.addr(), descriptor.len() as usize);
            let access = if descriptor.is_write_only() { Permissions::Write } else { Permissions::Read };
            if length > 0 && !memory.check_range(address, length, access) {
                return Err(ChainError::Outside(address.0));
            }
            if descriptor.is_write_only() {
                room.parts.push((address, length));
                room.size = room.size.saturating_add(length);
            } else {
                let (start, wanted) = (bytes.len(), length.min(most + 1 - bytes.len()));
                bytes.resize(start + wanted, 0);
                memory.read_slice(&mut bytes[start..], address).map_err(|_| ChainError::Outside(address.0))?;
            }
            goes_on = descriptor.has_next();
        }
        if goes_on { Err(ChainError::Endless) } else { Ok(Parcel { bytes, room }) }
    }

    pub fn with_room(self, least: usize) -> Result<Self, ChainError> {
        if self.room.size < least { Err(ChainError::Room(self.room.size, least)) } else { Ok(self) }
    }
}
