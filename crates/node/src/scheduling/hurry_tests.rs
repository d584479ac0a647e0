use super::*;
use crate::Level;
use aviary_gate::GrantPage;
use std::{
    collections::BTreeMap,
    os::fd::AsFd,
    sync::{Mutex, atomic::AtomicU64},
};

/// Threads of a process, of which 1 is the first one, and of others; and what became of each.
#[derive(Debug, Default)]
pub struct Simulated {
    threads: Mutex<BTreeMap<u32, ThreadPolicy>>,
    strangers: Mutex<BTreeMap<u32, ThreadPolicy>>,
    refused: bool,
    /// The thread ends just before it is hurried, and a stranger's begins with its id.
    replaced: bool,
    /// Nanoseconds.
    used: AtomicU64,
    /// By how much the process's own ids of its threads are smaller than the node's.
    shift: u32,
}

impl Simulated {
    pub fn with(threads: &[(u32, ThreadPolicy)]) -> Simulated {
        Simulated { threads: Mutex::new(threads.iter().copied().collect()), ..Simulated::default() }
    }

    fn set(&self, thread: u32, pace: ThreadPolicy) -> io::Result<()> {
        let list = if self.owns(thread) { &self.threads } else { &self.strangers };
        list.lock().unwrap().insert(thread, pace).map(drop).ok_or(io::ErrorKind::NotFound.into())
    }

    fn replace(&self, thread: u32, pace: ThreadPolicy) {
        self.threads.lock().unwrap().remove(&thread);
        self.strangers.lock().unwrap().insert(thread, pace);
    }
}

impl Threads for Simulated {
    fn owns(&self, thread: u32) -> bool {
        self.threads.lock().unwrap().contains_key(&thread)
    }

    fn outer(&self, named: u32) -> Option<u32> {
        named.checked_add(self.shift)
    }

    fn pace(&self, thread: u32) -> io::Result<ThreadPolicy> {
        let list = if self.owns(thread) { &self.threads } else { &self.strangers };
        list.lock().unwrap().get(&thread).copied().ok_or(io::ErrorKind::NotFound.into())
    }

    fn hurry(&self, thread: u32) -> io::Result<()> {
        if self.refused {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        if self.replaced {
            self.replace(thread, ThreadPolicy::Normal);
        }
        self.set(thread, ThreadPolicy::Boosted)
    }

    fn take_time(&self, thread: u32) -> io::Result<()> {
        self.set(thread, ThreadPolicy::Normal)
    }

    fn used(&self) -> io::Result<u64> {
        Ok(self.used.load(SeqCst))
    }

    fn leader(&self) -> u32 {
        1
    }
}

struct Bench {
    hurry: Hurry,
    threads: Arc<Simulated>,
    page: GrantPage,
    now: u64,
}

const ORDINARY: [(u32, ThreadPolicy); 3] =
    [(1, ThreadPolicy::Normal), (2, ThreadPolicy::Normal), (3, ThreadPolicy::Normal)];

impl Bench {
    fn new(threads: Simulated) -> Bench {
        let page = GrantPage::open(GrantPage::create().unwrap().as_fd()).unwrap();
        Bench { hurry: Hurry::new(true, Log::new(Level::Error)), threads: Arc::new(threads), page, now: 0 }
    }

    fn with(threads: &[(u32, ThreadPolicy)]) -> Bench {
        Bench::new(Simulated::with(threads))
    }

    fn wake(&mut self, tenant: &str, thread: u32, now: u64) {
        let slot = &self.page.slots()[0];
        slot.waiter_tid.store(thread, SeqCst);
        let runner = Runner { tenant: tenant.into(), threads: self.threads.clone() };
        self.hurry.before_waking(&runner, slot, now);
    }

    fn pace(&self, thread: u32) -> ThreadPolicy {
        self.threads.pace(thread).unwrap()
    }

