//! A device of a virtual machine, driven by a VMM that is written here: an honest one, and one that sends anything.

use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::JoinHandle;

use super::common;
use super::link::{Card, INFO, ask, card, connected, start_endless_walk};
use aviary_fpga::device::{
    CardSocket, DeviceFarewell, FpgaDevice, Keeper, PciIds, StartedWorker, Worker, end_connection,
};
use aviary_fpga::link::Limits;
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{
    RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

const LL: &str = "6c6c0001-4a5e-4f0a-9d1b-2f4f0c110002";
const MIB: u64 = 1 << 20;
const VERSION: u16 = 1;
const DMA_MAP: u16 = 2;
const DMA_UNMAP: u16 = 3;
const DEVICE_INFO: u16 = 4;
const REGION_INFO: u16 = 5;
const IRQ_INFO: u16 = 7;
const SET_IRQS: u16 = 8;
const REGION_READ: u16 = 9;
const REGION_WRITE: u16 = 10;
const RESET: u16 = 13;
const BAR: u32 = 0;
const CONTROL: u32 = 2;
const CONFIG: u32 = 7;
/// Registers of BAR2.
const MAGIC: u64 = 0x00;
const BASE: u64 = 0x30;
const STATE_ADDRESS: u64 = 0x38;
const ERROR: u64 = 0x48;
const STATUS: u64 = 0x50;
const MAPPED_BYTES: u64 = 0x70;
const BAD_ACCESSES: u64 = 0x80;
const REFUSED_MAPS: u64 = 0xa8;
const OUTSIDE_MAPS: u64 = 0xc0;
const LOST_UNMAPS: u64 = 0xe8;

/// A device that a thread serves, and the VMM's end of its connection.
struct Vmm {
    socket: UnixStream,
    device: JoinHandle<DeviceFarewell>,
}

fn body(halves: &[u32], words: &[u64]) -> Vec<u8> {
    let mut body: Vec<u8> = halves.iter().flat_map(|half| half.to_ne_bytes()).collect();
    words.iter().for_each(|word| body.extend(word.to_ne_bytes()));
    body
}

fn message(command: u16, flags: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = [7_u16, command].map(u16::to_ne_bytes).concat();
    [16 + body.len() as u32, flags, 0].iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
    bytes.extend(body);
    bytes
}

fn send(
    socket: &UnixStream,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> rustix::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, flags | SendFlags::NOSIGNAL)
}

/// Where a worker dies.
#[derive(Debug, Clone, Copy)]
enum Death {
    /// It has the message and has done nothing.
    Before,
    /// It has done everything, and has not answered.
    After,
}

struct WorkerThread(Option<JoinHandle<()>>);

impl WorkerThread {
    fn start(socket: OwnedFd, death: Option<(usize, Death)>) -> WorkerThread {
        let serve = move || {
            let Ok(mut worker) = Worker::start(socket) else { return };
            let Some((messages, death)) = death else { return worker.serve(&|_| {}).unwrap() };
            for number in 0.. {
                let packet = loop {
                    match worker.hear() {
                        Ok(Some(packet)) => break packet,
                        Ok(None) => std::thread::yield_now(),
                        Err(_) => return,
                    }
                };
                if number == messages && matches!(death, Death::Before) {
                    return;
                }
                let reply = worker.execute(packet);
                if number == messages || worker.answer(&reply).is_err() {
                    return;
                }
            }
        };
        WorkerThread(Some(std::thread::spawn(serve)))
    }
}

impl StartedWorker for WorkerThread {
    fn end(&mut self) -> String {
        if let Some(thread) = self.0.take() {
            thread.join().unwrap();
        }
        "a thread".to_owned()
    }
}

impl Vmm {
    fn start(card: &Path) -> Vmm {
        Vmm::start_with(card, Vec::new())
    }

