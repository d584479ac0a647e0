//! One process's connection to its API server: the state that its threads share.

pub(crate) mod attach;
pub(crate) mod callbacks;
pub(crate) mod door;
pub(crate) mod incoming;
pub(crate) mod keeper;
pub(crate) mod output;
pub(crate) mod peer;
pub(crate) mod tickets;

use std::collections::HashMap;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};

use aviary_transport::{ControlSocket, LaneEnd, LaneError, Side, StreamLane};
use aviary_wire::Control;
use aviary_wire::control::{CALLBACK_LANE, control_kind};

use crate::connection::attach::Attached;
use crate::connection::callbacks::Callbacks;
use crate::connection::door::OpenDoor;
use crate::connection::output::OutputFiles;
use crate::connection::peer::Peer;
use crate::connection::tickets::Tickets;
use crate::descriptor::{ApiDescriptor, Lost};
use crate::handles::{Ended, Handles};
use crate::lane::frame::Frame;
use crate::memory::Memory;
use crate::memory::backpressure::TransferBackpressure;
use crate::memory::block::Block;
use crate::memory::deliveries::Deliveries;
use crate::objects::Objects;
use crate::process::log;

/// Bytes of a lane: two rings, each a header page and 64 KiB.
const LANE_BYTES: usize = 2 * (4096 + (64 << 10));

#[derive(Default)]
struct ClosingLanes {
    next: u32,
    /// Blocks of lanes that the server has not released yet.
    closing: HashMap<u32, Vec<Block>>,
    /// Blocks of ended threads and handles, with the ticket of the last asynchronous call that may
    /// use each.
    orphans: Vec<(u64, Block)>,
}

/// The shared state. Never freed: threads, handles and callbacks refer to it until the process
/// ends.
pub(crate) struct Connection {
    pub descriptor: &'static ApiDescriptor,
    pub peer: Peer,
    pub memory: Memory,
    pub tickets: Tickets,
    pub handles: Handles,
    pub objects: Objects,
    pub deliveries: Deliveries,
    pub callbacks: Callbacks,
    pub backpressure: TransferBackpressure,
    pub output: OutputFiles,
    /// True with AVIARY_SYNC=1.
    pub synchronous: bool,
    /// Of an API server whose lanes' threads this process can borrow.
    door: Option<OpenDoor>,
    lanes: Mutex<ClosingLanes>,
}

