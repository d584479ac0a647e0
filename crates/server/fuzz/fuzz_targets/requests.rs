#![no_main]

#[path = "../../tests/support/mod.rs"]
mod support;
#[path = "../requests.rs"]
mod requests;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| requests::run(bytes));
