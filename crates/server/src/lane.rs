//! A shadow thread: executes the calls of one guest thread, in their order.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use aviary_transport::{LaneEnd, LaneError, Region};
use aviary_wire::{Decoder, Encoder, HEADER_SIZE, REJECTED_CALL, ReplyHeader, RequestHeader, flag, kind, status};

use crate::api::Reject;
use crate::call::Call;
use crate::closures::ClosureLifetime;
use crate::config::MAX_NESTING;
use crate::counters::{Counters, add};
use crate::cpu_demand::LaneCpuDemand;
use crate::deferred_outputs::{DeferredCopy, DeferredOutput, Delivery};
use crate::ffi;
use crate::in_use::LaneUses;
use crate::posted::PostedCallback;
use crate::printed::Texts;
use crate::session::Session;
use aviary_control::cpu;

mod stopping;

thread_local! {
    /// The lane whose calls this thread executes: how a callback finds its way back.
    static CURRENT: RefCell<Option<Rc<Lane>>> = const { RefCell::new(None) };
}

/// Ticks of a call after which somebody looks whether it has printed anything: some microseconds, less than it takes to
/// wait for a kernel.
const MIN_PRINTING_CALL_TICKS: u64 = 20_000;

/// The time that a guest's thread needs to wake up.
const GUEST_WAKE_UP_TIME: Duration = Duration::from_micros(30);
/// How long it must be until the answer for this thread to look where the guest's has woken up, and to go elsewhere.
const MIN_WAIT_TO_MIGRATE: Duration = Duration::from_micros(150);

pub struct Lane {
    pub session: Arc<Session>,
    /// By which the guest opened it.
    number: u32,
    end: RefCell<LaneEnd>,
    /// The guest's thread waits for an answer on this lane, so it can run callbacks.
    guest_waits: Cell<bool>,
    /// The asynchronous call under way, and whether it let its successors go ahead.
    turn: Cell<Option<(u64, bool)>>,
    nesting: Cell<usize>,
    deferred: Cell<Option<i64>>,
    /// The call under way took long enough.
    may_have_printed: Cell<bool>,
    deliveries: RefCell<Vec<Delivery>>,
    /// Callbacks that the vendor library posted during the call under way.
    posted: RefCell<Vec<PostedCallback>>,
    counters: Counters,
    demand: LaneCpuDemand,
    /// For how long this thread watches the device before it sleeps over work that the guest waits for.
    completion_poll_time: Cell<Duration>,
    /// Finished calls whose memory the next ones use.
    // Boxed: a call is large, and moves in and out for every message.
    #[allow(clippy::vec_box)]
    spare: RefCell<Vec<Box<Call>>>,
    /// The handles that the calls under way use.
    uses: Arc<LaneUses>,
    /// No message was executed since the lane last looked whether it shall stop.
    idle: Cell<bool>,
}

/// The beginning of a lane.
#[derive(Default)]
pub struct LaneStart {
    /// A message that another process has taken from the ring and not begun.
    pub taken: Option<Vec<u8>>,
    /// The error of an asynchronous call, which no reply has told yet.
    pub deferred: Option<i64>,
    /// Executed on the lane's thread before its first message.
    pub before: Option<Box<dyn FnOnce() + Send>>,
}

/// Why a lane stops.
pub enum LaneEnded {
    /// The guest closed it or is gone.
    Closed,
    /// The guest broke the protocol: the session ends with this reason.
    Broken(String),
    /// The session is paused, and the message can be executed later. Never below a callback.
    Paused,
}

impl From<LaneError> for LaneEnded {
    fn from(error: LaneError) -> LaneEnded {
        match error {
            LaneError::Dead => LaneEnded::Closed,
            LaneError::Interrupted => LaneEnded::Paused,
            LaneError::Socket(error) => LaneEnded::Broken(error.to_string()),
            other => LaneEnded::Broken(other.to_string()),
        }
    }
}

/// The lane of the calling thread, if it executes calls of `session` and the guest waits on it.
pub fn waiting_lane(session: &Arc<Session>) -> Option<Rc<Lane>> {
    CURRENT.with_borrow(|lane| lane.clone()).filter(|l| l.guest_waits.get() && Arc::ptr_eq(&l.session, session))
}

