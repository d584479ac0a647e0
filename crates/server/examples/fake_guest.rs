//! A guest program of the tests' API, with stubs written by hand over the guest runtime.
#![allow(dead_code)]

#[path = "../tests/support/api.rs"]
mod api;
#[path = "../tests/support/racing.rs"]
mod racing;

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use api::*;
use aviary_guest::{Api, ApiDescriptor, Call, CallbackKind, HandleType, Incoming, Reply, Role, Status};

static GUEST: Api = Api::new(&ApiDescriptor {
    name: "fake",
    version: "1",
    spec_hash: 0x1234,
    environment: &[],
    functions: &["fake"; 21],
    handle_types: &[
        HandleType { name: "object", size: 8, boxed: None, shape: None, predefined: &[], metadata: None },
        HandleType { name: "other", size: 8, boxed: None, shape: None, predefined: &[], metadata: None },
    ],
    callbacks: &[CallbackKind { invoke, lost: None }],
});

fn call(function: u32, write: impl FnOnce(&mut Call)) -> Option<Reply> {
    let mut call = GUEST.call(function).ok()?;
    write(&mut call);
    call.send().ok().filter(|r| r.status() != Status::Lost)
}

fn add(a: u64, b: u64) -> Option<u64> {
    call(ADD, |c| (c.word(a), c.word(b)).1).map(|mut r| r.word())
}

fn push(value: u64) {
    let mut call = GUEST.call(PUSH).expect("attached");
    call.word(value);
    call.send_async().expect("sent");
}

type Function = extern "C" fn(u64, usize) -> u64;

unsafe fn invoke(incoming: &mut Incoming) {
    let value = incoming.word();
    // SAFETY: `apply` and the others register functions of this type only.
    let function: Function = unsafe { std::mem::transmute(incoming.function()) };
    incoming.reply_word(function(value, incoming.userdata()));
}

extern "C" fn plus(value: u64, userdata: usize) -> u64 {
    add(value, userdata as u64).unwrap_or(0)
}

static CALLED: AtomicU64 = AtomicU64::new(0);

extern "C" fn note(value: u64, _: usize) -> u64 {
    CALLED.store(value, Ordering::SeqCst);
    value
}

/// Follows the asynchronous call that waits for it.
extern "C" fn note_sum(value: u64, userdata: usize) -> u64 {
    CALLED.store(plus(value, userdata), Ordering::SeqCst);
    value
}

fn scalars_and_buffers() {
    assert_eq!(add(20, 22), Some(42));
    for n in [0usize, 1, 8, 255, 4096, 4097, 100_000, 3 << 20] {
        let data = vec![3u8; n];
        // SAFETY: `data` has `n` bytes.
        let mut reply = call(SUM, |c| (c.word(n as u64), unsafe { c.buffer_in(data.as_ptr(), n) }).1).unwrap();
        assert_eq!(reply.word(), 3 * n as u64);
        let mut out = vec![0u8; n];
        // SAFETY: `out` has `n` bytes.
        let mut reply = call(FILL, |c| (c.word(7), unsafe { c.buffer_out(out.as_mut_ptr(), n) }).1).unwrap();
        reply.out();
        assert!(out.iter().all(|b| *b == 7), "{n}");
        let mut text: Vec<u8> = (0..n).map(|i| i as u8).collect();
        // SAFETY: `text` has `n` bytes.
        let mut reply = call(REVERSE, |c| unsafe { c.buffer_inout(text.as_mut_ptr(), n) }).unwrap();
        reply.out();
        assert!(text.iter().rev().enumerate().all(|(i, b)| *b == i as u8), "{n}");
    }
    // SAFETY: a literal.
    let mut reply = call(LENGTH, |c| unsafe { c.string(c"eight by".as_ptr()) }).unwrap();
    assert_eq!(reply.word(), 8);
}

