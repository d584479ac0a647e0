//! One connection inside a module: how it begins, with a greeting or with the state that another process leaves.

mod control_loop;
mod environment;
pub mod exchange;
pub mod exports;
pub mod ffi;
pub mod listing;
pub mod mapped_fragments;
pub mod module;
pub mod refusal;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use aviary_control::stats::StatsPage;
use aviary_control::{Assignment, MoveReport, SwapReport};
use aviary_delegate::door::DoorTable;
use aviary_gate::{Gate, GrantPage};
use aviary_transport::{Arena, ControlSocket, send_greeting};
use aviary_wire::attach::{PREFIX, hello_flag, welcome_flag, welcome_status};
use aviary_wire::{Hello, WIRE_VERSION, Welcome};

use crate::api::ApiDescriptor;
use crate::connection::control_loop::{Arriving, Connected};
use crate::connection::refusal::AttachRefusal;
use crate::lane::clock;
use crate::lane::devices::Devices;
use crate::moving::link::Link;
use crate::moving::snapshot;
use crate::session::config::{MAX_ARENA, MAX_LANES};
use crate::session::policy::Policy;
use crate::session::printed::Printed;
use crate::session::vendor;
use crate::session::{Accounts, Journal, Parts, Peer, Session, gate};
use crate::state::object_log::ObjectLog;
use crate::tables::memory::SessionMemory;
use crate::tables::rooms::Rooms;

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
    /// Orders to move come from here, and reports go there.
    pub orders: Option<OwnedFd>,
    /// By which guests' threads continue in those of lanes.
    pub door: Option<&'static DoorTable>,
    /// The state of a session that another process has served: this one goes on with it.
    pub state: Option<MovedState>,
}

/// State of a session that comes from another process.
pub struct MovedState {
    pub snapshot: OwnedFd,
    /// The file of the application's heap.
    pub heap: Option<OwnedFd>,
    /// Where descriptors wait that the module handed over.
    pub handed: Option<OwnedFd>,
}

fn refuse<T>(status: u64, text: impl Into<String>) -> Result<T, AttachRefusal> {
    Err(AttachRefusal::new(status, text))
}

/// Serves a connection until it ends, and says why it ended.
pub fn serve(api: &'static ApiDescriptor, mut connection: Connection) -> String {
    let Some(socket) = connection.socket.take() else { return "there is no socket".into() };
    match connection.state.take() {
        Some(state) => adopt(api, &mut connection, socket, state),
        None => greet(api, &mut connection, socket),
    }
}

