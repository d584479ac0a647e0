//! Boosts: the thread that is granted a device becomes a real-time thread for a bounded time.
//!
//! A granted device is idle while the granted thread waits for a processor. A normal thread may wait for tens of milliseconds
//! beside a flood of CPU-bound threads, because the CPU scheduler counts what it used long ago against it at each wake-up. So
//! the scheduling thread boosts the waiter of a device before it wakes it. The waiter gives the boost up when it gives the
//! device back, or before it spins for its program.
//!
//! A hostile API server does not give it up. The node alone bounds what a boost takes: CPU time of the process in one boost
//! ([`MAX_BOOST_CPU_NS`], read every [`BOOST_POLL_NS`]), its duration ([`MAX_BOOST_NS`]), and the CPU time of all boosts of a
//! tenant ([`TENANT_BOOST_DIVISOR`]). The scheduling thread has a higher priority. A boosted thread cannot boost itself again,
//! and its children are normal threads.
//!
//! The API server says which thread waits. The node boosts normal threads of that very process only. Thread ids are reused, so
//! ownership is checked before and after each change: a change to another process's thread is undone at once.

use crate::log::Log;
use aviary_control::PidNamespace;
use aviary_control::cpu::{self, ThreadPolicy};
use aviary_gate::DeviceSlot;
use rustix::fs::{Access, AtFlags, Mode, OFlags, accessat, open};
use std::{
    collections::HashMap,
    fmt::Debug,
    io,
    os::fd::OwnedFd,
    sync::{Arc, atomic::Ordering::SeqCst},
};

/// Longest duration of a boost in nanoseconds; its thread sleeps for most of it.
const MAX_BOOST_NS: u64 = 12_000_000;
/// Nanoseconds between two readings of the CPU time that a boosted process has used.
const BOOST_POLL_NS: u64 = 2_000_000;
/// A boost ends at the first reading of this CPU time of its process, in nanoseconds. Most slices need a third of it.
const MAX_BOOST_CPU_NS: u64 = 1_000_000;
/// The boosts of a tenant may use one part in this many of one processor's time.
const TENANT_BOOST_DIVISOR: u64 = 20;
/// Most CPU time in nanoseconds that a tenant can save up for later boosts.
const MAX_SAVED_CPU_NS: u64 = 10_000_000;
/// Least CPU time in nanoseconds that a boost is charged with.
const MIN_BOOST_CHARGE_NS: u64 = 20_000;
/// Tenants remembered before those are forgotten that have earned all of what they used.
const MAX_REMEMBERED_TENANTS: usize = 256;

/// The threads of an API server and their scheduling policies.
pub trait Threads: Debug + Send + Sync {
    /// Whether this is the id of a thread of that process, now.
    fn owns(&self, thread: u32) -> bool;
    /// The node's id of the thread whose id in its own PID namespace is `inner`. `None`: there is no such thread.
    fn outer(&self, inner: u32) -> Option<u32> {
        Some(inner)
    }
    /// The policy of any thread of the machine.
    fn policy(&self, thread: u32) -> io::Result<ThreadPolicy>;
    fn boost(&self, thread: u32) -> io::Result<()>;
    fn unboost(&self, thread: u32) -> io::Result<()>;
    /// CPU time in nanoseconds of all threads of that process since its start.
    fn cpu_time(&self) -> io::Result<u64>;
    /// The id of its first thread, which is the process's id.
    fn leader(&self) -> u32;
}

/// A process that the node has not reaped.
#[derive(Debug)]
pub struct Process {
    id: u32,
    /// Its `/proc/PID/task`, which never becomes that of another process with this id.
    tasks: OwnedFd,
    /// `None`: it is in the node's own PID namespace.
    namespace: Option<PidNamespace>,
}

impl Process {
    pub fn new(id: u32) -> io::Result<Process> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let tasks = open(format!("/proc/{id}/task"), flags, Mode::empty())?;
        Ok(Process { id, tasks, namespace: PidNamespace::of(id).unwrap_or_default() })
    }
}

impl Threads for Process {
    fn owns(&self, thread: u32) -> bool {
        accessat(&self.tasks, thread.to_string(), Access::EXISTS, AtFlags::empty()).is_ok()
    }

    fn outer(&self, inner: u32) -> Option<u32> {
        match &self.namespace {
            None => Some(inner),
            // A thread of any process of the namespace; `owns` says if it is this one's.
            Some(namespace) => namespace.outer(inner).ok(),
        }
    }

    fn policy(&self, thread: u32) -> io::Result<ThreadPolicy> {
        cpu::thread_policy(thread)
    }

    fn boost(&self, thread: u32) -> io::Result<()> {
        cpu::boost(thread)
    }

    fn unboost(&self, thread: u32) -> io::Result<()> {
        cpu::set_normal_policy(thread)
    }

    fn cpu_time(&self) -> io::Result<u64> {
        let time = cpu::process_cpu_time(self.id)?;
        Ok(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
    }

    fn leader(&self) -> u32 {
        self.id
    }
}

/// The threads of a session's API server, and the tenant that its boosts are charged to.
#[derive(Debug, Clone)]
pub struct ServerThreads {
    pub tenant: Arc<str>,
    pub threads: Arc<dyn Threads>,
}

/// A boost that has not ended. Times are nanoseconds of the scheduler's clock.
#[derive(Debug)]
struct BoostedThread {
    server: ServerThreads,
    thread: u32,
    since: u64,
    next_poll: u64,
    /// CPU time of its process at the start of the boost.
    cpu_at_start: u64,
}

impl BoostedThread {
    /// CPU time of its process during the boost; the maximum if the process has ended and cannot be asked.
    fn cpu_used(&self) -> u64 {
        self.server.threads.cpu_time().map_or(MAX_BOOST_CPU_NS, |time| time.saturating_sub(self.cpu_at_start))
    }

