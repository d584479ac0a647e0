//! The sandbox of an API server: what its root contains, and when the door is locked.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use aviary_control::ServerUser;
use aviary_sandbox::Walls;
use aviary_sandbox::files::{self, Reach};
use aviary_sandbox::mounts;
use aviary_sandbox::namespaces::{NAMESPACES, Namespace, enter_user_namespace};
use aviary_sandbox::privileges;
use aviary_sandbox::recording::Recording;
use aviary_sandbox::root::{self, Outline, RootError, SYSTEM};
use aviary_sandbox::shown::{own_file_in, secret_in};
use aviary_sandbox::system_calls::{self, Allowed, Requests};

use crate::session::Journal;

/// Bytes that `/tmp` and `/dev/shm` of one API server can take, each.
const SCRATCH_BYTES: u64 = 256 << 20;

/// Files that vendors' libraries open beside libraries: lists of implementations, linkers of kernels, data files.
pub const VENDORS: &[&str] =
    &["/etc/OpenCL", "/etc/vulkan", "/etc/nvidia", "/usr/bin/ld", "/usr/share/pocl", "/usr/share/nvidia"];

/// Device nodes of accelerators.
pub const DEVICES: &[&str] = &["/dev/nvidia*", "/dev/nvidia-caps", "/dev/dri", "/dev/kfd", "/dev/fpga*"];

/// Variables with lists of directories from which vendors' libraries load others.
pub const SEARCH_PATHS: &[&str] = &["LD_LIBRARY_PATH", "OCL_ICD_VENDORS"];

/// Variables that name the library of an API begin so.
const VENDOR_LIBRARY: &str = "AVIARY_VENDOR_";

/// Directories that are never shown whole because a library lies in them.
const TOO_WIDE: &[&str] = &["/", "/etc", "/home", "/root", "/tmp", "/var", "/usr", "/usr/bin", "/opt", "/srv", "/mnt"];

/// Treatment of a process that would leave its sandbox.
enum Door {
    /// It is locked.
    Locked,
    /// Nothing is refused, and what would be is told (`--sandbox log`).
    Open(Recorder),
}

/// Parts of a recording.
struct Recorder {
    /// The host's root directory, opened by the zygote in the host's mount namespace.
    host: OwnedFd,
    /// Of a copy: the root that its sandbox would have.
    root: OnceLock<OwnedFd>,
    recording: OnceLock<Recording>,
}

/// How the node wants its API servers confined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxOptions {
    /// Which walls the node has found to be possible.
    pub walls: Walls,
    /// Directory with the tenants' homes, one for each user id.
    pub homes: PathBuf,
    /// Directory below `/dev/shm` with the tenants' shared memory; `None`: it is beside the homes.
    pub shared_memory: Option<PathBuf>,
    /// Files and directories of the host that API servers can read beside what they need in any case.
    pub readable: Vec<PathBuf>,
    /// Files of the node that no sandbox shows, nor a folder that holds one.
    pub hidden: Vec<PathBuf>,
    /// Device nodes and files that stand for devices, beside those of known accelerators.
    pub devices: Vec<PathBuf>,
    /// System calls and requests of `ioctl`, beside the usual ones.
    pub allowed: Allowed,
    /// Namespaces of the node.
    pub shared: Vec<Namespace>,
    /// Refuse nothing, and tell what would be refused.
    pub records: bool,
}

pub struct Sandbox {
    options: SandboxOptions,
    journal: RawFd,
    outline: OnceLock<Outline>,
    door: Door,
    /// The mount namespace of the zygote and the node, until the process has its tenant's folders.
    mounts: Mutex<Option<OwnedFd>>,
}

impl Sandbox {
    /// In the zygote.
    ///
    /// # Errors
    /// There is no user namespace, where one is to be; the host's root directory cannot be opened, which only a recording
    /// needs, or its mount namespace, which only a node of root needs.
    pub fn new(options: SandboxOptions, journal: RawFd) -> io::Result<Sandbox> {
        if options.walls == Walls::UserNamespace {
            enter_user_namespace()?;
        }
        let door = match options.records {
            false => Door::Locked,
            true => Door::Open(Recorder {
                host: fs::File::open("/")?.into(),
                root: OnceLock::new(),
                recording: OnceLock::new(),
            }),
        };
        let mounts = (options.walls == Walls::Namespaces).then(mounts::own_namespace).transpose()?;
        Ok(Sandbox { options, journal, outline: OnceLock::new(), door, mounts: Mutex::new(mounts) })
    }

