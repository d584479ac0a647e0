//! `aviary guest install`: guest libraries and the driver's sources in a system that runs as a virtual machine.

use super::{
    fpga,
    layout::{HOME, Item, LIBRARIES, Layout, PROGRAMS},
    root::{Change, GuestRoot},
};
use crate::apis;
use anyhow::{Context, bail};
use clap::Args;
use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
};

/// The list of installed files, a path a line, which --uninstall reads.
const LIST: &str = "/usr/lib/aviary/installed";
const LINKER: &str = "/etc/ld.so.conf.d/aviary.conf";
/// Programs that stand in for the vendors', as paths in [`PROGRAMS`].
const OUR_PROGRAMS: [&str; 1] = ["/nvidia-smi"];
const UDEV_RULE: &str = "/etc/udev/rules.d/70-aviary.rules";
/// The VM is one trust domain: code that took an API server over reaches all memory of the VM. So its users need a group.
const UDEV_RULE_TEXT: &str = "KERNEL==\"aviary\", MODE=\"0660\", GROUP=\"aviary\"\n";
/// Makes that group.
const GROUP: &str = "/usr/lib/sysusers.d/aviary.conf";
const GROUP_TEXT: &str = "g aviary -\n";
/// Folders of the guest where its own libraries may be.
const GUEST_LIBRARIES: [&str; 5] = ["/lib", "/usr/lib", "/lib64", "/usr/lib64", "/usr/lib/x86_64-linux-gnu"];

/// Put guest libraries, the driver's sources and their configuration into a virtual machine's system.
///
/// Run it inside the guest, or on the host for a file system that is mounted at --root. It can be repeated: files that are
/// up to date are not written again.
#[derive(Args)]
pub struct InstallCommand {
    /// The root folder of the guest.
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
    /// Install the guest library of this API (repeatable; default: all that are built).
    #[arg(long, value_name = "NAME")]
    api: Vec<String>,
    /// Look for API builds in this folder first (repeatable).
    #[arg(long, value_name = "DIR")]
    api_dir: Vec<PathBuf>,
    /// Sources of the driver, with a dkms.conf (default: those that came with this program).
    #[arg(long, value_name = "DIR")]
    driver: Option<PathBuf>,
    /// Install what programs need for accelerators of FPGA cards (docs/fpga.md): the libraries, and that the kernel's vfio-pci
    /// takes the PCI functions at each start. Guest libraries of APIs and the driver only if --api names some.
    #[arg(long)]
    fpga: bool,
    /// Remove what was installed.
    #[arg(long, conflicts_with_all = ["api", "api_dir", "driver", "fpga"])]
    uninstall: bool,
}

pub fn run(command: &InstallCommand) -> anyhow::Result<ExitCode> {
    let root = GuestRoot::open(&command.root)?;
    if command.uninstall {
        uninstall(&root)?
    } else {
        install(&root, command)?
    }
    refresh(&command.root);
    Ok(ExitCode::SUCCESS)
}

