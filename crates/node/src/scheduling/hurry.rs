//! Who has a device gets a processor at once.
//!
//! While the thread that has a device waits for a processor, the device stands still. Ordinary threads may wait for tens of
//! milliseconds where only a flood of others runs: what they used too much of long ago counts against them, all the more
//! the less the others weigh. It does so at every moment at which such a thread wakes up or becomes an ordinary one
//! again. So the node makes the thread that waits for a device a real-time thread before it wakes it, and the thread gives
//! that up when it gives the device back, or has to wait for its program by spinning.
//!
//! An API server that was taken over would not. What it can do with it is bounded by the node alone: how much processor
//! time it takes in one hurry ([`MOST`], looked at every [`LOOK`]), for how long that lasts ([`LONGEST`]), and how much
//! its tenant takes in all of them ([`PART`]). The node's own thread goes before it. It cannot become a real-time thread
//! again, nor can what it starts be one.
//!
//! Which thread waits is the API server's word. The node only touches ordinary threads of that very process. The ids of
//! threads come back, so it looks every time, before and after: what it may have done to a thread that has just begun with
//! the id of one that has just ended is undone at once.

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

/// Nanoseconds for which a thread may be a real-time thread, most of them asleep.
const LONGEST: u64 = 12_000_000;
/// Nanoseconds between two looks at what its process used of the processors meanwhile.
const LOOK: u64 = 2_000_000;
/// Who has used so many nanoseconds is in a hurry no more. Most slices need a third of it.
const MOST: u64 = 1_000_000;
/// A tenant may use one part of so many of a processor's time in hurries.
const PART: u64 = 20;
/// Nanoseconds of that which it can save up.
const SAVED: u64 = 10_000_000;
/// What every hurry counts as at least, in nanoseconds.
const LEAST: u64 = 20_000;
/// Tenants that are remembered before those are forgotten that owe nothing.
const REMEMBERED: usize = 256;

/// The threads of an API server, and how they get a processor.
pub trait Threads: Debug + Send + Sync {
    /// Whether this is the id of a thread of that process, now.
    fn owns(&self, thread: u32) -> bool;
    /// The node's id for a thread that its own process knows by `named`: in a sandbox ids are others.
    fn outer(&self, named: u32) -> Option<u32> {
        Some(named)
    }
    /// Of any thread.
    fn pace(&self, thread: u32) -> io::Result<ThreadPolicy>;
    fn hurry(&self, thread: u32) -> io::Result<()>;
    fn take_time(&self, thread: u32) -> io::Result<()>;
    /// Nanoseconds for which all threads of that process had a processor, ever.
    fn used(&self) -> io::Result<u64>;
    /// The first of its threads, whose id is the process's.
    fn leader(&self) -> u32;
}

/// A process that the node has not reaped.
#[derive(Debug)]
pub struct Process {
    id: u32,
    /// Its `/proc/PID/task`, which never becomes that of another process with this id.
    tasks: OwnedFd,
    /// `None`: it is the node's own.
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

    fn outer(&self, named: u32) -> Option<u32> {
        match &self.namespace {
            None => Some(named),
            // Any thread of the namespace; `owns` says whose it is.
            Some(namespace) => namespace.outer(named).ok(),
        }
    }

    fn pace(&self, thread: u32) -> io::Result<ThreadPolicy> {
        cpu::thread_policy(thread)
    }

    fn hurry(&self, thread: u32) -> io::Result<()> {
        cpu::boost(thread)
    }

    fn take_time(&self, thread: u32) -> io::Result<()> {
        cpu::set_normal_policy(thread)
    }

    fn used(&self) -> io::Result<u64> {
        let used = cpu::process_cpu_time(self.id)?;
        Ok(u64::try_from(used.as_nanos()).unwrap_or(u64::MAX))
    }

    fn leader(&self) -> u32 {
        self.id
    }
}

/// A session's API server, and for whom it works.
#[derive(Debug, Clone)]
pub struct Runner {
    pub tenant: Arc<str>,
    pub threads: Arc<dyn Threads>,
}

/// A thread that the node has made a real-time thread.
#[derive(Debug)]
struct Hurried {
    runner: Runner,
    thread: u32,
    since: u64,
    /// When the node looks next.
    look: u64,
    /// What its process had used when it began.
    before: u64,
}

impl Hurried {
    /// What was used since. Who cannot be asked has ended, and pays for the most.
    fn used(&self) -> u64 {
        self.runner.threads.used().map_or(MOST, |used| used.saturating_sub(self.before))
    }

