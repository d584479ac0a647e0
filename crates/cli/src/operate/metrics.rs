//! `aviary metrics`: a node's counters for a monitoring system, printed once or served by HTTP.

use crate::operate::metrics_http::serve;
use crate::operate::terminal::end_with_reader;
use crate::operate::top::{Sample, sample};
use crate::operate::which_node::WhichNode;
use anyhow::{Context as _, bail};
use aviary_node::{SessionReport, WAIT_BOUNDS_NS, Waits};
use aviary_wire::shown;
use clap::Args;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::stdin;
use std::net::{AddrParseError, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::ExitCode;
use std::str::FromStr;

/// Print a node's counters in the text format of Prometheus, or serve them.
#[derive(Args)]
pub struct MetricsCommand {
    #[command(flatten)]
    node: WhichNode,
    /// Serve `GET /metrics` on this address, such as 127.0.0.1:9400, until a signal; `-`: standard input is a listening
    /// socket, as a service manager passes it. There is no access control.
    #[arg(long, value_name = "ADDRESS:PORT", allow_hyphen_values = true)]
    listen: Option<ListenAt>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ListenAt {
    Address(SocketAddr),
    StandardInput,
}

impl FromStr for ListenAt {
    type Err = AddrParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "-" { Ok(Self::StandardInput) } else { text.parse().map(Self::Address) }
    }
}

impl ListenAt {
    fn listener(self) -> anyhow::Result<TcpListener> {
        match self {
            Self::Address(address) => TcpListener::bind(address).with_context(|| format!("cannot listen on {address}")),
            Self::StandardInput => inherited(stdin().as_fd()),
        }
    }
}

/// A copy of a listening socket.
fn inherited(socket: BorrowedFd<'_>) -> anyhow::Result<TcpListener> {
    if !rustix::net::sockopt::socket_acceptconn(socket).is_ok_and(|listens| listens) {
        bail!("--listen -: standard input is no listening socket; name ADDRESS:PORT");
    }
    Ok(socket.try_clone_to_owned().context("--listen -")?.into())
}

pub fn metrics(command: &MetricsCommand) -> anyhow::Result<ExitCode> {
    let socket = command.node.socket();
    let Some(listen) = command.listen else {
        let text = metrics_text(&sample(&socket)?);
        end_with_reader();
        print!("{text}");
        return Ok(ExitCode::SUCCESS);
    };
    let listener = listen.listener()?;
    println!("http://{}/metrics", listener.local_addr()?);
    serve(&listener, &|| sample(&socket).map(|sample| metrics_text(&sample)))
}

/// The text format of Prometheus, version 0.0.4.
fn metrics_text(sample: &Sample) -> String {
    let of_tenants = sample.tenants.iter().map(|tenant| (tenant.name.clone(), tenant.labels.clone())).collect();
    let mut text = MetricsText { of_tenants, ..MetricsText::default() };
    text.family("aviary_sessions", "gauge", "Sessions of a tenant.");
    sample.tenants.iter().for_each(|t| text.sample(&[("tenant", &t.name)], t.sessions as u64));
    for (name, kind, help) in [
        (
            "used",
            "gauge",
            "Amount of a resource that a tenant holds (continuous resources) or has used (instantaneous ones).",
        ),
        ("peak", "gauge", "The most that the tenant held at a time."),
        ("refused", "counter", "Calls that were refused because of the resource's limit."),
        ("limit", "gauge", "The tenant's limit; missing: no limit."),
    ] {
        // Allocations on a device count on the device, too: in a family of their own, so that sums
        // are right.
        for on_device in [false, true] {
            let (family, where_to) = if on_device { ("device_account", " On one device.") } else { ("account", "") };
            text.family(&format!("aviary_{family}_{name}"), kind, &format!("{help}{where_to}"));
            let accounts = sample.tenants.iter().flat_map(|t| t.accounts.iter().map(move |a| (t, a)));
            for (tenant, account) in accounts.filter(|(_, account)| account.device.is_some() == on_device) {
                let value = match name {
                    "used" => Some(account.used),
                    "peak" => Some(account.peak),
                    "refused" => Some(account.refused),
                    _ => account.limit.filter(|l| *l != u64::MAX),
                };
                let mut labels = vec![("tenant", tenant.name.as_str()), ("resource", account.resource.as_str())];
                labels.extend(account.device.as_deref().map(|device| ("device", device)));
                value.into_iter().for_each(|value| text.sample(&labels, value));
            }
        }
    }
    let users = || sample.node.devices.iter().flat_map(|d| d.tenants.iter().map(move |t| (d, t)));
    text.family("aviary_device_nanoseconds_total", "counter", "Device time that a tenant used.");
    for (device, tenant) in users() {
        text.sample(&[("device", &device.device), ("tenant", &tenant.tenant)], tenant.used_ns);
    }
    text.family("aviary_device_waiting", "gauge", "Sessions of a tenant that wait for a device.");
    for (device, tenant) in users() {
        text.sample(&[("device", &device.device), ("tenant", &tenant.tenant)], tenant.waiting as u64);
    }
    let help = "Waits of a tenant's calls for a device.";
    text.family("aviary_device_wait_seconds", "histogram", help);
    for (device, tenant) in users() {
        text.histogram(&[("device", &device.device), ("tenant", &tenant.tenant)], &tenant.waits);
    }
    of_sessions(&mut text, &sample.node.sessions);
    text.text
}

fn of_sessions(text: &mut MetricsText, sessions: &[SessionReport]) {
    text.family("aviary_session_calls", "gauge", "Calls of a session so far.");
    for session in sessions {
        let number = session.session.to_string();
        let labels = [("session", number.as_str()), ("tenant", &session.tenant), ("api", &session.api)];
        let count = |name: &str| session.counters.get(name).copied().unwrap_or(0);
        text.sample(&labels, count("calls") + count("async_calls"));
    }
    text.family(
        "aviary_parked_bytes",
        "gauge",
        "Host memory for the state of a parked session, and what that waits for.",
    );
    for session in sessions {
        let Some(parked) = &session.parked else { continue };
        let number = session.session.to_string();
        let of = [("session", number.as_str()), ("tenant", &session.tenant), ("api", &session.api)];
        text.sample(&[&of[..], &[("state", &parked.state)]].concat(), parked.bytes);
    }
    text.family("aviary_resident_memory_bytes", "gauge", "Memory of a session on a device that is shared out.");
    for session in sessions {
        let number = session.session.to_string();
        let of = [("session", number.as_str()), ("tenant", &session.tenant), ("api", &session.api)];
        for (name, bytes) in &session.counters {
            let device = name.strip_prefix("resident_memory@").and_then(|name| name.strip_suffix(".used"));
            device.into_iter().for_each(|device| text.sample(&[&of[..], &[("device", device)]].concat(), *bytes));
        }
    }
    text.family(
        "aviary_swapped_bytes",
        "gauge",
        "Host memory for a session's device memory that is swapped out, or was.",
    );
    for session in sessions {
        let Some(swapped) = &session.swapped else { continue };
        let number = session.session.to_string();
        let of = [("session", number.as_str()), ("tenant", &session.tenant), ("api", &session.api)];
        text.sample(&[&of[..], &[("place", &swapped.place)]].concat(), swapped.bytes.max(swapped.kept));
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

#[derive(Default)]
struct MetricsText {
    text: String,
    family: String,
    /// Labels that each line of a tenant has in addition, if it is a grant.
    of_tenants: BTreeMap<String, BTreeMap<String, String>>,
}

impl MetricsText {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        self.family = name.to_owned();
    }

    fn sample(&mut self, labels: &[(&str, &str)], value: u64) {
        self.value("", labels, value);
    }

    fn histogram(&mut self, labels: &[(&str, &str)], waits: &Waits) {
        let bounds = WAIT_BOUNDS_NS.iter().map(|ns| seconds(*ns).to_string()).chain(["+Inf".to_owned()]);
        let mut sum = 0u64;
        for (bound, count) in bounds.zip(waits.counts) {
            sum = sum.saturating_add(count);
            self.value("_bucket", &[labels, &[("le", &bound)]].concat(), sum);
        }
        self.value("_sum", labels, seconds(waits.sum_ns));
        self.value("_count", labels, sum);
    }

    fn value(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        // Programs and API servers choose some of them: neither a line nor anything that a terminal obeys.
        let escaped = |text: &str| shown(text).replace('\\', "\\\\").replace('"', "\\\"");
        let tenant = labels.iter().find(|(name, _)| *name == "tenant").and_then(|(_, name)| self.of_tenants.get(*name));
        let of_grant = tenant.into_iter().flatten().map(|(name, text)| (name.as_str(), text.as_str()));
        let labels = labels.iter().copied().chain(of_grant);
        let labels: Vec<String> = labels.map(|(name, text)| format!("{name}=\"{}\"", escaped(text))).collect();
        let _ = writeln!(self.text, "{}{suffix}{{{}}} {value}", self.family, labels.join(","));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_listening_socket_is_taken_over() {
        assert_eq!("-".parse(), Ok(ListenAt::StandardInput));
        assert_eq!("[::1]:9400".parse(), Ok(ListenAt::Address("[::1]:9400".parse().unwrap())));
        assert!("9400".parse::<ListenAt>().is_err());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let copy = inherited(listener.as_fd()).unwrap();
        assert_eq!(copy.local_addr().unwrap(), listener.local_addr().unwrap());
        let other = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(inherited(other.as_fd()).is_err());
        assert!(inherited(std::fs::File::open("/dev/null").unwrap().as_fd()).is_err());
    }

    #[test]
    fn labels_are_escaped() {
        let mut text = MetricsText::default();
        text.family("a", "gauge", "What.");
        text.sample(&[("tenant", "x\"\\\n\x1b")], 3);
        assert_eq!(text.text, "# HELP a What.\n# TYPE a gauge\na{tenant=\"x\\\"\\\\\\\\n\\\\u{1b}\"} 3\n");
    }

    #[test]
    fn lines_of_a_grants_tenant_have_its_labels() {
        let mut text = MetricsText::default();
        text.of_tenants.insert("pod".into(), BTreeMap::from([("namespace".into(), "a\"b".into())]));
        text.family("a", "gauge", "What.");
        text.sample(&[("tenant", "pod"), ("api", "x")], 1);
        text.sample(&[("tenant", "lab")], 2);
        text.sample(&[("device", "pod")], 3);
        let lines: Vec<&str> = text.text.lines().skip(2).collect();
        let expected =
            ["a{tenant=\"pod\",api=\"x\",namespace=\"a\\\"b\"} 1", "a{tenant=\"lab\"} 2", "a{device=\"pod\"} 3"];
        assert_eq!(lines, expected);
    }

    #[test]
    fn waits_are_a_histogram() {
        let mut text = MetricsText::default();
        text.family("w", "histogram", "What.");
        text.histogram(&[("tenant", "x")], &Waits { sum_ns: 2_500_000_000, counts: [3, 0, 1, 0, 0, 1] });
        let values: Vec<&str> = text.text.lines().skip(2).collect();
        assert_eq!(values[0], "w_bucket{tenant=\"x\",le=\"0.0001\"} 3");
        assert_eq!(values[2], "w_bucket{tenant=\"x\",le=\"0.01\"} 4");
        assert_eq!(
            values[5..],
            ["w_bucket{tenant=\"x\",le=\"+Inf\"} 5", "w_sum{tenant=\"x\"} 2.5", "w_count{tenant=\"x\"} 5"]
        );
    }
}
