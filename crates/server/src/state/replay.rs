//! Making one recorded call again.

use std::collections::BTreeMap;
use std::sync::Arc;

use aviary_state::{Content, Effect, Owner, Record, Store};
use aviary_wire::RequestHeader;

use super::errors::RebuildError;
use super::replayed::ReplayedCall;
use crate::api::CurrentObject;
use crate::call::Call;
use crate::lane::dispatch::{Outcome, run};
use crate::lane::ended::LaneEnded;
use crate::session::Session;

/// The part that all records of a snapshot share while their calls are made again.
pub(super) struct Replay {
    pub session: Arc<Session>,
    pub store: Arc<Store>,
    /// By type and name: the ids of objects that another process finds by their names.
    pub ids: Arc<BTreeMap<(u32, String), u64>>,
    /// The records are those of the session's own log.
    pub is_logged: bool,
}

impl Replay {
    pub fn name(&self, record: &Record) -> &'static str {
        self.session.api.functions.get(record.function as usize).map_or("?", |function| function.name)
    }

    /// Makes the call again. What it makes gets the ids that the guest holds.
    pub fn make(&self, record: &Record) -> Result<(), RebuildError> {
        let function = self.name(record);
        let damaged = |reason: String| RebuildError::Damaged { function: function.to_owned(), reason };
        let request: &[u8] = match &record.request {
            Content::Inline(bytes) => bytes,
            stored => self.store.bytes_of(stored).unwrap_or_default(),
        };
        let (header, _) = RequestHeader::parse(request).map_err(|error| damaged(error.to_string()))?;
        if header.function != record.function {
            return Err(damaged("its message is another function's".into()));
        }
        let handles = &self.session.objects.handles;
        self.set_current(record).map_err(|()| damaged("the object that it needs to be current cannot be".into()))?;
        handles.expect(&record.outputs);
        let mut call = Call::new(self.session.clone(), handles.in_use.lane(), lane_of(record));
        *call.request.bytes = request.to_vec();
        let mut replayed = ReplayedCall::new(record.clone(), self.store.clone(), self.ids.clone());
        replayed.is_logged = self.is_logged;
        call.replayed = Some(Box::new(replayed));
        let outcome = run(&mut call, header);
        let replayed = call.replayed.take();
        let is_complete = replayed.as_ref().is_none_or(|replayed| replayed.memory.is_complete());
        let found = replayed.map(|replayed| replayed.found).unwrap_or_default();
        match outcome {
            Ok(Outcome::Done { success: true, .. }) if found != record.same => {
                return Err(RebuildError::NotSame { function, found, expected: record.same.clone() });
            }
            Ok(Outcome::Done { success: true, .. }) => {}
            Ok(Outcome::Done { error, .. }) => return Err(RebuildError::Failed { function, error }),
            Ok(Outcome::Rejected(reject)) => return Err(damaged(format!("{reject:?}"))),
            Err(LaneEnded::Broken(reason)) => return Err(damaged(reason)),
            Err(LaneEnded::Closed | LaneEnded::Paused) => return Err(damaged("the session is over".into())),
        }
        if !is_complete && record.effect == Effect::Makes {
            return Err(RebuildError::Memory { function });
        }
        handles.compare(&record.outputs).map_err(|difference| RebuildError::Different { function, difference })
    }
}

impl Replay {
    /// The object that was current when the call was made is so again. Calls of a thread follow one another there.
    fn set_current(&self, record: &Record) -> Result<(), ()> {
        let Some(CurrentObject { ty, set, .. }) = self.session.api.current else { return Ok(()) };
        if record.owners.iter().any(|owner| matches!(owner, Owner::Thread(_))) {
            return Ok(());
        }
        let native = match record.current {
            0 => 0,
            id => self.session.objects.handles.native(ty, id).ok_or(())?,
        };
        // SAFETY: the specification's own function; the object is alive, or 0 for none.
        if unsafe { set(native) } == 0 { Ok(()) } else { Err(()) }
    }

    /// No object is current on this thread any longer.
    pub fn unset_current(&self) {
        if let Some(CurrentObject { set, .. }) = self.session.api.current {
            // SAFETY: as above.
            unsafe { set(0) };
        }
    }
}

fn lane_of(record: &Record) -> u32 {
    let lane = |owner: &Owner| match owner {
        Owner::Thread(lane) => Some(*lane),
        _ => None,
    };
    record.owners.iter().find_map(lane).unwrap_or_default()
}
