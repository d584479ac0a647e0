//! Device memory of a session's objects that leaves for the host and returns, while the objects, their handles and their
//! addresses stay; objects of types that are `dropped` are given back, and made again under their handles. No call is under way
//! meanwhile.
//!
//! The host memory is this process's own, which serves one tenant for its whole life: no other process ever sees it. To make it takes
//! longer than to fill it. So it is made before the session stands, and kept for the next time until the node wants it back.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_void};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use aviary_wire::HandleId;

use super::Obstacle;
use super::dropped::Dropped;
use crate::api::{EvictableType, HandleTypeInfo};
use crate::handles::image::LiveObject;
use crate::session::Session;
use crate::tables::contents::Mapped;
use crate::tables::overlap::{Charged, sum, sum_of};

/// A session may need more host memory than the last time, by such a part, before its calls wait for that to be made.
const GROWTH: u64 = 8;

/// An object whose memory can leave.
struct Movable {
    id: u64,
    /// As long as the object stays.
    native: u64,
    functions: EvictableType,
    /// Of the type, for messages.
    name: &'static str,
    place: Place,
    /// By device: what it is charged with there.
    full: Charged,
    /// By device that is shared out: what of it has left.
    left: Charged,
    /// Its memory did not leave.
    stays: bool,
}

/// Where an object's content lies in the host's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    offset: usize,
    bytes: usize,
}

/// The memory of a session that is out.
pub struct Evicted {
    /// In the order in which they have left.
    objects: Vec<Movable>,
    dropped: Dropped,
    /// `None`: there was nothing to take out.
    memory: Option<Mapped>,
    /// Of host memory, as it is charged.
    pub bytes: u64,
    /// Of its content, of which no part may lie there.
    content: u64,
    /// By device: what has left it, as it was charged.
    pub freed: BTreeMap<String, u64>,
    /// Bytes of the content that the host had already.
    pub unchanged: u64,
}

/// {what}
#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub struct NotBack {
    what: String,
    /// Some of the others are neither here nor there.
    pub torn: bool,
}

impl Movable {
    fn content(&self, memory: Option<&Mapped>) -> Option<*mut c_void> {
        memory?.range(self.place.offset, self.place.bytes).map(|at| at.as_ptr())
    }

    /// The native object as it is now.
    fn native(&self, session: &Session) -> Option<u64> {
        match self.functions.drop {
            None => Some(self.native),
            Some(_) => session.objects.handles.native(HandleId::type_of_word(self.id) as u32, self.id),
        }
    }

    /// So much more of it has.
    fn note_left(&mut self, gone: Charged) {
        for (device, bytes) in gone {
            match self.left.iter_mut().find(|(name, _)| *name == device) {
                Some((_, left)) => *left = left.saturating_add(bytes),
                None => self.left.push((device, bytes)),
            }
        }
    }

    /// By device that is shared out: what of it has not left.
    fn rest(&self, session: &Session) -> Charged {
        let left = |device: &str| self.left.iter().find(|(name, _)| name == device).map_or(0, |(_, bytes)| *bytes);
        let rest = shared_out(session, &self.full).map(|(device, bytes)| (bytes.saturating_sub(left(&device)), device));
        rest.filter(|(bytes, _)| *bytes > 0).map(|(bytes, device)| (device, bytes)).collect()
    }

    /// Bytes of that.
    fn remains(&self, session: &Session) -> u64 {
        sum(&self.rest(session))
    }

    /// None of it has left, or not all.
    fn can_leave(&self, session: &Session) -> bool {
        self.stays || self.remains(session) > 0
    }

    fn leave(&self, session: &Session, memory: Option<&Mapped>) -> bool {
        let place = self.native(session).zip(self.content(memory));
        // SAFETY: the specification's own function for a live object that no call uses; there are so many bytes.
        self.place.bytes == 0
            || place.is_some_and(|(native, to)| unsafe { (self.functions.out)(native, to, self.place.bytes) } == 0)
    }

    fn come_back(&self, session: &Session, memory: Option<&Mapped>) -> bool {
        let (overlap, shared) = (&session.tables.overlap, sum(&self.left));
        let place = self.native(session).zip(self.content(memory));
        overlap.begin_return_of(shared);
        // SAFETY: as above; the bytes are those that `leave` has written.
        let is_back = self.place.bytes == 0
            || place
                .is_some_and(|(native, from)| unsafe { (self.functions.back)(native, from, self.place.bytes) } == 0);
        overlap.note_there(shared);
        is_back
    }

    /// Waits for the node's credit. One whose module waits for parts of it itself begins with the first.
    fn may_come_back(&self, session: &Session) -> bool {
        let bytes = if self.functions.device.is_some() { 0 } else { sum(&self.left) };
        session.orders.as_ref().is_none_or(|orders| session.tables.overlap.await_credit(orders, bytes))
    }
}

