//! `aviary fpga-device`: an accelerator of a shared card as a PCI function of one virtual machine.

use anyhow::{Context, bail};
use aviary_fpga::device::{CardSocket, FpgaDevice, MessageCounts, PciIds, end_connection, serve_vmm};
use aviary_server::process::sandboxing::confine_helper;
use clap::Args;
use rustix::process::{Resource, Rlimit};
use std::{
    io::Read,
    os::fd::{AsFd, OwnedFd},
    os::unix::net::{UnixListener, UnixStream},
    os::unix::process::CommandExt,
    path::Path,
    process::ExitCode,
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
    #[arg(long, value_name = "unix:PATH")]
    card: String,
    /// The socket to which the VMM connects.
    #[arg(long, value_name = "unix:PATH")]
    listen: String,
    /// What the PCI function says that it is, in hexadecimal digits.
    #[arg(long, value_name = "VENDOR:DEVICE:VENDOR:DEVICE", value_parser = parse_ids, default_value = "8086:0a5e:8086:0a5e")]
    ids: PciIds,
}

pub fn run(command: FpgaDeviceCommand) -> anyhow::Result<ExitCode> {
    let FpgaDeviceCommand { guid, card, listen, ids } = command;
    if guid.chars().filter(char::is_ascii_hexdigit).count() != 32 {
        bail!("{guid}: expected the GUID of an accelerator's type, 32 hexadecimal digits");
    }
    // No core dumps: they would contain the memory of a VM.
    rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    let (place, own) = (path_of("--card", &card)?, path_of("--listen", &listen)?);
    let socket = CardSocket::connect(place).with_context(|| format!("the card at {card}: is it running?"))?;
    let mut device =
        FpgaDevice::new(socket, &guid.to_lowercase(), ids).with_context(|| format!("the card at {card}"))?;
    let vmm = accept_one(own).with_context(|| format!("--listen {listen}"))?;
    device.card.watch(vmm.try_clone()?.into());
    let guard = start_guard(&vmm).context("cannot start the process that keeps the connection")?;
    // What the VMM sends is hostile, and no file is needed any more.
    confine_helper(None).map_err(|error| anyhow::anyhow!("cannot confine the process: {error}"))?;
    let log = |line: std::fmt::Arguments<'_>| eprintln!("aviary fpga-device: {line}");
    let farewell = serve_vmm(&mut device, &vmm, Some(&guard), &log);
    end_connection(&vmm);
    let MessageCounts { reads, writes, maps, unmaps, .. } = device.counts;
    log(format_args!(
        "the device has ended ({farewell}): its accelerator and memory are free; there were {reads} reads and {writes} writes of \
         registers, {maps} maps, {unmaps} unmaps"
    ));
    Ok(ExitCode::SUCCESS)
}

/// Ends the connection of a VMM in order if its device is killed. Started by `aviary fpga-device`, with the connection as standard
/// input and its own connection to the device as standard output.
#[derive(Args)]
pub struct FpgaGuardCommand {}

fn start_guard(vmm: &UnixStream) -> anyhow::Result<UnixStream> {
    let (own, of_guard) = UnixStream::pair()?;
    let mut command = std::process::Command::new(std::env::current_exe()?);
    // A signal of the terminal ends the device, and not both at once.
    command.arg("fpga-guard").process_group(0).stdin(OwnedFd::from(vmm.try_clone()?)).stdout(OwnedFd::from(of_guard));
    command.spawn()?;
    Ok(own)
}

pub fn run_guard() -> anyhow::Result<ExitCode> {
    let vmm = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let device = UnixStream::from(std::io::stdout().as_fd().try_clone_to_owned()?);
    rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    confine_helper(None).map_err(|error| anyhow::anyhow!("cannot confine the process: {error}"))?;
    // It sends nothing, and ends.
    let _ = (&device).read(&mut [0]);
    end_connection(&vmm);
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
