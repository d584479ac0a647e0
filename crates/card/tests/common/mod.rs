//! A card with an image for tests, clients' memory, and golden models of MB and LL. The card is simulated.

#![allow(dead_code)]

pub mod sharing;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command as Process;
use std::sync::Arc;

use aviary_card::monitor::{Command, JobState};
use aviary_card::{Board, ClientMemory, ImageDescription, ModelParameters, Monitor, Rights, Simulated};
use rustix::fs::{MemfdFlags, SealFlags};

pub const LL_HEAD: u32 = 0x40;
pub const LL_LIMIT: u32 = 0x48;
pub const LL_SUM: u32 = 0x80;
pub const LL_VISITED: u32 = 0x88;
pub const MB_BASE: u32 = 0x40;
pub const MB_MASK: u32 = 0x48;
pub const MB_COUNT: u32 = 0x50;
pub const MB_STRIDE: u32 = 0x58;
pub const MB_MODE: u32 = 0x60;
pub const MB_TARGET: u32 = 0x68;
pub const MB_HASH: u32 = 0x80;
pub const MB_LINES: u32 = 0x88;
pub const MB_WRITTEN: u32 = 0x90;
pub const MB_READS: u64 = 4;
pub const MB_WRITES: u64 = 8;
/// Odd, and a golden part of 2^32: steps that spread over all pages.
pub const GOLDEN: u64 = 0x9e37_79b1;

/// Slices lie this far apart: 64 GB, 1 GB, and an eighth of the 1 GB that the model's IOTLB reaches. Memory at the beginning of
/// eight slices in a row does not meet in the IOTLB.
pub const SLICE_STRIDE: u64 = (65 << 30) + (1 << 27);
/// Guest virtual address at which clients' memory begins.
pub const GUEST: u64 = 0x7f12_3440_0000;

/// The path of an image, given by name or file, built if its sources changed. An error is what `fpga/build` says.
pub fn built(name: &str) -> Result<PathBuf, String> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let built = Process::new(root.join("fpga/build")).arg(name).output();
    let built = built.map_err(|error| format!("fpga/build does not start: {error}"))?;
    match built.status.success() {
        true => Ok(String::from_utf8_lossy(&built.stdout).trim().into()),
        false => Err(String::from_utf8_lossy(&built.stderr).into_owned()),
    }
}

/// The same; `None`, with a line that says so, where the tools are not installed.
pub fn image(name: &str) -> Option<PathBuf> {
    let error = match built(name) {
        Ok(path) => return Some(path),
        Err(error) => error,
    };
    assert!(error.contains("is not installed"), "{error}");
    eprintln!("skip: no image {name}: the FPGA tools are not installed; ./x setup installs them");
    None
}

pub fn card(name: &str) -> Option<Simulated> {
    Some(Simulated::start(&image(name)?).unwrap())
}

/// A card with a changed model.
pub fn card_with(name: &str, change: impl Fn(&mut ModelParameters)) -> Option<Simulated> {
    let path = image(name)?;
    let mut description = ImageDescription::read(&path.with_extension("json")).unwrap();
    change(&mut description.model);
    Some(Simulated::start_described(&path, description).unwrap())
}

/// A client's memory, as the client and as the card have it.
pub struct Client {
    pub file: File,
    pub memory: Arc<ClientMemory>,
}

impl Client {
    pub fn new(bytes: u64) -> Self {
        let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC;
        let fd = rustix::fs::memfd_create("client", flags).unwrap();
        rustix::fs::ftruncate(&fd, bytes).unwrap();
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
        let file = File::from(fd);
        let memory = Arc::new(ClientMemory::map(file.try_clone().unwrap(), 0, bytes, Rights::ReadWrite).unwrap());
        Self { file, memory }
    }

    pub fn put(&self, offset: u64, words: &[u64]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.file.write_all_at(&bytes, offset).unwrap();
    }

    pub fn get(&self, offset: u64) -> u64 {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, offset).unwrap();
        u64::from_le_bytes(bytes)
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.memory.length() as usize];
        self.file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }

    /// A list of `nodes` in `bytes` of memory that visits them in a scattered order; returns the address of its head and the
    /// sum of its values. `nodes` divides the number of lines.
    pub fn list(&self, nodes: u64, bytes: u64) -> (u64, u64) {
        let lines = bytes / 64;
        let place = |i: u64| (i.wrapping_mul(GOLDEN) % lines) * 64;
        let value = |i: u64| i.wrapping_mul(0x0123_4567_89ab_cdef) ^ 0x55;
        for i in 0..nodes {
            let next = if i + 1 == nodes { 0 } else { GUEST + place(i + 1) };
            self.put(place(i), &[next, value(i)]);
        }
        (GUEST + place(0), (0..nodes).map(value).fold(0, u64::wrapping_add))
    }

    /// MB's hash of `count` reads of single lines.
    pub fn hash(&self, mask: u64, count: u64, stride: u64) -> u64 {
        let bytes = self.bytes();
        let fold = |line: u64| {
            let at = line as usize * 64;
            let words = bytes[at..at + 64].chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
            words.fold(0, |a, b| a ^ b)
        };
        (0..count).map(|i| fold(i.wrapping_mul(stride) & mask)).fold(0, u64::wrapping_add)
    }

    /// Fills the memory with numbers that differ from line to line.
    pub fn fill(&self, seed: u64) {
        let words = self.memory.length() / 8;
        let content: Vec<u64> = (0..words).map(|i| (i + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed).collect();
        self.put(0, &content);
    }
}

/// Gives a port the slice `number` with a client's memory at [`GUEST`], and lets it out of reset.
pub fn attach(card: &mut Simulated, port: usize, number: u64, client: &Client) {
    let base = number * SLICE_STRIDE;
    card.map(base, &client.memory, 0, client.memory.length(), Rights::ReadWrite).unwrap();
    place(card, port, base, 64 << 30);
}

/// Gives a port in reset a slice at `base` whose guest address is [`GUEST`], and lets it out of reset.
pub fn place(card: &mut Simulated, port: usize, base: u64, bytes: u64) {
    let mut monitor = Monitor(card);
    monitor.set_slice(port, GUEST, base, bytes).unwrap();
    monitor.release(port);
}

/// Puts a port into reset and waits until it is drained.
pub fn detach(card: &mut Simulated, port: usize) {
    Monitor(card).reset(port);
    while !Monitor(card).is_drained(port) {}
}

pub fn set(card: &mut Simulated, port: usize, registers: &[(u32, u64)]) {
    for (register, value) in registers {
        let address = Monitor(card).of_accelerator(port, *register);
        card.write(address, *value).unwrap();
    }
}

pub fn get(card: &mut Simulated, port: usize, register: u32) -> u64 {
    let address = Monitor(card).of_accelerator(port, register);
    card.read(address)
}

pub fn start(card: &mut Simulated, port: usize, registers: &[(u32, u64)]) {
    set(card, port, registers);
    Monitor(card).command(port, Command::Start).unwrap();
}

/// Lets the card run until a job ends, at most this many cycles.
pub fn wait(card: &mut Simulated, port: usize, cycles: u64) -> JobState {
    let end = card.now() + cycles;
    loop {
        let state = Monitor(card).job(port);
        if matches!(state, JobState::Done | JobState::Error | JobState::Saved) || card.now() >= end {
            return state;
        }
        card.advance(500);
    }
}

/// Runs for exactly so many cycles, interrupts or not.
pub fn run(card: &mut Simulated, cycles: u64) {
    let end = card.now() + cycles;
    while card.now() < end && card.advance(end - card.now()) != aviary_card::Stop::Idle {}
}
