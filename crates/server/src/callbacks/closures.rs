//! Closures: what the vendor library gets as user data of a callback.
//!
//! A closure is a number, not an address: a vendor library that calls back too
//! late or too often finds nothing, instead of freed memory.

use std::any::Any;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::ThreadId;

/// How long the vendor library may call a closure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClosureLifetime {
    /// It is called at most once.
    Once,
    /// Until the function that got it returns.
    Call,
    /// As long as the session.
    Session,
}

/// `generation << 32 | index + 1`: never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClosureKey(u64);

impl ClosureKey {
    pub fn as_pointer(self) -> *mut c_void {
        std::ptr::without_provenance_mut(self.0 as usize)
    }

    fn from_pointer(pointer: *mut c_void) -> ClosureKey {
        ClosureKey(pointer.addr() as u64)
    }

    /// Distinguishes it from all other closures of the process.
    pub fn number(self) -> u64 {
        self.0
    }

    /// The key behind a registered closure, which is never NULL.
    pub fn registered(pointer: *mut c_void) -> Option<ClosureKey> {
        (!pointer.is_null()).then(|| ClosureKey::from_pointer(pointer))
    }

    fn index(self) -> Option<usize> {
        (self.0 as u32 as usize).checked_sub(1)
    }
}

/// The session of a callback.
pub trait CallbackOwner: Any + Send + Sync {
    /// False while its objects are being made again from a snapshot: the application was called, or will be when its turn
    /// comes.
    fn calls_back(&self) -> bool;
    /// Ends a closure. Answers what it kept, which ends with the answer.
    fn end_closure(self: Arc<Self>, key: ClosureKey) -> Option<KeptObject>;
    /// Returns a reference, at once or when no call uses the object any longer.
    fn let_go(&self, object: HeldObject);
}

/// A reference that this process holds for a callback.
#[derive(Clone, Copy)]
pub struct HeldObject {
    pub native: u64,
    pub id: u64,
    pub let_go: ObjectFn,
}

/// An object that stays alive and valid, although the guest may have released it, until this is dropped. Not to be dropped
/// inside a callback of the vendor library: dropping calls the library.
pub struct KeptObject {
    owner: Arc<dyn CallbackOwner>,
    object: HeldObject,
}

impl KeptObject {
    pub fn new(owner: Arc<dyn CallbackOwner>, object: HeldObject) -> KeptObject {
        KeptObject { owner, object }
    }
}

impl Drop for KeptObject {
    fn drop(&mut self) {
        self.owner.let_go(self.object);
    }
}

/// A callback of the guest, as the vendor library knows it.
#[derive(Clone)]
pub struct Closure {
    pub owner: Weak<dyn CallbackOwner>,
    /// The guest's id of it.
    pub id: u64,
    pub kind: u32,
    pub life: ClosureLifetime,
    /// Whose call registered it.
    pub thread: ThreadId,
    pub names: Option<NamedObject>,
}

/// A function of one object of the vendor library.
pub type ObjectFn = unsafe extern "C" fn(u64);

/// The object that a callback hands back.
#[derive(Clone, Copy)]
pub struct NamedObject {
    pub ty: u32,
    pub native: u64,
    /// The guest's handle of it, also after its last release.
    pub id: u64,
    /// Function that returns the reference which the callback holds; none: it holds no reference.
    pub let_go: Option<ObjectFn>,
}

#[derive(Default)]
struct ClosureSlot {
    generation: u32,
    closure: Option<Closure>,
}

#[derive(Default)]
struct ClosureTable {
    slots: Vec<ClosureSlot>,
    free: Vec<usize>,
    /// Per kind: the closures of callbacks that come without user data, newest last.
    newest: HashMap<u32, Vec<ClosureKey>>,
}

/// The closures of all sessions of this module: vendor threads bring nothing but the number.
static TABLE: Mutex<Option<ClosureTable>> = Mutex::new(None);

fn with_table<R>(change: impl FnOnce(&mut ClosureTable) -> R) -> R {
    let mut guard: MutexGuard<'_, Option<ClosureTable>> = TABLE.lock().unwrap_or_else(PoisonError::into_inner);
    change(guard.get_or_insert_default())
}

pub fn insert(closure: Closure) -> ClosureKey {
    with_table(|table| {
        let index = table.free.pop().unwrap_or_else(|| {
            table.slots.push(ClosureSlot::default());
            table.slots.len() - 1
        });
        let kind = closure.kind;
        let slot = &mut table.slots[index];
        slot.closure = Some(closure);
        let key = ClosureKey(u64::from(slot.generation) << 32 | (index as u64 + 1));
        table.newest.entry(kind).or_default().push(key);
        key
    })
}

