//! A guest that speaks the wire protocol by hand, so that it can also lie.
#![allow(dead_code)]

pub mod api;
pub mod racing;
mod vm;

use std::ffi::c_void;
use std::os::fd::{AsFd, IntoRawFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use aviary_control::StateDescriptors;
use aviary_control::stats::StatsPage;
use aviary_server::module::{ServeArguments, event, serve};
use aviary_transport::{Arena, ControlSocket, LaneEnd, Liveness, Region, Side, receive_greeting};
use aviary_wire::control::{CALLBACK_LANE, control_kind};
use aviary_wire::{
    Control, Decoder, Encoder, Hello, ReplyHeader, RequestHeader, WIRE_VERSION, Welcome, attach::hello_flag,
};
use aviary_wire::{flag, kind};

/// A wait that takes longer is a hang: it bounds tests and claims nothing about speed.
pub const HANG_TIMEOUT: Duration = Duration::from_secs(60);
pub const ARENA: usize = 1 << 26;
const LANE: usize = 128 << 10;
/// Lanes and test data lie behind the server's page.
const FIRST_LANE: u64 = 1 << 20;

/// The guest may be a VM's device.
const CONFIG: &str = r#"{"session": 1, "limits": {"memory": 1000}, "in_vm": true}"#;

fn hello(arena: &Arena, flags: u64) -> Hello {
    Hello {
        wire_version: WIRE_VERSION,
        flags,
        pid: std::process::id(),
        spec_hash: api::API.spec_hash,
        arena_address: arena.address(),
        arena_size: ARENA as u64,
        api: api::API.name.into(),
        api_version: "1".into(),
        ..Hello::default()
    }
}

/// A raw connection; the server runs on a thread of this process.
pub struct Guest {
    pub control: Option<ControlSocket>,
    pub arena: Arc<Arena>,
    pub welcome: Welcome,
    pub stats: StatsPage,
    next_lane: u32,
    server: Option<JoinHandle<()>>,
}

/// One lane of it.
pub struct Lane {
    pub end: LaneEnd,
    serial: u64,
    /// The prefix of the last reply.
    pub deferred: Option<i64>,
    pub deliveries: Vec<(u64, u64)>,
    pub delivered: u64,
    pub success: bool,
}

pub struct Reply {
    pub header: ReplyHeader,
    pub message: Vec<u8>,
    at: usize,
}

impl Reply {
    pub fn fields(&self) -> Decoder<'_> {
        Decoder::resume(&self.message[32..], self.at)
    }

    pub fn word(&self) -> u64 {
        self.fields().word().expect("a word")
    }
}

extern "C" fn ignore(_: *mut c_void, _: u32, _: *const u8, _: usize) {}

extern "C" fn print(_: *mut c_void, what: u32, text: *const u8, length: usize) {
    if what == event::ENDED {
        // SAFETY: the module passes a text of this length.
        let text = unsafe { std::slice::from_raw_parts(text, length) };
        eprintln!("ended: {}", String::from_utf8_lossy(text));
    }
}

impl Guest {
    pub fn connect(mirrored: bool) -> Guest {
        Guest::with_config(mirrored, CONFIG)
    }

    pub fn with_config(mirrored: bool, config: &str) -> Guest {
        let arena = if mirrored { Arena::mirror(ARENA) } else { Arena::create(ARENA) }.expect("an arena");
        let hello = hello(&arena, if mirrored { hello_flag::MIRRORED } else { 0 });
        Guest::greet(arena, hello, config)
    }

    /// As [`Guest::connect`], from inside a VM.
    pub fn connect_in_vm() -> Guest {
        let ((ours, guest), (device, theirs)) = (pair(), pair());
        let vm = vm::Vm::new(&ours);
        let hello = hello(&vm.arena, hello_flag::WINDOW);
        let welcome = rustix::io::dup(&device).expect("dup");
        let mut connected = Guest::greet_on(vm.arena.clone(), hello, CONFIG, (welcome, theirs));
        vm.start_device(guest, device);
        connected.control = Some(ControlSocket::new(ours));
        connected
    }

    pub fn greet(arena: Arc<Arena>, hello: Hello, config: &str) -> Guest {
        Guest::greet_on(arena, hello, config, pair())
    }