    /// `deaths`: of the first workers, one after the other, in this many messages.
    fn start_with(card: &Path, deaths: Vec<(usize, Death)>) -> Vmm {
        let (socket, own) = UnixStream::pair().unwrap();
        let link = CardSocket::connect(card).unwrap();
        let device = FpgaDevice::new(link, LL, PciIds::default()).unwrap();
        let mut deaths = deaths.into_iter();
        let start = move |socket| Ok(WorkerThread::start(socket, deaths.next()));
        let device = std::thread::spawn(move || Keeper::new(device, &own).serve(&[], start, &|_| {}));
        Vmm { socket, device }
    }

    fn connected(card: &Path) -> Vmm {
        let vmm = Vmm::start(card);
        let mut version = body(&[1 << 16], &[]);
        version.extend(b"{}\0");
        vmm.ask(VERSION, &version, &[]).unwrap();
        vmm
    }

    /// The body of the reply, or its errno.
    fn ask(&self, command: u16, body: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<Vec<u8>, u32> {
        send(&self.socket, &message(command, 0, body), descriptors, SendFlags::empty()).unwrap();
        let mut header = [0; 16];
        (&self.socket).read_exact(&mut header).unwrap();
        let field = |at: usize| u32::from_ne_bytes(header[at..at + 4].try_into().unwrap());
        assert_eq!((field(0), field(8) & 1), (7 | u32::from(command) << 16, 1));
        let mut reply = vec![0; field(4) as usize - 16];
        (&self.socket).read_exact(&mut reply).unwrap();
        if field(8) & 0x20 == 0 { Ok(reply) } else { Err(field(12)) }
    }

    fn read(&self, region: u32, offset: u64, bytes: usize) -> Vec<u8> {
        let mut wish = offset.to_ne_bytes().to_vec();
        wish.extend(body(&[region, bytes as u32], &[]));
        let reply = self.ask(REGION_READ, &wish, &[]).unwrap();
        assert_eq!(reply[..16], wish);
        reply[16..].to_vec()
    }

    fn word(&self, region: u32, offset: u64) -> u64 {
        u64::from_ne_bytes(self.read(region, offset, 8).try_into().unwrap())
    }

    fn write(&self, region: u32, offset: u64, data: &[u8]) {
        let mut wish = offset.to_ne_bytes().to_vec();
        wish.extend(body(&[region, data.len() as u32], &[]));
        wish.extend(data);
        self.ask(REGION_WRITE, &wish, &[]).unwrap();
    }

    fn put(&self, region: u32, offset: u64, value: u64) {
        self.write(region, offset, &value.to_ne_bytes());
    }

    fn map(&self, address: u64, size: u64, offset: u64, file: Option<&std::fs::File>) {
        let wish = body(&[32, 3], &[offset, address, size]);
        let file: Vec<_> = file.iter().map(|file| file.as_fd()).collect();
        assert_eq!(self.ask(DMA_MAP, &wish, &file), Ok(Vec::new()));
    }

    fn unmap(&self, address: u64, size: u64) {
        let wish = body(&[24, 0], &[address, size]);
        assert_eq!(self.ask(DMA_UNMAP, &wish, &[]), Ok(wish));
    }

    /// BASE, memory of 8 MB behind the first 4 MB of a file as a machine's memory is, and STATE_ADDRESS.
    fn set_up(&self) -> common::Client {
        let memory = common::Client::new(8 * MIB);
        self.put(CONTROL, BASE, common::GUEST);
        self.map(common::GUEST, 4 * MIB, 0, Some(&memory.file));
        self.put(CONTROL, STATE_ADDRESS, common::GUEST + 4 * MIB - 64);
        assert_eq!(self.word(CONTROL, ERROR), 0);
        memory
    }

    fn walk(&self, memory: &common::Client) {
        let (head, sum) = memory.list(300, MIB);
        self.put(BAR, common::LL_HEAD.into(), head);
        self.put(BAR, 0x18, 1);
        while self.word(CONTROL, STATUS) != 3 {
            std::thread::yield_now();
        }
        assert_eq!(self.word(BAR, common::LL_SUM.into()), sum);
    }

    fn end(self) -> DeviceFarewell {
        drop(self.socket);
        self.device.join().unwrap()
    }
}

#[test]
fn vmm_finds_a_pci_function_whose_job_is_right() {
    let Some(card) = card("pair", Limits::default()) else { return };
    let vmm = Vmm::start(&card.path);
    assert_eq!(vmm.ask(DEVICE_INFO, &body(&[16, 0, 0, 0], &[]), &[]), Err(22));
    let mut version = body(&[1 << 16], &[]);
    version.extend(b"{}");
    let told = vmm.ask(VERSION, &version, &[]).unwrap();
    assert!(told.ends_with(b"}\0") && told.starts_with(&[0, 0, 1, 0]), "{}", String::from_utf8_lossy(&told));
    assert_eq!(vmm.ask(VERSION, &version, &[]), Err(22));
    assert_eq!(vmm.ask(DEVICE_INFO, &body(&[16, 0, 0, 0], &[]), &[]), Ok(body(&[16, 3, 9, 3], &[])));
    assert_eq!(vmm.ask(REGION_INFO, &body(&[32, 0, 4, 0], &[0, 0]), &[]), Ok(body(&[32, 3, 4, 0], &[0x1000, 0])));
    assert_eq!(vmm.ask(IRQ_INFO, &body(&[16, 0, 2, 0], &[]), &[]), Ok(body(&[16, 1, 2, 4], &[])));
    assert_eq!(vmm.ask(99, &[], &[]), Err(95));
    assert_eq!(vmm.read(CONFIG, 0, 4), [0x86, 0x80, 0x5e, 0x0a]);
    assert_eq!(vmm.word(CONTROL, MAGIC), u64::from_ne_bytes(*b"AVIARYFP"));
    let memory = vmm.set_up();
    vmm.walk(&memory);
    assert_eq!(card_ends_with(vmm, card), (0, 0));
}

fn card_ends_with(vmm: Vmm, card: Card) -> (usize, usize) {
    assert!(matches!(vmm.end(), DeviceFarewell::HungUp));
    card.end()
}

#[test]
fn end_of_a_job_arrives_as_an_interrupt() {
    let Some(card) = card("pair", Limits::default()) else { return };
    let vmm = Vmm::connected(&card.path);
    let memory = vmm.set_up();
    let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    // As QEMU does it: first a vector without a descriptor, then with one.
    let set = |flags: u32, count: u32, events: &[BorrowedFd<'_>]| {
        vmm.ask(SET_IRQS, &body(&[20, flags, 2, 0, count], &[]), events)
    };
    assert_eq!(set(0x24, 1, &[]), Ok(Vec::new()));
    assert_eq!(set(0x24, 1, &[event.as_fd()]), Ok(Vec::new()));
    vmm.walk(&memory);
    let mut count = [0; 8];
    assert_eq!(rustix::io::read(&event, &mut count), Ok(8));
    // A counter that is full, and files that are none, make nobody wait.
    rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    assert_eq!(set(0x21, 1, &[]), Ok(Vec::new()));
    assert_eq!(set(0x24, 1, &[memory.file.as_fd()]), Err(22));
    assert_eq!(set(0x24, 5, &[]), Err(22));
    assert_eq!(set(0x21, 0, &[]), Ok(Vec::new()));
    vmm.walk(&memory);
    assert_eq!(card_ends_with(vmm, card), (0, 0));
}

#[test]
fn memory_outside_of_the_region_never_reaches_the_card() {
    let Some(card) = card("pair", Limits { mapped_bytes: 12 * MIB, ..Limits::default() }) else { return };
    let vmm = Vmm::connected(&card.path);
    let ram = common::Client::new(64 * MIB);
    // All RAM, before the guest's IOMMU is on; a ROM.
    vmm.map(0, 64 * MIB, 0, Some(&ram.file));
    vmm.map(0xfffc_0000, 0x4_0000, 0, None);
    let memory = vmm.set_up();
    vmm.map(common::GUEST - 4 * MIB, 4 * MIB, 0, Some(&ram.file));
    vmm.map(common::GUEST + (64 << 30), 4 * MIB, 0, Some(&ram.file));
    assert_eq!((vmm.word(CONTROL, OUTSIDE_MAPS), vmm.word(CONTROL, REFUSED_MAPS)), (4, 0));
    // Within: more than the quota, without a file, over the region's border, mapped already.
    let at = common::GUEST + 16 * MIB;
    vmm.map(at, 16 * MIB, 0, Some(&ram.file));
    assert_eq!([0xa8, 0xb0, 0xb8].map(|register| vmm.word(CONTROL, register)), [1, at, 12]);
    vmm.map(at, MIB, 0, None);
    vmm.map(common::GUEST - MIB, 2 * MIB, 0, Some(&ram.file));
    vmm.map(common::GUEST, MIB, 0, Some(&ram.file));
    assert_eq!([0xa8, 0xb0, 0xb8].map(|register| vmm.word(CONTROL, register)), [4, at, 12]);
    vmm.walk(&memory);
    assert_eq!(vmm.word(CONTROL, MAPPED_BYTES), 4 * MIB);
    // Unmaps of all addresses, as QEMU cuts them.
    vmm.unmap(0xfef0_0000, 0xffff_ffff_0110_0000);
    assert_eq!(vmm.word(CONTROL, MAPPED_BYTES), 0);
    assert_eq!(card_ends_with(vmm, card), (0, 0));
}

#[test]
fn registers_come_as_halves_and_bad_accesses_do_nothing() {
    let Some(card) = card("pair", Limits::default()) else { return };
    let vmm = Vmm::connected(&card.path);
    let half = |offset: u64, value: u64| vmm.write(CONTROL, offset, &(value as u32).to_ne_bytes());
    half(BASE + 4, common::GUEST >> 32);
    assert_eq!(vmm.word(CONTROL, BASE), 0);
    half(BASE, common::GUEST);
    assert_eq!(vmm.word(CONTROL, BASE), common::GUEST);
    assert_eq!(vmm.read(CONTROL, BASE + 4, 4), ((common::GUEST >> 32) as u32).to_ne_bytes());
    for (offset, bytes) in [(BASE, 1), (BASE, 2), (BASE, 16), (BASE + 4, 8), (0x1000, 8), (u64::MAX - 3, 4), (0, 4096)]
    {
        for region in [BAR, CONTROL] {
            assert_eq!(vmm.read(region, offset, bytes), vec![0; bytes], "{offset:#x} {bytes}");
            vmm.write(region, offset, &vec![0xff; bytes]);
        }
    }
    assert_eq!((vmm.word(CONTROL, BASE), vmm.word(CONTROL, BAD_ACCESSES)), (common::GUEST, 28));
    // A BASE that the card refuses changes nothing.
    vmm.put(CONTROL, BASE, common::GUEST + 4096);
    assert_eq!((vmm.word(CONTROL, BASE), vmm.word(CONTROL, ERROR)), (common::GUEST, 22));
    assert_eq!(card_ends_with(vmm, card), (0, 0));
}

#[test]
fn reset_ends_the_job_and_forgets_memory_and_base() {
    let Some(card) = card("pair", Limits::default()) else { return };
    let vmm = Vmm::connected(&card.path);
    type Way<'a> = &'a dyn Fn();
    let ways: [Way<'_>; 3] = [
        &|| drop(vmm.ask(RESET, &[], &[]).unwrap()),
        // The guest's kernel resets a function before it gives it to a program, and after.
        &|| vmm.write(CONFIG, 0x54, &[1]),
        &|| vmm.put(CONTROL, 0x40, 2),
    ];
    for reset in ways {
        let memory = vmm.set_up();
        memory.put(0, &[common::GUEST, 1]);
        vmm.put(BAR, common::LL_HEAD.into(), common::GUEST);
        vmm.put(BAR, 0x18, 1);
        assert_eq!(vmm.word(CONTROL, STATUS) & !3, 0);
        reset();
        assert_eq!([STATUS, MAPPED_BYTES, BASE].map(|register| vmm.word(CONTROL, register)), [0, 0, 0]);
        let memory = vmm.set_up();
        vmm.walk(&memory);
        reset();
    }
    assert_eq!(card_ends_with(vmm, card), (0, 0));
}

#[test]
fn end_of_the_card_leaves_a_device_of_all_ones() {
    let Some(card) = card("pair", Limits::default()) else { return };
    let vmm = Vmm::connected(&card.path);
    let memory = vmm.set_up();
    drop(card);
    // The thread that serves the card ends with its listener and sockets.
    while vmm.word(CONTROL, STATUS) != 5 {
        std::thread::yield_now();
    }
    assert_eq!(vmm.word(BAR, common::LL_SUM.into()), u64::MAX);
    vmm.put(BAR, 0x18, 1);
    vmm.map(common::GUEST + 4 * MIB, MIB, 4 * MIB, Some(&memory.file));
    vmm.unmap(0, 1 << 63);
    assert_eq!(vmm.word(CONTROL, MAGIC), u64::from_ne_bytes(*b"AVIARYFP"));
    assert!(matches!(vmm.end(), DeviceFarewell::HungUp));
}

#[test]
fn vmm_that_ends_at_any_byte_leaves_nothing() {
    let Some(card) = card("pair", Limits::default()) else { return };
    let memory = common::Client::new(4 * MIB);
    let mut messages = message(VERSION, 0, &body(&[1 << 16], &[]));
    let mut base = BASE.to_ne_bytes().to_vec();
    base.extend(body(&[CONTROL, 8], &[common::GUEST]));
    messages.extend(message(REGION_WRITE, 0, &base));
    let map = message(DMA_MAP, 0, &body(&[32, 3], &[0, common::GUEST, 4 * MIB]));
    for cut in 0..=map.len() {
        let vmm = Vmm::start(&card.path);
        (&vmm.socket).write_all(&messages).unwrap();
        send(&vmm.socket, &map[..cut], &[memory.file.as_fd()][..usize::from(cut > 0)], SendFlags::empty()).unwrap();
        assert!(matches!(vmm.end(), DeviceFarewell::HungUp), "{cut}");
    }
    assert_eq!(card.end(), (0, 0));
}

#[test]
fn vmm_reads_an_end_and_no_error_although_its_requests_are_unread() {
    let (vmm, own) = UnixStream::pair().unwrap();
    let kept = own.try_clone().unwrap();
    (&vmm).write_all(&message(DEVICE_INFO, 0, &[0; 16])).unwrap();
    // The device's process is killed; the other one ends the connection.
    drop(own);
    end_connection(&kept);
    drop(kept);
    assert_eq!((&vmm).read(&mut [0; 16]).unwrap(), 0);
}

#[test]
fn worker_whose_keeper_is_killed_while_it_starts_ends_the_connection_in_order() {
    let Some(card) = card("pair", Limits::default()) else { return };
    let (vmm, own) = UnixStream::pair().unwrap();
    (&vmm).write_all(&message(DEVICE_INFO, 0, &[0; 16])).unwrap();
    let device = FpgaDevice::new(CardSocket::connect(&card.path).unwrap(), LL, PciIds::default()).unwrap();
    let mut started = None;
    let start = |socket| -> std::io::Result<WorkerThread> {
        started = Some(socket);
        Err(std::io::Error::other("the keeper was killed"))
    };
    assert!(matches!(Keeper::new(device, &own).serve(&[], start, &|_| {}), DeviceFarewell::NoWorker(_)));
    drop(own);
    assert!(Worker::start(started.unwrap()).is_err());
    assert_eq!((&vmm).read(&mut [0; 16]).unwrap(), 0);
    assert_eq!(card.end(), (0, 0));
}

/// A xorshift generator: the same numbers each time.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 8
    }

    fn one_of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.next() as usize % values.len()]
    }

    /// Addresses, sizes and offsets that matter, and others.
    fn word(&mut self) -> u64 {
        let near = self.one_of(&[0, common::GUEST, common::GUEST + (64 << 30), 1 << 48, u64::MAX, 0x1000, 0x20_0000]);
        let by = self.one_of(&[0, 1, 8, 64, 4096, 2 * MIB]).wrapping_mul(self.next() % 64);
        match self.next() % 8 {
            0 => self.next() << 20,
            1..=4 => near.wrapping_add(by),
            _ => by,
        }
    }

    fn half(&mut self) -> u32 {
        let any = self.next() as u32;
        self.one_of(&[0, 1, 2, 3, 4, 7, 8, 16, 20, 24, 32, 0x21, 0x24, 4096, 4097, u32::MAX, any])
    }

    /// A message that is right in parts.
    fn message(&mut self) -> Vec<u8> {
        let command = self.one_of(&[1, 2, 2, 2, 3, 3, 4, 5, 6, 7, 8, 8, 9, 9, 10, 10, 10, 11, 12, 13, 14, 15, 99]);
        let mut body = match command {
            DMA_MAP | DMA_UNMAP => body(&[self.half(), self.half() & 3], &[self.word(), self.word(), self.word()]),
            REGION_READ | REGION_WRITE => {
                let region = self.one_of(&[0, 2, 2, 4, 7, 9, u32::MAX]);
                let register = 8 * (self.next() % 32);
                let bytes = self.one_of(&[1, 2, 4, 8, 8, 16, 4096]);
                let mut access = self.one_of(&[register, register + 4, 0x18, 0x54]).to_ne_bytes().to_vec();
                access.extend(body(&[region, bytes], &[]));
                let data = if command == REGION_WRITE { bytes as usize } else { 0 };
                access.extend((0..data.div_ceil(8)).flat_map(|_| self.word().to_ne_bytes()).take(data));
                access
            }
            _ => body(&[self.half(), self.half(), self.half(), self.half(), self.half()], &[]),
        };
        if self.next().is_multiple_of(16) {
            body.truncate(self.next() as usize % (body.len() + 1));
        }
        let flags = if self.next().is_multiple_of(16) { self.half() } else { 0 };
        let mut bytes = message(command, flags, &body);
        if self.next().is_multiple_of(512) {
            let size = self.half();
            bytes[4..8].copy_from_slice(&size.to_ne_bytes());
        }
        bytes
    }
}

