//! `aviary park`, `aviary unpark` and `aviary swap`: take a session, or its device memory alone, off its devices while its program
//! runs, and bring it back.

use crate::operate::migrate::{AttemptOptions, attempt_ms, attempts, seconds, with_others};
use crate::operate::terminal::say;
use crate::operate::which_node::WhichNode;
use anyhow::bail;
use aviary_node::{MoveRequest, MoveStatus, Request, SwapRequest, SwapStatus, UnparkStatus, ask};
use clap::{Args, Subcommand};
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
    #[command(flatten)]
    attempt: AttemptOptions,
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
    let stop_ms = attempt_ms(command.attempt.stop);
    let request = MoveRequest { session: command.session, check: false, park: true, stop_ms, halt: None };
    let status = attempts(&command.attempt.node.socket(), &request, wait)?;
    let session = command.session;
    if command.attempt.json {
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

/// Take the device memory of a session to the host's memory, or bring it back.
///
/// The session stays in its API server, with all its objects, at the same addresses; only the memory behind them leaves the
/// device. The program keeps running, and its next call brings the memory back.
#[derive(Args)]
pub struct SwapCommand {
    #[command(subcommand)]
    way: Way,
}

#[derive(Subcommand)]
enum Way {
    /// Take it out. If that is not possible, the session continues.
    Out(Swapped),
    /// Bring it back before the program calls.
    In(Swapped),
}

#[derive(Args)]
struct Swapped {
    /// The number of the session, as `aviary ps` lists it.
    #[arg(value_name = "SESSION")]
    session: u64,
    /// How long to wait, in seconds: for an obstacle to pass, or for room on the device.
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    wait: f64,
    #[command(flatten)]
    attempt: AttemptOptions,
}

pub fn swap(command: &SwapCommand) -> anyhow::Result<ExitCode> {
    let (session, out) = match &command.way {
        Way::Out(session) => (session, true),
        Way::In(session) => (session, false),
    };
    let status = until_done(session, out)?;
    let done = is_done(&status, out);
    let id = session.session;
    if session.attempt.json {
        println!("{}", serde_json::to_string_pretty(&status)?);
    } else if done && out {
        let SwapStatus { bytes, figures, .. } = &status;
        let ms = (figures.stop_us + figures.drain_us + figures.copy_us) as f64 / 1000.0;
        say(format_args!("session {id} is swapped out: {bytes} bytes, {ms:.1} ms"));
    } else if done {
        say(format_args!("session {id} is on its devices"));
    } else {
        let why = status.refused.as_deref().unwrap_or("it takes longer");
        eprintln!("aviary: session {id} is {}: {why}", status.place);
    }
    Ok(ExitCode::from(u8::from(!done)))
}

fn is_done(status: &SwapStatus, out: bool) -> bool {
    status.place == if out { "out" } else { "in" }
}

fn until_done(session: &Swapped, out: bool) -> anyhow::Result<SwapStatus> {
    let (socket, wait, begun) = (session.attempt.node.socket(), seconds(session.wait)?, Instant::now());
    let request = SwapRequest { session: session.session, out, stop_ms: attempt_ms(session.attempt.stop) };
    let first: SwapStatus = ask(&socket, &Request::Swap(request))?;
    let mut status = first.clone();
    loop {
        let is_over = !matches!(status.place.as_str(), "going out" | "coming in");
        // An attempt under way is not given up.
        let longest = if is_over { wait } else { wait + Duration::from_millis(request.stop_ms) };
        if is_done(&status, out) || begun.elapsed() >= longest {
            return Ok(status);
        }
        if out && is_over && status.outs > first.outs {
            bail!("session {} was swapped out, and its program has brought it back", session.session);
        }
        std::thread::sleep(ASK_AGAIN);
        // One that stayed is asked again, while the obstacle may pass.
        let again = if out && is_over { Request::Swap(request) } else { Request::SwapStatus(session.session) };
        status = ask(&socket, &again)?;
    }
}
