//! A lane's thread and a borrower: who runs what, on which kernel thread, and what each finds in its registers.
#![cfg(not(loom))]

use std::arch::asm;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use aviary_delegate::door::Entered;
use aviary_delegate::{Berth, BerthState};

/// Longer than any wait of these tests.
const HANG: Duration = Duration::from_secs(600);

thread_local!(static SERVED: Cell<u64> = const { Cell::new(0) });

/// What the lane does with one request.
type Work = Box<dyn FnMut() + Send>;

/// A lane's thread, which sleeps in a berth between requests.
struct Lane {
    berth: Berth,
    requested: AtomicBool,
    work: Mutex<Work>,
    /// The lane's own count, in a thread-local of its thread.
    served: AtomicU64,
    /// The kernel's number of the thread that ran the last request, and of the lane's own.
    ran_on: AtomicI32,
    thread: AtomicI32,
    ends: AtomicBool,
}

fn current() -> i32 {
    // SAFETY: a number of this thread.
    unsafe { libc::gettid() }
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let since = Instant::now();
    while !condition() {
        assert!(since.elapsed() < HANG, "{what} does not come");
        std::thread::sleep(Duration::from_millis(1));
    }
}

impl Lane {
    fn start(work: Work) -> Option<(Arc<Lane>, JoinHandle<()>)> {
        let Some(berth) = Berth::new() else {
            eprintln!("skipped: FS cannot be written here without a system call");
            return None;
        };
        let lane = Arc::new(Lane {
            berth,
            requested: AtomicBool::new(false),
            work: Mutex::new(work),
            served: AtomicU64::new(0),
            ran_on: AtomicI32::new(0),
            thread: AtomicI32::new(0),
            ends: AtomicBool::new(false),
        });
        let thread = std::thread::spawn({
            let lane = lane.clone();
            move || lane.live()
        });
        until("sleep", || lane.berth.state() == BerthState::Asleep);
        Some((lane, thread))
    }

    fn live(&self) {
        self.thread.store(current(), Ordering::SeqCst);
        while !self.ends.load(Ordering::SeqCst) {
            if self.requested.swap(false, Ordering::SeqCst) {
                self.locked()();
                SERVED.with(|served| {
                    served.set(served.get() + 1);
                    self.served.store(served.get(), Ordering::SeqCst);
                });
                self.ran_on.store(current(), Ordering::SeqCst);
            }
            // SAFETY: in the lane's context; the thread has a reference of the lane.
            unsafe { self.berth.sleep(None) };
        }
        // SAFETY: as above.
        unsafe { self.berth.sleep(Some(Duration::ZERO)) };
    }

    fn locked(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap()
    }

    fn enter(&self) -> Entered {
        self.requested.store(true, Ordering::SeqCst);
        self.berth.enter(&AtomicU8::new(0))
    }

    fn end(&self, thread: JoinHandle<()>) {
        self.ends.store(true, Ordering::SeqCst);
        self.berth.wake();
        thread.join().unwrap();
    }

    /// Nanoseconds that the lane's thread has run.
    fn ran_ns(&self) -> u64 {
        let thread = self.thread.load(Ordering::SeqCst);
        let text = std::fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).unwrap();
        text.split(' ').next().unwrap().parse().unwrap()
    }
}

#[test]
fn borrower_runs_the_lane_and_its_thread_does_not() {
    let Some((lane, thread)) = Lane::start(Box::new(|| ())) else { return };
    assert_eq!(lane.enter(), Entered::Returned);
    let before = lane.ran_ns();
    for n in 2..=10_000 {
        assert_eq!(lane.enter(), Entered::Returned);
        assert_eq!(lane.served.load(Ordering::SeqCst), n, "one thread-local of the lane's thread counts all");
    }
    assert_eq!(lane.ran_on.load(Ordering::SeqCst), current());
    assert_eq!(lane.ran_ns(), before, "the lane's thread has not run");
    assert_eq!(SERVED.with(Cell::get), 0, "that of this thread is another");
    lane.end(thread);
    assert_eq!(lane.berth.enter(&AtomicU8::new(0)), Entered::Refused, "nobody sleeps there any more");
}

