//! The latency with which a thread gets a CPU while other threads are runnable.
//!
//! While a thread that hands a device over waits for a CPU, the device is idle. A short scheduling quantum shortens that
//! wait and gives no thread more CPU time than others. The node, where it may, also boosts: the thread that it grants a
//! device to is a real-time thread for as long as it holds the device, within the bounds of the node's scheduler.

use std::cell::Cell;
use std::io;
use std::time::Duration;

/// What a thread knows of itself.
struct ThisThread {
    /// It has asked for a short quantum.
    asked: Cell<bool>,
    /// Its id; 0: not known yet.
    number: Cell<u32>,
    /// It is boosted; stays true if the node ended the boost.
    boosted: Cell<bool>,
}

thread_local! {
    static THREAD: ThisThread = const {
        ThisThread { asked: Cell::new(false), number: Cell::new(0), boosted: Cell::new(false) }
    };
}

/// The shortest quantum that Linux accepts, in nanoseconds.
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

/// Threads started by this one, such as a vendor's that compute, begin with the normal policy.
const RESET_ON_FORK: u64 = 1;

/// Gives this thread a short quantum, which it gets sooner in exchange (Linux 6.12 and newer; older ones ignore it).
pub fn request_short_quantum() {
    if !THREAD.with(|thread| thread.asked.replace(true)) {
        // A refusal leaves the thread as it was.
        let _ = set(libc::SCHED_OTHER, 0, SHORT_QUANTUM_NS);
    }
}

/// The policy of a thread after [`boost`].
const BOOST_POLICY: libc::c_int = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
/// The lowest real-time priority.
const BOOST_PRIORITY: libc::c_int = 1;
/// Above all boosted threads, so that the scheduler can always end a boost.
const SCHEDULER_PRIORITY: u32 = BOOST_PRIORITY as u32 + 1;

/// Makes this thread run before all normal and all boosted ones. It must do little. Refused to most users.
pub fn set_scheduler_priority() -> io::Result<()> {
    set(libc::SCHED_FIFO, SCHEDULER_PRIORITY, 0)
}

/// This thread's id, by which other processes know it.
pub fn current_tid() -> u32 {
    THREAD.with(|thread| {
        if thread.number.get() == 0 {
            thread.number.set(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs());
        }
        thread.number.get()
    })
}

/// The scheduling policy of another thread, or of this one (0).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThreadPolicy {
    /// The policy of ordinary threads.
    Normal,
    /// The policy that [`boost`] sets, and no other program sets.
    Boosted,
    /// Any other policy, set by the program or its user.
    Other,
}

pub fn thread_policy(thread: u32) -> io::Result<ThreadPolicy> {
    // SAFETY: numbers in, a number out; no memory is touched. A thread that does not exist is an error.
    match unsafe { libc::syscall(libc::SYS_sched_getscheduler, thread) } {
        -1 => Err(io::Error::last_os_error()),
        policy if policy == libc::c_long::from(BOOST_POLICY) => Ok(ThreadPolicy::Boosted),
        policy if policy & !libc::c_long::from(libc::SCHED_RESET_ON_FORK) == libc::c_long::from(libc::SCHED_OTHER) => {
            Ok(ThreadPolicy::Normal)
        }
        _ => Ok(ThreadPolicy::Other),
    }
}

/// CPU time of all threads of a process since its start, that of running threads up to now included.
pub fn process_cpu_time(process: u32) -> io::Result<Duration> {
    // The kernel's id of a process's CPU clock: its number with all bits inverted, and the kind in the last three bits.
    const SCHEDULED: libc::clockid_t = 2;
    let clock = !(process as libc::clockid_t) << 3 | SCHEDULED;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writing. A process that is not there is an error.
    match unsafe { libc::clock_gettime(clock, &raw mut time) } {
        0 => Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Makes a thread a real-time thread; threads that it starts are not. Refused to most users.
pub fn boost(thread: u32) -> io::Result<()> {
    set_policy(thread, BOOST_POLICY, BOOST_PRIORITY)
}

/// Gives a thread, or this one (0), the normal policy again, with its niceness and quantum as they were. Any user may do
/// that to threads of their own.
pub fn set_normal_policy(thread: u32) -> io::Result<()> {
    set_policy(thread, libc::SCHED_OTHER | libc::SCHED_RESET_ON_FORK, 0)
}

/// Notes that the node has boosted this thread.
pub fn note_boosted() {
    THREAD.with(|thread| thread.boosted.set(true));
}

/// True if this thread is boosted, as far as it knows.
pub fn is_boosted() -> bool {
    THREAD.with(|thread| thread.boosted.get())
}

/// Ends the boost of this thread.
pub fn unboost() {
    if THREAD.with(|thread| thread.boosted.replace(false)) {
        // The normal policy is refused to no thread, and the node would set it soon.
        let _ = set_normal_policy(0);
    }
}

fn set_policy(thread: u32, policy: libc::c_int, priority: libc::c_int) -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: the parameters are valid and only read. The system call is used: musl's function does nothing.
    match unsafe { libc::syscall(libc::SYS_sched_setscheduler, thread, policy, &raw const parameters) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// True if this thread may run on more than one CPU.
pub fn has_other_cpus() -> bool {
    rustix::thread::sched_getaffinity(None).is_ok_and(|allowed| allowed.count() > 1)
}

/// Niceness of a process that yields: it gets about a thirtieth of the CPU time of others.
const YIELDING_NICE: libc::c_int = 15;

/// Makes this process yield to others, or ends that. Where Linux shares the CPUs by sessions of processes (autogroup),
/// the niceness of the session counts and that of threads does not.
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

/// Allows this process, where it may, to return to niceness 0 later, also under another user id.
pub fn allow_nice_zero() {
    let usual = libc::rlimit { rlim_cur: NICE_ZERO_RLIMIT, rlim_max: NICE_ZERO_RLIMIT };
    // SAFETY: `usual` is a valid limit that is only read. A refusal, usual for most users, changes nothing.
    unsafe { libc::setrlimit(libc::RLIMIT_NICE, &raw const usual) };
}

/// Niceness 0, as RLIMIT_NICE counts it.
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
    fn short_quantum_is_this_threads_own() {
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
