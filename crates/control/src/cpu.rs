//! How soon a thread gets a processor when others want it too.
//!
//! While a thread that hands a device on waits for a processor, the device stands still. Two things shorten that without
//! giving anybody more processor time than others: short turns, and another processor than the program's. The node,
//! where it may, does more: the thread that it grants a device to is a real-time thread as long as it has the device, but
//! for no longer than the node allows.

use std::cell::Cell;
use std::io;
use std::time::{Duration, Instant};

/// The shortest that Linux knows.
const SHORT_QUANTUM_NS: u64 = 100_000;

/// The kernel's `struct sched_attr`, first version.
#[repr(C)]
#[derive(Default)]
struct SchedulingAttributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// What this thread starts begins as usual: a vendor's threads that compute.
const RESET_ON_FORK: u64 = 1;

/// This thread gets short turns, and in exchange gets them soon (Linux 6.12 and newer; older ones do not care).
pub fn request_short_quantum() {
    thread_local!(static ASKED: Cell<bool> = const { Cell::new(false) });
    if !ASKED.replace(true) {
        // Where it is refused, things are as they were.
        let _ = set(libc::SCHED_OTHER, 0, SHORT_QUANTUM_NS);
    }
}

/// What [`boost`] makes of a thread.
const BOOST_POLICY: libc::c_int = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
/// The lowest there is.
const BOOST_PRIORITY: libc::c_int = 1;
/// Before all who are in a hurry, so that it can always take that back.
const SCHEDULER_PRIORITY: u32 = BOOST_PRIORITY as u32 + 1;

/// This thread runs whenever it can, before all ordinary ones and those in a hurry. It must do little. Refused to most
/// users.
pub fn set_scheduler_priority() -> io::Result<()> {
    set(libc::SCHED_FIFO, SCHEDULER_PRIORITY, 0)
}

/// The number by which other processes know this thread.
pub fn current_tid() -> u32 {
    thread_local!(static NUMBER: u32 = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs());
    NUMBER.with(|number| *number)
}

/// How another thread, or this one (0), gets its processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThreadPolicy {
    /// As ordinary threads do.
    Normal,
    /// As [`boost`] says, and nobody else makes threads like that.
    Boosted,
    /// In a way that is none of ours.
    Other,
}

pub fn thread_policy(thread: u32) -> io::Result<ThreadPolicy> {
    // SAFETY: a number in, a number out. A thread that is not there is an error.
    match unsafe { libc::syscall(libc::SYS_sched_getscheduler, thread) } {
        -1 => Err(io::Error::last_os_error()),
        policy if policy == libc::c_long::from(BOOST_POLICY) => Ok(ThreadPolicy::Boosted),
        policy if policy & !libc::c_long::from(libc::SCHED_RESET_ON_FORK) == libc::c_long::from(libc::SCHED_OTHER) => {
            Ok(ThreadPolicy::Normal)
        }
        _ => Ok(ThreadPolicy::Other),
    }
}