    /// Nanoseconds that a tenant that wants to be in a hurry all the time runs meanwhile, in a second. `of`: in each
    /// hurry, then it gives up; `None`: never.
    fn hurried_in_a_second(&mut self, tenant: &str, of: Option<u64>) -> u64 {
        let (mut ran, end) = (0, self.now + 1_000_000_000);
        while self.now < end {
            self.now += 100_000;
            self.hurry.review(self.now);
            self.wake(tenant, 2, self.now);
            if self.pace(2) == ThreadPolicy::Boosted {
                let runs = of.unwrap_or(100_000);
                ran += runs;
                self.threads.used.fetch_add(runs, SeqCst);
                if of.is_some() {
                    self.threads.take_time(2).unwrap();
                }
            }
        }
        ran
    }
}

const ENDS: u64 = 1000 + LONGEST;

#[test]
fn thread_in_a_sandbox_is_boosted_and_told_by_its_own_id() {
    let mut bench = Bench::new(Simulated { shift: 1, ..Simulated::with(&ORDINARY) });
    bench.wake("t", 1, 1000);
    assert_eq!([1, 2].map(|t| bench.pace(t)), [ThreadPolicy::Normal, ThreadPolicy::Boosted]);
    assert_eq!(bench.page.slots()[0].boosted_tid.load(SeqCst), 1);
    // An id that the process has no thread for.
    bench.wake("t", 7, 1000);
    bench.wake("t", u32::MAX, 1000);
    bench.hurry.end(2000);
    assert_eq!(bench.pace(2), ThreadPolicy::Normal);
}

#[test]
fn a_sleeper_hurries_for_a_bounded_time() {
    let mut bench = Bench::with(&ORDINARY);
    bench.wake("t", 2, 1000);
    assert_eq!([1, 2, 3].map(|t| bench.pace(t)), [ThreadPolicy::Normal, ThreadPolicy::Boosted, ThreadPolicy::Normal]);
    assert_eq!(bench.page.slots()[0].boosted_tid.load(SeqCst), 2);
    let mut looks = vec![1000];
    while let Some(look) = bench.hurry.review(*looks.last().unwrap()) {
        assert_eq!(bench.pace(2), ThreadPolicy::Boosted);
        looks.push(look);
    }
    assert!(looks.len() == 7 && looks[6] == ENDS, "{looks:?}");
    assert!(bench.pace(2) == ThreadPolicy::Normal && bench.hurry.is_over());
}

#[test]
fn who_runs_for_long_is_ordinary_at_the_next_look() {
    let mut bench = Bench::with(&ORDINARY);
    bench.wake("t", 2, 1000);
    bench.threads.used.store(MOST - 1, SeqCst);
    assert_eq!(bench.hurry.review(1000 + LOOK), Some(1000 + 2 * LOOK));
    bench.threads.used.store(MOST, SeqCst);
    assert_eq!(bench.hurry.review(1000 + 2 * LOOK - 1), Some(1000 + 2 * LOOK));
    assert_eq!((bench.hurry.review(1000 + 2 * LOOK), bench.pace(2)), (None, ThreadPolicy::Normal));
}

#[test]
fn who_gives_up_is_forgotten() {
    let mut bench = Bench::with(&ORDINARY);
    bench.wake("t", 2, 1000);
    bench.threads.take_time(2).unwrap();
    assert!(
        bench.hurry.review(1001).is_none() && bench.hurry.is_over(),
        "no look later, which takes somebody's processor"
    );
}

#[test]
fn nobody_sleeps_nobody_hurries() {
    let mut bench = Bench::with(&ORDINARY);
    bench.wake("t", 0, 0);
    assert!(bench.hurry.is_over() && bench.page.slots()[0].boosted_tid.load(SeqCst) == 0);
}

#[test]
fn strangers_threads_are_left_alone() {
    let mut bench = Bench::with(&ORDINARY);
    bench.threads.strangers.lock().unwrap().insert(4711, ThreadPolicy::Normal);
    for thread in [4, 4711, i32::MAX as u32 + 1, u32::MAX] {
        bench.wake("t", thread, 0);
    }
    assert!(bench.hurry.is_over() && bench.pace(4711) == ThreadPolicy::Normal);
    // The id that was hurried is another process's when the time is over, in a hurry of its own.
    bench.wake("t", 2, 0);
    bench.threads.replace(2, ThreadPolicy::Boosted);
    assert!(bench.hurry.review(ENDS).is_none() && bench.hurry.is_over());
    assert_eq!(bench.pace(2), ThreadPolicy::Boosted);
}

#[test]
fn a_stranger_that_is_met_by_accident_is_given_back_at_once() {
    let threads = Mutex::new(ORDINARY.into());
    let mut bench = Bench::new(Simulated { threads, replaced: true, ..Simulated::default() });
    bench.wake("t", 2, 0);
    assert!(bench.hurry.is_over() && bench.pace(2) == ThreadPolicy::Normal);
    assert_eq!(bench.page.slots()[0].boosted_tid.load(SeqCst), 0);
}

#[test]
fn a_thread_that_runs_in_another_way_keeps_it() {
    let mut bench = Bench::with(&[(1, ThreadPolicy::Normal), (2, ThreadPolicy::Other)]);
    bench.wake("t", 2, 0);
    assert!(bench.pace(2) == ThreadPolicy::Other && bench.hurry.is_over());
    // Also one that changed meanwhile.
    bench.threads.threads.lock().unwrap().insert(3, ThreadPolicy::Normal);
    bench.wake("t", 3, 0);
    bench.threads.threads.lock().unwrap().insert(3, ThreadPolicy::Other);
    bench.hurry.review(ENDS);
    assert_eq!(bench.pace(3), ThreadPolicy::Other);
}

#[test]
fn executing_a_program_is_no_escape() {
    let mut bench = Bench::with(&ORDINARY);
    bench.wake("t", 2, 0);
    // The thread has the first one's id now, and the others are gone.
    *bench.threads.threads.lock().unwrap() = [(1, ThreadPolicy::Boosted)].into();
    bench.hurry.review(ENDS);
    assert_eq!(bench.pace(1), ThreadPolicy::Normal);
    // In the moment in which the first one is still there, with the other's id.
    let mut bench = Bench::with(&ORDINARY);
    bench.wake("t", 2, 0);
    *bench.threads.threads.lock().unwrap() = [(1, ThreadPolicy::Boosted), (2, ThreadPolicy::Normal)].into();
    bench.hurry.review(ENDS);
    assert_eq!(bench.pace(1), ThreadPolicy::Normal);
}

#[test]
fn a_tenant_hurries_for_its_part_of_the_time() {
    let mut bench = Bench::with(&ORDINARY);
    let most = 1_000_000_000 / PART;
    for (tenant, of) in [("hog", None), ("good", Some(300_000)), ("quick", Some(0))] {
        bench.hurried_in_a_second(tenant, of);
        let ran = bench.hurried_in_a_second(tenant, of);
        // The last hurry may take more than what is left.
        assert!(ran <= most + 2 * LOOK, "{tenant}: {ran}");
        assert!(of == Some(0) || ran >= most - 2 * LOOK, "{tenant} does not pay for others: {ran}");
    }
}

#[test]
fn where_it_is_refused_it_is_not_tried_again() {
    let mut bench =
        Bench::new(Simulated { threads: Mutex::new(ORDINARY.into()), refused: true, ..Simulated::default() });
    bench.wake("t", 2, 0);
    assert!(bench.hurry.is_over() && !bench.hurry.allowed);
    assert_eq!(bench.page.slots()[0].boosted_tid.load(SeqCst), 0);
}

#[test]
fn nobody_hurries_after_the_end() {
    let mut bench = Bench::with(&ORDINARY);
    bench.wake("t", 2, 0);
    bench.wake("t", 3, 0);
    bench.hurry.end(1);
    assert!(bench.hurry.is_over() && bench.pace(2) == ThreadPolicy::Normal && bench.pace(3) == ThreadPolicy::Normal);
}

#[test]
fn a_process_knows_its_threads() {
    let process = Process::new(std::process::id()).unwrap();
    let here = std::thread::spawn(cpu::current_tid).join().unwrap();
    assert!(process.owns(cpu::current_tid()) && process.owns(process.leader()));
    let parent = rustix::process::getppid().unwrap().as_raw_nonzero().get().unsigned_abs();
    assert!(!process.owns(parent) && !process.owns(u32::MAX));
    assert!(process.used().unwrap() > 0 && cpu::process_cpu_time(5_000_000).is_err());
    // It has ended; the kernel forgets it a moment later.
    let gone = (0..1000).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(1));
        !process.owns(here)
    });
    assert!(gone && process.pace(u32::MAX).is_err() && Process::new(0).is_err());
}

#[test]
fn a_real_thread_hurries_and_takes_its_time() {
    let process = Process::new(std::process::id()).unwrap();
    let check = move || {
        let me = cpu::current_tid();
        cpu::request_short_quantum();
        match process.hurry(me) {
            Ok(()) => {
                assert_eq!(process.pace(me).unwrap(), ThreadPolicy::Boosted);
                assert!(std::thread::spawn(|| cpu::thread_policy(0)).join().unwrap().unwrap() == ThreadPolicy::Normal);
                slow_down(&process, me);
            }
            // Not root, or no real-time threads here.
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::PermissionDenied),
        }
        assert_eq!(process.pace(me).unwrap(), ThreadPolicy::Normal);
    };
    std::thread::spawn(check).join().unwrap();
}
