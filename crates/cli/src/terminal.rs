//! Output of commands: parts of a node's answers.

use aviary_wire::Shown;
use std::fmt::Display;

/// One line. Names in it are those of guests' programs, APIs and resources: a terminal obeys nothing of them.
pub fn say(line: impl Display) {
    println!("{}", Shown(line));
}
