//! `aviary devices`: the accelerators of this machine, without a session, and what of them a node has given away.
//!
//! Each API is asked in a process of its own, which loads and starts the vendor's library: it may crash or hang, and then that is
//! what is told.

pub mod contexts;
pub mod holders;

use crate::apis::{self, Api};
use crate::fpga::own_libraries;
use crate::operate::terminal::{end_with_reader, say};
use crate::operate::which_node::WhichNode;
use anyhow::Context;
use aviary_node::{DeviceLister, GrantReport, Request, TenantReport, ask, fits};
use aviary_server::process::DeviceFacts;
use clap::Args;
use serde::{Deserialize, Serialize};
use std::{
    fs,
    io::{Read, Write},
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
    sync::mpsc::channel,
    time::{Duration, Instant},
};

/// A vendor's library that needs longer to start hangs.
const PATIENCE: Duration = Duration::from_secs(30);
const WATCH_INTERVAL: Duration = Duration::from_secs(10);
const MEMORY: &str = "device_memory";
/// The status of a process whose API's specification lists no devices.
const LISTS_NONE: u8 = 3;
const MOST_BYTES: u64 = 1 << 20;

/// List the devices of this machine: names, memory, versions, health, and what the node has granted of them.
///
/// The APIs are asked in processes of their own; no session and no node is needed. A device that several APIs use is listed with
/// each.
#[derive(Args)]
pub struct DevicesCommand {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// List again whenever something has changed, looking every 10 s; with --json one line each time.
    #[arg(long)]
    watch: bool,
    /// Look for API builds in this folder first (repeatable).
    #[arg(long, value_name = "DIR")]
    api_dir: Vec<PathBuf>,
    /// Only devices of this API (repeatable).
    #[arg(long, value_name = "NAME")]
    api: Vec<String>,
    #[command(flatten)]
    node: WhichNode,
}

/// Lists the devices of one module's API, or the processes that have memory there. Started by `aviary devices` and nodes only.
#[derive(Args)]
pub struct ListDevicesCommand {
    #[arg(value_name = "MODULE")]
    module: PathBuf,
    /// The vendor's library.
    #[arg(value_name = "LIBRARY")]
    vendor: Option<String>,
}

/// A device of an API.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct DeviceLine {
    api: String,
    /// As limits of devices name it; empty: the API's devices cannot be listed.
    name: String,
    uuid: Option<String>,
    /// Bytes.
    memory: Option<u64>,
    /// Versions.
    driver: Option<String>,
    library: Option<String>,
    pci: Option<String>,
    numa: Option<u32>,
    healthy: bool,
    /// Why not.
    reason: Option<String>,
    /// Of a node; `None`: none answers.
    node: Option<DeviceUse>,
}

/// What a node has given away of a device, and what is used.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct DeviceUse {
    /// Grants that may use it, the sum of their shares in per cent, and that of their limits of memory in bytes.
    grants: usize,
    granted_share: u64,
    granted_memory: u64,
    /// Bytes that all tenants hold.
    used_memory: u64,
}

pub fn list_one(command: &ListDevicesCommand) -> anyhow::Result<ExitCode> {
    print_one(|| devices_of(&command.module, command.vendor.as_deref()))
}

/// `None`: the API's specification lists none. It ends with the node that asks, whatever the vendor's library waits for.
fn print_one(told: impl FnOnce() -> anyhow::Result<Option<String>>) -> anyhow::Result<ExitCode> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    let Some(told) = told()? else { return Ok(ExitCode::from(LISTS_NONE)) };
    // A line of its own: the vendor's library may have printed something.
    println!("\n{told}");
    std::io::stdout().flush()?;
    // A vendor's own end may wait for its threads.
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)?;
    Ok(ExitCode::SUCCESS)
}

/// A line of JSON; `None`: the API's specification lists none.
fn devices_of(module: &Path, vendor: Option<&str>) -> anyhow::Result<Option<String>> {
    let listed = aviary_server::process::devices(module, vendor);
    let Some(devices) = listed.map_err(anyhow::Error::msg)? else { return Ok(None) };
    let some = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
    let line = |facts: &DeviceFacts| DeviceLine {
        api: String::new(),
        name: facts.name.clone(),
        uuid: some(&facts.uuid),
        memory: Some(facts.memory).filter(|bytes| *bytes > 0),
        driver: some(&facts.driver),
        library: some(&facts.library),
        pci: some(&facts.pci).map(|address| short_address(&address)),
        numa: None,
        healthy: facts.unhealthy.is_empty(),
        reason: some(&facts.unhealthy),
        node: None,
    };
    Ok(Some(serde_json::to_string(&devices.iter().map(line).collect::<Vec<_>>())?))
}

