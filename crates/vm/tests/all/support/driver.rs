//! The guest's driver together with the VMM below it.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use vhost::vhost_user::message::{VhostUserHeaderFlag, VhostUserProtocolFeatures, VhostUserVirtioFeatures};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryMmap, GuestRegionMmap, MmapRegion};

use super::ring::{Buffer, Ring, SIZE};

/// Upper bound of a wait in a test: a longer one is a hang. Says nothing about speed.
pub const HANG_TIMEOUT: Duration = Duration::from_secs(20);
/// Two adjacent regions and a separate one, each with a file of its own.
pub const REGIONS: [(u64, u64); 3] = [(0, 1 << 20), (1 << 20, 1 << 20), (1 << 30, 1 << 20)];
/// Offset in bytes of the third region in its file.
pub const SHIFT: u64 = 0x8000;
/// Start time of every process that opens a session, in the driver's unit.
pub const STARTED: u64 = 5;

/// Address at which the VMM claims to have mapped the memory.
const VMM: u64 = 0x7f00_0000_0000;
const VERSION_1: u64 = 1 << 32;

const REQUESTS: u64 = 0x2_0000;
const REQUEST: u64 = 0x4800;
const EVENTS: u64 = 0x15_0000;
const EVENT: u64 = 0x400;
const BELLS: u64 = 0x1_8000;

pub mod kind {
    pub const IDENTIFY: u32 = 1;
    pub const OPEN: u32 = 2;
    pub const CLOSE: u32 = 3;
    pub const SEND: u32 = 4;
    pub const MAP: u32 = 5;
    pub const UNMAP: u32 = 6;
    pub const PING: u32 = 7;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub kind: u32,
    pub session: u32,
    pub value: u64,
    pub bytes: Vec<u8>,
}

pub struct Driver {
    frontend: Option<Frontend>,
    vmm: UnixStream,
    pub memory: GuestMemoryMmap,
    pub files: Vec<File>,
    pub control: Ring,
    pub events: Ring,
    pub bells: Ring,
    /// Address of each offered chain's buffer.
    offered: HashMap<u16, u64>,
    /// Buffers offered so far.
    buffers: u64,
    requests: HashMap<u16, u64>,
    places: VecDeque<u64>,
    answers: HashMap<u16, (u32, u32, u64, Vec<u8>)>,
}

pub fn memfd(size: u64, seals: SealFlags) -> File {
    let file = memfd_create("guest", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&file, size).unwrap();
    fcntl_add_seals(&file, seals).unwrap();
    file.into()
}

/// The fixed part of a request, 40 bytes.
pub fn header(kind: u32, session: u32, flags: u32, count: u32, words: [u64; 3]) -> Vec<u8> {
    let mut bytes: Vec<u8> = [kind, session, flags, count].iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    bytes
}

pub fn map_request(session: u32, offset: u64, flags: u32, extents: &[(u64, u64)]) -> Vec<u8> {
    let length = extents.iter().map(|(_, length)| length).sum();
    let mut bytes = header(kind::MAP, session, flags, extents.len() as u32, [offset, length, 0]);
    bytes.extend(extents.iter().flat_map(|(address, length)| [address.to_le_bytes(), length.to_le_bytes()].concat()));
    bytes
}

impl Driver {
    pub fn connect(vmm: &Path) -> Self {
        let vmm = UnixStream::connect(vmm).unwrap();
        let frontend = Frontend::from_stream(vmm.try_clone().unwrap(), 3);
        let files: Vec<File> =
            REGIONS.iter().map(|(_, size)| memfd(size + SHIFT, SealFlags::SHRINK | SealFlags::GROW)).collect();
        let memory = mapped(&files);
        let [control, events, bells] = [0x1000, 0x3000, 0x5000].map(Ring::new);
        let places = (0..40).map(|n| REQUESTS + n * REQUEST).collect();
        let (offered, requests, answers) = (HashMap::new(), HashMap::new(), HashMap::new());
        Driver {
            frontend: Some(frontend),
            vmm,
            memory,
            files,
            control,
            events,
            bells,
            offered,
            buffers: 0,
            requests,
            places,
            answers,
        }
    }

    fn frontend(&mut self) -> &mut Frontend {
        self.frontend.as_mut().expect("a VMM")
    }

    /// The messages of a VMM before it starts the queues. It announces no resets.
    pub fn negotiate(&mut self) {
        let frontend = self.frontend();
        frontend.set_owner().unwrap();
        let features = frontend.get_features().unwrap();
        let wanted = VERSION_1 | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();
        assert_eq!(features & wanted, wanted);
        let protocol = frontend.get_protocol_features().unwrap();
        assert!(!protocol.contains(VhostUserProtocolFeatures::LOG_SHMFD), "the VM could be migrated");
        let known = VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::RESET_DEVICE;
        frontend.set_protocol_features(known & protocol).unwrap();
        frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        frontend.set_features(wanted).unwrap();
    }

