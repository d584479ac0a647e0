//! `aviary ps`: who uses what.

use crate::operate::terminal::{end_with_reader, say};
use aviary_node::{
    Address, FpgaDeviceReport, NodeReport, SessionReport, SwapStatus, default_socket, private_nodes, query,
};
use aviary_wire::shown;
use clap::Args;
use std::{collections::BTreeMap, path::PathBuf, process::ExitCode};

/// List the sessions of the nodes on this machine.
///
/// Without --server: sessions of the default node and of all private nodes of this user.
#[derive(Args)]
pub struct PsCommand {
    /// Only the node at this address, unix:/PATH.
    #[arg(long, value_name = "ADDR", env = "AVIARY_SERVER")]
    server: Option<Address>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub fn run(command: PsCommand) -> anyhow::Result<ExitCode> {
    let reports = match &command.server {
        Some(address) => vec![query(address.path())?],
        None => {
            let sockets: Vec<PathBuf> = std::iter::once(default_socket()).chain(private_nodes()).collect();
            // A private node may end between the search and the question.
            sockets.iter().filter_map(|socket| query(socket).ok()).collect()
        }
    };
    end_with_reader();
    if command.json {
        println!("{}", serde_json::to_string_pretty(&reports)?);
    } else {
        print(&reports);
    }
    Ok(ExitCode::SUCCESS)
}

fn print(reports: &[NodeReport]) {
    if reports.is_empty() {
        println!("no node is running");
    }
    for report in reports {
        say(format_args!("node {} (pid {}, {} spare)", report.address, report.pid, report.spares));
        let rows: Vec<[String; 10]> = report.sessions.iter().map(row).collect();
        print_table(
            &["SESSION", "API", "PROGRAM", "PID", "USER", "TENANT", "SERVER", "TIME", "CALLS", "COUNTERS"],
            &rows,
        );
        for card in &report.cards {
            let ports = if card.ports.is_empty() { &card.state } else { &card.ports.join(", ") };
            say(format_args!("  card {} (image {}, simulated) at {}: {ports}", card.card, card.image, card.socket));
        }
        for set in report.vendors.iter().filter(|set| set.servers > 0) {
            let before = if set.replaced { ", as it was before the configuration was read again" } else { "" };
            say(format_args!("  vendor set {}{before}: {} API servers", set.name, set.servers));
        }
        for device in &report.fpga_devices {
            let FpgaDeviceReport { vm, name, card, guid, socket, .. } = device;
            let state = match device.state.as_str() {
                "connected" => format!("session {}, process {}", device.session, device.process),
                state => state.to_owned(),
            };
            say(format_args!("  fpga {name} of VM {vm} (card {card}, type {guid}) at {socket}: {state}"));
        }
        for server in &report.servers {
            let tenant = server.tenant.escape_debug();
            println!("  API server {} of tenant {tenant} has no session: {}", server.server, server.state);
        }
        if report.parked.used > 0 {
            say(format_args!(
                "  parked sessions use {} of {} bytes of host memory",
                report.parked.used, report.parked.limit
            ));
        }
        for session in &report.sessions {
            if let Some(parked) = &session.parked {
                let (id, bytes) = (session.session, parked.bytes);
                let (state, time) = (&parked.state, duration(parked.seconds));
                say(format_args!("  session {id} is {state}: {bytes} bytes of state, since {time}"));
            }
            if let Some(swapped) = &session.swapped {
                say_swapped(session.session, swapped);
            }
            if let Some(away_ms) = session.away_ms {
                let (id, time) = (session.session, duration(away_ms / 1000));
                say(format_args!("  session {id} has no connection to its machine, since {time}"));
            }
            if let Some(why) = &session.outdated {
                let id = session.session;
                say(format_args!("  session {id} keeps its old permissions: {why} (`aviary end {id}` ends it)"));
            }
        }
    }
}

fn say_swapped(id: u64, swapped: &SwapStatus) {
    let (place, bytes) = (&swapped.place, swapped.bytes);
    match swapped.kept {
        0 => say(format_args!("  session {id} is swapped {place}: {bytes} bytes of host memory")),
        kept => say(format_args!("  session {id} keeps {kept} bytes of host memory for its next swap")),
    }
}

fn row(session: &SessionReport) -> [String; 10] {
    let api = if session.api.is_empty() { "(attaching)" } else { &session.api };
    let api = session.vendor.as_ref().map_or_else(|| api.to_owned(), |vendor| format!("{api} ({vendor})"));
    [
        session.session.to_string(),
        api,
        session.vm.as_ref().map_or_else(|| session.program.clone(), |vm| format!("{} (VM {vm})", session.program)),
        session.guest.to_string(),
        session.uid.to_string(),
        session.tenant.clone(),
        session.server.to_string(),
        duration(session.seconds),
        session.counters.get("calls").map_or_else(|| "-".into(), u64::to_string),
        counters(&session.counters),
    ]
}

fn counters(all: &BTreeMap<String, u64>) -> String {
    let shown = all.iter().filter(|(name, value)| *name != "calls" && **value != 0);
    shown.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}

fn duration(seconds: u64) -> String {
    format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

fn print_table<const N: usize>(head: &[&str; N], rows: &[[String; N]]) {
    if rows.is_empty() {
        return;
    }
    // Names of programs and APIs are guests': nothing that a terminal obeys reaches it.
    let rows: Vec<[String; N]> = rows.iter().map(|row| row.each_ref().map(shown)).collect();
    let width = |column: usize| {
        rows.iter().map(|row| row[column].chars().count()).chain([head[column].len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..N).map(width).collect();
    let line = |cells: Vec<&str>| {
        let padded = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        println!("  {}", padded.collect::<Vec<_>>().join("  ").trim_end());
    };
    line(head.to_vec());
    for row in &rows {
        line(row.iter().map(String::as_str).collect());
    }
}