/// NVML writes a domain of eight digits.
fn short_address(address: &str) -> String {
    let lower = address.trim().to_ascii_lowercase();
    match lower.split_once(':') {
        Some((domain, rest)) if domain.len() > 4 => format!("{}:{rest}", &domain[domain.len() - 4..]),
        _ => lower,
    }
}

pub fn run(command: &DevicesCommand) -> anyhow::Result<ExitCode> {
    let search = apis::search_path(&command.api_dir)?;
    let apis = apis::select(&search, &command.api)?;
    let mut before: Option<Vec<DeviceLine>> = None;
    loop {
        let devices = list(&apis, command)?;
        if before.as_ref() != Some(&devices) {
            end_with_reader();
            match (command.json, command.watch) {
                (true, true) => println!("{}", serde_json::to_string(&devices)?),
                (true, false) => println!("{}", serde_json::to_string_pretty(&devices)?),
                (false, _) => devices.iter().for_each(|device| say(text_of(device))),
            }
            std::io::stdout().flush()?;
        }
        if !command.watch {
            return Ok(ExitCode::SUCCESS);
        }
        before = Some(devices);
        std::thread::sleep(WATCH_INTERVAL);
    }
}

/// For a node's admin socket: as `--json` prints them, without what the node has given away.
pub fn lister(search: Vec<PathBuf>) -> DeviceLister {
    DeviceLister::new(move || {
        let listed = apis::all(&search).map_err(anyhow::Error::from);
        let listed = listed.and_then(|apis| on_machine(&apis.into_values().collect::<Vec<_>>()));
        let value = listed.and_then(|devices| Ok(serde_json::to_value(devices)?));
        value.map_err(|error| format!("{error:#}"))
    })
}

fn list(apis: &[Api], command: &DevicesCommand) -> anyhow::Result<Vec<DeviceLine>> {
    let mut devices = on_machine(apis)?;
    let socket = command.node.socket();
    let grants: Option<Vec<GrantReport>> = ask(&socket, &Request::Grants).ok();
    let tenants: Option<Vec<TenantReport>> = ask(&socket, &Request::Tenants).ok();
    if let (Some(grants), Some(tenants)) = (grants, tenants) {
        devices.iter_mut().for_each(|device| device.node = Some(use_of(&device.name, &grants, &tenants)));
    }
    Ok(devices)
}

fn on_machine(apis: &[Api]) -> anyhow::Result<Vec<DeviceLine>> {
    let own = own_libraries(apis);
    let children: Vec<(&Api, Child)> = apis
        .iter()
        .map(|api| Ok((api, ask_api(api, "list-devices", own.get(&api.name).map(String::as_str))?)))
        .collect::<anyhow::Result<_>>()?;
    let deadline = Instant::now() + PATIENCE;
    let mut devices = Vec::new();
    for (api, child) in children {
        devices.extend(answer(child, deadline).into_iter().map(|line| DeviceLine { api: api.name.clone(), ..line }));
    }
    for device in &mut devices {
        device.numa = device.pci.as_deref().and_then(numa_of);
    }
    Ok(devices)
}

/// `command`: of this program, with a module and the vendor's library.
fn ask_api(api: &Api, command: &str, vendor: Option<&str>) -> anyhow::Result<Child> {
    let mut process = Command::new("/proc/self/exe");
    process.arg(command).arg(api.directory.join("server.so"));
    process.args(vendor);
    let child = process.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    child.with_context(|| format!("cannot ask for devices of {}", api.name))
}

/// The whole of a pipe, on a thread of its own.
fn reader(pipe: Option<impl Read + Send + 'static>) -> std::sync::mpsc::Receiver<Vec<u8>> {
    let (tell, told) = channel();
    std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = pipe.map(|pipe| pipe.take(MOST_BYTES).read_to_end(&mut text));
        let _ = tell.send(text);
    });
    told
}

/// What a child has said, and how it has ended.
struct Heard {
    /// `None`: it was not done in time.
    text: Option<Vec<u8>>,
    errors: std::sync::mpsc::Receiver<Vec<u8>>,
    status: std::io::Result<std::process::ExitStatus>,
}

/// Waits for a child's whole output, and ends it.
fn hear(mut child: Child, deadline: Instant) -> Heard {
    let (out, errors) = (reader(child.stdout.take()), reader(child.stderr.take()));
    let text = out.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok();
    let _ = child.kill();
    Heard { text, errors, status: child.wait() }
}

