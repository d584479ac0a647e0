//! The guest runtime over shared memory.

mod common;

const TRANSPORT: &str = "shm";
const SYNC: &str = "0";

use common::*;

#[test]
fn zerocopy_memory_is_named_not_copied() {
    let api = api();
    let p = api.zerocopy_alloc(10_000);
    assert!(!p.is_null() && api.is_zerocopy(p) && (p as usize).is_multiple_of(4096));
    // SAFETY: `p` has just been allocated with 10,000 bytes.
    assert_eq!(unsafe { p.add(9_999).read() }, 0);
    let mut call = api.call(IDENTITY).unwrap();
    call.zerocopy(p);
    assert!(call.send().unwrap().word() > 4096);
    let mut call = api.call(IDENTITY).unwrap();
    call.zerocopy(8 as *const u8);
    assert_eq!(call.send().unwrap().word(), u64::MAX);
    let mut call = api.call(ECHO).unwrap();
    // SAFETY: `p` has 10,000 bytes.
    unsafe { call.buffer_inout(p, 10_000) };
    call.send().unwrap().out();
    // SAFETY: `p` has 10,000 bytes.
    assert_eq!(unsafe { p.read() }, 1);
    api.zerocopy_free(p);
    assert!(!api.is_zerocopy(8 as *const u8));
}
