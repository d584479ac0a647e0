//! A small API whose handlers are written by hand, as the generator would print them.

use std::ffi::{c_int, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use aviary_server::{
    ApiDescriptor, Call, ClosureLifetime, FunctionInfo, HandleTypeInfo, HandlerFunction, Outgoing, Reject,
    ResourceKind, Role, guarded, handler,
};

use super::racing;

pub const OBJECT: u32 = 0;
pub const OTHER: u32 = 1;

pub const ADD: u32 = 0;
pub const SUM: u32 = 1;
pub const FILL: u32 = 2;
pub const CREATE: u32 = 3;
pub const GET: u32 = 4;
pub const DESTROY: u32 = 5;
pub const PUSH: u32 = 6;
pub const APPLY: u32 = 7;
pub const LATER: u32 = 8;
pub const START: u32 = 9;
pub const MAP: u32 = 10;
pub const UNMAP: u32 = 11;
pub const PANIC: u32 = 12;
pub const HOG: u32 = 13;
pub const RESTORE: u32 = 14;
pub const SLEEP: u32 = 15;
pub const MISSING: u32 = 16;
pub const LENGTH: u32 = 17;
pub const APPLY_ASYNC: u32 = 18;
pub const REVERSE: u32 = 19;
pub const COMPLETE: u32 = 20;
pub const SPAWN: u32 = 21;
pub const MAKE: u32 = 22;
pub const KEEP: u32 = 23;
pub const GIVE_BACK: u32 = 24;
pub const TOUCH: u32 = 25;
pub const SET: u32 = 26;
pub const THROUGH: u32 = 27;
pub const COPY: u32 = 28;
pub const CHAIN: u32 = 29;
pub const SHIFT: u32 = 30;
pub const BOUND: u32 = 31;
pub const POINT: u32 = 32;

const fn function(name: &'static str, function: HandlerFunction) -> FunctionInfo {
    FunctionInfo {
        name,
        on_behalf_of: &[],
        handler: handler(function),
        replayable: false,
        waits: false,
        late: false,
        blocker: None,
    }
}

pub static API: ApiDescriptor = ApiDescriptor {
    name: "fake",
    version: "1",
    spec_hash: 0x1234,
    environment: &[],
    soname: "libm.so.6",
    libraries: &[],
    functions: &[
        function("add", add),
        function("sum", sum),
        function("fill", fill),
        function("create", create),
        function("get", get),
        function("destroy", destroy),
        function("push", push),
        function("apply", apply),
        function("later", later),
        function("start", start),
        function("map", map),
        function("unmap", unmap),
        function("panic", panics),
        function("hog", hog),
        FunctionInfo {
            name: "restore",
            on_behalf_of: &[],
            handler: handler(restore),
            replayable: true,
            waits: false,
            late: false,
            blocker: None,
        },
        function("sleep", sleep),
        function("missing", missing),
        function("length", length),
        function("apply_async", apply_async),
        function("reverse", reverse),
        function("complete", complete_now),
        function("spawn", spawn),
        function("make", racing::make),
        function("keep", racing::keep),
        function("give_back", racing::give_back),
        function("touch", racing::touch),
        function("set", racing::set),
        function("through", racing::through),
        function("copy", racing::copy),
        function("chain", chain),
        function("shift", shift),
        function("bound", bound),
        function("point", point),
    ],
    handle_types: &[
        HandleTypeInfo::plain("object", 8),
        HandleTypeInfo::plain("other", 8),
        HandleTypeInfo::plain("racer", 8),
    ],
    resources: &[("memory", ResourceKind::Continuous)],
    state: None,
    current: None,
    quiesce: None,
    stays: None,
    contents: None,
    rejected: |_, reject| match reject {
        Reject::Failed(v) => v,
        _ => -77,
    },
};

unsafe fn add(call: &mut Call) -> Result<(), Reject> {
    let (a, b) = (call.word()?, call.word()?);
    call.begin_vendor();
    let sum = a.wrapping_add(b);
    call.end_vendor();
    call.reply_word(sum);
    call.finish(true, 0);
    Ok(())
}

/// A count and so many bytes.
unsafe fn sum(call: &mut Call) -> Result<(), Reject> {
    let n = call.word()?;
    let buffer = call.buffer_in(Some(n as usize), true)?;
    // SAFETY: the runtime vouches for the buffer.
    let sum = (0..buffer.len).map(|i| u64::from(unsafe { *buffer.ptr.add(i) })).sum();
    call.reply_word(sum);
    call.finish(true, 0);
    Ok(())
}

/// Fills an output of any size with a byte; all of it counts, or none if the byte is 0.
unsafe fn fill(call: &mut Call) -> Result<(), Reject> {
    let value = call.word()? as u8;
    let buffer = call.buffer_out(None)?;
    if value != 0 && !buffer.ptr.is_null() {
        // SAFETY: the runtime vouches for the buffer.
        unsafe { buffer.ptr.write_bytes(value, buffer.len) };
    }
    call.reply_out((value != 0).then_some(buffer.len));
    call.finish(value != 0, 0);
    Ok(())
}

/// Adds each byte of an input to the byte before in an output, from the first on; `private` and `align` as it is told.
unsafe fn shift(call: &mut Call) -> Result<(), Reject> {
    let (private, align) = (call.word()? != 0, if call.word()? == 64 { 64 } else { 1 });
    if private {
        call.private_unions();
    }
    let from = call.buffer_in(None, private)?;
    let mut to = call.buffer_inout(None)?;
    if align > 1 {
        to = call.aligned(to, align)?;
    }
    let n = from.len.min(to.len);
    for i in 0..n {
        // SAFETY: the runtime vouches for both buffers, which may be one.
        unsafe {
            let before = if i == 0 { 0 } else { to.ptr.add(i - 1).read() };
            to.ptr.add(i).write(from.ptr.add(i).read().wrapping_add(before));
        }
    }
    call.reply_out(Some(usize::MAX));
    call.finish(true, 0);
    Ok(())
}

/// Memory that stays in use, and some that does not.
unsafe fn bound(call: &mut Call) -> Result<(), Reject> {
    let kept = call.shadow(None, true, true)?;
    let other = call.buffer_in(None, false)?;
    call.reply_word((kept.ptr.addr()).wrapping_sub(other.ptr.addr()) as u64);
    call.finish(true, 0);
    Ok(())
}

/// Points so far behind an input; that is a constant.
unsafe fn point(call: &mut Call) -> Result<(), Reject> {
    let distance = call.constant(&[0, 4, 5, u64::MAX])?;
    let from = call.buffer_in(None, true)?;
    let base = from.ptr.addr() as u64;
    call.reply_within(base.wrapping_add(distance), base, from.len)?;
    call.finish(true, 0);
    Ok(())
}

static NEXT: AtomicU64 = AtomicU64::new(0x1000);

/// An object of a size, which is charged.
unsafe fn create(call: &mut Call) -> Result<(), Reject> {
    let bytes = call.word()?;
    call.charge(0, bytes)?;
    let native = if bytes == 666 { 0 } else { NEXT.fetch_add(16, Ordering::SeqCst) };
    call.reply_handle(OBJECT, native, Role::Allocate);
    call.finish(native != 0, 5);
    Ok(())
}

/// Two objects of a size each, which is charged, under ids that the guest may choose.
unsafe fn spawn(call: &mut Call) -> Result<(), Reject> {
    call.minted(OBJECT, 0)?;
    call.minted(OBJECT, 0x100)?;
    let bytes = call.word()?;
    call.charge(0, 2 * bytes)?;
    let ok = bytes != 333;
    for at in [0, 0x100] {
        match ok {
            true => {
                call.reply_minted(OBJECT, NEXT.fetch_add(16, Ordering::SeqCst), at);
            }
            false => call.reply_unwritten_handle(),
        }
    }
    call.finish(ok, 5);
    Ok(())
}

unsafe fn get(call: &mut Call) -> Result<(), Reject> {
    let native = call.handle(OBJECT)?;
    call.reply_word(native);
    call.finish(true, 0);
    Ok(())
}

unsafe fn destroy(call: &mut Call) -> Result<(), Reject> {
    let native = call.handle_ending(OBJECT, false)?;
    call.release(OBJECT, native, false);
    call.finish(true, 0);
    Ok(())
}

pub static PUSHED: Mutex<Vec<u64>> = Mutex::new(Vec::new());

/// Asynchronous; 13 fails with 42.
unsafe fn push(call: &mut Call) -> Result<(), Reject> {
    let value = call.word()?;
    PUSHED.lock().unwrap().push(value);
    call.finish(value != 13, 42);
    Ok(())
}

/// Calls the callback with 0..n and answers the sum of its answers.
unsafe fn apply(call: &mut Call) -> Result<(), Reject> {
    let n = call.word()?;
    let closure = call.callback(0, ClosureLifetime::Call)?;
    call.begin_vendor();
    // Bounded: a fuzzer asks for any number, and this would be the vendor hanging, not the server.
    let sum = (0..n.min(1000)).map(|i| trampoline(i, closure)).fold(0, u64::wrapping_add);
    call.end_vendor();
    call.reply_word(sum);
    call.finish(true, 0);
    Ok(())
}

unsafe fn apply_async(call: &mut Call) -> Result<(), Reject> {
    let closure = call.callback(0, ClosureLifetime::Once)?;
    PUSHED.lock().unwrap().push(trampoline(5, closure));
    call.finish(true, 0);
    Ok(())
}

pub static ANSWERS: Mutex<Vec<u64>> = Mutex::new(Vec::new());

/// Calls the callback from a thread of the library.
unsafe fn later(call: &mut Call) -> Result<(), Reject> {
    let value = call.word()?;
    let closure = call.callback(0, ClosureLifetime::Once)? as usize;
    std::thread::spawn(move || {
        let answer = trampoline(value, closure as *mut c_void);
        ANSWERS.lock().unwrap().push(answer);
    });
    call.finish(true, 0);
    Ok(())
}

fn trampoline(value: u64, closure: *mut c_void) -> u64 {
    let body = || {
        let Some(mut out) = Outgoing::begin(closure, 0) else { return u64::MAX };
        out.word(value);
        let Some(mut answer) = out.send() else { return u64::MAX };
        answer.word()
    };
    guarded(body, u64::MAX)
}

pub static READY: AtomicBool = AtomicBool::new(false);
static TARGET: AtomicU64 = AtomicU64::new(0);

unsafe extern "C" fn poll(_token: u64) -> c_int {
    c_int::from(READY.load(Ordering::SeqCst))
}

/// Begins to write a buffer; done when `READY`.
unsafe fn start(call: &mut Call) -> Result<(), Reject> {
    let buffer = call.buffer_until(None, false, true)?;
    if buffer.len == 13 {
        return Err(Reject::Failed(13));
    }
    TARGET.store(buffer.ptr as u64, Ordering::SeqCst);
    call.reply_until(0, poll, true);
    call.finish(true, 0);
    Ok(())
}

/// Writes what `start` began.
pub fn complete(byte: u8, bytes: usize) {
    // SAFETY: `start` got a buffer of at least so many bytes.
    unsafe { (TARGET.load(Ordering::SeqCst) as *mut u8).write_bytes(byte, bytes) };
    READY.store(true, Ordering::SeqCst);
}

pub static MAPPED: Mutex<[u8; 16]> = Mutex::new([7; 16]);

unsafe fn map(call: &mut Call) -> Result<(), Reject> {
    let pointer = MAPPED.lock().unwrap().as_mut_ptr();
    call.reply_mapped(pointer, 16, None);
    call.finish(true, 0);
    Ok(())
}

unsafe fn unmap(call: &mut Call) -> Result<(), Reject> {
    let pointer = call.unmap()?;
    let known = pointer == MAPPED.lock().unwrap().as_mut_ptr();
    call.reply_word(u64::from(known));
    call.finish(known, 0);
    Ok(())
}

unsafe fn panics(_call: &mut Call) -> Result<(), Reject> {
    std::panic::resume_unwind(Box::new("a mistake"))
}

unsafe fn hog(call: &mut Call) -> Result<(), Reject> {
    call.scratch(2 << 30);
    call.finish(true, 0);
    Ok(())
}

/// A recorded creation from a buffer.
unsafe fn restore(call: &mut Call) -> Result<(), Reject> {
    let buffer = call.buffer_in(None, true)?;
    // SAFETY: the runtime vouches for the buffer.
    let sum: u64 = (0..buffer.len).map(|i| u64::from(unsafe { *buffer.ptr.add(i) })).sum();
    call.reply_handle(OBJECT, 0x5000 + sum, Role::Allocate);
    call.record_made(OBJECT, 0x5000 + sum);
    call.finish(true, 0);
    Ok(())
}

unsafe fn sleep(call: &mut Call) -> Result<(), Reject> {
    let ms = call.word()?;
    std::thread::sleep(std::time::Duration::from_millis(ms));
    call.finish(true, 0);
    Ok(())
}

unsafe fn missing(call: &mut Call) -> Result<(), Reject> {
    call.vendor(MISSING)?;
    call.finish(true, 0);
    Ok(())
}

unsafe fn length(call: &mut Call) -> Result<(), Reject> {
    let text = call.string()?;
    // SAFETY: `string` checked that it ends.
    let length = if text.is_null() { 0 } else { unsafe { std::ffi::CStr::from_ptr(text) }.count_bytes() };
    call.reply_word(length as u64);
    call.finish(true, 0);
    Ok(())
}

unsafe fn reverse(call: &mut Call) -> Result<(), Reject> {
    let buffer = call.buffer_inout(None)?;
    if !buffer.ptr.is_null() {
        // SAFETY: the runtime vouches for the buffer.
        unsafe { std::slice::from_raw_parts_mut(buffer.ptr, buffer.len) }.reverse();
    }
    call.reply_out(Some(buffer.len));
    call.finish(true, 0);
    Ok(())
}

unsafe fn complete_now(call: &mut Call) -> Result<(), Reject> {
    let byte = call.word()? as u8;
    complete(byte, 10_000);
    call.finish(true, 0);
    Ok(())
}

/// Links of two kinds: a pointer, a kind of two bytes, and a number behind it.
const LINKS: aviary_server::bounds::Chain =
    aviary_server::bounds::Chain { kind: (8, 2), next: 0, links: &[(7, 16), (9, 24)], refuse: false };

/// Adds up the numbers of a chain, and writes into each link its place.
unsafe fn chain(call: &mut Call) -> Result<(), Reject> {
    let first = call.chain(&LINKS)?;
    let (mut link, mut sum, mut place) = (first, 0u64, 0u32);
    while link != 0 {
        place += 1;
        // SAFETY: the runtime has made the links, each with these members.
        unsafe {
            let kind = *((link + 8) as *const u16);
            sum = sum * 10 + u64::from(kind) + u64::from(*((link + 12) as *const u32));
            *((link + 12) as *mut u32) = place;
            link = *(link as *const usize);
        }
    }
    call.reply_word(sum);
    // SAFETY: what `chain` answered.
    unsafe { call.reply_chain(first, &LINKS) };
    call.finish(true, 0);
    Ok(())
}