/// The calling thread is about to wait for the application on another lane than its own.
pub fn yield_ticket(session: &Arc<Session>) {
    let lane = CURRENT.with_borrow(|lane| lane.clone()).filter(|l| Arc::ptr_eq(&l.session, session));
    let Some(lane) = lane else { return };
    if let Some((ticket, false)) = lane.turn.get() {
        lane.turn.set(Some((ticket, true)));
        session.yield_ticket(ticket);
    }
}

/// The guest's thread will get an answer on the calling thread's lane after `wait`: it should be awake by then. It waits for
/// that by spinning, so not where this thread runs, which goes elsewhere while the device has something to do.
pub fn wake_guest(wait: Duration) {
    CURRENT.with_borrow(|lane| {
        let Some(end) = lane.as_ref().map(|lane| lane.end.borrow()) else { return };
        let slept = end.peer_sleeps();
        // It would be awake where this thread has to run, too.
        if slept && end.shares_cpu() && !cpu::may_migrate() {
            return;
        }
        end.wake_peer();
        if slept && wait >= MIN_WAIT_TO_MIGRATE {
            // Linux may have it run anywhere; by then it says where.
            std::thread::sleep(GUEST_WAKE_UP_TIME);
            if end.shares_cpu() {
                cpu::migrate_off_cpu();
            }
        }
    });
}

/// True if an asynchronous call of the guest's thread that is served here has failed, and the guest was not told yet.
pub fn has_deferred_error() -> bool {
    CURRENT.with_borrow(|lane| lane.as_ref().is_some_and(|lane| lane.deferred.get().is_some()))
}

/// For how long the calling thread should watch a device before it sleeps over its work: the guest's waits for the answer, has the
/// device, and calls often.
pub fn completion_poll_time() -> Duration {
    CURRENT.with_borrow(|lane| lane.as_ref().map_or(Duration::ZERO, |lane| lane.completion_poll_time.get()))
}

/// The calling thread's calls use this object until the one under way ends. False: the thread executes no calls.
pub fn announce(id: u64) -> bool {
    CURRENT.with_borrow(|lane| lane.as_ref().map(|lane| lane.uses.announce(id)).is_some())
}

/// The session whose calls this thread executes.
pub fn current_session() -> Option<Arc<Session>> {
    CURRENT.with_borrow(|lane| lane.as_ref().map(|l| l.session.clone()))
}

impl Lane {
    fn new(session: Arc<Session>, number: u32, mut end: LaneEnd, deferred: Option<i64>) -> Rc<Lane> {
        end.set_interruptible(true);
        Rc::new(Lane {
            uses: session.handles.in_use.lane_numbered(number),
            session,
            number,
            end: RefCell::new(end),
            guest_waits: Cell::new(false),
            turn: Cell::new(None),
            nesting: Cell::new(0),
            deferred: Cell::new(deferred),
            may_have_printed: Cell::default(),
            deliveries: RefCell::default(),
            posted: RefCell::default(),
            counters: Counters::default(),
            demand: LaneCpuDemand::default(),
            completion_poll_time: Cell::default(),
            spare: RefCell::default(),
            idle: Cell::new(true),
        })
    }

    /// The life of a shadow thread. Returns when the guest closed the lane or the session is over.
    pub fn run(session: Arc<Session>, number: u32, end: LaneEnd, start: LaneStart) {
        let lane = Lane::new(session, number, end, start.deferred);
        CURRENT.set(Some(lane.clone()));
        if let Some(before) = start.before {
            before();
        }
        let stop = lane.serve_all(start.taken);
        CURRENT.set(None);
        lane.counters.report(&lane.session.stats);
        if let LaneEnded::Broken(reason) = stop {
            lane.session.fail(&reason);
        }
    }

    fn serve_next(self: &Rc<Self>) -> Result<(), LaneEnded> {
        let mut call = self.take_call();
        if let Err(error) = self.receive(&mut call.request) {
            return self.not_received(call, error);
        }
        let mut served = self.serve(&mut call);
        if matches!(served, Err(LaneEnded::Paused)) {
            served = self.stand(Some(&call.request)).and_then(|()| self.serve_repeatedly(&mut call));
        }
        self.keep_call(call);
        served
    }

