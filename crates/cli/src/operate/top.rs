//! `aviary top`: the users of the devices now.

use crate::operate::which_node::WhichNode;
use aviary_node::{NodeReport, Request, TenantReport, ask, query};
use aviary_wire::{Shown, shown};
use clap::Args;
use std::{
    collections::BTreeMap,
    fmt::Write as _,
    io::{IsTerminal, Write as _},
    path::Path,
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

/// Watch how tenants use the devices of a node.
///
/// One line per tenant and scheduled device: its share of the device time in the last interval, its entitlement among
/// the tenants that used the device, its sessions, how many of them wait, calls per second, and the resources it holds.
#[derive(Args)]
pub struct TopCommand {
    #[command(flatten)]
    node: WhichNode,
    /// Seconds between two samples.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    interval: f64,
    /// Print this number of samples, one below the other, instead of running until interrupted.
    #[arg(long, value_name = "N")]
    count: Option<u64>,
}

/// The state of a node at one time.
pub struct Sample {
    at: Instant,
    pub node: NodeReport,
    pub tenants: Vec<TenantReport>,
}

pub fn sample(socket: &Path) -> anyhow::Result<Sample> {
    Ok(Sample { at: Instant::now(), node: query(socket)?, tenants: ask(socket, &Request::Tenants)? })
}

pub fn top(command: &TopCommand) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(command.interval > 0.0 && command.interval < 1e6, "--interval must be more than 0 seconds");
    let socket = command.node.socket();
    let redraw = std::io::stdout().is_terminal() && command.count.is_none();
    let mut before = sample(&socket)?;
    let mut samples = 0;
    while command.count.is_none_or(|count| samples < count) {
        thread::sleep(Duration::from_secs_f64(command.interval));
        let now = sample(&socket)?;
        let text = picture(&before, &now);
        // Home, and clear what is below.
        let start = if redraw { "\x1b[H\x1b[J" } else { "" };
        let mut out = std::io::stdout().lock();
        // A closed pipe ends the watching.
        if write!(out, "{start}{text}").and_then(|()| out.flush()).is_err() {
            break;
        }
        before = now;
        samples += 1;
    }
    Ok(ExitCode::SUCCESS)
}

const BAR: usize = 20;

fn picture(before: &Sample, now: &Sample) -> String {
    let seconds = now.at.duration_since(before.at).as_secs_f64();
    let mut text = format!(
        "node {}: {} sessions, {} spare API servers\n",
        now.node.address,
        now.node.sessions.len(),
        now.node.spares
    );
    for device in &now.node.devices {
        let earlier = before.node.devices.iter().find(|d| d.device == device.device);
        let used = |tenant: &str, all: Option<&aviary_node::DeviceReport>| {
            let found = all.and_then(|d| d.tenants.iter().find(|t| t.tenant == tenant));
            found.map_or(0, |t| t.used_ns)
        };
        let spent: Vec<u64> =
            device.tenants.iter().map(|t| t.used_ns.saturating_sub(used(&t.tenant, earlier))).collect();
        let whole: u64 = spent.iter().sum();
        let active = |i: usize| spent[i] > 0 || device.tenants[i].waiting > 0;
        let weights: u32 = (0..spent.len()).filter(|i| active(*i)).map(|i| device.tenants[i].weight).sum();
        let busy = whole as f64 / 1e7 / seconds;
        let _ = writeln!(text, "\n{}: {busy:.0}% busy", Shown(&device.device));
        let _ = writeln!(
            text,
            "  {:20} {:22} {:>6} {:>6} {:>8} {:>8}",
            "TENANT", "SHARE", "", "DUE", "SESSIONS", "WAITING"
        );
        for (i, tenant) in device.tenants.iter().enumerate() {
            let share = spent[i] as f64 / (whole.max(1)) as f64;
            let due = if active(i) { f64::from(tenant.weight) / f64::from(weights.max(1)) } else { 0.0 };
            let _ = writeln!(
                text,
                "  {:20} [{}] {:>5.1}% {:>5.1}% {:>8} {:>8}",
                shown(&tenant.tenant),
                bar(share, due),
                100.0 * share,
                100.0 * due,
                tenant.sessions,
                tenant.waiting,
            );
        }
    }
    let rates = calls(&now.node);
    let earlier = calls(&before.node);
    let _ = writeln!(text, "\n  {:20} {:>8} {:>10}  HELD", "TENANT", "SESSIONS", "CALLS/S");
    for tenant in now.tenants.iter().filter(|t| t.sessions > 0 || t.accounts.iter().any(|a| a.used > 0)) {
        let count = |all: &BTreeMap<String, u64>| all.get(&tenant.name).copied().unwrap_or(0);
        let rate = count(&rates).saturating_sub(count(&earlier)) as f64 / seconds;
        let held = tenant.accounts.iter().filter(|a| a.used > 0 || a.limit.is_some()).map(|account| {
            let limit = account.limit.filter(|l| *l != u64::MAX).map_or(String::new(), |l| format!("/{l}"));
            let device = account.device.as_ref().map_or(String::new(), |device| format!("@{device:?}"));
            format!("{}{device}={}{limit}", Shown(&account.resource), account.used)
        });
        let held: Vec<String> = held.collect();
        let _ =
            writeln!(text, "  {:20} {:>8} {:>10.0}  {}", shown(&tenant.name), tenant.sessions, rate, held.join(" "));
    }
    text
}

/// A bar with the share as `#` and the entitlement as `|`.
fn bar(share: f64, due: f64) -> String {
    let filled = (share * BAR as f64).round() as usize;
    let mark = (due * BAR as f64).round() as usize;
    let cell = |i: usize| match (i < filled, due > 0.0 && i + 1 == mark.max(1)) {
        (_, true) => '|',
        (true, false) => '#',
        (false, false) => ' ',
    };
    (0..BAR).map(cell).collect()
}

/// Calls of all sessions that are there, by tenant.
fn calls(node: &NodeReport) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    for session in &node.sessions {
        let count = |name: &str| session.counters.get(name).copied().unwrap_or(0);
        *all.entry(session.tenant.clone()).or_default() += count("calls") + count("async_calls");
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bar_shows_share_and_entitlement() {
        assert_eq!(bar(0.5, 0.25), "####|#####          ");
        assert_eq!(bar(0.0, 0.0), " ".repeat(BAR));
        assert_eq!(bar(1.0, 1.0), format!("{}|", "#".repeat(BAR - 1)));
    }
}