fn install(root: &GuestRoot, command: &InstallCommand) -> anyhow::Result<()> {
    let text = |text: String| Item::File { data: text.into_bytes(), mode: 0o644 };
    let has_apis = !command.fpga || !command.api.is_empty();
    let (mut items, mut variables, mut driver) = (BTreeMap::new(), BTreeMap::new(), None);
    if has_apis {
        let search = apis::search_path(&command.api_dir)?;
        let has = |soname: &str| GUEST_LIBRARIES.iter().any(|folder| root.exists(&format!("{folder}/{soname}")));
        Layout { items, variables } = Layout::of(&apis::select(&search, &command.api)?, &has)?;
        items.insert(UDEV_RULE.into(), text(UDEV_RULE_TEXT.into()));
        driver = driver_sources(command, &mut items)?;
    }
    if command.fpga {
        let (more, missing) = fpga::items();
        missing
            .iter()
            .for_each(|soname| println!("note      {soname} is not built here: build it with fpga/opae/build"));
        items.extend(more);
    }
    if items.keys().any(|path| path.starts_with(LIBRARIES)) {
        items.insert(LINKER.into(), text(format!("{LIBRARIES}\n")));
    }
    items.insert(GROUP.into(), text(GROUP_TEXT.into()));
    // First of all, so that a stopped installation can be removed.
    let earlier = listed(root);
    let all: Vec<&str> = earlier.iter().chain(items.keys()).map(String::as_str).collect();
    write_list(root, &all)?;
    for (path, item) in &items {
        let change = match item {
            Item::File { data, mode } => root.write(path, data, *mode)?,
            Item::Link(target) => root.link(path, target)?,
        };
        println!("{} {path}", if change == Change::Written { "installed" } else { "unchanged" });
    }
    for path in earlier.iter().filter(|path| !items.contains_key(*path)) {
        remove(root, path)?;
    }
    write_list(root, &items.keys().map(String::as_str).collect::<Vec<_>>())?;
    for (name, value) in &variables {
        println!("note      programs may need {name}={value}");
    }
    if command.fpga {
        let running = (command.root == Path::new("/")).then(|| fs::read_to_string("/proc/cmdline").unwrap_or_default());
        fpga::advice(root, running.as_deref()).iter().for_each(|line| println!("next      {line}"));
    }
    match driver {
        _ if !has_apis => {}
        Some(version) => println!("next      in the guest: dkms install aviary/{version} && modprobe aviary"),
        None => println!("note      the driver's sources were not found here: name them with --driver"),
    }
    println!(
        "next      in the guest: usermod -aG aviary USER, for each user who may use accelerators (such users can reach all memory of the VM)"
    );
    Ok(())
}

fn uninstall(root: &GuestRoot) -> anyhow::Result<()> {
    let paths = listed(root);
    if paths.is_empty() {
        println!("nothing is installed");
        return Ok(());
    }
    for path in &paths {
        remove(root, path)?;
    }
    root.remove(LIST)?;
    root.remove_empty_folder(HOME);
    Ok(())
}

/// With the folders that were only for it.
fn remove(root: &GuestRoot, path: &str) -> anyhow::Result<()> {
    if root.remove(path)? {
        println!("removed   {path}");
    }
    let mut above = path;
    while let Some((parent, _)) = above.rsplit_once('/')
        && (parent.starts_with("/usr/lib/aviary") || parent.starts_with("/usr/src/aviary-"))
    {
        root.remove_empty_folder(parent);
        above = parent;
    }
    Ok(())
}

fn write_list(root: &GuestRoot, paths: &[&str]) -> anyhow::Result<()> {
    let mut paths = paths.to_vec();
    paths.sort_unstable();
    paths.dedup();
    let lines: String = paths.iter().map(|path| format!("{path}\n")).collect();
    root.write(LIST, lines.as_bytes(), 0o644)?;
    Ok(())
}

/// Only places that an installation writes to: a guest's own file says it.
fn listed(root: &GuestRoot) -> Vec<String> {
    let places = ["/usr/lib/aviary/", "/usr/src/aviary-", "/etc/OpenCL/vendors/", LINKER, UDEV_RULE, GROUP];
    let of_fpga = |path: &str| [fpga::MODULES, fpga::OPTIONS, fpga::UDEV_RULE].contains(&path);
    let text = root.read(LIST).unwrap_or_default();
    let lines = String::from_utf8_lossy(&text).lines().map(str::to_owned).collect::<Vec<_>>();
    // Of programs only the name of one: other files of that folder are the guest's own.
    let program = |path: &str| path.strip_prefix(PROGRAMS).is_some_and(|name| OUR_PROGRAMS.contains(&name));
    let ours = |path: &String| {
        (places.iter().any(|place| path.starts_with(place)) || program(path) || of_fpga(path)) && !path.contains("/../")
    };
    lines.into_iter().filter(ours).collect()
}

