//! `aviary park` and `aviary unpark`: take a session off its devices while its program runs, and bring it back.

use crate::operate::migrate::{attempt_ms, attempts, seconds, with_others};
use crate::operate::terminal::say;
use crate::operate::which_node::WhichNode;
use aviary_node::{MoveRequest, MoveStatus, Request, UnparkStatus, ask};
use clap::Args;
use std::{
    path::Path,
    process::ExitCode,
    time::{Duration, Instant},
};

/// Interval of the questions about a session that comes back.
const ASK_AGAIN: Duration = Duration::from_millis(5);

/// Park a session: take it off its devices and keep its state in host memory.
///
/// The program keeps running. Its next call brings the session back and takes longer; `aviary unpark` brings it back
/// without a call. All sessions of the program are parked together. If parking fails, the session continues.
#[derive(Args)]
pub struct ParkCommand {
    /// The number of the session, as `aviary ps` lists it.
    #[arg(value_name = "SESSION")]
    session: u64,
    /// How long to retry while the obstacle may pass, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    wait: f64,
    /// How long the program may be held up for nothing, in milliseconds: an attempt that fails holds it for a tenth of that
    /// at most, until all its threads are paused and its devices are done.
    #[arg(long, value_name = "MS", default_value_t = crate::operate::migrate::USUAL_STOP_MS)]
    stop: u64,
    #[command(flatten)]
    node: WhichNode,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Bring a parked session back before its program calls.
///
/// Its tenant is charged again for everything that the session held. While the tenant's limits or the device have no room
/// for it, the session stays parked and the node retries, however long that takes.
#[derive(Args)]
pub struct UnparkCommand {
    /// The number of the session, as `aviary ps` lists it.
    #[arg(value_name = "SESSION")]
    session: u64,
    /// How long to wait until the session runs, in seconds. It is brought back even if that takes longer.
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0)]
    wait: f64,
    #[command(flatten)]
    node: WhichNode,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub fn park(command: &ParkCommand) -> anyhow::Result<ExitCode> {
    let wait = seconds(command.wait)?;
    let stop_ms = attempt_ms(command.stop);
    let request = MoveRequest { session: command.session, check: false, park: true, stop_ms, halt: None };
    let status = attempts(&command.node.socket(), &request, wait)?;
    let session = command.session;
    if command.json {
        println!("{}", serde_json::to_string_pretty(&status)?);
        return Ok(ExitCode::from(u8::from(!matches!(status, MoveStatus::Parked(_)))));
    }
    match status {
        MoveStatus::Parked(figures) => {
            let (with, ms) = (with_others(&figures), figures.whole_us as f64 / 1000.0);
            say(format_args!("session {session}{with} is parked: {} bytes of state, {ms:.1} ms", figures.bytes));
            Ok(ExitCode::SUCCESS)
        }
        MoveStatus::Refused { reason, lasting } => {
            let when = if lasting { "" } else { " now" };
            eprintln!("aviary: session {session} cannot be parked{when}: {reason}");
            Ok(ExitCode::FAILURE)
        }
        other => {
            eprintln!(
                "aviary: session {session}: unexpected answer of the node ({other:?}): node and command may differ in version"
            );
            Ok(ExitCode::FAILURE)
        }
    }
}

pub fn unpark(command: &UnparkCommand) -> anyhow::Result<ExitCode> {
    let (session, wait) = (command.session, seconds(command.wait)?);
    let status = until_it_runs(&command.node.socket(), session, wait)?;
    if command.json {
        println!("{}", serde_json::to_string_pretty(&status)?);
    }
    let told = match &status {
        UnparkStatus::Running if command.json => return Ok(ExitCode::SUCCESS),
        UnparkStatus::Running => {
            say(format_args!("session {session} is running"));
            return Ok(ExitCode::SUCCESS);
        }
        UnparkStatus::UnderWay(told) => told,
    };
    eprintln!("aviary: session {session} is not running yet: {told}");
    Ok(ExitCode::FAILURE)
}

fn until_it_runs(socket: &Path, session: u64, wait: Duration) -> anyhow::Result<UnparkStatus> {
    let begun = Instant::now();
    loop {
        let status: UnparkStatus = ask(socket, &Request::Unpark(session))?;
        if status == UnparkStatus::Running || begun.elapsed() >= wait {
            return Ok(status);
        }
        std::thread::sleep(ASK_AGAIN);
    }
}
