//! `aviary migrate`: moves a session to a fresh API server while its program runs.

use crate::operate::terminal::say;
use crate::operate::which_node::WhichNode;
use anyhow::anyhow;
use aviary_node::{MoveBegun, MoveFigures, MoveRequest, MoveStatus, NodeError, Request, ask};
use clap::Args;
use std::{
    path::Path,
    process::ExitCode,
    time::{Duration, Instant},
};

/// Interval of the questions about a move.
const ASK_AGAIN: Duration = Duration::from_millis(5);
/// First pause after a failed attempt; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Default of `--stop`, in milliseconds.
pub const USUAL_STOP_MS: u64 = 4000;
/// The part of `--stop` for which one attempt that fails may hold a program up.
const ATTEMPTS_IN_STOP: u64 = 10;

/// Milliseconds that one attempt has until all threads are paused and the devices are done.
pub fn attempt_ms(stop_ms: u64) -> u64 {
    (stop_ms / ATTEMPTS_IN_STOP).max(1)
}

/// Move a session to a fresh API server while its program runs.
///
/// The program notices one long call. All sessions of its process move together. If the move fails, the session
/// continues where it was and the reason is printed. While the obstacle may pass (a call that has not returned), the
/// move is retried for the time of --wait.
#[derive(Args)]
pub struct MigrateCommand {
    /// The number of the session, as `aviary ps` lists it.
    #[arg(value_name = "SESSION")]
    session: u64,
    /// Only report whether it could be moved and how long that would take: it is paused for a moment and stays where it is.
    #[arg(long)]
    check: bool,
    /// How long to retry while the obstacle may pass, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    wait: f64,
    #[command(flatten)]
    attempt: AttemptOptions,
}

// No documentation comment: clap would take it for that of the commands which have these options.
// What attempts to pause a session for a while have in common: how long it may be held up, at which node, how that is printed.
#[derive(Args)]
pub struct AttemptOptions {
    /// How long the program may be held up for nothing, in milliseconds: an attempt that fails holds it for a tenth of that
    /// at most, until all its threads are paused and its devices are done.
    #[arg(long, value_name = "MS", default_value_t = USUAL_STOP_MS)]
    pub stop: u64,
    #[command(flatten)]
    pub node: WhichNode,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

pub fn run(command: &MigrateCommand) -> anyhow::Result<ExitCode> {
    let wait = seconds(command.wait)?;
    let socket = command.attempt.node.socket();
    let request = MoveRequest {
        session: command.session,
        check: command.check,
        park: false,
        stop_ms: attempt_ms(command.attempt.stop),
        halt: None,
    };
    let status = attempts(&socket, &request, wait)?;
    if command.attempt.json {
        println!("{}", serde_json::to_string_pretty(&status)?);
    } else {
        print(command.session, &status);
    }
    Ok(ExitCode::from(u8::from(matches!(status, MoveStatus::Refused { .. }))))
}

/// The value of `--wait`.
pub fn seconds(wait: f64) -> anyhow::Result<Duration> {
    Duration::try_from_secs_f64(wait).map_err(|_| anyhow!("--wait {wait}: expected seconds"))
}

/// Repeats the attempt for as long as `wait` while the obstacle may pass.
pub fn attempts(socket: &Path, request: &MoveRequest, wait: Duration) -> Result<MoveStatus, NodeError> {
    let (begun, mut pause) = (Instant::now(), FIRST_PAUSE);
    loop {
        let status = attempt(socket, request)?;
        let passes = matches!(status, MoveStatus::Refused { lasting: false, .. });
        if !passes || begun.elapsed() + pause > wait {
            return Ok(status);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// One attempt, until it has succeeded or failed.
fn attempt(socket: &Path, request: &MoveRequest) -> Result<MoveStatus, NodeError> {
    let MoveBegun { number } = ask(socket, &Request::Migrate(request.clone()))?;
    loop {
        match ask(socket, &Request::MoveStatus(number))? {
            MoveStatus::UnderWay(_) => std::thread::sleep(ASK_AGAIN),
            status => return Ok(status),
        }
    }
}

fn print(session: u64, status: &MoveStatus) {
    match status {
        MoveStatus::Moved(figures) => {
            let with = with_others(figures);
            say(format_args!("session {session}{with} moved to API server {}: {}", figures.server, times(figures)));
        }
        MoveStatus::Movable(figures) => {
            let with = with_others(figures);
            say(format_args!("session {session}{with} can be moved: {}", times(figures)));
        }
        MoveStatus::Refused { reason, lasting } => {
            let when = if *lasting { "" } else { " now" };
            eprintln!("aviary: session {session} cannot be moved{when}: {reason}");
        }
        other => {
            eprintln!(
                "aviary: session {session}: unexpected answer of the node ({other:?}): node and command may differ in version"
            );
        }
    }
}

pub fn with_others(figures: &MoveFigures) -> String {
    match figures.sessions {
        0 | 1 => String::new(),
        sessions => format!(", and {} more of its program,", sessions - 1),
    }
}

fn times(figures: &MoveFigures) -> String {
    let ms = |us: u64| us as f64 / 1000.0;
    let MoveFigures { bytes, stop_us, drain_us, capture_us, rebuild_us, prepare_us, stood_us, .. } = figures;
    format!(
        "it was paused for {:.1} ms (stop {:.1}, drain {:.1}, capture {:.1}, rebuild {:.1}) after {:.1} ms of \
         preparation, {bytes} bytes of state",
        ms(*stood_us),
        ms(*stop_us),
        ms(*drain_us),
        ms(*capture_us),
        ms(*rebuild_us),
        ms(*prepare_us),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempt_that_fails_holds_a_program_for_a_tenth_of_stop() {
        assert_eq!((attempt_ms(USUAL_STOP_MS), attempt_ms(80), attempt_ms(0)), (400, 8, 1));
    }

    #[test]
    fn figures_are_told_in_milliseconds() {
        let (prepare_us, stood_us) = (30_000, 20_000);
        let figures =
            MoveFigures { sessions: 2, bytes: 7, stop_us: 1500, prepare_us, stood_us, ..MoveFigures::default() };
        let paused = "it was paused for 20.0 ms (stop 1.5, drain 0.0, capture 0.0, rebuild 0.0)";
        assert_eq!(times(&figures), format!("{paused} after 30.0 ms of preparation, 7 bytes of state"));
        assert_eq!(with_others(&figures), ", and 1 more of its program,");
    }
}
