//! The control loop of a connection: lanes that open and close, memory that comes and goes, orders to move, the end.

mod moves;
mod parked;
mod swap;

use std::collections::HashMap;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use aviary_control::{MoveReport, SwapReport};
use aviary_delegate::door::{DoorTable, LaneBell};
use aviary_transport::{Arena, ArenaError, Extent, LaneEnd, LaneWaker, Liveness, Side, accept_lane};
use aviary_wire::Control;
use aviary_wire::control::{self, CALLBACK_LANE, control_kind};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use crate::connection::mapped_fragments::MappedFragments;
use crate::lane::{Lane, LaneStart};
use crate::moving::evict::{Evicted, Spare};
use crate::moving::link::{LanePlace, Link};
use crate::moving::stage::{Hears, MoveStage};
use crate::moving::watch::{Watch, speaks};
use crate::session::Session;
use crate::tables::contents::Mapped;

/// Asynchronous calls that were published before the guest went still run, for at most this long.
const PUBLISHED_CALLS_TIMEOUT: Duration = Duration::from_secs(1);
/// How long threads inside the vendor library get to come back before they are left behind. The process ends
/// with its last connection: a compiler that runs for seconds would keep a dead guest's device that long.
const VENDOR_RETURN_TIMEOUT: Duration = Duration::from_millis(250);
/// Pieces of a VM's memory that one message maps.
const MAX_EXTENTS: usize = 4096;
/// Shadow threads run vendor code that expects a main thread's stack.
const SHADOW_STACK_BYTES: usize = 8 << 20;

/// An event that a control loop has to see to.
enum Event {
    Guest,
    /// The first sign of life of a guest whose session is parked.
    Sign,
    Order,
}

/// What came with a session from another process, until it continues here.
pub struct Arriving {
    pub snapshot: OwnedFd,
    /// What follows the link in it.
    pub rest: Box<dyn Read + Send>,
    /// While it is parked and its guest has given no sign of life.
    pub watch: Option<Watch>,
    /// Those that it has beside the rest, once they are read.
    pub contents: Option<Mapped>,
}

/// A shadow thread and how to end its waiting.
struct Shadow {
    place: LanePlace,
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
pub struct Connected {
    session: Arc<Session>,
    arena: Arc<Arena>,
    /// As it was when the connection began here, and the greeting.
    link: Link,
    lanes: HashMap<u32, Shadow>,
    closing: Vec<Shadow>,
    /// Where the lane for callbacks lies, if it is open.
    callbacks: Option<LanePlace>,
    /// The application's heap in the arena.
    heap: Option<(LanePlace, OwnedFd)>,
    stage: MoveStage,
    /// Of a session whose memory is out.
    evicted: Option<Evicted>,
    /// What it had in the host's memory the last time.
    spare: Spare,
    /// While it is out: a thread that begins and has to wait for the end of another one, whose last calls wait for the memory.
    /// Nothing that the guest has sent after it is read before.
    begins: Option<(Control, Option<OwnedFd>)>,
    /// `None` of a session that serves.
    arriving: Option<Arriving>,
    /// Of a VM's application memory.
    pieces: MappedFragments,
    /// The most lanes at a time.
    threads: usize,
    door: Option<&'static DoorTable>,
}

impl Connected {
    /// `link`: of a session that begins here, only its greeting. `heap`: of a session that moves.
    pub fn new(
        link: Link,
        session: Arc<Session>,
        arena: Arc<Arena>,
        threads: usize,
        heap: Option<OwnedFd>,
    ) -> Connected {
        Connected {
            heap: link.heap.zip(heap),
            link,
            session,
            arena,
            lanes: HashMap::new(),
            closing: Vec::new(),
            callbacks: None,
            stage: MoveStage::Serving,
            evicted: None,
            spare: Spare::default(),
            begins: None,
            arriving: None,
            pieces: MappedFragments::default(),
            threads,
            door: None,
        }
    }

    /// The same with a door by which the guest's threads may continue in those of its lanes.
    pub fn behind(self, door: Option<&'static DoorTable>) -> Connected {
        Connected { door, ..self }
    }

    /// The one loop of a connection, in all stages of it. Answers why it has ended.
    pub fn run(mut self) -> String {
        let reason = loop {
            let done = self.begin_waiting().and_then(|()| self.await_event()).and_then(|event| match event {
                Event::Order => self.obey(),
                Event::Sign => self.report_sign(),
                Event::Guest => self.hear_guest(),
            });
            if let Err(reason) = done {
                break reason;
            }
        };
        if self.stage.has_guest() {
            self.conclude();
        }
        reason
    }

    /// The thread that has waited for the session's memory begins.
    fn begin_waiting(&mut self) -> Result<(), String> {
        match self.begins.take_if(|_| self.stage == MoveStage::Serving) {
            Some((message, fd)) => self.open(message, fd).inspect_err(|reason| self.session.fail(reason)),
            None => Ok(()),
        }
    }

