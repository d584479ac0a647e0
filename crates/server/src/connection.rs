//! One connection inside a module: the greeting, the control loop, the end.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use aviary_control::Assignment;
use aviary_control::stats::StatsPage;
use aviary_gate::GrantPage;
use aviary_transport::{Arena, ArenaError, ControlSocket, Extent, LaneWaker, Liveness, accept_lane, send_greeting};
use aviary_wire::attach::{PREFIX, hello_flag, welcome_flag, welcome_status};
use aviary_wire::control::{self, CALLBACK_LANE, control_kind};
use aviary_wire::{Control, Hello, WIRE_VERSION, Welcome};

use crate::api::ApiDescriptor;
use crate::clock;
use crate::config::{MAX_ARENA, MAX_LANES};
use crate::devices::Devices;
use crate::environment;
use crate::ffi;
use crate::lane::Lane;
use crate::mapped_fragments::MappedFragments;
use crate::memory::SessionMemory;
use crate::module::load_vendor;
use crate::object_log::ObjectLog;
use crate::policy::Policy;
use crate::printed::Printed;
use crate::refusal::AttachRefusal;
use crate::session::{Journal, Parts, Session, gate};

/// Asynchronous calls that were published before the guest went still run, for at most this long.
const PUBLISHED_CALLS_TIMEOUT: Duration = Duration::from_secs(1);
/// How long threads inside the vendor library get to come back before they are left behind. The process ends
/// with its last connection: a compiler that runs for seconds would keep a dead guest's device that long.
const VENDOR_RETURN_TIMEOUT: Duration = Duration::from_millis(250);
/// Pieces of a VM's memory that one message maps.
const MAX_EXTENTS: usize = 4096;
/// Shadow threads run vendor code that expects a main thread's stack.
const SHADOW_STACK_BYTES: usize = 8 << 20;

/// Configuration of a connection.
pub struct Connection {
    pub socket: Option<OwnedFd>,
    pub arena: Option<OwnedFd>,
    pub stats: Option<OwnedFd>,
    /// Page and bell; none if the node never schedules anything.
    pub grants: Option<(OwnedFd, OwnedFd)>,
    pub tenant_page: Option<OwnedFd>,
    pub printed: Option<Printed>,
    pub journal: Journal,
    pub hello: Vec<u8>,
    pub config: Vec<u8>,
    pub started: Box<dyn Fn()>,
}

fn refuse<T>(status: u64, text: impl Into<String>) -> Result<T, AttachRefusal> {
    Err(AttachRefusal::new(status, text))
}

/// Serves a connection until it ends, and says why it ended.
pub fn serve(api: &'static ApiDescriptor, mut connection: Connection) -> String {
    let Some(socket) = connection.socket.take() else { return "there is no socket".into() };
    let told = rustix::io::fcntl_dupfd_cloexec(&socket, 3);
    match admit(api, &mut connection, socket) {
        Ok((session, arena, threads)) => {
            (connection.started)();
            Connected::new(session, arena, threads).run()
        }
        Err(refusal) => {
            let config = Assignment::from_json(&connection.config).unwrap_or_default();
            if !config.private {
                connection.journal.note(&format!("{} refused: {}", api.name, refusal.whole()));
            }
            if let Ok(socket) = told {
                let text = refusal.for_guest(config.own);
                send_welcome(socket.as_fd(), refusal.status, 0, connection.journal.session, &text);
            }
            format!("refused: {}", refusal.whole())
        }
    }
}

/// Best effort: a guest that does not listen has hung up.
pub fn send_welcome(socket: impl AsFd, status: u64, flags: u64, session: u64, text: &str) {
    let welcome = Welcome { wire_version: WIRE_VERSION, status, flags, session, text: text.to_owned() };
    let _ = send_greeting(socket, &welcome.to_bytes(), &[]);
}