/// For how long all threads of a process had a processor, ever; up to now, also of those that run.
pub fn process_cpu_time(process: u32) -> io::Result<Duration> {
    // The kernel's name for that clock: all bits of the process's number inverted, and the kind in the last three.
    const SCHEDULED: libc::clockid_t = 2;
    let clock = !(process as libc::clockid_t) << 3 | SCHEDULED;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writing. A process that is not there is an error.
    match unsafe { libc::clock_gettime(clock, &raw mut time) } {
        0 => Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// That thread is a real-time thread from now on; what it starts is not. Refused to most users.
pub fn boost(thread: u32) -> io::Result<()> {
    set_policy(thread, BOOST_POLICY, BOOST_PRIORITY)
}

/// That thread, or this one (0), is an ordinary one again, as nice as it is and with turns as short as they were. Anybody
/// may do that to threads of their own.
pub fn set_normal_policy(thread: u32) -> io::Result<()> {
    set_policy(thread, libc::SCHED_OTHER | libc::SCHED_RESET_ON_FORK, 0)
}

// Whether this thread is in a hurry, unless that was taken back.
thread_local!(static BOOSTED: Cell<bool> = const { Cell::new(false) });

/// The node has hurried this thread.
pub fn note_boosted() {
    BOOSTED.set(true);
}

/// Whether this thread goes before all ordinary ones, as far as it knows.
pub fn is_boosted() -> bool {
    BOOSTED.get()
}

/// This thread does nothing urgent any longer.
pub fn unboost() {
    if BOOSTED.replace(false) {
        // Nobody is refused to be an ordinary thread; and the node would do it soon.
        let _ = set_normal_policy(0);
    }
}

fn set_policy(thread: u32, policy: libc::c_int, priority: libc::c_int) -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: the parameters are valid and only read. The kernel's own call: musl's function of that name does nothing.
    match unsafe { libc::syscall(libc::SYS_sched_setscheduler, thread, policy, &raw const parameters) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Moving takes some 20 us: not again within so long, if others bring this thread back.
const MIN_MIGRATION_INTERVAL: Duration = Duration::from_millis(2);

/// Moves this thread to another processor, if it may run on others: whether it did. Later it runs wherever it is put, as before.
pub fn migrate_off_cpu() -> bool {
    thread_local!(static MOVED: Cell<Option<Instant>> = const { Cell::new(None) });
    if MOVED.get().is_some_and(|at| at.elapsed() < MIN_MIGRATION_INTERVAL) {
        return false;
    }
    MOVED.set(Some(Instant::now()));
    let Ok(allowed) = rustix::thread::sched_getaffinity(None) else { return false };
    let mut others = allowed;
    others.unset(rustix::thread::sched_getcpu());
    if others.count() == 0 {
        return false;
    }
    let moved = rustix::thread::sched_setaffinity(None, &others).is_ok();
    let _ = rustix::thread::sched_setaffinity(None, &allowed);
    moved
}

/// Whether this thread may run on more than one processor.
pub fn may_migrate() -> bool {
    rustix::thread::sched_getaffinity(None).is_ok_and(|allowed| allowed.count() > 1)
}

/// How nice a process is that yields: it gets about a thirtieth of what others get.
const YIELDING_NICE: libc::c_int = 15;

/// All of this process goes after others, or as everybody does. Where Linux shares the processors by sessions of
/// processes (autogroup), the niceness of the session counts and that of threads does not.
pub fn set_yielding(yields: bool) -> io::Result<()> {
    let nice = if yields { YIELDING_NICE } else { 0 };
    match std::fs::write("/proc/self/autogroup", nice.to_string()) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    if !may_be_less_nice() {
        return Ok(());
    }
    // An API server leads a process group of its own.
    // SAFETY: 0 means this thread's group, in Linux; the call touches no memory.
    match unsafe { libc::setpriority(libc::PRIO_PGRP, 0, nice) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Allows this process, where it may, to be as nice as usual again whoever it is by then.
pub fn allow_nice_zero() {
    let usual = libc::rlimit { rlim_cur: NICE_ZERO_RLIMIT, rlim_max: NICE_ZERO_RLIMIT };
    // SAFETY: `usual` is a valid limit that is only read. Refused to most users, who lose nothing.
    unsafe { libc::setrlimit(libc::RLIMIT_NICE, &raw const usual) };
}

/// Niceness 0, as the limit counts it.
const NICE_ZERO_RLIMIT: libc::rlim_t = 20;

fn may_be_less_nice() -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid for writing.
    unsafe { libc::getrlimit(libc::RLIMIT_NICE, &raw mut limit) == 0 && limit.rlim_cur >= NICE_ZERO_RLIMIT }
}

fn set(policy: libc::c_int, priority: u32, runtime: u64) -> io::Result<()> {
    let attributes = SchedulingAttributes {
        size: size_of::<SchedulingAttributes>() as u32,
        policy: policy as u32,
        flags: RESET_ON_FORK,
        priority,
        runtime,
        // SAFETY: 0 means this thread, in Linux; the call touches no memory.
        nice: unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) },
        ..SchedulingAttributes::default()
    };
    // SAFETY: 0 means this thread; the structure is valid, of the size that it says, and only read.
    match unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_turns_are_this_threads_own() {
        let policy = || {
            // SAFETY: asks about this thread.
            unsafe { libc::sched_getscheduler(0) }
        };
        let prompt = move || {
            request_short_quantum();
            assert_eq!(policy(), libc::SCHED_OTHER | 0x4000_0000, "with SCHED_RESET_ON_FORK");
            std::thread::spawn(move || assert_eq!(policy(), libc::SCHED_OTHER)).join().expect("a thread of its own");
        };
        std::thread::spawn(prompt).join().expect("as expected");
    }
}