    /// Waits for what its stage hears.
    fn await_event(&self) -> Result<Event, String> {
        let Some(orders) = &self.session.orders else { return Ok(Event::Guest) };
        if self.session.tables.overlap.has_pending() {
            return Ok(Event::Order);
        }
        let watch = self.arriving.as_ref().and_then(|arriving| arriving.watch.as_ref());
        let guest = self.session.peer.socket.as_ref().ok_or("there is no socket")?.as_fd();
        loop {
            let mut fds = vec![PollFd::new(orders, PollFlags::IN)];
            match (self.stage.hears(), watch) {
                // Without anything to read only the end of the guest is heard.
                (Hears::Guest, _) => {
                    let flags = if self.begins.is_some() { PollFlags::empty() } else { PollFlags::IN };
                    fds.push(PollFd::from_borrowed_fd(guest, flags));
                }
                (Hears::Signs, Some(watch)) => {
                    fds.extend([
                        PollFd::from_borrowed_fd(guest, PollFlags::IN),
                        PollFd::new(watch.called(), PollFlags::IN),
                    ]);
                }
                (Hears::Signs, None) | (Hears::Nothing, _) => {}
            }
            match rustix::event::poll(&mut fds, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.to_string()),
            }
            let has = |at: usize| fds.get(at).is_some_and(|fd| !fd.revents().is_empty());
            match self.stage.hears() {
                Hears::Signs if has(2) || has(1) && speaks(guest) => return Ok(Event::Sign),
                _ if has(0) => return Ok(Event::Order),
                Hears::Guest if has(1) && self.begins.is_some() => return Err("the guest has ended".into()),
                Hears::Guest if has(1) => return Ok(Event::Guest),
                _ => {}
            }
        }
    }

