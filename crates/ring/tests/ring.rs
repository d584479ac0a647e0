//! Rings between threads, between processes, and against a peer that lies.
#![cfg(not(loom))]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use aviary_ring::{Consumer, HEADER, LINE, Liveness, Producer, RingError, RingMemory, WakeHandle};

const LIMIT: usize = 1 << 20;

/// Scales the repetitions of a test: miri is a thousand times slower.
const fn times(n: u64) -> u64 {
    if cfg!(miri) { n / 2000 + 1 } else { n }
}

/// 64-aligned zeroed memory that a test can also scribble into.
struct Block {
    base: *mut u8,
    layout: Layout,
}

// SAFETY: the memory is only accessed through atomics.
unsafe impl Send for Block {}
// SAFETY: the memory is only accessed through atomics.
unsafe impl Sync for Block {}

impl Block {
    fn new(capacity: usize) -> Arc<Self> {
        let layout = Layout::from_size_align(HEADER + capacity, 4096).unwrap();
        // SAFETY: the layout's size is not zero.
        Arc::new(Block { base: unsafe { alloc_zeroed(layout) }, layout })
    }

    fn ring(self: &Arc<Self>) -> RingMemory {
        // SAFETY: the block lives as long as the Arc and is only accessed atomically.
        unsafe { RingMemory::new(self.base, self.layout.size(), self.clone()) }.unwrap()
    }

    /// Writes a word as a hostile peer does.
    fn scribble(&self, offset: usize, value: u64) {
        if (64..HEADER).contains(&offset) {
            // SAFETY: offsets used here are aligned and inside the block. The words before HEADER
            // have 4 bytes, and atomic accesses of mixed sizes are undefined within one program.
            return unsafe { AtomicU32::from_ptr(self.base.add(offset).cast()) }.store(value as u32, Ordering::SeqCst);
        }
        // SAFETY: offsets used here are aligned and inside the block.
        unsafe { AtomicU64::from_ptr(self.base.add(offset).cast()) }.store(value, Ordering::SeqCst);
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.base, self.layout) }
    }
}

fn ends(block: &Arc<Block>) -> (Producer, Consumer) {
    let live = Arc::new(Liveness::notified());
    (Producer::new(block.ring(), live.clone(), LIMIT), Consumer::new(block.ring(), live, LIMIT))
}

