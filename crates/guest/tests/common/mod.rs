//! A node and API server in this process, with just enough function to test the guest runtime: each
//! function is answered by hand-written messages.

pub mod cases;
pub mod lost_callbacks;

use std::collections::HashMap;
use std::os::fd::{AsFd, IntoRawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use aviary_guest::{Api, ApiDescriptor, CallbackKind, HandleType, Incoming, Metadata};
use aviary_transport::*;
use aviary_wire::attach::{hello_flag, welcome_flag};
use aviary_wire::control::{CALLBACK_LANE, control_kind};
use aviary_wire::*;
use rustix::fs::{Mode, OFlags};

pub const ADD: u32 = 0;
pub const POST: u32 = 1;
pub const POSTED: u32 = 2;
pub const ECHO: u32 = 3;
pub const FILL: u32 = 4;
pub const MAKE: u32 = 5;
pub const READ_LATER: u32 = 6;
pub const CALL_BACK: u32 = 7;
pub const CALL_BACK_ELSEWHERE: u32 = 8;
pub const MAP: u32 = 9;
pub const UNMAP: u32 = 10;
pub const DIE: u32 = 11;
pub const COUNT: u32 = 12;
pub const HANG: u32 = 13;
pub const FAIL: u32 = 14;
pub const IDENTITY: u32 = 15;
pub const SHADOW: u32 = 16;
pub const TEXT: u32 = 17;
pub const CONSUME: u32 = 18;
pub const GARBAGE: u32 = 19;
pub const DEFER: u32 = 20;
pub const REJECT: u32 = 21;
pub const PAUSE: u32 = 22;
pub const LAST_WORDS: u32 = 23;
pub const AHEAD: u32 = 24;
pub const EARLY: u32 = 25;

/// The peer is a carrier, as a test crate's `TRANSPORT`.
pub const BY_CARRIER: &str = "carrier";

const CARRIED: Option<Metadata> = Some(Metadata { kind: 1, size: 16 });

static TYPES: [HandleType; 3] = [
    HandleType { name: "boxed", size: 8, boxed: Some(prefix), shape: None, predefined: &[], metadata: CARRIED },
    HandleType { name: "plain", size: 8, boxed: None, shape: None, predefined: &[], metadata: CARRIED },
    HandleType { name: "short", size: 4, boxed: None, shape: None, predefined: &[], metadata: CARRIED },
];

unsafe fn prefix() -> usize {
    0xd15
}

/// `int f(void *userdata, int x, const char *text, int *out)`
unsafe fn invoke(incoming: &mut Incoming) {
    let userdata = incoming.userdata();
    let x = incoming.word() as i32;
    let text = incoming.string();
    let out = incoming.buffer(false, true);
    // SAFETY: tests register functions of this type only.
    let f: unsafe fn(usize, i32, *const i8, *mut u8) -> i32 = unsafe { std::mem::transmute(incoming.function()) };
    // SAFETY: the arguments are those with which the server calls the function.
    let ret = unsafe { f(userdata, x, text.cast(), out) };
    incoming.reply_word(ret as u64);
    incoming.reply_out();
}

/// The `x` of a callback whose API server is gone.
pub const GONE: i32 = -1;

unsafe fn lost(incoming: &mut Incoming) {
    let mut out = [0u8; 4];
    // SAFETY: tests register functions of this type only.
    let f: unsafe fn(usize, i32, *const i8, *mut u8) -> i32 = unsafe { std::mem::transmute(incoming.function()) };
    // SAFETY: `out` has the four bytes that the server would have given.
    unsafe { f(incoming.userdata(), GONE, std::ptr::null(), out.as_mut_ptr()) };
}

pub static DESCRIPTOR: ApiDescriptor = ApiDescriptor {
    name: "fake",
    version: "1",
    spec_hash: 42,
    environment: &[],
    functions: &["add", "post", "posted"],
    handle_types: &TYPES,
    callbacks: &[CallbackKind { invoke, lost: Some(lost) }, CallbackKind { invoke, lost: None }],
};

/// A new API, which has a connection of its own.
pub fn api() -> &'static Api {
    start();
    Box::leak(Box::new(Api::new(&DESCRIPTOR)))
}

