//! How processes of one run, and other runs, know what belongs to it.

use aviary_node::private_nodes;
use std::time::{Duration, Instant};

/// Longest wait for nodes of other runs that are about to end.
const MAX_WAIT_FOR_OTHERS: Duration = Duration::from_secs(5);
/// A file in the directory of a node that waits for the end of its API servers only.
pub const ENDING: &str = "ending";
/// The variable of all processes of a program, with a value that no other run has.
pub const MARK: &str = "AVIARY_RUN";

/// Waits until nodes of this user whose programs have ended have released their devices: the next program of a script finds them free,
/// as without Aviary.
pub fn wait_for_ending_nodes() {
    let until = Instant::now() + MAX_WAIT_FOR_OTHERS;
    let ends = || private_nodes().iter().any(|socket| socket.with_file_name(ENDING).exists());
    while ends() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
}
