//! How soon a thread gets a processor when others want it too.
//!
//! While a thread that hands a device on waits for a processor, the device stands still. Two things shorten that.
//! Neither gives anybody more processor time than others: who uses a lot waits like everybody.

use std::cell::Cell;
use std::io;
use std::time::{Duration, Instant};

/// The shortest that Linux knows.
const TURN_NANOSECONDS: u64 = 100_000;

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
pub fn ask_for_short_turns() {
    thread_local!(static ASKED: Cell<bool> = const { Cell::new(false) });
    if !ASKED.replace(true) {
        // Where it is refused, things are as they were.
        let _ = set(libc::SCHED_OTHER, 0, TURN_NANOSECONDS);
    }
}

/// This thread runs whenever it can, before all ordinary ones. It must do little. Refused to most users.
pub fn go_before_others() -> io::Result<()> {
    set(libc::SCHED_FIFO, 1, 0)
}

/// Moving takes some 20 us: not again within so long, if others bring this thread back.
const MOVES_APART: Duration = Duration::from_millis(2);

/// Moves this thread to another processor, if it may run on others. Later it runs wherever it is put, as before.
pub fn step_aside() {
    thread_local!(static MOVED: Cell<Option<Instant>> = const { Cell::new(None) });
    if MOVED.get().is_some_and(|at| at.elapsed() < MOVES_APART) {
        return;
    }
    MOVED.set(Some(Instant::now()));
    let Ok(allowed) = rustix::thread::sched_getaffinity(None) else { return };
    let mut others = allowed;
    others.unset(rustix::thread::sched_getcpu());
    if others.count() > 0 {
        // Where it is refused, things are as they were.
        let _ = rustix::thread::sched_setaffinity(None, &others);
        let _ = rustix::thread::sched_setaffinity(None, &allowed);
    }
}

/// How nice a process is that yields: it gets about a thirtieth of what others get.
const YIELDING: libc::c_int = 15;

/// All of this process goes after others, or as everybody does. Where Linux shares the processors by sessions of
/// processes (autogroup), the niceness of the session counts and that of threads does not.
pub fn yield_to_others(yields: bool) -> io::Result<()> {
    let nice = if yields { YIELDING } else { 0 };
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
pub fn keep_usual_niceness() {
    let usual = libc::rlimit { rlim_cur: USUAL, rlim_max: USUAL };
    // SAFETY: `usual` is a valid limit that is only read. Refused to most users, who lose nothing.
    unsafe { libc::setrlimit(libc::RLIMIT_NICE, &raw const usual) };
}

/// Niceness 0, as the limit counts it.
const USUAL: libc::rlim_t = 20;

fn may_be_less_nice() -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid for writing.
    unsafe { libc::getrlimit(libc::RLIMIT_NICE, &raw mut limit) == 0 && limit.rlim_cur >= USUAL }
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
            ask_for_short_turns();
            assert_eq!(policy(), libc::SCHED_OTHER | 0x4000_0000, "with SCHED_RESET_ON_FORK");
            std::thread::spawn(move || assert_eq!(policy(), libc::SCHED_OTHER)).join().expect("a thread of its own");
        };
        std::thread::spawn(prompt).join().expect("as expected");
    }
}
