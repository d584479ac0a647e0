//! Making recorded calls again, in a fresh session.

use std::sync::Arc;

use aviary_wire::RequestHeader;

use crate::call::Call;
use crate::lane::{LaneEnded, Outcome, run};
use crate::object_log::RecordedCall;
use crate::session::Session;

/// Why an object could not be brought back.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// call {number} of the log ({function}) is damaged: {reason}
    #[error("call {number} of the log ({function}) is damaged: {reason}")]
    Damaged { number: usize, function: u32, reason: String },
    /// call {number} of the log ({function}) failed with {error}
    #[error("call {number} of the log ({function}) failed with {error}")]
    Failed { number: usize, function: u32, error: i64 },
}

/// Executes the calls of `log` in their order. What they create gets the ids that the guest already holds.
pub fn replay(session: &Arc<Session>, log: &[RecordedCall]) -> Result<(), ReplayError> {
    let result = log.iter().enumerate().try_for_each(|(number, record)| replay_one(session, number, record));
    session.handles.bind(None);
    result
}

fn replay_one(session: &Arc<Session>, number: usize, record: &RecordedCall) -> Result<(), ReplayError> {
    let function = record.function;
    let damaged = |reason: String| ReplayError::Damaged { number, function, reason };
    let (header, _) = RequestHeader::parse(&record.recording.request).map_err(|e| damaged(e.to_string()))?;
    session.handles.bind(Some(record.recording.replied.clone()));
    let mut call = Call::new(session.clone(), session.handles.in_use.lane());
    call.replayed = Some(Arc::new(record.clone()));
    call.request = record.recording.request.clone();
    match run(&mut call, header) {
        Ok(Outcome::Done { success: true, .. }) => Ok(()),
        Ok(Outcome::Done { error, .. }) => Err(ReplayError::Failed { number, function, error }),
        Ok(Outcome::Rejected(reject)) => Err(damaged(format!("{reject:?}"))),
        Err(LaneEnded::Broken(reason)) => Err(damaged(reason)),
        Err(LaneEnded::Closed | LaneEnded::Paused) => Err(damaged("the session is over".into())),
    }
}

#[cfg(test)]
#[path = "replay_tests.rs"]
mod tests;