/// The last line of what was said, if it is such a list: before it the vendor's library may have printed something.
fn last_line<T: serde::de::DeserializeOwned>(told: &[u8]) -> Option<Vec<T>> {
    serde_json::from_str(String::from_utf8_lossy(told).lines().last()?).ok()
}

/// None for an API that lists no devices, or whose library is not on this machine.
fn answer(child: Child, deadline: Instant) -> Vec<DeviceLine> {
    let Heard { text, errors, status } = hear(child, deadline);
    let Some(text) = text else {
        return vec![unhealthy(format!("the vendor's library does not answer within {} s", PATIENCE.as_secs()))];
    };
    if let Some(devices) = last_line(&text) {
        return devices;
    }
    let said = errors.recv_timeout(Duration::from_secs(1)).unwrap_or_default();
    let said =
        String::from_utf8_lossy(&said).lines().last().unwrap_or_default().trim_start_matches("aviary: ").to_owned();
    match status {
        Ok(status) if status.code() == Some(LISTS_NONE.into()) || said.contains("cannot be loaded on the server") => {
            Vec::new()
        }
        Ok(status) if said.is_empty() => vec![unhealthy(format!("the vendor's library ends its process ({status})"))],
        _ => vec![unhealthy(said)],
    }
}

fn unhealthy(reason: String) -> DeviceLine {
    DeviceLine {
        api: String::new(),
        name: String::new(),
        uuid: None,
        memory: None,
        driver: None,
        library: None,
        pci: None,
        numa: None,
        healthy: false,
        reason: Some(reason),
        node: None,
    }
}

fn numa_of(address: &str) -> Option<u32> {
    let plain = address.bytes().all(|letter| letter.is_ascii_hexdigit() || b":.".contains(&letter));
    let text = plain.then(|| fs::read_to_string(format!("/sys/bus/pci/devices/{address}/numa_node")))?.ok()?;
    // -1: the machine does not say.
    text.trim().parse().ok()
}

fn use_of(device: &str, grants: &[GrantReport], tenants: &[TenantReport]) -> DeviceUse {
    let may = |grant: &&GrantReport| {
        grant.grant.only_devices.as_ref().is_none_or(|names| names.iter().any(|name| fits(name, device)))
    };
    let of_device: Vec<&GrantReport> = grants.iter().filter(may).collect();
    let memory = |grant: &&GrantReport| -> u64 {
        let on_device = grant.grant.device_limits.iter().filter(|limit| limit.resource == MEMORY);
        let on_device = on_device.filter(|limit| fits(&limit.device, device)).filter_map(|limit| limit.limit).min();
        on_device.into_iter().chain(grant.grant.limits.get(MEMORY).copied()).min().unwrap_or(0)
    };
    let accounts = tenants.iter().flat_map(|tenant| &tenant.accounts);
    let on_device = accounts.filter(|account| account.resource == MEMORY && account.device.as_deref() == Some(device));
    DeviceUse {
        grants: of_device.len(),
        granted_share: of_device.iter().map(|grant| u64::from(grant.grant.share.unwrap_or(0))).sum(),
        granted_memory: of_device.iter().map(memory).fold(0, u64::saturating_add),
        used_memory: on_device.map(|account| account.used).sum(),
    }
}

fn text_of(device: &DeviceLine) -> String {
    let reason = device.reason.as_deref().unwrap_or_default();
    if device.name.is_empty() {
        return format!("{}  no devices: {reason}", device.api);
    }
    let mut words = vec![format!("{}  {:?} ", device.api, device.name)];
    let mut word = |name: &str, value: Option<String>| words.extend(value.map(|value| format!("{name}={value}")));
    word("memory", device.memory.map(|bytes| bytes.to_string()));
    word("uuid", device.uuid.clone());
    word("driver", device.driver.as_ref().map(|text| format!("{text:?}")));
    word("library", device.library.as_ref().map(|text| format!("{text:?}")));
    word("pci", device.pci.clone());
    word("numa", device.numa.map(|node| node.to_string()));
    if let Some(DeviceUse { grants, granted_share, granted_memory, used_memory }) = &device.node {
        word("grants", Some(grants.to_string()));
        word("granted_share", Some(format!("{granted_share}%")));
        word("granted_memory", Some(granted_memory.to_string()));
        word("used_memory", Some(used_memory.to_string()));
    }
    words.push(if device.healthy { "healthy".into() } else { format!("UNHEALTHY: {reason}") });
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_as_the_kernel_writes_them() {
        assert_eq!(short_address("00000000:3B:00.0"), "0000:3b:00.0");
        assert_eq!(short_address("0000:3b:00.0\n"), "0000:3b:00.0");
        assert_eq!(short_address("x"), "x");
        assert_eq!(numa_of("../../../../etc"), None);
    }
}