    /// Shares the memory. False: the device refuses it.
    pub fn share_memory(&mut self) -> bool {
        let regions: Vec<VhostUserMemoryRegionInfo> = REGIONS
            .iter()
            .zip(&self.files)
            .map(|((start, size), file)| VhostUserMemoryRegionInfo {
                guest_phys_addr: *start,
                memory_size: *size,
                userspace_addr: VMM + start,
                mmap_offset: shift(*start),
                mmap_handle: file.as_raw_fd(),
            })
            .collect();
        self.frontend().set_mem_table(&regions).is_ok()
    }

    pub fn start_queues(&mut self) {
        self.start_queues_at([0; 3]);
    }

    /// `bases`: the place of each queue's next chain.
    pub fn start_queues_at(&mut self, bases: [u16; 3]) {
        let frontend = self.frontend.as_mut().expect("a VMM");
        for (number, ring) in [&self.control, &self.events, &self.bells].into_iter().enumerate() {
            frontend.set_vring_num(number, SIZE).unwrap();
            let config = VringConfigData {
                queue_max_size: SIZE,
                queue_size: SIZE,
                flags: 0,
                desc_table_addr: VMM + ring.table,
                used_ring_addr: VMM + ring.used,
                avail_ring_addr: VMM + ring.available,
                log_addr: None,
            };
            frontend.set_vring_addr(number, &config).unwrap();
            frontend.set_vring_base(number, bases[number]).unwrap();
            frontend.set_vring_call(number, &ring.call).unwrap();
            frontend.set_vring_kick(number, &ring.kick).unwrap();
            frontend.set_vring_enable(number, true).unwrap();
        }
    }

    pub fn start(&mut self) {
        self.negotiate();
        assert!(self.share_memory(), "the device refused the memory");
        self.start_queues();
    }

    /// The message of a VMM that tells resets from pauses. Answered when the device has carried it out.
    pub fn announce_reset(&mut self) {
        self.frontend().reset_device().unwrap();
        let wanted = VERSION_1 | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();
        self.frontend().set_features(wanted).unwrap();
    }

    /// Stops the queues as for a pause of the VM. The places of their next chains.
    pub fn pause_queues(&mut self) -> [u16; 3] {
        let frontend = self.frontend();
        for number in 0..3 {
            frontend.set_vring_enable(number, false).unwrap();
        }
        [0, 1, 2].map(|number| frontend.get_vring_base(number).unwrap() as u16)
    }

    /// Stops the queues, as a VMM does when the guest resets the device.
    pub fn stop_queues(&mut self) {
        self.pause_queues();
        self.forget_queues();
    }

    /// The driver begins anew with empty queues.
    pub fn forget_queues(&mut self) {
        let Driver { control, events, bells, memory, .. } = self;
        [control, events, bells].into_iter().for_each(|ring| ring.reset(memory));
        self.places = (0..40).map(|n| REQUESTS + n * REQUEST).collect();
        self.requests.clear();
        self.offered.clear();
    }

    pub fn hang_up(&mut self) {
        self.frontend = None;
        let _ = self.vmm.shutdown(std::net::Shutdown::Both);
    }

    // Requests.

    /// Queues a request; `answer` waits for its answer.
    pub fn submit(&mut self, bytes: &[u8]) -> u16 {
        self.submit_with_room(bytes, 64).expect("room in the queue")
    }

    pub fn submit_with_room(&mut self, bytes: &[u8], room: u32) -> Option<u16> {
        let place = self.places.pop_front()?;
        self.memory.write_slice(bytes, GuestAddress(place)).unwrap();
        let (first, second) = bytes.split_at(bytes.len().min(40));
        let readable = [(place, first.len()), (place + first.len() as u64, second.len())];
        let mut buffers: Vec<Buffer> = readable
            .iter()
            .filter(|(_, length)| *length > 0)
            .map(|(address, length)| Buffer { address: *address, length: *length as u32, writable: false })
            .collect();
        buffers.push(Buffer { address: place + REQUEST - 0x100, length: room, writable: true });
        let Some(head) = self.control.add(&self.memory, &buffers) else {
            self.places.push_front(place);
            return None;
        };
        self.requests.insert(head, place);
        self.control.kick();
        Some(head)
    }

    /// Collects the answers so far.
    pub fn collect(&mut self) {
        while let Some((head, written)) = self.control.take_used(&self.memory) {
            self.note(head, written);
        }
    }

    fn note(&mut self, head: u16, written: u32) {
        let Some(place) = self.requests.remove(&head) else { return };
        self.places.push_back(place);
        let mut bytes = vec![0; 64];
        self.memory.read_slice(&mut bytes, GuestAddress(place + REQUEST - 0x100)).unwrap();
        let status = u32::from_le_bytes(bytes[..4].try_into().unwrap());
        let value = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
        self.answers.insert(head, (written, status, value, bytes[16..48].to_vec()));
    }