/// A message whose content follows from its number.
fn message(n: u64) -> Vec<u8> {
    let length = (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize % 3000;
    (0..length).map(|i| (n as usize + i * 7) as u8).collect()
}

#[test]
fn messages_arrive_in_order_and_whole() {
    let block = Block::new(4096);
    let (mut tx, mut rx) = ends(&block);
    let sender = std::thread::spawn(move || {
        for n in 0..times(50_000) {
            tx.send(&message(n)).unwrap();
        }
    });
    let mut got = Vec::new();
    for n in 0..times(50_000) {
        rx.receive(&mut got).unwrap();
        assert_eq!(got, message(n), "message {n}");
    }
    sender.join().unwrap();
    assert!(!rx.try_receive(&mut got).unwrap());
}

#[test]
fn slow_consumer_stops_the_producer() {
    let block = Block::new(1024);
    let (mut tx, mut rx) = ends(&block);
    let sender = std::thread::spawn(move || {
        for n in 0..times(20_000) {
            tx.send(&n.to_le_bytes().repeat(9)).unwrap();
        }
    });
    let mut got = Vec::new();
    for n in 0..times(20_000) {
        if n % 100 == 0 {
            std::thread::sleep(Duration::from_millis(2));
        }
        rx.receive(&mut got).unwrap();
        assert_eq!(got[..8], n.to_le_bytes());
    }
    sender.join().unwrap();
}

#[test]
fn a_full_ring_is_left_alone_at_once() {
    let block = Block::new(128 * LINE);
    let (mut producer, mut consumer) = ends(&block);
    let (mut sent, mut got) = (0, Vec::new());
    for round in 0..20 {
        while producer.try_send(&message(sent)).unwrap() {
            sent += 1;
        }
        let waiting = (0..).take_while(|_| consumer.try_receive(&mut got).unwrap()).count() as u64;
        assert!(waiting >= 1 && got == message(sent - 1), "round {round}");
    }
    assert!(!producer.try_send(&[7; 129 * LINE]).unwrap(), "longer than the ring");
    assert!(!consumer.try_receive(&mut got).unwrap(), "nothing of it was written");
    assert!(producer.try_send(&vec![0; LIMIT + 1]).is_ok_and(|sent| !sent));
    assert!(producer.try_send(&[]).unwrap() && consumer.try_receive(&mut got).unwrap() && got.is_empty());
}

#[test]
fn ping_pong_loses_no_wake_up() {
    let (a, b) = (Block::new(4096), Block::new(4096));
    let ((mut tx, mut their_rx), (mut their_tx, mut rx)) = (ends(&a), ends(&b));
    let peer = std::thread::spawn(move || {
        let mut got = Vec::new();
        for n in 0..times(30_000) as u32 {
            their_rx.receive(&mut got).unwrap();
            if n % 1000 == 0 {
                std::thread::sleep(Duration::from_micros(300));
            }
            their_tx.send(&got).unwrap();
        }
    });
    let mut got = Vec::new();
    for n in 0..times(30_000) as u32 {
        tx.send(&n.to_le_bytes()).unwrap();
        rx.receive(&mut got).unwrap();
        assert_eq!(got, n.to_le_bytes());
    }
    peer.join().unwrap();
}

#[test]
fn message_above_the_limit_is_refused_on_both_sides() {
    let block = Block::new(4096);
    let live = Arc::new(Liveness::notified());
    let mut tx = Producer::new(block.ring(), live.clone(), 5000);
    assert_eq!(tx.send(&[0; 5001]), Err(RingError::TooLong { length: 5001, limit: 5000 }));
    let mut rx = Consumer::new(block.ring(), live, 1500);
    tx.send(&[1; 2000]).unwrap();
    assert!(matches!(rx.receive(&mut Vec::new()), Err(RingError::TooLong { .. })));
}

/// The seal of a line as a hostile producer may write it.
fn seal(length: u64, lap: u64) -> u64 {
    length | lap << 48
}

#[test]
fn lying_lengths_are_errors() {
    for length in [LIMIT as u64 + 1, u64::from(u32::MAX)] {
        let block = Block::new(4096);
        let (_, mut rx) = ends(&block);
        block.scribble(HEADER, seal(length, 1));
        let result = rx.receive(&mut Vec::new());
        assert!(matches!(result, Err(RingError::TooLong { .. })), "{length}: {result:?}");
    }
}

#[test]
fn message_whose_lines_disagree_is_an_error() {
    // After a first line of 100 bytes, 44 must be left.
    for rest in [0, 43, 45, 100, u64::from(u32::MAX)] {
        let block = Block::new(4096);
        let (_, mut rx) = ends(&block);
        block.scribble(HEADER + LINE, seal(rest, 1));
        block.scribble(HEADER, seal(100, 1));
        let result = rx.receive(&mut Vec::new());
        assert!(matches!(result, Err(RingError::Peer { .. })), "{rest}: {result:?}");
    }
}

#[test]
fn seal_of_another_lap_is_no_message() {
    for lap in [0, 2, 3, 0xffff] {
        let block = Block::new(4096);
        let (_, mut rx) = ends(&block);
        block.scribble(HEADER, seal(8, lap));
        assert_eq!(rx.try_receive(&mut Vec::new()), Ok(false), "{lap}");
    }
}

/// Old content of the memory, and the content of messages, is never taken for a message: not in the
/// first lap, nor in later ones, nor when the number of the lap wraps.
#[test]
fn nothing_else_looks_like_a_message() {
    const CAPACITY: usize = 512;
    let block = Block::new(CAPACITY);
    for word in (LINE..CAPACITY).step_by(8) {
        block.scribble(HEADER + word, seal(8, 1));
    }
    let (mut tx, mut rx) = ends(&block);
    let (mut sent, mut got) = (Vec::new(), Vec::new());
    // Lines ever written; laps are numbered modulo 2^16.
    let mut lines = 0;
    for n in 0.. {
        sent.clear();
        // Every word of the message is a seal of this lap or of the next.
        let words = if n % 5 == 0 { 1 + n as usize % 14 } else { 7 };
        let lap = (lines * LINE / CAPACITY) as u64 + 1 + n % 2;
        (0..words).for_each(|_| sent.extend_from_slice(&seal(8, lap & 0xffff).to_le_bytes()));
        assert_eq!(rx.try_receive(&mut got), Ok(false), "before message {n}");
        tx.send(&sent).unwrap();
        assert_eq!(rx.try_receive(&mut got), Ok(true));
        assert_eq!(got, sent, "message {n}");
        lines += sent.len().div_ceil(LINE - 8);
        if lines * LINE / CAPACITY > if cfg!(miri) { 8 } else { 66_000 } {
            break;
        }
    }
}

#[test]
fn space_is_returned_in_quarters() {
    let block = Block::new(1024);
    let (mut tx, mut rx) = ends(&block);
    let (quarter, mut got) = (1024 / 4, Vec::new());
    let room = || {
        // SAFETY: the word of the consumer's index, inside the block.
        unsafe { AtomicU64::from_ptr(block.base.cast()) }.load(Ordering::SeqCst) as usize
    };
    for line in 1..=quarter / LINE {
        tx.send(&[1; 56]).unwrap();
        rx.receive(&mut got).unwrap();
        assert_eq!(room(), if line * LINE == quarter { quarter } else { 0 });
    }
}

#[test]
fn lying_consumer_indices_are_errors() {
    for lie in [1, 8, 1024 + 64, u64::MAX - 63] {
        let block = Block::new(1024);
        let (mut tx, _) = ends(&block);
        for _ in 0..16 {
            tx.send(&[0; 56]).unwrap();
        }
        block.scribble(0, lie);
        let result = tx.send(&[0; 56]);
        assert!(matches!(result, Err(RingError::Peer { .. })), "{lie}: {result:?}");
    }
}

#[test]
fn scribbling_never_hurts() {
    let block = Block::new(1024);
    let stop = Arc::new(AtomicU64::new(0));
    let scribbler = std::thread::spawn({
        let (block, stop) = (block.clone(), stop.clone());
        move || {
            let mut x = 0x1234_5678_9abc_def1u64;
            while stop.load(Ordering::Relaxed) == 0 {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                block.scribble((x as usize % (HEADER + 1024)) & !7, x >> (x % 61) | (x % 3) << 48);
            }
        }
    });
    let until = Instant::now() + Duration::from_millis(300);
    while Instant::now() < until {
        let live = Arc::new(Liveness::notified());
        live.kill();
        let mut tx = Producer::new(block.ring(), live.clone(), LIMIT);
        let mut rx = Consumer::new(block.ring(), live, LIMIT);
        let mut got = Vec::new();
        for n in 0..20 {
            let _ = tx.send(&message(n));
            let _ = rx.try_receive(&mut got);
            assert!(got.len() <= LIMIT);
        }
    }
    stop.store(1, Ordering::Relaxed);
    scribbler.join().unwrap();
}

#[test]
fn death_wakes_a_sleeper() {
    let (a, b) = (Block::new(4096), Block::new(4096));
    let live = Arc::new(Liveness::notified());
    let mut rx = Consumer::new(a.ring(), live.clone(), LIMIT);
    let waker = WakeHandle::new(&a.ring(), &b.ring());
    let sleeper = std::thread::spawn(move || rx.receive(&mut Vec::new()));
    std::thread::sleep(Duration::from_millis(30));
    live.kill();
    waker.wake();
    assert_eq!(sleeper.join().unwrap(), Err(RingError::Dead));
}

#[test]
fn probe_notices_death() {
    let block = Block::new(4096);
    let live = Arc::new(Liveness::probed(Duration::from_millis(20), || false));
    let mut rx = Consumer::new(block.ring(), live, LIMIT);
    assert_eq!(rx.receive(&mut Vec::new()), Err(RingError::Dead));
}

/// Memory shared with a forked child.
struct Shared(*mut u8, usize);
// SAFETY: the memory is only accessed through atomics.
unsafe impl Send for Shared {}
// SAFETY: the memory is only accessed through atomics.
unsafe impl Sync for Shared {}

#[test]
#[cfg_attr(miri, ignore = "forks")]
fn messages_cross_processes() {
    let length = HEADER + 4096;
    // SAFETY: a fresh anonymous mapping.
    let base = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            2 * 8192,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    assert_ne!(base, libc::MAP_FAILED);
    let base = base.cast::<u8>();
    let keep = Arc::new(Shared(base, 2 * 8192));
    assert_eq!((keep.0, keep.1), (base, 16384));
    // SAFETY: the mapping is never unmapped.
    let ring = |at: usize| unsafe { RingMemory::new(base.add(at), length, keep.clone()) }.unwrap();
    let (there, back) = (ring(0), ring(8192));
    let live = Arc::new(Liveness::notified());
    let mut scratch = Vec::with_capacity(8192);
    // SAFETY: the child only uses what was allocated before, the rings and `_exit`.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let mut rx = Consumer::new(there, live.clone(), LIMIT);
        let mut tx = Producer::new(back, live, LIMIT);
        for _ in 0..5000 {
            if rx.receive(&mut scratch).is_err() || tx.send(&scratch).is_err() {
                // SAFETY: ends this process only.
                unsafe { libc::_exit(1) };
            }
        }
        // SAFETY: ends this process only.
        unsafe { libc::_exit(0) };
    }
    let mut tx = Producer::new(there, live.clone(), LIMIT);
    let mut rx = Consumer::new(back, live, LIMIT);
    for n in 0..5000 {
        tx.send(&message(n)).unwrap();
        rx.receive(&mut scratch).unwrap();
        assert_eq!(scratch, message(n));
    }
    let mut status = 0;
    // SAFETY: waits for the child forked above.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(status, 0);
}

