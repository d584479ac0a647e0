//! A session from a snapshot.

use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use std::sync::Arc;

use aviary_gate::Charges;
use aviary_state::{Effect, Holding, Owner, Record, Snapshot, SnapshotReader, StateChunk, Store};
use aviary_wire::HandleId;

use super::errors::{MAX_REFERENCES, MAX_REMADE_BYTES, RebuildError};
use super::replay::Replay;
use crate::session::Session;

/// Names in the process that wrote a snapshot, and what stands for them here: another device, for example. A name that
/// is not in it is the same.
#[derive(Debug, Clone, Default)]
pub struct Places {
    pub identities: BTreeMap<String, String>,
}

/// The part of a snapshot that only threads of the new session can make again.
pub struct Rebuilt {
    /// By the number of their lane, in order.
    threads: BTreeMap<u32, Vec<Record>>,
    store: Arc<Store>,
}

/// Makes the objects of a snapshot again, in a session that has none and whose lanes do not run yet. The arena is the one
/// that the old session had. Nothing is charged: the amounts are tied to the objects, and it is the caller's business
/// that the accounts contain them.
///
/// A session for which this fails is good for nothing but to be ended.
pub fn rebuild(session: &Arc<Session>, from: &mut dyn Read, places: &Places) -> Result<Rebuilt, RebuildError> {
    session.objects.set_rebuilding(true);
    let result = rebuild_muted(session, from, places);
    session.objects.set_rebuilding(false);
    result
}

fn rebuild_muted(session: &Arc<Session>, from: &mut dyn Read, places: &Places) -> Result<Rebuilt, RebuildError> {
    let (mut reader, snapshot, store) = SnapshotReader::begin(from)?;
    let api = session.api;
    if snapshot.identity.api != api.name || snapshot.identity.spec_hash != api.spec_hash {
        return Err(RebuildError::OtherApi);
    }
    session.objects.handles.begin_rebuilding(&snapshot)?;
    let store = Arc::new(store);
    let replay = Replay {
        session: session.clone(),
        store: store.clone(),
        ids: Arc::new(ids(&snapshot, places)),
        is_logged: false,
    };
    let mut rebuilt = Rebuilt { threads: BTreeMap::new(), store };
    let mut of_life: HashMap<(Effect, u64), &Record> = HashMap::new();
    for record in &snapshot.records {
        match (record.effect, record.owners.as_slice()) {
            (Effect::Retains | Effect::GivesBack, [Owner::Object(id)]) => {
                _ = of_life.insert((record.effect, *id), record)
            }
            (_, [Owner::Thread(lane)]) => rebuilt.threads.entry(*lane).or_default().push(record.clone()),
            _ => replay.make(record)?,
        }
    }
    for object in &snapshot.objects {
        count_references(&replay, (object.id, object.references), &of_life)?;
    }
    let references: HashMap<u64, u64> = snapshot.objects.iter().map(|object| (object.id, object.references)).collect();
    replay.unset_current();
    while let Some(chunk) = reader.state()? {
        restore(session, &chunk, &references)?;
    }
    for ended in session.objects.handles.end_rebuilding(&snapshot)? {
        session.objects.log.object_ended(ended);
        session.resident_owner_ended(ended);
    }
    tie_charges(session, &snapshot)?;
    // A thread that used an object which has ended had that in no use any longer.
    for records in rebuilt.threads.values_mut() {
        records.retain(|record| record.inputs.iter().all(|id| session.objects.handles.references(*id).is_some()));
    }
    session.show_handles();
    Ok(rebuilt)
}

/// Makes the recorded calls of one thread again, on the shadow thread that takes its place.
pub fn rebuild_thread(session: &Arc<Session>, rebuilt: &Rebuilt, lane: u32) -> Result<(), RebuildError> {
    let replay =
        Replay { session: session.clone(), store: rebuilt.store.clone(), ids: Arc::default(), is_logged: false };
    rebuilt.threads.get(&lane).into_iter().flatten().try_for_each(|record| replay.make(record))
}

fn ids(snapshot: &Snapshot, places: &Places) -> BTreeMap<(u32, String), u64> {
    let named = snapshot.objects.iter().filter_map(|object| Some((object.id, object.identity.as_ref()?)));
    let here = |name: &String| places.identities.get(name).unwrap_or(name).clone();
    named.map(|(id, name)| ((HandleId::type_of_word(id) as u32, here(name)), id)).collect()
}

