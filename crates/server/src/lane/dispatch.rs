//! Running the handler of a message, and committing or undoing what the call noted.
//!
//! Lanes run the guest's messages, the control loop those that waited for others, a rebuild those of the object log.

use std::any::Any;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use aviary_wire::RequestHeader;

use crate::api::{Handler, Reject};
use crate::call::Call;
use crate::callbacks::closures::{CallbackOwner, ClosureLifetime};
use crate::handles::in_use::LaneUses;
use crate::lane::current;
use crate::lane::ended::LaneEnded;
use crate::session::Session;
use crate::tables::deferred_outputs::DeferredOutput;

/// A generated handler: it is called with a call that was set up for its function's message.
pub type HandlerFunction = unsafe fn(&mut Call) -> Result<(), Reject>;

/// A generated handler as its API's table has it.
pub const fn handler(function: HandlerFunction) -> Handler {
    // SAFETY: the two types differ in what one pointer points to, so that they are called alike. `call_handler` passes a
    // call.
    Handler(unsafe { std::mem::transmute::<HandlerFunction, unsafe fn(*mut c_void) -> Result<(), Reject>>(function) })
}

/// # Safety
/// The call was set up for the message of this handler's function.
unsafe fn call_handler(Handler(handler): Handler, call: &mut Call) -> Result<(), Reject> {
    // SAFETY: [`handler`] has made it of a function that takes a call; the rest is the caller's promise.
    unsafe { handler(std::ptr::from_mut(call).cast()) }
}

/// How a handler ended.
#[derive(Debug, Clone, Copy)]
pub enum Outcome {
    Done { success: bool, error: i64 },
    Rejected(Reject),
}

/// Makes calls that had to wait for others, one of which may have been the last one of this lane. Their tickets are over, and
/// the program has their answers.
#[cold]
pub fn serve_deferred_ends(session: &Arc<Session>, uses: &Arc<LaneUses>, lane: u32) -> Result<(), LaneEnded> {
    for message in session.calls.deferred_ends.take() {
        let (header, _) = RequestHeader::parse(&message).map_err(|e| LaneEnded::Broken(e.to_string()))?;
        let mut call = Box::new(Call::new(session.clone(), uses.clone(), lane));
        *call.request.bytes = message;
        run(&mut call, header)?;
    }
    Ok(())
}

/// Runs the handler of the message in `call.request` and commits or undoes what it noted.
#[inline(always)]
pub fn run(call: &mut Call, header: RequestHeader) -> Result<Outcome, LaneEnded> {
    let Some(function) = call.session.api.functions.get(header.function as usize) else {
        return Err(LaneEnded::Broken(format!("function number {} does not exist", header.function)));
    };
    call.start(header);
    if call.session.accounts.policy.denies(header.function) && call.replayed.is_none() {
        let refused = call.session.accounts.deny(header.function);
        if !function.late {
            return Ok(reject(call, refused));
        }
        call.work.denied = Some(refused);
    }
    if function.waits {
        call.offer_wait();
    }
    // SAFETY: the call was set up for this function's message just now.
    let handled = caught(|| unsafe { call_handler(function.handler, call) });
    let (success, error) = call.reply.result.unwrap_or((true, 0));
    match handled {
        Ok(()) if call.request.trailing() => {
            broken(call, function.name, "the message has more fields than the specification says")
        }
        Ok(()) => {
            conclude(call, success);
            Ok(Outcome::Done { success, error })
        }
        Err(Reject::Malformed(what)) => broken(call, function.name, what),
        Err(Reject::Busy) => Ok(busy(call)),
        // Nothing is undone: the session is another process's, or over.
        Err(Reject::Over) => Err(LaneEnded::Closed),
        Err(why) => Ok(reject(call, why)),
    }
}

/// The call would end an object that calls of other threads use. One that has no answer is made when those are over.
#[cold]
fn busy(call: &mut Call) -> Outcome {
    if call.request.is_async() && call.session.calls.deferred_ends.add(&call.request.bytes) {
        undo(call);
        return Outcome::Done { success: true, error: 0 };
    }
    call.session.peer.journal.note(&format!(
        "{}: calls of other threads still use the object: it is kept until the session ends",
        call.function_name()
    ));
    reject(call, Reject::Busy)
}

