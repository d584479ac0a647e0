//! A root directory of its own: what a vendor's library opens, and nothing else of the host.
//!
//! The new root is a small tmpfs that is built on `/proc`, a directory that every system has and that holds nothing to be
//! shown in it, and becomes the root by `pivot_root`. The host's tree is then unmounted from this namespace.

use std::collections::VecDeque;
use std::ffi::{CString, OsString};
use std::fs;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Mode, OFlags, StatVfsMountFlags, open};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_bind_recursive, mount_change,
    mount_remount, unmount,
};

/// Where the new root is built.
const SITE: &str = "/proc";
/// Symbolic links followed in one path; the kernel's own limit.
const MAX_LINKS: usize = 40;

/// Directories and files that dynamic linking and the C library open on every system. Missing ones are skipped.
pub const SYSTEM: &[&str] = &[
    "/lib",
    "/lib32",
    "/lib64",
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/usr/local/lib",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
];

/// Device nodes without which the C library and compilers do not work. They hold no state of anybody.
pub(crate) const PLAIN_DEVICES: &[&str] = &["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];

/// Contents of the root of one API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outline {
    /// Files and directories of the host that can be read, and executed or mapped where their modes allow it.
    pub read: Vec<PathBuf>,
    /// Device nodes, directories of them, and files that stand for a device; a last component may end with `*`. They can
    /// be written as their modes allow, so that all API servers that have them share what they hold.
    pub devices: Vec<PathBuf>,
    /// Directory with one subdirectory per tenant, writable by that tenant's user only.
    pub homes: PathBuf,
    /// Directory below `/dev/shm` with one subdirectory per tenant, for [`share_memory_names`]; `None`: there is none, or tenants
    /// have both in mounts of their own ([`crate::mounts`]).
    pub shared_memory: Option<PathBuf>,
    /// Bytes that `/tmp` and `/dev/shm` can take each.
    pub scratch_bytes: u64,
}

/// cannot build the root directory of a sandbox: {what}: {error}
#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub struct RootError {
    pub what: String,
    #[source]
    pub error: io::Error,
}

pub(crate) fn at<E: Into<io::Error>>(what: impl AsRef<Path>) -> impl FnOnce(E) -> RootError {
    let what = what.as_ref().display().to_string();
    move |error| RootError { what, error: error.into() }
}

/// Makes what `outline` says the root of this process.
///
/// Requires CAP_SYS_ADMIN and mount and PID namespaces of its own ([`crate::namespaces`]). After an error the process has
/// an unusable tree and must end.
pub fn enter(outline: &Outline) -> Result<(), RootError> {
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).map_err(at("/"))?;
    let mut builder = Builder { bound: Vec::new() };
    let devices = matching(&outline.devices);
    new_tmpfs(Path::new(SITE), "mode=755,size=1m,nr_inodes=4k")?;
    let scratch = format!("mode=1777,size={}", outline.scratch_bytes);
    for directory in ["tmp", "var", "dev", "sys", "proc"] {
        make_directory(&Path::new(SITE).join(directory), 0o755)?;
    }
    new_tmpfs(&Path::new(SITE).join("tmp"), &scratch)?;
    symlink("../tmp", Path::new(SITE).join("var/tmp")).map_err(at("/var/tmp"))?;
    // Behind the mounts that would hide what they show.
    let mut read: Vec<&Path> = SYSTEM.iter().map(Path::new).chain(outline.read.iter().map(PathBuf::as_path)).collect();
    // A directory before what lies in it: then the latter is there already.
    read.sort_by_key(|path| path.as_os_str().len());
    for path in read {
        builder.expose(path)?;
    }
    builder.bind_writable(&outline.homes)?;
    let dev = Path::new(SITE).join("dev");
    new_tmpfs(&dev, "mode=755,size=64k,nr_inodes=1k")?;
    for device in PLAIN_DEVICES.iter().map(PathBuf::from).chain(devices) {
        builder.bind_device(&device)?;
    }
    make_directory(&dev.join("shm"), 0o1777)?;
    new_tmpfs(&dev.join("shm"), &scratch)?;
    if let Some(folders) = &outline.shared_memory {
        builder.bind_writable(folders)?;
    }
    for (name, target) in [("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")] {
        symlink(target, dev.join(name)).map_err(at(name))?;
    }
    let nothing_special = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    let sys = Path::new(SITE).join("sys");
    let flags = nothing_special | MountFlags::RDONLY;
    // Refused in a user namespace whose host shows a part of it only: then that part.
    mount("sysfs", &sys, "sysfs", flags, None).or_else(|_| mount_bind_recursive("/sys", &sys)).map_err(at("/sys"))?;
    restrain(&sys, flags)?;
    // Over the new root's own /proc, which shows this PID namespace only.
    mount("proc", Path::new(SITE).join("proc"), "proc", nothing_special, None).map_err(at("/proc"))?;
    rustix::process::chdir(SITE).map_err(at("/"))?;
    // The old root lands on top of the new one and is taken away from there.
    rustix::process::pivot_root(".", ".").map_err(at("pivot_root"))?;
    unmount(".", UnmountFlags::DETACH).map_err(at("the host's root"))?;
    rustix::process::chdir("/").map_err(at("/"))?;
    seal("/", MountFlags::NOSUID | MountFlags::NODEV)?;
    seal("/dev", MountFlags::NOSUID | MountFlags::NOEXEC)
}

