//! Memory that both sides use without mapping it: the application's, bound to an object, and the library's, for which the
//! application has an address (resident memory).
//!
//! Both have a block of the arena, unless the application's memory is shared anyway. The application works on its own memory,
//! or on the block of resident memory; contents go out before calls that use the object, and come back after those that
//! may write to it. An object can share what is bound to another one: blocks end with the last object that uses them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::memory::block::{Block, lock};

/// One piece of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BoundMemory {
    /// The server's id of resident memory; 0: the application's, at `to`.
    pub resident: u64,
    /// Of the library's memory on the server, as told there: the same memory has the same.
    pub to: usize,
    pub bytes: usize,
    pub block: Block,
}

/// Memory that goes along with calls that use an object.
#[derive(Default)]
struct BoundObject {
    /// The handle; 0 once that has ended.
    value: u64,
    /// The handle's type, once another object shares its memory.
    ty: u32,
    memory: Vec<BoundMemory>,
    /// Objects whose memory it shares, by place: one, and those whose memory that one shared at the time.
    shares: HashMap<u64, Vec<Shared>>,
}

type Shared = Arc<Mutex<BoundObject>>;

/// The objects of a connection, by value of their handles.
#[derive(Default)]
pub(crate) struct Bound {
    objects: Mutex<HashMap<u64, Shared>>,
    /// True once there was one.
    any: AtomicBool,
}

/// The memory that one handle names in a request.
pub(crate) struct UsedMemory {
    /// 0: the object that the request has just named.
    pub value: u64,
    pub ty: u32,
    pub memory: Vec<BoundMemory>,
}

impl Bound {
    fn object(&self, value: u64) -> Shared {
        self.any.store(true, Ordering::Release);
        let new = || Arc::new(Mutex::new(BoundObject { value, ..BoundObject::default() }));
        lock(&self.objects).entry(value).or_insert_with(new).clone()
    }

    pub fn add(&self, value: u64, memory: BoundMemory) {
        lock(&self.object(value)).memory.push(memory);
    }

    /// `value` shares from now on what is bound to `other`, in exchange for what it shared in that place. Returns blocks
    /// that nothing uses any more.
    pub fn share(&self, value: u64, ty: u32, other: u64, place: u64) -> Vec<Block> {
        // Without memory there may be some later: resident memory is asked for after the call.
        let (object, other) = (self.object(value), self.object(other));
        // Held by all that follow references between objects: what ends is then the last reference.
        let objects = lock(&self.objects);
        lock(&other).ty = ty;
        let shared = reachable([&other]);
        drop(other);
        // Nothing shares its own memory, over others either.
        let reaches = |from: &Shared| reachable([from]).iter().any(|known| Arc::ptr_eq(known, &object));
        let (shared, mut circular): (Vec<_>, Vec<_>) = shared.into_iter().partition(|shared| !reaches(shared));
        let before = lock(&object).shares.insert(place, shared);
        let mut ended = Vec::new();
        circular.extend(before.into_iter().flatten());
        circular.into_iter().for_each(|shared| release(shared, &mut ended));
        drop(objects);
        ended
    }

    /// Everything that goes along with a call that uses the object.
    pub fn used(&self, value: u64) -> Vec<UsedMemory> {
        if !self.any.load(Ordering::Acquire) {
            return Vec::new();
        }
        let objects = lock(&self.objects);
        let Some(object) = objects.get(&value) else { return Vec::new() };
        let mut own = UsedMemory { value: 0, ty: 0, memory: Vec::new() };
        let mut others = Vec::new();
        for known in reachable([object]) {
            let this = lock(&known);
            match this.value {
                value if value != 0 && !Arc::ptr_eq(&known, object) => {
                    others.push(UsedMemory { value, ty: this.ty, memory: this.memory.clone() });
                }
                // Of the object itself, and of those whose handles have ended.
                _ => own.memory.extend(&this.memory),
            }
        }
        std::iter::once(own).chain(others).filter(|used| !used.memory.is_empty()).collect()
    }

    /// The handle of this value has ended. Returns the blocks of its memory that no other object uses.
    pub fn owner_ended(&self, value: u64) -> Vec<Block> {
        let mut ended = Vec::new();
        if !self.any.load(Ordering::Acquire) {
            return ended;
        }
        let mut objects = lock(&self.objects);
        if let Some(object) = objects.remove(&value) {
            {
                let mut object = lock(&object);
                object.value = 0;
                // The server forgets resident memory with its handle.
                let gone = object.memory.extract_if(.., |memory| memory.resident != 0);
                ended.extend(gone.map(|memory| memory.block));
            }
            release(object, &mut ended);
        }
        ended
    }

    /// The resident memory of an object that the server knows by this id.
    pub fn resident(&self, value: u64, id: u64) -> Option<BoundMemory> {
        let objects = lock(&self.objects);
        let object = lock(objects.get(&value)?);
        object.memory.iter().find(|memory| memory.resident == id).copied()
    }

