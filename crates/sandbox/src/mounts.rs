//! File systems in memory that a node makes for a tenant, and how sandboxes that are older than these get their folders.
//!
//! Sandboxes are made ahead, before it is known whose they will be. What the node mounts for a tenant later, such as a home of
//! limited size, is in none of them. An API server fetches it when it learns its tenant, while it still has privileges: it goes
//! into the node's mount namespace for that moment, by a descriptor that the zygote has opened, and comes back with the folders.

use std::ffi::CString;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, open};
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount, mount_change, mount_remount,
    move_mount, open_tree, unmount,
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::root::{RootError, at, restrain};

/// Bytes of a file system in memory for each file or folder that it may have: what compilers keep are small files.
const BYTES_PER_FILE: u64 = 16 << 10;
/// Files and folders that it may have in any case.
const LEAST_FILES: u64 = 1024;
const FLAGS: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);

fn options(bytes: u64) -> io::Result<CString> {
    let files = (bytes / BYTES_PER_FILE).max(LEAST_FILES);
    // 0 would mean no limit.
    Ok(CString::new(format!("mode=711,size={},nr_inodes={files}", bytes.max(1)))?)
}

/// Mounts a file system in memory that holds at most `bytes` at a directory of this process's mount namespace. Its folders are
/// made by its owner, root, alone.
///
/// # Errors
/// Without CAP_SYS_ADMIN, or no directory is there.
pub fn mount_memory(place: &Path, bytes: u64) -> io::Result<()> {
    Ok(mount("tmpfs", place, "tmpfs", FLAGS, options(bytes)?.as_c_str())?)
}

/// Changes how many bytes it holds at most.
///
/// # Errors
/// It holds more already, or nothing is mounted there.
pub fn resize_memory(place: &Path, bytes: u64) -> io::Result<()> {
    Ok(mount_remount(place, FLAGS, options(bytes)?.as_c_str())?)
}

/// Takes what is mounted at `place` away from this mount namespace. Answers a descriptor of it: what is in it is freed with the
/// last one, which takes as long as it has much, and with the last process that uses it.
///
/// # Errors
/// Nothing is mounted there.
pub fn detach(place: &Path) -> io::Result<OwnedFd> {
    let held = open(place, OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    unmount(place, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)?;
    Ok(held)
}

/// Takes away all that is mounted at directories in `folder`; what cannot be taken away stays. `folder` is nobody else's to
/// write to.
pub fn detach_all(folder: &Path) {
    for place in mounted_in(folder) {
        // What holds it else ends, too.
        let _ = detach(&place);
    }
}

/// True if something is mounted at a directory in `folder`.
pub fn has_mounts(folder: &Path) -> bool {
    mounted_in(folder).next().is_some()
}

fn mounted_in(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let device = fs::metadata(folder).map(|found| found.dev()).ok();
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    // Unlike the metadata of an entry, this says what is mounted there.
    entries.filter(move |path| {
        fs::symlink_metadata(path)
            .is_ok_and(|found| found.is_dir() && device.is_some_and(|device| device != found.dev()))
    })
}

/// A descriptor of this process's mount namespace.
///
/// # Errors
/// `/proc` is not there.
pub fn own_namespace() -> io::Result<OwnedFd> {
    File::open("/proc/self/ns/mnt").map(OwnedFd::from)
}

/// Shows each folder (first) of the mount namespace `from` at a place (second) of this process's own, where a directory is.
///
/// Requires CAP_SYS_ADMIN, CAP_SYS_CHROOT, one thread and Linux 5.2.
///
/// # Errors
/// A folder or a place is not there, or the kernel refuses one of these steps. If that is the way back, the process ends: it
/// would see the host's files.
pub fn fetch(from: BorrowedFd<'_>, folders: &[(&Path, &Path)]) -> Result<(), RootError> {
    let own = own_namespace().map_err(at("/proc/self/ns/mnt"))?;
    enter(from).map_err(at("the node's mount namespace"))?;
    let trees: Result<Vec<OwnedFd>, RootError> = folders.iter().map(|(folder, _)| taken(folder)).collect();
    if enter(own.as_fd()).is_err() {
        std::process::abort();
    }
    for (tree, (_, place)) in trees?.iter().zip(folders) {
        move_mount(tree, "", CWD, *place, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).map_err(at(place))?;
        mount_change(*place, MountPropagationFlags::PRIVATE).map_err(at(place))?;
        restrain(place, MountFlags::NOSUID | MountFlags::NODEV)?;
    }
    Ok(())
}

/// A mount of a folder that is in no namespace yet.
fn taken(folder: &Path) -> Result<OwnedFd, RootError> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    open_tree(CWD, folder, flags).map_err(at(folder))
}

fn enter(namespace: BorrowedFd<'_>) -> rustix::io::Result<()> {
    move_into_link_name_space(namespace, Some(LinkNameSpaceType::Mount))
}

/// Checks that this process can mount a file system in memory in `folder`, and one like it do what [`fetch`] does.
///
/// # Errors
/// The first step that the kernel refuses.
pub fn try_here(folder: &Path) -> Result<(), RootError> {
    let place = folder.join("trial");
    DirBuilder::new().mode(0o700).create(&place).map_err(at(&place))?;
    let tried = try_at(&place);
    let _ = fs::remove_dir(&place);
    tried
}

fn try_at(place: &Path) -> Result<(), RootError> {
    mount_memory(place, 1).map_err(at("tmpfs"))?;
    let taken = taken(place);
    detach(place).map_err(at(place))?;
    drop(taken?);
    let tried = std::thread::spawn(|| {
        // SAFETY: from here on this thread, which ends soon, has a root and a working directory of its own; descriptors stay
        // shared.
        unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::FS) }.map_err(at("unshare"))?;
        let own = own_namespace().map_err(at("/proc/self/ns/mnt"))?;
        enter(own.as_fd()).map_err(at("the own mount namespace (CAP_SYS_CHROOT)"))
    });
    tried.join().unwrap_or_else(|_| Err(at("a thread")(io::Error::other("it has panicked"))))
}
