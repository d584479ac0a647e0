#![no_main]

#[path = "../snapshot.rs"]
mod snapshot;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| snapshot::run(bytes));
