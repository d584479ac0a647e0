//! The guest runtime with `AVIARY_SYNC=1`: asynchronous calls wait and return their own errors.

mod common;

const TRANSPORT: &str = "shm";
const SYNC: &str = "1";

use common::*;

#[test]
fn asynchronous_call_returns_its_own_error() {
    let api = api();
    let mut call = api.call(DEFER).unwrap();
    call.word(0);
    assert_eq!(call.send_async(), Ok(Some(-9)));
    let mut call = api.call(POST).unwrap();
    call.word(1);
    assert_eq!(call.send_async(), Ok(None));
    let mut reply = api.call(POSTED).unwrap().send().unwrap();
    assert_eq!((reply.deferred(), reply.word()), (None, 1));
}