    fn is_still_boosted(&self) -> bool {
        matches!(self.server.threads.policy(self.thread), Ok(ThreadPolicy::Boosted))
    }
}

/// All boosts of the node. Owned by the scheduling thread, whose priority is above that of boosted threads.
#[derive(Debug)]
pub struct Booster {
    /// False where the node is not root, or where its control group may have no real-time threads.
    allowed: bool,
    log: Log,
    boosted: Vec<BoostedThread>,
    /// By tenant: the time at which it has earned the CPU time that its boosts used.
    earned_at: HashMap<Arc<str>, u64>,
}

impl Booster {
    pub fn new(allowed: bool, log: Log) -> Booster {
        Booster { allowed, log, boosted: Vec::new(), earned_at: HashMap::new() }
    }

    pub fn is_idle(&self) -> bool {
        self.boosted.is_empty()
    }

    /// Boosts the thread that sleeps at `slot`. Called before the allowance is raised, so that the thread wakes up boosted.
    pub fn boost_waiter(&mut self, server: &ServerThreads, slot: &DeviceSlot, now: u64) {
        let inner = slot.waiter_tid.load(SeqCst);
        if !self.allowed || inner == 0 || !self.has_credit(&server.tenant, now) {
            return;
        }
        let threads = &server.threads;
        let Some(thread) = threads.outer(inner) else { return };
        let known = self.boosted.iter().any(|boosted| boosted.thread == thread);
        if known || !threads.owns(thread) || !matches!(threads.policy(thread), Ok(ThreadPolicy::Normal)) {
            return;
        }
        let Ok(cpu_at_start) = threads.cpu_time() else { return };
        match threads.boost(thread) {
            Ok(()) if !threads.owns(thread) => unboost_if_boosted(&**threads, thread),
            Ok(()) => {
                slot.boosted_tid.store(inner, SeqCst);
                let next_poll = now + BOOST_POLL_NS;
                let server = server.clone();
                self.boosted.push(BoostedThread { server, thread, since: now, next_poll, cpu_at_start });
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                self.allowed = false;
                log_no_real_time(self.log, &error);
            }
            // The thread has just ended.
            Err(_) => {}
        }
    }

    /// Whether the tenant may have another boost.
    fn has_credit(&mut self, tenant: &Arc<str>, now: u64) -> bool {
        if self.earned_at.len() > MAX_REMEMBERED_TENANTS {
            self.earned_at.retain(|_, at| *at > now);
        }
        self.earned_at.get(tenant).is_none_or(|at| *at < now + MAX_SAVED_CPU_NS * TENANT_BOOST_DIVISOR)
    }

    fn charge(&mut self, tenant: &Arc<str>, used: u64, now: u64) {
        let at = self.earned_at.entry(tenant.clone()).or_default();
        *at = now.max(*at).saturating_add(used.max(MIN_BOOST_CHARGE_NS).saturating_mul(TENANT_BOOST_DIVISOR));
    }

    /// Ends the boosts that have reached a bound or were given up. The result is the time of the next review.
    pub fn review(&mut self, now: u64) -> Option<u64> {
        let mut at = 0;
        while at < self.boosted.len() {
            let boosted = &mut self.boosted[at];
            let due = boosted.next_poll <= now;
            let overdue = due && (boosted.since + MAX_BOOST_NS <= now || boosted.cpu_used() >= MAX_BOOST_CPU_NS);
            // A boost that was given up is forgotten now: a later review would take CPU time from the next holder.
            if overdue || !boosted.is_still_boosted() {
                let ended = self.boosted.swap_remove(at);
                self.end_one(&ended, now);
                continue;
            }
            if due {
                boosted.next_poll = now + BOOST_POLL_NS;
            }
            at += 1;
        }
        self.boosted.iter().map(|boosted| boosted.next_poll).min()
    }

    /// Ends all boosts.
    pub fn end(&mut self, now: u64) {
        for boosted in std::mem::take(&mut self.boosted) {
            self.end_one(&boosted, now);
        }
    }

    fn end_one(&mut self, boosted: &BoostedThread, now: u64) {
        unboost(&*boosted.server.threads, boosted.thread);
        self.charge(&boosted.server.tenant, boosted.cpu_used(), now);
    }
}

/// Says once that grants wait for the CPU scheduler.
pub fn log_no_real_time(log: Log, error: &io::Error) {
    log.debug(format_args!("real-time priority unavailable ({error}): grant latency depends on the CPU scheduler"));
}

fn unboost_if_boosted(threads: &dyn Threads, thread: u32) {
    if matches!(threads.policy(thread), Ok(ThreadPolicy::Boosted)) {
        let _ = threads.unboost(thread);
    }
}

fn unboost(threads: &dyn Threads, thread: u32) {
    // A thread that executes another program takes the id of its process's first thread and keeps its policy. That can happen
    // between any two of these lines, so the first thread is checked last, whatever was found before.
    for thread in [thread, threads.leader()] {
        if threads.owns(thread) {
            unboost_if_boosted(threads, thread);
        }
    }
}

#[cfg(test)]
#[path = "boost_tests.rs"]
pub mod tests;