    /// The application's address of a place in the block of bound memory.
    pub fn address_of(&self, offset: u64) -> Option<usize> {
        let objects = lock(&self.objects);
        let inside = |memory: &&BoundMemory| {
            memory.resident == 0
                && offset.checked_sub(memory.block.offset).is_some_and(|distance| distance <= memory.bytes as u64)
        };
        reachable(objects.values()).iter().find_map(|object| {
            let object = lock(object);
            let memory = object.memory.iter().find(inside)?;
            Some(memory.to + (offset - memory.block.offset) as usize)
        })
    }
}

/// Objects and all whose memory they share, each once.
fn reachable<'a>(from: impl IntoIterator<Item = &'a Shared>) -> Vec<Shared> {
    let mut found = Vec::new();
    from.into_iter().for_each(|object| reach(object, &mut found));
    found
}

fn reach(from: &Shared, found: &mut Vec<Shared>) {
    if found.iter().any(|known| Arc::ptr_eq(known, from)) {
        return;
    }
    found.push(from.clone());
    let shares: Vec<Shared> = lock(from).shares.values().flatten().cloned().collect();
    shares.iter().for_each(|shared| reach(shared, found));
}

/// Gives up one reference of an object; `ended` gets the blocks if it was the last.
fn release(object: Shared, ended: &mut Vec<Block>) {
    let Ok(object) = Arc::try_unwrap(object) else { return };
    let object = object.into_inner().unwrap_or_else(PoisonError::into_inner);
    ended.extend(object.memory.iter().map(|memory| memory.block));
    object.shares.into_values().flatten().for_each(|shared| release(shared, ended));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(offset: u64, to: usize) -> BoundMemory {
        BoundMemory { resident: 0, to, bytes: 64, block: Block { offset, size: 64 } }
    }

    fn offsets(blocks: &[Block]) -> Vec<u64> {
        blocks.iter().map(|block| block.offset).collect()
    }

    #[test]
    fn memory_ends_with_the_last_object_that_uses_it() {
        let bound = Bound::default();
        bound.add(1, memory(4096, 0x1000));
        bound.add(2, memory(8192, 0x2000));
        assert!(bound.share(9, 3, 1, 0).is_empty() && bound.share(9, 3, 2, 1).is_empty());
        let used = bound.used(9);
        assert_eq!(used.iter().map(|u| u.value).max(), Some(2), "living objects are named");
        assert!(bound.owner_ended(1).is_empty(), "another one uses it");
        let own: Vec<_> = bound.used(9).into_iter().filter(|u| u.value == 0).flat_map(|u| u.memory).collect();
        assert_eq!(own, [memory(4096, 0x1000)]);
        assert_eq!(offsets(&bound.share(9, 3, 2, 0)), [4096], "in its place");
        assert!(bound.owner_ended(2).is_empty());
        assert_eq!(offsets(&bound.owner_ended(9)), [8192]);
        assert!(bound.used(9).is_empty());
    }

    #[test]
    fn what_is_shared_stays_whatever_is_put_in_its_place() {
        let bound = Bound::default();
        bound.add(1, memory(4096, 0x1000));
        bound.add(2, memory(8192, 0x2000));
        bound.share(9, 3, 1, 0);
        bound.share(5, 3, 9, 0);
        assert!(bound.owner_ended(1).is_empty());
        assert!(bound.share(9, 3, 2, 0).is_empty());
        assert!(bound.owner_ended(9).is_empty());
        assert_eq!(bound.address_of(4100), Some(0x1004));
        assert!(bound.owner_ended(2).is_empty());
        let mut ended = offsets(&bound.owner_ended(5));
        ended.sort_unstable();
        assert_eq!(ended, [4096, 8192]);
    }

    #[test]
    fn an_object_does_not_share_its_own() {
        let bound = Bound::default();
        bound.add(1, memory(4096, 0x1000));
        bound.share(1, 3, 1, 0);
        bound.share(2, 3, 1, 0);
        bound.share(1, 3, 2, 0);
        assert_eq!(bound.used(1).len(), 1);
        assert!(bound.owner_ended(1).is_empty());
        assert_eq!(offsets(&bound.owner_ended(2)), [4096]);
    }

    #[test]
    fn a_place_in_a_block_is_one_in_the_applications_memory() {
        let bound = Bound::default();
        bound.add(1, memory(4096, 0x1000));
        bound.add(1, BoundMemory { resident: 5, ..memory(8192, 0) });
        assert_eq!(bound.address_of(4100), Some(0x1004));
        assert_eq!(bound.address_of(4095), None);
        assert_eq!(bound.address_of(8192), None, "resident memory has no other address");
        assert_eq!(bound.resident(1, 5).map(|m| m.block.offset), Some(8192));
        assert_eq!(offsets(&bound.owner_ended(1)), [8192, 4096]);
    }
}