fn handles() {
    let create = |bytes: u64| call(CREATE, |c| c.word(bytes)).unwrap();
    let mut reply = create(900);
    let object = reply.handle(OBJECT, Role::Allocate).unwrap();
    assert!(GUEST.is_handle(object) && object != 0);
    assert_eq!(create(200).status(), Status::Refused);
    assert_eq!(call(GET, |c| c.handle(OBJECT, object)).unwrap().status(), Status::Ok);
    for wrong in [1, object + 1, 0x7fff_1234_5678] {
        assert_eq!(call(GET, |c| c.handle(OBJECT, wrong)).unwrap().status(), Status::InvalidHandle(OBJECT));
    }
    assert_eq!(call(DESTROY, |c| c.handle(OBJECT, object)).unwrap().status(), Status::Ok);
    GUEST.release(OBJECT, object, false);
    assert!(!GUEST.is_handle(object));
    assert_eq!(call(GET, |c| c.handle(OBJECT, object)).unwrap().status(), Status::InvalidHandle(OBJECT));
    let mut reply = create(1000);
    let object = reply.handle(OBJECT, Role::Allocate).unwrap();
    call(DESTROY, |c| c.handle(OBJECT, object));
    GUEST.release(OBJECT, object, false);
}

fn asynchronous() {
    push(13);
    let reply = call(ADD, |c| (c.word(0), c.word(0)).1).unwrap();
    assert_eq!(reply.deferred(), Some(42));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..5000).for_each(push));
        }
    });
    assert_eq!(add(1, 1), Some(2));
}

fn callbacks() {
    let sum = call(APPLY, |c| {
        c.word(100);
        c.callback(plus as *const () as usize, 0, 5, false);
    })
    .map(|mut r| r.word());
    assert_eq!(sum, Some(100 * 99 / 2 + 500));
    call(LATER, |c| {
        c.word(77);
        c.callback(note as *const () as usize, 0, 0, true);
    })
    .unwrap();
    await_that("a callback from a thread of the library", || CALLED.load(Ordering::SeqCst) == 77);
    let mut call_ = GUEST.call(APPLY_ASYNC).expect("attached");
    call_.callback(note_sum as *const () as usize, 0, 10, true);
    call_.send_async().expect("sent");
    await_that("a callback from an asynchronous call, which calls", || CALLED.load(Ordering::SeqCst) == 15);
}

fn late_and_mapped() {
    let mut target = vec![0u8; 10_000];
    // SAFETY: `target` has 10,000 bytes and lives until it was delivered.
    let mut reply = call(START, |c| unsafe { c.buffer_until(target.as_mut_ptr(), 10_000, false, true, true) }).unwrap();
    reply.until();
    assert_eq!(target[0], 0);
    call(COMPLETE, |c| c.word(9)).unwrap();
    assert!(target.iter().all(|b| *b == 9), "delivered with the reply to the call that completed it");
    let mut reply = call(MAP, |_| ()).unwrap();
    // SAFETY: no fixed address is asked for.
    let mapped = unsafe { reply.mapped(std::ptr::null_mut(), true, true) };
    // SAFETY: 16 bytes are mapped.
    unsafe {
        assert_eq!(*mapped, 7);
        mapped.write_bytes(8, 16);
    }
    // SAFETY: a mapped pointer.
    let mut reply = call(UNMAP, |c| unsafe { c.unmap(mapped) }).unwrap();
    assert_eq!(reply.word(), 1);
    let mut reply = call(MAP, |_| ()).unwrap();
    // SAFETY: as above.
    assert_eq!(unsafe { *reply.mapped(std::ptr::null_mut(), true, true) }, 8);
}

fn await_that(what: &str, done: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Nanoseconds per synchronous and per asynchronous call.
fn speed() {
    const CALLS: u32 = 200_000;
    (0..1000).for_each(|i| assert_eq!(add(i, i), Some(2 * i)));
    let start = Instant::now();
    (0..CALLS).for_each(|i| assert_eq!(add(u64::from(i), 1), Some(u64::from(i) + 1)));
    let sync = start.elapsed() / CALLS;
    let start = Instant::now();
    (0..CALLS).for_each(|i| push(u64::from(i)));
    let issue = start.elapsed() / CALLS;
    add(0, 0);
    println!("sync {sync:?} async {issue:?}");
}

fn ready() {
    println!("ready");
    let _ = std::io::stdout().flush();
}

fn main() {
    assert_eq!(add(1, 2), Some(3), "attached");
    match std::env::args().nth(1).as_deref() {
        Some("all") => {
            scalars_and_buffers();
            handles();
            asynchronous();
            callbacks();
            late_and_mapped();
            println!("all is well");
        }
        Some("hold") => {
            ready();
            while add(1, 1).is_some() {}
            println!("lost");
        }
        Some("wait") => {
            ready();
            assert!(call(SLEEP, |c| c.word(60_000)).is_none());
            println!("lost");
        }
        Some("speed") => speed(),
        other => panic!("what is {other:?}?"),
    }
}
