//! `aviary fpga move`: a program goes on at another port of its card.

use crate::operate::terminal::say;
use crate::operate::which_node::WhichNode;
use anyhow::bail;
use aviary_node::{CardMoveReport, CardMoveRequest, Request, ask};
use clap::Args;
use std::{process::ExitCode, time::Duration};

/// Time between two looks at a move.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// Move a program's accelerator to another port of its card.
///
/// Its job is paused, saved, and continues at the other port, which must have an accelerator of the same type. The
/// program does not notice.
#[derive(Args)]
#[command(after_help = "Example:\n  aviary fpga move 7 card0/ll1")]
pub struct MoveCommand {
    /// The number of its session, as `aviary ps` lists it.
    #[arg(value_name = "SESSION")]
    session: u64,
    /// Card and port.
    #[arg(value_name = "CARD/PORT")]
    port: String,
    #[command(flatten)]
    node: WhichNode,
}

pub fn run(command: &MoveCommand) -> anyhow::Result<ExitCode> {
    let socket = command.node.socket();
    let request = CardMoveRequest { session: command.session, port: command.port.clone() };
    let mut report: CardMoveReport = ask(&socket, &Request::MoveAtCard(request))?;
    loop {
        match report {
            CardMoveReport::Moving => std::thread::sleep(LOOK_INTERVAL),
            CardMoveReport::Moved { port } => {
                say(format!("session {} moved to {port}", command.session));
                return Ok(ExitCode::SUCCESS);
            }
            CardMoveReport::Refused { reason } => bail!("session {} was not moved: {reason}", command.session),
        }
        report = ask(&socket, &Request::CardMoveStatus(command.session))?;
    }
}
