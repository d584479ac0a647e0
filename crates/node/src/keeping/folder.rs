//! The folder of `--keep`: files of programs from one stop of the node to its next start, and the key that has signed them.
//!
//! Only the node's user may write there or look into it: the files hold the tenants' data. The key is made at each stop and taken
//! away by the next start, so that a file that is put back later counts for nothing.

use super::file::{KEY_BYTES, NAME_BYTES, Stop};
use crate::error::NodeError;
use rustix::fs::{FlockOperation, flock};
use std::{
    ffi::OsStr,
    fs::{self, DirBuilder, File},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

const KEY: &str = "key";
const KEPT: &str = "kept";
/// Files that are being written.
const PART: &str = "part";
/// Files that were not restored.
const REFUSED: &str = "refused";

#[derive(Debug)]
pub struct KeepFolder {
    path: PathBuf,
    /// Locked, so that two nodes do not share the folder.
    lock: File,
}

impl KeepFolder {
    /// Made if it is not there.
    pub fn open(path: &Path) -> Result<Self, NodeError> {
        let failed = |why: String| NodeError::Keep(path.to_owned(), why);
        let io = |error: io::Error| failed(error.to_string());
        match DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(io(error)),
            _ => {}
        }
        let lock = File::open(path).map_err(io)?;
        let found = lock.metadata().map_err(io)?;
        let (owner, user) = (found.uid(), rustix::process::geteuid().as_raw());
        if !found.is_dir() || owner != user {
            return Err(failed(format!("expected a folder of user {user}, it is one of user {owner} or no folder")));
        }
        if found.mode() & 0o077 != 0 {
            let mode = found.mode() & 0o777;
            return Err(failed(format!("others can use it (permissions {mode:o}): `chmod 700` it")));
        }
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { path: path.to_owned(), lock }),
            Err(_) => Err(failed("another node uses it".into())),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The key of the last stop; `None`: there was none, or its files were restored.
    pub fn last_stop(&self) -> io::Result<Option<Stop>> {
        let mut bytes = Vec::new();
        match File::open(self.path.join(KEY)) {
            Ok(file) => file.take(1 << 10).read_to_end(&mut bytes)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let key = bytes.split_first_chunk::<NAME_BYTES>().and_then(|(name, key)| Some((*name, key.try_into().ok()?)));
        let (name, key) = key.ok_or_else(|| io::Error::other("its key has the wrong length"))?;
        Ok(Some(Stop { name, key }))
    }

    /// The key of a new stop, whose files count once it was [left](Self::leave).
    pub fn new_stop() -> io::Result<Stop> {
        let (mut name, mut key) = ([0; NAME_BYTES], [0; KEY_BYTES]);
        for bytes in [&mut name[..], &mut key] {
            let got = rustix::rand::getrandom(&mut *bytes, rustix::rand::GetRandomFlags::empty())?;
            if got != bytes.len() {
                return Err(io::Error::other("the kernel gave too little randomness"));
            }
        }
        Ok(Stop { name, key })
    }

    /// All files of the stop are written: from here on they count, and no others.
    pub fn leave(&self, stop: &Stop) -> io::Result<()> {
        let part = self.path.join(KEY).with_extension(PART);
        let mut file = self.create(&part)?;
        file.write_all(&stop.name).and_then(|()| file.write_all(&stop.key))?;
        file.sync_all()?;
        fs::rename(&part, self.path.join(KEY))?;
        self.lock.sync_all()
    }

    /// The files were restored or refused: none counts any more.
    pub fn forget(&self) -> io::Result<()> {
        match fs::remove_file(self.path.join(KEY)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => self.lock.sync_all(),
        }
    }

    fn create(&self, path: &Path) -> io::Result<File> {
        File::options().create(true).truncate(true).write(true).mode(0o600).open(path)
    }

    /// Writes a file under the number of a session.
    pub fn write(&self, session: u64, fill: impl FnOnce(File) -> io::Result<()>) -> io::Result<PathBuf> {
        let path = self.path.join(format!("session-{session}")).with_extension(KEPT);
        let part = path.with_extension(PART);
        let written = self.create(&part).and_then(fill).and_then(|()| fs::rename(&part, &path));
        if written.is_err() {
            let _ = fs::remove_file(&part);
        }
        written.map(|()| path)
    }

    /// Files of programs, in order.
    pub fn files(&self) -> io::Result<Vec<PathBuf>> {
        let entries = fs::read_dir(&self.path)?.flatten().map(|entry| entry.path());
        let mut files: Vec<PathBuf> = entries.filter(|path| path.extension() == Some(OsStr::new(KEPT))).collect();
        files.sort();
        Ok(files)
    }

    /// A file that is not restored stays under another name.
    pub fn refuse(path: &Path) -> io::Result<()> {
        fs::rename(path, path.with_extension(REFUSED))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach::private::PrivateDir;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn files_count_from_a_stop_to_the_next_start() {
        let parent = PrivateDir::create().unwrap();
        let folder = KeepFolder::open(&parent.path().join("kept")).unwrap();
        assert!(folder.last_stop().unwrap().is_none());
        let stop = KeepFolder::new_stop().unwrap();
        let path = folder.write(7, |mut file| file.write_all(b"session")).unwrap();
        assert!(folder.write(8, |_| Err(io::ErrorKind::StorageFull.into())).is_err());
        assert!(folder.last_stop().unwrap().is_none(), "the files are not complete");
        folder.leave(&stop).unwrap();
        assert!(folder.last_stop().unwrap() == Some(stop.clone()));
        assert_eq!(folder.files().unwrap(), std::slice::from_ref(&path));
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(folder.path()), mode(&path), mode(&folder.path().join(KEY))), (0o700, 0o600, 0o600));
        KeepFolder::refuse(&path).unwrap();
        assert!(folder.files().unwrap().is_empty());
        folder.forget().unwrap();
        folder.forget().unwrap();
        assert!(folder.last_stop().unwrap().is_none());
        assert!(KeepFolder::new_stop().unwrap() != stop);
    }

    #[test]
    fn folder_is_one_nodes_and_nobody_elses() {
        let parent = PrivateDir::create().unwrap();
        let path = parent.path().join("kept");
        let folder = KeepFolder::open(&path).unwrap();
        assert!(KeepFolder::open(&path).unwrap_err().to_string().contains("another node"));
        drop(folder);
        drop(KeepFolder::open(&path).unwrap());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o710)).unwrap();
        assert!(KeepFolder::open(&path).unwrap_err().to_string().contains("710"));
        fs::write(parent.path().join("file"), "").unwrap();
        assert!(KeepFolder::open(&parent.path().join("file")).is_err());
        assert!(KeepFolder::open(&parent.path().join("none/kept")).is_err());
    }

    #[test]
    fn key_of_another_length_is_an_error() {
        let parent = PrivateDir::create().unwrap();
        let folder = KeepFolder::open(parent.path()).unwrap();
        fs::write(parent.path().join(KEY), [0; NAME_BYTES + KEY_BYTES + 1]).unwrap();
        assert!(folder.last_stop().is_err());
    }
}