    /// The next message. Statistics are brought up to date while there is none, when nobody waits for this lane.
    #[inline(always)]
    fn receive(&self, into: &mut Vec<u8>) -> Result<(), LaneError> {
        let mut end = self.end.borrow_mut();
        let shared = matches!(*end, LaneEnd::Shared(_));
        if shared && !self.counters.due() && end.try_receive(into)? {
            return Ok(());
        }
        self.counters.report(&self.session.stats);
        if self.session.devices.scheduled() {
            self.demand.look(&self.session.demand, self.session.devices.may_submit());
            // A lane that fails meanwhile fails again below.
            self.session.devices.lane_idle(|at_most| end.await_message(at_most).unwrap_or(true));
        }
        end.receive(into)
    }

    #[inline(always)]
    fn take_call(&self) -> Box<Call> {
        let spare = self.spare.borrow_mut().pop();
        spare.unwrap_or_else(|| Box::new(Call::new(self.session.clone(), self.uses.clone(), self.number)))
    }

    #[inline(always)]
    fn keep_call(&self, mut call: Box<Call>) {
        call.reset();
        self.spare.borrow_mut().push(call);
    }

    /// Executes the message in `call.request`.
    #[inline(always)]
    fn serve(self: &Rc<Self>, call: &mut Call) -> Result<(), LaneEnded> {
        let (header, _) = RequestHeader::parse(&call.request).map_err(|e| LaneEnded::Broken(e.to_string()))?;
        add(&self.counters.bytes_in, call.request.len() as u64);
        match header.kind {
            kind::CALL | kind::CALL_ASYNC => self.serve_call(call, header),
            kind::SYNC => self.serve_sync(header),
            kind::FETCH => self.serve_fetch(call, header),
            other => Err(LaneEnded::Broken(format!("a message of the unknown kind {other}"))),
        }
    }

    #[inline(always)]
    fn serve_call(self: &Rc<Self>, call: &mut Call, header: RequestHeader) -> Result<(), LaneEnded> {
        let ordered = header.kind == kind::CALL_ASYNC && header.flags & flag::ACKNOWLEDGE == 0;
        let follows = if ordered { header.ticket.saturating_sub(1) } else { header.ticket };
        if self.session.tickets.done() < follows {
            self.await_ticket(follows)?;
        }
        let waits = self.guest_waits.replace(header.kind == kind::CALL);
        let outer = self.turn.replace(ordered.then_some((header.ticket, false)));
        // Callbacks that calls around this one have posted stay for those.
        let others = self.posted.borrow().len();
        let mut outcome = self.execute(call, header);
        if self.posted.borrow().len() > others {
            outcome = self.run_posted(others).and(outcome);
        }
        let turn = self.turn.replace(outer);
        self.guest_waits.set(waits);
        let result = match outcome {
            Ok(outcome) if header.kind == kind::CALL => self.answer(call, outcome),
            Ok(outcome) => {
                self.defer(call, outcome);
                let status = if matches!(outcome, Outcome::Rejected(_)) { status::REFUSED } else { status::OK };
                if ordered { Ok(()) } else { self.acknowledge(header, status) }
            }
            Err(stop) => Err(stop),
        };
        if let Some((ticket, yielded)) = turn {
            self.session.finish_ticket(ticket, yielded);
        }
        // Not below a callback: a call around it may use the objects.
        if self.session.deferred_ends.any() && self.nesting.get() == 0 {
            serve_deferred_ends(&self.session, &self.uses, self.number)?;
        }
        result
    }

    /// Keeps a callback until the call under way is over.
    pub fn post(&self, callback: PostedCallback) {
        self.posted.borrow_mut().push(callback);
    }

    /// Runs what the call has posted on the guest's thread, which waits for the call: none of the vendor's locks is held.
    #[cold]
    fn run_posted(self: &Rc<Self>, from: usize) -> Result<(), LaneEnded> {
        while self.posted.borrow().len() > from {
            let posted = self.posted.borrow_mut().split_off(from);
            for mut callback in posted {
                let header = ReplyHeader { kind: kind::CALLBACK, ..ReplyHeader::default() };
                self.exchange(header, &mut callback.message, &mut Vec::new())?;
            }
        }
        Ok(())
    }