fn admit(
    api: &'static ApiDescriptor,
    connection: &mut Connection,
    socket: OwnedFd,
) -> Result<(Arc<Session>, Arc<Arena>, usize), AttachRefusal> {
    let failed = |what: &str, error: &dyn std::fmt::Display| AttachRefusal::failed(what, error);
    let body = connection.hello.get(PREFIX..).unwrap_or_default();
    let hello = Hello::from_body(body).map_err(|e| failed("the greeting", &e))?;
    let config = Assignment::from_json(&connection.config).map_err(|e| failed("the node's configuration", &e))?;
    check_identity(api, &hello)?;
    let arena = open_arena(&hello, &socket, connection.arena.take(), &config)?;
    environment::adopt(api, &hello, config.private);
    let vendor = load_vendor(api, config.vendors.get(api.name).map(String::as_str))
        .map_err(|text| AttachRefusal::new(welcome_status::FAILED, "the vendor's library is not there").detail(text))?;
    let page = connection.tenant_page.take();
    let gate = gate(api, &config, page.as_ref().map(AsFd::as_fd)).map_err(|e| failed("the tenant's accounts", &e))?;
    let stats = connection.stats.take().ok_or_else(|| failed("the statistics", &"no page"))?;
    let stats = StatsPage::publish(stats.as_fd(), &gate).map_err(|e| failed("the statistics", &e))?;
    let devices = match connection.grants.take() {
        Some((page, bell)) => {
            let page = GrantPage::open(page.as_fd()).map_err(|e| failed("the grants", &e))?;
            Devices::new(Some(page), Some(bell), config.slice_ns)
        }
        None => Devices::new(None, None, config.slice_ns),
    };
    let base = arena.pointer(0, arena.size()).map_err(|e| failed("the arena", &e))?;
    // SAFETY: `pointer` checked the range, `open` the seals; `Connected::conclude` keeps the arena mapped for good
    // if anything may still use it.
    let memory = unsafe { SessionMemory::new(base, arena.size() as u64, !arena.mirrored()) };
    let flags = if arena.same_address() { welcome_flag::SAME_ADDRESS } else { 0 };
    send_welcome(socket.as_fd(), welcome_status::OK, flags, connection.journal.session, "");
    let socket = Some(ControlSocket::new(socket));
    let policy = Policy::new(api, &config);
    let (journal, printed, log) = (connection.journal, connection.printed.take(), ObjectLog::off());
    let parts = Parts { api, vendor, memory, stats, gate, policy, devices, printed, log, journal, socket };
    let session = Session::new(parts);
    clock::start();
    ffi::announce(&session);
    Ok((session, arena, config.threads.unwrap_or(MAX_LANES).min(MAX_LANES)))
}

fn check_identity(api: &ApiDescriptor, hello: &Hello) -> Result<(), AttachRefusal> {
    if hello.wire_version != WIRE_VERSION {
        let text = format!(
            "the guest library speaks wire version {}, the server {WIRE_VERSION}; build both from the same Aviary",
            hello.wire_version
        );
        return refuse(welcome_status::WIRE_VERSION, text);
    }
    if hello.api != api.name || hello.spec_hash != api.spec_hash {
        let text = format!(
            "the guest library is {} {} (specification {:016x}), the server's module is {} {} ({:016x}); run `aviary spec build` and use both results",
            hello.api, hello.api_version, hello.spec_hash, api.name, api.version, api.spec_hash
        );
        return refuse(welcome_status::API, text);
    }
    Ok(())
}

fn open_arena(
    hello: &Hello,
    socket: &OwnedFd,
    file: Option<OwnedFd>,
    config: &Assignment,
) -> Result<Arc<Arena>, AttachRefusal> {
    let limit = config.arena.unwrap_or(MAX_ARENA);
    if hello.arena_size > limit {
        return refuse(
            welcome_status::REFUSED,
            format!(
                "an arena of {} bytes is larger than the node allows ({limit}); set AVIARY_ARENA",
                hello.arena_size
            ),
        );
    }
    let arena = match file {
        _ if hello.flags & hello_flag::MIRRORED != 0 => Arena::mirror_of(hello.arena_address, hello.arena_size),
        // A window is empty until its device maps memory into it: without one every access would be a fault.
        _ if hello.flags & hello_flag::WINDOW != 0 && !config.in_vm => {
            return refuse(
                welcome_status::REFUSED,
                "the greeting asks for a window on a virtual machine's memory, which only a VM's device may",
            );
        }
        _ if hello.flags & hello_flag::WINDOW != 0 => match rustix::io::fcntl_dupfd_cloexec(socket, 3) {
            Ok(socket) => Arena::window(hello.arena_address, hello.arena_size, socket),
            Err(error) => return refuse(welcome_status::FAILED, format!("the control socket: {error}")),
        },
        Some(file) => Arena::open(file, hello.arena_address, hello.arena_size),
        None => return refuse(welcome_status::FAILED, "the greeting came without the arena's descriptor"),
    };
    let arena = arena.or_else(|e| refuse(welcome_status::FAILED, e.to_string()))?;
    if hello.flags & hello_flag::CARRIED != 0 {
        arena.set_carried();
    }
    Ok(arena)
}

/// A shadow thread and how to end its waiting.
struct Shadow {
    thread: JoinHandle<()>,
    liveness: Arc<Liveness>,
    waker: LaneWaker,
}

impl Shadow {
    /// The lane is finished when what was published so far has been executed.
    fn finish(&self) {
        self.liveness.kill();
        self.waker.wake();
    }
}

