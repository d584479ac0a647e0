//! Device memory of a session's objects that leaves for the host and returns, while the objects, their handles and their
//! addresses stay. No call is under way meanwhile.
//!
//! The host memory is this process's own, which serves one tenant for its whole life, and goes back to the kernel with the return:
//! no other process ever sees it.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_void};

use aviary_wire::HandleId;

use super::Obstacle;
use crate::api::EvictableType;
use crate::handles::image::LiveObject;
use crate::session::Session;
use crate::tables::contents::Mapped;

/// An object whose memory can leave.
struct Movable {
    native: u64,
    functions: EvictableType,
    /// Of the type, for messages.
    name: &'static str,
    /// Where its content lies in the host's memory.
    offset: usize,
    bytes: usize,
}

/// The memory of a session that is out.
pub struct Evicted {
    /// In the order in which they have left.
    objects: Vec<Movable>,
    /// `None`: there was nothing to take out.
    memory: Option<Mapped>,
    /// Of host memory.
    pub bytes: u64,
    /// By device: what has left it, as it was charged.
    pub freed: BTreeMap<String, u64>,
}

/// {name}: the device memory of an object did not return
#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub struct NotBack {
    name: &'static str,
    /// Some of the others are neither here nor there.
    pub torn: bool,
}

impl Movable {
    fn content(&self, memory: Option<&Mapped>) -> Option<*mut c_void> {
        memory?.range(self.offset, self.bytes).map(|at| at.as_ptr())
    }

    fn leave(&self, memory: Option<&Mapped>) -> bool {
        // SAFETY: the specification's own function for a live object that no call uses; there are so many bytes.
        self.content(memory).is_some_and(|to| unsafe { (self.functions.out)(self.native, to, self.bytes) } == 0)
    }

    fn come_back(&self, memory: Option<&Mapped>) -> bool {
        // SAFETY: as above; the bytes are those that `leave` has written.
        self.content(memory).is_some_and(|from| unsafe { (self.functions.back)(self.native, from, self.bytes) } == 0)
    }
}

/// What leaves which device with an object, as the accounts have it.
fn leaving(
    session: &Session,
    functions: &EvictableType,
    native: u64,
    bytes: u64,
    holding: &[(usize, u64)],
) -> Vec<(String, u64)> {
    let Some(device) = functions.device else {
        let of_item = |(item, amount): &(usize, u64)| {
            session.accounts.gate.devices(*item).into_iter().map(|device| (device, *amount)).collect::<Vec<_>>()
        };
        return holding.iter().flat_map(of_item).collect();
    };
    // SAFETY: the specification's own function for a live object that no call uses.
    let name = unsafe { device(native) };
    if name.is_null() {
        return Vec::new();
    }
    // SAFETY: it ends with a NUL and stays valid, as `EvictableType` says.
    vec![(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned(), bytes)]
}

/// The objects whose memory can leave, with places for their contents, and what leaves which device then.
fn movable(session: &Session) -> Result<Evicted, Obstacle> {
    let (mut objects, mut end, mut freed) = (Vec::new(), 0u64, BTreeMap::<String, u64>::new());
    for object in session.objects.handles.image().objects {
        let LiveObject { image, native, holding, .. } = object;
        let Some(info) = session.api.handle_types.get(HandleId::type_of_word(image.id)) else { continue };
        let Some(functions) = info.evictable else { continue };
        // SAFETY: the specification's own function for a live object that no call uses.
        let bytes = unsafe { (functions.bytes)(native) };
        if bytes == 0 {
            continue;
        }
        let none = || Obstacle::lasting(format!("an object of type {} has {bytes} bytes", info.name));
        let place = end;
        end = place.checked_add(bytes).ok_or_else(none)?;
        let (offset, bytes) = (usize::try_from(place), usize::try_from(bytes));
        let (Ok(offset), Ok(bytes)) = (offset, bytes) else { return Err(none()) };
        for (device, amount) in leaving(session, &functions, native, bytes as u64, &holding) {
            *freed.entry(device).or_default() += amount;
        }
        objects.push(Movable { native, functions, name: info.name, offset, bytes });
    }
    Ok(Evicted { objects, memory: None, bytes: end, freed })
}

impl Evicted {
    /// Takes the memory out of all objects that have some. `room`: bytes of host memory that there are.
    ///
    /// # Errors
    /// Everything is as before.
    pub fn take(session: &Session, room: u64) -> Result<Evicted, Obstacle> {
        let Evicted { objects, bytes, freed, .. } = movable(session)?;
        if bytes > room {
            return Err(Obstacle::not_now(format!(
                "no room for {bytes} bytes from its devices: {room} bytes are left (parked_memory or host_swap)"
            )));
        }
        let none = |error| Obstacle::not_now(format!("the host has no free memory for {bytes} bytes: {error}"));
        let length = usize::try_from(bytes).map_err(|_| Obstacle::lasting("more bytes than addresses"))?;
        let memory = (length > 0).then(|| Mapped::private(length)).transpose().map_err(none)?;
        memory.as_ref().map_or(Ok(()), Mapped::populate).map_err(none)?;
        for (at, object) in objects.iter().enumerate() {
            if object.leave(memory.as_ref()) {
                continue;
            }
            let torn = objects[..at].iter().any(|object| !object.come_back(memory.as_ref()));
            let why = format!("an object of type {} keeps its device memory", object.name);
            return Err(if torn {
                Obstacle::Lasting(format!("{why}, and another one lost its own"))
            } else {
                Obstacle::NotNow(why)
            });
        }
        Ok(Evicted { objects, memory, bytes, freed })
    }

    /// Brings all of it back.
    ///
    /// # Errors
    /// It is out as before, unless it is torn.
    pub fn come_back(&self) -> Result<(), NotBack> {
        let memory = self.memory.as_ref();
        for (at, object) in self.objects.iter().enumerate() {
            if !object.come_back(memory) {
                // What is back is the same as its copy.
                let torn = self.objects[..at].iter().any(|object| !object.leave(memory));
                return Err(NotBack { name: object.name, torn });
            }
        }
        Ok(())
    }

    pub fn objects(&self) -> u64 {
        self.objects.len() as u64
    }
}