/// What leaves which device with an object, as the accounts have it. `charged`: for the object, or kept under its number.
fn leaving(
    session: &Session,
    functions: &EvictableType,
    (native, bytes): (u64, u64),
    charged: &[(usize, u64)],
) -> Vec<(String, u64)> {
    let Some(device) = functions.device else {
        let of_item = |(item, amount): &(usize, u64)| {
            session.accounts.gate.devices(*item).into_iter().map(|device| (device, *amount)).collect::<Vec<_>>()
        };
        return charged.iter().flat_map(of_item).collect();
    };
    // SAFETY: the specification's own function for a live object that no call uses.
    let name = unsafe { device(native) };
    if name.is_null() {
        return Vec::new();
    }
    // SAFETY: it ends with a NUL and stays valid, as `EvictableType` says.
    vec![(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned(), bytes)]
}

/// What of this is on devices that are shared out.
fn shared_out(session: &Session, full: &Charged) -> impl Iterator<Item = (String, u64)> {
    let rooms = session.accounts.rooms.as_ref();
    full.iter().filter(move |(device, _)| rooms.is_some_and(|rooms| rooms.memory(device).is_some())).cloned()
}

/// A live object whose memory may be able to leave, with the bytes of its content.
struct Candidate<'a> {
    object: &'a LiveObject,
    info: &'static HandleTypeInfo,
    functions: EvictableType,
    bytes: u64,
}

impl Candidate<'_> {
    fn of<'a>(session: &Session, object: &'a LiveObject) -> Option<Candidate<'a>> {
        let info = session.api.handle_types.get(HandleId::type_of_word(object.image.id))?;
        let functions = info.evictable?;
        // SAFETY: the specification's own function for a live object that no call uses.
        let bytes = unsafe { (functions.bytes)(object.native) };
        (bytes > 0 || functions.drop.is_some()).then_some(Candidate { object, info, functions, bytes })
    }

    /// It stays unless it is given back.
    fn is_willing(&self) -> bool {
        self.functions.drop.is_some() && self.bytes != EvictableType::STAYS
    }
}

/// The objects whose memory can leave, with places for their contents. None has left yet.
fn movable(session: &Session) -> Result<Evicted, Obstacle> {
    let (mut objects, mut end) = (Vec::new(), 0u64);
    let image = session.objects.handles.image().objects;
    let candidates: Vec<Candidate> = image.iter().filter_map(|object| Candidate::of(session, object)).collect();
    let willing: Vec<u64> = candidates.iter().filter(|one| one.is_willing()).map(|one| one.object.image.id).collect();
    let dropped = Dropped::of(session, &image, &willing).map_err(|why| Obstacle::not_now(why.to_string()))?;
    let (leaves, kept) = (dropped.ids(), BTreeMap::from_iter(session.accounts.other_charges().1));
    for Candidate { object, info, functions, bytes } in &candidates {
        if functions.drop.is_some() && !leaves.contains(&object.image.id) {
            continue;
        }
        let none = || Obstacle::lasting(format!("an object of type {} has {bytes} bytes", info.name));
        let place = end;
        end = place.checked_add(*bytes).ok_or_else(none)?;
        let (offset, length) = (usize::try_from(place), usize::try_from(*bytes));
        let (Ok(offset), Ok(length)) = (offset, length) else { return Err(none()) };
        let kept = kept.get(&object.image.id).into_iter().flatten();
        let charged: Vec<(usize, u64)> = object.holding.iter().chain(kept).copied().collect();
        objects.push(Movable {
            id: object.image.id,
            native: object.native,
            functions: *functions,
            name: info.name,
            place: Place { offset, bytes: length },
            full: leaving(session, functions, (object.native, *bytes), &charged),
            left: Charged::new(),
            stays: true,
        });
    }
    if let (Some(Candidate { info, .. }), true) = (candidates.first(), objects.is_empty()) {
        return Err(Obstacle::not_now(format!("objects of type {} keep their device memory", info.name)));
    }
    let freed = BTreeMap::new();
    Ok(Evicted { objects, dropped, memory: None, bytes: end, content: end, freed, unchanged: 0 })
}

/// Host memory of a session that is not out, for the next time.
#[derive(Debug, Default)]
pub struct Spare {
    memory: Option<Mapped>,
    /// Bytes that were needed the last time.
    last: Option<u64>,
    /// By object's id: what the memory has of it.
    content: BTreeMap<u64, Place>,
}

impl Spare {
    pub fn bytes(&self) -> u64 {
        self.memory.as_ref().map_or(0, |memory| memory.bytes() as u64)
    }

    /// What will be needed of so many bytes of device memory, as far as that is known: not all of it can leave.
    pub fn expected(&self, bytes: u64) -> u64 {
        self.last.map_or(bytes, |last| bytes.min(last.saturating_add(last / GROWTH)))
    }

