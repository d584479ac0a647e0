//! Scheduling policies as small eBPF programs: read, verified, run.
//!
//! A policy is C (or an object compiled from it) with the functions `consume`, which is told a
//! tenant's usage, and `schedule`, which returns the urgency of a waiting command. Only programs
//! that the verifier accepted run: it walks every path of the program, tracks the possible content
//! of each register and stack slot, and bounds the number of instructions. Accepted programs become
//! machine code on x86-64 and are interpreted, with checks, elsewhere.

mod btf;
mod compile;
mod context;
#[cfg(test)]
mod differential;
mod disassemble;
mod elf;
mod error;
mod helpers;
mod instruction;
mod interpret;
#[cfg(target_arch = "x86_64")]
mod jit;
mod limits;
mod map;
mod policy;
mod run;
mod slot;
mod verify;

pub use context::{Amounts, Context, RESOURCES, resource_id};
pub use error::{CompilerMessages, PolicyError, Rejection};
pub use map::{Declaration, Kind};
pub use policy::{HOLD, Policy, Summary};
pub use slot::PolicySlot;
