//! The features of a QEMU, and its command line.

use crate::guest::quoted;
use anyhow::{Context, bail};
use clap::ValueEnum;
use serde_json::json;
use std::{
    ffi::{OsStr, OsString},
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

const TEST_DEVICE: &str = "vhost-user-test-device-pci";
const FS_DEVICE: &str = "vhost-user-fs-pci";
/// The first of the places on the guest's PCI bus that accelerators of cards have; QEMU gives others from below.
const FIRST_SLOT: usize = 0x10;

/// For a VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Accelerator {
    Auto,
    Kvm,
    Tcg,
}

impl Accelerator {
    /// KVM where the processor has hardware virtualization and this user may use it. A `/dev/kvm` without the
    /// processor's help exists (some sandboxes emulate one), and does not boot usual kernels.
    pub fn settle(self) -> Self {
        let ours = || fs::File::options().read(true).write(true).open("/dev/kvm").is_ok();
        match self {
            Accelerator::Auto
                if has_virtualization(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default()) && ours() =>
            {
                Accelerator::Kvm
            }
            Accelerator::Auto => Accelerator::Tcg,
            chosen => chosen,
        }
    }
}

fn has_virtualization(cpuinfo: &str) -> bool {
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    flags.split_whitespace().any(|flag| flag == "vmx" || flag == "svm")
}

/// The device of QEMU that stands for Aviary's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Carrier {
    Auto,
    /// vhost-user-test-device-pci, any kind of device: QEMU 11.1. It tells no reset from a pause, which ends sessions.
    TestDevice,
    /// vhost-user-fs-pci, meant for file systems: QEMU 7.2, and sessions that survive a pause from 8.2 on.
    Fs,
}

impl Carrier {
    pub fn settle(self, qemu: &Qemu) -> anyhow::Result<Self> {
        let wanted = match self {
            Carrier::Auto => vec![Carrier::Fs, Carrier::TestDevice],
            chosen => vec![chosen],
        };
        let found = wanted.iter().copied().find(|carrier| qemu.offers(carrier.device()));
        let names: Vec<_> = wanted.iter().map(|carrier| carrier.device()).collect();
        found.with_context(|| {
            format!(
                "{} has no device {}: use QEMU 8.2 or newer (7.2 suffices for VMs that are never paused)",
                qemu.program.display(),
                names.join(" and no ")
            )
        })
    }

    fn device(self) -> &'static str {
        if self == Carrier::Fs { FS_DEVICE } else { TEST_DEVICE }
    }

    /// With three queues. The file system's first one is an extra.
    fn arguments(self) -> &'static str {
        match self {
            Carrier::Fs => "vhost-user-fs-pci,chardev=aviary,tag=aviary,num-request-queues=2,queue-size=64",
            _ => "vhost-user-test-device-pci,chardev=aviary,virtio-id=37,num_vqs=3,vq_size=64,config_size=0",
        }
    }

    /// The parameter that gives the guest's driver the id of its device.
    fn kernel_option(self) -> &'static str {
        if self == Carrier::Fs { "aviary.virtio_id=26" } else { "aviary.virtio_id=37" }
    }
}

pub struct Qemu {
    program: PathBuf,
}

impl Qemu {
    pub fn new(program: PathBuf) -> anyhow::Result<Self> {
        let qemu = Self { program };
        match qemu.ask(&["--version"]) {
            Some(text) if text.contains("QEMU") => Ok(qemu),
            Some(_) => bail!("{} is not QEMU: its --version does not say so", qemu.program.display()),
            None => bail!(
                "cannot run {}: install QEMU (Debian: qemu-system-x86), or name yours with --qemu",
                qemu.program.display()
            ),
        }
    }

    pub fn program(&self) -> &Path {
        &self.program
    }

    pub fn has_vfio_user(&self) -> bool {
        self.ask(&["-device", "help"]).is_some_and(|text| text.contains("vfio-user-pci"))
    }

    fn offers(&self, device: &str) -> bool {
        self.ask(&["-device", &format!("{device},help")]).is_some_and(|text| text.contains("chardev"))
    }

    /// QEMU ends when this process does, however it ends.
    pub fn can_follow_parent(&self) -> bool {
        self.ask(&["-run-with", "help"]).is_some_and(|text| text.contains("exit-with-parent"))
    }

