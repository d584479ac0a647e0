//! Output of commands: parts of a node's answers.

use aviary_wire::Shown;
use signal_hook::{consts::SIGPIPE, flag::register_conditional_shutdown};
use std::{
    fmt::Display,
    sync::{Arc, atomic::AtomicBool},
};

/// The status of a shell for a program that SIGPIPE has ended.
const UNREAD: i32 = 128 + SIGPIPE;

/// From here on a reader that has gone (`aviary ps | head`) ends this process without a word. Called when the node has answered:
/// what it does is an error with a text.
pub fn end_with_reader() {
    // Where it is refused, the print panics as before.
    let _ = register_conditional_shutdown(SIGPIPE, UNREAD, Arc::new(AtomicBool::new(true)));
}

/// One line. Names in it are those of guests' programs, APIs and resources: a terminal obeys nothing of them.
pub fn say(line: impl Display) {
    println!("{}", Shown(line));
}
