//! Objects that are made again in their own process: the vendor's library has given them back, and the calls of the session's
//! log make them again, together with what was set on others.
//!
//! Objects that were made of one another leave together or stay together: a part of a buffer would otherwise keep the old
//! buffer.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use aviary_state::{Effect, Owner, Record};
use aviary_wire::HandleId;

use super::capture::without_ended_callbacks;
use super::errors::{MAX_REFERENCES, NotMovable, RebuildError};
use super::object_log::LoggedState;
use super::rebuild::count_references;
use super::replay::Replay;
use crate::callbacks::closures::ClosureLifetime;
use crate::handles::image::LiveObject;
use crate::session::Session;

/// True of objects of types that are given back.
fn is_dropped(session: &Session, id: u64) -> bool {
    let info = session.api.handle_types.get(HandleId::type_of_word(id));
    info.and_then(|info| info.evictable).is_some_and(|functions| functions.drop.is_some())
}

/// What the record makes or changes, as far as these are objects.
fn owned(record: &Record) -> impl Iterator<Item = u64> {
    record.owners.iter().filter_map(|owner| owner.object())
}

/// Why nothing of the session can be made again.
///
/// # Errors
/// That.
pub fn check(session: &Session, objects: &[LiveObject]) -> Result<(), NotMovable> {
    let kept = session.objects.log.lock();
    let function = kept.blocked_by.and_then(|function| session.api.functions.get(function as usize));
    if let Some(function) = function {
        return Err(NotMovable::BlockedByCall { function: function.name, why: function.blocker.unwrap_or_default() });
    }
    if kept.log.is_overflown() {
        return Err(NotMovable::LogTooLarge);
    }
    if !session.objects.log.is_on() {
        return Err(NotMovable::NotRecorded);
    }
    let types =
        objects.iter().filter_map(|object| session.api.handle_types.get(HandleId::type_of_word(object.image.id)));
    let blocked = types.filter_map(|info| Some((info.name, info.blocker?))).next();
    blocked.map_or(Ok(()), |(of, why)| Err(NotMovable::Blocked { of, why }))
}

/// Of the willing ones, those that recorded calls make again as they are: in the order in which they were made.
pub fn able(session: &Session, objects: &[LiveObject], willing: impl IntoIterator<Item = u64>) -> Vec<u64> {
    let mut leaves: HashSet<u64> = willing.into_iter().collect();
    let live: HashSet<u64> = objects.iter().map(|object| object.image.id).collect();
    let kept = session.objects.log.lock();
    let is_steady = |object: &LiveObject| {
        let image = &object.image;
        !object.is_busy && !image.borrowed && (1..=MAX_REFERENCES).contains(&image.references)
    };
    objects.iter().filter(|object| !is_steady(object)).for_each(|object| _ = leaves.remove(&object.image.id));
    // A call that waits for room has looked its objects up.
    session.objects.handles.in_use.of_lanes().iter().for_each(|id| _ = leaves.remove(id));
    leaves.retain(|id| kept.log.makes(*id));
    let callbacks = session.objects.registered_callbacks().into_iter().collect();
    let stays = |record: &Record, leaves: &HashSet<u64>| bound(session, record, (leaves, &live), &callbacks);
    loop {
        let staying: Vec<u64> = kept.log.records().flat_map(|record| stays(record, &leaves)).collect();
        if staying.is_empty() {
            break;
        }
        staying.iter().for_each(|id| _ = leaves.remove(id));
    }
    let made = kept.log.records().filter(|record| record.effect == Effect::Makes);
    made.flat_map(owned).filter(|id| leaves.contains(id)).collect()
}

/// The objects that cannot leave because of this call.
fn bound(
    session: &Session,
    record: &Record,
    (leaves, live): (&HashSet<u64>, &HashSet<u64>),
    callbacks: &HashMap<u64, ClosureLifetime>,
) -> Vec<u64> {
    let touched = || owned(record).chain(record.inputs.iter().copied());
    let leaving = || touched().filter(|id| leaves.contains(id)).collect::<Vec<_>>();
    if leaving().is_empty() || !owned(record).any(|id| live.contains(&id)) && record.effect != Effect::Makes {
        return Vec::new();
    }
    let made_or_changed = owned(record).any(|id| leaves.contains(&id));
    let can_be_repeated = record.inputs.iter().all(|id| live.contains(id))
        && !record.callbacks.iter().any(|number| callbacks.contains_key(number))
        && record.owners.iter().all(|owner| matches!(owner, Owner::Object(_)));
    let together = touched().filter(|id| is_dropped(session, *id)).all(|id| leaves.contains(&id));
    let fine = match (record.effect, made_or_changed) {
        (Effect::Makes | Effect::Changes, true) => {
            can_be_repeated && together && owned(record).all(|id| leaves.contains(&id))
        }
        // Set on something that has no memory, and stays.
        (Effect::Changes, false) => can_be_repeated && together,
        // Made of something that leaves, and stays itself.
        (Effect::Makes, false) => false,
        (Effect::Retains | Effect::GivesBack | Effect::Ends, _) => true,
    };
    if fine { Vec::new() } else { leaving() }
}

/// Makes the absent objects again, each with so many references, and sets them where they were set.
///
/// # Errors
/// They are absent as before; those that were made again are found under their ids and have to be given back.
pub fn remake(session: &Arc<Session>, objects: &HashMap<u64, u64>) -> Result<(), RebuildError> {
    let callbacks = session.objects.registered_callbacks().into_iter().collect();
    let (records, store) = excerpt(session, &session.objects.log.lock(), objects);
    let records: Vec<Record> = records.iter().map(|record| without_ended_callbacks(record, &callbacks)).collect();
    let replay = Replay { session: session.clone(), store: Arc::new(store), ids: Arc::default(), is_logged: true };
    let handles = &session.objects.handles;
    handles.begin_remaking();
    if let Err(error) = make_all(&replay, &records, objects) {
        handles.stop_remaking();
        return Err(error);
    }
    Ok(handles.end_remaking()?)
}

fn excerpt(session: &Session, kept: &LoggedState, objects: &HashMap<u64, u64>) -> (Vec<Record>, aviary_state::Store) {
    let is_there = |id: u64| objects.contains_key(&id) || session.objects.handles.references(id).is_some();
    kept.log.excerpt(|record| match record.effect {
        Effect::Makes | Effect::Retains | Effect::GivesBack => owned(record).any(|id| objects.contains_key(&id)),
        Effect::Changes => {
            let mut touched = owned(record).chain(record.inputs.iter().copied());
            touched.any(|id| objects.contains_key(&id)) && owned(record).all(is_there)
        }
        Effect::Ends => false,
    })
}

fn make_all(replay: &Replay, records: &[Record], objects: &HashMap<u64, u64>) -> Result<(), RebuildError> {
    let mut of_life: HashMap<(Effect, u64), &Record> = HashMap::new();
    for record in records {
        match (record.effect, record.owners.as_slice()) {
            (Effect::Retains | Effect::GivesBack, [Owner::Object(id)]) => {
                _ = of_life.insert((record.effect, *id), record);
            }
            _ => replay.make(record)?,
        }
    }
    let done = objects.iter().try_for_each(|(id, count)| count_references(replay, (*id, *count), &of_life));
    replay.unset_current();
    done
}
