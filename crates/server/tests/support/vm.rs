//! A guest in a VM, as the API server sees it: the arena is memory of another file, in pieces, and a sleeper is
//! woken by messages. A pair of threads stands for the device between the two.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use aviary_transport::{Arena, ControlSocket, Extent};
use aviary_wire::Control;
use aviary_wire::control::{WRITABLE, control_kind};
use rustix::fs::{MemfdFlags, SealFlags};

use super::ARENA;

/// The VM's memory comes in pieces of so many bytes, the last one first.
const PIECE: u64 = 4 << 20;

/// The VM's memory, and the guest's view of it.
pub struct Vm {
    memory: OwnedFd,
    pub arena: Arc<Arena>,
}

fn pieces() -> Vec<Extent> {
    let last = ARENA as u64 / PIECE;
    (1..=last).map(|n| Extent { at: ARENA as u64 - n * PIECE, length: PIECE }).collect()
}

impl Vm {
    /// `socket`: the guest's end of its control stream.
    pub fn new(socket: &OwnedFd) -> Vm {
        let memory = rustix::fs::memfd_create("vm", MemfdFlags::ALLOW_SEALING).expect("memory");
        rustix::fs::ftruncate(&memory, ARENA as u64).expect("memory");
        rustix::fs::fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW).expect("seals");
        let arena = Arena::window(0, ARENA as u64, rustix::io::dup(socket).expect("a socket")).expect("an arena");
        arena.map_extents(0, &pieces(), memory.as_fd(), true).expect("mapped");
        Vm { memory, arena }
    }

    /// Passes messages on between guest and server, but for those that the driver or the device is meant to get.
    pub fn start_device(&self, guest: OwnedFd, server: OwnedFd) {
        let (guest, server) = (Arc::new(ControlSocket::new(guest)), Arc::new(ControlSocket::new(server)));
        let map = Control {
            kind: control_kind::MEMORY_MAP,
            lane: pieces().len() as u32,
            length: ARENA as u64,
            flags: WRITABLE,
            ..Control::default()
        };
        server.send(map, Some(self.memory.as_fd())).expect("map");
        let list: Vec<u8> =
            pieces().iter().flat_map(|e| [e.at.to_le_bytes(), e.length.to_le_bytes()].concat()).collect();
        rustix::io::write(server.as_fd(), &list).expect("map");
        let (from, to) = (guest.clone(), server.clone());
        std::thread::spawn(move || {
            while let Ok(Some((message, _))) = from.receive() {
                if to.send(message, None).is_err() {
                    break;
                }
            }
            to.hang_up();
        });
        let arena = self.arena.clone();
        std::thread::spawn(move || {
            while let Ok(Some((message, _))) = server.receive() {
                match message.kind {
                    control_kind::WAKE => {
                        let word = arena.word(message.offset).expect("in the arena");
                        arena.doorbell().expect("a window has one").wake_own(word);
                    }
                    control_kind::MEMORY_DONE => assert_eq!(message.lane, 0, "the memory is mapped"),
                    _ => drop(guest.send(message, None)),
                }
            }
            guest.hang_up();
        });
    }
}