    /// Runs the handler and what its success or failure entails.
    #[inline(always)]
    fn execute(&self, call: &mut Call, header: RequestHeader) -> Result<Outcome, LaneEnded> {
        let counters = &self.counters;
        add(if header.kind == kind::CALL { &counters.calls } else { &counters.async_calls }, 1);
        let outcome = run(call, header);
        let ticks = std::mem::take(&mut call.vendor_ticks);
        self.may_have_printed.set(ticks > MIN_PRINTING_CALL_TICKS);
        add(&counters.vendor_ticks, ticks);
        outcome
    }

    /// The error of an asynchronous call is reported by the next synchronous one.
    fn defer(&self, call: &Call, outcome: Outcome) {
        let error = match outcome {
            Outcome::Done { success: true, .. } => return,
            Outcome::Done { error, .. } => error,
            Outcome::Rejected(reject) => (self.session.api.rejected)(call.header.function, reject),
        };
        if self.deferred.get().is_none() {
            self.deferred.set(Some(error));
        }
    }

    #[inline(always)]
    fn answer(&self, call: &mut Call, outcome: Outcome) -> Result<(), LaneEnded> {
        let (status, detail, success) = match outcome {
            Outcome::Done { success, .. } => (status::OK, 0, success),
            Outcome::Rejected(Reject::Unsupported) => (status::UNSUPPORTED, 0, false),
            Outcome::Rejected(Reject::InvalidHandle(ty)) => (status::INVALID_HANDLE, ty, false),
            Outcome::Rejected(Reject::Failed(_)) => (status::FAILED, 0, false),
            Outcome::Rejected(_) => (status::REFUSED, 0, false),
        };
        if let Outcome::Rejected(reject) = outcome {
            call.reply.start();
            call.regions.clear();
            match reject {
                Reject::Failed(value) => call.reply.word(value as u64),
                Reject::InvalidHandle(_) => call.reply.word(call.invalid),
                _ => {}
            }
        }
        let flags = if success { flag::SUCCESS } else { 0 };
        let header =
            ReplyHeader { kind: kind::REPLY, flags, status, detail, serial: call.header.serial, ..Default::default() };
        self.send(header, &mut call.reply, &mut call.regions, true)
    }

    fn acknowledge(&self, request: RequestHeader, status: u32) -> Result<(), LaneEnded> {
        let header = ReplyHeader { kind: kind::REPLY, status, serial: request.serial, ..Default::default() };
        let mut empty = Encoder::new();
        empty.start();
        self.send(header, &mut empty, &mut Vec::new(), true)
    }

    fn serve_sync(&self, header: RequestHeader) -> Result<(), LaneEnded> {
        self.await_ticket(header.ticket)?;
        if header.flags & flag::PRINT_WITH_REPLIES != 0
            && let Err(error) = self.session.print_with_replies()
        {
            self.session.note(&format!("what is printed goes where it went before: {error}"));
        }
        self.acknowledge(header, status::OK)
    }

    /// The guest wants the content of mapped memory in one of its blocks.
    fn serve_fetch(&self, call: &mut Call, header: RequestHeader) -> Result<(), LaneEnded> {
        let body = call.request.get(HEADER_SIZE..).unwrap_or_default();
        let mut fields = Decoder::new(body);
        let mut word = || fields.word().map_err(|e| LaneEnded::Broken(format!("a fetch: {e}")));
        let (id, offset, bytes) = (word()?, word()?, word()?);
        let broken = |what: &str| LaneEnded::Broken(format!("a fetch: {what}"));
        let mapping = self.session.mappings.get(id).ok_or_else(|| broken("no such mapping"))?;
        let to = self.session.memory.range(offset, bytes).ok_or_else(|| broken("a block outside the arena"))?;
        if bytes > mapping.bytes as u64 {
            return Err(broken("more than was mapped"));
        }
        let copy = DeferredCopy { from: mapping.pointer(), to, bytes: bytes as usize, mapping: Some(mapping.state) };
        let until = self.session.mappings.take_ready(id);
        let pending =
            DeferredOutput { until, delivery: Some(Delivery { offset, bytes }), copy: Some(copy), keep: None };
        let now = pending.is_final();
        self.session.stats.bytes_copied.fetch_add(bytes, Ordering::Relaxed);
        call.reply.start();
        call.reply.word(u64::from(now));
        call.regions.clear();
        if now {
            call.region(offset, bytes as usize);
        } else {
            self.session.finish_later(pending);
        }
        let reply = ReplyHeader { kind: kind::REPLY, status: status::OK, serial: header.serial, ..Default::default() };
        self.send(reply, &mut call.reply, &mut call.regions, true)
    }

