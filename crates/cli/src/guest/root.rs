//! Files under the root folder of a guest, whose links may lead anywhere: none of them leads out of that folder.

use rustix::{
    fs::{
        AtFlags, FileType, Mode, OFlags, ResolveFlags, mkdirat, openat2, readlinkat, renameat, statat, symlinkat,
        unlinkat,
    },
    io::Errno,
};
use std::{
    fs::File,
    io::{self, Read, Write},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

/// Beside the file that it will be.
const TEMPORARY_SUFFIX: &str = ".aviary-new";

#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub enum RootError {
    /// {0}: {1}
    File(PathBuf, io::Error),
    /// {0} is a folder, but a file has to be written there: remove it
    Folder(PathBuf),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Written,
    Unchanged,
}

pub struct GuestRoot {
    folder: PathBuf,
    descriptor: OwnedFd,
}

impl GuestRoot {
    pub fn open(folder: &Path) -> Result<Self, RootError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let descriptor = rustix::fs::open(folder, flags, Mode::empty());
        let descriptor = descriptor.map_err(|error| RootError::File(folder.into(), error.into()))?;
        Ok(Self { folder: folder.into(), descriptor })
    }

    fn shown(&self, path: &str) -> PathBuf {
        self.folder.join(path.trim_start_matches('/'))
    }

    fn failed(&self, path: &str, error: Errno) -> RootError {
        RootError::File(self.shown(path), error.into())
    }

    fn lookup(&self, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        openat2(&self.descriptor, path, flags | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::IN_ROOT)
    }

    fn folder(&self, path: &str) -> Result<OwnedFd, Errno> {
        self.lookup(if path.is_empty() { "/" } else { path }, OFlags::PATH | OFlags::DIRECTORY)
    }

    /// Made with all those above it.
    fn make_folder(&self, path: &str) -> Result<OwnedFd, Errno> {
        match self.folder(path) {
            Err(Errno::NOENT) => {
                let (above, name) = split(path);
                let above = self.make_folder(above)?;
                match mkdirat(&above, name, Mode::from_raw_mode(0o755)) {
                    Ok(()) | Err(Errno::EXIST) => self.folder(path),
                    Err(error) => Err(error),
                }
            }
            found => found,
        }
    }

    pub fn exists(&self, path: &str) -> bool {
        self.lookup(path, OFlags::PATH).is_ok()
    }

    pub fn read(&self, path: &str) -> Result<Vec<u8>, RootError> {
        let file = self.lookup(path, OFlags::RDONLY | OFlags::NONBLOCK).map_err(|error| self.failed(path, error))?;
        let mut data = Vec::new();
        File::from(file).read_to_end(&mut data).map_err(|error| RootError::File(self.shown(path), error))?;
        Ok(data)
    }

    /// A program that has the old file open keeps it.
    pub fn write(&self, path: &str, data: &[u8], mode: u32) -> Result<Change, RootError> {
        let (above, name) = split(path);
        let folder = self.make_folder(above).map_err(|error| self.failed(above, error))?;
        if self.is_same_file(&folder, name, data, mode) {
            return Ok(Change::Unchanged);
        }
        self.replace(&folder, path, |new| {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = rustix::fs::openat(&folder, new, flags, Mode::from_raw_mode(mode))?;
            // Independent of the umask.
            rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
            File::from(file).write_all(data)
        })
    }

    fn is_same_file(&self, folder: &OwnedFd, name: &str, data: &[u8], mode: u32) -> bool {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let Ok(file) = rustix::fs::openat(folder, name, flags, Mode::empty()) else { return false };
        let Ok(status) = rustix::fs::fstat(&file) else { return false };
        let regular = FileType::from_raw_mode(status.st_mode) == FileType::RegularFile;
        if !regular || status.st_mode & 0o7777 != mode || u64::try_from(status.st_size) != Ok(data.len() as u64) {
            return false;
        }
        let mut present = Vec::new();
        File::from(file).read_to_end(&mut present).is_ok() && present == data
    }

    pub fn link(&self, path: &str, target: &str) -> Result<Change, RootError> {
        let (above, name) = split(path);
        let folder = self.make_folder(above).map_err(|error| self.failed(above, error))?;
        if readlinkat(&folder, name, Vec::new()).is_ok_and(|present| present.as_bytes() == target.as_bytes()) {
            return Ok(Change::Unchanged);
        }
        self.replace(&folder, path, |new| Ok(symlinkat(target, &folder, new)?))
    }

    fn replace(
        &self,
        folder: &OwnedFd,
        path: &str,
        create: impl FnOnce(&str) -> io::Result<()>,
    ) -> Result<Change, RootError> {
        let (_, name) = split(path);
        let new = format!("{name}{TEMPORARY_SUFFIX}");
        // Of an earlier run that was stopped.
        let _ = unlinkat(folder, &new, AtFlags::empty());
        create(&new).map_err(|error| RootError::File(self.shown(path), error))?;
        match renameat(folder, &new, folder, name) {
            Ok(()) => Ok(Change::Written),
            Err(error) => {
                let _ = unlinkat(folder, &new, AtFlags::empty());
                Err(if error == Errno::ISDIR { RootError::Folder(self.shown(path)) } else { self.failed(path, error) })
            }
        }
    }

    /// Removes a file; true if it existed. A link is removed, not its target.
    pub fn remove(&self, path: &str) -> Result<bool, RootError> {
        let (above, name) = split(path);
        let removed = self.folder(above).and_then(|folder| unlinkat(&folder, name, AtFlags::empty()));
        match removed {
            Ok(()) => Ok(true),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
            Err(error) => Err(self.failed(path, error)),
        }
    }

    /// Folders that are not empty stay, and those that are links.
    pub fn remove_empty_folder(&self, path: &str) {
        let (above, name) = split(path);
        if let Ok(folder) = self.folder(above)
            && statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
        {
            let _ = unlinkat(&folder, name, AtFlags::REMOVEDIR);
        }
    }
}

fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use aviary_node::PrivateDir;
    use std::{fs, os::unix::fs::symlink};

    #[test]
    fn files_are_written_once() {
        let directory = PrivateDir::create().unwrap();
        let root = GuestRoot::open(directory.path()).unwrap();
        assert_eq!(root.write("/etc/a/b", b"x", 0o644).unwrap(), Change::Written);
        assert_eq!(root.write("/etc/a/b", b"x", 0o644).unwrap(), Change::Unchanged);
        assert_eq!(root.write("/etc/a/b", b"y", 0o644).unwrap(), Change::Written);
        assert_eq!(fs::read(directory.path().join("etc/a/b")).unwrap(), b"y");
        assert_eq!(root.link("/etc/l", "a/b").unwrap(), Change::Written);
        assert_eq!(root.link("/etc/l", "a/b").unwrap(), Change::Unchanged);
        assert_eq!(root.read("/etc/l").unwrap(), b"y");
        assert!(root.remove("/etc/l").unwrap() && !root.remove("/etc/l").unwrap());
        assert!(root.exists("/etc/a/b"));
    }

    #[test]
    fn links_of_the_guest_do_not_lead_out() {
        let outside = PrivateDir::create().unwrap();
        let directory = PrivateDir::create().unwrap();
        fs::write(outside.path().join("passwd"), "mine").unwrap();
        let files = || fs::read_dir(outside.path()).unwrap().count();
        let before = files();
        // To a folder, by a full path and by a climbing one, and to a file.
        symlink(outside.path(), directory.path().join("etc")).unwrap();
        symlink("../../../../../../../../etc", directory.path().join("up")).unwrap();
        symlink(outside.path().join("passwd"), directory.path().join("file")).unwrap();
        let root = GuestRoot::open(directory.path()).unwrap();
        // The folder that the link names does not exist in the guest.
        assert!(root.write("/etc/passwd", b"theirs", 0o644).is_err());
        let _ = root.write("/up/aviary-test", b"theirs", 0o644);
        assert!(!Path::new("/etc/aviary-test").exists());
        assert!(root.read("/file").is_err());
        root.write("/file", b"theirs", 0o644).unwrap();
        assert_eq!(fs::read(outside.path().join("passwd")).unwrap(), b"mine");
        assert_eq!(files(), before);
    }

    #[test]
    fn a_folder_is_not_replaced() {
        let directory = PrivateDir::create().unwrap();
        fs::create_dir_all(directory.path().join("a/b")).unwrap();
        let root = GuestRoot::open(directory.path()).unwrap();
        assert!(matches!(root.write("/a/b", b"x", 0o644), Err(RootError::Folder(_))));
        assert_eq!(fs::read_dir(directory.path().join("a")).unwrap().count(), 1);
    }
}
