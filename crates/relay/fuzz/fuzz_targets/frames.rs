#![no_main]

// The crate shows nobody its frames.
#[allow(dead_code)]
#[path = "../../src/frames/frame.rs"]
mod frame;
#[allow(dead_code)]
#[path = "../../src/frames/open.rs"]
mod open;
#[allow(dead_code)]
#[path = "../../src/resuming/resume.rs"]
mod resume;
#[allow(dead_code)]
#[path = "../../src/carry/retained.rs"]
mod retained;
#[allow(dead_code)]
#[path = "../../src/carry/handing/sleepers.rs"]
mod sleepers;
#[allow(dead_code)]
#[path = "../../src/strands/pieces.rs"]
mod pieces;
#[allow(dead_code)]
#[path = "../../src/strands/arrivals.rs"]
mod arrivals;

/// The part of the crate's module that `sleepers` needs.
mod sync {
    pub use std::sync::{Condvar, MutexGuard};
}

// The places at which the crate has them.
mod frames {
    pub(crate) use super::{frame, open};
}
mod resuming {
    pub(crate) use super::resume;
}
mod carry {
    pub(crate) use super::retained;
    pub(crate) mod handing {
        pub(crate) use super::super::sleepers;
    }
}
mod strands {
    pub(crate) use super::{arrivals, pieces};
}

/// The part of the crate's module that `open` needs.
mod processes {
    pub type ProcessKey = [u8; 16];
}

#[path = "../frames.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| target::run(bytes));
