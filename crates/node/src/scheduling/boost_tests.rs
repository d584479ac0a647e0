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
    others: Mutex<BTreeMap<u32, ThreadPolicy>>,
    refused: bool,
    /// The thread ends just before it is boosted, and another process's thread starts with its id.
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

    fn set(&self, thread: u32, policy: ThreadPolicy) -> io::Result<()> {
        let list = if self.owns(thread) { &self.threads } else { &self.others };
        list.lock().unwrap().insert(thread, policy).map(drop).ok_or(io::ErrorKind::NotFound.into())
    }

    fn replace(&self, thread: u32, policy: ThreadPolicy) {
        self.threads.lock().unwrap().remove(&thread);
        self.others.lock().unwrap().insert(thread, policy);
    }
}

impl Threads for Simulated {
    fn owns(&self, thread: u32) -> bool {
        self.threads.lock().unwrap().contains_key(&thread)
    }

    fn outer(&self, inner: u32) -> Option<u32> {
        inner.checked_add(self.shift)
    }

    fn policy(&self, thread: u32) -> io::Result<ThreadPolicy> {
        let list = if self.owns(thread) { &self.threads } else { &self.others };
        list.lock().unwrap().get(&thread).copied().ok_or(io::ErrorKind::NotFound.into())
    }

    fn boost(&self, thread: u32) -> io::Result<()> {
        if self.refused {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        if self.replaced {
            self.replace(thread, ThreadPolicy::Normal);
        }
        self.set(thread, ThreadPolicy::Boosted)
    }

    fn unboost(&self, thread: u32) -> io::Result<()> {
        self.set(thread, ThreadPolicy::Normal)
    }

    fn cpu_time(&self) -> io::Result<u64> {
        Ok(self.used.load(SeqCst))
    }

    fn leader(&self) -> u32 {
        1
    }
}

struct Bench {
    booster: Booster,
    threads: Arc<Simulated>,
    page: GrantPage,
    now: u64,
}

const ORDINARY: [(u32, ThreadPolicy); 3] =
    [(1, ThreadPolicy::Normal), (2, ThreadPolicy::Normal), (3, ThreadPolicy::Normal)];

impl Bench {
    fn new(threads: Simulated) -> Bench {
        let page = GrantPage::open(GrantPage::create().unwrap().as_fd()).unwrap();
        Bench { booster: Booster::new(true, Log::new(Level::Error)), threads: Arc::new(threads), page, now: 0 }
    }

    fn with(threads: &[(u32, ThreadPolicy)]) -> Bench {
        Bench::new(Simulated::with(threads))
    }

    fn wake(&mut self, tenant: &str, thread: u32, now: u64) {
        let slot = &self.page.slots()[0];
        slot.waiter_tid.store(thread, SeqCst);
        let server = ServerThreads { tenant: tenant.into(), threads: self.threads.clone() };
        self.booster.boost_waiter(&server, slot, now);
    }

    fn policy(&self, thread: u32) -> ThreadPolicy {
        self.threads.policy(thread).unwrap()
    }