    /// Makes it so large at least, with all of its pages.
    ///
    /// # Errors
    /// There is no memory for them. It is not larger than before.
    pub fn prepare(&mut self, bytes: u64) -> io::Result<()> {
        let before = self.bytes();
        if bytes <= before {
            return Ok(());
        }
        let length = usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let made = match &mut self.memory {
            Some(memory) => memory.resize(length),
            none => Mapped::private(length).map(|memory| *none = Some(memory)),
        };
        let from = usize::try_from(before).unwrap_or(0);
        let made = made.and_then(|()| self.memory.as_ref().map_or(Ok(()), |memory| memory.populate(from)));
        made.inspect_err(|_| self.shrink(before))
    }

    /// Gives all back beyond so much.
    pub fn shrink(&mut self, most: u64) {
        let wanted = usize::try_from(most).unwrap_or(usize::MAX);
        if most < self.bytes() {
            self.content.clear();
            // Memory that cannot become smaller goes.
            self.memory.take_if(|memory| wanted == 0 || memory.resize(wanted).is_err());
        }
    }

    /// By address: how much of the content is there that left with these objects the last time, each at its place.
    fn places_of(&self, objects: &[Movable]) -> BTreeMap<usize, usize> {
        let of = |object: &Movable| {
            let was = self.content.get(&object.id).filter(|was| was.offset == object.place.offset)?;
            Some((object.content(self.memory.as_ref())?.addr(), was.bytes))
        };
        objects.iter().filter_map(of).collect()
    }
}

impl Evicted {
    /// Takes the memory out of all objects that have some; `part`: out of so many that these bytes of shared devices have left, where
    /// objects leave one by one. `room`: bytes of host memory that there are, with those of `spare`,
    /// which it takes. `attempt`: of the node's order.
    ///
    /// # Errors
    /// Everything is as before, but that `spare` may be larger.
    pub fn take(
        session: &Arc<Session>,
        (attempt, part): (u64, Option<u64>),
        room: u64,
        spare: &mut Spare,
    ) -> Result<Evicted, Obstacle> {
        let mut evicted = movable(session)?;
        // Memory that a device and the application share is in the host's already, and counts all the same.
        let charged = sum_of(evicted.objects.iter().map(|object| &object.full));
        let bytes = evicted.bytes.max(charged);
        if bytes > room {
            return Err(Obstacle::not_now(format!(
                "no room for {bytes} bytes from its devices: {room} bytes are left (parked_memory or host_swap)"
            )));
        }
        let none = |error| Obstacle::not_now(format!("the host has no free memory for {bytes} bytes: {error}"));
        spare.prepare(evicted.content).map_err(none)?;
        session.tables.kept.begin(spare.places_of(&evicted.objects));
        spare.content.clear();
        evicted.memory = spare.memory.take();
        evicted.bytes = bytes;
        let left = evicted.leave(session, (attempt, part));
        evicted.unchanged = session.tables.kept.end();
        if let Err(obstacle) = left {
            spare.memory = evicted.memory;
            return Err(obstacle);
        }
        // What the module keeps for copies is charged with it, or given back.
        let whole = evicted.bytes.saturating_add(session.tables.kept.buffers());
        if whole <= room {
            evicted.bytes = whole;
        } else {
            session.tables.kept.give_buffers_back();
        }
        Ok(evicted)
    }

    /// The memory is on its devices again, and what it was in is spare.
    pub fn into_spare(self) -> Spare {
        let there = self.objects.iter().filter(|object| !object.stays);
        let content = there.map(|object| (object.id, object.place)).collect();
        Spare { memory: self.memory, last: Some(self.content), content }
    }

    /// Gives back what was made before it was known how much is needed.
    pub fn trim(&mut self) {
        let mut spare = Spare { memory: self.memory.take(), ..Spare::default() };
        spare.shrink(self.content);
        self.memory = spare.memory;
    }

    /// Takes more out of objects that are on shared devices, in part or as a whole. Answers by device what of them has left now.
    ///
    /// # Errors
    /// Nothing has left.
    pub fn take_more(
        &mut self,
        session: &Session,
        attempt: u64,
        part: Option<u64>,
    ) -> Result<BTreeMap<String, u64>, Obstacle> {
        let before = self.freed.clone();
        let shared = self.rest(session);
        let Some(orders) = session.orders.as_ref().filter(|_| shared > 0) else {
            return Err(Obstacle::not_now("nothing more of it can leave".to_owned()));
        };
        session.tables.kept.begin(BTreeMap::new());
        let left = self.leave_in_parts(session, (orders, attempt), (shared, part));
        self.unchanged = session.tables.kept.end();
        left?;
        let now = self
            .freed
            .iter()
            .map(|(device, bytes)| (device.clone(), bytes.saturating_sub(before.get(device).copied().unwrap_or(0))));
        Ok(now.filter(|(_, bytes)| *bytes > 0).collect())
    }

