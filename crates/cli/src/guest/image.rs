//! `aviary guest image`: a kernel and a small file system for a virtual machine.

use super::{
    cpio::{Archive, CpioNode},
    elf,
    layout::{Item, Layout},
    modules::Modules,
};
use crate::apis;
use anyhow::{Context, bail};
use clap::Args;
use flate2::{Compression, write::GzEncoder};
use std::{
    env, fs,
    io::{BufWriter, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::ExitCode,
    str::FromStr,
};

const INIT: &str = include_str!("init.sh");
/// In the folder of an image.
pub const KERNEL: &str = "vmlinuz";
pub const INITRAMFS: &str = "initramfs.cpio.gz";
/// Where init looks for the command.
pub const COMMAND: &str = "/etc/aviary/command";
/// Libraries of added programs that lie where loaders do not look by themselves.
const PROGRAM_LIBRARIES: &str = "/usr/lib/aviary/programs";
/// The devices that every guest of ours has.
const MODULES: [&str; 3] = ["virtio_pci", "virtio_mmio", "virtio_console"];

/// Build a small image that boots, runs one command and powers off: for tests and for a first look.
///
/// The image consists of a kernel, busybox, the guest libraries of the APIs and the files that you add. Root is not needed.
/// `aviary vm run --image FOLDER -- CMD` boots it.
#[derive(Args)]
#[command(
    after_help = "Example:\n  aviary guest image --kernel /boot/vmlinuz-$(uname -r) --modules /lib/modules/$(uname -r) \\\n      --busybox /bin/busybox --driver aviary.ko --api opencl --program clinfo -o image"
)]
pub struct ImageCommand {
    /// The guest's kernel.
    #[arg(long, value_name = "VMLINUZ")]
    kernel: PathBuf,
    /// Modules of that kernel: its folder /lib/modules/VERSION.
    #[arg(long, value_name = "DIR")]
    modules: PathBuf,
    /// A statically linked busybox.
    #[arg(long, value_name = "PATH")]
    busybox: PathBuf,
    /// Aviary's driver, built for that kernel.
    #[arg(long, value_name = "AVIARY.KO")]
    driver: Option<PathBuf>,
    /// Load this module of the kernel, too (repeatable).
    #[arg(long, value_name = "NAME")]
    module: Vec<String>,
    /// Include the guest library of this API (repeatable; default: all that are built).
    #[arg(long, value_name = "NAME")]
    api: Vec<String>,
    /// Look for API builds in this folder first (repeatable).
    #[arg(long, value_name = "DIR")]
    api_dir: Vec<PathBuf>,
    #[command(flatten)]
    additions: Additions,
    /// The folder to write: vmlinuz and initramfs.cpio.gz.
    #[arg(short, long, value_name = "FOLDER")]
    output: PathBuf,
}

/// The files that users put into a guest.
#[derive(Args, Default)]
pub struct Additions {
    /// Include a file or folder, at TARGET or at its path on this machine (repeatable).
    #[arg(long, value_name = "FILE[:TARGET]")]
    add: Vec<Addition>,
    /// Include a program and its shared libraries (repeatable). Libraries that it loads with dlopen are not found: --add them.
    #[arg(long, value_name = "PROGRAM")]
    program: Vec<PathBuf>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Addition {
    source: PathBuf,
    target: Option<String>,
}

impl FromStr for Addition {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (source, target) = text.split_once(':').map_or((text, None), |(source, target)| (source, Some(target)));
        if source.is_empty() || target.is_some_and(|target| !target.starts_with('/') || target.contains("/../")) {
            return Err(format!("`{text}`: expected FILE or FILE:/PLACE/IN/THE/GUEST"));
        }
        Ok(Self { source: source.into(), target: target.map(str::to_owned) })
    }
}

