//! `aviary doctor`: what this machine lacks.

use crate::apis;
use crate::config::vendor::{VendorConfig, VendorConfigs};
use crate::config::{FileConfig, sandbox};
use crate::dropin::find_library;
use crate::fpga::own_library;
use aviary_node::PrivateDir;
use aviary_sandbox::{Walls, mounts, root::RootError};
use clap::Args;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
};

/// Check what this machine has and lacks. Exits with 1 if something is missing that programs or nodes need; compilers are
/// needed for `aviary spec` only.
#[derive(Args)]
pub struct DoctorCommand {
    /// Look for API builds in this folder first (repeatable).
    #[arg(long, value_name = "DIR")]
    api_dir: Vec<PathBuf>,
    /// Try the libraries of the vendor sets in this configuration file of a node, too.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print what sandboxed API servers can do on this machine: system calls, files, devices. With the name of an API:
    /// the API servers of this API; without: of all.
    #[arg(long, value_name = "API", num_args = 0..=1, default_missing_value = "")]
    sandbox: Option<String>,
    /// Make a sandbox and exit.
    #[arg(long, hide = true)]
    probe_sandbox: bool,
    /// Load this library and exit: a vendor's library may misbehave, so that it is tried in a process of its own.
    #[arg(long, hide = true, value_name = "SONAME")]
    probe: Option<String>,
}

/// Older ones lack what the specification compiler asks of headers.
const OLDEST_LIBCLANG: u32 = 14;
/// The Rust of the runtime crates: major and minor number.
const OLDEST_RUST: (u32, u32) = (1, 95);

enum Finding {
    Good(String),
    /// Works without, but less well.
    Weak(String),
    Missing(String),
}

use Finding::{Good, Missing, Weak};

pub fn run(command: DoctorCommand) -> anyhow::Result<ExitCode> {
    if let Some(soname) = &command.probe {
        return Ok(probe(soname));
    }
    if command.probe_sandbox {
        return Ok(match sandbox::probe() {
            Ok(found) => {
                println!("{}", found.walls.name());
                found.weaknesses.iter().for_each(|weakness| println!("{weakness}"));
                ExitCode::SUCCESS
            }
            Err(reason) => {
                eprintln!("{reason}");
                ExitCode::FAILURE
            }
        });
    }
    if let Some(name) = &command.sandbox {
        let names = if name.is_empty() { Vec::new() } else { vec![name.clone()] };
        let apis = apis::search_path(&command.api_dir).and_then(|search| apis::select(&search, &names))?;
        print!("{}", sandbox::text(&apis, &sandbox::try_one()));
        return Ok(ExitCode::SUCCESS);
    }
    let mut findings = vec![
        ("CPUs", cpus()),
        ("shared memory (memfd, seals)", shared_memory()),
        ("pidfd", pidfd()),
        ("sandboxes of API servers", sandboxes()),
        ("homes of tenants", homes()),
        ("libclang (for `aviary spec`)", libclang()),
        ("C compiler (for `aviary spec build`)", program("gcc", "apt-get install gcc")),
        ("Rust compiler (for `aviary spec build`)", cargo()),
        ("runtime crates (for `aviary spec build`)", runtime_crates()),
    ];
    findings.extend(guest_device().map(|finding| ("/dev/aviary (this is a virtual machine)", finding)));
    let mut builds = api_findings(&command.api_dir);
    if let Some(path) = &command.config {
        builds.extend(vendor_findings(&FileConfig::read(path)?.vendors, &command.api_dir));
    }
    findings.extend(builds.iter().map(|(name, finding)| (name.as_str(), copy(finding))));
    let mut missing = false;
    for (name, finding) in &findings {
        let (mark, text) = match finding {
            Good(text) => ("ok     ", text),
            Weak(text) => ("weak   ", text),
            Missing(text) => ("MISSING", text),
        };
        missing |= matches!(finding, Missing(_));
        println!("{mark}  {name}: {text}");
    }
    Ok(ExitCode::from(u8::from(missing)))
}

/// `None`: this is no virtual machine with the driver.
fn guest_device() -> Option<Finding> {
    let path = "/dev/aviary";
    let mode = fs::metadata(path).ok()?.permissions().mode();
    Some(device_finding(mode, fs::OpenOptions::new().read(true).write(true).open(path).err()))
}

/// `failure`: of opening the device.
fn device_finding(mode: u32, failure: Option<io::Error>) -> Finding {
    match failure {
        _ if mode & 0o006 != 0 => Weak(format!(
            "mode {:o}: each user of this VM can reach all memory of the VM through an API server; chmod 660 and a group",
            mode & 0o777
        )),
        None => Good("usable; all its users are one trust domain, as good as root in this VM".into()),
        Some(error) => Missing(format!("{error}; root can add this user to the group: usermod -aG aviary USER")),
    }
}