impl Connection {
    pub fn new(descriptor: &'static ApiDescriptor, attached: Attached) -> Self {
        let Attached { keeper, liveness, arena, heap, same_address, ahead, synchronous, door } = attached;
        // Descriptors cannot leave a VM: printed text comes with replies from the beginning.
        let in_vm = arena.device().is_some();
        Connection {
            descriptor,
            peer: Peer::new(descriptor.name, keeper, liveness),
            memory: Memory::new(arena, heap, same_address, ahead),
            tickets: Tickets::default(),
            handles: Handles::new(descriptor.handle_types),
            objects: Objects::default(),
            deliveries: Deliveries::default(),
            callbacks: Callbacks::default(),
            backpressure: TransferBackpressure::default(),
            output: OutputFiles::new(in_vm),
            synchronous,
            door,
            lanes: Mutex::new(ClosingLanes::default()),
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
        let (arena, liveness) = (&self.memory.arena, &self.peer.liveness);
        if arena.streamed() {
            // A failure of this thread only: the others have their lanes.
            let (ours, theirs) = UnixStream::pair().map_err(|e| {
                log::line(&format!("no socket for a thread's lane: {e}"));
                Lost
            })?;
            self.peer.tell(open, Some(&theirs.into()))?;
            let ours = aviary_transport::out_of_the_way(ours.into());
            let end =
                StreamLane::watched(ours, arena.clone(), liveness.clone()).map_err(|e| self.peer.lane_failed(e))?;
            return Ok(OpenLane { id, block: None, end: LaneEnd::Stream(end) });
        }
        let Some(block) = self.memory.blocks.allocate(LANE_BYTES) else {
            log::line("the arena is full: no lane for a thread (AVIARY_ARENA sets its size)");
            return Err(Lost);
        };
        let liveness = if for_callbacks { &self.peer.callback_liveness } else { liveness };
        let end = LaneEnd::clear(arena, block.offset, LANE_BYTES)
            .and_then(|()| match self.door.as_ref().filter(|_| !for_callbacks).and_then(|door| door.bell(id)) {
                Some(bell) => LaneEnd::shared_with(arena, (block.offset, LANE_BYTES), Side::Guest, liveness, bell),
                None => LaneEnd::shared(arena, block.offset, LANE_BYTES, Side::Guest, liveness),
            })
            .map_err(|e: LaneError| self.peer.lane_failed(e))?;
        open.offset = block.offset;
        open.length = LANE_BYTES as u64;
        self.peer.tell(open, None)?;
        Ok(OpenLane { id, block: Some(block), end })
    }

    /// Reads the server's messages on the control socket since the last lane was opened.
    fn reclaim_lanes(&self, lanes: &mut ClosingLanes) {
        // A descriptor that came with a message is closed where it was received.
        let receive = |socket: &ControlSocket| socket.try_receive().ok().flatten().map(|(message, _)| message);
        while let Some(Some(message)) = self.peer.keeper.with(receive) {
            match message.kind {
                control_kind::LANE_CLOSED => {
                    for block in lanes.closing.remove(&message.lane).unwrap_or_default() {
                        self.memory.blocks.free(block);
                    }
                }
                control_kind::FAREWELL => {
                    self.peer.fail("it said farewell");
                }
                _ => {}
            }
        }
        self.free_orphans(lanes);
    }

    fn free_orphans(&self, lanes: &mut ClosingLanes) {
        let finished = self.tickets.finished(&self.memory.arena);
        lanes.orphans.retain(|(ticket, block)| {
            let done = *ticket <= finished;
            if done {
                self.memory.blocks.free(*block);
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
        let ticket = self.tickets.last();
        let mut lanes = self.lanes();
        lanes.orphans.extend(blocks.into_iter().map(|block| (ticket, block)));
        self.free_orphans(&mut lanes);
    }

    /// Frees retired blocks that the server no longer uses.
    pub fn free_retired(&self) {
        self.free_orphans(&mut self.lanes());
    }

    /// Closes a lane whose thread ends. `own`: blocks that are in use until it has ended. `held`: blocks that its asynchronous
    /// calls may still use.
    pub fn close_lane(&self, id: u32, own: Vec<Block>, held: impl Iterator<Item = (u64, Block)>) {
        if !self.peer.ours() {
            return;
        }
        let mut lanes = self.lanes();
        lanes.orphans.extend(held);
        if !own.is_empty() {
            lanes.closing.insert(id, own);
        }
        if !self.peer.liveness.dead() {
            let close = Control { kind: control_kind::LANE_CLOSE, lane: id, ..Control::default() };
            let _ = self.peer.tell(close, None);
        }
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
            self.retire(self.objects.ended(value, id));
        }
    }

    /// See [`crate::objects::bound::Bound::share`].
    pub fn share(&self, value: u64, ty: u32, other: u64, place: u64) {
        if value != 0 && other != 0 {
            self.retire(self.objects.bound.share(value, ty, other, place));
        }
    }

    /// Removes a callback that will not be called.
    pub fn forget_callback(&self, id: u64) {
        self.let_go(self.callbacks.forget(id));
    }

    /// Releases the handle that a callback kept valid; 0: none.
    pub fn let_go(&self, kept: u64) {
        if kept != 0 {
            self.release(kept, false);
        }
    }

    /// Ends the deliveries of a rejected call, which will never arrive for its blocks.
    pub fn end_untils(&self, frame: &mut Frame) {
        for offset in frame.untils.drain(..).flatten() {
            self.deliveries.finish(&self.memory, offset, 0);
        }
    }
}

/// A newly opened lane.
pub(crate) struct OpenLane {
    pub id: u32,
    pub block: Option<Block>,
    pub end: LaneEnd,
}
