//! `aviary fpga-device`: an accelerator of a shared card as a PCI function of one virtual machine.

use anyhow::{Context, bail};
use aviary_fpga::device::{
    CardSocket, FpgaDevice, Keeper, MessageCounts, PciIds, StartedWorker, Worker, end_connection,
};
use aviary_server::process::sandboxing::{confine_helper, step_down};
use clap::Args;
use rustix::process::{PidfdFlags, Resource, Rlimit};
use std::{
    fs::File,
    os::fd::{AsFd, OwnedFd},
    os::unix::net::{UnixListener, UnixStream},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, ExitCode, Stdio},
};

/// Give a virtual machine an accelerator of a shared FPGA card.
///
/// Serves the one VMM that connects to the socket by vfio-user 0.1 (QEMU 11.1: `-device vfio-user-pci`), until it
/// ends. The virtual machine counts as the user who runs this command. The guest needs no driver of Aviary's.
#[derive(Args)]
#[command(
    after_help = "Example:\n  aviary fpga-device d8424dc4-a4a3-c413-f89e-433683f9040b --card unix:/run/user/1000/card0.sock --listen unix:/run/user/1000/vm1.sock"
)]
pub struct FpgaDeviceCommand {
    /// The accelerator's type.
    #[arg(value_name = "GUID")]
    guid: String,
    /// The socket of the card: of `aviary fpga card`, or a node's.
    #[arg(long, value_name = "unix:PATH", required_unless_present = "of_node")]
    card: Option<String>,
    /// The socket to which the VMM connects.
    #[arg(long, value_name = "unix:PATH", required_unless_present = "of_node")]
    listen: Option<String>,
    /// Started by a node: the VMM's connection is standard input, one to the card standard output. The name is for the log.
    #[arg(long, value_name = "NAME", hide = true, conflicts_with_all = ["card", "listen"])]
    of_node: Option<String>,
    /// Run as this user.
    #[arg(long, value_name = "UID", hide = true, requires = "of_node")]
    user: Option<u32>,
    /// What the PCI function says that it is, in hexadecimal digits.
    #[arg(long, value_name = "VENDOR:DEVICE:VENDOR:DEVICE", value_parser = parse_ids, default_value = "8086:0a5e:8086:0a5e")]
    ids: PciIds,
}

/// A VMM and the device that is served to it.
struct Connected {
    device: FpgaDevice<CardSocket>,
    vmm: UnixStream,
    /// The node that has started this process: readable when it has ended.
    node: Option<OwnedFd>,
}

pub fn run(command: FpgaDeviceCommand) -> anyhow::Result<ExitCode> {
    if command.guid.chars().filter(char::is_ascii_hexdigit).count() != 32 {
        bail!("{}: expected the GUID of an accelerator's type, 32 hexadecimal digits", command.guid);
    }
    // No core dumps: they would contain the memory of a VM.
    rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    let name = command.of_node.as_ref().map(|name| format!(" {}", name.escape_debug())).unwrap_or_default();
    let Connected { device, vmm, node } = match command.of_node {
        Some(_) => of_node(&command).with_context(|| format!("fpga-device{name}"))?,
        None => on_its_own(&command)?,
    };
    // What the VMM sends is hostile: a worker reads it, and this process only how long it is.
    step_down(command.user).map_err(|error| anyhow::anyhow!("cannot confine the process: {error}"))?;
    let log = |line: std::fmt::Arguments<'_>| eprintln!("aviary fpga-device{name}: {line}");
    let mut keeper = Keeper::new(device, &vmm);
    let guards: Vec<_> = node.iter().map(AsFd::as_fd).collect();
    let farewell = keeper.serve(&guards, WorkerProcess::start, &log);
    end_connection(&vmm);
    let MessageCounts { reads, writes, maps, unmaps, .. } = keeper.counts();
    log(format_args!(
        "the device has ended ({farewell}): its accelerator and memory are free; there were {reads} reads and {writes} writes of \
         registers, {maps} maps, {unmaps} unmaps"
    ));
    Ok(ExitCode::SUCCESS)
}

