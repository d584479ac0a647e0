#![no_main]

#[path = "../block.rs"]
mod block;
#[path = "../hostile_peer.rs"]
mod hostile_peer;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hostile_peer::run(bytes));
