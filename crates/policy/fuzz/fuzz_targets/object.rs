#![no_main]

#[path = "../object.rs"]
mod object;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| object::run(bytes));
