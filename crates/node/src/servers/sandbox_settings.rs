//! What sandboxed API servers see and may do beyond what every one of them needs.

use std::path::PathBuf;

/// Paths of the host that sandboxed API servers see beside what every one of them needs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SandboxSettings {
    /// Which walls this machine has, as `aviary api-server --sandbox-walls` reads it; empty: those of root.
    pub walls: String,
    /// Files and directories that they can read.
    pub read: Vec<PathBuf>,
    /// The node's own files and folders that they never see, nor a folder that holds one.
    pub hidden: Vec<PathBuf>,
    /// Device nodes beside those of known accelerators, and files that stand for devices; `*` may end a name.
    pub devices: Vec<PathBuf>,
    /// Names of system calls that they can make.
    pub system_calls: Vec<String>,
    /// Requests of `ioctl` that they can make: the letter of a type, a number or two.
    pub ioctls: Vec<String>,
    /// Namespaces that they share with the node: pid, net, ipc, uts, cgroup.
    pub share: Vec<String>,
    /// Nothing is refused, and what would be is told in the log.
    pub records: bool,
}
