//! `aviary tenant` and `aviary reload`: usage and limits of a running node's tenants.

pub(crate) mod grant;

use crate::config::amount::{LimitPlace, parse_limit, parse_limit_place};
use crate::config::parse_cap;
use crate::operate::terminal::{end_with_reader, say};
use crate::operate::which_node::WhichNode;
use aviary_node::{AccountReport, DeviceLimitChange, Request, TenantChange, TenantReport, ask};
use clap::{Args, Subcommand};
use std::process::ExitCode;

/// Show and change the tenants of a running node.
#[derive(Args)]
pub struct TenantCommand {
    #[command(subcommand)]
    action: TenantAction,
}

#[derive(Subcommand)]
enum TenantAction {
    /// One line per tenant.
    List(NodeOptions),
    /// Everything about one tenant.
    Show {
        #[arg(value_name = "NAME")]
        name: String,
        #[command(flatten)]
        node: NodeOptions,
    },
    /// Change a tenant until the node reads its configuration again.
    ///
    /// Limits take effect at once, also for running sessions. A limit below the present use releases nothing; it refuses further
    /// allocations.
    Set {
        #[arg(value_name = "NAME")]
        name: String,
        /// Limit a resource; with @DEVICE: on each device of that name, which may end with * (repeatable).
        #[arg(long, value_name = "RESOURCE[@DEVICE]=AMOUNT", value_parser = parse_limit)]
        limit: Vec<(LimitPlace, u64)>,
        /// Remove the limit of a resource (repeatable).
        #[arg(long, value_name = "RESOURCE[@DEVICE]", value_parser = parse_limit_place)]
        no_limit: Vec<LimitPlace>,
        /// The most sessions at a time.
        #[arg(long, value_name = "N")]
        sessions: Option<usize>,
        /// The most threads of one session that make calls; for new sessions.
        #[arg(long, value_name = "N")]
        threads: Option<usize>,
        /// Share of a scheduled device, relative to other tenants' weights.
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        weight: Option<u32>,
        #[arg(long, value_name = "N", allow_negative_numbers = true)]
        priority: Option<i32>,
        /// The largest share of a scheduled device's time, even while it is idle otherwise; 100% removes the cap.
        #[arg(long, value_name = "PERCENT", value_parser = parse_cap)]
        cap: Option<u32>,
        #[command(flatten)]
        node: NodeOptions,
    },
}

#[derive(Args)]
struct NodeOptions {
    #[command(flatten)]
    which: WhichNode,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Make a running node read its configuration file again; sessions continue.
#[derive(Args)]
pub struct ReloadCommand {
    #[command(flatten)]
    node: WhichNode,
}

pub fn reload(command: &ReloadCommand) -> anyhow::Result<ExitCode> {
    let notes: Vec<String> = ask(&command.node.socket(), &Request::Reload)?;
    notes.iter().for_each(say);
    Ok(ExitCode::SUCCESS)
}

pub fn run(command: TenantCommand) -> anyhow::Result<ExitCode> {
    match command.action {
        TenantAction::List(node) => {
            let tenants = all(&node)?;
            end_with_reader();
            if node.json {
                println!("{}", serde_json::to_string_pretty(&tenants)?);
            } else {
                tenants.iter().for_each(|tenant| say(line(tenant)));
            }
        }
        TenantAction::Show { name, node } => {
            let mut tenants = all(&node)?;
            tenants.retain(|tenant| tenant.name == name);
            match tenants.first() {
                Some(tenant) => show(tenant, node.json)?,
                None => anyhow::bail!(
                    "there is no tenant `{name}`: it is neither in the configuration nor has it ever attached"
                ),
            }
        }
        TenantAction::Set { name, limit, no_limit, sessions, threads, weight, priority, cap, node } => {
            let mut change = TenantChange { name, sessions, threads, weight, priority, cap, ..TenantChange::default() };
            let given = limit.into_iter().map(|(place, amount)| (place, Some(amount)));
            for (LimitPlace { resource, device }, limit) in given.chain(no_limit.into_iter().map(|place| (place, None)))
            {
                match device {
                    None => drop(change.limits.insert(resource, limit)),
                    Some(device) => change.device_limits.push(DeviceLimitChange { device, resource, limit }),
                }
            }
            let tenant: TenantReport = ask(&node.which.socket(), &Request::Set(change))?;
            show(&tenant, node.json)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn all(node: &NodeOptions) -> anyhow::Result<Vec<TenantReport>> {
    Ok(ask(&node.which.socket(), &Request::Tenants)?)
}

fn line(tenant: &TenantReport) -> String {
    let accounts: Vec<String> = tenant.accounts.iter().map(account).collect();
    let TenantReport { name, sessions, weight, priority, .. } = tenant;
    format!("{name}  sessions={sessions} weight={weight} priority={priority}  {}", accounts.join(" "))
        .trim_end()
        .to_owned()
}

fn account(account: &AccountReport) -> String {
    let limit = account.limit.map(|limit| format!("/{limit}")).unwrap_or_default();
    let device = account.device.as_ref().map(|device| format!("@{device:?}")).unwrap_or_default();
    format!("{}{device}={}{limit}", account.resource, account.used)
}

fn show(tenant: &TenantReport, json: bool) -> anyhow::Result<()> {
    if json {
        println!("{}", serde_json::to_string_pretty(tenant)?);
        return Ok(());
    }
    let most = |most: Option<usize>| most.map_or_else(|| "no limit".into(), |most| most.to_string());
    let list = |names: &[String]| if names.is_empty() { "none".into() } else { names.join(", ") };
    say(format_args!("tenant        {}", tenant.name));
    say(format_args!("users         {}", list(&tenant.users.iter().map(u32::to_string).collect::<Vec<_>>())));
    say(format_args!("certificates  {}", list(&tenant.certificates)));
    say(format_args!("weight        {}", tenant.weight));
    say(format_args!("priority      {}", tenant.priority));
    if let Some(cap) = tenant.cap {
        say(format_args!("cap           {}% of a device's time", f64::from(cap) / 10.0));
    }
    say(format_args!("sessions      {} (most: {})", tenant.sessions, most(tenant.most_sessions)));
    say(format_args!("threads       most per session: {}", most(tenant.threads)));
    say(format_args!("APIs          {}", tenant.apis.as_ref().map_or_else(|| "all".into(), |apis| list(apis))));
    say(format_args!(
        "devices       {}",
        tenant.only_devices.as_ref().map_or_else(|| "all".into(), |names| list(names))
    ));
    say(format_args!("vendor set    {}", tenant.vendor.as_deref().unwrap_or("none (the node's own libraries)")));
    match &tenant.functions.allow {
        Some(allowed) => say(format_args!("functions     only {}", list(allowed))),
        None => say(format_args!("functions     all but {}", list(&tenant.functions.deny))),
    }
    if !tenant.functions.privileged.is_empty() {
        say(format_args!("privileged    {}", list(&tenant.functions.privileged)));
    }
    for account in &tenant.accounts {
        let limit = account.limit.map_or_else(|| "none".into(), |limit| limit.to_string());
        let AccountReport { resource, used, peak, refused, .. } = account;
        let device = account.device.as_ref().map(|device| format!(" on {device:?}")).unwrap_or_default();
        say(format_args!(
            "resource      {resource}{device}: used {used}, limit {limit}, peak {peak}, refused {refused}"
        ));
    }
    for limit in &tenant.device_limits {
        let most = limit.limit.map_or_else(|| "none".into(), |limit| limit.to_string());
        say(format_args!("limit         {} on each {:?}: {most}", limit.resource, limit.device));
    }
    Ok(())
}
