//! `aviary grant` and `aviary revoke`: tenants that are made and taken back while a node runs.

use crate::config::amount::{LimitPlace, parse_limit};
use crate::config::{parse_cap, parse_device, parse_span};
use crate::operate::terminal::{end_with_reader, say};
use crate::operate::which_node::WhichNode;
use anyhow::bail;
use aviary_node::{
    DeviceLimitChange, FreedAmount, FunctionRule, Grant, GrantEntrance, GrantReport, GrantRequest, Request,
    RevokeReport, Via, ask, ask_within, check_key,
};
use clap::{Args, Subcommand};
use std::{
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

/// A slow disk is waited for.
const GRANT_TIMEOUT: Duration = Duration::from_secs(60);
const REVOKE_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Make a tenant on a running node, or change one that was made so.
///
/// Its guests are those that connect to a socket of its own (--socket), whatever user they are, in a container or not; or guests
/// of other machines that show a key (--key). The node keeps it until `aviary revoke`, also when it is restarted. Repeating a
/// command changes nothing.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct GrantCommand {
    #[command(subcommand)]
    action: Option<GrantAction>,
    /// Name of the tenant.
    #[arg(value_name = "NAME", required = true)]
    name: Option<String>,
    /// Make a socket, node.sock, in this folder, which the node makes, too; mount the folder into the container.
    #[arg(long, value_name = "DIR", required_unless_present = "key", conflicts_with = "key")]
    socket: Option<PathBuf>,
    /// SHA-256 of the certificate that its guests of other machines show (`aviary tls key` makes one).
    #[arg(long, value_name = "SHA256", value_parser = check_key)]
    key: Option<String>,
    /// Carry its guests to this other node, whose own grant says what they may have. It knows them by the key that is printed,
    /// which never leaves this machine.
    #[arg(long, value_name = "HOST:PORT", requires = "pin", conflicts_with = "key")]
    via: Option<String>,
    /// SHA-256 of the other node's certificate.
    #[arg(long, value_name = "SHA256", value_parser = check_key, requires = "via")]
    pin: Option<String>,
    #[command(flatten)]
    amounts: Amounts,
    /// Per cent of each device's time, 1 to 100: the weight on scheduled devices. The node refuses a grant if the shares on a
    /// device would be more than 100 together.
    #[arg(long, value_name = "PERCENT", value_parser = parse_share)]
    share: Option<u32>,
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value = "0")]
    priority: i32,
    /// The largest share of a scheduled device's time, even while it is idle otherwise.
    #[arg(long, value_name = "PERCENT", value_parser = parse_cap)]
    cap: Option<u32>,
    #[command(flatten)]
    permissions: PermissionArgs,
    /// Revoke it by itself after this time, such as 12h.
    #[arg(long, value_name = "TIME", value_parser = parse_span)]
    expires: Option<Duration>,
    /// A label for the tenant's metrics, such as namespace=research (repeatable, at most 8).
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_label)]
    label: Vec<(String, String)>,
    /// Also if devices have less than all grants together.
    #[arg(long)]
    overcommit: bool,
    #[command(flatten)]
    node: NodeArgs,
}

#[derive(Args)]
struct Amounts {
    /// Limit a resource; with @DEVICE: on each device of that name, which may end with * (repeatable).
    #[arg(long, value_name = "RESOURCE[@DEVICE]=AMOUNT", value_parser = parse_limit)]
    limit: Vec<(LimitPlace, u64)>,
    /// The most sessions at a time.
    #[arg(long, value_name = "N")]
    sessions: Option<usize>,
    /// The most threads of one session that make calls.
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
}

#[derive(Args)]
struct PermissionArgs {
    /// An API that it may use (repeatable) [default: all].
    #[arg(long, value_name = "NAME")]
    api: Vec<String>,
    /// A device that it may use; the name may end with * (repeatable) [default: the node's list].
    #[arg(long, value_name = "NAME", value_parser = parse_device)]
    only_device: Vec<String>,
    /// Deny this function (repeatable).
    #[arg(long, value_name = "FUNCTION", conflicts_with = "allow")]
    deny: Vec<String>,
    /// Deny all functions but this one (repeatable).
    #[arg(long, value_name = "FUNCTION")]
    allow: Vec<String>,
}

#[derive(Args)]
struct NodeArgs {
    #[command(flatten)]
    which: WhichNode,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Subcommand)]
enum GrantAction {
    /// All grants of a node.
    List(NodeArgs),
}

/// Take a tenant back that `aviary grant` has made.
///
/// Its sessions end. The command waits until all that they held was given back; then the name may be used again. Revoking what
/// is not there is no error.
#[derive(Args)]
pub struct RevokeCommand {
    /// Name of the tenant.
    #[arg(value_name = "NAME")]
    name: String,
    /// How long to wait; the grant is revoked in any case.
    #[arg(long, value_name = "TIME", value_parser = parse_span, default_value = "60s")]
    timeout: Duration,
    #[command(flatten)]
    node: NodeArgs,
}

fn parse_share(text: &str) -> Result<u32, String> {
    let share = text.strip_suffix('%').unwrap_or(text).parse().ok().filter(|share| (1..=100).contains(share));
    share.ok_or_else(|| format!("`{text}`: expected a whole number of per cent, 1 to 100"))
}

