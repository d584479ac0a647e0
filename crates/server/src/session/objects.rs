//! The objects of a session: their handles, the log of the calls that made them, and the callbacks that name them.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};

use crate::api::HandleTypeInfo;
use crate::callbacks::closures::{self, CallbackOwner, Closure, ClosureKey, ClosureLifetime, HeldObject, NamedObject};
use crate::handles::HandleTable;
use crate::session::config::MAX_CALLBACKS;
use crate::state::object_log::ObjectLog;

pub struct Objects {
    pub handles: HandleTable,
    pub log: ObjectLog,
    closures: Mutex<Closures>,
    /// Handle references of finished callbacks whose release waits for a call under way.
    still_held: Mutex<Vec<HeldObject>>,
    /// They are being made again from a snapshot: the application is not called back.
    rebuilding: AtomicBool,
}

#[derive(Default)]
struct Closures {
    all: HashSet<ClosureKey>,
    /// By the guest's id.
    lasting: HashMap<u64, ClosureKey>,
}

impl Objects {
    pub fn new(types: &'static [HandleTypeInfo], log: ObjectLog) -> Objects {
        Objects {
            handles: HandleTable::new(types),
            log,
            closures: Mutex::default(),
            still_held: Mutex::default(),
            rebuilding: AtomicBool::new(false),
        }
    }

    pub fn is_rebuilding(&self) -> bool {
        self.rebuilding.load(Ordering::SeqCst)
    }

    pub(crate) fn set_rebuilding(&self, rebuilding: bool) {
        self.rebuilding.store(rebuilding, Ordering::SeqCst);
    }

    /// The closure for a callback of the guest; true if it is new. `None`: there are too many.
    ///
    /// Only closures that live as long as the session are shared between calls: the others
    /// end with their own call, whatever other threads do with the same callback.
    pub fn closure(
        &self,
        owner: Weak<dyn CallbackOwner>,
        id: u64,
        kind: u32,
        life: ClosureLifetime,
    ) -> Option<(ClosureKey, bool)> {
        let mut closures = self.closures();
        if let Some(key) = closures.lasting.get(&id).filter(|_| life == ClosureLifetime::Session) {
            return Some((*key, false));
        }
        if closures.all.len() >= MAX_CALLBACKS {
            return None;
        }
        let thread = std::thread::current().id();
        let key = closures::insert(Closure { owner, id, kind, life, thread, names: None });
        closures.all.insert(key);
        if life == ClosureLifetime::Session {
            closures.lasting.insert(id, key);
        }
        Some((key, true))
    }

    /// Answers the reference that it held.
    pub fn forget_closure(&self, key: ClosureKey) -> Option<HeldObject> {
        let closure = closures::remove(key)?;
        let mut closures = self.closures();
        closures.all.remove(&key);
        if closure.life == ClosureLifetime::Session {
            closures.lasting.remove(&closure.id);
        }
        drop(closures);
        let NamedObject { native, id, let_go, .. } = closure.names?;
        Some(HeldObject { native, id, let_go: let_go? })
    }

    /// The numbers of callbacks that the vendor library may still call, with how long each lives.
    pub(crate) fn registered_callbacks(&self) -> Vec<(u64, ClosureLifetime)> {
        let closures = self.closures();
        let all = closures.all.iter().filter_map(|key| Some((key.number(), closures::life(*key)?)));
        all.collect()
    }

    /// Releases the references of callbacks that have run, as far as `release` can; true if none is left.
    pub fn release_held(&self, new: Option<HeldObject>, release: impl Fn(HeldObject) -> bool) -> bool {
        let mut objects = std::mem::take(&mut *self.still_held());
        objects.extend(new);
        objects.retain(|object| !release(*object));
        let mut still_held = self.still_held();
        still_held.append(&mut objects);
        still_held.is_empty()
    }

    /// True: calls under way used objects when callbacks let them go.
    pub(crate) fn holds_back(&self) -> bool {
        !self.still_held().is_empty()
    }

    fn still_held(&self) -> MutexGuard<'_, Vec<HeldObject>> {
        self.still_held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn closures(&self) -> MutexGuard<'_, Closures> {
        self.closures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Objects {
    fn drop(&mut self) {
        let keys: Vec<_> = self.closures().all.drain().collect();
        keys.into_iter().for_each(|key| drop(closures::remove(key)));
    }
}