    fn leave(&mut self, session: &Arc<Session>, (attempt, part): (u64, Option<u64>)) -> Result<(), Obstacle> {
        let shared = self.rest(session);
        if let Some(orders) = session.orders.as_ref().filter(|_| shared > 0) {
            return self.leave_in_parts(session, (orders, attempt), (shared, part));
        }
        let memory = self.memory.as_ref();
        let left = self.objects.iter().take_while(|object| object.leave(session, memory)).count();
        let stays = self.objects.get(left);
        if stays.is_none() && self.dropped.release(session) {
            self.note_all_left(session);
            return Ok(());
        }
        let name = stays.or(self.objects.last()).map_or("?", |object| object.name);
        let why = format!("an object of type {name} keeps its device memory");
        let is_back = |object: &Movable| object.come_back(session, memory);
        let whole =
            (stays.is_some() || self.dropped.remake(session).is_ok()) && self.objects[..left].iter().all(is_back);
        Err(if whole {
            Obstacle::NotNow(why)
        } else {
            Obstacle::Lasting(format!("{why}, and another one lost its own"))
        })
    }

    fn note_all_left(&mut self, session: &Session) {
        for object in &mut self.objects {
            (object.left, object.stays) = (shared_out(session, &object.full).collect(), false);
            for (device, bytes) in &object.full {
                *self.freed.entry(device.clone()).or_default() += bytes;
            }
        }
    }

    /// Others may have the place of what has left before all has. So an object that does not leave stays where it is, while the
    /// session counts as out. `shared`: bytes of shared devices that can leave, of which `part` must.
    fn leave_in_parts(
        &mut self,
        session: &Session,
        (orders, attempt): (&OwnedFd, u64),
        (shared, part): (u64, Option<u64>),
    ) -> Result<(), Obstacle> {
        let (memory, overlap) = (self.memory.as_ref(), &session.tables.overlap);
        overlap.begin_leaving(attempt, shared, part);
        let mut has_left = false;
        for object in &mut self.objects {
            if !object.can_leave(session) || overlap.must_leave() == 0 {
                continue;
            }
            let rest: Charged = object.rest(session);
            let is_new = object.stays;
            overlap.begin_object(rest.clone());
            let leaves = object.leave(session, memory);
            let gone = overlap.end_object(orders, leaves);
            (object.stays, has_left) = (is_new && !leaves, has_left || leaves);
            // Beside shared devices it leaves as a whole.
            let others =
                object.full.iter().filter(|(name, _)| is_new && leaves && !rest.iter().any(|(own, _)| own == name));
            for (device, bytes) in gone.iter().chain(others) {
                *self.freed.entry(device.clone()).or_default() += bytes;
            }
            object.note_left(gone);
        }
        overlap.end();
        let name = self.objects.last().map_or("?", |object| object.name);
        if has_left {
            Ok(())
        } else {
            Err(Obstacle::NotNow(format!("an object of type {name} keeps its device memory")))
        }
    }

    /// Brings all of it back.
    ///
    /// # Errors
    /// It is out as before, unless it is torn.
    pub fn come_back(&self, session: &Arc<Session>) -> Result<(), NotBack> {
        let memory = self.memory.as_ref();
        if !self.dropped.is_empty() {
            // All of them are made at once. Without an answer the calls below fail, or this process ends.
            let all = sum_of(self.objects.iter().map(|object| &object.left));
            let _ = session.orders.as_ref().is_none_or(|orders| session.tables.overlap.await_credit(orders, all));
        }
        if let Err(error) = self.dropped.remake(session) {
            return Err(NotBack { what: error.to_string(), torn: !self.dropped.release(session) });
        }
        let out: Vec<&Movable> = self.objects.iter().filter(|object| !object.stays).collect();
        let back =
            out.iter().take_while(|object| object.may_come_back(session) && object.come_back(session, memory)).count();
        let Some(object) = out.get(back) else { return Ok(()) };
        // What is back is the same as its copy.
        let mut torn = out[..back].iter().any(|object| !object.leave(session, memory));
        torn |= !self.dropped.release(session);
        Err(NotBack { what: format!("{}: the device memory of an object did not return", object.name), torn })
    }

    pub fn objects(&self) -> u64 {
        self.objects.len() as u64
    }

    /// Bytes of shared devices that are there and can leave, too: none of objects that leave together or not at all.
    pub fn rest(&self, session: &Session) -> u64 {
        let rest = self.objects.iter().map(|object| object.remains(session)).fold(0, u64::saturating_add);
        if self.dropped.is_empty() { rest } else { 0 }
    }
}
