//! User ids that this node has, of all nodes of the machine.

use std::{
    fs::{DirBuilder, File, OpenOptions, TryLockError},
    io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

/// Where a machine's nodes that are root say which ids they have.
pub const FOLDER: &str = "/run/aviary-users";

/// A locked file for each id. The kernel lets go of the locks when the node ends, however that happens; the files stay,
/// as one that is taken away while another node opens it would be two.
#[derive(Debug)]
pub struct Claims {
    pub(crate) folder: PathBuf,
    pub(crate) held: Vec<File>,
}

impl Claims {
    pub fn new(folder: &Path) -> io::Result<Claims> {
        match DirBuilder::new().mode(0o700).create(folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(Claims { folder: folder.to_owned(), held: Vec::new() }),
        }
    }

    /// False: another node has this id.
    pub fn claim(&mut self, id: u32) -> io::Result<bool> {
        let path = self.folder.join(id.to_string());
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
        match file.try_lock() {
            Ok(()) => {
                self.held.push(file);
                Ok(true)
            }
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::attach::private::PrivateDir;
    use crate::users::claims::*;
    use std::time::{Duration, Instant};

    const HANG_TIMEOUT: Duration = Duration::from_secs(60);

    #[test]
    fn an_id_is_one_nodes_until_that_ends() {
        let directory = PrivateDir::create().unwrap();
        let folder = directory.path().join("users");
        let (mut one, mut other) = (Claims::new(&folder).unwrap(), Claims::new(&folder).unwrap());
        assert!(one.claim(7).unwrap());
        assert!(!other.claim(7).unwrap() && other.claim(8).unwrap());
        drop(one);
        // Children of other tests of this process have copies of its descriptors until they run their own program.
        let end = Instant::now() + HANG_TIMEOUT;
        while !other.claim(7).unwrap() {
            assert!(Instant::now() < end);
            std::thread::yield_now();
        }
        assert!(Claims::new(&directory.path().join("no/such")).is_err());
    }
}
