//! A session as a snapshot.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io::Write;
use std::sync::Arc;

use aviary_state::{Holding, Identity, Record, Snapshot, SnapshotWriter};
use aviary_wire::HandleId;

use super::errors::{MAX_REFERENCES, MAX_REMADE_BYTES, NotMovable};
use crate::api::{HandleTypeInfo, RemadeType, name_of};
use crate::callbacks::closures::ClosureLifetime;
use crate::handles::image::LiveObject;
use crate::session::Session;
use crate::state::object_log::LoggedState;

/// The type of an id that the session's own table issued.
const UNKNOWN_TYPE: HandleTypeInfo = HandleTypeInfo::plain("?", 8);

/// Writes the state of a session. No call is under way in it, the vendor library has finished what it was given, and
/// that stays so until this returns. The session itself is as before.
pub fn capture(session: &Arc<Session>, into: &mut dyn Write) -> Result<(), NotMovable> {
    if session.pause.is_dead() {
        return Err(NotMovable::Ended);
    }
    let kept = session.objects.log.lock();
    check(session, &kept)?;
    let table = session.objects.handles.image();
    check_objects(session, &kept, &table.objects)?;
    let callbacks: HashMap<u64, ClosureLifetime> = session.objects.registered_callbacks().into_iter().collect();
    check_callbacks(&kept, &callbacks)?;
    let (unbound, other) = session.accounts.other_charges();
    let holdings = |parts: &[(usize, u64)]| parts.iter().map(|part| holding(session, *part)).collect::<Vec<_>>();
    let head = Snapshot {
        identity: Identity { api: session.api.name.into(), spec_hash: session.api.spec_hash },
        slots: table.slots,
        free: table.free,
        guest_slots: table.guest_slots,
        objects: table
            .objects
            .iter()
            .map(|object| {
                // SAFETY: the object is alive, and no call ends it meanwhile.
                let name = |identity| unsafe { name_of(identity, object.native) };
                let identity = type_of(session, object).identity.filter(|_| object.image.borrowed).and_then(name);
                aviary_state::ObjectImage { identity, holdings: holdings(&object.holding), ..object.image.clone() }
            })
            .collect(),
        records: kept.log.records().map(|record| without_ended_callbacks(record, &callbacks)).collect(),
        unbound: holdings(&unbound),
        handles: session.objects.handles.quota.charged(),
        log: session.objects.log.charged(),
        kept: other.iter().map(|(number, parts)| (*number, holdings(parts))).collect(),
    };
    let mut writer = SnapshotWriter::begin(into, &head, kept.log.store())?;
    // Before explicit state, which takes longer: not all of them may be complete.
    for object in &table.objects {
        let HandleTypeInfo { name, remade, .. } = *type_of(session, object);
        if let Some(remade) = remade.filter(|_| !kept.log.makes(object.image.id)) {
            write_remade(&mut writer, object, remade, name)?;
        }
    }
    for object in &table.objects {
        if let Some(state) = kept.states.get(&object.image.id) {
            // SAFETY: the specification's own function for a live object; the piece has as many bytes as it says.
            let write = |offset, piece: &mut [u8]| unsafe {
                (state.write)(object.native, offset, piece.as_mut_ptr().cast(), piece.len())
            };
            write_state(&mut writer, object.image.id, write, type_of(session, object).name)?;
        }
    }
    if let Some(state) = session.api.state {
        // SAFETY: as above.
        let write = |offset, piece: &mut [u8]| unsafe { (state.write)(offset, piece.as_mut_ptr().cast(), piece.len()) };
        write_state(&mut writer, 0, write, session.api.name)?;
    }
    Ok(writer.end()?)
}

/// True if a call of the session may answer something else when it is made again. A parked session is made anew after its
/// last process has ended, so that this has to be tried before.
pub fn may_differ(session: &Session) -> bool {
    session.objects.log.lock().log.records().any(|record| !record.same.is_empty())
}

fn type_of(session: &Session, object: &LiveObject) -> &'static HandleTypeInfo {
    session.api.handle_types.get(HandleId::type_of_word(object.image.id)).unwrap_or(&UNKNOWN_TYPE)
}

