//! Vendor sets: versions of vendors' software that tenants have instead of the node's own.
//!
//! The configuration makes them, tenants name them, and API servers are started from them. A set is a value: an API server
//! keeps the one that it began with, whatever the configuration says later.

use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// The libraries, variables and folders of one version.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VendorSet {
    pub name: String,
    /// Variables of its API servers, in place of the node's own of these names. They name its libraries, too.
    pub environment: BTreeMap<String, String>,
    /// Files and directories that its sandboxed API servers can read, and those of other sets cannot.
    pub read: Vec<PathBuf>,
    /// Of its libraries and folders, as the configuration was read: one in another's place makes it another set.
    identities: BTreeMap<PathBuf, FileIdentity>,
}

/// What tells a file from one that takes its place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct FileIdentity {
    device: u64,
    inode: u64,
    /// When it was last written to: seconds and nanoseconds.
    written: (i64, i64),
    length: u64,
}

impl VendorSet {
    /// `files`: its libraries, and folders whose files it loads; of a folder all that is directly in it counts.
    ///
    /// # Errors
    /// The first of them that is not there, and why.
    pub fn new(
        name: &str,
        environment: BTreeMap<String, String>,
        read: Vec<PathBuf>,
        files: &[PathBuf],
    ) -> Result<Self, (PathBuf, io::Error)> {
        let mut identities = BTreeMap::new();
        for file in files {
            let failed = |error| (file.clone(), error);
            identities.insert(file.clone(), FileIdentity::of(file).map_err(failed)?);
            if file.is_dir() {
                for entry in fs::read_dir(file).map_err(failed)?.flatten() {
                    // One that goes away meanwhile is not there.
                    if let Ok(identity) = FileIdentity::of(&entry.path()) {
                        identities.insert(entry.path(), identity);
                    }
                }
            }
        }
        Ok(Self { name: name.to_owned(), environment, read, identities })
    }
}

impl FileIdentity {
    /// Of what a link leads to.
    fn of(path: &Path) -> io::Result<Self> {
        let found = fs::metadata(path)?;
        let written = (found.mtime(), found.mtime_nsec());
        Ok(Self { device: found.dev(), inode: found.ino(), written, length: found.len() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach::private::PrivateDir;

    #[test]
    fn set_whose_library_was_replaced_is_another_one() {
        let folder = PrivateDir::create().unwrap();
        let (library, icd) = (folder.path().join("lib.so"), folder.path().join("one.icd"));
        let read = || VendorSet::new("a", BTreeMap::new(), Vec::new(), &[folder.path().to_owned()]).unwrap();
        fs::write(&library, "one").unwrap();
        let first = read();
        assert_eq!(first, read());
        fs::write(folder.path().join("new"), "other").unwrap();
        fs::rename(folder.path().join("new"), &library).unwrap();
        let second = read();
        assert_ne!(first, second, "another file of this name");
        fs::write(&icd, "lib.so").unwrap();
        assert_ne!(second, read(), "a further file");
        let missing = folder.path().join("missing.so");
        let (path, error) =
            VendorSet::new("a", BTreeMap::new(), Vec::new(), std::slice::from_ref(&missing)).unwrap_err();
        assert_eq!((path, error.kind()), (missing, io::ErrorKind::NotFound));
    }
}