/// The version of the driver, if there are sources.
fn driver_sources(command: &InstallCommand, items: &mut BTreeMap<String, Item>) -> anyhow::Result<Option<String>> {
    let found = match &command.driver {
        Some(folder) if !folder.join("dkms.conf").is_file() => {
            bail!("{} has no dkms.conf: expected the folder with the driver's sources", folder.display())
        }
        Some(folder) => Some(folder.clone()),
        None => beside_this_program().into_iter().find(|folder| folder.join("dkms.conf").is_file()),
    };
    let Some(folder) = found else { return Ok(None) };
    let failed = || format!("cannot read {}", folder.display());
    let configuration = fs::read_to_string(folder.join("dkms.conf")).with_context(failed)?;
    let version = package_version(&configuration);
    let version = version.with_context(|| format!("{}/dkms.conf has no PACKAGE_VERSION", folder.display()))?;
    for entry in fs::read_dir(&folder).with_context(failed)? {
        let path = entry.with_context(failed)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if is_source(&name) && path.is_file() {
            let data = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            items.insert(format!("/usr/src/aviary-{version}/{name}"), Item::File { data, mode: 0o644 });
        }
    }
    Ok(Some(version))
}

/// In the source tree, and where packages put them.
fn beside_this_program() -> Vec<PathBuf> {
    let Ok(program) = env::current_exe() else { return Vec::new() };
    let trees = program.ancestors().map(|tree| tree.join("guest-driver/linux"));
    let packages = program.ancestors().nth(2).map(|prefix| prefix.join("share/aviary/guest-driver"));
    trees.chain(packages).collect()
}

/// And nothing that a build left there.
fn is_source(name: &str) -> bool {
    let extension = Path::new(name).extension().and_then(|extension| extension.to_str());
    let made = name.ends_with(".mod.c") || name.starts_with('.');
    !made && (matches!(extension, Some("c" | "h" | "conf")) || matches!(name, "Makefile" | "Kbuild"))
}

fn package_version(configuration: &str) -> Option<String> {
    let value = configuration.lines().find_map(|line| line.trim().strip_prefix("PACKAGE_VERSION="))?;
    let value = value.trim_matches('"');
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "._+~-".contains(letter);
    (!value.is_empty() && value.chars().all(plain)).then(|| value.to_owned())
}

/// The linker's cache and the group; the udev rule is read at the guest's next start.
fn refresh(root: &Path) {
    let mut group = Command::new("systemd-sysusers");
    group.arg("--root").arg(root).arg("aviary.conf").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    if !group.status().is_ok_and(|status| status.success()) {
        println!("next      in the guest, as root: groupadd --system aviary");
    }
    let programs = ["ldconfig", "/sbin/ldconfig", "/usr/sbin/ldconfig"];
    let works = |program: &str| {
        let mut command = Command::new(program);
        command.arg("-r").arg(root).stdin(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    if !programs.iter().any(|program| works(program)) {
        println!("next      in the guest, as root: ldconfig");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aviary_node::PrivateDir;

    #[test]
    fn sources_of_the_driver() {
        for name in ["aviary.c", "aviary.h", "dkms.conf", "Makefile", "Kbuild"] {
            assert!(is_source(name), "{name}");
        }
        for name in ["aviary.ko", "aviary.o", "aviary.mod.c", ".aviary.c", "Module.symvers"] {
            assert!(!is_source(name), "{name}");
        }
        assert_eq!(package_version("PACKAGE_NAME=\"aviary\"\nPACKAGE_VERSION=\"0.1\"\n").as_deref(), Some("0.1"));
        assert_eq!(package_version("PACKAGE_VERSION=\"../x\"\n"), None);
    }

    #[test]
    fn a_guests_list_names_only_our_places() {
        let directory = PrivateDir::create().unwrap();
        let root = GuestRoot::open(directory.path()).unwrap();
        let lines = "/etc/passwd\n/usr/lib/aviary/a\n/usr/lib/aviary/../x\n/etc/OpenCL/vendors/aviary.icd\n\
                     /usr/lib/sysusers.d/aviary.conf\n/usr/lib/sysusers.d/other.conf\n\
                     /usr/local/bin/nvidia-smi\n/usr/local/bin/other\n";
        root.write(LIST, lines.as_bytes(), 0o644).unwrap();
        assert_eq!(
            listed(&root),
            ["/usr/lib/aviary/a", "/etc/OpenCL/vendors/aviary.icd", GROUP, "/usr/local/bin/nvidia-smi"]
        );
    }
}