/// The control loop's state.
struct Connected {
    session: Arc<Session>,
    arena: Arc<Arena>,
    lanes: HashMap<u32, Shadow>,
    closing: Vec<Shadow>,
    /// Of a VM's application memory.
    pieces: MappedFragments,
    /// The most lanes at a time.
    threads: usize,
}

impl Connected {
    fn new(session: Arc<Session>, arena: Arc<Arena>, threads: usize) -> Connected {
        Connected {
            session,
            arena,
            lanes: HashMap::new(),
            closing: Vec::new(),
            pieces: MappedFragments::default(),
            threads,
        }
    }

    fn run(mut self) -> String {
        let reason = loop {
            let received = match self.session.socket() {
                Some(socket) => socket.receive(),
                None => break "there is no socket".to_owned(),
            };
            match received {
                Ok(Some((message, fd))) => {
                    if let Err(reason) = self.handle(message, fd) {
                        self.session.fail(&reason);
                        break reason;
                    }
                }
                Ok(None) => break "the guest has gone".to_owned(),
                Err(error) => break error.to_string(),
            }
        };
        self.conclude();
        reason
    }

    fn handle(&mut self, message: Control, fd: Option<OwnedFd>) -> Result<(), String> {
        self.closing.retain(|shadow| !shadow.thread.is_finished());
        match message.kind {
            control_kind::LANE_OPEN => self.open(message, fd),
            control_kind::LANE_CLOSE => {
                if let Some(shadow) = self.lanes.remove(&message.lane) {
                    shadow.finish();
                    self.closing.push(shadow);
                }
                Ok(())
            }
            control_kind::MEMORY_MAP => self.map(message, fd),
            control_kind::MEMORY_UNMAP => {
                let unmapped = self.arena.unmap_piece(message.offset, message.length);
                self.pieces.remove(message.offset, message.length);
                self.memory_done(message.offset, unmapped);
                Ok(())
            }
            control_kind::WAKE => {
                self.wake(message.offset);
                Ok(())
            }
            control_kind::HEAP if !self.lanes.is_empty() => Err("the application's heap came after a lane".into()),
            control_kind::HEAP => {
                let file = fd.ok_or("the application's heap came without its file")?;
                self.arena.lay_over(message.offset, message.length, file.as_fd()).map_err(|e| e.to_string())
            }
            other => Err(format!("a control message of the unknown kind {other}")),
        }
    }

    /// Memory of a VM. What cannot be mapped is the VM's to do without: its driver is told.
    fn map(&mut self, message: Control, file: Option<OwnedFd>) -> Result<(), String> {
        let socket = self.session.socket().ok_or("there is no socket")?;
        let count = message.lane as usize;
        if count > MAX_EXTENTS {
            return Err(format!("{count} pieces of memory in one message: at most {MAX_EXTENTS} are possible"));
        }
        let mut bytes = vec![0; count * Extent::EXTENT_BYTES];
        socket.receive_rest(&mut bytes).map_err(|e| e.to_string())?;
        let (extents, _) = bytes.as_chunks::<{ Extent::EXTENT_BYTES }>();
        let extents: Vec<Extent> = extents.iter().map(Extent::from_bytes).collect();
        let file = file.ok_or("memory was to be mapped without a file")?;
        let application = message.flags & control::APPLICATION_MEMORY != 0;
        if application && !self.pieces.add(message.offset, extents.len()) {
            // Nothing is wrong: the guest copies.
            self.answer_memory(message.offset, rustix::io::Errno::NOSPC.raw_os_error().unsigned_abs());
            return Ok(());
        }
        let mapped =
            self.arena.map_extents(message.offset, &extents, file.as_fd(), message.flags & control::WRITABLE != 0);
        if mapped.is_ok() && application {
            let bytes = extents.iter().map(|extent| extent.length).sum();
            self.session.stats.bytes_pinned.fetch_add(bytes, Ordering::Relaxed);
        }
        self.memory_done(message.offset, mapped);
        Ok(())
    }

    fn memory_done(&self, offset: u64, result: Result<(), ArenaError>) {
        let status = match &result {
            Ok(()) => 0,
            Err(ArenaError::System { error, .. }) => error.raw_os_error().unsigned_abs(),
            Err(_) => rustix::io::Errno::INVAL.raw_os_error().unsigned_abs(),
        };
        if let Err(error) = result {
            self.session.note(&format!("memory of the VM: {error}"));
        }
        self.answer_memory(offset, status);
    }

    /// 0, or an errno value.
    fn answer_memory(&self, offset: u64, status: u32) {
        self.session.tell(Control { kind: control_kind::MEMORY_DONE, lane: status, offset, ..Control::default() });
    }

