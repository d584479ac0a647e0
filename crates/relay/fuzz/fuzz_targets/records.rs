#![no_main]

// The crate shows nobody its records.
#[allow(dead_code)]
#[path = "../../src/tls/keys.rs"]
mod keys;
#[allow(dead_code)]
#[path = "../../src/tls/records.rs"]
mod records;

// The place at which the crate has them.
mod tls {
    pub(crate) use super::{keys, records};
}

#[path = "../records.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| target::run(bytes));
