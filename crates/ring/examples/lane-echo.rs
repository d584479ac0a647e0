//! Measures a message that crosses a lane's rings to another machine and comes back, with nothing
//! above the rings: `./x bench vm.calls` runs one end in a virtual machine and the other beside it,
//! on memory that both map.
//!
//!     lane-echo host FILE             answers until its standard input ends
//!     lane-echo guest FILE [ROUNDS]   prints {"lane_ns": ...}, the median of batches

use std::error::Error;
use std::fs::OpenOptions;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

use aviary_ring::{Consumer, Doorbell, EMPTY, Liveness, Producer, RingMemory};

/// Offsets of the two rings in the mapping, in bytes. The page before them belongs to
/// bench/vm/roundtrip.c.
const UP: usize = 64 << 10;
const DOWN: usize = 512 << 10;
const RING: usize = 256 << 10;
const BYTES: usize = 1 << 20;
/// A message as long as that of a call without arguments.
const MESSAGE: [u8; 40] = [0x5a; 40];
const BATCH: usize = 200;
const ROUNDS: usize = 100_000;

/// A doorbell that never rings: a sleeper polls at short intervals.
struct Glances;

impl Doorbell for Glances {
    fn wait(&self, _: &AtomicU32, _: u32, timeout: Option<Duration>) {
        let glance = Duration::from_micros(100);
        std::thread::sleep(timeout.map_or(glance, |timeout| timeout.min(glance)));
    }
    fn wake_peer(&self, _: &AtomicU32) {}
    fn wake_own(&self, _: &AtomicU32) {}
}

struct Mapping(*mut u8);

// SAFETY: only rings access the memory, through atomics.
unsafe impl Send for Mapping {}
// SAFETY: only rings access the memory, through atomics.
unsafe impl Sync for Mapping {}

fn map(path: &str) -> Result<Arc<Mapping>, Box<dyn Error>> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    // SAFETY: a new mapping at an address that the kernel chooses; it is never unmapped.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), BYTES, protection, flags, file.as_raw_fd(), 0) };
    match base == libc::MAP_FAILED {
        true => Err(format!("{path}: {}", std::io::Error::last_os_error()).into()),
        false => Ok(Arc::new(Mapping(base.cast()))),
    }
}

fn ring(mapping: &Arc<Mapping>, at: usize) -> Result<RingMemory, Box<dyn Error>> {
    // SAFETY: `at + RING` is at most BYTES, and the memory stays mapped.
    let memory = unsafe { RingMemory::new(mapping.0.add(at), RING, mapping.clone()) }?;
    Ok(memory.with_doorbell(Some(Arc::new(Glances))))
}

fn answer(path: &str) -> Result<(), Box<dyn Error>> {
    let mapping = map(path)?;
    for at in [UP, DOWN] {
        // SAFETY: the range lies within the mapping; the rings are not in use yet.
        unsafe { mapping.0.add(at).write_bytes(0, EMPTY) };
    }
    let liveness = Arc::new(Liveness::notified());
    let mut requests = Consumer::new(ring(&mapping, UP)?, liveness.clone(), MESSAGE.len());
    let mut answers = Producer::new(ring(&mapping, DOWN)?, liveness.clone(), MESSAGE.len());
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        liveness.kill();
    });
    let mut message = Vec::new();
    while requests.receive(&mut message).is_ok() {
        answers.send(&message)?;
    }
    Ok(())
}

fn measure(path: &str, rounds: usize) -> Result<(), Box<dyn Error>> {
    let mapping = map(path)?;
    let liveness = Arc::new(Liveness::notified());
    let mut requests = Producer::new(ring(&mapping, UP)?, liveness.clone(), MESSAGE.len());
    let mut answers = Consumer::new(ring(&mapping, DOWN)?, liveness, MESSAGE.len());
    let mut message = Vec::new();
    let mut times = Vec::new();
    for batch in 0..rounds / BATCH + 10 {
        let began = Instant::now();
        for _ in 0..BATCH {
            requests.send(&MESSAGE)?;
            answers.receive(&mut message)?;
        }
        // The first batches warm up the caches.
        if batch >= 10 {
            times.push(began.elapsed().as_nanos() as f64 / BATCH as f64);
        }
        if message != MESSAGE {
            return Err("the reply differs from the request".into());
        }
    }
    times.sort_by(f64::total_cmp);
    println!("{{\"lane_ns\": {:.1}}}", times[times.len() / 2]);
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["host", path] => answer(path),
        ["guest", path] => measure(path, ROUNDS),
        ["guest", path, rounds] => measure(path, rounds.parse::<usize>()?.max(BATCH)),
        _ => Err("usage: lane-echo host FILE | lane-echo guest FILE [ROUNDS]".into()),
    }
}