/// The key of a closure that has ended: a vendor library that calls it finds nothing.
pub fn ended() -> ClosureKey {
    // No table has so many places, so this one is never used.
    ClosureKey(u64::from(u32::MAX))
}

/// How long a registered closure lives; `None`: it has ended.
pub fn life(key: ClosureKey) -> Option<ClosureLifetime> {
    with_table(|table| table.find(key).map(|closure| closure.life))
}

pub fn remove(key: ClosureKey) -> Option<Closure> {
    with_table(|table| {
        table.find(key)?;
        let index = key.index()?;
        let slot = &mut table.slots[index];
        let closure = slot.closure.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        table.free.push(index);
        if let Some(keys) = table.newest.get_mut(&closure.kind) {
            // Short-lived closures are at the end.
            if let Some(at) = keys.iter().rposition(|k| *k == key) {
                keys.remove(at);
            }
        }
        Some(closure)
    })
}

/// Says which object a closure, registered by the call under way, will hand back.
pub fn name(key: ClosureKey, object: NamedObject) {
    with_table(|table| {
        if let Some(closure) = table.find_mut(key) {
            closure.names = Some(object);
        }
    });
}

/// A closure that was called.
pub struct Called {
    pub owner: Arc<dyn CallbackOwner>,
    /// The guest's id of the callback.
    pub id: u64,
    pub names: Option<NamedObject>,
    /// Keeps that object until the guest has run the callback.
    pub kept: Option<KeptObject>,
}

/// The closure that the vendor library calls; NULL means the newest of its kind, preferably of this thread.
/// One that is called at most once ends here.
pub fn called(pointer: *mut c_void, kind: u32) -> Option<Called> {
    let key = match pointer.is_null() {
        true => with_table(|table| table.newest_of(kind))?,
        false => ClosureKey::from_pointer(pointer),
    };
    let closure = with_table(|table| table.find(key).cloned()).filter(|c| c.kind == kind)?;
    let owner = closure.owner.upgrade().filter(|owner| owner.calls_back())?;
    let kept = if closure.life == ClosureLifetime::Once { owner.clone().end_closure(key) } else { None };
    Some(Called { owner, id: closure.id, names: closure.names, kept })
}

impl ClosureTable {
    /// A callback without user data is most likely called by the thread whose call registered it.
    fn newest_of(&self, kind: u32) -> Option<ClosureKey> {
        let keys = self.newest.get(&kind)?;
        let me = std::thread::current().id();
        let mine = keys.iter().rev().find(|key| self.find(**key).is_some_and(|c| c.thread == me));
        mine.or(keys.last()).copied()
    }

    fn find(&self, key: ClosureKey) -> Option<&Closure> {
        let slot = self.slots.get(key.index()?)?;
        (slot.generation == (key.0 >> 32) as u32).then_some(())?;
        slot.closure.as_ref()
    }

    fn find_mut(&mut self, key: ClosureKey) -> Option<&mut Closure> {
        let slot = self.slots.get_mut(key.index()?)?;
        (slot.generation == (key.0 >> 32) as u32).then_some(())?;
        slot.closure.as_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// None of the tests calls back.
    struct Nobody;

    impl CallbackOwner for Nobody {
        fn calls_back(&self) -> bool {
            false
        }

        fn end_closure(self: Arc<Self>, _: ClosureKey) -> Option<KeptObject> {
            None
        }

        fn let_go(&self, _: HeldObject) {}
    }

    fn closure(id: u64) -> Closure {
        Closure {
            owner: Weak::<Nobody>::new(),
            id,
            kind: 900,
            life: ClosureLifetime::Once,
            thread: std::thread::current().id(),
            names: None,
        }
    }

    #[test]
    fn a_number_is_never_valid_again() {
        let first = insert(closure(1));
        assert_eq!(remove(first).map(|c| c.id), Some(1));
        assert!(remove(first).is_none());
        let second = insert(closure(2));
        assert_ne!(first, second);
        assert!(remove(first).is_none());
        assert!(remove(second).is_some());
    }

    #[test]
    fn any_other_pointer_finds_nothing() {
        let wild: *mut c_void = std::ptr::without_provenance_mut(0x7f00_1234_5678);
        assert!(called(wild, 900).is_none());
        assert!(called(std::ptr::null_mut(), 901).is_none());
    }
}