pub fn run(command: &ImageCommand) -> anyhow::Result<ExitCode> {
    let mut archive = Archive::of_root();
    archive.add("/dev/console", CpioNode::Character { major: 5, minor: 1 });
    archive.file("/init", INIT, 0o755);
    add_file(&mut archive, &command.busybox, "/usr/bin/busybox")?;
    if !elf::closure(&command.busybox)?.is_empty() {
        bail!("{} needs shared libraries: use a statically linked one", command.busybox.display());
    }
    archive.add("/usr/bin/sh", CpioNode::Link("busybox".into()));
    // Some programs look up their user and fail if it has no entry.
    archive.file("/etc/passwd", "root:x:0:0:root:/root:/bin/sh\n", 0o644);
    archive.file("/etc/group", "root:x:0:\n", 0o644);
    add_modules(&mut archive, command)?;
    command.additions.put_into(&mut archive)?;
    let search = apis::search_path(&command.api_dir)?;
    add_apis(&mut archive, &apis::select(&search, &command.api)?)?;
    write(&archive, command)
}

fn add_modules(archive: &mut Archive, command: &ImageCommand) -> anyhow::Result<()> {
    let modules = Modules::read(&command.modules)?;
    let names: Vec<String> = MODULES.map(str::to_owned).into_iter().chain(command.module.iter().cloned()).collect();
    let mut order = modules.in_order(&names)?;
    if let Some(driver) = &command.driver {
        modules.with_driver(driver, &mut order)?;
    }
    let list: String = order.iter().map(|module| format!("{}\n", module.name)).collect();
    for module in order {
        archive.file(&format!("/usr/lib/aviary/modules/{}.ko", module.name), module.data, 0o644);
    }
    archive.file("/etc/aviary/modules", list, 0o644);
    Ok(())
}

fn add_apis(archive: &mut Archive, apis: &[apis::Api]) -> anyhow::Result<()> {
    let layout = {
        let has = |soname: &str| archive.paths().any(|path| path.ends_with(&format!("/{soname}")));
        Layout::of(apis, &has)?
    };
    for (path, item) in layout.items {
        let node = match item {
            Item::File { data, mode } => CpioNode::File { data, mode },
            Item::Link(target) => CpioNode::Link(target),
        };
        archive.add(&path, node);
    }
    for api in apis {
        add_libraries(archive, &api.library)?;
        for step in &api.launch {
            if let apis::Launch::Program(name) = step
                && let Some(program) = crate::run::launch::beside(name)
            {
                add_libraries(archive, &program)?;
            }
        }
    }
    let variables = layout.variables.iter().map(|(name, value)| format!("export {name}={}\n", quoted(value)));
    archive.file("/etc/aviary/environment", variables.collect::<String>(), 0o644);
    Ok(())
}

impl Additions {
    pub fn is_empty(&self) -> bool {
        self.add.is_empty() && self.program.is_empty()
    }

    pub fn put_into(&self, archive: &mut Archive) -> anyhow::Result<()> {
        for program in &self.program {
            let program = find_program(program)?;
            let standard = ["/usr/bin", "/bin", "/usr/sbin", "/sbin", "/usr/local/bin"];
            let stays = standard.iter().any(|folder| program.parent() == Some(Path::new(folder)));
            let name = program.file_name().unwrap_or_default().to_string_lossy();
            let target = if stays { program.to_string_lossy().into_owned() } else { format!("/usr/bin/{name}") };
            add_libraries(archive, &program)?;
            add_file(archive, &program, &target)?;
        }
        for addition in &self.add {
            let here = fs::canonicalize(&addition.source);
            let here = here.with_context(|| format!("cannot read {}", addition.source.display()))?;
            let target = addition.target.clone().unwrap_or_else(|| here.to_string_lossy().into_owned());
            add_tree(archive, &here, target.trim_end_matches('/'))?;
        }
        Ok(())
    }
}

/// By its path, or by its name in PATH.
fn find_program(program: &Path) -> anyhow::Result<PathBuf> {
    if program.components().count() > 1 {
        return std::path::absolute(program).with_context(|| format!("bad path {}", program.display()));
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path).map(|folder| folder.join(program)).find(|path| path.is_file());
    found.with_context(|| format!("no program {} in PATH", program.display()))
}

fn add_libraries(archive: &mut Archive, program: &Path) -> anyhow::Result<()> {
    for (name, place) in elf::closure(program)? {
        let usual = name.starts_with('/') || place.parent().is_some_and(elf::is_usual);
        let target = if usual { place.to_string_lossy().into_owned() } else { format!("{PROGRAM_LIBRARIES}/{name}") };
        if !archive.contains(&target) {
            add_file(archive, &place, &target)?;
        }
    }
    Ok(())
}