    /// Sends a message with what has become final meanwhile and, in replies, the lane's deferred error.
    fn send(
        &self,
        mut header: ReplyHeader,
        body: &mut Encoder,
        regions: &mut Vec<(u64, u64)>,
        reply: bool,
    ) -> Result<(), LaneEnded> {
        // Looking for deliveries asks the vendor library, which may call back: not on this lane, which is sending.
        let waits = self.guest_waits.replace(false);
        let mut deliveries = self.deliveries.borrow_mut();
        let piggyback = if reply { self.piggyback() } else { Piggyback::default() };
        let mut end = self.end.borrow_mut();
        let advice = (reply && self.session.devices.scheduled()).then(|| self.wait_advice(&mut header, &end));
        let sent = send_on(&self.session, &mut end, &mut header, body, regions, piggyback, &mut deliveries);
        if let Some(advice) = advice {
            apply_advice(advice, &mut end);
        }
        self.guest_waits.set(waits);
        add(&self.counters.bytes_out, body.len() as u64);
        sent
    }

    /// Decides if the guest's thread shall stay awake for the next answer, and this one for the next call.
    #[cold]
    fn wait_advice(&self, header: &mut ReplyHeader, end: &LaneEnd) -> WaitAdvice {
        let awake = self.session.devices.reply_spin_window();
        self.completion_poll_time.set(awake);
        if awake.is_zero() {
            return WaitAdvice::default();
        }
        // It will wait by spinning, and the program's thread may want this very CPU.
        cpu::unboost();
        // Before the answer: with that the guest's wait is over, and what it says of itself in it.
        let (guest_sleeps, guest_is_here) = (end.peer_sleeps(), end.shares_cpu());
        if guest_is_here && !cpu::may_migrate() {
            // Only one of the two can be awake, and the answer begins here.
            return WaitAdvice::default();
        }
        header.flags |= flag::STAY_AWAKE;
        WaitAdvice { awake, guest_sleeps, guest_is_here }
    }

    /// Notices of a reply beside its result.
    #[inline]
    fn piggyback(&self) -> Piggyback {
        let printed = self.session.printed.get().and_then(|printed| printed.take(self.may_have_printed.take()));
        Piggyback { deferred: self.deferred.take(), printed }
    }

    /// Sends a callback and serves the guest's calls until it answers. The answer is left in `into`.
    pub fn exchange(
        self: &Rc<Self>,
        header: ReplyHeader,
        body: &mut Encoder,
        into: &mut Vec<u8>,
    ) -> Result<(), LaneEnded> {
        if self.nesting.get() >= MAX_NESTING {
            return Err(LaneEnded::Broken("callbacks nest too deeply".into()));
        }
        self.nesting.set(self.nesting.get() + 1);
        // The vendor library waits for the answer: a pause waits for that, too.
        self.end.borrow_mut().set_interruptible(false);
        let result = self.send(header, body, &mut Vec::new(), false).and_then(|()| self.await_answer(into));
        self.nesting.set(self.nesting.get() - 1);
        self.end.borrow_mut().set_interruptible(self.nesting.get() == 0);
        result
    }

    fn await_answer(self: &Rc<Self>, into: &mut Vec<u8>) -> Result<(), LaneEnded> {
        loop {
            let mut call = self.take_call();
            self.receive(&mut call.request)?;
            let (header, _) = RequestHeader::parse(&call.request).map_err(|e| LaneEnded::Broken(e.to_string()))?;
            if header.kind == kind::CALLBACK_REPLY {
                std::mem::swap(into, &mut call.request);
                self.keep_call(call);
                return Ok(());
            }
            let served = self.serve(&mut call);
            self.keep_call(call);
            served?;
        }
    }
}

