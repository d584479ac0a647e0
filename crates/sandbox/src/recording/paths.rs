//! Paths in system calls, and whether a sandbox's root has them.

use std::ffi::{OsStr, OsString};
use std::io::IoSliceMut;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2, readlinkat};

use super::listener::Notice;

/// Bytes of a path at most, as the kernel's.
const MAX_PATH_BYTES: usize = libc::PATH_MAX as usize;
const PAGE_BYTES: u64 = 4096;

/// Calls with a path, and which argument it is.
const WITH_PATHS: &[(libc::c_long, usize)] = &[
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_open, 0),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_stat, 0),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_lstat, 0),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_access, 0),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_readlink, 0),
    (libc::SYS_openat, 1),
    (libc::SYS_newfstatat, 1),
    (libc::SYS_statx, 1),
    (libc::SYS_faccessat, 1),
    (libc::SYS_faccessat2, 1),
    (libc::SYS_readlinkat, 1),
    (libc::SYS_execve, 0),
];

/// Numbers of the calls with paths.
pub fn observed() -> Vec<libc::c_long> {
    WITH_PATHS.iter().map(|(number, _)| *number).collect()
}

pub fn is_observed(number: i32) -> bool {
    WITH_PATHS.iter().any(|(call, _)| *call == libc::c_long::from(number))
}

/// The root that a sandbox would have, seen from the host's.
pub struct Paths {
    root: OwnedFd,
}

impl Paths {
    pub fn new(root: OwnedFd) -> Paths {
        Paths { root }
    }

    /// The absolute path that a call names. Left out are relative ones, most of them below the current directory, which is
    /// the tenant's home, and those of /proc, which a sandbox has of its own.
    pub fn argument(&self, notice: &Notice) -> Option<PathBuf> {
        let (_, index) = WITH_PATHS.iter().find(|(call, _)| *call == libc::c_long::from(notice.number))?;
        let path = PathBuf::from(string_at(notice.thread, notice.arguments[*index])?);
        (path.is_absolute() && !path.starts_with("/proc")).then_some(path)
    }

    /// A file of this name exists here and not in the sandbox's root.
    pub fn is_only_outside(&self, path: &Path) -> bool {
        let inside = || openat2(&self.root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::IN_ROOT);
        std::fs::symlink_metadata(path).is_ok() && inside().is_err()
    }

    /// The file that a thread's descriptor means, or its number.
    pub fn of_descriptor(&self, thread: u32, descriptor: u64) -> String {
        // The sandbox's own /proc knows the thread by the number that the notice has.
        let link = format!("proc/{thread}/fd/{}", descriptor as u32);
        match readlinkat(&self.root, link.as_str(), Vec::new()) {
            Ok(target) => OsStr::from_bytes(target.as_bytes()).to_string_lossy().into_owned(),
            Err(_) => format!("descriptor {}", descriptor as u32),
        }
    }
}

/// The text at an address of a thread's memory; `None` if nothing is there or it has no end.
fn string_at(thread: u32, address: u64) -> Option<OsString> {
    let mut text = Vec::new();
    while text.len() < MAX_PATH_BYTES {
        let from = address.checked_add(text.len() as u64)?;
        // Not across a page: the next one may be missing.
        let mut page = vec![0; (PAGE_BYTES - from % PAGE_BYTES) as usize];
        let count = read_memory(thread, from, &mut page)?;
        match page[..count].iter().position(|byte| *byte == 0) {
            Some(end) => {
                text.extend_from_slice(&page[..end]);
                return Some(OsString::from_vec(text));
            }
            None => text.extend_from_slice(&page[..count]),
        }
    }
    None
}

fn read_memory(thread: u32, address: u64, into: &mut [u8]) -> Option<usize> {
    let length = into.len();
    let mut local = [IoSliceMut::new(into)];
    let remote = libc::iovec { iov_base: std::ptr::without_provenance_mut(address as usize), iov_len: length };
    // SAFETY: the kernel writes into `local`, of one buffer that this function borrows, and checks the address of the
    // other process itself. IoSliceMut has the layout of iovec.
    let count =
        unsafe { libc::process_vm_readv(thread as libc::pid_t, local.as_mut_ptr().cast(), 1, &raw const remote, 1, 0) };
    usize::try_from(count).ok().filter(|count| *count > 0)
}