/// Starts the node once per test process.
pub fn start() {
    static STARTED: OnceLock<()> = OnceLock::new();
    STARTED.get_or_init(|| {
        // No code runs when a test process ends, so the folder is removed at once: an open
        // descriptor leads to the socket without its name.
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let socket = rustix::fs::open(&path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap().into_raw_fd();
        // SAFETY: every test calls this function before it reads the environment.
        unsafe {
            std::env::set_var("AVIARY_SERVER", format!("unix:/proc/self/fd/{socket}"));
            std::env::set_var("AVIARY_TRANSPORT", super::TRANSPORT);
            std::env::set_var("AVIARY_ARENA", "1G");
            std::env::set_var("AVIARY_SYNC", super::SYNC);
        }
        std::thread::spawn(move || {
            for socket in listener.incoming() {
                std::thread::spawn(move || serve(socket.unwrap()));
            }
        });
    });
}

#[derive(Default)]
struct Late {
    delivered: u64,
    /// Blocks to be delivered: polls left, offset, bytes.
    blocks: Vec<(u32, u64, usize)>,
}

struct OpenLane {
    waker: LaneWaker,
    liveness: Arc<Liveness>,
    thread: Option<JoinHandle<()>>,
}

struct Server {
    arena: Arc<Arena>,
    socket: UnixStream,
    done: Mutex<u64>,
    turn: Condvar,
    posted: Mutex<Vec<u64>>,
    counter: AtomicU64,
    late: Mutex<Late>,
    callback_lane: Mutex<Option<LaneEnd>>,
    arrived: Condvar,
    /// Regions that came without a message, and bytes of those that came with one.
    ahead: Mutex<(Vec<Region>, usize)>,
}

fn serve(socket: UnixStream) {
    let Ok((hello, fds)) = receive_hello(&socket, Duration::from_secs(5)) else { return };
    assert_eq!((hello.api.as_str(), hello.spec_hash), ("fake", 42));
    let mirrored = hello.flags & hello_flag::MIRRORED != 0;
    let arena = if mirrored {
        Arena::mirror_of(hello.arena_address, hello.arena_size).unwrap()
    } else {
        Arena::open(fds.into_iter().next().unwrap(), hello.arena_address, hello.arena_size).unwrap()
    };
    // Both sides are this process, so the addresses differ; tests of zero-copy memory pretend that
    // they are equal.
    let flags = match super::TRANSPORT {
        BY_CARRIER => welcome_flag::CARRIED | welcome_flag::AHEAD,
        _ => welcome_flag::SAME_ADDRESS,
    };
    let welcome = Welcome { wire_version: WIRE_VERSION, flags, session: 1, ..Welcome::default() };
    send_greeting(&socket, &welcome.to_bytes(), &[]).unwrap();
    let control = ControlSocket::new(socket.as_fd().try_clone_to_owned().unwrap());
    let server = Arc::new(Server {
        arena,
        socket,
        done: Mutex::new(0),
        turn: Condvar::new(),
        posted: Mutex::default(),
        counter: AtomicU64::new(0),
        late: Mutex::default(),
        callback_lane: Mutex::new(None),
        arrived: Condvar::new(),
        ahead: Mutex::default(),
    });
    let mut lanes: HashMap<u32, OpenLane> = HashMap::new();
    while let Ok(Some((message, fd))) = control.receive() {
        match message.kind {
            control_kind::LANE_OPEN => {
                let liveness = Arc::new(Liveness::notified());
                let end = accept_lane(&message, fd, &server.arena, &liveness).unwrap();
                let waker = end.waker();
                let mut thread = None;
                if message.flags & CALLBACK_LANE != 0 {
                    *server.callback_lane.lock().unwrap() = Some(end);
                    server.arrived.notify_all();
                } else {
                    let server = server.clone();
                    thread = Some(std::thread::spawn(move || server.lane(end)));
                }
                lanes.insert(message.lane, OpenLane { waker, liveness, thread });
            }
            control_kind::LANE_CLOSE => {
                let closed = Control { kind: control_kind::LANE_CLOSED, lane: message.lane, ..Control::default() };
                // The thread finishes the calls in the lane, then notices that no more will come.
                let OpenLane { waker, liveness, thread } = lanes.remove(&message.lane).unwrap();
                liveness.kill();
                waker.wake();
                thread.unwrap().join().unwrap();
                let _ = control.send(closed, None);
            }
            other => panic!("control message {other}"),
        }
    }
    for lane in lanes.values() {
        lane.liveness.kill();
        lane.waker.wake();
    }
}

impl Server {
    fn lane(self: Arc<Self>, mut end: LaneEnd) {
        let mut message = Vec::new();
        while self.next(&mut end, &mut message) {
            self.handle(&mut end, &message);
        }
    }

    /// The next message; a carrier takes regions off it, and messages of nothing else.
    fn next(&self, end: &mut LaneEnd, message: &mut Vec<u8>) -> bool {
        loop {
            if end.receive(message).is_err() {
                return false;
            }
            if super::TRANSPORT != BY_CARRIER {
                return true;
            }
            let (regions, mut ahead) = (take_regions(message).unwrap(), self.ahead.lock().unwrap());
            if !message.is_empty() {
                ahead.1 += regions.iter().map(|region| region.length).sum::<usize>();
                return true;
            }
            ahead.0.extend(regions);
        }
    }

    /// Says that a part of an output is there, calls back, and goes on with other content of that part.
    fn early(self: &Arc<Self>, f: &mut Decoder, r: &mut Reply, end: &mut LaneEnd) {
        let (id, part) = (f.word().unwrap(), f.word().unwrap() as usize);
        let BufferRef::Arena { offset, length } = f.buffer().unwrap() else { panic!("not in the arena") };
        self.fill(offset, length, 0x33);
        self.fill(offset + 100, part, 0x11);
        let mut body = Encoder::new();
        body.start();
        // Of nobody, too long, beyond the arena, and one that is true.
        let parts =
            [(offset - 1, 2), (offset, length + 1), (u64::MAX, 5), (offset + 7, usize::MAX), (offset + 100, part)];
        for (offset, length) in parts {
            body.word(offset);
            body.word(length as u64);
        }
        let header = ReplyHeader { kind: kind::ARRIVED, ..ReplyHeader::default() };
        end.send(body.finish_reply(header), &[]).unwrap();
        self.call_back(end, id, 5);
        self.fill(offset + 100, part, 0x22);
        r.regions.push(Region { offset, length });
        r.e.word(1 + length as u64);
    }

    fn handle(self: &Arc<Self>, end: &mut LaneEnd, message: &[u8]) {
        let (header, body) = RequestHeader::parse(message).unwrap();
        let posted = header.kind == kind::CALL_ASYNC && header.flags & flag::ACKNOWLEDGE == 0;
        let wait = if posted { header.ticket - 1 } else { header.ticket };
        let mut done = self.done.lock().unwrap();
        while *done < wait {
            done = self.turn.wait(done).unwrap();
        }
        drop(done);
        let mut fields = Decoder::new(body);
        let mut reply =
            Reply { e: Encoder::new(), status: 0, detail: 0, success: true, regions: Vec::new(), deferred: None };
        let skip = self.prefix(&mut reply);
        match header.kind {
            kind::FETCH => self.fetch(&mut fields, &mut reply),
            kind::SYNC => {}
            _ => {
                if !self.run(header.function, &mut fields, &mut reply, end) {
                    return;
                }
            }
        }
        if header.function == REJECT && posted {
            self.late.lock().unwrap().blocks.push((0, REJECTED_CALL, header.ticket as usize));
        }
        if posted {
            *self.done.lock().unwrap() = header.ticket;
            self.turn.notify_all();
            if let (false, Ok(word)) = (self.arena.mirrored(), self.arena.pointer(0, 8)) {
                // SAFETY: the ticket word of the arena, aligned and mapped.
                unsafe { AtomicU64::from_ptr(word.cast()) }.store(header.ticket, Ordering::Release);
            }
            return;
        }
        let flags = if reply.success { flag::SUCCESS } else { 0 };
        let (status, detail) = (reply.status, reply.detail);
        let mut header =
            ReplyHeader { kind: kind::REPLY, flags, status, detail, serial: header.serial, ..Default::default() };
        (header.flags, header.delivered) = (flags | skip.0, skip.1);
        if reply.deferred.is_some() {
            header.flags |= flag::DEFERRED;
        }
        let _ = end.send(reply.e.finish_reply(header), &reply.regions);
    }

    /// Puts the deliveries that are ready into the reply; returns the flags and the count of
    /// deliveries.
    fn prefix(&self, reply: &mut Reply) -> (u16, u64) {
        reply.e.start();
        let mut late = self.late.lock().unwrap();
        let ready: Vec<_> = late.blocks.iter().filter(|l| l.0 == 0).copied().collect();
        late.blocks.retain_mut(|l| {
            let keep = l.0 > 0;
            l.0 = l.0.saturating_sub(1);
            keep
        });
        late.delivered += ready.len() as u64;
        if ready.is_empty() {
            return (0, late.delivered);
        }
        reply.e.word(ready.len() as u64);
        for (_, offset, bytes) in ready {
            reply.e.word(offset);
            reply.e.word(bytes as u64);
            if offset == REJECTED_CALL {
                continue;
            }
            self.fill(offset, bytes, 0xda);
            reply.regions.push(Region { offset, length: bytes });
        }
        (flag::DELIVERIES, late.delivered)
    }

    fn fill(&self, offset: u64, bytes: usize, value: u8) {
        let p = self.arena.pointer(offset, bytes).unwrap();
        // SAFETY: the range was checked; the guest waits for these bytes.
        unsafe { p.write_bytes(value, bytes) };
    }

    fn fetch(&self, fields: &mut Decoder, reply: &mut Reply) {
        let (id, offset) = (fields.word().unwrap(), fields.word().unwrap());
        let bytes = fields.word().unwrap() as usize;
        if id % 2 == 0 {
            self.late.lock().unwrap().blocks.push((0, offset, bytes));
            reply.e.word(0);
        } else {
            self.fill(offset, bytes, 0x77);
            reply.regions.push(Region { offset, length: bytes });
            reply.e.word(1);
        }
    }

    /// Executes a call. False: there is no reply.
    fn run(self: &Arc<Self>, function: u32, f: &mut Decoder, r: &mut Reply, end: &mut LaneEnd) -> bool {
        match function {
            ADD => {
                let sum = f.word().unwrap().wrapping_add(f.word().unwrap());
                r.e.word(sum);
            }
            POST => self.posted.lock().unwrap().push(f.word().unwrap()),
            POSTED => {
                let posted = self.posted.lock().unwrap();
                r.e.word(posted.len() as u64);
                let sorted = posted.windows(2).all(|w| w[0] < w[1]);
                r.e.word(u64::from(sorted));
            }
            ECHO | FILL => self.buffers(function, f, r),
            MAKE => {
                let (ty, index) = (f.word().unwrap(), f.word().unwrap());
                r.e.word(ty << 56 | 7 << 32 | (index + 1));
            }
            READ_LATER => {
                let polls = f.word().unwrap() as u32;
                let BufferRef::Arena { offset, length } = f.buffer().unwrap() else { panic!("not in the arena") };
                self.late.lock().unwrap().blocks.push((polls, offset, length));
                r.e.word(0);
            }
            CALL_BACK => {
                let (id, x) = (f.word().unwrap(), f.word().unwrap());
                let sum = self.call_back(end, id, x);
                r.e.word(sum);
            }
            CALL_BACK_ELSEWHERE => {
                let (id, x, server) = (f.word().unwrap(), f.word().unwrap(), self.clone());
                std::thread::spawn(move || {
                    let mut lane = server.callback_lane.lock().unwrap();
                    while lane.is_none() {
                        lane = server.arrived.wait(lane).unwrap();
                    }
                    server.call_back(lane.as_mut().unwrap(), id, x);
                });
            }
            MAP => {
                let (id, bytes) = (f.word().unwrap(), f.word().unwrap());
                r.e.word(2);
                r.e.word(id);
                r.e.word(bytes);
            }
            UNMAP => self.unmap(f, r),
            DIE => {
                self.socket.shutdown(std::net::Shutdown::Both).unwrap();
                return false;
            }
            HANG => return false,
            LAST_WORDS => {
                // Callbacks that arrive, on the lane of this call or on that of callbacks, and nothing else.
                let (id, here) = (f.word().unwrap(), f.word().unwrap() != 0);
                let mut lane = self.callback_lane.lock().unwrap();
                while lane.is_none() {
                    lane = self.arrived.wait(lane).unwrap();
                }
                self.say(if here { end } else { lane.as_mut().unwrap() }, id, 7);
                self.socket.shutdown(std::net::Shutdown::Both).unwrap();
                return false;
            }
            COUNT => {
                let _key = f.word().unwrap();
                let _out = f.buffer().unwrap();
                r.e.word(self.counter.fetch_add(1, Ordering::Relaxed));
                r.e.word(1 + 2);
                r.e.buffer_null();
            }
            FAIL => {
                r.success = false;
                r.status = f.word().unwrap() as u32;
                r.detail = 3;
                r.e.word(-5i64 as u64);
            }
            IDENTITY => r.e.word(f.word().unwrap()),
            SHADOW => {
                if let BufferRef::Arena { offset, length } = f.buffer().unwrap() {
                    self.fill(offset, length, 0x3c);
                    r.regions.push(Region { offset, length });
                    r.e.word(offset);
                }
            }
            TEXT => r.e.optional_bytes(Some(b"hello\0")),
            CONSUME => {
                if let BufferRef::Arena { offset, length } = f.buffer().unwrap() {
                    let p = self.arena.pointer(offset, length).unwrap();
                    // SAFETY: the range was checked; the guest holds the block until this call
                    // ends.
                    let (first, last) = unsafe { (p.read(), p.add(length - 1).read()) };
                    self.posted.lock().unwrap().push(u64::from(first == last) * 1000 + u64::from(first));
                }
            }
            GARBAGE => r.e.word(u64::MAX),
            AHEAD => {
                let ahead = self.ahead.lock().unwrap();
                let bytes = ahead.0.iter().map(|region| region.length).sum::<usize>();
                let first = |region: &Region| region.offset;
                let places = || ahead.0.iter().map(first);
                let span = places().max().unwrap_or(0) - places().min().unwrap_or(0);
                for word in [bytes as u64, ahead.1 as u64, ahead.0.last().map_or(0, first), span] {
                    r.e.word(word);
                }
            }
            EARLY => self.early(f, r, end),
            PAUSE => std::thread::sleep(Duration::from_millis(100)),
            REJECT => r.status = status::REFUSED,
            DEFER => {
                r.deferred = Some(-9);
                r.e.word(-9i64 as u64);
                r.e.word(1);
            }
            other => panic!("function {other}"),
        }
        true
    }

    /// ECHO adds one to every byte; FILL writes all but the last byte.
    fn buffers(&self, function: u32, f: &mut Decoder, r: &mut Reply) {
        match f.buffer().unwrap() {
            BufferRef::Null => r.e.word(0),
            BufferRef::Inline(data) => {
                let mut data = data.to_vec();
                if function == ECHO {
                    data.iter_mut().for_each(|b| *b = b.wrapping_add(1));
                } else {
                    let n = data.len() - 1;
                    data[..n].fill(9);
                }
                r.e.optional_bytes(Some(&data));
            }
            BufferRef::Reserved { length } => r.e.optional_bytes(Some(&vec![9; length - 1])),
            BufferRef::Part { .. } => panic!("memory that is named once"),
            BufferRef::Arena { offset, length } => {
                let p = self.arena.pointer(offset, length).unwrap();
                // SAFETY: the range was checked; the guest waits.
                let data = unsafe { std::slice::from_raw_parts_mut(p, length) };
                if function == ECHO {
                    data.iter_mut().for_each(|b| *b = b.wrapping_add(1));
                } else {
                    data[..length - 1].fill(9);
                }
                let valid = if function == ECHO { length } else { length - 1 };
                r.regions.push(Region { offset, length: valid });
                r.e.word(1 + valid as u64);
            }
        }
    }

    fn unmap(&self, f: &mut Decoder, r: &mut Reply) {
        match f.word().unwrap() {
            2 => {
                let id = f.word().unwrap();
                let first = match f.buffer().unwrap() {
                    // SAFETY: the range was checked.
                    BufferRef::Arena { offset, length } => unsafe {
                        self.arena.pointer(offset, length).unwrap().read()
                    },
                    _ => 0,
                };
                r.e.word(id);
                r.e.word(u64::from(first));
            }
            kind => {
                if kind == 1 {
                    f.word().unwrap();
                }
                r.e.word(kind);
                r.e.word(0);
            }
        }
    }

    /// Sends a callback. False: the lane has ended.
    fn say(&self, end: &mut LaneEnd, id: u64, x: u64) -> bool {
        let mut r =
            Reply { e: Encoder::new(), status: 0, detail: 0, success: true, regions: Vec::new(), deferred: None };
        let (flags, delivered) = self.prefix(&mut r);
        r.e.word(id);
        r.e.word(x);
        r.e.buffer_inline(b"text\0");
        r.e.buffer_reserved(4);
        let header = ReplyHeader { kind: kind::CALLBACK, flags, delivered, serial: 99, ..Default::default() };
        end.send(r.e.finish_reply(header), &r.regions).is_ok()
    }

    /// Calls back and serves the calls that the callback makes meanwhile; returns the result plus
    /// the output.
    fn call_back(self: &Arc<Self>, end: &mut LaneEnd, id: u64, x: u64) -> u64 {
        if !self.say(end, id, x) {
            return 0;
        }
        let mut message = Vec::new();
        while self.next(end, &mut message) {
            let (header, body) = RequestHeader::parse(&message).unwrap();
            if header.kind != kind::CALLBACK_REPLY {
                self.handle(end, &message);
                continue;
            }
            assert_eq!(header.serial, 99);
            let mut fields = Decoder::new(body);
            if fields.word().unwrap() != 0 {
                return u64::MAX;
            }
            let ret = fields.word().unwrap();
            let out = fields.optional_bytes().unwrap().unwrap().to_vec();
            return ret + u64::from(u32::from_le_bytes(out.try_into().unwrap()));
        }
        0
    }
}

struct Reply {
    e: Encoder,
    status: u32,
    detail: u32,
    success: bool,
    regions: Vec<Region>,
    deferred: Option<i64>,
}