    /// Flags of `clone` for its namespaces.
    pub fn namespaces(&self) -> libc::c_int {
        if self.options.walls == Walls::Landlock {
            return 0;
        }
        let own = self.options.shared.iter().fold(NAMESPACES, |flags, shared| flags & !shared.flag());
        match self.door {
            Door::Locked => own,
            // It sees the host's /proc, where its threads have the host's ids, which drivers look for.
            Door::Open(_) => own & !Namespace::Pid.flag(),
        }
    }

    pub fn note(&self, text: &str) {
        Journal { fd: self.journal, session: 0 }.note(text);
    }

    /// Contents of the copies' roots: computed once, after the vendors' libraries are loaded.
    pub fn outline(&self) -> &Outline {
        self.outline.get_or_init(|| {
            let told = VENDORS.iter().map(PathBuf::from).chain(self.options.readable.iter().cloned());
            let mut read: BTreeSet<PathBuf> = told.filter_map(|path| self.unless_own(path)).collect();
            read.extend(searched().into_iter().filter_map(|folder| self.unless_secret(folder)));
            let libraries = named_libraries().into_iter().chain(loaded_libraries());
            read.extend(libraries.filter_map(|file| {
                let whole = surroundings(&file, &own_program())?;
                // The library itself in any case: it is loaded.
                if whole == file { Some(file) } else { self.unless_secret(whole).or(Some(file)) }
            }));
            Outline {
                read: read.into_iter().collect(),
                devices: DEVICES.iter().map(PathBuf::from).chain(self.options.devices.iter().cloned()).collect(),
                homes: self.options.homes.clone(),
                shared_memory: self.options.shared_memory.clone(),
                scratch_bytes: SCRATCH_BYTES,
            }
        })
    }

    /// `None`: it is left out, because a file of the node is there.
    fn unless_own(&self, path: PathBuf) -> Option<PathBuf> {
        let Some(file) = own_file_in(&path, &self.options.hidden) else { return Some(path) };
        let (path, file) = (path.display(), file.display());
        self.note(&format!("sandboxes do not show {path} ({file} is there): move that file, or the libraries"));
        None
    }

    /// The same, also if a key or a socket of anybody is there: nobody has named this folder, or only as one of libraries.
    fn unless_secret(&self, folder: PathBuf) -> Option<PathBuf> {
        let folder = self.unless_own(folder)?;
        if SYSTEM.iter().any(|shown| folder.starts_with(shown)) {
            return Some(folder);
        }
        let Some(secret) = secret_in(&folder) else { return Some(folder) };
        let (path, secret) = (folder.display(), secret.display());
        self.note(&format!("sandboxes do not show {path} ({secret} is there): move that file, or the libraries"));
        None
    }

    /// In a copy, before the node knows it. After an error the copy has no usable file system and must end.
    pub fn enter(&self, outline: &Outline) -> Result<(), RootError> {
        if self.options.walls == Walls::Landlock {
            return Ok(());
        }
        match &self.door {
            Door::Locked => root::enter(outline),
            Door::Open(recorder) => {
                let root = root::enter_beside(outline, recorder.host.as_fd())?;
                // A copy enters once.
                let _ = recorder.root.set(root);
                Ok(())
            }
        }
    }

    /// When the tenant is known and before the process becomes its user: processes of the tenant share memory by names, as
    /// drivers do for events between processes. Returns where the tenant's home is from here on.
    pub fn join_tenant(&self, user: &ServerUser) -> Result<PathBuf, String> {
        let home = user.home.clone();
        let mounts = self.take_mounts();
        if !self.has_own_root() {
            return Ok(home);
        }
        if let (true, Some(mounts)) = (user.mounted, mounts) {
            // The directory at which the node has mounted them.
            let place = home.parent().unwrap_or(&home);
            let folders = [(home.as_path(), place), (user.shared_memory.as_path(), Path::new("/dev/shm"))];
            mounts::fetch(mounts.as_fd(), &folders).map_err(|error| error.to_string())?;
            return Ok(place.to_owned());
        }
        root::share_memory_names(&user.shared_memory).map_err(|error| error.to_string())?;
        if self.options.walls == Walls::Namespaces {
            return Ok(home);
        }
        let homes = self.options.homes.clone();
        root::show_only(&home, &homes).map_err(|error| error.to_string())?;
        Ok(homes)
    }

