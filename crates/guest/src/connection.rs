//! One process's connection to its API server: the state that its threads share.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aviary_transport::{Arena, ControlSocket, Identity, LaneEnd, LaneError, LaneWaker, Liveness, Side, StreamLane};
use aviary_wire::Control;
use aviary_wire::control::{CALLBACK_LANE, control_kind};

use crate::backpressure::TransferBackpressure;
use crate::blocks::{Block, Blocks};
use crate::bound::Bound;
use crate::cache::Cache;
use crate::callback::Callbacks;
use crate::deliveries::Deliveries;
use crate::frame::Frame;
use crate::handles::{Ended, Handles};
use crate::heap::Heap;
use crate::interned::Interned;
use crate::keeper::Keeper;
use crate::kept::Kept;
use crate::mappings::Mappings;
use crate::output::OutputFiles;
use crate::registry::Registries;
use crate::shadows::Shadows;
use crate::states::States;
use crate::zerocopy::Zerocopy;
use crate::{ApiDescriptor, Lost, attach, fork, log};

/// Bytes of a lane: two rings, each a header page and 64 KiB.
const LANE_BYTES: usize = 2 * (4096 + (64 << 10));

/// Milliseconds between two checks of the server's life by calls that need no message.
const LIVENESS_POLL_MS: u64 = 100;

/// A counter on cache lines of its own, because all threads change it.
#[repr(align(128))]
struct CacheAligned(AtomicU64);

#[derive(Default)]
struct ClosingLanes {
    next: u32,
    /// Blocks of lanes that the server has not released yet.
    closing: HashMap<u32, Block>,
    /// Blocks of ended threads and handles, with the ticket of the last asynchronous call that may
    /// use each.
    orphans: Vec<(u64, Block)>,
}

/// The shared state. Never freed: threads, handles and callbacks refer to it until the process
/// ends.
pub(crate) struct Connection {
    pub descriptor: &'static ApiDescriptor,
    pub arena: Arc<Arena>,
    pub blocks: Blocks,
    /// The application's large allocations, if the server maps them.
    pub heap: Option<Heap>,
    pub liveness: Arc<Liveness>,
    /// Liveness of the callback lane. Its thread may wait for weeks, so it is notified (`watch`)
    /// and does not poll.
    callback_liveness: Arc<Liveness>,
    pub handles: Handles,
    pub deliveries: Deliveries,
    pub callbacks: Callbacks,
    pub cache: Cache,
    pub shadows: Shadows,
    pub states: States,
    pub mappings: Mappings,
    pub interned: Interned,
    pub kept: Kept,
    pub bound: Bound,
    pub registries: Registries,
    pub backpressure: TransferBackpressure,
    pub zerocopy: Zerocopy,
    pub output: OutputFiles,
    /// True with AVIARY_SYNC=1.
    pub synchronous: bool,
    /// True if the arena has one address on both sides, so that pointers into it are valid on the
    /// server.
    pub same_address: bool,
    keeper: Arc<Keeper>,
    /// The file of the arena's descriptor.
    memory: Option<Identity>,
    tickets: CacheAligned,
    /// The highest ticket that a reply has confirmed; used without shared memory.
    confirmed: AtomicU64,
    lanes: Mutex<ClosingLanes>,
    failed: AtomicBool,
    /// Number of forks between the process that loaded the library and the one that attached.
    generation: u32,
    /// Time of the last check of [`Connection::connected`], in milliseconds.
    looked: AtomicU64,
}

impl Connection {
    pub fn new(
        descriptor: &'static ApiDescriptor,
        arena: Arc<Arena>,
        heap: Option<Heap>,
        keeper: Arc<Keeper>,
        liveness: Arc<Liveness>,
        same_address: bool,
        synchronous: bool,
    ) -> Self {
        // Descriptors cannot leave a VM: printed text comes with replies from the beginning.
        let in_vm = arena.device().is_some();
        Connection {
            descriptor,
            blocks: Blocks::new(arena.clone(), heap.map_or(0, |heap| heap.size)),
            heap,
            memory: arena.file().or(arena.device().map(|device| device.as_fd())).and_then(Identity::of),
            arena,
            liveness,
            callback_liveness: Arc::new(Liveness::notified()),
            handles: Handles::new(descriptor),
            deliveries: Deliveries::default(),
            callbacks: Callbacks::default(),
            cache: Cache::default(),
            shadows: Shadows::default(),
            states: States::default(),
            mappings: Mappings::default(),
            interned: Interned::default(),
            kept: Kept::default(),
            bound: Bound::default(),
            registries: Registries::default(),
            backpressure: TransferBackpressure::default(),
            zerocopy: Zerocopy::default(),
            output: OutputFiles::new(in_vm),
            synchronous,
            same_address,
            keeper,
            tickets: CacheAligned(AtomicU64::new(0)),
            confirmed: AtomicU64::new(0),
            lanes: Mutex::new(ClosingLanes::default()),
            failed: AtomicBool::new(false),
            generation: fork::generation(),
            looked: AtomicU64::new(0),
        }
    }