    /// CPU nanoseconds in one second of a tenant that always has a waiter. `of`: it gives each boost up after that many;
    /// `None`: never.
    fn boosts_in_a_second(&mut self, tenant: &str, of: Option<u64>) -> u64 {
        let (mut ran, end) = (0, self.now + 1_000_000_000);
        while self.now < end {
            self.now += 100_000;
            self.booster.review(self.now);
            self.wake(tenant, 2, self.now);
            if self.policy(2) == ThreadPolicy::Boosted {
                let runs = of.unwrap_or(100_000);
                ran += runs;
                self.threads.used.fetch_add(runs, SeqCst);
                if of.is_some() {
                    self.threads.unboost(2).unwrap();
                }
            }
        }
        ran
    }
}

const ENDS: u64 = 1000 + MAX_BOOST_NS;

#[test]
fn thread_in_a_sandbox_is_boosted_and_told_by_its_own_id() {
    let mut bench = Bench::new(Simulated { shift: 1, ..Simulated::with(&ORDINARY) });
    bench.wake("t", 1, 1000);
    assert_eq!([1, 2].map(|t| bench.policy(t)), [ThreadPolicy::Normal, ThreadPolicy::Boosted]);
    assert_eq!(bench.page.slots()[0].boosted_tid.load(SeqCst), 1);
    // An id that the process has no thread for.
    bench.wake("t", 7, 1000);
    bench.wake("t", u32::MAX, 1000);
    bench.booster.end(2000);
    assert_eq!(bench.policy(2), ThreadPolicy::Normal);
}

#[test]
fn boost_of_a_sleeper_is_bounded_in_time() {
    let mut bench = Bench::with(&ORDINARY);
    bench.wake("t", 2, 1000);
    assert_eq!([1, 2, 3].map(|t| bench.policy(t)), [ThreadPolicy::Normal, ThreadPolicy::Boosted, ThreadPolicy::Normal]);
    assert_eq!(bench.page.slots()[0].boosted_tid.load(SeqCst), 2);
    let mut polls = vec![1000];
    while let Some(poll) = bench.booster.review(*polls.last().unwrap()) {
        assert_eq!(bench.policy(2), ThreadPolicy::Boosted);
        polls.push(poll);
    }
    assert!(polls.len() == 7 && polls[6] == ENDS, "{polls:?}");
    assert!(bench.policy(2) == ThreadPolicy::Normal && bench.booster.is_idle());
}

#[test]
fn boost_ends_at_the_next_poll_of_a_long_run() {
    let mut bench = Bench::with(&ORDINARY);
    bench.wake("t", 2, 1000);
    bench.threads.used.store(MAX_BOOST_CPU_NS - 1, SeqCst);
    assert_eq!(bench.booster.review(1000 + BOOST_POLL_NS), Some(1000 + 2 * BOOST_POLL_NS));
    bench.threads.used.store(MAX_BOOST_CPU_NS, SeqCst);
    assert_eq!(bench.booster.review(1000 + 2 * BOOST_POLL_NS - 1), Some(1000 + 2 * BOOST_POLL_NS));
    assert_eq!((bench.booster.review(1000 + 2 * BOOST_POLL_NS), bench.policy(2)), (None, ThreadPolicy::Normal));
}

#[test]
fn thread_that_unboosts_itself_is_forgotten() {
    let mut bench = Bench::with(&ORDINARY);
    bench.wake("t", 2, 1000);
    bench.threads.unboost(2).unwrap();
    assert!(
        bench.booster.review(1001).is_none() && bench.booster.is_idle(),
        "no later review, which takes CPU time from the next holder"
    );
}

#[test]
fn no_sleeper_means_no_boost() {
    let mut bench = Bench::with(&ORDINARY);
    bench.wake("t", 0, 0);
    assert!(bench.booster.is_idle() && bench.page.slots()[0].boosted_tid.load(SeqCst) == 0);
}

#[test]
fn threads_of_other_processes_are_not_boosted() {
    let mut bench = Bench::with(&ORDINARY);
    bench.threads.others.lock().unwrap().insert(4711, ThreadPolicy::Normal);
    for thread in [4, 4711, i32::MAX as u32 + 1, u32::MAX] {
        bench.wake("t", thread, 0);
    }
    assert!(bench.booster.is_idle() && bench.policy(4711) == ThreadPolicy::Normal);
    // The boosted id is that of another process's boosted thread when the boost ends.
    bench.wake("t", 2, 0);
    bench.threads.replace(2, ThreadPolicy::Boosted);
    assert!(bench.booster.review(ENDS).is_none() && bench.booster.is_idle());
    assert_eq!(bench.policy(2), ThreadPolicy::Boosted);
}

#[test]
fn boost_of_a_reused_thread_id_is_undone_at_once() {
    let threads = Mutex::new(ORDINARY.into());
    let mut bench = Bench::new(Simulated { threads, replaced: true, ..Simulated::default() });
    bench.wake("t", 2, 0);
    assert!(bench.booster.is_idle() && bench.policy(2) == ThreadPolicy::Normal);
    assert_eq!(bench.page.slots()[0].boosted_tid.load(SeqCst), 0);
}

#[test]
fn thread_with_another_policy_keeps_it() {
    let mut bench = Bench::with(&[(1, ThreadPolicy::Normal), (2, ThreadPolicy::Other)]);
    bench.wake("t", 2, 0);
    assert!(bench.policy(2) == ThreadPolicy::Other && bench.booster.is_idle());
    // Also one that changed meanwhile.
    bench.threads.threads.lock().unwrap().insert(3, ThreadPolicy::Normal);
    bench.wake("t", 3, 0);
    bench.threads.threads.lock().unwrap().insert(3, ThreadPolicy::Other);
    bench.booster.review(ENDS);
    assert_eq!(bench.policy(3), ThreadPolicy::Other);
}

#[test]
fn executing_a_program_is_no_escape() {
    let mut bench = Bench::with(&ORDINARY);
    bench.wake("t", 2, 0);
    // The thread has the first one's id now, and the others are gone.
    *bench.threads.threads.lock().unwrap() = [(1, ThreadPolicy::Boosted)].into();
    bench.booster.review(ENDS);
    assert_eq!(bench.policy(1), ThreadPolicy::Normal);
    // In the moment in which the first one is still there, with the other's id.
    let mut bench = Bench::with(&ORDINARY);
    bench.wake("t", 2, 0);
    *bench.threads.threads.lock().unwrap() = [(1, ThreadPolicy::Boosted), (2, ThreadPolicy::Normal)].into();
    bench.booster.review(ENDS);
    assert_eq!(bench.policy(1), ThreadPolicy::Normal);
}

#[test]
fn boosts_of_a_tenant_are_bounded_in_cpu_time() {
    let mut bench = Bench::with(&ORDINARY);
    let most = 1_000_000_000 / TENANT_BOOST_DIVISOR;
    for (tenant, of) in [("hog", None), ("good", Some(300_000)), ("quick", Some(0))] {
        bench.boosts_in_a_second(tenant, of);
        let ran = bench.boosts_in_a_second(tenant, of);
        // The last boost may take more than what is left.
        assert!(ran <= most + 2 * BOOST_POLL_NS, "{tenant}: {ran}");
        assert!(of == Some(0) || ran >= most - 2 * BOOST_POLL_NS, "{tenant} does not pay for others: {ran}");
    }
}

#[test]
fn refused_boost_is_not_tried_again() {
    let mut bench =
        Bench::new(Simulated { threads: Mutex::new(ORDINARY.into()), refused: true, ..Simulated::default() });
    bench.wake("t", 2, 0);
    assert!(bench.booster.is_idle() && !bench.booster.allowed);
    assert_eq!(bench.page.slots()[0].boosted_tid.load(SeqCst), 0);
}

#[test]
fn all_boosts_end_with_the_scheduler() {
    let mut bench = Bench::with(&ORDINARY);
    bench.wake("t", 2, 0);
    bench.wake("t", 3, 0);
    bench.booster.end(1);
    assert!(
        bench.booster.is_idle() && bench.policy(2) == ThreadPolicy::Normal && bench.policy(3) == ThreadPolicy::Normal
    );
}

#[test]
fn a_process_knows_its_threads() {
    let process = Process::new(std::process::id()).unwrap();
    let here = std::thread::spawn(cpu::current_tid).join().unwrap();
    assert!(process.owns(cpu::current_tid()) && process.owns(process.leader()));
    let parent = rustix::process::getppid().unwrap().as_raw_nonzero().get().unsigned_abs();
    assert!(!process.owns(parent) && !process.owns(u32::MAX));
    assert!(process.cpu_time().unwrap() > 0 && cpu::process_cpu_time(5_000_000).is_err());
    // It has ended; the kernel forgets it a moment later.
    let gone = (0..1000).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(1));
        !process.owns(here)
    });
    assert!(gone && process.policy(u32::MAX).is_err() && Process::new(0).is_err());
}

#[test]
fn real_thread_is_boosted_and_unboosted() {
    let process = Process::new(std::process::id()).unwrap();
    let check = move || {
        let me = cpu::current_tid();
        cpu::request_short_quantum();
        match process.boost(me) {
            Ok(()) => {
                assert_eq!(process.policy(me).unwrap(), ThreadPolicy::Boosted);
                assert!(std::thread::spawn(|| cpu::thread_policy(0)).join().unwrap().unwrap() == ThreadPolicy::Normal);
                unboost(&process, me);
            }
            // Not root, or no real-time threads here.
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::PermissionDenied),
        }
        assert_eq!(process.policy(me).unwrap(), ThreadPolicy::Normal);
    };
    std::thread::spawn(check).join().unwrap();
}
