//! `aviary guest install --fpga`: a guest's accelerators of FPGA cards, which are PCI functions for the kernel's own vfio-pci.

use super::layout::{Item, LIBRARIES};
use super::root::GuestRoot;
use crate::fpga::find_own;
use std::collections::BTreeMap;

/// The libraries of programs.
const OWN: [&str; 2] = ["libaviary-fpga.so.1", "libopae-c.so.2"];
pub const MODULES: &str = "/etc/modules-load.d/aviary-fpga.conf";
pub const OPTIONS: &str = "/etc/modprobe.d/aviary-fpga.conf";
pub const UDEV_RULE: &str = "/etc/udev/rules.d/70-aviary-fpga.rules";
/// vfio-pci takes functions of these ids by itself, at each start.
const OPTIONS_TEXT: &str = "options vfio-pci ids=8086:0a5e\n";
/// A group of functions is a file of this subsystem. A user of one reaches memory that the kernel's IOMMU lets it.
const UDEV_RULE_TEXT: &str = "SUBSYSTEM==\"vfio\", MODE=\"0660\", GROUP=\"aviary\"\n";
const WANTED: &str = "intel_iommu=on";
/// Where a system that does not run says its kernel's command line.
const COMMAND_LINES: [&str; 3] = ["/etc/default/grub", "/etc/kernel/cmdline", "/boot/grub/grub.cfg"];

/// Files, and their libraries that are not here.
pub fn items() -> (BTreeMap<String, Item>, Vec<&'static str>) {
    let text = |text: &str| Item::File { data: text.into(), mode: 0o644 };
    let mut items: BTreeMap<String, Item> = [
        (MODULES.to_owned(), text("vfio-pci\n")),
        (OPTIONS.to_owned(), text(OPTIONS_TEXT)),
        (UDEV_RULE.to_owned(), text(UDEV_RULE_TEXT)),
    ]
    .into();
    let mut missing = Vec::new();
    for soname in OWN {
        match find_own(soname).and_then(|file| std::fs::read(file).ok()) {
            Some(data) => _ = items.insert(format!("{LIBRARIES}/{soname}"), Item::File { data, mode: 0o644 }),
            None => missing.push(soname),
        }
    }
    (items, missing)
}

/// Tells what the guest lacks. `running`: the command line of the guest's kernel, if this is the guest.
pub fn advice(root: &GuestRoot, running: Option<&str>) -> Vec<String> {
    let has =
        |text: &str| text.split(|letter: char| letter.is_whitespace() || letter == '"').any(|word| word == WANTED);
    let written = COMMAND_LINES.iter().filter_map(|file| root.read(file).ok());
    let is_on = match running {
        Some(line) => has(line),
        None => written.into_iter().any(|text| has(&String::from_utf8_lossy(&text))),
    };
    let mut lines = Vec::new();
    if !is_on {
        lines.push(format!(
            "the kernel's command line needs {WANTED}: add it to GRUB_CMDLINE_LINUX in /etc/default/grub, run update-grub, and start the guest again"
        ));
    }
    lines.push("users may pin 8 MB for an accelerator by default: raise memlock in /etc/security/limits.conf (`ulimit -l` shows it)".to_owned());
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use aviary_node::PrivateDir;

    #[test]
    fn command_line_without_an_iommu_is_told() {
        let directory = PrivateDir::create().unwrap();
        let root = GuestRoot::open(directory.path()).unwrap();
        let told = |running| advice(&root, running).iter().any(|line| line.contains("intel_iommu=on"));
        assert!(told(Some("quiet")) && !told(Some("quiet intel_iommu=on")) && told(Some("intel_iommu=only")));
        assert!(told(None));
        root.write("/etc/default/grub", b"GRUB_CMDLINE_LINUX=\"intel_iommu=on\"\n", 0o644).unwrap();
        assert!(!told(None));
    }

    #[test]
    fn functions_are_bound_at_each_start() {
        let (items, _) = items();
        let text = |path: &str| match &items[path] {
            Item::File { data, .. } => String::from_utf8(data.clone()).unwrap(),
            Item::Link(_) => panic!("{path}"),
        };
        assert_eq!(
            (text(MODULES).as_str(), text(OPTIONS).as_str()),
            ("vfio-pci\n", "options vfio-pci ids=8086:0a5e\n")
        );
    }
}