/// How to wait after an answer.
#[derive(Default)]
struct WaitAdvice {
    awake: Duration,
    guest_sleeps: bool,
    guest_is_here: bool,
}

/// A thread that spins keeps others from its CPU. A guest's thread that had to be woken may have come to this
/// one.
#[cold]
fn apply_advice(advice: WaitAdvice, end: &mut LaneEnd) {
    let apart = || if advice.guest_is_here { cpu::migrate_off_cpu() } else { !advice.guest_sleeps };
    let stays = if !advice.awake.is_zero() && apart() { advice.awake } else { Duration::ZERO };
    end.set_spin_window(stays);
}

/// Notices of a message to the guest beside its body.
#[derive(Debug, Default)]
pub struct Piggyback {
    /// An asynchronous call of this lane failed.
    pub deferred: Option<i64>,
    pub printed: Option<Box<Texts>>,
}

/// How a handler ended.
#[derive(Debug, Clone, Copy)]
pub enum Outcome {
    Done { success: bool, error: i64 },
    Rejected(Reject),
}

/// Makes calls that had to wait for others, one of which may have been the last one of this lane. Their tickets are over, and
/// the program has their answers.
#[cold]
pub fn serve_deferred_ends(session: &Arc<Session>, uses: &Arc<LaneUses>, lane: u32) -> Result<(), LaneEnded> {
    for message in session.deferred_ends.take() {
        let (header, _) = RequestHeader::parse(&message).map_err(|e| LaneEnded::Broken(e.to_string()))?;
        let mut call = Box::new(Call::new(session.clone(), uses.clone(), lane));
        call.request = message;
        run(&mut call, header)?;
    }
    Ok(())
}

/// Runs the handler of the message in `call.request` and commits or undoes what it noted.
pub fn run(call: &mut Call, header: RequestHeader) -> Result<Outcome, LaneEnded> {
    let Some(function) = call.session.api.functions.get(header.function as usize) else {
        return Err(LaneEnded::Broken(format!("function number {} does not exist", header.function)));
    };
    call.start(header);
    if call.session.policy.denies(header.function) && call.replayed.is_none() {
        let refused = call.session.deny(header.function);
        return Ok(reject(call, refused));
    }
    // SAFETY: the call was set up for this function's message just now.
    let handled = catch_unwind(AssertUnwindSafe(|| unsafe { (function.handler)(call) }));
    let handled = handled.unwrap_or_else(|panic| Err(rejected_by(panic)));
    let (success, error) = call.result.unwrap_or((true, 0));
    match handled {
        Ok(()) if call.trailing() => {
            broken(call, function.name, "the message has more fields than the specification says")
        }
        Ok(()) => {
            conclude(call, success);
            Ok(Outcome::Done { success, error })
        }
        Err(Reject::Malformed(what)) => broken(call, function.name, what),
        Err(Reject::Busy) => Ok(busy(call)),
        Err(why) => Ok(reject(call, why)),
    }
}

/// The call would end an object that calls of other threads use. One that has no answer is made when those are over.
fn busy(call: &mut Call) -> Outcome {
    if call.is_async() && call.session.deferred_ends.add(&call.request) {
        conclude(call, false);
        return Outcome::Done { success: true, error: 0 };
    }
    call.session.note(&format!(
        "{}: calls of other threads still use the object; it stays until the session ends",
        call.function_name()
    ));
    reject(call, Reject::Busy)
}

fn reject(call: &mut Call, why: Reject) -> Outcome {
    call.abandon_untils();
    conclude(call, false);
    Outcome::Rejected(why)
}

/// A handler unwinds with a `Reject` when it asks for too much memory; anything else is a mistake in it.
fn rejected_by(panic: Box<dyn Any + Send>) -> Reject {
    panic.downcast_ref::<Reject>().copied().unwrap_or(Reject::Malformed("its handler panicked"))
}

fn broken(call: &mut Call, function: &str, what: &str) -> Result<Outcome, LaneEnded> {
    conclude(call, false);
    let detail = call.complaint.map(|c| format!(": {c}")).unwrap_or_default();
    Err(LaneEnded::Broken(format!("{function}: {what}{detail}")))
}

