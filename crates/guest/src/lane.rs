//! A thread's lane: requests out, replies and callbacks in.
//!
//! Every thread has its own lane for every API, opened at its first call and closed when it ends. A
//! lane is not shared with other threads, so the path of a call takes no lock.

pub(crate) mod callback_thread;
mod early;
pub(crate) mod frame;
mod held;
mod holding;
pub(crate) mod prefix;
pub(crate) mod serving;
pub(crate) mod syncing;

use std::cell::{Cell, RefCell, UnsafeCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, compiler_fence};
use std::time::Duration;

use aviary_transport::{LaneEnd, LaneError, Region, WaitPoint};
use aviary_wire::{Decoder, MAX_MESSAGE, ReplyHeader, RequestHeader, flag, kind, status};

use crate::connection::Connection;
use crate::descriptor::Lost;
use crate::lane::frame::Frame;
use crate::lane::held::{Held, Milestone};
use crate::lane::prefix::prefix;
use crate::memory::block::Block;
use crate::memory::deliveries::Waiter;
use crate::objects::registry::Snapshot;
use crate::process::cancellation::{self, CancelType};
use crate::process::log;
use crate::process::trace;
use crate::process::unwind::Foreign;

/// Spin window before the next reply, when the server has advised it.
const ADVISED_SPIN_WINDOW: Duration = Duration::from_micros(300);
/// Frames kept for nested calls.
const KEPT_FRAMES: usize = 4;

/// The prefix of a reply, and what its header says of the call.
pub(crate) struct Answer {
    /// Flags of the wire's `flag`.
    pub flags: u16,
    /// Status of the wire's `status`, and its detail.
    pub status: u32,
    pub detail: u32,
    /// Offset of the first field in the reply's body.
    pub at: usize,
    pub deferred: Option<i64>,
}

pub(crate) struct ThreadLane {
    pub connection: &'static Connection,
    id: u32,
    block: Option<Block>,
    end: UnsafeCell<LaneEnd>,
    /// True while the end is in use. Only a signal handler of this thread can find it set.
    busy: AtomicBool,
    /// True from before a message is awaited until what it delivers is applied. A signal handler of this thread that finds it set must
    /// not wait for that.
    receiving: AtomicBool,
    serial: Cell<u64>,
    /// A lower bound of the ticket that is about to be taken or sent; 0: none. Read only by a
    /// signal handler of this thread.
    taking: AtomicU64,
    /// In the lane of a signal handler: no call may wait for this ticket or a later one, because
    /// the interrupted thread cannot send it.
    barrier: Cell<Option<u64>>,
    /// The frame of the next call.
    frame: Cell<Option<Box<Frame>>>,
    /// Further frames, for nested calls.
    // Boxed, because a frame is large and moves in and out for every call.
    #[allow(clippy::vec_box)]
    frames: Cell<Vec<Box<Frame>>>,
    held: RefCell<Held>,
    milestone: Cell<Option<Milestone>>,
    /// A deferred error of an asynchronous call, not reported to the application yet.
    deferred: Cell<Option<i64>>,
    /// True if the server's last advice was to spin: see `follow_advice`.
    awake: Cell<bool>,
    /// Callbacks that run on this thread now, one inside a call inside the other.
    callbacks: Cell<u32>,
    spare: Cell<Option<Rc<ThreadLane>>>,
    /// What the thread was last told of the buffers in flight.
    pub buffers: RefCell<Snapshot>,
    /// Time that the present call has waited for the server, for `AVIARY_TRACE`; `None`: it has not waited.
    waited: Cell<Option<Duration>>,
}

thread_local! {
    static LANES: RefCell<Vec<Rc<ThreadLane>>> = const { RefCell::new(Vec::new()) };
}

/// This thread's lane.
#[inline]
pub(crate) fn current(connection: &'static Connection) -> Result<Rc<ThreadLane>, Lost> {
    let known = LANES.try_with(|lanes| {
        let lanes = lanes.try_borrow().ok()?;
        lanes.iter().find(|l| std::ptr::eq(l.connection, connection)).cloned()
    });
    match known {
        Ok(Some(lane)) if !lane.is_interrupted() => Ok(lane),
        Ok(Some(lane)) => lane.for_signal_handler(),
        _ => open(connection),
    }
}

