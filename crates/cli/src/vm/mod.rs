//! `aviary vm`: QEMU with an accelerator that the host owns.

mod fpga;
mod qemu;
mod session;

use crate::guest::{Additions, INITRAMFS, KERNEL};
use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use fpga::FpgaArguments;
use qemu::{Accelerator, Boot, Carrier, Machine, Qemu};
use std::{ffi::OsString, os::unix::process::CommandExt, path::PathBuf, process::ExitCode};

/// Run virtual machines that use an accelerator of this machine.
#[derive(Args)]
pub struct VmCommand {
    #[command(subcommand)]
    action: VmAction,
}

#[derive(Subcommand)]
enum VmAction {
    Run(VmRunCommand),
}

/// Run QEMU with Aviary's device, or print its command line.
///
/// With --image and a command, the command runs in the guest; this command prints its output and exits with its status.
/// Without a command, the image's console is a shell.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  aviary vm run --socket /run/aviary/vm1.sock --image image -- clinfo\n  aviary vm run --dry-run --fpga unix:/run/aviary/vm1-loopback.sock --memory 2G\n  aviary vm run --socket /run/aviary/vm1.sock --print --qemu-arg=-drive --qemu-arg=file=disk.qcow2,if=virtio"
)]
struct VmRunCommand {
    /// The node's vhost-user socket for this VM. Without it the VM has no accelerator.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    #[command(flatten)]
    fpga: FpgaArguments,
    /// The VM's memory.
    #[arg(long, value_name = "SIZE", default_value = "512M", value_parser = parse_memory)]
    memory: u64,
    /// The VM's CPUs.
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=1024))]
    cpus: u32,
    /// Hardware virtualization (kvm), emulation (tcg), or kvm where this machine has it (auto).
    #[arg(long, value_name = "HOW", default_value = "auto")]
    accel: Accelerator,
    /// The QEMU to run.
    #[arg(long, value_name = "PATH", env = "AVIARY_QEMU", default_value = "qemu-system-x86_64")]
    qemu: PathBuf,
    /// QEMU device that carries Aviary: vhost-user-fs, with which sessions survive a pause of the VM, or the generic
    /// vhost-user device (QEMU 11.1), for guests whose kernel has the virtiofs driver built in.
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    carrier: Carrier,
    /// Boot this image, as `aviary guest image` makes it.
    #[arg(long, value_name = "FOLDER")]
    image: Option<PathBuf>,
    #[command(flatten)]
    additions: Additions,
    /// One more argument for QEMU (repeatable).
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    qemu_arg: Vec<OsString>,
    /// Write the output of the guest's kernel to this file.
    #[arg(long, value_name = "FILE")]
    console: Option<PathBuf>,
    /// Print QEMU's command line instead of running it.
    #[arg(long, visible_alias = "dry-run", conflicts_with_all = ["command", "add", "program"])]
    print: bool,
    /// The command that runs in the guest.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "CMD", requires = "image")]
    command: Vec<OsString>,
}

pub fn run(command: VmCommand) -> anyhow::Result<ExitCode> {
    let VmAction::Run(command) = command.action;
    let image = match &command.image {
        Some(folder) => Some(image_of(folder)?),
        None if command.print || !command.qemu_arg.is_empty() => None,
        None => bail!(
            "the VM has nothing to boot: name an image (--image, made by `aviary guest image`) or a disk (--qemu-arg=-drive --qemu-arg=file=...)"
        ),
    };
    let qemu = Qemu::new(command.qemu)?;
    let carrier = command.socket.is_some().then(|| command.carrier.settle(&qemu)).transpose()?;
    let accelerator = command.accel.settle();
    if let Some(socket) = &command.socket
        && !socket.exists()
        && !command.print
    {
        bail!(
            "{} does not exist: expected the socket of a VM in the node's configuration ([vms]), while the node runs",
            socket.display()
        );
    }
    let mut accelerators = command.fpga.settle(!command.print)?;
    if !accelerators.sockets.is_empty() && !qemu.has_vfio_user() {
        bail!("{} has no device vfio-user-pci: --fpga needs QEMU 11.1 or newer", qemu.program().display());
    }
    let machine = Machine {
        accelerator,
        memory: command.memory,
        cpus: command.cpus,
        device: carrier.zip(command.socket),
        fpga: accelerators.sockets.clone(),
        more: command.qemu_arg,
    };
    if command.command.is_empty() {
        if !command.additions.is_empty() {
            bail!("--add and --program go with a command; for a shell, build them into the image");
        }
        let boot = image.map(|(kernel, initramfs)| Boot { kernel, initramfs, console: None });
        let arguments = machine.arguments(boot.as_ref());
        if command.print {
            println!("{}{}", accelerators.printed(), qemu.printed(&arguments));
            return Ok(ExitCode::SUCCESS);
        }
        // QEMU has the terminal.
        if accelerators.are_own() {
            accelerators.start()?;
            let ended = qemu.command(&arguments).status();
            let ended = ended.with_context(|| format!("cannot start {}", qemu.program().display()))?;
            return Ok(ExitCode::from(ended.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)));
        }
        let error = qemu.command(&arguments).exec();
        bail!("cannot start {}: {error}", qemu.program().display());
    }
    let Some((kernel, initramfs)) = image else { bail!("a command needs an --image to run in") };
    accelerators.start()?;
    let job = session::Job { command: &command.command, additions: &command.additions, console: command.console };
    session::run(&qemu, &machine, kernel, &initramfs, job)
}

fn image_of(folder: &std::path::Path) -> anyhow::Result<(PathBuf, PathBuf)> {
    let parts = (folder.join(KERNEL), folder.join(INITRAMFS));
    if !parts.0.is_file() || !parts.1.is_file() {
        bail!("{} is no image ({KERNEL} and {INITRAMFS}): `aviary guest image` makes one", folder.display());
    }
    Ok(parts)
}

/// In bytes; a plain number is MiB, as for QEMU.
fn parse_memory(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}`: expected a size as 512M or 2G");
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let shift = match &*text[digits.len()..].to_ascii_lowercase() {
        "" | "m" | "mib" => 20,
        "g" | "gib" => 30,
        _ => return Err(wrong()),
    };
    let count: u64 = digits.parse().map_err(|_| wrong())?;
    let size = count.checked_mul(1 << shift).filter(|size| *size >= 64 << 20);
    size.ok_or_else(|| format!("`{text}`: a VM needs 64M at least"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(parse_memory("512M"), Ok(512 << 20));
        assert_eq!(parse_memory("512"), Ok(512 << 20));
        assert_eq!(parse_memory("2G"), Ok(2 << 30));
        for wrong in ["", "G", "1K", "-1G", "1M", "99999999999G"] {
            assert!(parse_memory(wrong).is_err(), "{wrong}");
        }
    }
}
