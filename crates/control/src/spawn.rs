//! How the node starts an API server process.

use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::io::{FdFlags, fcntl_setfd};

/// The process that `command` starts gets a session of its own and inherits `control` under its present number.
///
/// A session, not only a process group: signals from the terminal are for the guest, and printing is no reason
/// to be stopped (`stty tostop`). The command keeps the descriptor until it is dropped.
pub fn prepare_to_spawn(command: &mut Command, control: OwnedFd) {
    let prepare = move || {
        rustix::process::setsid()?;
        Ok(fcntl_setfd(&control, FdFlags::empty())?)
    };
    // SAFETY: between fork and exec only async-signal-safe functions may run; the closure makes two
    // system calls, on a descriptor that it owns, and allocates nothing.
    unsafe { command.pre_exec(prepare) };
}

/// Turns address space layout randomization off in the process that `command` starts, if the kernel lets it: filters of
/// containers can refuse the call, which is no error.
pub fn fix_addresses(command: &mut Command) {
    let prepare = || {
        // SAFETY: takes effect on this process only and touches no memory.
        unsafe { libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong) };
        Ok(())
    };
    // SAFETY: between fork and exec only async-signal-safe functions may run; the closure makes one system call.
    unsafe { command.pre_exec(prepare) };
}
