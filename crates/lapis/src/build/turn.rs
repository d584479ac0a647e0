//! Builds of one API in a build cache, one at a time.
//!
//! Cargo takes crates of one name and one place within their workspace for the same ones, wherever that workspace lies: what was
//! compiled of an API in one folder would be taken for fresh in another one, with the other folder's paths in it.

use super::BuildError;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::SystemTime;

/// The right to compile an API in a build cache, until it is dropped.
#[derive(Debug)]
pub struct Turn {
    _lock: File,
}

impl Turn {
    /// Waits for builds of the API `name` that are under way in the cache `target`. If the last one was of other crates than those
    /// at `crates`, all files there count as changed.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn take(target: &Path, name: &str, crates: &Path) -> Result<Turn, BuildError> {
        let path = target.join(format!("{name}.turn"));
        Self::try_take(&path, crates).map_err(|error| BuildError::Output(path, error))
    }

    fn try_take(path: &Path, crates: &Path) -> io::Result<Turn> {
        let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        file.lock()?;
        let mut last = Vec::new();
        file.read_to_end(&mut last)?;
        if last != crates.as_os_str().as_bytes() {
            touch(crates, SystemTime::now())?;
            file.rewind()?;
            file.set_len(0)?;
            file.write_all(crates.as_os_str().as_bytes())?;
        }
        Ok(Turn { _lock: file })
    }
}

fn touch(folder: &Path, now: SystemTime) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            touch(&entry.path(), now)?;
        } else if kind.is_file() {
            OpenOptions::new().append(true).open(entry.path())?.set_modified(now)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    /// Crates of an API that were generated long ago; the file whose time is looked at.
    fn generated(root: &Path, folder: &str) -> (std::path::PathBuf, std::path::PathBuf) {
        let crates = root.join(folder);
        let file = crates.join("guest/build.rs");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        File::create(&file).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        (crates, file)
    }

    fn is_old(file: &Path) -> bool {
        fs::metadata(file).unwrap().modified().unwrap() == SystemTime::UNIX_EPOCH
    }

    #[test]
    fn crates_count_as_changed_after_those_of_another_folder() {
        let root = tempfile::tempdir().unwrap();
        let (one, file_of_one) = generated(root.path(), "one");
        let (_, file_of_other) = generated(root.path(), "other");
        let other = root.path().join("other");
        let set_back = |file: &Path| {
            OpenOptions::new().append(true).open(file).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        };
        drop(Turn::take(root.path(), "api", &one).unwrap());
        assert!(!is_old(&file_of_one) && is_old(&file_of_other), "the first one");
        set_back(&file_of_one);
        drop(Turn::take(root.path(), "api", &one).unwrap());
        assert!(is_old(&file_of_one), "the same again");
        drop(Turn::take(root.path(), "api", &other).unwrap());
        assert!(!is_old(&file_of_other), "another one");
        drop(Turn::take(root.path(), "api", &one).unwrap());
        assert!(!is_old(&file_of_one), "the first one again");
        set_back(&file_of_one);
        drop(Turn::take(root.path(), "another", &other).unwrap());
        drop(Turn::take(root.path(), "api", &one).unwrap());
        assert!(is_old(&file_of_one), "another API between them");
    }

    #[test]
    fn builds_of_one_api_wait_for_each_other() {
        let root = tempfile::tempdir().unwrap();
        let (one, _) = generated(root.path(), "one");
        let first = Turn::take(root.path(), "api", &one).unwrap();
        let (told, taken) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let turn = Turn::take(root.path(), "api", &one).unwrap();
                told.send(()).unwrap();
                drop(turn);
            });
            assert!(taken.recv_timeout(Duration::from_millis(50)).is_err());
            drop(first);
            taken.recv().unwrap();
        });
    }
}
