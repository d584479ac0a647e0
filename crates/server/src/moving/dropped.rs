//! Objects that the vendor's library gives back while their memory is out, as it cannot take their memory alone.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use aviary_wire::HandleId;

use crate::handles::image::LiveObject;
use crate::session::Session;
use crate::state::{self, NotMovable, RebuildError};

type Release = unsafe extern "C" fn(u64, u64) -> std::ffi::c_int;

struct Droppable {
    id: u64,
    references: u64,
    release: Release,
}

/// In the order in which they were made.
#[derive(Default)]
pub struct Dropped(Vec<Droppable>);

impl Dropped {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Those of the `willing` that can be made again. None of several: the reason, if there is one for all.
    pub fn of(session: &Session, objects: &[LiveObject], willing: &[u64]) -> Result<Dropped, NotMovable> {
        if willing.is_empty() {
            return Ok(Dropped::default());
        }
        state::remake::check(session, objects)?;
        let able = state::remake::able(session, objects, willing.iter().copied());
        let references: HashMap<u64, u64> =
            objects.iter().map(|object| (object.image.id, object.image.references)).collect();
        let droppable = |id: u64| {
            let info = session.api.handle_types.get(HandleId::type_of_word(id))?;
            Some(Droppable { id, references: *references.get(&id)?, release: info.evictable?.drop? })
        };
        Ok(Dropped(able.into_iter().filter_map(droppable).collect()))
    }

    pub fn ids(&self) -> HashSet<u64> {
        self.0.iter().map(|object| object.id).collect()
    }

    /// Gives all of them back, the last one first. False: the library has not given all memory back.
    #[must_use]
    pub fn release(&self, session: &Session) -> bool {
        let mut all = true;
        let handles = &session.objects.handles;
        for Droppable { id, release, .. } in self.0.iter().rev() {
            // Where not all could be made again, some are absent still, and others lack references.
            let Some((references, native)) = handles.references(*id).zip(handles.leave(*id)) else { continue };
            // SAFETY: the specification's own function for a live object that no call uses, nor finds from now on; the program
            // has so many references of it.
            all &= unsafe { release(native, references) } == 0;
        }
        all
    }

    /// Makes all of them again.
    ///
    /// # Errors
    /// Those that were made have to be given back.
    pub fn remake(&self, session: &Arc<Session>) -> Result<(), RebuildError> {
        if self.0.is_empty() {
            return Ok(());
        }
        let objects = self.0.iter().map(|object| (object.id, object.references)).collect();
        state::remake::remake(session, &objects)
    }
}