/// Sends messages until there are enough or the device ends; returns how many.
fn bother(vmm: Vmm, random: &mut Random, files: &[OwnedFd], most: u64) -> u64 {
    let mut replies = vec![0; 1 << 16];
    let mut sent = 0;
    'connection: while sent < most {
        let bytes = if sent == 0 { message(VERSION, 0, &body(&[1 << 16], &[])) } else { random.message() };
        let count = if random.next().is_multiple_of(2) { random.one_of(&[0, 1, 1, 1, 2, 9]) } else { 0 };
        let descriptors: Vec<_> = (0..count).map(|_| files[random.next() as usize % files.len()].as_fd()).collect();
        let cut = if random.next().is_multiple_of(4096) { random.next() as usize % bytes.len() } else { bytes.len() };
        let mut rest = &bytes[..cut];
        while !rest.is_empty() {
            let now = if rest.len() == bytes.len() { &descriptors[..] } else { &[] };
            match send(&vmm.socket, rest, now, SendFlags::DONTWAIT) {
                Ok(count) => rest = &rest[count..],
                Err(rustix::io::Errno::WOULDBLOCK) => std::thread::yield_now(),
                Err(_) => break 'connection,
            }
            let mut ancillary = RecvAncillaryBuffer::default();
            let _ = recvmsg(&vmm.socket, &mut [IoSliceMut::new(&mut replies)], &mut ancillary, RecvFlags::DONTWAIT);
        }
        sent += 1;
        if cut < bytes.len() {
            break;
        }
    }
    vmm.end();
    sent
}