fn check(session: &Session, kept: &LoggedState) -> Result<(), NotMovable> {
    let blocked_by = kept.blocked_by.and_then(|function| session.api.functions.get(function as usize));
    if let Some(function) = blocked_by {
        return Err(NotMovable::BlockedByCall { function: function.name, why: function.blocker.unwrap_or_default() });
    }
    if kept.log.is_overflown() {
        return Err(NotMovable::LogTooLarge);
    }
    if !session.objects.log.is_on() {
        return Err(NotMovable::NotRecorded);
    }
    let busy = |is_busy: bool, what| if is_busy { Err(NotMovable::Busy { what }) } else { Ok(()) };
    busy(session.calls.deferred_ends.any() || session.objects.holds_back(), "objects are about to end")?;
    let stays = session.tables.foreign.stays(|word| kept.log.makes(word));
    stays.map_or(Ok(()), |what| Err(NotMovable::Busy { what }))
}

fn check_objects(session: &Session, kept: &LoggedState, objects: &[LiveObject]) -> Result<(), NotMovable> {
    for object in objects {
        let HandleTypeInfo { name: of, blocker, remade, .. } = *type_of(session, object);
        if let Some(why) = blocker {
            return Err(NotMovable::Blocked { of, why });
        }
        if remade.is_none() && !kept.log.makes(object.image.id) {
            return Err(NotMovable::Unrecorded { of });
        }
        let references = object.image.references;
        if references > MAX_REFERENCES {
            return Err(NotMovable::References { of, references });
        }
        if object.is_busy {
            return Err(NotMovable::Busy { what: "a callback has an object" });
        }
    }
    Ok(())
}

/// A callback that is still to come must come from the new process, where only a recorded call registers it.
fn check_callbacks(kept: &LoggedState, callbacks: &HashMap<u64, ClosureLifetime>) -> Result<(), NotMovable> {
    let recorded: HashSet<u64> = kept.log.records().flat_map(|record| record.callbacks.iter().copied()).collect();
    let lost = |(number, life): (&u64, &ClosureLifetime)| *life == ClosureLifetime::Once && !recorded.contains(number);
    if callbacks.iter().any(lost) {
        return Err(NotMovable::Busy { what: "the library has not called back yet" });
    }
    Ok(())
}

pub(super) fn without_ended_callbacks(record: &Record, callbacks: &HashMap<u64, ClosureLifetime>) -> Record {
    let mut record = record.clone();
    record.callbacks.iter_mut().filter(|number| !callbacks.contains_key(number)).for_each(|number| *number = 0);
    record
}

fn holding(session: &Session, (item, amount): (usize, u64)) -> Holding {
    let resource = session.accounts.gate.resource(item).unwrap_or_default() as u32;
    let devices: BTreeSet<String> = session.accounts.gate.devices(item).into_iter().collect();
    Holding { resource, devices: devices.into_iter().collect(), amount }
}

/// `of`: the type, for messages.
fn write_remade(
    writer: &mut SnapshotWriter,
    object: &LiveObject,
    remade: RemadeType,
    of: &'static str,
) -> Result<(), NotMovable> {
    let mut bytes = [0u8; MAX_REMADE_BYTES];
    // SAFETY: the specification's own function for a live object; there is room for as many bytes as it says.
    let written = unsafe { (remade.save)(object.native, bytes.as_mut_ptr().cast(), bytes.len()) };
    let written = usize::try_from(written).map_err(|_| NotMovable::Incomplete { of })?;
    let bytes = bytes.get(..written).ok_or(NotMovable::State { of })?;
    Ok(writer.state(object.image.id, 0, bytes)?)
}

/// `of`: the type, for messages.
fn write_state(
    writer: &mut SnapshotWriter,
    id: u64,
    write: impl Fn(u64, &mut [u8]) -> i64,
    of: &'static str,
) -> Result<(), NotMovable> {
    let mut piece = vec![0u8; SnapshotWriter::CHUNK];
    let mut offset = 0;
    loop {
        let written = write(offset, &mut piece);
        let written = usize::try_from(written).ok().and_then(|written| piece.get(..written));
        let Some(bytes) = written else { return Err(NotMovable::State { of }) };
        if !bytes.is_empty() {
            writer.state(id, offset, bytes)?;
        }
        offset += bytes.len() as u64;
        if bytes.len() < SnapshotWriter::CHUNK {
            return Ok(());
        }
    }
}