fn add_file(archive: &mut Archive, source: &Path, target: &str) -> anyhow::Result<()> {
    let failed = || format!("cannot read {}", source.display());
    let mode = fs::metadata(source).with_context(failed)?.permissions().mode();
    archive.file(target, fs::read(source).with_context(failed)?, mode & 0o777);
    Ok(())
}

fn add_tree(archive: &mut Archive, source: &Path, target: &str) -> anyhow::Result<()> {
    if !source.is_dir() {
        return add_file(archive, source, target);
    }
    archive.add(target, CpioNode::Directory);
    for entry in fs::read_dir(source).with_context(|| format!("cannot read {}", source.display()))? {
        let path = entry?.path();
        let target = format!("{target}/{}", path.file_name().unwrap_or_default().to_string_lossy());
        if path.is_symlink() {
            let link = fs::read_link(&path).with_context(|| format!("cannot read {}", path.display()))?;
            archive.add(&target, CpioNode::Link(link.to_string_lossy().into_owned()));
        } else {
            add_tree(archive, &path, &target)?;
        }
    }
    Ok(())
}

fn write(archive: &Archive, command: &ImageCommand) -> anyhow::Result<ExitCode> {
    let folder = &command.output;
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let kernel = folder.join(KERNEL);
    fs::copy(&command.kernel, &kernel)
        .with_context(|| format!("cannot copy {} to {}", command.kernel.display(), kernel.display()))?;
    let initramfs = folder.join(INITRAMFS);
    let failed = || format!("cannot write {}", initramfs.display());
    let file = fs::File::create(&initramfs).with_context(failed)?;
    // Packed as little as gzip can: the guest unpacks it at every start, and a file system in memory is small.
    let mut packer = GzEncoder::new(BufWriter::new(file), Compression::fast());
    archive.write(&mut packer).with_context(failed)?;
    let mut file = packer.finish().with_context(failed)?;
    file.flush().with_context(failed)?;
    let size = fs::metadata(&initramfs).with_context(failed)?.len();
    println!("{}: {} files, {:.1} MB", folder.display(), archive.paths().count(), size as f64 / 1e6);
    Ok(ExitCode::SUCCESS)
}

/// For a shell.
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn additions_are_files_with_places() {
        let parse = |text: &str| text.parse::<Addition>();
        assert_eq!(parse("a/b:/c").unwrap(), Addition { source: "a/b".into(), target: Some("/c".into()) });
        assert_eq!(parse("a/b").unwrap().target, None);
        assert!(parse("a:c").is_err() && parse(":/c").is_err() && parse("a:/c/../d").is_err());
    }

    #[test]
    fn a_program_comes_with_its_libraries() {
        let mut archive = Archive::of_root();
        let own = env::current_exe().unwrap();
        let additions = Additions { add: Vec::new(), program: vec![own.clone()] };
        additions.put_into(&mut archive).unwrap();
        let name = own.file_name().unwrap().to_str().unwrap();
        assert!(archive.contains(&format!("/usr/bin/{name}")));
        assert!(archive.paths().any(|path| path.ends_with("/libc.so.6")));
        assert!(archive.paths().any(|path| path.contains("/ld-linux")));
    }

    #[test]
    fn a_folder_comes_with_all_that_is_in_it() {
        let source = aviary_node::PrivateDir::create().unwrap();
        fs::create_dir(source.path().join("in")).unwrap();
        fs::write(source.path().join("in/file"), "x").unwrap();
        std::os::unix::fs::symlink("file", source.path().join("in/link")).unwrap();
        let mut archive = Archive::default();
        let add = vec![Addition { source: source.path().into(), target: Some("/opt/t/".into()) }];
        Additions { add, program: Vec::new() }.put_into(&mut archive).unwrap();
        assert!(archive.contains("/opt/t/in/file") && archive.contains("/opt/t/in/link"));
    }

    #[test]
    fn words_survive_the_shell() {
        assert_eq!(quoted("it's $x"), r"'it'\''s $x'");
    }
}
