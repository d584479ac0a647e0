//! Descriptors that a library keeps in a process that is not its own.

use std::io::{IoSlice, IoSliceMut};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::io::{Errno, FdFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::process::{Resource, getrlimit};

/// Device and inode, which distinguish an open file from every other one. All sessions of one `/dev/aviary` have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    /// The identity of an open file; `None` if the descriptor is closed.
    pub fn of(fd: impl AsFd) -> Option<Self> {
        rustix::fs::fstat(fd).ok().map(|s| Identity { device: s.st_dev, inode: s.st_ino })
    }

    /// True if the descriptor still refers to this file.
    pub fn is(self, fd: impl AsFd) -> bool {
        Identity::of(fd) == Some(self)
    }
}

/// A file that a library keeps open in a process whose program may close any number, and open a file of its own under it.
/// The number is used and closed only while this file is behind it.
///
/// Between the check and the use another thread of the program can still reuse the number; no system call can exclude
/// that.
pub struct KeptFile {
    file: ManuallyDrop<OwnedFd>,
    identity: Option<Identity>,
}

impl KeptFile {
    pub fn new(file: OwnedFd) -> Self {
        let identity = Identity::of(&file);
        KeptFile { file: ManuallyDrop::new(file), identity }
    }

    /// The descriptor; `None`: the program has closed it.
    pub fn get(&self) -> Option<BorrowedFd<'_>> {
        self.identity.filter(|identity| identity.is(&*self.file)).map(|_| self.file.as_fd())
    }

    /// The descriptor, whatever is behind its number now.
    pub fn number(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for KeptFile {
    fn drop(&mut self) {
        if self.get().is_some() {
            // SAFETY: this object ends here, and nothing else drops the descriptor.
            unsafe { ManuallyDrop::drop(&mut self.file) };
        }
    }
}

/// Where the standard streams end: a program that closed one expects the next file that it opens there.
const FIRST: i32 = 3;
/// Where loops end that close "all" descriptors in programs that start in the background.
const COMMON: i32 = 1024;

/// The same file under a number that the application neither uses for a standard stream nor closes in the usual loops,
/// as far as the process may have such numbers. It is closed by `exec`.
pub fn out_of_the_way(file: OwnedFd) -> OwnedFd {
    let roomy = getrlimit(Resource::Nofile).current.is_none_or(|limit| limit >= 4 * COMMON as u64);
    let least = if roomy { COMMON } else { FIRST };
    if file.as_raw_fd() >= least {
        return file;
    }
    // A full table leaves the file where it is.
    let again = |least| rustix::io::fcntl_dupfd_cloexec(&file, least).ok();
    again(least).or_else(|| again(FIRST)).unwrap_or(file)
}

/// Lets the program that `command` starts have `file` under its number here, and no other program of this process.
pub fn inherit(command: &mut Command, file: &OwnedFd) {
    let number = file.as_raw_fd();
    let keep = move || {
        // SAFETY: the child has the descriptors that this process had when it was forked. If `file` is closed by then,
        // the call fails, and the program does not start.
        let kept = unsafe { BorrowedFd::borrow_raw(number) };
        Ok(rustix::io::fcntl_setfd(kept, FdFlags::empty())?)
    };
    // SAFETY: `keep` makes one system call, and allocates and locks nothing.
    unsafe { command.pre_exec(keep) };
}

/// Descriptors that are taken out of one message; further ones are closed.
const MOST_HANDED: usize = 4;

/// Makes a connection, and hands its other end over by `channel`, a socket that leads to the node's process: for processes that may
/// make no socket that is not connected yet. Does not wait where the channel is full.
pub fn connect_through(channel: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let files = [theirs.as_fd()];
    ancillary.push(SendAncillaryMessage::ScmRights(&files));
    sendmsg(channel, &[IoSlice::new(&[0])], &mut ancillary, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
    Ok(ours)
}

/// Waits for connections that [`connect_through`] handed over. Other things that programs write into the channel are dropped. `None`: the
/// channel's last other end is closed.
pub fn connections_through(channel: BorrowedFd<'_>) -> Result<Option<Vec<OwnedFd>>, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_HANDED))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut noise = [0; 256];
    let received = recvmsg(channel, &mut [IoSliceMut::new(&mut noise)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let mut connections = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(files) = message {
            connections.extend(files.filter(is_connection));
        }
    }
    Ok((received.bytes > 0).then_some(connections))
}

/// A stream between processes of this machine.
fn is_connection(file: &OwnedFd) -> bool {
    use rustix::net::sockopt::{socket_domain, socket_type};
    socket_type(file) == Ok(SocketType::STREAM) && socket_domain(file) == Ok(AddressFamily::UNIX)
}

/// True if this process may write a file of so many bytes: one that grows beyond its limit is killed by SIGXFSZ.
pub fn may_have_file(bytes: u64) -> bool {
    getrlimit(Resource::Fsize).current.is_none_or(|limit| limit >= bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    #[test]
    fn connections_come_through_a_channel_among_other_things() {
        let (theirs, node) = UnixStream::pair().unwrap();
        let mut ours = UnixStream::from(connect_through(theirs.as_fd()).unwrap());
        let mut connections = connections_through(node.as_fd()).unwrap().unwrap();
        let mut there = UnixStream::from(connections.pop().unwrap());
        ours.write_all(b"hello").unwrap();
        let mut said = [0; 5];
        there.read_exact(&mut said).unwrap();
        assert!(&said == b"hello" && connections.is_empty());
        (&theirs).write_all(&[7; 1000]).unwrap();
        drop(theirs);
        let mut noise = 0;
        while let Some(connections) = connections_through(node.as_fd()).unwrap() {
            assert!(connections.is_empty());
            noise += 1;
        }
        assert!(noise >= 4);
    }

    #[test]
    fn number_of_another_file_is_neither_used_nor_closed() {
        let null = || rustix::fs::open("/dev/null", rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty()).unwrap();
        let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let kept = KeptFile::new(ours.into());
        assert!(kept.get().is_some());
        let number = kept.number().as_raw_fd();
        // SAFETY: as a program does it that reuses the number behind the back of the object.
        assert!(unsafe { libc::dup2(null().as_raw_fd(), number) } == number);
        assert!(kept.get().is_none());
        drop(kept);
        // SAFETY: the number is the program's file, which the object has left open.
        let file: OwnedFd = unsafe { std::os::fd::FromRawFd::from_raw_fd(number) };
        assert_eq!(Identity::of(&file), Identity::of(null()));
    }

    #[test]
    fn descriptors_lie_behind_the_standard_streams() {
        let file = rustix::fs::open("/dev/null", rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty()).unwrap();
        let moved = out_of_the_way(file);
        assert!(moved.as_raw_fd() >= FIRST);
        assert!(rustix::io::fcntl_getfd(&moved).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
    }
}
