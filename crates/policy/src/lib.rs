//! Scheduling policies as small eBPF programs: read, verified, run.
//!
//! A policy is C (or an object compiled from it) with the functions `consume`, which is told a
//! tenant's usage, and `schedule`, which returns the urgency of a waiting command. Only programs
//! that the verifier accepted run: it walks every path of the program, tracks the possible content
//! of each register and stack slot, and bounds the number of instructions. Accepted programs become
//! machine code on x86-64 and are interpreted, with checks, elsewhere.

// The fuzz targets use the crate from outside.
#[cfg(test)]
extern crate self as aviary_policy;
mod context;
#[cfg(test)]
mod differential;
mod error;
mod execute;
#[cfg(test)]
mod fuzz_tests;
mod limits;
mod map;
mod memory;
mod object;
mod policy;
mod slot;
mod verify;

pub use context::{Amounts, Context, RESOURCES, resource_id};
pub use error::{CompilerMessages, PolicyError, Rejection};
pub use map::{Declaration, Kind};
pub use policy::{HOLD, Policy, Summary};
pub use slot::PolicySlot;