    /// A guest whose session can move, and the socket that orders to move go to.
    pub fn connect_movable(config: &str) -> (Guest, OwnedFd) {
        let arena = Arena::create(ARENA).expect("an arena");
        let (orders, theirs) = order_pair();
        let hello = hello(&arena, 0);
        (Guest::greet_with(arena, hello, config, pair(), Some(theirs)), orders)
    }

    fn greet_on(arena: Arc<Arena>, hello: Hello, config: &str, sockets: (OwnedFd, OwnedFd)) -> Guest {
        Guest::greet_with(arena, hello, config, sockets, None)
    }

    fn greet_with(
        arena: Arc<Arena>,
        hello: Hello,
        config: &str,
        (ours, theirs): (OwnedFd, OwnedFd),
        orders: Option<OwnedFd>,
    ) -> Guest {
        let stats = StatsPage::create().expect("statistics");
        let page = StatsPage::open(stats.as_fd()).expect("statistics");
        let file = arena.file().map_or(-1, |f| rustix::io::dup(f).expect("dup").into_raw_fd());
        let (hello, config) = (hello.to_bytes(), config.as_bytes().to_vec());
        let (socket, stats) = (theirs.into_raw_fd(), stats.into_raw_fd());
        let orders = orders.map_or(-1, IntoRawFd::into_raw_fd);
        let server = std::thread::spawn(move || {
            let arguments = ServeArguments {
                session: 1,
                socket,
                arena: file,
                stats,
                grants: -1,
                bell: -1,
                tenant_page: -1,
                printed: [-1; 2],
                journal: 2,
                hello: hello.as_ptr(),
                hello_length: hello.len(),
                config: config.as_ptr(),
                config_length: config.len(),
                exchange: std::ptr::null(),
                orders,
                snapshot: -1,
                heap: -1,
                handed: -1,
                event: print,
                context: std::ptr::null_mut(),
            };
            // SAFETY: everything the arguments name lives until the call returns.
            unsafe { serve(&api::API, &arguments) };
        });
        let welcome = receive_greeting(&ours, HANG_TIMEOUT).expect("a welcome");
        let control = Some(ControlSocket::new(ours));
        Guest { control, arena, welcome, stats: page, next_lane: 1, server: Some(server) }
    }

    pub fn control(&self) -> &ControlSocket {
        self.control.as_ref().expect("connected")
    }

    pub fn lane(&mut self) -> Lane {
        self.open(0)
    }

    pub fn callback_lane(&mut self) -> Lane {
        self.open(CALLBACK_LANE)
    }

    pub fn open(&mut self, flags: u64) -> Lane {
        let lane = self.next_lane;
        self.next_lane += 1;
        let offset = FIRST_LANE + u64::from(lane) * LANE as u64;
        let message = Control { kind: control_kind::LANE_OPEN, lane, offset, length: LANE as u64, flags };
        let end = if self.arena.mirrored() {
            let (ours, theirs) = pair();
            self.control().send(message, Some(theirs.as_fd())).expect("lane open");
            LaneEnd::Stream(aviary_transport::StreamLane::new(ours, self.arena.clone()))
        } else {
            LaneEnd::clear(&self.arena, offset, LANE).expect("clear");
            let liveness = Arc::new(Liveness::probed(Duration::from_secs(20), || false));
            let end = LaneEnd::shared(&self.arena, offset, LANE, Side::Guest, &liveness).expect("a lane");
            self.control().send(message, None).expect("lane open");
            end
        };
        Lane { end, serial: 0, deferred: None, deliveries: Vec::new(), delivered: 0, success: false }
    }

    pub fn close(&self, lane: u32) {
        let message = Control { kind: control_kind::LANE_CLOSE, lane, ..Control::default() };
        self.control().send(message, None).expect("lane close");
    }

    /// Writes into the arena.
    pub fn put(&self, offset: u64, bytes: &[u8]) {
        let to = self.arena.pointer(offset, bytes.len()).expect("in the arena");
        // SAFETY: checked range; the test decides who uses the block.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    pub fn get(&self, offset: u64, bytes: usize) -> Vec<u8> {
        let from = self.arena.pointer(offset, bytes).expect("in the arena");
        // SAFETY: checked range; the test decides who uses the block.
        (0..bytes).map(|i| unsafe { from.add(i).read_volatile() }).collect()
    }