#[test]
fn interrupted_consumer_waits_again_and_loses_no_message() {
    let (a, b) = (Block::new(4096), Block::new(4096));
    let live = Arc::new(Liveness::notified());
    let mut tx = Producer::new(a.ring(), live.clone(), LIMIT);
    let mut rx = Consumer::new(a.ring(), live.clone(), LIMIT);
    rx.set_interruptible(true);
    let waker = WakeHandle::new(&a.ring(), &b.ring());
    let sleeper = std::thread::spawn(move || {
        let first = rx.receive(&mut Vec::new());
        (first, rx)
    });
    std::thread::sleep(Duration::from_millis(30));
    live.interrupt();
    waker.wake();
    let (first, mut rx) = sleeper.join().unwrap();
    assert_eq!(first, Err(RingError::Interrupted));
    // A message that has come is read, interrupted or not.
    tx.send(b"one").unwrap();
    let mut got = Vec::new();
    rx.receive(&mut got).unwrap();
    assert_eq!(got, b"one");
    assert_eq!(rx.receive(&mut got), Err(RingError::Interrupted));
    live.resume();
    tx.send(b"two").unwrap();
    rx.receive(&mut got).unwrap();
    assert_eq!(got, b"two");
}

#[test]
fn rest_of_a_message_is_waited_for_although_the_consumer_is_interrupted() {
    let block = Block::new(4096);
    let live = Arc::new(Liveness::notified());
    let mut tx = Producer::new(block.ring(), live.clone(), LIMIT);
    let mut rx = Consumer::new(block.ring(), live.clone(), LIMIT);
    rx.set_interruptible(true);
    // Longer than the ring: the producer waits for the consumer in the middle of it.
    let message: Vec<u8> = (0..20_000u32).map(|n| n as u8).collect();
    let sent = message.clone();
    let sender = std::thread::spawn(move || tx.send(&sent));
    let mut got = Vec::new();
    while !rx.await_message(Duration::from_millis(1)).unwrap() {}
    live.interrupt();
    rx.receive(&mut got).unwrap();
    assert_eq!(got, message);
    sender.join().unwrap().unwrap();
}

