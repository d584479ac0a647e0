//! The change from root to a tenant's user.

use std::io;

use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set, remove_capability_from_bounding_set, set_capabilities,
};

/// Processes and threads of one user id that the kernel allows at most. The threads of CPU devices count: PoCL has one
/// per CPU and session.
pub const MAX_PROCESSES: u64 = 16_384;

/// Becomes user `id` (also as group) with `groups`, without any way back, and limits what one user can use up.
///
/// Called while the process has one thread of ours: the C library changes the ids of all threads.
///
/// # Errors
/// Those of `setgroups`, `setresgid`, `setresuid`: the caller is not root.
pub fn become_user(id: u32, groups: &[u32]) -> io::Result<()> {
    clear_bounding_set();
    let done = |result: libc::c_int| if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
    // SAFETY: the list is valid, of this length, and only read.
    done(unsafe { libc::setgroups(groups.len(), groups.as_ptr()) })?;
    // SAFETY: takes effect on this process only and touches no memory.
    done(unsafe { libc::setresgid(id, id, id) })?;
    // SAFETY: takes effect on this process only and touches no memory. Leaving user 0 clears all capabilities.
    done(unsafe { libc::setresuid(id, id, id) })?;
    // No limit of file sizes: it holds for memory files, too, in which drivers keep device memory.
    limit(Resource::Nproc, MAX_PROCESSES)
}

fn clear_bounding_set() {
    for capability in CapabilitySet::all().iter() {
        // The kernel may know fewer capabilities than the list, and a process without CAP_SETPCAP has none to lose.
        let _ = remove_capability_from_bounding_set(capability);
    }
}

/// Gives up all capabilities and stays the user that it is.
pub fn drop_capabilities() {
    clear_bounding_set();
    let none = CapabilitySet::empty();
    // A process without capabilities may set none of them again, so that nothing is lost if this is refused.
    let _ = clear_ambient_capability_set();
    let _ = set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none });
}

/// Lowers a limit; one that is lower already stays.
fn limit(resource: Resource, most: u64) -> io::Result<()> {
    let now = rustix::process::getrlimit(resource);
    let most = now.maximum.map_or(most, |maximum| maximum.min(most));
    let current = now.current.map_or(most, |current| current.min(most));
    Ok(setrlimit(resource, Rlimit { current: Some(current), maximum: Some(most) })?)
}