/// Commits what the call noted for its success, or undoes what it did before it failed.
fn conclude(call: &mut Call, success: bool) {
    // A call that was rejected after it had got the device.
    call.vacate();
    if success {
        // As long as the call's objects cannot end.
        call.keep_record();
    }
    // Before the guest has its answer, upon which another thread of it may end what this call has used.
    call.forget_uses();
    for (key, life) in call.closures.drain(..) {
        if !success || life == ClosureLifetime::Call {
            call.session.forget_closure(key);
        }
    }
    if call.reserved > 0 {
        call.session.return_handles(std::mem::take(&mut call.reserved));
    }
    if !call.states.is_empty() || !call.cursors.is_empty() {
        call.leave_states(success);
    }
    let kept = ffi::take_kept();
    let noted = &mut call.on_success;
    if !success {
        noted.unmapped.iter().filter_map(|id| call.session.mappings.get(*id)).for_each(|m| m.end_unmapping());
        noted.forget();
        call.session.settle(&mut call.holding);
        return;
    }
    match kept {
        Some(number) => call.session.keep(number, &mut call.holding),
        None => call.session.hold(noted.created, &mut call.holding),
    }
    for (resource, amount) in &noted.uncharged {
        call.session.uncharge(*resource, *amount, call.handles.iter().map(|h| h.id));
    }
    for until in noted.unmapped.iter().filter_map(|id| call.session.mappings.remove(*id)?.ready) {
        // The content was never asked for; its poll still has to be asked until it says yes.
        call.session.finish_later(DeferredOutput { until: Some(until), delivery: None, copy: None, keep: None });
    }
    if noted.unmapped_in_arena > 0 {
        call.session.mappings.in_arena(-noted.unmapped_in_arena);
    }
    if !call.session.memory.is_shared() {
        call.regions.append(&mut noted.copied_back);
    }
    noted.forget();
}

/// Adds the prefix that every message to the guest may carry, and sends it.
pub fn send_on(
    session: &Session,
    end: &mut LaneEnd,
    header: &mut ReplyHeader,
    body: &mut Encoder,
    regions: &mut Vec<(u64, u64)>,
    piggyback: Piggyback,
    deliveries: &mut Vec<Delivery>,
) -> Result<(), LaneEnded> {
    deliveries.clear();
    header.delivered = session.late.collect(deliveries);
    let with_content = deliveries.iter().filter(|d| d.bytes > 0 && d.offset != REJECTED_CALL);
    regions.extend(with_content.map(|d| (d.offset, d.bytes)));
    let carried: Vec<Region> =
        if session.memory.is_shared() { Vec::new() } else { regions.iter().map(region).collect() };
    let sent = if piggyback.deferred.is_none() && piggyback.printed.is_none() && deliveries.is_empty() {
        body.finish_reply(*header)
    } else {
        let mut whole = prefix(header, &piggyback, deliveries);
        body.body().chunks_exact(8).for_each(|word| whole.word(word_of(word)));
        std::mem::swap(body, &mut whole);
        body.finish_reply(*header)
    };
    Ok(end.send(sent, &carried)?)
}

fn prefix(header: &mut ReplyHeader, piggyback: &Piggyback, deliveries: &[Delivery]) -> Encoder {
    let mut whole = Encoder::new();
    whole.start();
    if let Some(error) = piggyback.deferred {
        header.flags |= flag::DEFERRED;
        whole.word(error as u64);
    }
    if !deliveries.is_empty() {
        header.flags |= flag::DELIVERIES;
        whole.word(deliveries.len() as u64);
        for delivery in deliveries {
            whole.word(delivery.offset);
            whole.word(delivery.bytes);
        }
    }
    if let Some(texts) = &piggyback.printed {
        header.flags |= flag::PRINTED;
        texts.iter().for_each(|text| whole.bytes(text));
    }
    whole
}

fn word_of(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

fn region((offset, bytes): &(u64, u64)) -> Region {
    Region { offset: *offset, length: *bytes as usize }
}

#[cfg(test)]
#[path = "lane_tests.rs"]
pub mod tests;
