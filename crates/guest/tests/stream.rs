//! The guest runtime over streams, with a mirrored arena.

mod common;

const TRANSPORT: &str = "stream";
const SYNC: &str = "0";

use common::*;

#[test]
fn there_is_no_zerocopy_memory() {
    let api = api();
    assert!(api.zerocopy_alloc(4096).is_null());
    assert!(!api.is_zerocopy(8 as *const u8));
}
