//! `aviary upgrade`: replaces a running node's program; its sessions continue.

use crate::operate::migrate;
use crate::operate::terminal::say;
use crate::operate::which_node::WhichNode;
use anyhow::{Context, bail};
use aviary_control::FPGA_API;
use aviary_node::{MoveRequest, MoveStatus, NodeError, NodeReport, Request, UpgradeRequest, ask, ask_within, query};
use clap::Args;
use serde::Serialize;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

/// How long the node may take to look at the new program, and that to begin.
const TAKE_OVER_TIMEOUT: Duration = Duration::from_secs(90);
const ASK_AGAIN: Duration = Duration::from_millis(20);

/// Replace the program of a running node and all its API servers while its sessions continue.
///
/// The node executes the file that it was started from, in the same process and with the same arguments. Put the new
/// program there first (`mv`, not `cp`: the old one is in use). Before that a second process checks that the new program
/// can take over; if it cannot, the reason is printed and nothing changes. Then the sessions move to API servers of the
/// new program, one program after the other, as with `aviary migrate`. Sessions that cannot be moved stay where they are.
#[derive(Args)]
pub struct UpgradeCommand {
    /// Execute this file instead.
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Do not move sessions to new API servers.
    #[arg(long)]
    node_only: bool,
    /// How long to retry moving the sessions of one program, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    wait: f64,
    #[command(flatten)]
    node: WhichNode,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// The outcome, for `--json`.
#[derive(Debug, Default, Serialize)]
struct Outcome {
    /// How often this node was upgraded by now.
    upgrades: u64,
    /// Sessions that moved.
    moved: usize,
    /// How long the sessions of each program were paused, in microseconds.
    stood_us: Vec<u64>,
    /// Sessions that did not, and why.
    stayed: BTreeMap<u64, String>,
}

pub fn run(command: &UpgradeCommand) -> anyhow::Result<ExitCode> {
    let wait = migrate::seconds(command.wait)?;
    let socket = command.node.socket();
    let program = command.program.as_deref().map(std::path::absolute).transpose().context("--program")?;
    let before = query(&socket)?;
    let after = replace(&socket, &before, &UpgradeRequest { program })?;
    let mut outcome = Outcome { upgrades: after.upgrades, ..Outcome::default() };
    if !command.node_only {
        move_all(&socket, &after, wait, &mut outcome)?;
    }
    if command.json {
        println!("{}", serde_json::to_string_pretty(&outcome)?);
    } else {
        say(format_args!("the node's program was replaced: {} sessions continue", after.sessions.len()));
        outcome
            .stayed
            .iter()
            .for_each(|(session, why)| say(format_args!("session {session} stays in its old API server: {why}")));
        if !command.node_only {
            let longest = outcome.stood_us.iter().max().copied().unwrap_or(0) as f64 / 1000.0;
            say(format_args!("{} sessions moved, each paused for {longest:.1} ms at most", outcome.moved));
        }
    }
    Ok(ExitCode::from(u8::from(!outcome.stayed.is_empty())))
}

/// The node's report once the new program answers.
fn replace(socket: &Path, before: &NodeReport, request: &UpgradeRequest) -> anyhow::Result<NodeReport> {
    let begun = Instant::now();
    let request = Request::Upgrade(request.clone());
    // The connection ends with the old program.
    if let Err(error @ NodeError::Denied(..)) = ask_within::<()>(socket, &request, TAKE_OVER_TIMEOUT) {
        return Err(error.into());
    }
    loop {
        match query(socket) {
            Ok(report) if report.upgrades > before.upgrades => return Ok(report),
            Ok(report) if report.pid != before.pid => {
                bail!("the node was not upgraded: another node, process {}, now has its address", report.pid)
            }
            Ok(_) | Err(_) if begun.elapsed() < TAKE_OVER_TIMEOUT => std::thread::sleep(ASK_AGAIN),
            Ok(_) => bail!("the node was not upgraded and still runs its old program: the reason is in its log"),
            Err(error) => return Err(error).context("the node does not answer any more: the reason is in its log"),
        }
    }
}

/// Sessions of one program move together. Those at FPGA cards stay with their cards, whose processes stay.
fn move_all(socket: &Path, report: &NodeReport, wait: Duration, outcome: &mut Outcome) -> Result<(), NodeError> {
    let moving = report.sessions.iter().rev().filter(|one| one.api != FPGA_API);
    let first_of_each: BTreeMap<u32, u64> = moving.map(|one| (one.server, one.session)).collect();
    for (server, session) in first_of_each {
        let request = MoveRequest {
            session,
            check: false,
            park: false,
            stop_ms: migrate::attempt_ms(migrate::USUAL_STOP_MS),
            halt: None,
        };
        let of_server = report.sessions.iter().filter(|one| one.server == server).map(|one| one.session);
        match migrate::attempts(socket, &request, wait) {
            Ok(MoveStatus::Moved(figures)) => {
                outcome.moved += figures.sessions;
                outcome.stood_us.push(figures.stood_us);
            }
            Ok(MoveStatus::Refused { reason, .. }) => {
                outcome.stayed.extend(of_server.map(|session| (session, reason.clone())));
            }
            Ok(other) => outcome.stayed.extend(of_server.map(|session| (session, format!("{other:?}")))),
            // It has ended meanwhile.
            Err(NodeError::Denied(..)) if !is_there(socket, session)? => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn is_there(socket: &Path, session: u64) -> Result<bool, NodeError> {
    let report: NodeReport = ask(socket, &Request::Ps)?;
    Ok(report.sessions.iter().any(|one| one.session == session))
}