    /// Ends the connection: every later call gets [`Lost`]. Logs the reason once.
    #[cold]
    pub fn fail(&self, why: &str) -> Lost {
        self.liveness.kill();
        if !self.failed.swap(true, Ordering::AcqRel) {
            log::line(&format!("lost the API server of {}: {why}", self.descriptor.name));
            // A live server can free the resources of this process. The callback thread ends, too.
            let _ = self.keeper.with(ControlSocket::hang_up);
        }
        Lost
    }

    /// Has the connection survive that the application closes all its descriptors, from now on: by a thread, which vendors'
    /// libraries have by then, too. A VM's device, lanes over sockets and valgrind, which does not know the system call, do
    /// without.
    pub fn keep(&self) {
        if self.ours() && !self.arena.mirrored() && self.arena.device().is_none() && !attach::under_valgrind() {
            self.keeper.start();
        }
    }

    /// Starts a thread that only waits for the server.
    pub fn spawn_watch(
        &self,
        builder: std::thread::Builder,
        work: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<()> {
        self.keeper.spawn(builder, work)
    }

    /// Sleeps until the server is gone, then ends the wait of the callback lane.
    pub fn watch(&self, callbacks: &LaneWaker) {
        self.keeper.socket().await_hang_up();
        self.liveness.kill();
        self.callback_liveness.kill();
        callbacks.wake();
    }

    #[cold]
    pub fn lane_failed(&self, e: LaneError) -> Lost {
        match e {
            LaneError::Dead => self.fail("it is gone"),
            e => self.fail(&e.to_string()),
        }
    }

    /// True if the server lived at the last check, at most [`LIVENESS_POLL_MS`] ago.
    pub fn connected(&self) -> bool {
        if !self.ours() || self.liveness.dead() {
            return false;
        }
        let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
        let now = now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000;
        let looked = self.looked.load(Ordering::Relaxed);
        if now.wrapping_sub(looked) < LIVENESS_POLL_MS {
            return true;
        }
        self.looked.store(now, Ordering::Relaxed);
        if self.liveness.check() {
            return true;
        }
        self.fail("it is gone");
        false
    }

    /// The last ticket that any thread has taken.
    #[inline]
    pub fn last_ticket(&self) -> u64 {
        self.tickets.0.load(Ordering::Acquire)
    }

    /// Takes the next ticket. Its call must be sent: the server waits for every ticket.
    #[inline]
    pub fn take_ticket(&self) -> u64 {
        self.tickets.0.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Notes a reply's confirmation that all asynchronous calls up to `ticket` are finished.
    #[inline]
    pub fn confirm_ticket(&self, ticket: u64) {
        if self.arena.mirrored() {
            self.confirmed.fetch_max(ticket, Ordering::AcqRel);
        }
    }

    /// A ticket up to which all asynchronous calls are known to be finished.
    pub fn finished_ticket(&self) -> u64 {
        if self.arena.mirrored() {
            return self.confirmed.load(Ordering::Acquire);
        }
        match self.arena.pointer(0, 8) {
            // SAFETY: the first page of the arena, 8-aligned, belongs to this word. The server
            // writes it atomically; a lying server only makes this guest reuse a block too early,
            // which harms no other.
            Ok(p) => unsafe { AtomicU64::from_ptr(p.cast()) }.load(Ordering::Acquire),
            Err(_) => 0,
        }
    }

    fn lanes(&self) -> MutexGuard<'_, ClosingLanes> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a lane and announces it to the server.
    pub fn open_lane(&self, for_callbacks: bool) -> Result<OpenLane, Lost> {
        // One lock around the control socket, so that messages are not interleaved and ids ascend.
        let mut lanes = self.lanes();
        self.reclaim_lanes(&mut lanes);
        let id = lanes.next;
        lanes.next = lanes.next.wrapping_add(1);
        let flags = if for_callbacks { CALLBACK_LANE } else { 0 };
        let mut open = Control { kind: control_kind::LANE_OPEN, lane: id, flags, ..Control::default() };
        if self.arena.streamed() {
            // A failure of this thread only: the others have their lanes.
            let (ours, theirs) = UnixStream::pair().map_err(|e| {
                log::line(&format!("no socket for a thread's lane: {e}"));
                Lost
            })?;
            self.tell(open, Some(&theirs.into()))?;
            let ours = aviary_transport::out_of_the_way(ours.into());
            let end = StreamLane::watched(ours, self.arena.clone(), self.liveness.clone())
                .map_err(|e| self.lane_failed(e))?;
            return Ok(OpenLane { id, block: None, end: LaneEnd::Stream(end) });
        }
        let Some(block) = self.blocks.allocate(LANE_BYTES) else {
            log::line("the arena is full: no lane for a thread (AVIARY_ARENA sets its size)");
            return Err(Lost);
        };
        let liveness = if for_callbacks { &self.callback_liveness } else { &self.liveness };
        let end = LaneEnd::clear(&self.arena, block.offset, LANE_BYTES)
            .and_then(|()| LaneEnd::shared(&self.arena, block.offset, LANE_BYTES, Side::Guest, liveness))
            .map_err(|e| self.lane_failed(e))?;
        open.offset = block.offset;
        open.length = LANE_BYTES as u64;
        self.tell(open, None)?;
        Ok(OpenLane { id, block: Some(block), end })
    }

    fn tell(&self, message: Control, fd: Option<&OwnedFd>) -> Result<(), Lost> {
        let socket = self.keeper.socket();
        let sent = match fd {
            None => self.keeper.with(move |socket| socket.send(message, None)),
            // The descriptor is one of this thread's.
            Some(fd) => socket.intact().then(|| socket.send(message, Some(fd.as_fd()))),
        };
        let sent = sent.ok_or_else(|| self.fail("the application closed its socket"))?;
        sent.map_err(|e| self.fail(&e.to_string()))
    }

    /// Reads the server's messages on the control socket since the last lane was opened.
    fn reclaim_lanes(&self, lanes: &mut ClosingLanes) {
        // A descriptor that came with a message is closed where it was received.
        let receive = |socket: &ControlSocket| socket.try_receive().ok().flatten().map(|(message, _)| message);
        while let Some(Some(message)) = self.keeper.with(receive) {
            match message.kind {
                control_kind::LANE_CLOSED => {
                    if let Some(block) = lanes.closing.remove(&message.lane) {
                        self.blocks.free(block);
                    }
                }
                control_kind::FAREWELL => {
                    self.fail("it said farewell");
                }
                _ => {}
            }
        }
        self.free_orphans(lanes);
    }

    fn free_orphans(&self, lanes: &mut ClosingLanes) {
        let finished = self.finished_ticket();
        lanes.orphans.retain(|(ticket, block)| {
            let done = *ticket <= finished;
            if done {
                self.blocks.free(*block);
            }
            !done
        });
    }

    /// Retires the blocks of an ended handle: an asynchronous release, and earlier calls that name
    /// the handle, may not have been executed yet.
    pub fn retire(&self, blocks: Vec<Block>) {
        if blocks.is_empty() {
            return;
        }
        let ticket = self.last_ticket();
        let mut lanes = self.lanes();
        lanes.orphans.extend(blocks.into_iter().map(|block| (ticket, block)));
        self.free_orphans(&mut lanes);
    }

    /// Drops one of the application's references of a handle, or `all`; with the last one the
    /// handle and its dependants end.
    pub fn release(&self, value: u64, all: bool) {
        self.ended(self.handles.release(value, all));
    }

    /// Makes the handle `value` end with the handle `owner`.
    pub fn end_with(&self, value: u64, owner_ty: u32, owner: u64) {
        self.ended(self.handles.end_with(value, owner_ty, owner));
    }

    fn ended(&self, handles: Vec<Ended>) {
        for Ended { value, id } in handles {
            self.cache.forget(id);
            self.kept.owner_ended(value);
            self.retire(self.shadows.owner_ended(value));
            self.retire(self.bound.owner_ended(value));
        }
    }

    /// Frees retired blocks that the server no longer uses.
    pub fn free_retired(&self) {
        self.free_orphans(&mut self.lanes());
    }

    /// Closes a lane whose thread ends. `held`: blocks that its asynchronous calls may still use.
    pub fn close_lane(&self, id: u32, block: Option<Block>, held: impl Iterator<Item = (u64, Block)>) {
        if !self.ours() {
            return;
        }
        let mut lanes = self.lanes();
        lanes.orphans.extend(held);
        if let Some(block) = block {
            lanes.closing.insert(id, block);
        }
        if !self.liveness.dead() {
            let close = Control { kind: control_kind::LANE_CLOSE, lane: id, ..Control::default() };
            let _ = self.tell(close, None);
        }
    }

    /// Ends the deliveries of a rejected call, which will never arrive for its blocks.
    pub fn end_untils(&self, frame: &mut Frame) {
        for offset in frame.untils.drain(..).flatten() {
            self.deliveries.finish(self, offset, 0);
        }
    }

    /// False in a child process that inherited this object by `fork`.
    #[inline]
    pub fn ours(&self) -> bool {
        self.generation == fork::generation()
    }

    /// Closes a forked child's copies of the descriptors, which would hide the parent's death from
    /// the server. Calls only functions that are safe between `fork` and `exec`.
    pub fn abandon_in_child(&self) {
        self.liveness.kill();
        self.failed.store(true, Ordering::Relaxed);
        let control = self.keeper.socket().as_fd().as_raw_fd();
        let device = self.arena.device().map(|device| device.as_fd());
        let memory = self.arena.file().or(device).filter(|file| self.memory.is_some_and(|memory| memory.is(file)));
        // SAFETY: the numbers still refer to this connection's files, not to the application's, and
        // the objects that own them are never dropped, in this process or in the parent, so no
        // number is closed twice.
        unsafe {
            if self.keeper.socket().intact() {
                libc::close(control);
            }
            if let Some(file) = memory {
                libc::close(file.as_raw_fd());
            }
        }
    }
}

/// A newly opened lane.
pub(crate) struct OpenLane {
    pub id: u32,
    pub block: Option<Block>,
    pub end: LaneEnd,
}