#[test]
fn a_wake_during_a_borrowing_is_not_lost() {
    let (entered, left) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let work = {
        let (entered, left) = (entered.clone(), left.clone());
        move || {
            entered.store(true, Ordering::SeqCst);
            until("the wake", || left.load(Ordering::SeqCst));
        }
    };
    let Some((lane, thread)) = Lane::start(Box::new(work)) else { return };
    let waker = std::thread::spawn({
        let lane = lane.clone();
        move || {
            until("a borrower", || entered.load(Ordering::SeqCst));
            assert_eq!(lane.berth.enter(&AtomicU8::new(0)), Entered::Refused, "one at a time");
            lane.ends.store(true, Ordering::SeqCst);
            lane.berth.wake();
            assert_eq!(lane.berth.state(), BerthState::Recalled);
            left.store(true, Ordering::SeqCst);
        }
    });
    assert_eq!(lane.enter(), Entered::Returned);
    // Nobody wakes the thread again.
    waker.join().unwrap();
    thread.join().unwrap();
}

#[test]
fn a_context_with_a_time_to_wait_goes_on_in_its_own_thread() {
    let lane: Arc<Mutex<Option<Arc<Lane>>>> = Arc::default();
    let after = Arc::new(AtomicI32::new(0));
    let work = {
        let (lane, after) = (lane.clone(), after.clone());
        move || {
            let Some(lane) = lane.lock().unwrap().clone() else { return };
            // SAFETY: in the lane's context.
            unsafe { lane.berth.sleep(Some(Duration::from_secs(3600))) };
            after.store(current(), Ordering::SeqCst);
        }
    };
    let Some((started, thread)) = Lane::start(Box::new(work)) else { return };
    *lane.lock().unwrap() = Some(started.clone());
    assert_eq!(started.enter(), Entered::HandedOver);
    until("the thread itself", || started.berth.state() == BerthState::Asleep);
    assert_eq!(
        after.load(Ordering::SeqCst),
        started.thread.load(Ordering::SeqCst),
        "the sleep ended early, in the own thread"
    );
    started.end(thread);
    lane.lock().unwrap().take();
}

#[test]
fn a_sleep_ends_by_itself() {
    let Some(berth) = Berth::new() else { return };
    let before = Instant::now();
    // SAFETY: of this thread.
    unsafe { berth.sleep(Some(Duration::from_millis(20))) };
    assert!(before.elapsed() >= Duration::from_millis(20));
    assert_eq!(berth.state(), BerthState::Awake);
    berth.wake();
    // SAFETY: as above.
    unsafe { berth.sleep(None) };
    assert_eq!(berth.state(), BerthState::Awake, "woken before it slept");
}

fn control_word() -> u32 {
    let mut word = 0u32;
    // SAFETY: stores a register.
    unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut word, options(nostack)) };
    word
}

fn set_control_word(word: u32) {
    // SAFETY: rounding is as it was when the test ends, and it computes with no fractions.
    unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const word, options(nostack)) };
}

#[test]
fn each_side_has_its_own_control_words_and_leaves_no_vectors() {
    const USUAL: u32 = 0x1f80;
    const TOWARDS_ZERO: u32 = 0x7f80;
    let seen = Arc::new(AtomicU32::new(0));
    let work = {
        let seen = seen.clone();
        move || {
            seen.store(control_word(), Ordering::SeqCst);
            // SAFETY: a register that calls may lose.
            unsafe { asm!("pcmpeqd xmm15, xmm15", out("xmm15") _, options(nomem, nostack)) };
        }
    };
    let Some((lane, thread)) = Lane::start(Box::new(work)) else { return };
    set_control_word(TOWARDS_ZERO);
    let entered = lane.enter();
    let left: u64;
    // SAFETY: reads a register.
    unsafe { asm!("movq {}, xmm15", out(reg) left, options(nomem, nostack)) };
    let own = control_word();
    set_control_word(USUAL);
    assert_eq!((entered, left), (Entered::Returned, 0));
    assert_eq!((seen.load(Ordering::SeqCst) & !0x3f, own & !0x3f), (USUAL, TOWARDS_ZERO));
    lane.end(thread);
}