    /// It sees other files than the node does.
    fn has_own_root(&self) -> bool {
        matches!(self.door, Door::Locked) && self.options.walls != Walls::Landlock
    }

    fn take_mounts(&self) -> Option<OwnedFd> {
        self.mounts.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// A home for the node's own user. Its processes share memory by names, too.
    pub fn join_node(&self) -> Result<Option<PathBuf>, String> {
        drop(self.take_mounts());
        let shared = self.options.shared_memory.as_deref().filter(|_| self.has_own_root());
        if let Some(memory) = shared.and_then(own_folder) {
            root::share_memory_names(&memory).map_err(|error| error.to_string())?;
        }
        Ok(own_folder(&self.options.homes))
    }

    /// Before the first byte of the first guest: from here on the files are those of the sandbox and the system calls those of
    /// the allow-list. The process is its tenant's user already. `home`: the tenant's.
    pub fn lock(&self, home: Option<&Path>) -> Result<(), String> {
        let mut allowed = Allowed::usual();
        allowed.join(&self.options.allowed);
        match &self.door {
            Door::Locked => {
                if self.options.walls == Walls::UserNamespace {
                    privileges::drop_capabilities();
                }
                self.confine_files(home)?;
                JOURNAL.store(self.journal, Ordering::SeqCst);
                system_calls::restrict(&allowed, report_violation).map_err(|error| error.to_string())
            }
            Door::Open(recorder) => recorder.begin(&allowed, self.journal),
        }
    }

    fn confine_files(&self, home: Option<&Path>) -> Result<(), String> {
        let home = home.unwrap_or(&self.options.homes);
        if self.options.walls != Walls::Landlock {
            // A second wall: where the kernel has none, or a library has started threads, the first one holds.
            let _ = files::confine(&Reach::inside_own_root(home));
            return Ok(());
        }
        // SAFETY: no thread of ours reads the environment now.
        unsafe { std::env::set_var("TMPDIR", home) };
        files::confine(&Reach::inside_host(self.outline(), home)).map_err(|error| error.to_string())
    }

    /// Before the process ends.
    pub fn finish(&self) {
        if let Door::Open(Recorder { recording, .. }) = &self.door
            && let Some(recording) = recording.get()
        {
            recording.finish();
        }
    }
}

impl Recorder {
    fn begin(&self, allowed: &Allowed, journal: RawFd) -> Result<(), String> {
        let root = self.root.get().ok_or("there is no root to compare with")?;
        let root = root.try_clone().map_err(|error| error.to_string())?;
        let journal = Journal { fd: journal, session: 0 };
        let recording = Recording::begin(allowed, root, Box::new(move |line| journal.note(line)));
        // A process is locked once.
        let _ = self.recording.set(recording.map_err(|error| error.to_string())?);
        Ok(())
    }
}

/// System calls of helper processes (gateways, VM devices, cards) beside those of all API servers: sockets that lead to the node
/// and to their peers, and waiting for many of them.
const HELPER_CALLS: &[&str] = &[
    "socket",
    "socketpair",
    "connect",
    "bind",
    "accept4",
    "setsockopt",
    "getsockopt",
    "getsockname",
    "getpeername",
    "epoll_create1",
    "epoll_ctl",
    "epoll_pwait",
    "epoll_wait",
    "pipe2",
    "readv",
    "fallocate",
    "mincore",
    "nanosleep",
    "flock",
];

/// Gives up what a helper process that starts others does not need: it becomes `user`, and neither it nor what it starts can gain
/// privileges.
///
/// # Errors
/// It cannot be that user.
pub fn step_down(user: Option<u32>) -> Result<(), String> {
    if let Some(user) = user {
        privileges::become_user(user, &[]).map_err(|error| format!("user {user}: {error}"))?;
    }
    // SAFETY: takes effect on this process only and touches no memory.
    unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    privileges::drop_capabilities();
    Ok(())
}

/// Confines a helper process, which has one thread and has opened all its files: to `user`, to no file at all, to the system
/// calls that it needs. Refused calls that end it are told on standard error.
///
/// # Errors
/// It cannot be that user, or the kernel has no filters.
pub fn confine_helper(user: Option<u32>) -> Result<(), String> {
    step_down(user)?;
    let reach = Reach { use_only: vec!["/dev/null".into()], ..Reach::default() };
    // Where the kernel has no Landlock, the user and the list of calls are the walls.
    let _ = files::confine_files_only(&reach);
    let mut allowed = Allowed::usual();
    let more = HELPER_CALLS.iter().filter_map(|name| name.parse().ok()).collect();
    // How much of what was sent a peer has not read.
    let unread = Requests::Numbers { first: libc::TIOCOUTQ as u32, last: libc::TIOCOUTQ as u32 };
    allowed.join(&Allowed { calls: more, requests: vec![unread] });
    JOURNAL.store(2, Ordering::SeqCst);
    system_calls::restrict(&allowed, report_violation).map_err(|error| error.to_string())
}

/// A folder in there of the node's own user; `None`: it cannot be made.
fn own_folder(folders: &Path) -> Option<PathBuf> {
    let own = folders.join("own");
    let made = fs::DirBuilder::new().mode(0o700).create(&own);
    (made.is_ok() || own.is_dir()).then_some(own)
}

/// The descriptor for [`report_violation`], which runs in a signal handler and has no other way to it.
static JOURNAL: AtomicI32 = AtomicI32::new(-1);

fn report_violation(number: libc::c_long) {
    let name = system_calls::name_of(number).unwrap_or("a system call");
    let mut line = [0u8; 128];
    let mut length = 0;
    let mut put = |bytes: &[u8]| {
        for byte in bytes {
            if let Some(place) = line.get_mut(length) {
                *place = *byte;
                length += 1;
            }
        }
    };
    put(b"aviary: the sandbox ended this process: ");
    put(name.as_bytes());
    put(b" (number ");
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    let mut rest = number.unsigned_abs();
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    put(&digits[at..]);
    put(b") is not allowed\n");
    // SAFETY: write is async-signal-safe; the bytes are initialised and on this stack.
    unsafe { libc::write(JOURNAL.load(Ordering::SeqCst), line.as_ptr().cast(), length) };
}

fn searched() -> Vec<PathBuf> {
    let values = SEARCH_PATHS.iter().filter_map(std::env::var_os);
    let paths = values.flat_map(|value| std::env::split_paths(&value).collect::<Vec<_>>());
    paths.filter(|path| path.is_absolute() && !is_too_wide(path)).collect()
}

/// Vendors' libraries that the operator named.
fn named_libraries() -> Vec<PathBuf> {
    let named = std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with(VENDOR_LIBRARY));
    named.map(|(_, value)| PathBuf::from(value)).filter(|path| path.is_absolute()).collect()
}

