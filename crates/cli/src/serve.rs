//! `aviary serve`: a node for many guests.

use crate::{apis, signals::Signals};
use anyhow::{Context, bail};
use aviary_node::{Address, ApiServerCommand, Level, Node, NodeConfig, default_socket};
use clap::Args;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::{path::PathBuf, process::ExitCode, time::Duration};

/// Let other processes use this machine's accelerators.
///
/// A guest attaches with AVIARY_SERVER set to the address, or with
/// `aviary run --server ADDR`. SIGTERM or SIGINT ends all sessions and the node.
#[derive(Args)]
pub struct ServeCommand {
    /// Address, unix:/PATH [default: $XDG_RUNTIME_DIR/aviary/node.sock, as root /run/aviary/node.sock]
    #[arg(long, value_name = "ADDR")]
    listen: Option<Address>,
    /// Permissions of the socket, in octal: who may attach.
    #[arg(long, value_name = "MODE", default_value = "600", value_parser = parse_mode)]
    mode: u32,
    /// API servers kept ready for new guests.
    #[arg(long, value_name = "N", default_value_t = 1)]
    spares: usize,
    /// Connections that one user may have at a time.
    #[arg(long, value_name = "N", default_value_t = 4096)]
    sessions_per_user: usize,
    /// Limit a resource of every session, as the API's specification names it (repeatable).
    #[arg(long, value_name = "RESOURCE=AMOUNT", value_parser = parse_limit)]
    limit: Vec<(String, u64)>,
    /// Look for API builds in this folder first (repeatable).
    #[arg(long, value_name = "DIR")]
    api_dir: Vec<PathBuf>,
    /// What is told on standard error: error, warn, info or debug.
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log_level: Level,
}

pub fn run(command: ServeCommand) -> anyhow::Result<ExitCode> {
    let modules = apis::search_path(&command.api_dir)?;
    apis::select(&modules, &[])?;
    let socket = command.listen.map_or_else(default_socket, |address| address.path().to_owned());
    let mut config = NodeConfig::new(socket, ApiServerCommand::own()?);
    config.mode = command.mode;
    config.modules = modules;
    config.spares = command.spares;
    config.sessions_per_user = command.sessions_per_user;
    config.limits = command.limit.into_iter().collect();
    config.log = command.log_level;
    raise_descriptor_limit();
    let signals = Signals::catch().context("cannot catch signals")?;
    let node = Node::start(config)?;
    while signals.noted().is_none() {
        if node.is_finished() {
            bail!("the node ended unexpectedly");
        }
        // Woken by nothing but the clock: a signal thread that could wake us would
        // be one more thing to go wrong, and five looks a second cost nothing.
        std::thread::sleep(Duration::from_millis(200));
    }
    Ok(ExitCode::SUCCESS)
}

/// A session costs the node a few descriptors.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    // Where it is refused, the node works with the limit that there is.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

fn parse_mode(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o777 => Ok(mode),
        _ => Err("expected three octal digits, such as 660".into()),
    }
}

/// `RESOURCE=AMOUNT`, the amount with an optional K, M, G or T (powers of 1024).
pub fn parse_limit(text: &str) -> Result<(String, u64), String> {
    let wrong = || format!("`{text}`: expected RESOURCE=AMOUNT, such as device_memory=2G");
    let (name, amount) = text.split_once('=').filter(|(name, _)| !name.is_empty()).ok_or_else(wrong)?;
    let digits = amount.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let shift = match &amount[digits.len()..] {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(wrong()),
    };
    let amount: u64 = digits.parse().map_err(|_| wrong())?;
    amount.checked_mul(1 << shift).map(|amount| (name.to_owned(), amount)).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits() {
        assert_eq!(parse_limit("memory=2G"), Ok(("memory".into(), 2 << 30)));
        assert_eq!(parse_limit("calls=17"), Ok(("calls".into(), 17)));
        for wrong in ["memory", "=1", "memory=", "memory=G", "memory=1X", "memory=99999999999999T"] {
            assert!(parse_limit(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn modes() {
        assert_eq!(parse_mode("660"), Ok(0o660));
        assert!(parse_mode("999").is_err() && parse_mode("7777").is_err());
    }
}