/// Repeats the call that took, or gave back, a reference until the guest's count is right.
pub(super) fn count_references(
    replay: &Replay,
    (id, expected): (u64, u64),
    of_life: &HashMap<(Effect, u64), &Record>,
) -> Result<(), RebuildError> {
    let handles = &replay.session.objects.handles;
    let mut calls = 0;
    while let Some(found) = handles.references(id).filter(|found| *found != expected) {
        let effect = if found < expected { Effect::Retains } else { Effect::GivesBack };
        let of = replay.session.api.handle_types.get(HandleId::type_of_word(id)).map_or("?", |ty| ty.name);
        let record = of_life.get(&(effect, id)).filter(|_| calls < MAX_REFERENCES);
        let record = record.ok_or(RebuildError::References { of, found, expected })?;
        replay.make(record)?;
        calls += 1;
    }
    Ok(())
}

fn tie_charges(session: &Session, snapshot: &Snapshot) -> Result<(), RebuildError> {
    let charges = |holdings: &[Holding]| -> Result<Charges, RebuildError> {
        let mut charges = Charges::default();
        for Holding { resource, devices, amount } in holdings {
            let item = session.accounts.gate.residency(*resource as usize, devices);
            charges.add(item.map_err(|error| RebuildError::Accounts(error.to_string()))?, *amount);
        }
        Ok(charges)
    };
    for object in &snapshot.objects {
        session.objects.handles.set_holding(object.id, charges(&object.holdings)?);
    }
    let kept = snapshot.kept.iter().map(|(number, holdings)| Ok((*number, charges(holdings)?)));
    session.objects.handles.quota.resume(snapshot.handles);
    session.objects.log.resume(snapshot.log);
    session.accounts.set_other_charges(charges(&snapshot.unbound)?, kept.collect::<Result<_, RebuildError>>()?);
    Ok(())
}

/// `references`: of the snapshot's objects, by id.
fn restore(session: &Session, chunk: &StateChunk, references: &HashMap<u64, u64>) -> Result<(), RebuildError> {
    let (from, bytes) = (chunk.bytes.as_ptr().cast(), chunk.bytes.len());
    if chunk.id == 0 {
        let of = session.api.name;
        let state = session.api.state.ok_or(RebuildError::State { of })?;
        // SAFETY: the specification's own function; the chunk has as many bytes as it says. An offset that the state does
        // not have is for that function to refuse: the contract of the language says so.
        let restored = unsafe { (state.read)(chunk.offset, from, bytes) };
        return if restored == 0 { Ok(()) } else { Err(RebuildError::State { of }) };
    }
    let ty = HandleId::type_of_word(chunk.id);
    let info = session.api.handle_types.get(ty);
    let of = info.map_or("?", |ty| ty.name);
    let native = session.objects.handles.native(ty as u32, chunk.id);
    if let (None, Some(remade)) = (native, info.and_then(|info| info.remade)) {
        let references = references.get(&chunk.id).copied().filter(|count| (1..=MAX_REFERENCES).contains(count));
        let is_whole = chunk.offset == 0 && bytes <= MAX_REMADE_BYTES;
        let references = references.filter(|_| is_whole).ok_or(RebuildError::State { of })?;
        // SAFETY: the specification's own function; the chunk has as many bytes as it says. What they say is for that
        // function to check: the contract of the language says so.
        let native = unsafe { (remade.make)(references, from, bytes) };
        if native == 0 || !session.objects.handles.enter_remade(chunk.id, native, references) {
            return Err(RebuildError::State { of });
        }
        // SAFETY: as above, for the object that was just made.
        let loaded = unsafe { (remade.load)(native, from, bytes) };
        return if loaded == 0 { Ok(()) } else { Err(RebuildError::State { of }) };
    }
    let state = session.objects.log.lock().states.get(&chunk.id).copied();
    let (Some(native), Some(state)) = (native, state) else { return Err(RebuildError::State { of }) };
    // SAFETY: as above, for an object that was just made.
    let restored = unsafe { (state.read)(native, chunk.offset, from, bytes) };
    if restored == 0 { Ok(()) } else { Err(RebuildError::State { of }) }
}
