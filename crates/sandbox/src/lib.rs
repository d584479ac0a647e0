//! Confinement of processes that run tenants' code: API servers.
//!
//! An API server may be controlled by its tenant (kernels of a device that computes on the CPU are native code). Three
//! walls bound what such a process reaches:
//!
//! 1. [`namespaces`]: its own mounts, processes, network, IPC, host name and cgroup view. Every process that it starts
//!    ends with it, because the process 1 of its PID namespace does ([`init`]).
//! 2. [`root`]: a file system of its own with the vendor's libraries read-only, a private `/tmp` of limited size, and
//!    the device nodes that its APIs need. What belongs to a tenant alone comes later ([`mounts`]).
//! 3. [`system_calls`]: an allow-list; a call outside it ends the process.
//!
//! The order is: clone into the namespaces, build the root, and, before the first byte of a guest is read, change the
//! user, drop every capability and install the filter. No step can be undone afterwards.

pub mod files;
pub mod init;
pub mod mounts;
pub mod namespaces;
pub mod privileges;
pub mod probe;
pub mod recording;
pub mod root;
pub mod shown;
pub mod system_calls;
mod walls;

use std::str::FromStr;

pub use walls::Walls;

/// How far a node confines its API servers (`aviary serve --sandbox`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// On where this machine can have sandboxes and every API of the node says what it needs in one, otherwise off.
    #[default]
    Auto,
    /// A user id of their own and a short list of refused system calls only.
    Off,
    /// Nothing is refused; what the walls would refuse is told in the log.
    Log,
    /// All walls.
    On,
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Mode::Auto),
            "off" => Ok(Mode::Off),
            "log" => Ok(Mode::Log),
            "on" => Ok(Mode::On),
            _ => Err(format!("`{text}` is not a sandbox mode: expected auto, off, log or on")),
        }
    }
}

impl Mode {
    /// The word that [`Mode::from_str`] reads.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Auto => "auto",
            Mode::Off => "off",
            Mode::Log => "log",
            Mode::On => "on",
        }
    }
}
