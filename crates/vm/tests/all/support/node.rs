//! A stand-in for the node and every API server.

use std::io::{IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use aviary_wire::attach::PREFIX;
use aviary_wire::control::control_kind;
use aviary_wire::{Control, Hello, Origin, Welcome};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use super::driver::HANG_TIMEOUT;

pub const ARENA: u64 = 1 << 30;

pub fn hello() -> Vec<u8> {
    Hello { wire_version: 3, pid: 1, arena_size: ARENA, api: "test".into(), ..Hello::default() }.to_bytes()
}

pub fn welcome() -> Vec<u8> {
    Welcome { wire_version: 3, session: 9, text: "welcome".into(), ..Welcome::default() }.to_bytes()
}

pub struct FakeNode(UnixListener);

impl FakeNode {
    pub fn new(path: &Path) -> Self {
        FakeNode(UnixListener::bind(path).unwrap())
    }

    /// Accepts the next session that the device opens.
    pub fn accept(&self) -> Server {
        let (stream, _) = self.0.accept().unwrap();
        stream.set_read_timeout(Some(HANG_TIMEOUT)).unwrap();
        stream.set_write_timeout(Some(HANG_TIMEOUT)).unwrap();
        Server { stream }
    }

    pub fn listener(&self) -> &UnixListener {
        &self.0
    }
}

/// A message about memory as an API server receives it.
#[derive(Debug)]
pub struct Mapping {
    pub control: Control,
    pub extents: Vec<(u64, u64)>,
    pub file: OwnedFd,
}

pub struct Server {
    pub stream: UnixStream,
}

impl Server {
    pub fn origin(&self) -> Option<Origin> {
        Origin::from_name(self.stream.peer_addr().unwrap().as_abstract_name()?)
    }

    /// Receives bytes with their descriptors. `None`: the device hung up.
    pub fn try_receive(&mut self, bytes: &mut [u8]) -> Option<Vec<OwnedFd>> {
        let (mut done, mut files) = (0, Vec::new());
        while done < bytes.len() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let into = &mut [IoSliceMut::new(&mut bytes[done..])];
            let message = recvmsg(self.stream.as_fd(), into, &mut ancillary, RecvFlags::CMSG_CLOEXEC).ok()?;
            if message.bytes == 0 {
                return None;
            }
            done += message.bytes;
            for message in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(received) = message {
                    files.extend(received);
                }
            }
        }
        Some(files)
    }

    pub fn receive(&mut self, bytes: &mut [u8]) -> Vec<OwnedFd> {
        self.try_receive(bytes).expect("the device hung up")
    }

    pub fn try_greeting(&mut self) -> Option<()> {
        let mut prefix = [0; PREFIX];
        self.try_receive(&mut prefix)?;
        self.try_receive(&mut vec![0; Hello::length(&prefix).unwrap() - PREFIX]).map(drop)
    }

    pub fn try_control(&mut self) -> Option<(Control, Vec<OwnedFd>)> {
        let mut bytes = [0; Control::CONTROL_BYTES];
        let files = self.try_receive(&mut bytes)?;
        Some((Control::from_bytes(&bytes), files))
    }

    pub fn try_send(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    pub fn greeting(&mut self) -> Hello {
        let mut prefix = [0; PREFIX];
        let mut files = self.receive(&mut prefix);
        let mut body = vec![0; Hello::length(&prefix).unwrap() - PREFIX];
        files.extend(self.receive(&mut body));
        assert!(files.is_empty(), "a greeting with descriptors");
        Hello::from_body(&body).unwrap()
    }

    pub fn control(&mut self) -> (Control, Vec<OwnedFd>) {
        let mut bytes = [0; Control::CONTROL_BYTES];
        let files = self.receive(&mut bytes);
        (Control::from_bytes(&bytes), files)
    }

    pub fn mapping(&mut self) -> Mapping {
        let (control, mut files) = self.control();
        assert_eq!((control.kind, files.len()), (control_kind::MEMORY_MAP, 1));
        let mut bytes = vec![0; control.lane as usize * 16];
        self.receive(&mut bytes);
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
        let extents = bytes.chunks(16).map(|pair| (word(&pair[..8]), word(&pair[8..]))).collect();
        Mapping { control, extents, file: files.remove(0) }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    pub fn tell(&mut self, control: Control) {
        self.send(&control.to_bytes());
    }

    pub fn done(&mut self, offset: u64, errno: u32) {
        self.tell(Control { kind: control_kind::MEMORY_DONE, lane: errno, offset, ..Control::default() });
    }

    pub fn wake(&mut self, offset: u64) {
        self.tell(Control { kind: control_kind::WAKE, offset, ..Control::default() });
    }

    /// True if the device has ended its stream.
    pub fn is_told_the_end(&mut self) -> bool {
        let mut rest = Vec::new();
        self.stream.read_to_end(&mut rest).is_ok()
    }
}