/// Builds the root of `outline` and stays in the tree of `host`, a descriptor of the host's root directory that was opened in
/// the host's mount namespace. Returns a descriptor of the root that [`enter`] would have changed to.
///
/// Requires and fails as [`enter`] does.
pub fn enter_beside(outline: &Outline, host: BorrowedFd<'_>) -> Result<OwnedFd, RootError> {
    enter(outline)?;
    let own = open("/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).map_err(at("/"))?;
    rustix::process::fchdir(host).map_err(at("the host's root"))?;
    rustix::process::chroot(".").map_err(at("the host's root"))?;
    Ok(own)
}

/// Makes `folder` this root's `/dev/shm`: processes of one tenant share memory by names there.
///
/// Requires CAP_SYS_ADMIN and a root that [`enter`] made.
pub fn share_memory_names(folder: &Path) -> Result<(), RootError> {
    let place = Path::new("/dev/shm");
    mount_bind(folder, place).map_err(at(place))?;
    restrain(place, MountFlags::NOSUID | MountFlags::NODEV)
}

/// Makes `home` all that is seen at `homes`, the directory that it lies in: where all tenants' API servers are one user, only
/// that keeps the others' homes from it.
///
/// Requires what [`share_memory_names`] requires.
pub fn show_only(home: &Path, homes: &Path) -> Result<(), RootError> {
    mount_bind(home, homes).map_err(at(homes))?;
    restrain(homes, MountFlags::NOSUID | MountFlags::NODEV)
}

/// Makes a mount read-only.
fn seal(path: &str, flags: MountFlags) -> Result<(), RootError> {
    restrain(Path::new(path), flags | MountFlags::RDONLY)
}

/// Adds flags to those of a mount. In a user namespace those that the host's mount has cannot be taken away.
pub(crate) fn restrain(path: &Path, flags: MountFlags) -> Result<(), RootError> {
    let has = rustix::fs::statvfs(path).map_err(at(path))?.f_flag;
    let same = [
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::RDONLY, MountFlags::RDONLY),
    ];
    let kept = same.iter().filter(|(there, _)| has.contains(*there)).fold(flags, |sum, (_, flag)| sum | *flag);
    mount_remount(path, kept | MountFlags::BIND, "").map_err(at(path))
}

fn new_tmpfs(on: &Path, options: &str) -> Result<(), RootError> {
    let options = CString::new(options).map_err(at(on))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount("tmpfs", on, "tmpfs", flags, options.as_c_str()).map_err(at(on))
}

/// With all that it lies in. The umask, which is the node's, takes no mode away.
fn make_directory(path: &Path, mode: u32) -> Result<(), RootError> {
    if path.is_dir() {
        return Ok(());
    }
    if let Some(folder) = path.parent() {
        make_directory(folder, 0o755)?;
    }
    fs::create_dir(path).map_err(at(path))?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(at(path))
}