/// A guest that has just attached.
fn greet(api: &'static ApiDescriptor, connection: &mut Connection, socket: OwnedFd) -> String {
    let told = rustix::io::fcntl_dupfd_cloexec(&socket, 3);
    match admit(api, connection, socket, Arrival::Attaches) {
        Ok(Admitted { session, arena, threads, .. }) => {
            (connection.started)();
            let link = Link { hello: connection.hello.clone(), ..Link::default() };
            Connected::new(link, session, arena, threads, None).behind(connection.door).run()
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

/// Node and module may be of different builds: who does not say so gives no orders, and gets none.
/// `streamed`: lanes that cannot be stopped while they wait.
fn tell_swaps(config: &Assignment, arrival: Arrival<'_>, streamed: bool, session: &Session) {
    let able = session.api.handle_types.iter().any(|ty| ty.evictable.is_some());
    let able = able && config.swappable && !streamed && matches!(arrival, Arrival::Attaches);
    if let Some(orders) = session.orders.as_ref().filter(|_| able) {
        // A node that does not listen has gone.
        let _ = crate::moving::report(orders, &MoveReport::Swap(SwapReport::Able));
    }
}

/// A guest that another process has served; it hears nothing of it.
fn adopt(api: &'static ApiDescriptor, connection: &mut Connection, socket: OwnedFd, state: MovedState) -> String {
    let begun = Instant::now();
    let (link, rest) = match snapshot::read(&state.snapshot) {
        Ok(read) => read,
        Err(error) => return error.to_string(),
    };
    connection.hello.clone_from(&link.hello);
    let Admitted { session, arena, threads, parked, rehearsal } =
        match admit(api, connection, socket, Arrival::Moves(&link)) {
            Ok(admitted) => admitted,
            Err(refusal) => return refusal.whole(),
        };
    if let Some(Err(error)) = state.handed.as_ref().map(|handed| session.tables.handed.receive(handed.as_fd())) {
        return format!("what was handed over with the session: {error}");
    }
    if parked && !rehearsal {
        // The old process has ended before its memory could be compared: nothing of that may stay on a device.
        session.tables.handed.close();
    }
    let mut connected = Connected::new(link, session, arena, threads, state.heap);
    let arriving = Arriving { snapshot: state.snapshot, rest: Box::new(rest), watch: None, contents: None };
    match connected.arrive(arriving, parked, begun) {
        Ok(()) => connected.run(),
        Err(reason) => reason,
    }
}

/// How a guest comes to this process.
#[derive(Clone, Copy)]
enum Arrival<'a> {
    Attaches,
    Moves(&'a Link),
}

/// A session that exists from now on.
struct Admitted {
    session: Arc<Session>,
    arena: Arc<Arena>,
    /// The most lanes at a time.
    threads: usize,
    /// Nothing of it is to be made yet.
    parked: bool,
    /// It does not go on here.
    rehearsal: bool,
}

/// Best effort: a guest that does not listen has hung up.
pub fn send_welcome(socket: impl AsFd, status: u64, flags: u64, session: u64, text: &str) {
    let welcome = Welcome { wire_version: WIRE_VERSION, status, flags, session, text: text.to_owned() };
    let _ = send_greeting(socket, &welcome.to_bytes(), &[]);
}

/// The session's accounts and statistics, in the pages that came with it.
fn accounts_of(
    api: &'static ApiDescriptor,
    config: &Assignment,
    connection: &mut Connection,
) -> Result<(Gate, StatsPage), AttachRefusal> {
    let failed = |what: &str, error: &dyn std::fmt::Display| AttachRefusal::failed(what, error);
    let page = connection.tenant_page.take();
    let stats = connection.stats.take().ok_or_else(|| failed("the statistics", &"no page"))?;
    let gate = gate(api, config, page.as_ref().map(AsFd::as_fd), Some(stats.as_fd()));
    let gate = gate.map_err(|e| failed("the tenant's accounts", &e))?;
    let stats = StatsPage::publish(stats.as_fd(), &gate).map_err(|e| failed("the statistics", &e))?;
    Ok((gate, stats))
}

fn admit(
    api: &'static ApiDescriptor,
    connection: &mut Connection,
    socket: OwnedFd,
    arrival: Arrival<'_>,
) -> Result<Admitted, AttachRefusal> {
    let failed = |what: &str, error: &dyn std::fmt::Display| AttachRefusal::failed(what, error);
    let body = connection.hello.get(PREFIX..).unwrap_or_default();
    let hello = Hello::from_body(body).map_err(|e| failed("the greeting", &e))?;
    let config = Assignment::from_json(&connection.config).map_err(|e| failed("the node's configuration", &e))?;
    check_identity(api, &hello)?;
    let arena = open_arena(&hello, &socket, connection.arena.take(), &config)?;
    if let Arrival::Moves(link) = arrival
        && link.same_address
        && !arena.same_address()
    {
        return Err(AttachRefusal::new(welcome_status::FAILED, "the arena's address is taken in the new process"));
    }
    if let Arrival::Moves(_) = arrival {
        // The state names memory by address, where no call will name it first: page-locked memory, for instance. Rights cost no
        // memory, and no core is dumped of this process.
        let all = arena.reserve().open(0, arena.size());
        all.map_err(|error| failed("opening the arena", &error))?;
    }
    environment::adopt(api, &hello, config.private);
    let vendor = vendor::load(api, config.vendors.get(api.name).map(String::as_str))
        .map_err(|text| AttachRefusal::new(welcome_status::FAILED, "the vendor's library is not there").detail(text))?;
    let (gate, stats) = accounts_of(api, &config, connection)?;
    let devices = match connection.grants.take() {
        Some((page, bell)) => {
            let page = GrantPage::open(page.as_fd()).map_err(|e| failed("the grants", &e))?;
            Devices::new(Some(page), Some(bell), config.slice_ns)
        }
        None => Devices::new(None, None, config.slice_ns),
    };
    // SAFETY: the mapping has these bytes, and `open` checked the seals; `Connected::conclude` keeps the arena mapped for good
    // if anything may still use it.
    let memory = unsafe { SessionMemory::new(arena.base(), arena.size() as u64, !arena.mirrored()) }.of(&arena);
    let flags = if arena.same_address() { welcome_flag::SAME_ADDRESS } else { 0 };
    if let Arrival::Attaches = arrival {
        send_welcome(socket.as_fd(), welcome_status::OK, flags, connection.journal.session, "");
    }
    let journal = connection.journal;
    let peer = Peer::new(journal, Some(ControlSocket::new(socket)), connection.printed.take());
    let log = if config.movable { ObjectLog::on() } else { ObjectLog::off() };
    // Lanes that are streams cannot stop.
    let streamed = arena.streamed();
    let move_every = config.move_every.filter(|_| !streamed);
    let orders = connection.orders.take();
    let rooms = Rooms::new(&config.shared_memory, orders.as_ref()).map_err(|e| failed("the orders' socket", &e))?;
    let accounts = Accounts::new(api, gate, Policy::new(api, &config), stats, rooms, journal);
    let parts = Parts { api, vendor, accounts, peer, memory, devices, log, move_every, orders };
    let session = Session::new(parts);
    session.peer.set_heard(matches!(arrival, Arrival::Attaches));
    clock::start();
    ffi::announce(&session);
    tell_swaps(&config, arrival, streamed, &session);
    let threads = config.threads.unwrap_or(MAX_LANES).min(MAX_LANES);
    Ok(Admitted { session, arena, threads, parked: config.parked, rehearsal: config.rehearsal })
}

/// Loads the vendor's library with the environment of a guest that may come. False: it cannot come.
pub(crate) fn load_for(api: &'static ApiDescriptor, hello: &[u8], private: bool, vendor: Option<&str>) -> bool {
    let hello = hello.get(PREFIX..).and_then(|body| Hello::from_body(body).ok());
    let Some(hello) = hello.filter(|hello| check_identity(api, hello).is_ok()) else { return false };
    environment::adopt(api, &hello, private);
    vendor::load(api, vendor).is_ok()
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