fn copy(finding: &Finding) -> Finding {
    match finding {
        Good(text) => Good(text.clone()),
        Weak(text) => Weak(text.clone()),
        Missing(text) => Missing(text.clone()),
    }
}

fn cpus() -> Finding {
    match std::thread::available_parallelism().map_or(1, usize::from) {
        1 => Weak("1: guest and API server share it, so calls are slow".into()),
        count => Good(count.to_string()),
    }
}

fn shared_memory() -> Finding {
    let sealed = memfd_create("aviary-doctor", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .and_then(|memory| fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW));
    match sealed {
        Ok(()) => Good("works".into()),
        Err(errno) => Missing(format!("{errno}; only `aviary run --mirror` works on this machine")),
    }
}

fn pidfd() -> Finding {
    match rustix::process::pidfd_open(rustix::process::getpid(), rustix::process::PidfdFlags::empty()) {
        Ok(_) => Good("works".into()),
        Err(errno) => Missing(format!("{errno}; Linux 5.3 or newer is needed")),
    }
}

fn sandboxes() -> Finding {
    match sandbox::try_one() {
        Ok(found) if found.weaknesses.is_empty() && found.walls == Walls::Namespaces => {
            Good(sandbox::described(&found))
        }
        Ok(found) => Weak(sandbox::described(&found)),
        Err(reason) if !rustix::process::geteuid().is_root() => Weak(format!(
            "not available to a node of this user ({reason}): all its API servers run as this user; only for tenants that trust each other"
        )),
        Err(reason) => {
            Weak(format!("not available on this machine ({reason}): API servers are confined by their user ids only"))
        }
    }
}

fn homes() -> Finding {
    let tried = PrivateDir::create().map_err(|error| error.to_string());
    let reason = |error: RootError| format!("{}: {}", error.what, error.error);
    match tried.and_then(|folder| mounts::try_here(folder.path()).map_err(reason)) {
        Ok(()) => Good("of limited size (`home`), emptied with a tenant's last session".into()),
        Err(reason) => Weak(format!("folders without a limit of size ({reason})")),
    }
}

fn libclang() -> Finding {
    let given = std::env::var_os("LIBCLANG_PATH").map(PathBuf::from);
    match given.into_iter().chain(llvm_folders()).find_map(|place| has_libclang(&place)) {
        Some(path) => Good(path.display().to_string()),
        None => Weak(format!(
            "not here; apt-get install libclang-19-dev ({OLDEST_LIBCLANG} or newer), or set LIBCLANG_PATH"
        )),
    }
}

/// The newest first.
fn llvm_folders() -> Vec<PathBuf> {
    let folders = fs::read_dir("/usr/lib").into_iter().flatten().flatten().map(|entry| entry.path());
    let version =
        |path: &PathBuf| path.file_name()?.to_str()?.strip_prefix("llvm-")?.split('.').next()?.parse::<u32>().ok();
    let mut versions: Vec<(u32, PathBuf)> = folders.filter_map(|path| Some((version(&path)?, path))).collect();
    versions.retain(|(version, _)| *version >= OLDEST_LIBCLANG);
    versions.sort();
    versions.into_iter().rev().map(|(_, path)| path.join("lib")).collect()
}

/// libclang-cpp is another library.
fn has_libclang(place: &Path) -> Option<PathBuf> {
    if place.is_file() {
        return Some(place.to_owned());
    }
    let named =
        |name: &str| name.starts_with("libclang.so") || (name.starts_with("libclang-1") && name.contains(".so"));
    let entries = fs::read_dir(place).ok()?.flatten().map(|entry| entry.path());
    entries.filter(|path| path.file_name().and_then(|name| name.to_str()).is_some_and(named)).min()
}

fn program(name: &str, help: &str) -> Finding {
    let output = Command::new(name).arg("--version").stdin(Stdio::null()).stderr(Stdio::null()).output();
    match output {
        Ok(output) if output.status.success() => {
            Good(String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or("works").to_owned())
        }
        _ => Weak(format!("not here; {help}")),
    }
}

fn cargo() -> Finding {
    let (major, minor) = OLDEST_RUST;
    let help = format!(
        "Rust {major}.{minor} or newer is needed: apt-get install cargo-web (of Debian 12's security archive), or rustup"
    );
    match program("cargo", &help) {
        Good(text) if rust_version(&text).is_some_and(|version| version < OLDEST_RUST) => {
            Weak(format!("{text}; {help}"))
        }
        finding => finding,
    }
}

