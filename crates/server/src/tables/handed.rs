//! Descriptors that a module hands over beside a session's state: what the vendor's library can take over by one, without a
//! copy, as memory of a device.
//!
//! They wait in a socket whose end to receive travels with the state; the node does not look into it. The old process gives
//! them while it writes the state, which holds their numbers; the new one takes them while it reads that.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

/// Most descriptors of a session. What exceeds them is copied. The kernel counts those under way against the limit of open
/// files of the user.
const MAX_HANDED: usize = 2048;
/// Descriptors in one message; the kernel allows 253.
const IN_A_MESSAGE: usize = 64;

/// Descriptors beside a state that is about to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handing {
    /// There are none, as the process that reads the state may begin after this one has ended: the state has all contents.
    Nothing,
    /// They take the place of contents.
    InPlaceOfContents,
    /// The state has all contents, and the process that reads it first takes the descriptors: it makes the session anew only
    /// to see if that works.
    BesideContents,
}

#[derive(Debug, Default)]
enum Kept {
    /// Nothing is handed over now.
    #[default]
    Closed,
    /// The state is being written here. `copied`: it has the contents, too.
    Giving { given: Vec<OwnedFd>, copied: bool },
    /// The state is being read here.
    Taking(Vec<OwnedFd>),
}

/// Of one session.
#[derive(Debug, Default)]
pub struct Handed(Mutex<Kept>);

impl Handed {
    /// The state is about to be written.
    pub fn begin(&self, handing: Handing) {
        let copied = handing == Handing::BesideContents;
        let giving = Kept::Giving { given: Vec::new(), copied };
        *self.stage() = if handing == Handing::Nothing { Kept::Closed } else { giving };
    }

    /// True if the state has to have the content of what is handed over, too.
    pub fn copies(&self) -> bool {
        !matches!(&*self.stage(), Kept::Giving { copied: false, .. })
    }

    /// Keeps a copy of the descriptor; its number. `None`: the content has to be copied.
    pub fn give(&self, descriptor: BorrowedFd<'_>) -> Option<u32> {
        let mut stage = self.stage();
        let Kept::Giving { given, .. } = &mut *stage else { return None };
        let number = u32::try_from(given.len()).ok().filter(|_| given.len() < MAX_HANDED)?;
        given.push(rustix::io::fcntl_dupfd_cloexec(descriptor, 3).ok()?);
        Some(number)
    }

    /// The state is written: sends all that was given.
    ///
    /// # Errors
    /// Those of sendmsg(2): the kernel lets no more descriptors be under way, for instance.
    pub fn send(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let stage = std::mem::take(&mut *self.stage());
        let given = if let Kept::Giving { given, .. } = stage { given } else { Vec::new() };
        for part in given.chunks(IN_A_MESSAGE) {
            let descriptors: Vec<BorrowedFd<'_>> = part.iter().map(AsFd::as_fd).collect();
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(IN_A_MESSAGE))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            sendmsg(socket, &[IoSlice::new(&[0])], &mut control, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
        }
        Ok(())
    }

    /// Receives what another process has sent, and does not wait for more.
    ///
    /// # Errors
    /// The descriptor is no such socket, or more came than one session hands over.
    pub fn receive(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let mut taken = Vec::new();
        loop {
            let mut byte = [0];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(IN_A_MESSAGE))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
            match recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, flags) {
                Ok(message) if message.bytes == 0 => break,
                Ok(_) => {}
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            }
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                    taken.extend(descriptors);
                }
            }
            if taken.len() > MAX_HANDED {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
        *self.stage() = Kept::Taking(taken);
        Ok(())
    }

    /// A copy of the descriptor of that number; `None`: there is none.
    pub fn take(&self, number: u32) -> Option<OwnedFd> {
        let stage = self.stage();
        let Kept::Taking(taken) = &*stage else { return None };
        rustix::io::fcntl_dupfd_cloexec(taken.get(number as usize)?, 3).ok()
    }

    /// The state was read, or is not.
    pub fn close(&self) {
        *self.stage() = Kept::Closed;
    }

    fn stage(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aviary_control::order_sockets;
    use std::fs::File;
    use std::io::{Read, Seek, Write};

    fn file(number: usize) -> File {
        let file = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let mut file = File::from(file);
        write!(file, "{number}").unwrap();
        file
    }

    fn content(descriptor: OwnedFd) -> String {
        let (mut file, mut text) = (File::from(descriptor), String::new());
        file.rewind().unwrap();
        file.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn descriptors_arrive_under_their_numbers() {
        let count = 3 * IN_A_MESSAGE + 1;
        let (old, new) = (Handed::default(), Handed::default());
        old.begin(Handing::InPlaceOfContents);
        assert!(!old.copies());
        for number in 0..count {
            assert_eq!(old.give(file(number).as_fd()), Some(number as u32));
        }
        let [from, socket] = order_sockets().unwrap();
        old.send(from.as_fd()).unwrap();
        assert!(old.give(file(0).as_fd()).is_none(), "the state is written");
        new.receive(socket.as_fd()).unwrap();
        for number in (0..count).rev() {
            assert_eq!(content(new.take(number as u32).unwrap()), number.to_string());
        }
        assert!(new.take(count as u32).is_none());
        new.close();
        assert!(new.take(0).is_none());
    }

    #[test]
    fn nothing_is_handed_over_with_a_state_that_is_kept() {
        let (old, new) = (Handed::default(), Handed::default());
        old.begin(Handing::Nothing);
        assert!(old.give(file(0).as_fd()).is_none() && old.copies());
        let [from, socket] = order_sockets().unwrap();
        old.send(from.as_fd()).unwrap();
        new.receive(socket.as_fd()).unwrap();
        assert!(new.take(0).is_none());
    }

    #[test]
    fn what_exceeds_the_bound_is_not_taken_on_either_side() {
        let old = Handed::default();
        let one = file(1);
        old.begin(Handing::BesideContents);
        assert!(old.copies());
        assert_eq!((0..MAX_HANDED).filter(|_| old.give(one.as_fd()).is_some()).count(), MAX_HANDED);
        assert!(old.give(one.as_fd()).is_none());
        if let Kept::Giving { given, .. } = &mut *old.stage() {
            given.push(one.into());
        }
        // A smaller limit of open files lets fewer be under way.
        let [from, socket] = order_sockets().unwrap();
        if old.send(from.as_fd()).is_ok() {
            assert!(Handed::default().receive(socket.as_fd()).is_err());
        }
    }

    #[test]
    fn foreign_descriptors_are_refused_and_empty_sockets_do_not_block() {
        assert!(Handed::default().receive(file(0).as_fd()).is_err());
        let [_open, silent] = order_sockets().unwrap();
        Handed::default().receive(silent.as_fd()).unwrap();
    }
}
