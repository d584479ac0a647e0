//! Test cases that hold for every transport.

use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use aviary_guest::{Api, Role, Status};

use super::*;

/// Upper bound of a wait in a test: a longer one is a hang. Says nothing about speed.
const HANG_TIMEOUT: Duration = Duration::from_secs(60);

fn add(api: &'static Api, a: u64, b: u64) -> Option<u64> {
    let mut call = api.call(ADD).ok()?;
    call.word(a);
    call.word(b);
    let mut reply = call.send().ok()?;
    assert_eq!(reply.status(), Status::Ok);
    Some(reply.word())
}

fn posted(api: &'static Api) -> (u64, u64) {
    let mut reply = api.call(POSTED).unwrap().send().unwrap();
    (reply.word(), reply.word())
}

fn post(api: &'static Api, v: u64) {
    let mut call = api.call(POST).unwrap();
    call.word(v);
    call.send_async().unwrap();
}

#[test]
fn synchronous_calls_answer() {
    let api = api();
    for n in 0..5000 {
        assert_eq!(add(api, n, 3), Some(n + 3));
    }
}

#[test]
fn threads_have_lanes_of_their_own_and_return_them() {
    let api = api();
    for round in 0..5 {
        let threads: Vec<_> = (0..8u64)
            .map(|t| {
                std::thread::spawn(move || {
                    for n in 0..300 {
                        assert_eq!(add(api, n, t), Some(n + t), "round {round}");
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
    }
}

#[test]
fn asynchronous_calls_come_first() {
    let api = api();
    for n in 0..1000 {
        post(api, n);
    }
    assert_eq!(posted(api), (1000, 1));
    // A call that another thread posted earlier is visible to a later call.
    let turn = Arc::new(AtomicU64::new(1000));
    let threads: Vec<_> = (0..2u64)
        .map(|me| {
            let turn = turn.clone();
            std::thread::spawn(move || {
                for n in 0..100 {
                    while turn.load(Ordering::Acquire) != 1000 + 2 * n + me {
                        std::thread::yield_now();
                    }
                    post(api, 1000 + 2 * n + me);
                    turn.fetch_add(1, Ordering::Release);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert_eq!(posted(api), (1200, 1));
}

#[test]
fn buffers_of_all_sizes_are_sent_and_returned() {
    let api = api();
    for n in [1usize, 8, 255, 256, 257, 4095, 4096, 4097, 100_000, 3_000_000] {
        let mut data: Vec<u8> = (0..n).map(|i| i as u8).collect();
        let mut call = api.call(ECHO).unwrap();
        // SAFETY: the vector outlives the reply.
        unsafe { call.buffer_inout(data.as_mut_ptr(), n) };
        call.send().unwrap().out();
        assert!(data.iter().enumerate().all(|(i, b)| *b == (i as u8).wrapping_add(1)), "{n}");

        let mut out = vec![5u8; n];
        let mut call = api.call(FILL).unwrap();
        // SAFETY: the vector outlives the reply.
        unsafe { call.buffer_out(out.as_mut_ptr(), n) };
        call.send().unwrap().out();
        assert!(out[..n - 1].iter().all(|b| *b == 9) && out[n - 1] == 5, "{n}: the last byte stays");
    }
    let mut call = api.call(FILL).unwrap();
    // SAFETY: NULL.
    unsafe { call.buffer_out(std::ptr::null_mut(), 100) };
    let mut reply = call.send().unwrap();
    reply.out();
    assert_eq!(reply.status(), Status::Ok);
}

#[test]
fn handles_live_and_end() {
    let api = api();
    for ty in 0..3u32 {
        let mut call = api.call(MAKE).unwrap();
        call.word(u64::from(ty));
        call.word(u64::from(ty));
        let value = call.send().unwrap().handle(ty, Role::Allocate).unwrap();
        assert!(api.is_handle(value));
        if ty == 0 {
            // SAFETY: a live handle points to a block, whose first word a loader reads.
            assert_eq!(unsafe { *(value as *const usize) }, 0xd15);
        }
        let identity = |value| {
            let mut call = api.call(IDENTITY).unwrap();
            call.handle(ty, value);
            call.send().unwrap().word()
        };
        let id = u64::from(ty) << 56 | 7 << 32 | u64::from(ty + 1);
        assert_eq!(identity(value), id);
        assert!(!api.metadata(value, 1).is_null());
        api.retain(ty, value);
        api.release(ty, value, false);
        assert!(api.is_handle(value));
        api.release(ty, value, false);
        assert!(!api.is_handle(value) && api.metadata(value, 1).is_null());
        if ty != 1 {
            assert_eq!(identity(value), u64::MAX);
        }
    }
}

#[test]
fn deferred_outputs_arrive_with_a_later_reply() {
    let api = api();
    for asynchronous in [false, true] {
        let mut data = vec![1u8; 10_000];
        let mut call = api.call(READ_LATER).unwrap();
        call.word(1);
        // SAFETY: the vector outlives the delivery below.
        unsafe { call.buffer_until(data.as_mut_ptr(), 10_000, false, true, asynchronous) };
        if asynchronous {
            call.send_async().unwrap();
        } else {
            call.send().unwrap().until();
        }
        assert!(data.iter().all(|b| *b == 1));
        add(api, 1, 2).unwrap();
        let early = data.iter().all(|b| *b == 1);
        add(api, 1, 2).unwrap();
        assert!(early && data.iter().all(|b| *b == 0xda));
    }
}

#[test]
fn rejected_asynchronous_call_returns_its_blocks() {
    let api = api();
    let mut data = vec![1u8; 20 << 20];
    // More calls than the arena has room for.
    for _ in 0..100 {
        let mut call = api.call(REJECT).unwrap();
        // SAFETY: the vector outlives the connection's use of it: no delivery arrives.
        unsafe { call.buffer_until(data.as_mut_ptr(), data.len(), false, true, true) };
        call.send_async().unwrap();
        add(api, 1, 2).unwrap();
    }
    assert!(data.iter().all(|b| *b == 1));
}

#[test]
fn memory_of_a_released_handle_is_not_used_again_before_the_release_is_executed() {
    let api = api();
    let place = |p: &mut Vec<u8>| {
        let mut call = api.call(SHADOW).unwrap();
        // SAFETY: the vector has as many bytes.
        unsafe { call.shadow(p.as_mut_ptr(), p.len(), true, false) };
        call.send().unwrap().word()
    };
    let (mut a, mut b, mut c) = (vec![0u8; 50_000], vec![0u8; 50_000], vec![0u8; 50_000]);
    let mut call = api.call(MAKE).unwrap();
    call.word(1);
    call.word(0);
    let owner = call.send().unwrap().handle(1, Role::Allocate).unwrap();
    let first = place(&mut a);
    api.couple(a.as_mut_ptr(), owner);
    api.call(PAUSE).unwrap().send_async().unwrap();
    api.release(1, owner, true);
    let second = place(&mut b);
    if crate::SYNC == "0" {
        assert_ne!(second, first, "the server has not executed the release");
        assert_eq!(place(&mut c), first, "now it has");
    } else {
        assert_eq!(second, first);
    }
}

#[test]
fn delivery_received_by_one_thread_is_visible_to_all() {
    let api = api();
    for _ in 0..50 {
        let mut data = vec![1u8; 200_000];
        let mut call = api.call(READ_LATER).unwrap();
        call.word(0);
        // SAFETY: the vector outlives the delivery below.
        unsafe { call.buffer_until(data.as_mut_ptr(), 200_000, false, true, false) };
        call.send().unwrap().until();
        let address = data.as_ptr() as usize;
        let threads: Vec<_> = (0..3)
            .map(|_| {
                std::thread::spawn(move || {
                    add(api, 1, 1).unwrap();
                    // SAFETY: the vector lives until the threads are joined.
                    unsafe { (address as *const u8).add(199_999).read() }
                })
            })
            .collect();
        for t in threads {
            assert_eq!(t.join().unwrap(), 0xda);
        }
    }
}

static SEEN: AtomicI32 = AtomicI32::new(0);

unsafe fn on_call(userdata: usize, x: i32, text: *const i8, out: *mut u8) -> i32 {
    // SAFETY: the server sends a string and four bytes; userdata is the API.
    unsafe {
        assert_eq!(std::ffi::CStr::from_ptr(text.cast()).to_bytes(), b"text");
        out.cast::<i32>().write_unaligned(1000);
        let api = &*(userdata as *const Api);
        let api: &'static Api = std::mem::transmute(api);
        SEEN.fetch_add(x, Ordering::SeqCst);
        add(api, x as u64, 1).unwrap() as i32
    }
}

#[test]
fn callbacks_run_on_the_waiting_thread_and_may_call() {
    let api = api();
    let me = std::ptr::from_ref(api) as usize;
    for n in 0..200 {
        let mut call = api.call(CALL_BACK).unwrap();
        call.callback(on_call as *const () as usize, 0, me, n % 2 == 0);
        call.word(n);
        assert_eq!(call.send().unwrap().word(), n + 1 + 1000);
    }
    let mut call = api.call(CALL_BACK).unwrap();
    call.word(123_456);
    call.word(1);
    assert_eq!(call.send().unwrap().word(), u64::MAX, "an unknown id is refused");
}

#[test]
fn callbacks_of_other_threads_run_on_the_callback_thread() {
    static ELSEWHERE: AtomicI32 = AtomicI32::new(0);
    unsafe fn count(userdata: usize, x: i32, text: *const i8, out: *mut u8) -> i32 {
        // SAFETY: the server sends a string and four bytes; userdata is the API.
        let r = unsafe { on_call(userdata, x, text, out) };
        ELSEWHERE.fetch_add(1, Ordering::SeqCst);
        r
    }
    let api = api();
    for _ in 0..20 {
        let mut call = api.call(CALL_BACK_ELSEWHERE).unwrap();
        call.callback(count as *const () as usize, 0, std::ptr::from_ref(api) as usize, false);
        call.word(5);
        call.send().unwrap();
    }
    let start = Instant::now();
    while ELSEWHERE.load(Ordering::SeqCst) < 20 {
        assert!(start.elapsed() < HANG_TIMEOUT);
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn mapped_memory_is_read_and_written() {
    let api = api();
    // An odd mapping is fetched at once, an even one is delivered with the next reply.
    for id in [1u64, 2] {
        let mut call = api.call(MAP).unwrap();
        call.word(id);
        call.word(50_000);
        let mut reply = call.send().unwrap();
        // SAFETY: no address is given.
        let p = unsafe { reply.mapped(std::ptr::null_mut(), true, true) };
        drop(reply);
        assert!(!p.is_null());
        add(api, 1, 1).unwrap();
        // SAFETY: mapped for 50,000 bytes.
        unsafe {
            assert_eq!(p.add(49_999).read(), if id == 1 { 0x77 } else { 0xda });
            p.write(0x42);
        }
        let mut call = api.call(UNMAP).unwrap();
        // SAFETY: `p` is a live mapping.
        unsafe { call.unmap(p) };
        let mut reply = call.send().unwrap();
        assert_eq!((reply.word(), reply.word()), (id, 0x42));
    }
    let mut call = api.call(UNMAP).unwrap();
    // SAFETY: the address is not mapped, so it is not read.
    unsafe { call.unmap(8 as *const u8) };
    assert_eq!(call.send().unwrap().word(), 3);
}

#[test]
fn memory_is_mapped_at_the_applications_address() {
    let api = api();
    let mut own = vec![0u8; 5000];
    let mut call = api.call(MAP).unwrap();
    call.word(1);
    call.word(5000);
    let mut reply = call.send().unwrap();
    // SAFETY: `own` has 5000 bytes and lives until the unmap.
    let p = unsafe { reply.mapped(own.as_mut_ptr(), true, true) };
    drop(reply);
    assert_eq!(p, own.as_mut_ptr());
    assert!(own.iter().all(|b| *b == 0x77));
    own[0] = 0x43;
    let mut call = api.call(UNMAP).unwrap();
    // SAFETY: `own` has 5000 bytes and lives until the unmap.
    unsafe { call.unmap(p) };
    let mut reply = call.send().unwrap();
    assert_eq!((reply.word(), reply.word()), (1, 0x43));
}

#[test]
fn shadows_are_copied_back_on_request() {
    let api = api();
    let mut data = vec![0u8; 9000];
    let p = data.as_mut_ptr();
    let mut call = api.call(SHADOW).unwrap();
    // SAFETY: the buffer has 9000 bytes.
    unsafe { call.shadow(p, 9000, false, true) };
    api.register_buf(0, 7, p, 9000);
    call.send_async().unwrap();
    assert!(data.iter().all(|b| *b == 0));
    assert_eq!((api.get_n_bufs(0, 7), api.get_buf_size(0, 7, 0)), (1, 9000));
    // SAFETY: the registry has one element.
    let registered = unsafe { *api.get_bufs(0, 7) };
    let mut call = api.call(SHADOW).unwrap();
    // SAFETY: the buffer has 9000 bytes.
    unsafe { call.shadow_copy_back(registered.cast(), 9000, true) };
    call.send().unwrap();
    assert!(data.iter().all(|b| *b == 0x3c));
    assert_eq!(api.get_n_bufs(0, 7), 1, "the old snapshot stays until the next query");
    assert!(!api.get_bufs(0, 7).is_null());
    assert_eq!(api.get_n_bufs(0, 7), 0);
}

#[test]
fn pure_queries_are_sent_once() {
    let api = api();
    let ask = |key: u64, content: u64| {
        let mut out = content;
        let mut call = api.call(COUNT).unwrap();
        call.word(key);
        // SAFETY: eight bytes that outlive the reply.
        unsafe { call.buffer_out((&raw mut out).cast(), 8) };
        let mut reply = call.send_cached().unwrap();
        let count = reply.word();
        reply.remember();
        count
    };
    assert_eq!(ask(1, 0), 0);
    assert_eq!(ask(1, 77), 0, "the output's old content does not matter");
    assert_eq!(ask(2, 0), 1);
    assert_eq!(ask(1, 5), 0);
}

#[test]
fn failures_are_distinguished() {
    let api = api();
    let fail = |status: u32| {
        let mut call = api.call(FAIL).unwrap();
        call.word(u64::from(status));
        call.send().unwrap().status()
    };
    assert_eq!(fail(1), Status::Unsupported);
    assert_eq!(fail(2), Status::InvalidHandle(3));
    assert_eq!(fail(3), Status::Refused);
    assert_eq!(fail(4), Status::Failed(-5));
    assert_eq!(fail(5), Status::Lost);
    let mut call = api.call(DEFER).unwrap();
    call.word(0);
    let mut reply = call.send().unwrap();
    assert_eq!((reply.deferred(), reply.word()), (Some(-9), 1));
}

#[test]
fn strings_live_as_long_as_the_session() {
    let api = api();
    let text = || api.call(TEXT).unwrap().send().unwrap().string(0);
    let first = text();
    assert_eq!(first, text());
    // SAFETY: a string of the library, which lives as long as the session.
    assert_eq!(unsafe { std::ffi::CStr::from_ptr(first) }.to_bytes(), b"hello");
}

#[test]
fn blocks_of_asynchronous_calls_are_not_reused_early() {
    let api = api();
    // More blocks than the runtime holds before it checks for blocks that the server no longer
    // uses.
    for n in 0..200u64 {
        let data = vec![n as u8; 1 << 20];
        let mut call = api.call(CONSUME).unwrap();
        // SAFETY: the call reads the vector before it returns.
        unsafe { call.buffer_in(data.as_ptr(), data.len()) };
        call.send_async().unwrap();
    }
    for n in 0..2000u64 {
        let data = vec![n as u8; 5000];
        let mut call = api.call(CONSUME).unwrap();
        // SAFETY: the call reads the vector before it returns.
        unsafe { call.buffer_in(data.as_ptr(), data.len()) };
        call.send_async().unwrap();
    }
    let (count, _) = posted(api);
    assert_eq!(count, 2200);
}

#[test]
fn an_impossible_size_is_refused() {
    let api = api();
    let byte = 0u8;
    let mut call = api.call(ECHO).unwrap();
    // SAFETY: the byte is never accessed: the arena has 1 GiB, so the call is refused.
    unsafe { call.buffer_out((&raw const byte).cast_mut(), 1 << 40) };
    assert_eq!(call.send().unwrap().status(), Status::Refused);
    assert_eq!(add(api, 1, 1), Some(2));
}

#[test]
fn death_is_noticed_by_every_thread() {
    let api = api();
    let waiting: Vec<_> = (0..4)
        .map(|_| {
            std::thread::spawn(move || {
                let call = api.call(HANG).unwrap();
                assert!(call.send().is_err());
            })
        })
        .collect();
    std::thread::sleep(Duration::from_millis(100));
    assert!(api.call(DIE).unwrap().send().is_err());
    waiting.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(api.call(ADD).is_err(), "and stays so");
}

#[test]
fn malformed_reply_ends_only_the_connection() {
    let api = api();
    let mut reply = api.call(GARBAGE).unwrap().send().unwrap();
    assert_eq!(reply.count(10), 0);
    drop(reply);
    assert!(api.call(ADD).is_err());
}

#[test]
fn pointers_beyond_an_argument_end_the_connection() {
    let memory = [0u8; 8];
    let within = |word: u64, base: u64, bytes: usize| {
        let api = api();
        let mut call = api.call(ADD).unwrap();
        call.word(word);
        call.word(0);
        let found = call.send().unwrap().within(base, bytes);
        (found, api.call(ADD).is_ok())
    };
    let base = memory.as_ptr() as u64;
    assert_eq!(within(0, base, 8), (0, true));
    assert_eq!(within(1, base, 8), (base, true));
    assert_eq!(within(9, base, 8), (base + 8, true));
    assert_eq!(within(10, base, 8), (0, false));
    assert_eq!(within(u64::MAX, base, 8), (0, false));
    assert_eq!(within(1, 0, 0), (0, false));
}

#[test]
fn forked_child_starts_without_a_connection() {
    let api = api();
    let mut call = api.call(MAKE).unwrap();
    call.word(0);
    call.word(0);
    let value = call.send().unwrap().handle(0, Role::Allocate).unwrap();
    // SAFETY: the child uses the runtime, which is made for that, and leaves with `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let sound =
            std::panic::catch_unwind(|| !api.is_handle(value) && add(api, 20, 22) == Some(42) && !api.is_handle(value));
        // SAFETY: ends the child only.
        unsafe { libc::_exit(if matches!(sound, Ok(true)) { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: our child.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(status, 0);
    assert_eq!(add(api, 1, 1), Some(2), "the parent goes on");
    assert!(api.is_handle(value));
}

#[test]
fn thread_may_call_while_it_ends() {
    struct Caller(&'static Api, Arc<AtomicU64>);
    impl Drop for Caller {
        fn drop(&mut self) {
            self.1.store(add(self.0, 40, 2).unwrap(), Ordering::SeqCst);
        }
    }
    thread_local! {
        static CALLER: std::cell::RefCell<Option<Caller>> = const { std::cell::RefCell::new(None) };
    }
    let api = api();
    for first in [false, true] {
        let answer = Arc::new(AtomicU64::new(0));
        std::thread::spawn({
            let answer = answer.clone();
            move || {
                // Locals end in the reverse order of their first use: once before, once after the
                // lane.
                if first {
                    add(api, 1, 1).unwrap();
                }
                CALLER.set(Some(Caller(api, answer)));
                add(api, 1, 1).unwrap();
            }
        })
        .join()
        .unwrap();
        assert_eq!(answer.load(Ordering::SeqCst), 42);
    }
}

#[test]
fn signal_handler_may_call() {
    static FROM_HANDLER: AtomicU64 = AtomicU64::new(0);
    static SIGNALLED: OnceLock<&'static Api> = OnceLock::new();
    extern "C" fn handler(_: i32) {
        if let Some(api) = SIGNALLED.get()
            && add(api, 3, 4) == Some(7)
        {
            FROM_HANDLER.fetch_add(1, Ordering::SeqCst);
        }
    }
    let api = api();
    SIGNALLED.set(api).ok();
    let ready = Arc::new(AtomicU64::new(0));
    let thread = std::thread::spawn({
        let ready = ready.clone();
        move || {
            add(api, 1, 1).unwrap();
            // SAFETY: `pthread_self` has no arguments.
            ready.store(unsafe { libc::pthread_self() } as u64, Ordering::SeqCst);
            // Waits in the lane for a reply that never comes; the handler interrupts it there.
            api.call(HANG).unwrap().send().is_err()
        }
    });
    while ready.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    std::thread::sleep(Duration::from_millis(50));
    // SAFETY: the handler is made for this test; the thread runs until the connection dies.
    unsafe {
        libc::signal(libc::SIGUSR1, handler as extern "C" fn(i32) as *const () as usize);
        for handled in 1..=5 {
            libc::pthread_kill(ready.load(Ordering::SeqCst) as libc::pthread_t, libc::SIGUSR1);
            // Two signals that are pending for a thread are merged into one.
            let start = Instant::now();
            while FROM_HANDLER.load(Ordering::SeqCst) < handled {
                assert!(start.elapsed() < HANG_TIMEOUT);
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
    assert_eq!(FROM_HANDLER.load(Ordering::SeqCst), 5);
    assert!(api.call(DIE).unwrap().send().is_err());
    assert!(thread.join().unwrap());
}