#[cold]
fn reject(call: &mut Call, why: Reject) -> Outcome {
    call.abandon_untils();
    undo(call);
    Outcome::Rejected(why)
}

/// What a part of a handler answers, also where it unwinds.
#[inline(always)]
pub fn caught(part: impl FnOnce() -> Result<(), Reject>) -> Result<(), Reject> {
    catch_unwind(AssertUnwindSafe(part)).unwrap_or_else(|panic| Err(rejected_by(panic)))
}

/// A handler unwinds with a `Reject` when it asks for too much memory; anything else is a mistake in it.
fn rejected_by(panic: Box<dyn Any + Send>) -> Reject {
    panic.downcast_ref::<Reject>().copied().unwrap_or(Reject::Malformed("internal error: its handler panicked"))
}

#[cold]
fn broken(call: &mut Call, function: &str, what: &str) -> Result<Outcome, LaneEnded> {
    undo(call);
    let detail = call.request.complaint.map(|c| format!(": {c}")).unwrap_or_default();
    Err(LaneEnded::Broken(format!("{function}: {what}{detail}")))
}

/// Undoes what a call did that the handler did not end.
#[cold]
fn undo(call: &mut Call) {
    conclude(call, false);
}

/// Commits what the call noted for its success, or undoes what it did before it failed.
#[inline(always)]
fn conclude(call: &mut Call, success: bool) {
    // A call that was rejected after it had got the device.
    if call.work.stay.is_some() {
        call.vacate();
    }
    if success {
        // As long as the call's objects cannot end.
        call.keep_record();
    }
    // Before the guest has its answer, upon which another thread of it may end what this call has used.
    call.forget_uses();
    let rare = call.effects.rare.is_touched();
    if rare {
        end_closures(call, success);
    }
    if call.effects.reserved > 0 {
        call.session.return_handles(std::mem::take(&mut call.effects.reserved));
    }
    if rare {
        call.leave_states(success);
    }
    let kept = current::take_kept();
    if !success {
        if rare {
            keep_mapped(call);
        }
        return call.session.accounts.settle(&mut call.effects.holding);
    }
    let created = call.effects.rare.on_success.created;
    match kept {
        Some(number) => call.session.accounts.keep(number, &mut call.effects.holding),
        None => call.session.hold(created, &mut call.effects.holding),
    }
    if rare {
        commit_rare(call);
    }
}

/// Ends the callbacks that cannot come any more.
#[inline(never)]
fn end_closures(call: &mut Call, success: bool) {
    for (key, life) in call.effects.rare.closures.drain(..) {
        if !success || life == ClosureLifetime::Call {
            call.session.clone().end_closure(key);
        }
    }
}

/// What the call was to unmap stays mapped.
#[inline(never)]
fn keep_mapped(call: &mut Call) {
    let (unmapped, foreign) = (&call.effects.rare.on_success.unmapped, &call.session.tables.foreign);
    unmapped.iter().for_each(|id| foreign.keep(*id));
}

/// What the call noted for its success takes place.
#[inline(never)]
fn commit_rare(call: &mut Call) {
    let session = &call.session;
    let used = &call.effects.handles;
    let noted = &call.effects.rare.on_success;
    for (resource, amount) in &noted.uncharged {
        session.uncharge(*resource, *amount, used.iter().map(|h| h.id));
    }
    for until in noted.unmapped.iter().filter_map(|id| session.tables.foreign.end(*id)?.ready) {
        // The content was never asked for; its poll still has to be asked until it says yes.
        session.finish_later(DeferredOutput { until: Some(until), delivery: None, copy: None, keep: None });
    }
    if noted.unmapped_in_arena > 0 {
        session.tables.foreign.in_arena(-noted.unmapped_in_arena);
    }
    if !session.tables.memory.is_shared() {
        call.reply.regions.extend_from_slice(&noted.copied_back);
    }
}
