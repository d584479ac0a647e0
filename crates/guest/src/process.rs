//! This process: what it inherits, how its threads end, what it prints.

pub(crate) mod cancellation;
pub mod ffi;
pub(crate) mod fork;
pub(crate) mod log;
pub(crate) mod settings;
pub(crate) mod signals;
pub mod trace;
pub(crate) mod unwind;