    /// The guest says that it cleared the word at which a lane's thread sleeps.
    fn wake(&self, offset: u64) {
        if let (Ok(word), Some(doorbell)) = (self.arena.word(offset), self.arena.doorbell()) {
            doorbell.wake_own(word);
        }
    }

    fn open(&mut self, message: Control, fd: Option<OwnedFd>) -> Result<(), String> {
        if message.flags & CALLBACK_LANE == 0 {
            self.make_room()?;
        }
        if self.lanes.contains_key(&message.lane) {
            return Err(format!("lane {} is open already", message.lane));
        }
        let liveness = Arc::new(Liveness::notified());
        let end = accept_lane(&message, fd, &self.arena, &liveness).map_err(|e| e.to_string())?;
        if message.flags & CALLBACK_LANE != 0 {
            let opened = self.session.callback_lane.open(end, liveness);
            return if opened { Ok(()) } else { Err("a second callback lane".into()) };
        }
        let (waker, number, session) = (end.waker(), message.lane, self.session.clone());
        self.session.stats.lanes.fetch_add(1, Ordering::Relaxed);
        let life = move || {
            if catch_unwind(AssertUnwindSafe(|| Lane::run(session.clone(), end))).is_err() {
                session.fail("internal error: a lane's thread panicked");
            }
            session.stats.lanes.fetch_sub(1, Ordering::Relaxed);
            session.tell(Control { kind: control_kind::LANE_CLOSED, lane: number, ..Control::default() });
        };
        let thread =
            std::thread::Builder::new().name(format!("lane-{number}")).stack_size(SHADOW_STACK_BYTES).spawn(life);
        let thread = thread.map_err(|e| format!("no thread for lane {number}: {e}"))?;
        self.lanes.insert(number, Shadow { thread, liveness, waker });
        Ok(())
    }

    /// For one more thread of the guest. The lane of one that ended a moment ago may still be at work.
    fn make_room(&mut self) -> Result<(), String> {
        if self.lanes.len() < self.threads && self.lanes.len() + self.closing.len() >= self.threads {
            await_end(&mut self.closing, VENDOR_RETURN_TIMEOUT);
        }
        if self.lanes.len() + self.closing.len() < self.threads {
            return Ok(());
        }
        self.session.audit("thread", format_args!("limit={}", self.threads));
        Err(format!("the guest has more than {} threads that call, which its tenant may not", self.threads))
    }

    /// Calls published before the hang-up still run; then no thread waits any longer.
    fn conclude(mut self) {
        let mut shadows: Vec<Shadow> = self.lanes.drain().map(|(_, shadow)| shadow).collect();
        shadows.append(&mut self.closing);
        shadows.iter().for_each(Shadow::finish);
        self.session.callback_lane.kill();
        await_end(&mut shadows, PUBLISHED_CALLS_TIMEOUT);
        self.session.kill();
        shadows.iter().for_each(Shadow::finish);
        await_end(&mut shadows, VENDOR_RETURN_TIMEOUT);
        if !shadows.is_empty() {
            self.session.note(&format!("{} calls do not return from the vendor library", shadows.len()));
        }
        // A VM uses its memory again when it sees the hang-up, which copies of the socket would delay.
        match (self.arena.close_window(), self.session.socket()) {
            (Ok(()), Some(socket)) => socket.hang_up(),
            // The end of this process will unmap it.
            (Err(error), _) => self.session.note(&error.to_string()),
            _ => {}
        }
        // The vendor library may hold on to arena memory through objects that the guest never ended.
        if !shadows.is_empty() || !self.session.handles.is_empty() || !self.session.late.is_empty() {
            std::mem::forget(self.arena.clone());
        }
    }
}

fn await_end(shadows: &mut Vec<Shadow>, at_most: Duration) {
    let deadline = Instant::now() + at_most;
    loop {
        shadows.retain(|shadow| !shadow.thread.is_finished());
        if shadows.is_empty() || Instant::now() >= deadline {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn only_a_vms_device_has_a_window() {
        let socket = OwnedFd::from(UnixStream::pair().unwrap().0);
        let hello = Hello { flags: hello_flag::WINDOW, arena_size: 1 << 20, ..Hello::default() };
        let open = |in_vm| open_arena(&hello, &socket, None, &Assignment { in_vm, ..Assignment::default() });
        let refusal = open(false).err().unwrap();
        assert_eq!(refusal.status, welcome_status::REFUSED);
        assert!(refusal.for_guest(false).contains("only a VM's device"), "{refusal:?}");
        assert!(open(true).is_ok());
    }
}