/// Of a line such as `cargo 1.95.0 (f2d3ce0bd 2026-03-21)`.
fn rust_version(line: &str) -> Option<(u32, u32)> {
    let mut numbers = line.split(' ').nth(1)?.split('.').map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

fn runtime_crates() -> Finding {
    match aviary_lapis::build::runtime_crates() {
        Ok(folder) => Good(folder.display().to_string()),
        Err(error) => Weak(error.to_string()),
    }
}

fn api_findings(given: &[PathBuf]) -> Vec<(String, Finding)> {
    let builds = apis::search_path(given).and_then(|search| apis::select(&search, &[]));
    let builds = match builds {
        Ok(builds) => builds,
        Err(error) => return vec![("API builds".into(), Missing(error.to_string()))],
    };
    let mut findings = Vec::new();
    for api in builds {
        let complete = api.library.is_file() && api.directory.join("server.so").is_file();
        let finding = match complete {
            true => Good(format!("version {} in {}", api.version, api.directory.display())),
            false => Missing(format!("{} is incomplete: run `aviary spec build` again", api.directory.display())),
        };
        findings.push((format!("API {}", api.name), finding));
        findings.push((format!("API {}, vendor library {}", api.name, api.soname), vendor(&api.name, &api.soname)));
    }
    findings
}

/// The libraries of vendor sets: those that they name; of APIs that they name none of, the usual one with their variables;
/// and the drivers behind OpenCL's loader.
fn vendor_findings(sets: &VendorConfigs, given: &[PathBuf]) -> Vec<(String, Finding)> {
    let apis = apis::search_path(given).and_then(|search| apis::select(&search, &[])).unwrap_or_default();
    let mut findings = Vec::new();
    for (name, set) in sets {
        if let Err(error) = set.set(name) {
            findings.push((format!("vendor set {name}"), Missing(error.to_string())));
            continue;
        }
        let mut tried = |what: String, library: &str| {
            findings.push((format!("vendor set {name}, {what}"), loaded(library, set)));
        };
        for (api, file) in set.libraries() {
            tried(format!("API {api}"), &file.to_string_lossy());
        }
        for api in apis.iter().filter(|api| !set.libraries().contains_key(&api.name)) {
            tried(format!("API {}", api.name), &aviary_server::vendor_place(&api.name, &api.soname));
        }
        for (icd, library) in set.drivers() {
            tried(format!("driver of {}", icd.display()), &library.to_string_lossy());
        }
    }
    findings
}

/// A library, as API servers of this set load it.
fn loaded(library: &str, set: &VendorConfig) -> Finding {
    let Ok(program) = std::env::current_exe() else {
        return Weak("not tried: this program's own file is unknown".into());
    };
    let mut command = Command::new(program);
    command.args(["doctor", "--probe", library]).envs(set.environment()).stdin(Stdio::null());
    match command.output() {
        Ok(output) if output.status.success() => Good(format!("loads ({library})")),
        Ok(output) => {
            Weak(String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or("loading it crashes").to_owned())
        }
        Err(error) => Weak(error.to_string()),
    }
}

/// Weak only: a machine may be there for guests alone.
fn vendor(api: &str, soname: &str) -> Finding {
    let (variable, named) = (aviary_server::vendor_variable(api), aviary_server::vendor_place(api, soname));
    let own = own_library(soname).filter(|_| named == soname).and_then(|file| Some(file.to_str()?.to_owned()));
    let library = own.unwrap_or(named);
    let Ok(program) = std::env::current_exe() else {
        return Weak("not tried: this program's own file is unknown".into());
    };
    let tried = Command::new(program).args(["doctor", "--probe", &library]).stdin(Stdio::null()).output();
    match tried {
        Ok(output) if output.status.success() => match find_library(&library) {
            Some(path) => Good(format!("loads ({})", path.display())),
            None => Good("loads".into()),
        },
        Ok(output) => {
            let why = String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or("loading it crashes").to_owned();
            Weak(format!(
                "{why}; programs here can use it on another node, but this machine cannot serve it (if the file has another name: {variable}=PATH)"
            ))
        }
        Err(error) => Weak(error.to_string()),
    }
}

fn probe(soname: &str) -> ExitCode {
    match aviary_server::try_loading(soname) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("{reason}");
            ExitCode::from(1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_without_compilers_can_run_programs() {
        assert!(matches!(program("no-such-compiler", "get one"), Weak(text) if text == "not here; get one"));
    }

    #[test]
    fn an_old_rust_is_told_from_a_new_one() {
        assert_eq!(rust_version("cargo 1.95.0 (f2d3ce0bd 2026-03-21)"), Some(OLDEST_RUST));
        assert!(rust_version("cargo 0.66.0").is_some_and(|version| version < OLDEST_RUST));
        assert_eq!(rust_version("cargo"), None);
    }

    #[test]
    fn a_guests_device_is_for_a_group() {
        let denied = || Some(io::Error::from(io::ErrorKind::PermissionDenied));
        assert!(matches!(device_finding(0o20660, None), Good(_)));
        assert!(matches!(device_finding(0o20666, None), Weak(text) if text.starts_with("mode 666")));
        assert!(matches!(device_finding(0o20660, denied()), Missing(text) if text.contains("usermod")));
    }
}