fn on_its_own(command: &FpgaDeviceCommand) -> anyhow::Result<Connected> {
    let card = command.card.as_deref().context("--card is missing")?;
    let listen = command.listen.as_deref().context("--listen is missing")?;
    let (place, own) = (path_of("--card", card)?, path_of("--listen", listen)?);
    let socket = CardSocket::connect(place).with_context(|| format!("the card at {card}: is it running?"))?;
    let greeted = FpgaDevice::new(socket, &command.guid.to_lowercase(), command.ids);
    let device = greeted.with_context(|| format!("the card at {card}"))?;
    let vmm = accept_one(own).with_context(|| format!("--listen {listen}"))?;
    Ok(Connected { device, vmm, node: None })
}

fn of_node(command: &FpgaDeviceCommand) -> anyhow::Result<Connected> {
    // If the node has ended before, another process is the parent; but then the card has, too, and answers nothing.
    let parent = rustix::process::getppid().context("the node has ended")?;
    let node = rustix::process::pidfd_open(parent, PidfdFlags::empty())?;
    let vmm = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let card = std::io::stdout().as_fd().try_clone_to_owned()?;
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    let greeted = FpgaDevice::new(CardSocket::from(card), &command.guid.to_lowercase(), command.ids);
    Ok(Connected { device: greeted?, vmm, node: Some(node) })
}

/// Serves what the VMM of a device sends. Started by `aviary fpga-device`, with its connection to that as standard input.
#[derive(Args)]
pub struct FpgaWorkerCommand {}

struct WorkerProcess(Child);

impl WorkerProcess {
    fn start(socket: OwnedFd) -> std::io::Result<WorkerProcess> {
        let mut command = std::process::Command::new("/proc/self/exe");
        // A signal of the terminal ends the device, and not both at once.
        command.arg0("aviary").arg("fpga-worker").process_group(0).env_clear().stdin(socket).stdout(Stdio::null());
        command.spawn().map(WorkerProcess)
    }
}

impl StartedWorker for WorkerProcess {
    fn end(&mut self) -> String {
        let _ = self.0.kill();
        self.0.wait().map_or_else(|error| error.to_string(), |status| status.to_string())
    }
}

pub fn run_worker() -> anyhow::Result<ExitCode> {
    let keeper = std::io::stdin().as_fd().try_clone_to_owned()?;
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    confine_helper(None).map_err(|error| anyhow::anyhow!("cannot confine the process: {error}"))?;
    let log = |line: std::fmt::Arguments<'_>| eprintln!("aviary fpga-device: {line}");
    // A keeper that has ended has nobody to tell.
    if let Err(error) = Worker::start(keeper).and_then(|mut worker| worker.serve(&log)) {
        log(format_args!("a worker ends: {error}"));
    }
    Ok(ExitCode::SUCCESS)
}

fn path_of<'a>(option: &str, address: &'a str) -> anyhow::Result<&'a Path> {
    address.strip_prefix("unix:").map(Path::new).with_context(|| format!("{option} {address}: expected unix:PATH"))
}

/// The first VMM that connects. The socket's file is removed then: there is no second one.
fn accept_one(path: &Path) -> std::io::Result<UnixStream> {
    let listener = UnixListener::bind(path)?;
    eprintln!("aviary fpga-device: a VMM can connect to {}", path.display());
    let accepted = listener.accept();
    let _ = std::fs::remove_file(path);
    Ok(accepted?.0)
}

fn parse_ids(text: &str) -> Result<PciIds, String> {
    let ids: Option<Vec<u16>> = text.split(':').map(|id| u16::from_str_radix(id, 16).ok()).collect();
    match ids.as_deref() {
        Some(&[vendor, device, subsystem_vendor, subsystem]) => {
            Ok(PciIds { vendor, device, subsystem_vendor, subsystem })
        }
        _ => Err("expected four numbers of up to four hexadecimal digits, such as 8086:0a5e:8086:0a5e".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_four_numbers() {
        assert_eq!(parse_ids("8086:0a5e:8086:0a5e"), Ok(PciIds::default()));
        for wrong in ["8086:0a5e", "8086:0a5e:1:2:3", "8086:0a5e:1:12345", "", ":::"] {
            assert!(parse_ids(wrong).is_err(), "{wrong}");
        }
    }
}