    pub fn answered(&mut self, head: u16) -> bool {
        self.collect();
        self.answers.contains_key(&head)
    }

    /// Drops an answer. True: it had arrived.
    pub fn forget(&mut self, head: u16) -> bool {
        self.answers.remove(&head).is_some()
    }

    /// An answer: bytes written, status, value, the rest.
    pub fn raw_answer(&mut self, head: u16) -> (u32, u32, u64, Vec<u8>) {
        while !self.answers.contains_key(&head) {
            let (head, written) = self.control.wait_used(&self.memory, HANG_TIMEOUT).expect("an answer in time");
            self.note(head, written);
        }
        self.answers.remove(&head).unwrap()
    }

    pub fn answer(&mut self, head: u16) -> Result<u64, u32> {
        let (written, status, value, _) = self.raw_answer(head);
        assert!(written >= 16, "an answer of {written} bytes");
        if status == 0 { Ok(value) } else { Err(status) }
    }

    pub fn request(&mut self, bytes: &[u8]) -> Result<u64, u32> {
        let head = self.submit(bytes);
        self.answer(head)
    }

    pub fn simple(&mut self, kind: u32, session: u32, words: [u64; 3]) -> Result<u64, u32> {
        self.request(&header(kind, session, 0, 0, words))
    }

    /// Opens a session of a process that started at `STARTED`.
    pub fn open(&mut self, session: u32, pid: u64, program: &str) -> Result<u64, u32> {
        let mut bytes = header(kind::OPEN, session, 0, program.len() as u32, [STARTED, 0, pid]);
        bytes.extend(program.as_bytes());
        self.request(&bytes)
    }

    pub fn send(&mut self, session: u32, sent: &[u8]) -> Result<u64, u32> {
        let mut bytes = header(kind::SEND, session, 0, sent.len() as u32, [0; 3]);
        bytes.extend(sent);
        self.request(&bytes)
    }

    // Events and doorbells.

    pub fn offer_events(&mut self, count: usize, length: u32) {
        for _ in 0..count {
            // The device takes buffers in order.
            let place = EVENTS + self.buffers % u64::from(SIZE) * EVENT;
            self.buffers += 1;
            let buffer = Buffer { address: place, length, writable: true };
            let head = self.events.add(&self.memory, &[buffer]).expect("room for events");
            self.offered.insert(head, place);
        }
        self.events.kick();
    }

    pub fn events_offered(&self) -> usize {
        self.offered.len()
    }

    /// Takes an event. Its buffer is not offered again.
    pub fn event(&mut self) -> Option<Event> {
        self.event_within(HANG_TIMEOUT)
    }

    pub fn event_within(&mut self, at_most: Duration) -> Option<Event> {
        let (head, written) = self.events.wait_used(&self.memory, at_most)?;
        let place = self.offered.remove(&head).expect("a buffer that was offered");
        let mut bytes = vec![0; written as usize];
        self.memory.read_slice(&mut bytes, GuestAddress(place)).unwrap();
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let value = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
        assert_eq!(word(16) as usize, bytes.len() - 24);
        Some(Event { kind: word(0), session: word(4), value, bytes: bytes[24..].to_vec() })
    }

    pub fn ring_bell(&mut self, session: u32, offset: u64) {
        let mut bytes = u64::from(session).to_le_bytes().to_vec();
        bytes.extend(offset.to_le_bytes());
        self.memory.write_slice(&bytes, GuestAddress(BELLS)).unwrap();
        let buffer = Buffer { address: BELLS, length: 16, writable: false };
        self.bells.add(&self.memory, &[buffer]).expect("room for a doorbell");
        self.bells.kick();
        self.bells.wait_used(&self.memory, HANG_TIMEOUT).expect("the doorbell is given back");
    }

    /// Number of the VM's file that a descriptor refers to.
    pub fn file_number(&self, descriptor: impl AsFd) -> Option<usize> {
        let identity = |file: &dyn Fn() -> rustix::fs::Stat| file().st_ino;
        let wanted = identity(&|| rustix::fs::fstat(&descriptor).unwrap());
        self.files.iter().position(|file| identity(&|| rustix::fs::fstat(file).unwrap()) == wanted)
    }
}

fn shift(start: u64) -> u64 {
    if start == REGIONS[2].0 { SHIFT } else { 0 }
}

fn mapped(files: &[File]) -> GuestMemoryMmap {
    let regions = REGIONS.iter().zip(files).map(|((start, size), file)| {
        let offset = FileOffset::new(file.try_clone().unwrap(), shift(*start));
        GuestRegionMmap::new(MmapRegion::from_file(offset, *size as usize).unwrap(), GuestAddress(*start)).unwrap()
    });
    GuestMemoryMmap::from_regions(regions.collect()).unwrap()
}