fn hostile_vmm(messages: u64) {
    let Some(card) = card("pair", Limits { mapped_bytes: 64 * MIB, ..Limits::default() }) else { return };
    let (neighbour, memory) = connected(&card.path);
    start_endless_walk(&neighbour, &memory);
    let (pipe, _writer) = std::io::pipe().unwrap();
    let unsealed = rustix::fs::memfd_create("unsealed", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let file = || OwnedFd::from(common::Client::new(64 * MIB).file);
    let files = [file(), file(), file(), pipe.into(), unsealed, eventfd(0, EventfdFlags::CLOEXEC).unwrap()];
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut sent = 0;
    while sent < messages {
        sent += bother(Vmm::start(&card.path), &mut random, &files, messages - sent);
        assert_eq!(ask(&neighbour, INFO, 0, &[]), (0, 2), "the neighbour's job runs");
    }
    drop(neighbour);
    // An honest machine afterwards.
    let vmm = Vmm::connected(&card.path);
    let memory = vmm.set_up();
    vmm.walk(&memory);
    assert_eq!(card_ends_with(vmm, card), (0, 0));
}

#[test]
fn hostile_vmm_harms_no_neighbour() {
    hostile_vmm(20_000);
}

/// `tests/fpga-long/run vmm`.
#[test]
#[ignore = "takes a minute: 1,000,000 messages; the test above sends 20,000"]
fn hostile_vmm_harms_no_neighbour_in_a_million_messages() {
    hostile_vmm(1_000_000);
}

#[test]
fn job_is_right_whichever_message_its_worker_dies_in() {
    let Some(card) = card("pair", Limits::default()) else { return };
    // The version, BASE, a map, STATE_ADDRESS, its errno, two registers of the job, and reads of its state.
    for message in 0..9 {
        for death in [Death::Before, Death::After] {
            let vmm = Vmm::start_with(&card.path, vec![(message, death), (0, Death::After), (1, Death::Before)]);
            let mut version = body(&[1 << 16], &[]);
            version.extend(b"{}\0");
            vmm.ask(VERSION, &version, &[]).unwrap();
            let memory = vmm.set_up();
            vmm.walk(&memory);
            assert_eq!(
                (vmm.word(CONTROL, MAPPED_BYTES), vmm.word(CONTROL, REFUSED_MAPS)),
                (4 * MIB, 0),
                "{message} {death:?}"
            );
            vmm.unmap(common::GUEST, 4 * MIB);
            assert!(matches!(vmm.end(), DeviceFarewell::HungUp));
        }
    }
    assert_eq!(card.end(), (0, 0));
}

/// Also where the worker dies that has just learnt it.
#[test]
fn unmap_of_a_part_that_leaves_too_many_pages_takes_all_of_a_huge_one_and_says_so() {
    let Some(card) = card("pair", Limits::default()) else { return };
    // The version, BASE, two maps, an unmap.
    for deaths in [vec![], vec![(4, Death::Before)], vec![(4, Death::After)]] {
        let vmm = Vmm::start_with(&card.path, deaths);
        let mut version = body(&[1 << 16], &[]);
        version.extend(b"{}\0");
        vmm.ask(VERSION, &version, &[]).unwrap();
        let memory = common::Client::new(260 * MIB);
        vmm.put(CONTROL, BASE, common::GUEST);
        vmm.map(common::GUEST, 2 * MIB, 0, Some(&memory.file));
        // All other entries of the card's page table, in small pages.
        let small = 65_535 * 4096;
        vmm.map(common::GUEST + 4 * MIB, small, 4096, Some(&memory.file));
        vmm.unmap(common::GUEST + MIB, 4096);
        let told = [MAPPED_BYTES, LOST_UNMAPS, REFUSED_MAPS].map(|register| vmm.word(CONTROL, register));
        assert_eq!(told, [small, 1, 0]);
        vmm.put(CONTROL, 0x40, 2);
        assert_eq!(vmm.word(CONTROL, LOST_UNMAPS), 0);
        assert!(matches!(vmm.end(), DeviceFarewell::HungUp));
    }
    assert_eq!(card.end(), (0, 0));
}

#[test]
fn message_that_kills_its_workers_ends_the_device() {
    let Some(card) = card("pair", Limits::default()) else { return };
    let vmm = Vmm::start_with(&card.path, vec![(0, Death::Before); 9]);
    let told = message(VERSION, 0, &body(&[1 << 16], &[]));
    send(&vmm.socket, &told, &[], SendFlags::empty()).unwrap();
    assert!(matches!(vmm.device.join().unwrap(), DeviceFarewell::Dying));
    assert_eq!(card.end(), (0, 0));
}
