#![no_main]

#[path = "../block.rs"]
mod block;
#[path = "../scribbler.rs"]
mod scribbler;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| scribbler::run(bytes));