    /// QEMU's output for these arguments, if it starts.
    fn ask(&self, arguments: &[&str]) -> Option<String> {
        let output = Command::new(&self.program).args(arguments).stdin(Stdio::null()).output().ok()?;
        Some(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    pub fn command(&self, arguments: &[OsString]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(arguments);
        command
    }

    /// For people and shells: one option a line.
    pub fn printed(&self, arguments: &[OsString]) -> String {
        let mut text = shown(self.program.as_os_str());
        for argument in arguments {
            let is_option = argument.to_string_lossy().starts_with('-');
            text.push_str(if is_option { " \\\n    " } else { " " });
            text.push_str(&shown(argument));
        }
        text
    }
}

fn shown(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_=.,/:+%@".contains(letter);
    if !word.is_empty() && word.chars().all(plain) { word.into_owned() } else { quoted(&word) }
}

/// The VM, whatever it boots.
pub struct Machine {
    pub accelerator: Accelerator,
    pub memory: u64,
    pub cpus: u32,
    pub device: Option<(Carrier, PathBuf)>,
    /// Sockets of accelerators of FPGA cards, which QEMU reaches by vfio-user.
    pub fpga: Vec<PathBuf>,
    pub more: Vec<OsString>,
}

/// An image.
pub struct Boot {
    pub kernel: PathBuf,
    pub initramfs: PathBuf,
    /// Where the kernel's messages go; the terminal if nowhere else.
    pub console: Option<PathBuf>,
}

impl Machine {
    pub fn arguments(&self, boot: Option<&Boot>) -> Vec<OsString> {
        let mut line = Line::default();
        // The node maps the guest's memory: it must be a shared file.
        let is_kvm = self.accelerator == Accelerator::Kvm;
        // The guest's IOMMU isolates interrupts, too, which a whole interrupt controller in the kernel would not do.
        let machine = match (self.fpga.is_empty(), is_kvm) {
            (true, _) => "q35,memory-backend=mem",
            (false, true) => "q35,memory-backend=mem,kernel-irqchip=split",
            (false, false) => "q35,memory-backend=mem,kernel-irqchip=off",
        };
        line.add("-machine", machine);
        let (accelerator, processor) = if is_kvm { ("kvm", "host") } else { ("tcg,thread=multi", "max") };
        line.add("-accel", accelerator);
        line.add("-cpu", processor);
        line.add("-smp", self.cpus.to_string());
        let mebibytes = self.memory >> 20;
        line.add("-m", format!("{mebibytes}M"));
        line.add("-object", format!("memory-backend-memfd,id=mem,size={mebibytes}M,share=on"));
        if !self.fpga.is_empty() {
            line.add("-device", "intel-iommu,caching-mode=on,intremap=on,aw-bits=48");
        }
        for (place, socket) in self.fpga.iter().enumerate() {
            line.add("-device", vfio_user(socket, FIRST_SLOT + place));
        }
        if let Some((carrier, socket)) = &self.device {
            line.add("-chardev", with_path("socket,id=aviary,path=", socket));
            line.add("-device", carrier.arguments());
        }
        if let Some(boot) = boot {
            self.boot(&mut line, boot);
        }
        line.0.extend(self.more.iter().cloned());
        line.0
    }

    fn boot(&self, line: &mut Line, boot: &Boot) {
        for option in ["-no-user-config", "-nodefaults", "-no-reboot"] {
            line.0.push(option.into());
        }
        line.add("-display", "none");
        match &boot.console {
            Some(file) => line.add("-serial", with_path("file:", file)),
            None => line.add("-serial", "mon:stdio"),
        }
        line.add("-kernel", boot.kernel.as_os_str());
        line.add("-initrd", boot.initramfs.as_os_str());
        // A busy host must not make the kernel believe that its timer is broken; a kernel that panics ends the VM.
        let mut options = "console=ttyS0 quiet no_timer_check panic=-1".to_owned();
        if !self.fpga.is_empty() {
            options.push_str(" intel_iommu=on");
        }
        if let Some((carrier, _)) = &self.device {
            options.push(' ');
            options.push_str(carrier.kernel_option());
        }
        line.add("-append", options);
    }
}

/// The option's value as JSON: the socket's is a structure.
fn vfio_user(socket: &Path, slot: usize) -> String {
    let socket = json!({ "type": "unix", "path": socket.to_string_lossy() });
    json!({ "driver": "vfio-user-pci", "addr": format!("{slot:x}.0"), "socket": socket }).to_string()
}

#[derive(Default)]
struct Line(Vec<OsString>);

impl Line {
    fn add(&mut self, option: &str, value: impl Into<OsString>) {
        self.0.push(option.into());
        self.0.push(value.into());
    }
}

/// In the values of QEMU's options, a comma that belongs to a name is doubled.
pub fn with_path(option: &str, path: &Path) -> String {
    format!("{option}{}", path.to_string_lossy().replace(',', ",,"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(device: Option<(Carrier, PathBuf)>) -> Machine {
        Machine {
            accelerator: Accelerator::Tcg,
            memory: 256 << 20,
            cpus: 2,
            device,
            fpga: Vec::new(),
            more: vec!["-S".into()],
        }
    }

    fn text(arguments: &[OsString]) -> String {
        arguments.iter().map(|argument| argument.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn memory_is_shared_and_the_carrier_has_three_queues() {
        let line = text(&machine(Some((Carrier::TestDevice, "/a,b".into()))).arguments(None));
        assert!(line.contains("-object memory-backend-memfd,id=mem,size=256M,share=on"), "{line}");
        assert!(line.contains("-chardev socket,id=aviary,path=/a,,b"), "{line}");
        assert!(line.contains("vhost-user-test-device-pci,chardev=aviary,virtio-id=37,num_vqs=3"), "{line}");
        assert!(line.ends_with("-S"), "{line}");
        let line = text(&machine(Some((Carrier::Fs, "/a".into()))).arguments(None));
        assert!(line.contains("vhost-user-fs-pci") && line.contains("num-request-queues=2"), "{line}");
    }

    #[test]
    fn accelerators_of_cards_come_with_an_iommu() {
        let with = Machine { fpga: vec!["/run/a".into(), "/run/b".into()], ..machine(None) };
        let boot = Boot { kernel: "k".into(), initramfs: "i".into(), console: None };
        let line = text(&with.arguments(Some(&boot)));
        assert!(line.contains("-machine q35,memory-backend=mem,kernel-irqchip=off"), "{line}");
        assert!(line.contains("intel-iommu,caching-mode=on,intremap=on,aw-bits=48"), "{line}");
        for (slot, path) in [("10.0", "/run/a"), ("11.0", "/run/b")] {
            assert!(
                line.contains(&format!(r#""addr":"{slot}""#)) && line.contains(&format!(r#""path":"{path}""#)),
                "{line}"
            );
        }
        assert!(line.contains("intel_iommu=on"), "{line}");
        let without = text(&machine(None).arguments(Some(&boot)));
        assert!(!without.contains("iommu") && without.contains("-machine q35,memory-backend=mem "), "{without}");
    }

    #[test]
    fn driver_gets_the_id_of_its_device() {
        let boot = Boot { kernel: "k".into(), initramfs: "i".into(), console: None };
        let fs = text(&machine(Some((Carrier::Fs, "/a".into()))).arguments(Some(&boot)));
        assert!(fs.contains("aviary.virtio_id=26") && fs.contains("-kernel k -initrd i"), "{fs}");
        let none = text(&machine(None).arguments(Some(&boot)));
        assert!(!none.contains("aviary") && !none.contains("-chardev"), "{none}");
    }

    #[test]
    fn kvm_needs_the_processors_help() {
        assert!(has_virtualization("processor: 0\nflags\t\t: fpu vmx sse\n"));
        assert!(has_virtualization("flags: svm"));
        assert!(!has_virtualization("flags: fpu vmxoff hypervisor\n"));
        assert!(!has_virtualization(""));
    }

    #[test]
    fn a_printed_line_can_be_pasted() {
        let qemu = Qemu { program: "/opt/my qemu".into() };
        let printed = qemu.printed(&["-m".into(), "1G".into(), "-append".into(), "a b".into()]);
        assert_eq!(printed, "'/opt/my qemu' \\\n    -m 1G \\\n    -append 'a b'");
    }
}
