//! Interrupts of a client as descriptors that become readable.
//!
//! The card makes both ends and keeps the one that it writes. An eventfd would not do: a client that fills its counter makes the
//! next write wait, and it can take the flag that forbids waiting away, since the flags belong to the open file that both have. A
//! send on a socket says for itself that it does not wait.

use std::io::IoSlice;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendFlags, Shutdown, SocketFlags, SocketType, sendmsg, shutdown, socketpair,
    sockopt,
};

/// Vectors of an accelerator.
pub const VECTORS: usize = 4;
/// The message: a count, as an eventfd gives it.
const ONE: [u8; 8] = 1_u64.to_ne_bytes();
/// Bytes of messages that a client leaves unread, before the kernel raises it to its least, a few kilobytes. Interrupts beyond
/// that tell nothing that the unread ones do not.
const UNREAD_BYTES: usize = 1;

/// The ends that the card keeps.
#[derive(Debug, Default)]
pub struct Events {
    ends: [Option<OwnedFd>; VECTORS],
}

impl Events {
    /// The client's end for a vector. An earlier one is told no more.
    ///
    /// # Errors
    /// INVAL: no such vector; otherwise as the kernel says.
    pub fn open(&mut self, vector: u32) -> Result<OwnedFd, Errno> {
        let place = usize::try_from(vector).ok().and_then(|vector| self.ends.get_mut(vector));
        let place = place.ok_or(Errno::INVAL)?;
        let (own, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        // The client cannot send: bytes and descriptors in a queue that is never read would stay there.
        shutdown(&own, Shutdown::Read)?;
        sockopt::set_socket_send_buffer_size(&own, UNREAD_BYTES)?;
        *place = Some(own);
        Ok(theirs)
    }

    /// Makes the ends of these vectors, a bit each, readable. Never waits, whatever the client does with its ends.
    pub fn tell(&mut self, raised: u8) {
        for (vector, place) in self.ends.iter_mut().enumerate() {
            let Some(end) = place.as_ref().filter(|_| raised >> vector & 1 == 1) else { continue };
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let sent = sendmsg(end, &[IoSlice::new(&ONE)], &mut SendAncillaryBuffer::default(), flags);
            if sent == Err(Errno::PIPE) || sent == Err(Errno::CONNRESET) {
                *place = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::{ioctl_fionbio, read};

    #[test]
    fn vectors_that_were_raised_are_read_as_counts() {
        let mut events = Events::default();
        let ends: Vec<OwnedFd> = (0..4).map(|vector| events.open(vector).unwrap()).collect();
        events.tell(0b1010);
        for (vector, end) in ends.iter().enumerate() {
            ioctl_fionbio(end, true).unwrap();
            let mut bytes = [0; 16];
            let came = read(end, &mut bytes);
            let expected = if [1, 3].contains(&vector) { Ok(8) } else { Err(Errno::AGAIN) };
            assert_eq!(came, expected, "{vector}");
            assert_eq!(bytes[..8] == ONE, came.is_ok());
        }
        assert_eq!(events.open(4).unwrap_err(), Errno::INVAL);
    }

    #[test]
    fn client_that_never_reads_makes_the_card_wait_for_nothing() {
        let mut events = Events::default();
        let end = events.open(0).unwrap();
        // The flags of the client's end are its own.
        ioctl_fionbio(&end, false).unwrap();
        (0..10_000).for_each(|_| events.tell(1));
        ioctl_fionbio(&end, true).unwrap();
        let unread = (0..10_000).take_while(|_| read(&end, &mut [0; 8]) == Ok(8)).count();
        assert!((1..100).contains(&unread), "{unread}");
        events.tell(1);
        assert_eq!(read(&end, &mut [0; 8]), Ok(8));
    }

    #[test]
    fn client_cannot_send_and_may_hang_up() {
        let mut events = Events::default();
        let end = events.open(0).unwrap();
        let sent = sendmsg(&end, &[IoSlice::new(&ONE)], &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL);
        assert_eq!(sent, Err(Errno::PIPE));
        drop(end);
        (0..3).for_each(|_| events.tell(1));
        assert!(events.ends[0].is_none());
        // An end that was replaced is at its end.
        let first = events.open(2).unwrap();
        let _second = events.open(2).unwrap();
        assert_eq!(read(&first, &mut [0; 8]), Ok(0));
    }
}
