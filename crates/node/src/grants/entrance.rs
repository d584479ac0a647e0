//! A folder with one socket, to be mounted into a container: who has the mount is the grant's guest.
//!
//! The container may have it with the right to write. So nothing in it is followed: the socket is made and its permissions are set
//! by descriptors, and only a socket of this folder is ever touched.

use super::{error::GrantError, request::SOCKET_NAME};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, fchmod, fstat, openat, unlinkat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with};
use std::{
    fs::{self, DirBuilder, Permissions},
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::{DirBuilderExt, PermissionsExt},
    },
    path::{Path, PathBuf},
};

const BACKLOG: i32 = 1024;
/// Into it, not to what is in it.
const FOLDER_MODE: u32 = 0o711;
/// Of the socket: who has come as far as this may connect.
const SOCKET_MODE: u32 = 0o666;
/// Of folders above it that are not there yet: on this machine only root goes through.
const PARENT_MODE: u32 = 0o700;

/// Makes folder and socket, and listens. `is_new`: the folder must have nothing else in it.
pub(super) fn open(folder: &Path, is_new: bool) -> Result<OwnedFd, GrantError> {
    let wrong = |why: String| GrantError::Socket(folder.to_owned(), why);
    let failed = |error: io::Error| wrong(error.to_string());
    if let Some(parent) = folder.parent() {
        DirBuilder::new().mode(PARENT_MODE).recursive(true).create(parent).map_err(failed)?;
    }
    match DirBuilder::new().mode(PARENT_MODE).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(error)),
        _ => {}
    }
    let at = directory(folder).map_err(|errno| failed(errno.into()))?;
    let (own, owner) = (rustix::process::geteuid().as_raw(), fstat(&at).map_err(|errno| failed(errno.into()))?.st_uid);
    if owner != own {
        return Err(wrong(format!("it belongs to user {owner}, this is user {own}")));
    }
    let mut entries = fs::read_dir(within(&at, "")).map_err(failed)?.flatten();
    if let Some(other) = entries.find(|entry| is_new && entry.file_name() != SOCKET_NAME) {
        return Err(wrong(format!("it is not empty: {} is in it", other.file_name().display())));
    }
    fchmod(&at, Mode::from_raw_mode(FOLDER_MODE)).map_err(|errno| failed(errno.into()))?;
    bind_in(&at).map_err(|errno| match errno {
        Errno::ADDRINUSE => wrong("another node listens there".into()),
        other => failed(other.into()),
    })
}

fn directory(folder: &Path) -> rustix::io::Result<OwnedFd> {
    openat(CWD, folder, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

/// Also where the folder's own path is longer than the address of a socket.
fn within(folder: &OwnedFd, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}/{name}", folder.as_raw_fd()))
}

fn bind_in(folder: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    let new =
        || socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None);
    let address = SocketAddrUnix::new(within(folder, SOCKET_NAME))?;
    // One that answers is another node's.
    if is_socket(folder) && connect(&new()?, &address).is_ok() {
        return Err(Errno::ADDRINUSE);
    }
    match unlinkat(folder, SOCKET_NAME, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(errno),
    }
    let socket = new()?;
    bind(&socket, &address)?;
    // The kernel has made it with what the umask leaves. A link that a guest has put there in the meantime is not followed.
    let made = openat(folder, SOCKET_NAME, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    if FileType::from_raw_mode(fstat(&made)?.st_mode) != FileType::Socket {
        return Err(Errno::NOTSOCK);
    }
    let by_descriptor = format!("/proc/self/fd/{}", made.as_raw_fd());
    let set = fs::set_permissions(by_descriptor, Permissions::from_mode(SOCKET_MODE));
    set.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

fn is_socket(folder: &OwnedFd) -> bool {
    let found = rustix::fs::statat(folder, SOCKET_NAME, AtFlags::SYMLINK_NOFOLLOW);
    found.is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Socket)
}

/// Removes the socket. `with_folder`: and the folder, if nothing else is in it; an error says what is left.
pub(super) fn close(folder: &Path, with_folder: bool) -> Result<(), String> {
    if let Ok(at) = directory(folder)
        && is_socket(&at)
    {
        let _ = unlinkat(&at, SOCKET_NAME, AtFlags::empty());
    }
    if !with_folder {
        return Ok(());
    }
    match fs::remove_dir(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.to_string()),
        _ => Ok(()),
    }
}
