#![no_main]

// The crate makes nothing behind its queues public.
#[allow(dead_code)]
#[path = "../../src/log.rs"]
mod log;
#[allow(dead_code)]
#[path = "../../src/memory.rs"]
mod memory;
#[allow(dead_code)]
#[path = "../../src/request.rs"]
mod request;
#[allow(dead_code)]
#[path = "../../src/session/mod.rs"]
mod session;
#[allow(dead_code)]
#[path = "../../src/sessions.rs"]
mod sessions;

#[path = "../requests.rs"]
mod requests;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| requests::run(bytes));
