//! `aviary end`: sessions that an operator ends.

use crate::operate::terminal::say;
use crate::operate::which_node::WhichNode;
use aviary_node::{EndReport, EndRequest, Request, SessionReport, ask};
use clap::Args;
use std::process::ExitCode;

/// End sessions of a running node.
///
/// Their API servers are killed and everything that they hold is released. From then on the programs' calls fail with the
/// API's error for a lost device. Sessions of one process share an API server and end together. A program may attach
/// again; to prevent that, first take away its permissions (node.toml and `aviary reload`, or `aviary tls revoke`).
/// Each end is logged by the node.
#[derive(Args)]
pub struct EndCommand {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    node: WhichNode,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
struct Which {
    /// Numbers of sessions, as `aviary ps` lists them.
    #[arg(value_name = "SESSION")]
    sessions: Vec<u64>,
    /// All sessions and API servers of this tenant.
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// All sessions that still use permissions or limits which the configuration no longer gives; `aviary ps` lists them.
    #[arg(long)]
    outdated: bool,
}

impl Which {
    fn request(self) -> EndRequest {
        match self.tenant {
            Some(tenant) => EndRequest::Tenant(tenant),
            None if self.outdated => EndRequest::Outdated,
            None => EndRequest::Sessions(self.sessions),
        }
    }
}

pub fn run(command: EndCommand) -> anyhow::Result<ExitCode> {
    let report: EndReport = ask(&command.node.socket(), &Request::End(command.which.request()))?;
    if command.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else if report.ended.is_empty() && report.servers.is_empty() && report.unknown.is_empty() {
        println!("no such sessions: nothing was ended");
    } else {
        report.ended.iter().for_each(|session| say(line(session)));
        for server in &report.servers {
            let tenant = &server.tenant;
            say(format!("API server {} of tenant {tenant} ended; it had no session", server.server));
        }
    }
    for session in &report.unknown {
        eprintln!("aviary: there is no session {session} (`aviary ps` lists them)");
    }
    Ok(ExitCode::from(u8::from(!report.unknown.is_empty())))
}

fn line(session: &SessionReport) -> String {
    let SessionReport { session: id, guest, .. } = session;
    let (program, tenant) = (&session.program, &session.tenant);
    let vm = session.vm.as_ref().map(|vm| format!(" in VM {vm}")).unwrap_or_default();
    format!("session {id} ended: {program} (process {guest}{vm}) of tenant {tenant}")
}