    fn hear_guest(&mut self) -> Result<(), String> {
        let socket = self.session.peer.socket.as_ref().ok_or("there is no socket")?;
        match socket.receive() {
            Ok(Some((message, fd))) => self.handle(message, fd).inspect_err(|reason| self.session.fail(reason)),
            Ok(None) => Err("the guest has ended".into()),
            Err(error) => Err(error.to_string()),
        }
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
            control_kind::WINDOW_CLOSE => {
                let closed = self.arena.close_window();
                self.session.kill();
                match closed {
                    Ok(()) => Err("its VM was reset or has ended".into()),
                    // Without a hang-up: only the end of this process unmaps the memory.
                    Err(error) => {
                        self.session.peer.journal.note(&error.to_string());
                        Ok(())
                    }
                }
            }
            control_kind::HEAP if !self.lanes.is_empty() => Err("the application's heap came after a lane".into()),
            control_kind::HEAP => {
                let file = fd.ok_or("the application's heap came without its file")?;
                self.arena.lay_over(message.offset, message.length, file.as_fd()).map_err(|e| e.to_string())?;
                self.heap = Some((LanePlace { offset: message.offset, length: message.length }, file));
                Ok(())
            }
            other => Err(format!("a control message of the unknown kind {other}")),
        }
    }

    /// Memory of a VM. What cannot be mapped is the VM's to do without: its driver is told.
    fn map(&mut self, message: Control, file: Option<OwnedFd>) -> Result<(), String> {
        let socket = self.session.peer.socket.as_ref().ok_or("there is no socket")?;
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
            self.session.accounts.stats.bytes_pinned.fetch_add(bytes, Ordering::Relaxed);
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
            self.session.peer.journal.note(&format!("memory of the VM: {error}"));
        }
        self.answer_memory(offset, status);
    }

    /// 0, or an errno value.
    fn answer_memory(&self, offset: u64, status: u32) {
        self.session.peer.tell(Control { kind: control_kind::MEMORY_DONE, lane: status, offset, ..Control::default() });
    }

    /// The guest says that it cleared the word at which a lane's thread sleeps.
    fn wake(&self, offset: u64) {
        if let (Ok(word), Some(doorbell)) = (self.arena.word(offset), self.arena.doorbell()) {
            doorbell.wake_own(word);
        }
    }

    fn open(&mut self, message: Control, fd: Option<OwnedFd>) -> Result<(), String> {
        if message.flags & CALLBACK_LANE == 0 {
            if !self.has_room() && self.stage == MoveStage::Evicted && self.lanes.len() < self.threads {
                self.begins = Some((message, fd));
                return self.report(&MoveReport::Swap(SwapReport::Called));
            }
            self.refuse_without_room()?;
        }
        if self.lanes.contains_key(&message.lane) {
            return Err(format!("lane {} is open already", message.lane));
        }
        let liveness = Arc::new(Liveness::notified());
        let place = LanePlace { offset: message.offset, length: message.length };
        if message.flags & CALLBACK_LANE == 0
            && let Some(bell) = self.bell(message.lane)
        {
            let length = usize::try_from(message.length).unwrap_or(usize::MAX);
            let at = (message.offset, length);
            let end = LaneEnd::shared_with(&self.arena, at, Side::Server, &liveness, bell.clone());
            let start = LaneStart { bell: Some(bell), ..LaneStart::default() };
            return self.start_lane(message.lane, place, end.map_err(|e| e.to_string())?, liveness, start);
        }
        let end = accept_lane(&message, fd, &self.arena, &liveness).map_err(|e| e.to_string())?;
        if message.flags & CALLBACK_LANE != 0 {
            self.callbacks = Some(place);
            let opened = self.session.callbacks.lane.open(end, liveness);
            return if opened { Ok(()) } else { Err("a second callback lane".into()) };
        }
        self.start_lane(message.lane, place, end, liveness, LaneStart::default())
    }

    /// Of a lane whose thread sleeps where the guest's can continue.
    fn bell(&self, lane: u32) -> Option<Arc<LaneBell>> {
        let door = self.door.filter(|_| !self.arena.mirrored())?;
        door.berth(self.session.peer.journal.session, lane).map(LaneBell::new).map(Arc::new)
    }

    fn start_lane(
        &mut self,
        number: u32,
        place: LanePlace,
        end: LaneEnd,
        liveness: Arc<Liveness>,
        start: LaneStart,
    ) -> Result<(), String> {
        let (waker, session, bell) = (end.waker(), self.session.clone(), start.bell.clone());
        self.session.accounts.stats.lanes.fetch_add(1, Ordering::Relaxed);
        self.session.pause.enter();
        let life = move || {
            if catch_unwind(AssertUnwindSafe(|| Lane::run(session.clone(), number, end, start))).is_err() {
                session.fail("internal error: a lane's thread panicked");
            }
            if let Some(bell) = bell {
                // What ends here is this thread, not the guest's, which may have come so far.
                bell.return_to_thread();
            }
            session.pause.leave();
            session.accounts.stats.lanes.fetch_sub(1, Ordering::Relaxed);
            session.objects.log.thread_ended(number);
            session.settle_log();
            session.peer.tell(Control { kind: control_kind::LANE_CLOSED, lane: number, ..Control::default() });
        };
        let thread =
            std::thread::Builder::new().name(format!("lane-{number}")).stack_size(SHADOW_STACK_BYTES).spawn(life);
        let thread = thread.map_err(|e| {
            self.session.pause.leave();
            format!("cannot start a thread for lane {number}: {e} (limits: ulimit -u, pids.max of the control group)")
        })?;
        self.lanes.insert(number, Shadow { place, thread, liveness, waker });
        Ok(())
    }

    /// For one more thread of the guest. The lane of one that ended a moment ago may still be at work.
    fn has_room(&mut self) -> bool {
        if self.lanes.len() < self.threads && self.lanes.len() + self.closing.len() >= self.threads {
            await_end(&mut self.closing, VENDOR_RETURN_TIMEOUT);
        }
        self.lanes.len() + self.closing.len() < self.threads
    }

    fn refuse_without_room(&mut self) -> Result<(), String> {
        if self.has_room() {
            return Ok(());
        }
        self.session.accounts.audit("thread", format_args!("limit={}", self.threads));
        Err(format!(
            "the guest has more than {} threads that make calls, the limit of its tenant (`threads`)",
            self.threads
        ))
    }

    /// Calls published before the hang-up still run; then no thread waits any longer.
    fn conclude(mut self) {
        if let Some(end_waits) = self.session.calls.gone.get() {
            // SAFETY: the specification's own function, which asks nothing of its caller.
            unsafe { end_waits() };
        }
        if self.stage == MoveStage::Evicted {
            // Nothing is brought back for them.
            self.session.kill();
        }
        let mut shadows: Vec<Shadow> = self.lanes.drain().map(|(_, shadow)| shadow).collect();
        shadows.append(&mut self.closing);
        shadows.iter().for_each(Shadow::finish);
        self.session.callbacks.lane.kill();
        await_end(&mut shadows, PUBLISHED_CALLS_TIMEOUT);
        self.session.kill();
        shadows.iter().for_each(Shadow::finish);
        await_end(&mut shadows, VENDOR_RETURN_TIMEOUT);
        if !shadows.is_empty() {
            self.session.peer.journal.note(&format!(
                "{} calls have not returned from the vendor library: this API server is killed",
                shadows.len()
            ));
        }
        // A VM uses its memory again when it sees the hang-up, which copies of the socket would delay.
        match (self.arena.close_window(), self.session.peer.socket.as_ref()) {
            (Ok(()), Some(socket)) => socket.hang_up(),
            // The end of this process will unmap it.
            (Err(error), _) => self.session.peer.journal.note(&error.to_string()),
            _ => {}
        }
        // The vendor library may hold on to arena memory through objects that the guest never ended.
        if !shadows.is_empty() || !self.session.objects.handles.is_empty() || !self.session.tables.late.is_empty() {
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
