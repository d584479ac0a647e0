//! One descriptor chain: bytes from the driver, room for bytes to it. Nothing in it is believed twice.

use std::ops::Deref;

use thiserror::Error;
use virtio_queue::DescriptorChain;
use vm_memory::{Bytes, GuestAddress, GuestMemory, GuestMemoryMmap, Permissions};

/// Descriptors of one chain; indirect tables could have more.
const MOST_DESCRIPTORS: usize = 2048;

/// Why a chain is given back unread.
#[derive(Debug, Error, Clone, Copy, PartialEq, Eq)]
pub enum ChainError {
    /// a chain has no end
    #[error("a chain has no end")]
    Endless,
    /// a buffer at {0:#x} is not in the VM's memory
    #[error("a buffer at {0:#x} is not in the VM's memory")]
    Outside(u64),
    /// a buffer has room for {0} bytes instead of {1}
    #[error("a buffer has room for {0} bytes instead of {1}")]
    Room(usize, usize),
}

/// Where the driver has room for bytes, in the VM's memory.
#[derive(Debug, Default)]
pub struct Room {
    parts: Vec<(GuestAddress, usize)>,
    size: usize,
}

impl Room {
    pub fn size(&self) -> usize {
        self.size
    }

    /// Answers how many bytes there was room for. The memory may have been taken away since the chain was read.
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
    /// What the driver wrote; longer than asked for if there was more.
    pub bytes: Vec<u8>,
    pub room: Room,
}

impl Parcel {
    /// Copies at most one byte more than `most`.
    pub fn take<M>(chain: DescriptorChain<M>, memory: &GuestMemoryMmap, most: usize) -> Result<Self, ChainError>
    where
        M: Deref,
        M::Target: GuestMemory,
    {
        let (mut bytes, mut room, mut goes_on) = (Vec::new(), Room::default(), true);
        // The iterator stops silently at what it does not understand: then the last descriptor names another one.
        for descriptor in chain.take(MOST_DESCRIPTORS) {
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
