//! Runs callbacks.

use std::panic::{AssertUnwindSafe, catch_unwind};

use aviary_wire::{Decoder, Encoder, HEADER_SIZE};

use crate::connection::Connection;
use crate::connection::callbacks::CallbackEntry;
use crate::connection::incoming::Incoming;
use crate::descriptor::CallbackFn;
use crate::process::log;
use crate::process::unwind::{Foreign, stopping};

/// Runs a generated function for the application's. False: the runtime has made a mistake.
pub(crate) fn call(function: CallbackFn, incoming: &mut Incoming, thrown: &mut Option<Foreign>) -> bool {
    // SAFETY: a generated function that reads the fields of its kind of callback; the application
    // gave the function that it calls for exactly this kind.
    let result = catch_unwind(AssertUnwindSafe(|| stopping(|| unsafe { function(incoming) })));
    if result.is_err() {
        log::line("an error inside a callback");
        return false;
    }
    *thrown = result.ok().flatten();
    true
}

/// Runs the callback in `message`, whose fields begin at `at`, and writes the fields of its answer. An exception that
/// it throws is returned.
pub(crate) fn serve(
    connection: &'static Connection,
    message: Vec<u8>,
    at: usize,
    answer: &mut Encoder,
) -> Option<Foreign> {
    let mut thrown = None;
    if !run(connection, message, at, answer, &mut thrown) {
        answer.start();
        answer.word(1);
    }
    thrown
}

fn run(
    connection: &'static Connection,
    message: Vec<u8>,
    at: usize,
    answer: &mut Encoder,
    thrown: &mut Option<Foreign>,
) -> bool {
    let body = message.get(HEADER_SIZE..).unwrap_or(&[]);
    let mut fields = Decoder::resume(body, at);
    let Ok(id) = fields.word() else { return false };
    let at = fields.position();
    let Some(CallbackEntry { target, keeps, given, .. }) = connection.callbacks.resolve(id) else { return false };
    let Some(kind) = connection.descriptor.callbacks.get(target.kind as usize) else { return false };
    answer.word(0);
    let mut incoming = Incoming::new(&connection.handles, target, message, at, std::mem::take(answer)).with(given);
    let ran = call(kind.invoke, &mut incoming, thrown);
    let sound = incoming.sound();
    *answer = incoming.into_answer();
    connection.let_go(keeps);
    ran && sound && thrown.is_none()
}
