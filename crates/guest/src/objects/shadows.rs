//! Shadow buffers: shared blocks that stand for the application's buffers beyond one call, found by
//! address.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::memory::block::Block;
use crate::memory::blocks::Blocks;

struct Shadow {
    block: Block,
    bytes: usize,
    /// The content of the application's buffer that was copied to the block, where that is copied back.
    before: Option<Arc<[u8]>>,
    /// Handle values; the shadow ends with the last of them.
    owners: Vec<u64>,
    /// Smaller predecessors that calls in flight may still use.
    outgrown: Vec<Block>,
}

#[derive(Default)]
pub(crate) struct Shadows {
    by_address: Mutex<HashMap<usize, Shadow>>,
}

impl Shadows {
    fn all(&self) -> MutexGuard<'_, HashMap<usize, Shadow>> {
        self.by_address.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The shadow of `p` with room for `bytes` bytes, and true if it is new; `None`: no memory is
    /// left.
    pub fn obtain(&self, blocks: &Blocks, p: *mut u8, bytes: usize) -> Option<(Block, bool)> {
        let mut all = self.all();
        if let Some(shadow) = all.get_mut(&(p as usize)) {
            if shadow.block.size < bytes as u64 {
                let larger = blocks.allocate(bytes)?;
                shadow.before = None;
                shadow.outgrown.push(std::mem::replace(&mut shadow.block, larger));
            }
            shadow.bytes = shadow.bytes.max(bytes);
            return Some((shadow.block, false));
        }
        let block = blocks.allocate(bytes)?;
        all.insert(p as usize, Shadow { block, bytes, before: None, owners: Vec::new(), outgrown: Vec::new() });
        Some((block, true))
    }

    /// The shadow of `p`, and its used bytes.
    pub fn find(&self, p: *mut u8) -> Option<(Block, usize)> {
        self.all().get(&(p as usize)).map(|s| (s.block, s.bytes))
    }

    /// The content that the shadow of `p` was given, `bytes` bytes at least.
    pub fn before(&self, p: *mut u8, bytes: usize) -> Option<Arc<[u8]>> {
        self.all().get(&(p as usize))?.before.clone().filter(|before| before.len() >= bytes)
    }

    /// The application's buffer and the shadow of `p` have this content now.
    pub fn note(&self, p: *mut u8, content: Vec<u8>) {
        if let Some(shadow) = self.all().get_mut(&(p as usize)) {
            shadow.before = Some(content.into());
        }
    }

    /// Makes the shadow of `p` end with the handle `value`.
    pub fn couple(&self, p: *mut u8, value: u64) {
        if let Some(shadow) = self.all().get_mut(&(p as usize)) {
            shadow.owners.push(value);
        }
    }

    pub fn end(&self, blocks: &Blocks, p: *mut u8) {
        let shadow = self.all().remove(&(p as usize));
        if let Some(shadow) = shadow {
            free(blocks, shadow);
        }
    }

    /// Ends the shadows that only the ended handle `value` kept. Returns their blocks, which the
    /// server may still use.
    pub fn owner_ended(&self, value: u64) -> Vec<Block> {
        let mut all = self.all();
        let mut ended = Vec::new();
        for (address, shadow) in all.iter_mut() {
            let before = shadow.owners.len();
            shadow.owners.retain(|o| *o != value);
            if before > 0 && shadow.owners.is_empty() {
                ended.push(*address);
            }
        }
        let shadows = ended.iter().filter_map(|address| all.remove(address));
        shadows.flat_map(|shadow| shadow.outgrown.into_iter().chain([shadow.block])).collect()
    }
}

fn free(blocks: &Blocks, shadow: Shadow) {
    blocks.free(shadow.block);
    for block in shadow.outgrown {
        blocks.free(block);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aviary_transport::Arena;

    #[test]
    fn shadows_end_explicitly_or_with_their_owners() {
        let blocks = Blocks::new(Arena::mirror(1 << 24).unwrap(), 0);
        let shadows = Shadows::default();
        let p = 0x1000 as *mut u8;
        let (block, new) = shadows.obtain(&blocks, p, 100).unwrap();
        assert!(new);
        assert_eq!(shadows.obtain(&blocks, p, 50), Some((block, false)));
        let (larger, new) = shadows.obtain(&blocks, p, 100_000).unwrap();
        assert!(!new && larger != block);
        assert_eq!(shadows.find(p), Some((larger, 100_000)));
        shadows.couple(p, 5);
        shadows.couple(p, 6);
        assert!(shadows.owner_ended(5).is_empty());
        assert!(shadows.find(p).is_some());
        let ended = shadows.owner_ended(6);
        assert_eq!(ended, [block, larger]);
        assert!(shadows.find(p).is_none());
        ended.into_iter().for_each(|b| blocks.free(b));
        shadows.obtain(&blocks, p, 1).unwrap();
        assert!(shadows.owner_ended(7).is_empty());
        shadows.end(&blocks, p);
        assert_eq!(blocks.in_use(), 0);
    }
}