fn parse_label(text: &str) -> Result<(String, String), String> {
    let label = text.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    label.ok_or_else(|| format!("`{text}`: expected NAME=VALUE, such as namespace=research"))
}

/// `None`: there are none.
fn some(names: Vec<String>) -> Option<Vec<String>> {
    Some(names).filter(|names| !names.is_empty())
}

pub fn grant(command: GrantCommand) -> anyhow::Result<ExitCode> {
    if let Some(GrantAction::List(node)) = &command.action {
        return list(node);
    }
    let GrantCommand {
        name,
        socket,
        key,
        via,
        pin,
        amounts,
        share,
        priority,
        cap,
        permissions,
        expires,
        label,
        overcommit,
        node,
        ..
    } = command;
    let entrance = match (socket, key) {
        (Some(folder), _) => GrantEntrance::Socket(std::path::absolute(folder)?),
        (None, Some(key)) => GrantEntrance::Key(key),
        (None, None) => bail!("a grant needs --socket DIR or --key SHA256"),
    };
    let PermissionArgs { api, only_device, deny, allow } = permissions;
    let functions = FunctionRule { allow: some(allow), deny, privileged: Vec::new() };
    let mut grant = Grant {
        sessions: amounts.sessions,
        threads: amounts.threads,
        share,
        priority,
        cap,
        apis: some(api),
        functions,
        labels: label.into_iter().collect(),
        via: via.zip(pin).map(|(node, pin)| Via { node, pin, key: String::new() }),
        only_devices: some(only_device),
        ..Grant::new(&name.unwrap_or_default(), entrance)
    };
    for (LimitPlace { resource, device }, amount) in amounts.limit {
        match device {
            None => drop(grant.limits.insert(resource, amount)),
            Some(device) => grant.device_limits.push(DeviceLimitChange { device, resource, limit: Some(amount) }),
        }
    }
    let request = GrantRequest { grant, lifetime: expires.map(|time| time.as_secs().max(1)), overcommit };
    let request = Request::Grant(Box::new(request));
    let report: GrantReport = ask_within(&node.which.socket(), &request, GRANT_TIMEOUT)?;
    match node.json {
        true => println!("{}", serde_json::to_string_pretty(&report)?),
        false => say(line(&report)),
    }
    Ok(ExitCode::SUCCESS)
}

fn list(node: &NodeArgs) -> anyhow::Result<ExitCode> {
    let grants: Vec<GrantReport> = ask(&node.which.socket(), &Request::Grants)?;
    end_with_reader();
    match node.json {
        true => println!("{}", serde_json::to_string_pretty(&grants)?),
        false => grants.iter().for_each(|grant| say(line(grant))),
    }
    Ok(ExitCode::SUCCESS)
}

fn line(report: &GrantReport) -> String {
    let GrantReport { grant, socket, expires_in, sessions, accounts } = report;
    let mut words = vec![grant.name.clone(), format!(" sessions={sessions}")];
    words.extend(grant.share.map(|share| format!("share={share}%")));
    words.extend(accounts.iter().map(|account| {
        let device = account.device.as_ref().map(|device| format!("@{device:?}")).unwrap_or_default();
        let limit = account.limit.map(|limit| format!("/{limit}")).unwrap_or_default();
        format!("{}{device}={}{limit}", account.resource, account.used)
    }));
    words.extend(expires_in.map(|seconds| format!("expires in {seconds} s")));
    words.extend(socket.as_ref().map(|path| format!("unix:{}", path.display())));
    if let GrantEntrance::Key(key) = &grant.entrance {
        words.push(format!("key {key}"));
    }
    words.extend(grant.via.as_ref().map(|via| format!("via {}, showing key {}", via.node, via.key)));
    words.join(" ")
}

pub fn revoke(command: &RevokeCommand) -> anyhow::Result<ExitCode> {
    let deadline = Instant::now() + command.timeout;
    let request = Request::Revoke(command.name.clone());
    loop {
        let report: RevokeReport = ask_within(&command.node.which.socket(), &request, GRANT_TIMEOUT)?;
        if report.done {
            end_with_reader();
            match command.node.json {
                true => println!("{}", serde_json::to_string_pretty(&report)?),
                false => say(told(&report)),
            }
            return Ok(ExitCode::SUCCESS);
        }
        if Instant::now() >= deadline {
            bail!(
                "grant `{}` was revoked, but {} of its sessions or API servers have not ended yet: ask again, or see `aviary ps`",
                command.name,
                report.sessions
            );
        }
        std::thread::sleep(REVOKE_POLL_INTERVAL);
    }
}

fn told(report: &RevokeReport) -> String {
    if !report.known {
        return format!("there is no grant {}: nothing was revoked", report.name);
    }
    let freed = |FreedAmount { resource, device, amount }: &FreedAmount| {
        let device = device.as_ref().map(|device| format!("@{device:?}")).unwrap_or_default();
        format!(" {resource}{device}={amount}")
    };
    let freed: String = report.freed.iter().map(freed).collect();
    let freed = if freed.is_empty() { " nothing".to_owned() } else { freed };
    format!("grant {} revoked: {} sessions ended, freed:{freed}", report.name, report.sessions)
}