/// Time that this thread's present call has waited for the server, from now on none.
pub(crate) fn take_waited(connection: &'static Connection) -> Option<Duration> {
    let known = LANES.try_with(|lanes| {
        let lanes = lanes.try_borrow().ok()?;
        let lane = lanes.iter().find(|l| std::ptr::eq(l.connection, connection))?;
        if !lane.busy.load(Ordering::Relaxed) {
            return lane.waited.take();
        }
        // A signal handler has interrupted a call, whose time stays.
        let spare = lane.spare.take()?;
        let waited = spare.waited.take();
        lane.spare.set(Some(spare));
        waited
    });
    known.ok().flatten()
}

#[cold]
fn open(connection: &'static Connection) -> Result<Rc<ThreadLane>, Lost> {
    let lane = Rc::new(ThreadLane::open(connection)?);
    // A thread whose locals have been destroyed (a call from another library's destructor) closes
    // its lane with the call.
    let _ = LANES.try_with(|lanes| {
        if let Ok(mut lanes) = lanes.try_borrow_mut() {
            lanes.push(lane.clone());
        }
    });
    Ok(lane)
}

impl ThreadLane {
    fn open(connection: &'static Connection) -> Result<Self, Lost> {
        let mut lane = connection.open_lane(false)?;
        lane.end.expect_answers();
        Ok(ThreadLane {
            connection,
            id: lane.id,
            block: lane.block,
            end: UnsafeCell::new(lane.end),
            busy: AtomicBool::new(false),
            receiving: AtomicBool::new(false),
            serial: Cell::new(0),
            taking: AtomicU64::new(0),
            barrier: Cell::new(None),
            frame: Cell::new(None),
            frames: Cell::new(Vec::new()),
            held: RefCell::default(),
            milestone: Cell::default(),
            deferred: Cell::new(None),
            awake: Cell::new(false),
            callbacks: Cell::new(0),
            spare: Cell::new(None),
            buffers: RefCell::default(),
            waited: Cell::new(None),
        })
    }

    /// True: this is asked in a signal handler, which interrupted the thread where it uses the lane.
    #[inline]
    fn is_interrupted(&self) -> bool {
        self.busy.load(Ordering::Relaxed)
            || self.receiving.load(Ordering::Relaxed)
            // A call of the handler would follow a ticket that has been taken, and is sent when the handler has returned.
            || self.taking.load(Ordering::Relaxed) != 0
    }

    /// Opens another lane for a call from a signal handler that interrupted this thread inside the
    /// runtime.
    #[cold]
    fn for_signal_handler(&self) -> Result<Rc<ThreadLane>, Lost> {
        let spare = match self.spare.take() {
            Some(spare) if !spare.is_interrupted() => spare,
            other => {
                self.spare.set(other);
                Rc::new(ThreadLane::open(self.connection)?)
            }
        };
        self.spare.set(Some(spare.clone()));
        let taking = self.taking.load(Ordering::Relaxed);
        spare.barrier.set(Some(if taking == 0 { u64::MAX } else { taking }));
        Ok(spare)
    }

    #[inline]
    pub fn take_frame(&self) -> Box<Frame> {
        let mut frame = self.frame.take().unwrap_or_else(|| self.nested_frame());
        frame.reset();
        frame
    }

    #[cold]
    fn nested_frame(&self) -> Box<Frame> {
        // Taken out as a whole: a signal handler that interrupts this code finds no frames and
        // makes its own.
        let mut frames = self.frames.take();
        let frame = frames.pop().unwrap_or_default();
        self.frames.set(frames);
        frame
    }

    #[inline]
    pub fn give_frame(&self, mut frame: Box<Frame>) {
        frame.slim();
        if let Some(frame) = self.frame.replace(Some(frame)) {
            self.keep_nested(frame);
        }
    }

    #[cold]
    fn keep_nested(&self, frame: Box<Frame>) {
        let mut frames = self.frames.take();
        if frames.len() < KEPT_FRAMES {
            frames.push(frame);
        }
        self.frames.set(frames);
    }

