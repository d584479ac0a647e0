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

// The places at which the crate has them.
mod frames {
    pub(crate) use super::{frame, open};
}
mod resuming {
    pub(crate) use super::resume;
}
mod carry {
    pub(crate) use super::retained;
}

/// The part of the crate's module that `open` needs.
mod processes {
    pub type ProcessKey = [u8; 16];
}

#[path = "../frames.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| target::run(bytes));
