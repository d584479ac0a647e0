//! A directory that only its owner can enter, with a name nobody can guess.

use crate::error::NodeError;
use crate::users::removal::remove_folder;
use aviary_sandbox::mounts::{detach_all, has_mounts};
use rustix::fs::{FlockOperation, OFlags, flock};
use std::{
    fs::{self, DirBuilder, File},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

const PREFIX: &str = "aviary-";
const LOCK: &str = "lock";
/// Bytes of a socket's path in its address, without the NUL.
const MAX_SOCKET_PATH: usize = 107;
/// A younger directory may belong to a process that has not locked it yet.
const STALE_AGE: Duration = Duration::from_secs(60);

/// Removed with everything in it when dropped. While it lives its `lock` file
/// is locked: that is how leftovers of killed processes are told apart.
#[derive(Debug)]
pub struct PrivateDir {
    pub(crate) path: PathBuf,
    /// Held, and passed on when the node's program is replaced.
    pub(crate) lock: File,
}

impl PrivateDir {
    /// Under `$XDG_RUNTIME_DIR`, or `/tmp` where there is none that only this user can write to.
    pub fn create() -> Result<Self, NodeError> {
        Self::create_with(0o700)
    }

    /// One that every user can read and enter: for files that programs load after they have changed their user.
    pub fn create_readable() -> Result<Self, NodeError> {
        let directory = Self::create_with(0o755)?;
        // Independent of the umask.
        let readable = fs::Permissions::from_mode(0o755);
        fs::set_permissions(&directory.path, readable)
            .map_err(|e| NodeError::PrivateDirMode(directory.path.clone(), e))?;
        Ok(directory)
    }

    fn create_with(mode: u32) -> Result<Self, NodeError> {
        Self::create_in(&parent(), mode)
    }

    /// In this directory, which others may write to if it is sticky.
    pub(crate) fn create_in(parent: &Path, mode: u32) -> Result<Self, NodeError> {
        remove_stale(parent);
        let failed = |error| NodeError::PrivateDir(parent.to_owned(), error);
        loop {
            let path = parent.join(format!("{PREFIX}{}", random_name().map_err(failed)?));
            match DirBuilder::new().mode(mode).create(&path) {
                Ok(()) => {
                    let lock = lock(&path).map_err(failed)?;
                    return Ok(Self { path, lock });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(failed(error)),
            }
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for PrivateDir {
    fn drop(&mut self) {
        // A directory that cannot be removed now is found by a later `remove_stale`.
        let _ = remove_whole(&self.path);
    }
}

/// Sockets of the private nodes of this user that are running now.
pub fn private_nodes() -> Vec<PathBuf> {
    private_directories_of_this_user(&parent())
        .map(|directory| directory.join("node.sock"))
        .filter(|socket| socket.exists())
        .collect()
}

fn parent() -> PathBuf {
    runtime_directory().unwrap_or(None).unwrap_or_else(|| "/tmp".into())
}

/// `$XDG_RUNTIME_DIR`, if there is one. An error: another user could put files there, so it is left alone.
pub fn runtime_directory() -> Result<Option<PathBuf>, NodeError> {
    let named = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|directory| directory.is_dir());
    let Some(directory) = named else { return Ok(None) };
    let checked = check_length(&directory).and_then(|()| check_own(&directory, rustix::process::geteuid().as_raw()));
    match checked {
        Ok(()) => Ok(Some(directory)),
        Err(why) => Err(NodeError::RuntimeDirectory(directory, why)),
    }
}

/// An error if the address of a socket in a private directory below it is longer than the kernel takes.
fn check_length(directory: &Path) -> Result<(), String> {
    const NAME: usize = 2 * 12;
    let longest = MAX_SOCKET_PATH - "/".len() - PREFIX.len() - NAME - "/".len() - "relay.sock".len();
    match directory.as_os_str().len() {
        length if length > longest => {
            Err(format!("its path has {length} bytes; a socket in it allows {longest} at most"))
        }
        _ => Ok(()),
    }
}

/// True if only this user can put files there.
fn check_own(directory: &Path, user: u32) -> Result<(), String> {
    let found = fs::metadata(directory).map_err(|error| error.to_string())?;
    match found.mode() & 0o777 {
        _ if found.uid() != user => Err(format!("it belongs to user {}, this is user {user}", found.uid())),
        mode if mode & 0o022 != 0 => Err(format!("others can write to it (permissions {mode:o}, expected 700)")),
        _ => Ok(()),
    }
}

fn random_name() -> io::Result<String> {
    let mut bytes = [0u8; 12];
    let got = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty())?;
    if got != bytes.len() {
        return Err(io::Error::other("the kernel gave too little randomness"));
    }
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn lock(directory: &Path) -> io::Result<File> {
    hold(File::options().create(true).truncate(true).write(true).mode(0o600).open(directory.join(LOCK))?)
}

/// The lock of a directory that has one. A process that may enter the directory cannot hold the lock.
fn lock_existing(directory: &Path) -> io::Result<File> {
    hold(File::options().write(true).custom_flags(OFlags::NOFOLLOW.bits().cast_signed()).open(directory.join(LOCK))?)
}

fn hold(file: File) -> io::Result<File> {
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(file)
}

/// True for a name that [`random_name`] makes. Other directories whose names begin alike are somebody's own.
fn is_random_name(name: &str) -> bool {
    name.len() == 24 && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn private_directories_of_this_user(parent: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let directory_owner = rustix::process::geteuid().as_raw();
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    entries.filter_map(move |entry| {
        let name = entry.file_name();
        let named = name.to_str().and_then(|name| name.strip_prefix(PREFIX)).is_some_and(is_random_name);
        let metadata = entry.metadata().ok()?;
        (named && metadata.is_dir() && metadata.uid() == directory_owner).then(|| entry.path())
    })
}

/// Removes what killed processes of this user left behind: directories whose lock nothing holds, and empty ones.
fn remove_stale(parent: &Path) {
    remove_older(parent, STALE_AGE);
}

/// With what is mounted in it.
fn remove_whole(directory: &Path) -> io::Result<()> {
    detach_all(directory);
    remove_folder(directory, Some(LOCK))
}

fn remove_older(parent: &Path, age: Duration) {
    for directory in private_directories_of_this_user(parent) {
        let old = fs::metadata(&directory)
            .and_then(|metadata| metadata.modified())
            .is_ok_and(|time| time.elapsed().is_ok_and(|elapsed| elapsed >= age));
        // Memory that a killed node has left is freed at once: what mounts there has locked it before.
        if !old && !has_mounts(&directory) {
            continue;
        }
        let _ = match lock_existing(&directory) {
            Ok(_lock) => remove_whole(&directory),
            Err(error) if error.kind() == io::ErrorKind::NotFound => fs::remove_dir(&directory),
            Err(_) => Ok(()),
        };
    }
}

#[cfg(test)]
mod tests {
    use crate::attach::private::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn is_private_and_goes_away() {
        let directory = PrivateDir::create().unwrap();
        let path = directory.path().to_owned();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        fs::write(path.join("file"), "x").unwrap();
        drop(directory);
        assert!(!path.exists());
    }

    #[test]
    fn a_runtime_directory_is_this_users_alone() {
        let directory = PrivateDir::create().unwrap();
        let user = rustix::process::geteuid().as_raw();
        assert_eq!(check_own(directory.path(), user), Ok(()));
        let why = check_own(directory.path(), user + 1).unwrap_err();
        assert!(why.contains(&format!("belongs to user {user}")), "{why}");
        for mode in [0o770, 0o702, 0o777] {
            fs::set_permissions(directory.path(), fs::Permissions::from_mode(mode)).unwrap();
            assert!(check_own(directory.path(), user).unwrap_err().contains(&format!("{mode:o}")));
        }
        assert!(check_own(&directory.path().join("none"), user).is_err());
    }

    #[test]
    fn live_directories_are_not_stale() {
        let directory = PrivateDir::create().unwrap();
        assert!(lock(directory.path()).is_err(), "a second lock must fail while the owner lives");
    }

    #[test]
    fn only_what_killed_nodes_left_is_removed() {
        let root = PrivateDir::create().unwrap();
        let parent = root.path().join("parent");
        fs::create_dir(&parent).unwrap();
        let make = |name: &str, files: &[&str]| {
            let directory = parent.join(name);
            fs::create_dir(&directory).unwrap();
            files.iter().for_each(|file| fs::write(directory.join(file), "").unwrap());
        };
        make("aviary-0123456789abcdef01234567", &[LOCK, "node.sock"]);
        make("aviary-1123456789abcdef01234567", &[]);
        // 24 characters of another kind, another length, files but no lock.
        let others =
            ["aviary-lapis-combinations-31406", "aviary-0123456789ABCDEF01234567", "aviary-0123456789abcdef0123456"];
        others.iter().for_each(|name| make(name, &[LOCK]));
        make("aviary-2123456789abcdef01234567", &["results"]);
        let used = PrivateDir::create_in(&parent, 0o700).unwrap();
        remove_older(&parent, Duration::ZERO);
        let mut left: Vec<_> = fs::read_dir(&parent).unwrap().flatten().map(|entry| entry.path()).collect();
        let mut expected: Vec<_> = others.iter().map(|name| parent.join(name)).collect();
        expected.extend([parent.join("aviary-2123456789abcdef01234567"), used.path().to_owned()]);
        left.sort();
        expected.sort();
        assert_eq!(left, expected);
    }

    #[test]
    fn a_long_runtime_directory_is_not_used() {
        let root = PrivateDir::create().unwrap();
        assert!(check_length(root.path()).is_ok());
        assert!(check_length(&root.path().join("x".repeat(80))).is_err());
    }

    #[test]
    fn a_readable_directory_is_its_owners_to_write() {
        let directory = PrivateDir::create_readable().unwrap();
        assert_eq!(fs::metadata(directory.path()).unwrap().mode() & 0o777, 0o755);
    }
}