#[test]
fn ring_goes_on_at_the_positions_of_other_ends() {
    let block = Block::new(4096);
    let live = || Arc::new(Liveness::notified());
    let (mut tx, mut rx) = (Producer::new(block.ring(), live(), LIMIT), Consumer::new(block.ring(), live(), LIMIT));
    let mut got = Vec::new();
    for n in 0..1000u32 {
        let message = vec![n as u8; (n as usize * 7) % 900 + 1];
        tx.send(&message).unwrap();
        if n % 3 == 0 {
            rx = Consumer::new(block.ring(), live(), LIMIT).resume(rx.position()).unwrap();
        }
        if n % 5 == 0 {
            tx = Producer::new(block.ring(), live(), LIMIT).resume(tx.position()).unwrap();
        }
        rx.receive(&mut got).unwrap();
        assert_eq!(got, message);
    }
}

#[test]
fn positions_that_no_ring_has_are_refused() {
    use aviary_ring::{ConsumerPosition, ProducerPosition};
    let block = Block::new(4096);
    let live = || Arc::new(Liveness::notified());
    let capacity = block.ring().capacity() as u64;
    for (written, consumed) in [(1, 0), (64, 1), (0, 64), (capacity + 64, 0), (u64::MAX, 0)] {
        let end = Producer::new(block.ring(), live(), LIMIT).resume(ProducerPosition { written, consumed });
        assert!(matches!(end.err(), Some(RingError::Position { .. })), "{written} {consumed}");
    }
    for (read, released) in [(1, 0), (64, 1), (0, 64), (capacity, 0), (u64::MAX, 0)] {
        let end = Consumer::new(block.ring(), live(), LIMIT).resume(ConsumerPosition { read, released });
        assert!(matches!(end.err(), Some(RingError::Position { .. })), "{read} {released}");
    }
}