    /// Frees the blocks of a call that has ended.
    #[inline]
    pub fn free_blocks(&self, frame: &mut Frame) {
        while let Some(block) = frame.blocks.pop() {
            self.connection.memory.blocks.free(block);
        }
    }

    /// Runs `f` with exclusive use of the end.
    #[inline]
    fn with_end<R>(&self, f: impl FnOnce(&mut LaneEnd) -> Result<R, LaneError>) -> Result<R, Lost> {
        // A child forked inside a callback returns to its parent's call: it must not touch the
        // parent's lane.
        if self.busy.load(Ordering::Relaxed) || !self.connection.peer.ours() {
            return Err(Lost);
        }
        self.busy.store(true, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        // SAFETY: a ThreadLane stays on its thread (it is neither Send nor Sync), and `busy` keeps
        // a signal handler of this thread from entering a second time; `f` is transport code that
        // calls nothing back.
        let result = f(unsafe { &mut *self.end.get() });
        compiler_fence(Ordering::SeqCst);
        self.busy.store(false, Ordering::Relaxed);
        result.map_err(|e| self.connection.peer.lane_failed(e))
    }

    /// A carrier sends this region ahead of a later message of the lane.
    pub fn send_ahead(&self, region: Region) -> Result<(), Lost> {
        self.with_end(|end| end.send(&[], &[region]))
    }

    fn next_serial(&self) -> u64 {
        let serial = self.serial.get() + 1;
        self.serial.set(serial);
        serial
    }

    /// True in a signal handler's lane, whose calls do not follow all calls before them.
    pub fn out_of_order(&self) -> bool {
        self.barrier.get().is_some()
    }

    /// The ticket that a synchronous call must follow.
    #[inline]
    fn ticket_before(&self) -> u64 {
        let last = self.connection.tickets.last();
        match self.barrier.get() {
            None => last,
            Some(barrier) => last.min(barrier - 1),
        }
    }

    /// Sends a message and waits for its reply, which is stored in `frame.reply`.
    pub fn exchange(&self, kind: u16, flags: u16, function: u32, frame: &mut Frame) -> Result<Answer, Lost> {
        let (serial, ticket) = (self.next_serial(), self.ticket_before());
        let regions = frame.regions.len() as u32;
        let header = RequestHeader { length: 0, kind, flags, function, regions, ticket, serial };
        let message = frame.encoder.finish_request(header);
        self.with_end(|end| end.ask(message, &frame.regions))?;
        let answer = trace::waiting(&self.waited, || self.await_reply(serial, frame))?;
        self.connection.tickets.confirm(&self.connection.memory.arena, ticket);
        self.connection.tickets.answer();
        self.reclaim(ticket);
        Ok(answer)
    }

    /// Follows the server's advice to spin between calls: this program has the device's grant and
    /// calls often (GPU-centric coscheduling, FairGV 3.2.3).
    #[inline]
    fn follow_advice(&self, awake: bool) {
        if self.awake.replace(awake) != awake {
            let time = if awake { ADVISED_SPIN_WINDOW } else { Duration::ZERO };
            let _ = self.with_end(|end| {
                end.set_spin_window(time);
                Ok(())
            });
        }
    }

    /// Waits for a message. The thread ends here if it is cancelled meanwhile, but not in a callback: the call around that
    /// needs the lane for its own reply.
    fn receive(&self, frame: &mut Frame) -> Result<(), Lost> {
        let may_leave = self.callbacks.get() == 0;
        let (mut ty, mut before_reply, mut with_reply) = (CancelType::Deferred, None, None);
        let received = self.with_end(|end| {
            let mut wait = |point| {
                match point {
                    WaitPoint::Begin => ty = cancellation::defer(),
                    WaitPoint::Check if may_leave => before_reply = cancellation::requested(),
                    WaitPoint::Check => {}
                    // A thread that ends already is not asked again.
                    WaitPoint::End if before_reply.is_none() => with_reply = cancellation::restore(ty),
                    WaitPoint::End => {}
                }
                before_reply.is_some()
            };
            match end.receive_unless(&mut wait, &mut frame.reply) {
                Err(LaneError::Interrupted) => Ok(()),
                result => result,
            }
        });
        match before_reply.or(with_reply) {
            Some(end) => self.leave(end),
            None => received,
        }
    }

    /// Ends the thread inside a call, whose reply has not come or is not read: the message that has may be a callback, or the
    /// answer of a milestone. The lane is left to the server; the blocks of the call, which the server may still use, are never
    /// used again. What the thread calls on its way out has a new lane.
    #[cold]
    fn leave(&self, end: Foreign) -> ! {
        let _ = LANES.try_with(|lanes| {
            let left = lanes.try_borrow_mut().ok().and_then(|mut lanes| {
                let at = lanes.iter().position(|lane| std::ptr::eq(Rc::as_ptr(lane), self))?;
                Some(lanes.swap_remove(at))
            });
            // Dropped with the list unlocked: the call that is left has a reference of its own.
            drop(left);
        });
        std::panic::resume_unwind(Box::new(end))
    }

    fn begin_receiving(&self) -> Receiving<'_> {
        self.receiving.store(true, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        Receiving(&self.receiving)
    }

    /// Runs the callbacks that arrive before the reply.
    fn await_reply(&self, serial: u64, frame: &mut Frame) -> Result<Answer, Lost> {
        let answer = self.take_messages(|| false, Some(serial), frame);
        frame.copies.finish();
        answer?.ok_or(Lost)
    }

    /// Until the reply with this serial is in the frame, or, between two messages, `enough` says so.
    fn take_messages(
        &self,
        enough: impl Fn() -> bool,
        serial: Option<u64>,
        frame: &mut Frame,
    ) -> Result<Option<Answer>, Lost> {
        loop {
            let receiving = self.begin_receiving();
            // As long as this lives no signal handler reads the lane: a call of its would get what this one waits for.
            if enough() {
                return Ok(None);
            }
            self.receive(frame)?;
            let Ok((header, body)) = ReplyHeader::parse(&frame.reply) else {
                return Err(self.connection.peer.fail("a reply is malformed"));
            };
            let mut fields = Decoder::new(body);
            let waiter = if self.out_of_order() { Waiter::SignalHandler } else { Waiter::Thread };
            let deferred = prefix(self.connection, &header, &mut fields, waiter)?;
            let milestone = if header.kind == kind::REPLY { self.answered(header.serial) } else { None };
            match (header.kind, milestone) {
                (kind::REPLY, None) if Some(header.serial) == serial => {
                    self.follow_advice(header.flags & flag::STAY_AWAKE != 0);
                    let (at, kept) = (fields.position(), self.deferred.take());
                    let ReplyHeader { flags, status, detail, .. } = header;
                    return Ok(Some(Answer { flags, status, detail, at, deferred: kept.or(deferred) }));
                }
                (kind::REPLY, Some(milestone)) => {
                    self.keep_deferred(deferred);
                    self.reached(milestone);
                }
                (kind::ARRIVED, _) => {
                    let at = fields.position();
                    self.take_early(at, frame)?;
                }
                (kind::CALLBACK, _) => {
                    let at = fields.position();
                    frame.copies.finish();
                    // The application's function makes calls on this lane.
                    drop(receiving);
                    if let Some(thrown) = self.serve_callback(header.serial, at, frame)? {
                        self.throw_after_reply(serial, frame, thrown);
                    }
                }
                _ => return Err(self.connection.peer.fail("a reply answers another call")),
            }
        }
    }

    /// Runs the callback in `frame.reply`, whose fields begin at `at`, and answers it.
    #[cold]
    fn serve_callback(&self, serial: u64, at: usize, frame: &mut Frame) -> Result<Option<Foreign>, Lost> {
        let message = std::mem::take(&mut frame.reply);
        let mut answer = self.take_frame();
        self.callbacks.set(self.callbacks.get() + 1);
        let thrown = serving::serve(self.connection, message, at, &mut answer.encoder);
        self.callbacks.set(self.callbacks.get().saturating_sub(1));
        let header = RequestHeader { kind: kind::CALLBACK_REPLY, serial, ..Default::default() };
        let message = answer.encoder.finish_request(header);
        self.with_end(|end| end.ask(message, &[]))?;
        self.give_frame(answer);
        Ok(thrown)
    }

    /// Waits for the end of the call and hands the exception to the stub's guard, which lets it go on.
    #[cold]
    fn throw_after_reply(&self, serial: Option<u64>, frame: &mut Frame, thrown: Foreign) -> ! {
        let _ = serial.map(|serial| self.await_reply(serial, frame));
        std::panic::resume_unwind(Box::new(thrown))
    }

    /// Sends an asynchronous call. Its blocks are held until the server no longer uses them.
    pub fn post(&self, function: u32, frame: &mut Frame) -> Result<Option<i64>, Lost> {
        if self.connection.synchronous || self.barrier.get().is_some() {
            return self.post_acknowledged(function, frame);
        }
        if frame.encoder.len() > MAX_MESSAGE {
            log::line(&format!("{}: the arguments are too large", self.connection.descriptor.function(function)));
            self.hold_if_ahead(frame);
            return Err(Lost);
        }
        let serial = self.next_serial();
        // A signal handler that interrupts from here on must not wait for the ticket that is taken
        // next.
        self.taking.store(self.connection.tickets.last() + 1, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        let ticket = self.connection.tickets.take();
        if !frame.untils.is_empty() {
            self.connection.deliveries.belong(&frame.untils, ticket);
        }
        let regions = frame.regions.len() as u32;
        let header = RequestHeader { length: 0, kind: kind::CALL_ASYNC, flags: 0, function, regions, ticket, serial };
        let message = frame.encoder.finish_request(header);
        let sent = self.with_end(|end| end.send(message, &frame.regions));
        compiler_fence(Ordering::SeqCst);
        self.taking.store(0, Ordering::Relaxed);
        if sent.is_err() {
            // The ticket is taken and its call will never arrive: later calls of any thread would
            // wait for ever.
            return Err(self.connection.peer.fail("a message could not be sent"));
        }
        if !frame.blocks.is_empty() {
            self.hold(ticket, frame)?;
        }
        Ok(None)
    }

    #[cold]
    fn post_acknowledged(&self, function: u32, frame: &mut Frame) -> Result<Option<i64>, Lost> {
        let answer = self.exchange(kind::CALL_ASYNC, flag::ACKNOWLEDGE, function, frame)?;
        if answer.status != status::OK {
            self.connection.end_untils(frame);
        }
        let Some(value) = answer.deferred else { return Ok(None) };
        if self.connection.synchronous {
            let name = self.connection.descriptor.function(function);
            log::line(&format!("{name}, an asynchronous call, failed with {value}"));
            return Ok(Some(value));
        }
        self.keep_deferred(Some(value));
        Ok(None)
    }

    /// Keeps a deferred error for the next call that can report it; the oldest one wins.
    #[inline]
    pub fn keep_deferred(&self, error: Option<i64>) {
        if let Some(error) = error {
            let older = self.deferred.get();
            self.deferred.set(older.or(Some(error)));
        }
    }
}

/// Ends with the part of a call that it stands for, also where the thread is cancelled in it.
struct Receiving<'a>(&'a AtomicBool);

impl Drop for Receiving<'_> {
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        self.0.store(false, Ordering::Relaxed);
    }
}

impl Drop for ThreadLane {
    fn drop(&mut self) {
        let Held { blocks, unsent, .. } = std::mem::take(&mut *self.held.borrow_mut());
        // What was sent has arrived when the lane has ended, whatever tickets tell. Of a mirrored arena they tell of calls that have
        // let others go ahead, too.
        let with_lane_only = unsent || self.connection.memory.arena.mirrored();
        let (held, with_lane) = if with_lane_only { (VecDeque::new(), blocks) } else { (blocks, VecDeque::new()) };
        let own = self.block.into_iter().chain(with_lane.into_iter().map(|(_, block)| block));
        self.connection.close_lane(self.id, own.collect(), held.into_iter());
    }
}