/// Files that are mapped executable here.
fn loaded_libraries() -> BTreeSet<PathBuf> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let executable = maps.lines().filter(|line| line.split_whitespace().nth(1).is_some_and(|mode| mode.contains('x')));
    executable.filter_map(|line| line.find('/').map(|at| PathBuf::from(&line[at..]))).collect()
}

/// A library's directory, since libraries load their siblings, or the file alone where the directory holds more. Of the node's
/// own program always the file alone: beside it lies what the operator has there.
fn surroundings(file: &Path, program: &Path) -> Option<PathBuf> {
    let directory = file.parent()?;
    Some(if file == program || is_too_wide(directory) { file } else { directory }.to_owned())
}

/// The file of this program, by the name that it has in `/proc/self/maps`.
fn own_program() -> PathBuf {
    fs::read_link("/proc/self/exe").unwrap_or_default()
}

fn is_too_wide(directory: &Path) -> bool {
    TOO_WIDE.iter().any(|wide| directory == Path::new(wide))
        || directory.parent() == Some(Path::new("/home"))
        || directory.starts_with("/proc")
        || directory.starts_with("/dev")
        || directory.starts_with("/sys")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn library_directory_is_shown_unless_it_is_wide() {
        let shown = |file: &str| surroundings(Path::new(file), Path::new("/opt/aviary/aviary")).unwrap();
        assert_eq!(shown("/opt/vendor/lib/libx.so"), Path::new("/opt/vendor/lib"));
        assert_eq!(shown("/home/me/libx.so"), Path::new("/home/me/libx.so"));
        assert_eq!(shown("/libx.so"), Path::new("/libx.so"));
        assert_eq!(shown("/opt/aviary/aviary"), Path::new("/opt/aviary/aviary"));
    }

    #[test]
    fn own_program_is_among_loaded_libraries() {
        assert!(loaded_libraries().contains(&own_program()));
    }
}