    /// Hangs up and waits for the server's thread.
    pub fn leave(mut self) {
        // The arena of a VM has a copy of the socket.
        self.control().hang_up();
        self.control = None;
        self.server.take().expect("once").join().expect("the server survives");
    }

    /// The server must hang up by itself.
    pub fn expect_end(&self) {
        let deadline = std::time::Instant::now() + HANG_TIMEOUT;
        while self.control().alive() {
            assert!(std::time::Instant::now() < deadline, "the session goes on");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A second server for a session that was captured, on a thread of this process. Answers the socket that orders go to.
pub fn adopt(state: StateDescriptors<OwnedFd>, config: &str) -> (OwnedFd, JoinHandle<()>) {
    let (orders, theirs) = order_pair();
    let stats = StatsPage::create().expect("statistics");
    let config = config.as_bytes().to_vec();
    let server = std::thread::spawn(move || {
        let arguments = ServeArguments {
            session: 1,
            socket: state.guest.into_raw_fd(),
            arena: state.arena.into_raw_fd(),
            stats: stats.into_raw_fd(),
            grants: -1,
            bell: -1,
            tenant_page: -1,
            printed: [-1; 2],
            journal: 2,
            hello: std::ptr::NonNull::dangling().as_ptr(),
            hello_length: 0,
            config: config.as_ptr(),
            config_length: config.len(),
            exchange: std::ptr::null(),
            orders: theirs.into_raw_fd(),
            snapshot: state.snapshot.into_raw_fd(),
            heap: state.heap.map_or(-1, IntoRawFd::into_raw_fd),
            handed: state.handed.into_raw_fd(),
            event: print,
            context: std::ptr::null_mut(),
        };
        // SAFETY: everything the arguments name lives until the call returns.
        unsafe { serve(&api::API, &arguments) };
    });
    (orders, server)
}

fn order_pair() -> (OwnedFd, OwnedFd) {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("a socket pair")
}

pub fn pair() -> (OwnedFd, OwnedFd) {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).expect("a socket pair")
}

/// A request's fields.
pub fn fields(write: impl FnOnce(&mut Encoder)) -> Encoder {
    let mut encoder = Encoder::new();
    encoder.start();
    write(&mut encoder);
    encoder
}

impl Lane {
    pub fn send(&mut self, header: RequestHeader, mut body: Encoder, regions: &[Region]) {
        self.serial += 1;
        let header = RequestHeader { serial: self.serial, ..header };
        self.end.send(body.finish_request(header), regions).expect("sent");
    }

    pub fn receive(&mut self) -> Reply {
        let mut message = Vec::new();
        self.end.receive(&mut message).expect("a reply");
        let (header, body) = ReplyHeader::parse(&message).expect("a reply");
        let mut prefix = Decoder::new(body);
        self.deferred = (header.flags & flag::DEFERRED != 0).then(|| prefix.word().unwrap() as i64);
        self.deliveries.clear();
        if header.flags & flag::DELIVERIES != 0 {
            for _ in 0..prefix.word().unwrap() {
                self.deliveries.push((prefix.word().unwrap(), prefix.word().unwrap()));
            }
        }
        self.delivered = header.delivered;
        self.success = header.flags & flag::SUCCESS != 0;
        let at = prefix.position();
        Reply { header, message, at }
    }

    pub fn call(&mut self, function: u32, body: Encoder) -> Reply {
        self.call_after(function, 0, body, &[])
    }

    pub fn call_after(&mut self, function: u32, ticket: u64, body: Encoder, regions: &[Region]) -> Reply {
        self.send(RequestHeader { kind: kind::CALL, function, ticket, ..Default::default() }, body, regions);
        let reply = self.receive();
        if reply.header.kind == kind::REPLY {
            assert_eq!(reply.header.serial, self.serial);
        }
        reply
    }

    pub fn call_async(&mut self, function: u32, ticket: u64, body: Encoder) {
        self.send(RequestHeader { kind: kind::CALL_ASYNC, function, ticket, ..Default::default() }, body, &[]);
    }

    pub fn answer(&mut self, body: Encoder) {
        self.send(RequestHeader { kind: kind::CALLBACK_REPLY, ..Default::default() }, body, &[]);
    }
}
