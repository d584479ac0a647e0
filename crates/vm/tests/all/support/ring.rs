//! A split queue, driven by hand, so that a test can write any garbage into it.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};
use vmm_sys_util::eventfd::EventFd;

pub const SIZE: u16 = 64;
const NEXT: u16 = 1;
const WRITE: u16 = 2;

#[derive(Debug, Clone, Copy)]
pub struct Buffer {
    pub address: u64,
    pub length: u32,
    pub writable: bool,
}

pub struct Ring {
    pub table: u64,
    pub available: u64,
    pub used: u64,
    pub kick: EventFd,
    pub call: EventFd,
    added: u16,
    seen: u16,
    free: Vec<u16>,
    chains: Vec<Vec<u16>>,
}

impl Ring {
    /// A queue in 0x2000 bytes of guest memory at `base`.
    pub fn new(base: u64) -> Self {
        let (table, available, used) = (base, base + 0x1000, base + 0x1800);
        let (kick, call) = (EventFd::new(libc_nonblock()).unwrap(), EventFd::new(libc_nonblock()).unwrap());
        let (free, chains) = ((0..SIZE).rev().collect(), vec![Vec::new(); usize::from(SIZE)]);
        Ring { table, available, used, kick, call, added: 0, seen: 0, free, chains }
    }

    /// Starts over, as a driver does after a reset of the device.
    pub fn reset(&mut self, memory: &GuestMemoryMmap) {
        (self.added, self.seen) = (0, 0);
        self.free = (0..SIZE).rev().collect();
        memory.write_slice(&[0; 0x1000], GuestAddress(self.available)).unwrap();
    }

    pub fn write_descriptor(
        &self,
        memory: &GuestMemoryMmap,
        index: u16,
        address: u64,
        length: u32,
        flags: u16,
        next: u16,
    ) {
        let at = GuestAddress(self.table + u64::from(index) * 16);
        memory.write_obj(address, at).unwrap();
        memory.write_obj(length, GuestAddress(at.0 + 8)).unwrap();
        memory.write_obj(flags, GuestAddress(at.0 + 12)).unwrap();
        memory.write_obj(next, GuestAddress(at.0 + 14)).unwrap();
    }

    /// Offers the chain that begins at a descriptor.
    pub fn offer(&mut self, memory: &GuestMemoryMmap, head: u16) {
        let at = self.available + 4 + u64::from(self.added % SIZE) * 2;
        memory.write_obj(head, GuestAddress(at)).unwrap();
        self.added = self.added.wrapping_add(1);
        memory.store(self.added, GuestAddress(self.available + 2), Ordering::Release).unwrap();
    }

    /// Offers a chain of buffers. `None`: the queue is full.
    pub fn add(&mut self, memory: &GuestMemoryMmap, buffers: &[Buffer]) -> Option<u16> {
        if self.free.len() < buffers.len() || buffers.is_empty() {
            return None;
        }
        let taken: Vec<u16> = buffers.iter().filter_map(|_| self.free.pop()).collect();
        for (place, buffer) in buffers.iter().enumerate() {
            let next = taken.get(place + 1);
            let flags = next.map_or(0, |_| NEXT) | if buffer.writable { WRITE } else { 0 };
            let next = next.copied().unwrap_or(0);
            self.write_descriptor(memory, taken[place], buffer.address, buffer.length, flags, next);
        }
        let head = taken[0];
        self.chains[usize::from(head)] = taken;
        self.offer(memory, head);
        Some(head)
    }

    pub fn kick(&self) {
        self.kick.write(1).unwrap();
    }

    /// The next chain that the device has returned, and the bytes that it wrote.
    pub fn take_used(&mut self, memory: &GuestMemoryMmap) -> Option<(u16, u32)> {
        let used: u16 = memory.load(GuestAddress(self.used + 2), Ordering::Acquire).unwrap();
        if used == self.seen {
            return None;
        }
        let at = self.used + 4 + u64::from(self.seen % SIZE) * 8;
        let (head, length): (u32, u32) =
            (memory.read_obj(GuestAddress(at)).unwrap(), memory.read_obj(GuestAddress(at + 4)).unwrap());
        self.seen = self.seen.wrapping_add(1);
        let head = head as u16;
        let chain = std::mem::take(&mut self.chains[usize::from(head)]);
        self.free.extend(chain);
        Some((head, length))
    }

    pub fn wait_used(&mut self, memory: &GuestMemoryMmap, at_most: Duration) -> Option<(u16, u32)> {
        let until = Instant::now() + at_most;
        loop {
            if let Some(found) = self.take_used(memory) {
                return Some(found);
            }
            if Instant::now() >= until {
                return None;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

fn libc_nonblock() -> i32 {
    rustix::event::EventfdFlags::NONBLOCK.bits() as i32
}