    /// Whether it is still what it was made.
    fn goes_on(&self) -> bool {
        matches!(self.runner.threads.pace(self.thread), Ok(ThreadPolicy::Boosted))
    }
}

/// All threads that are in a hurry. Belongs to the scheduling thread, which goes before them.
#[derive(Debug)]
pub struct Hurry {
    /// Not where the node is no root, or its control group may have no real-time threads.
    allowed: bool,
    log: Log,
    hurried: Vec<Hurried>,
    /// By tenant: when it will have earned what it used.
    owed: HashMap<Arc<str>, u64>,
}

impl Hurry {
    pub fn new(allowed: bool, log: Log) -> Hurry {
        Hurry { allowed, log, hurried: Vec::new(), owed: HashMap::new() }
    }

    pub fn is_over(&self) -> bool {
        self.hurried.is_empty()
    }

    /// Before the allowance is raised: the thread that sleeps there will wait for no processor.
    pub fn before_waking(&mut self, runner: &Runner, slot: &DeviceSlot, now: u64) {
        let named = slot.waiter_tid.load(SeqCst);
        if !self.allowed || named == 0 || !self.may(&runner.tenant, now) {
            return;
        }
        let threads = &runner.threads;
        let Some(thread) = threads.outer(named) else { return };
        let known = self.hurried.iter().any(|hurried| hurried.thread == thread);
        if known || !threads.owns(thread) || !matches!(threads.pace(thread), Ok(ThreadPolicy::Normal)) {
            return;
        }
        let Ok(before) = threads.used() else { return };
        match threads.hurry(thread) {
            Ok(()) if !threads.owns(thread) => give_back(&**threads, thread),
            Ok(()) => {
                slot.boosted_tid.store(named, SeqCst);
                self.hurried.push(Hurried { runner: runner.clone(), thread, since: now, look: now + LOOK, before });
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                self.allowed = false;
                self.log.debug(format_args!("who gets a device waits for a processor like everybody: {error}"));
            }
            // It ended just now.
            Err(_) => {}
        }
    }

    /// Whether the tenant has something left.
    fn may(&mut self, tenant: &Arc<str>, now: u64) -> bool {
        if self.owed.len() > REMEMBERED {
            self.owed.retain(|_, owed| *owed > now);
        }
        self.owed.get(tenant).is_none_or(|owed| *owed < now + SAVED * PART)
    }

    fn charge(&mut self, tenant: &Arc<str>, used: u64, now: u64) {
        let owed = self.owed.entry(tenant.clone()).or_default();
        *owed = now.max(*owed).saturating_add(used.max(LEAST).saturating_mul(PART));
    }

    /// Takes back what has lasted long enough. The result is when to look again.
    pub fn review(&mut self, now: u64) -> Option<u64> {
        let mut at = 0;
        while at < self.hurried.len() {
            let hurried = &mut self.hurried[at];
            let overdue = hurried.look <= now && (hurried.since + LONGEST <= now || hurried.used() >= MOST);
            // Who has given it up needs no look later, which would take the processor of who has the device by then.
            let ends = overdue || !hurried.goes_on();
            if ends {
                let hurried = self.hurried.swap_remove(at);
                self.end_one(&hurried, now);
            } else {
                if hurried.look <= now {
                    hurried.look = now + LOOK;
                }
                at += 1;
            }
        }
        self.hurried.iter().map(|hurried| hurried.look).min()
    }

    /// Takes back everything.
    pub fn end(&mut self, now: u64) {
        for hurried in std::mem::take(&mut self.hurried) {
            self.end_one(&hurried, now);
        }
    }

    fn end_one(&mut self, hurried: &Hurried, now: u64) {
        slow_down(&*hurried.runner.threads, hurried.thread);
        self.charge(&hurried.runner.tenant, hurried.used(), now);
    }
}

/// Whoever has the id of a thread now that was just hurried.
fn give_back(threads: &dyn Threads, thread: u32) {
    if matches!(threads.pace(thread), Ok(ThreadPolicy::Boosted)) {
        let _ = threads.take_time(thread);
    }
}

fn slow_down(threads: &dyn Threads, thread: u32) {
    // A thread that executes another program takes the id of its process's first thread, and stays what it is. That can
    // happen between any two of these lines, so the first thread is looked at last, whatever was found before.
    for thread in [thread, threads.leader()] {
        if threads.owns(thread) {
            give_back(threads, thread);
        }
    }
}

#[cfg(test)]
#[path = "hurry_tests.rs"]
pub mod tests;