/// Device nodes that exist; a `*` at the end of the last component stands for any rest.
pub(crate) fn matching(patterns: &[PathBuf]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for pattern in patterns {
        let name = pattern.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Some(prefix) = name.strip_suffix('*') else {
            found.push(pattern.clone());
            continue;
        };
        let Some(folder) = pattern.parent() else { continue };
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let fits = |path: &PathBuf| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with(prefix));
        found.extend(entries.map(|entry| entry.path()).filter(fits));
    }
    found.sort();
    found.dedup();
    found
}

struct Builder {
    /// Paths of the host that are visible in the new root with all that they contain.
    bound: Vec<PathBuf>,
}

/// The place of a path of the host in the new root.
fn site(path: &Path) -> PathBuf {
    Path::new(SITE).join(path.strip_prefix("/").unwrap_or(path))
}

impl Builder {
    fn is_bound(&self, path: &Path) -> bool {
        self.bound.iter().any(|bound| path.starts_with(bound))
    }

    /// Shows a file or directory of the host, read-only. Symbolic links on the way are made again, so that every name
    /// means what it means outside. A path that does not exist is skipped.
    fn expose(&mut self, path: &Path) -> Result<(), RootError> {
        let mut names: VecDeque<OsString> = path.components().filter_map(owned_name).collect();
        let mut current = PathBuf::from("/");
        let mut links = 0;
        while let Some(name) = names.pop_front() {
            if name == ".." {
                current.pop();
                continue;
            }
            let next = current.join(&name);
            let Ok(metadata) = fs::symlink_metadata(&next) else { return Ok(()) };
            if metadata.file_type().is_symlink() {
                links += 1;
                if links > MAX_LINKS {
                    return Err(at(path)(io::Error::from_raw_os_error(libc::ELOOP)));
                }
                let target = fs::read_link(&next).map_err(at(&next))?;
                self.link(&next, &target)?;
                if target.is_absolute() {
                    current = PathBuf::from("/");
                }
                for component in target.components().rev().filter_map(owned_name) {
                    names.push_front(component);
                }
                continue;
            }
            current = next;
        }
        self.bind(&current)
    }

    fn link(&self, path: &Path, target: &Path) -> Result<(), RootError> {
        let place = site(path);
        if self.is_bound(path) || fs::symlink_metadata(&place).is_ok() {
            return Ok(());
        }
        if let Some(folder) = place.parent() {
            make_directory(folder, 0o755)?;
        }
        symlink(target, &place).map_err(at(path))
    }

    fn bind(&mut self, path: &Path) -> Result<(), RootError> {
        if self.is_bound(path) || path == Path::new("/") {
            return Ok(());
        }
        let place = self.place_for(path)?;
        mount_bind_recursive(path, &place).map_err(at(path))?;
        restrain(&place, MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV)?;
        self.bound.push(path.to_owned());
        Ok(())
    }

    /// An empty directory or file where `path` will be mounted.
    fn place_for(&self, path: &Path) -> Result<PathBuf, RootError> {
        let place = site(path);
        if path.is_dir() {
            make_directory(&place, 0o755)?;
        } else {
            if let Some(folder) = place.parent() {
                make_directory(folder, 0o755)?;
            }
            fs::File::create(&place).map_err(at(path))?;
        }
        Ok(place)
    }

    fn bind_writable(&mut self, path: &Path) -> Result<(), RootError> {
        let place = self.place_for(path)?;
        mount_bind(path, &place).map_err(at(path))?;
        restrain(&place, MountFlags::NOSUID | MountFlags::NODEV)
    }

    /// A directory of device nodes (`/dev/dri`) is shown whole. What does not exist is skipped.
    fn bind_device(&mut self, path: &Path) -> Result<(), RootError> {
        if !path.exists() {
            return Ok(());
        }
        let place = self.place_for(path)?;
        mount_bind_recursive(path, &place).map_err(at(path))?;
        restrain(&place, MountFlags::NOSUID | MountFlags::NOEXEC)
    }
}

/// `..` and ordinary names; the root and `.` say nothing.
fn owned_name(component: Component<'_>) -> Option<OsString> {
    match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    }
}
