//! Files that a process can reach by Landlock: behind a root of its own once more, and in its place where a process can have no
//! such root. Landlock also keeps a process from tracing, from signals to and from abstract sockets of others (Linux 6.12).

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetError, RulesetStatus, Scope,
};

use crate::root::{Outline, PLAIN_DEVICES, SYSTEM, matching};

/// The newest rules that are asked for; a kernel that has fewer enforces those.
const NEWEST: ABI = ABI::V6;

/// the kernel does not confine files (Landlock): {0}
#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub enum FilesError {
    /// the kernel refused to restrict file access with Landlock: {0}
    Rules(#[from] RulesetError),
    /// the kernel has no Landlock: file access is not restricted by it (needs Linux 5.13, CONFIG_SECURITY_LANDLOCK and `lsm=`)
    None,
    /// a loaded library has started threads before the sandbox, which Landlock cannot restrict
    Threads,
}

/// Paths of a process, with all that they contain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reach {
    /// Read and executed.
    pub read: Vec<PathBuf>,
    /// Changed in any way, too.
    pub write: Vec<PathBuf>,
    /// Files and device nodes that can be read, written and asked by `ioctl`; none can be made.
    pub use_only: Vec<PathBuf>,
}

impl Reach {
    /// In a root that [`crate::root::enter`] made: a second wall, with the same openings.
    pub fn inside_own_root(home: &Path) -> Reach {
        let own = |paths: &[&str]| paths.iter().map(PathBuf::from).collect::<Vec<_>>();
        Reach {
            read: own(&["/"]),
            write: own(&["/tmp", "/dev/shm"]).into_iter().chain([home.to_owned()]).collect(),
            use_only: own(&["/dev", "/proc"]),
        }
    }

    /// In the host's root: what [`crate::root::enter`] would show. `home`: of its tenant alone, writable.
    pub fn inside_host(outline: &Outline, home: &Path) -> Reach {
        let system = SYSTEM.iter().chain(&["/proc", "/sys"]).map(PathBuf::from);
        let devices = PLAIN_DEVICES.iter().map(PathBuf::from).chain(matching(&outline.devices));
        Reach {
            read: system.chain(outline.read.iter().cloned()).collect(),
            write: vec![home.to_owned()],
            // Of /proc its own directory: where it changes its priority.
            use_only: devices.chain(["/proc/self".into()]).collect(),
        }
    }
}

/// True if the kernel confines files.
pub fn is_available() -> bool {
    let tried = Ruleset::default().handle_access(AccessFs::from_all(ABI::V1)).and_then(Ruleset::create);
    tried.is_ok_and(|ruleset| {
        let descriptor: Option<std::os::fd::OwnedFd> = ruleset.into();
        descriptor.is_some()
    })
}

/// Confines this thread and all that it starts to `reach`, for good. Paths that do not exist are left out.
///
/// # Errors
/// The kernel has no Landlock, or other threads exist, which would not be confined.
pub fn confine(reach: &Reach) -> Result<(), FilesError> {
    enforce(reach, true)
}

/// As [`confine`], but for sockets: those of the network and abstract ones are the process's business.
///
/// # Errors
/// As [`confine`].
pub fn confine_files_only(reach: &Reach) -> Result<(), FilesError> {
    enforce(reach, false)
}

fn enforce(reach: &Reach, sockets: bool) -> Result<(), FilesError> {
    if std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count) > 1 {
        return Err(FilesError::Threads);
    }
    let all = AccessFs::from_all(NEWEST);
    let used = AccessFs::from_file(NEWEST) | AccessFs::ReadDir;
    let handled = Ruleset::default().handle_access(all)?;
    let handled = match sockets {
        true => handled.handle_access(AccessNet::from_all(NEWEST))?.scope(Scope::from_all(NEWEST))?,
        false => handled.scope(Scope::Signal)?,
    };
    let mut ruleset = handled.create()?;
    let rules: [(&[PathBuf], BitFlags<AccessFs>); 3] =
        [(&reach.read, AccessFs::from_read(NEWEST)), (&reach.write, all), (&reach.use_only, used)];
    for (paths, access) in rules {
        for path in paths {
            let Ok(opened) = PathFd::new(path) else { continue };
            // Rights that only directories have are left out for other files.
            let access = if path.is_dir() { access } else { access & AccessFs::from_file(NEWEST) };
            ruleset = ruleset.add_rule(PathBeneath::new(opened, access))?;
        }
    }
    match ruleset.restrict_self()?.ruleset {
        RulesetStatus::NotEnforced => Err(FilesError::None),
        RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn confined_process_reaches_its_files_only() {
        if !is_available() {
            return;
        }
        // The confined child cannot remove its home: a later process with its id would find it.
        let home = std::env::temp_dir().join(format!("aviary-files-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&home);
        std::fs::create_dir(&home).unwrap();
        // SAFETY: the child of a test with several threads makes system calls and allocates little, in memory that the C
        // library's fork handlers keep usable.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let outline =
                Outline { read: vec![], devices: vec![], homes: home.clone(), shared_memory: None, scratch_bytes: 0 };
            let confined = confine(&Reach::inside_host(&outline, &home)).is_ok();
            let wrong = [
                !confined,
                std::fs::write(home.join("file"), "x").is_err(),
                std::fs::write("/dev/null", "x").is_err(),
                std::fs::read("/proc/self/stat").is_err(),
                std::fs::read("/etc/passwd").is_ok(),
                std::fs::write(home.with_extension("beside"), "x").is_ok(),
                std::fs::File::open("/proc/1/mem").is_ok(),
                // SAFETY: no signal is sent, only asked about.
                unsafe { libc::kill(libc::getppid(), 0) } == 0 && kernel_scopes_signals(),
            ];
            let status = wrong.iter().enumerate().filter(|(_, wrong)| **wrong).fold(0, |sum, (bit, _)| sum | 1 << bit);
            // SAFETY: ends the child.
            unsafe { libc::_exit(status) }
        }
        let mut status = 0;
        // SAFETY: a child of this process and a place for its status.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        std::fs::remove_dir_all(&home).unwrap();
        assert_eq!(libc::WEXITSTATUS(status), 0, "a bit for each wrong answer");
    }

    fn kernel_scopes_signals() -> bool {
        let version = rustix::system::uname().release().to_string_lossy().into_owned();
        let mut numbers = version.split('.').filter_map(|number| number.parse::<u32>().ok());
        (numbers.next(), numbers.next()) >= (Some(6), Some(12))
    }
}
