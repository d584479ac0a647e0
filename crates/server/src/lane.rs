//! A shadow thread: executes the calls of one guest thread, in their order.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use aviary_control::cpu;
use aviary_delegate::door::LaneBell;
use aviary_ring::ablation::{Term, without};
use aviary_transport::{LaneEnd, LaneError};
use aviary_wire::{Decoder, Encoder, HEADER_SIZE, ReplyHeader, RequestHeader, flag, kind, status};

use crate::api::Reject;
use crate::call::Call;
use crate::lane::counters::{Counters, add};
use crate::lane::cpu_demand::LaneCpuDemand;
use crate::lane::current::{CallBack, LaneContext};
use crate::lane::dispatch::{Outcome, run, serve_deferred_ends};
use crate::session::Session;
use crate::session::config::MAX_NESTING;
use crate::session::pause::StopEnd;
use crate::tables::deferred_outputs::{DeferredCopy, DeferredOutput, Delivery};
use ended::LaneEnded;
use sending::{Piggyback, send_on};

pub mod ahead;
pub mod clock;
mod counters;
pub mod cpu_demand;
pub mod current;
pub mod devices;
pub mod dispatch;
pub mod ended;
pub mod sending;
mod stopping;

/// Ticks of a call after which somebody looks whether it has printed anything: some microseconds, less than it takes to
/// wait for a kernel.
const MIN_PRINTING_CALL_TICKS: u64 = 20_000;

pub struct Lane {
    context: Rc<LaneContext>,
    /// By which the guest opened it.
    number: u32,
    /// The call under way took long enough.
    may_have_printed: Cell<bool>,
    deliveries: RefCell<Vec<Delivery>>,
    counters: Counters,
    demand: LaneCpuDemand,
    /// Finished calls whose memory the next ones use.
    // Boxed: a call is large, and moves in and out for every message.
    #[allow(clippy::vec_box)]
    spare: RefCell<Vec<Box<Call>>>,
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
    /// That of its end, if its thread sleeps where the guest's can continue.
    pub bell: Option<Arc<LaneBell>>,
}

impl Lane {
    fn new(session: Arc<Session>, number: u32, mut end: LaneEnd, deferred: Option<i64>) -> Rc<Lane> {
        end.set_interruptible(true);
        Rc::new_cyclic(|me: &Weak<Lane>| Lane {
            context: LaneContext::new(session, number, end, deferred, me.clone()),
            number,
            may_have_printed: Cell::default(),
            deliveries: RefCell::default(),
            counters: Counters::default(),
            demand: LaneCpuDemand::default(),
            spare: RefCell::default(),
            idle: Cell::new(true),
        })
    }

    /// The life of a shadow thread. Returns when the guest closed the lane or the session is over.
    pub fn run(session: Arc<Session>, number: u32, end: LaneEnd, start: LaneStart) {
        let lane = Lane::new(session, number, end, start.deferred);
        current::enter(Some(lane.context.clone()));
        if let Some(before) = start.before {
            before();
        }
        let stop = lane.serve_all(start.taken);
        current::enter(None);
        lane.context.session.pause.forget_waits(number, &lane.context.wait);
        lane.counters.report(&lane.context.session.accounts.stats);
        if let LaneEnded::Broken(reason) = stop {
            lane.context.session.fail(&reason);
        }
    }

    fn serve_next(&self) -> Result<(), LaneEnded> {
        let mut call = self.take_call();
        if let Err(error) = self.receive(&mut call.request.bytes) {
            return self.not_received(call, error);
        }
        let mut served = self.serve(&mut call);
        if matches!(served, Err(LaneEnded::Paused)) {
            served = self.stand(Some(&call.request.bytes)).and_then(|()| self.serve_repeatedly(&mut call));
        }
        self.keep_call(call);
        served
    }

    /// The next message. Statistics are brought up to date while there is none, when nobody waits for this lane.
    #[inline(always)]
    fn receive(&self, into: &mut Vec<u8>) -> Result<(), LaneError> {
        let mut end = self.context.end.borrow_mut();
        let shared = matches!(*end, LaneEnd::Shared(_));
        if shared && !self.counters.due() && end.try_receive(into)? {
            return Ok(());
        }
        self.counters.report(&self.context.session.accounts.stats);
        if self.context.session.devices.scheduled() {
            self.demand.look(&self.context.session.demand, self.context.session.devices.may_submit());
            // A lane that fails meanwhile fails again below.
            self.context.session.devices.lane_idle(|at_most| end.await_message(at_most).unwrap_or(true));
        }
        end.receive(into)
    }

    #[inline(always)]
    fn take_call(&self) -> Box<Call> {
        let spare = self.spare.borrow_mut().pop();
        spare.unwrap_or_else(|| {
            Box::new(Call::new(self.context.session.clone(), self.context.uses.clone(), self.number))
        })
    }

    #[inline(always)]
    fn keep_call(&self, mut call: Box<Call>) {
        call.reset();
        self.spare.borrow_mut().push(call);
    }

    /// Executes the message in `call.request`.
    #[inline(always)]
    fn serve(&self, call: &mut Call) -> Result<(), LaneEnded> {
        let (header, _) = RequestHeader::parse(&call.request.bytes).map_err(|e| LaneEnded::Broken(e.to_string()))?;
        add(&self.counters.bytes_in, call.request.bytes.len() as u64);
        // The lane also looks at objects between its calls: when a callback that it has sent returns its reference, or while it
        // has nothing to do. No call ends on those.
        let uses = &self.context.uses;
        let outer = if self.context.nesting.get() == 0 { 0 } else { uses.len() };
        let served = match header.kind {
            kind::CALL | kind::CALL_ASYNC => self.serve_call(call, header),
            kind::SYNC => self.serve_sync(header),
            kind::FETCH => self.serve_fetch(call, header),
            other => Err(LaneEnded::Broken(format!("a message of the unknown kind {other}"))),
        };
        uses.forget_from(outer);
        served
    }

    #[inline(always)]
    fn serve_call(&self, call: &mut Call, header: RequestHeader) -> Result<(), LaneEnded> {
        let context = &*self.context;
        let session = &*context.session;
        let ordered = header.kind == kind::CALL_ASYNC && header.flags & flag::ACKNOWLEDGE == 0;
        let follows = if ordered { header.ticket.saturating_sub(1) } else { header.ticket };
        if session.calls.tickets.done() < follows {
            self.await_ticket(follows)?;
        }
        let waits = context.guest_waits.replace(header.kind == kind::CALL);
        let outer = context.turn.replace(ordered.then_some((header.ticket, false)));
        // Callbacks that calls around this one have posted stay for those.
        let others = context.posted.borrow().len();
        let mut outcome = self.execute(call, header);
        if context.posted.borrow().len() > others {
            outcome = self.run_posted(others).and(outcome);
        }
        let turn = context.turn.replace(outer);
        context.guest_waits.set(waits);
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
            session.finish_ticket(ticket, yielded);
        }
        // Not below a callback: a call around it may use the objects.
        if session.calls.deferred_ends.any() && self.context.nesting.get() == 0 {
            serve_deferred_ends(&context.session, &context.uses, self.number)?;
        }
        result
    }

    /// Runs what the call has posted on the guest's thread, which waits for the call: none of the vendor's locks is held.
    #[cold]
    fn run_posted(&self, from: usize) -> Result<(), LaneEnded> {
        while self.context.posted.borrow().len() > from {
            let posted = self.context.posted.borrow_mut().split_off(from);
            for mut callback in posted {
                let header = ReplyHeader { kind: kind::CALLBACK, ..ReplyHeader::default() };
                self.call_back(header, &mut callback.message, &mut Vec::new())?;
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
        let ticks = call.work.ticks;
        self.may_have_printed.set(ticks > MIN_PRINTING_CALL_TICKS);
        add(&counters.vendor_ticks, ticks);
        outcome
    }

    /// The error of an asynchronous call is reported by the next synchronous one.
    fn defer(&self, call: &Call, outcome: Outcome) {
        let error = match outcome {
            Outcome::Done { success: true, .. } => return,
            Outcome::Done { error, .. } => error,
            Outcome::Rejected(reject) => (self.context.session.api.rejected)(call.request.header.function, reject),
        };
        if self.context.deferred.get().is_none() {
            self.context.deferred.set(Some(error));
        }
    }

    #[inline(always)]
    fn answer(&self, call: &mut Call, outcome: Outcome) -> Result<(), LaneEnded> {
        let (status, detail, success) = match outcome {
            Outcome::Done { success, .. } => (status::OK, 0, success),
            Outcome::Rejected(Reject::Unsupported) => (status::UNSUPPORTED, 0, false),
            Outcome::Rejected(Reject::Absent) => (status::ABSENT, 0, false),
            Outcome::Rejected(Reject::InvalidHandle(ty)) => (status::INVALID_HANDLE, ty, false),
            Outcome::Rejected(Reject::Failed(_)) => (status::FAILED, 0, false),
            Outcome::Rejected(_) => (status::REFUSED, 0, false),
        };
        if let Outcome::Rejected(reject) = outcome {
            call.reply.body.start();
            call.reply.regions.clear();
            match reject {
                Reject::Failed(value) => call.reply.body.word(value as u64),
                Reject::InvalidHandle(_) => call.reply.body.word(call.reply.invalid),
                _ => {}
            }
        }
        let flags = if success { flag::SUCCESS } else { 0 };
        let header = ReplyHeader {
            kind: kind::REPLY,
            flags,
            status,
            detail,
            serial: call.request.header.serial,
            ..Default::default()
        };
        self.send(header, &mut call.reply.body, &mut call.reply.regions, true)
    }

    fn acknowledge(&self, request: RequestHeader, status: u32) -> Result<(), LaneEnded> {
        let header = ReplyHeader { kind: kind::REPLY, status, serial: request.serial, ..Default::default() };
        let mut empty = Encoder::new();
        empty.start();
        self.send(header, &mut empty, &mut Vec::new(), true)
    }

    /// Without deliveries, printed text and the lane's deferred error: whoever waits for these must not wait until this is read.
    fn acknowledge_later(&self, request: RequestHeader) -> Result<(), LaneEnded> {
        let header = ReplyHeader { kind: kind::REPLY, serial: request.serial, ..Default::default() };
        let mut empty = Encoder::new();
        empty.start();
        match self.context.end.borrow_mut().send(empty.finish_reply(header), &[]) {
            // A stream whose other end is closed: what its guest has sent before is still to be executed.
            Ok(()) | Err(LaneError::Dead) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn serve_sync(&self, header: RequestHeader) -> Result<(), LaneEnded> {
        self.await_ticket(header.ticket)?;
        if header.flags & flag::LATER != 0 {
            return self.acknowledge_later(header);
        }
        if header.flags & flag::PRINT_WITH_REPLIES != 0
            && let Err(error) = self.context.session.peer.print_with_replies()
        {
            self.context.session.peer.journal.note(&format!(
                "cannot redirect the vendor library's output ({error}): it is printed where it was before"
            ));
        }
        self.acknowledge(header, status::OK)
    }

    /// The guest wants the content of mapped memory in one of its blocks.
    fn serve_fetch(&self, call: &mut Call, header: RequestHeader) -> Result<(), LaneEnded> {
        let body = call.request.bytes.get(HEADER_SIZE..).unwrap_or_default();
        let mut fields = Decoder::new(body);
        let mut word = || fields.word().map_err(|e| LaneEnded::Broken(format!("a fetch: {e}")));
        let (id, offset, bytes) = (word()?, word()?, word()?);
        let broken = |what: &str| LaneEnded::Broken(format!("a fetch: {what}"));
        let mapping = self.context.session.tables.foreign.readable(id).ok_or_else(|| broken("no such mapping"))?;
        let to = self
            .context
            .session
            .tables
            .memory
            .range(offset, bytes)
            .ok_or_else(|| broken("a block outside the arena"))?;
        if bytes > mapping.bytes as u64 {
            return Err(broken("more than was mapped"));
        }
        let copy = DeferredCopy { from: mapping.pointer(), to, bytes: bytes as usize, readable: mapping.readable };
        let until = self.context.session.tables.foreign.take_ready(id);
        let delivery = Some(Delivery { offset, bytes });
        let mut pending = DeferredOutput { until, delivery, copy: Some(copy), keep: None };
        let now = pending.is_final();
        self.context.session.accounts.stats.bytes_copied.fetch_add(bytes, Ordering::Relaxed);
        call.reply.body.start();
        call.reply.body.word(u64::from(now));
        call.reply.regions.clear();
        if now {
            call.reply.region(offset, bytes as usize);
        } else {
            self.context.session.finish_later(pending);
        }
        let reply = ReplyHeader { kind: kind::REPLY, status: status::OK, serial: header.serial, ..Default::default() };
        self.send(reply, &mut call.reply.body, &mut call.reply.regions, true)
    }

    /// Sends a message with what has become final meanwhile and, in replies, the lane's deferred error.
    fn send(
        &self,
        mut header: ReplyHeader,
        body: &mut Encoder,
        regions: &mut Vec<(u64, u64)>,
        reply: bool,
    ) -> Result<(), LaneEnded> {
        let context = &*self.context;
        // Looking for deliveries asks the vendor library, which may call back: not on this lane, which is sending.
        let waits = context.guest_waits.replace(false);
        let mut deliveries = self.deliveries.borrow_mut();
        let piggyback = if reply { self.piggyback() } else { Piggyback::default() };
        if reply {
            context.ahead.take_from(regions);
        }
        let mut end = context.end.borrow_mut();
        let spin_window = (reply && context.session.devices.scheduled()).then(|| self.wait_advice(&mut header, &end));
        let sent = send_on(&context.session, &mut end, &mut header, body, regions, piggyback, &mut deliveries);
        if let Some(window) = spin_window {
            end.set_spin_window(window);
        }
        context.guest_waits.set(waits);
        add(&self.counters.bytes_out, body.len() as u64);
        sent
    }

    /// Decides if the guest's thread shall stay awake for the next answer, and how long this one for the next call.
    #[cold]
    fn wait_advice(&self, header: &mut ReplyHeader, end: &LaneEnd) -> Duration {
        let awake = self.context.session.devices.reply_spin_window();
        let poll = if without(Term::CompletionPoll) { Duration::ZERO } else { awake };
        self.context.completion_poll_time.set(poll);
        if awake.is_zero() {
            return Duration::ZERO;
        }
        // It will wait by spinning, and the program's thread may want this very CPU.
        cpu::unboost();
        // Before the answer: with that the guest's wait is over, and what it says of itself in it.
        let (guest_sleeps, guest_is_here) = (end.peer_sleeps(), end.shares_cpu());
        if guest_is_here && !cpu::has_other_cpus() {
            // Only one of the two can be awake, and the answer begins here.
            return Duration::ZERO;
        }
        header.flags |= flag::STAY_AWAKE;
        // A thread that spins keeps others from its CPU. A guest's thread that has to be woken may come to this one, or is here
        // in any case.
        if guest_is_here || guest_sleeps { Duration::ZERO } else { awake }
    }

    /// Notices of a reply beside its result.
    #[inline]
    fn piggyback(&self) -> Piggyback {
        let printed =
            self.context.session.peer.printed.get().and_then(|printed| printed.take(self.may_have_printed.take()));
        Piggyback { deferred: self.context.deferred.take(), printed }
    }

    fn await_answer(&self, into: &mut Vec<u8>) -> Result<(), LaneEnded> {
        loop {
            let mut call = self.take_call();
            self.receive(&mut call.request.bytes)?;
            let (header, _) =
                RequestHeader::parse(&call.request.bytes).map_err(|e| LaneEnded::Broken(e.to_string()))?;
            if header.kind == kind::CALLBACK_REPLY {
                std::mem::swap(into, &mut *call.request.bytes);
                self.keep_call(call);
                return Ok(());
            }
            let served = self.serve(&mut call);
            self.keep_call(call);
            served?;
        }
    }
}

impl CallBack for Lane {
    fn call_back(&self, header: ReplyHeader, body: &mut Encoder, into: &mut Vec<u8>) -> Result<(), LaneEnded> {
        if self.context.nesting.get() >= MAX_NESTING {
            return Err(LaneEnded::Broken("callbacks nest too deeply".into()));
        }
        // A call that calls back is no mere wait any longer.
        if self.context.end_wait() == StopEnd::SessionOver {
            return Err(LaneEnded::Closed);
        }
        self.context.nesting.set(self.context.nesting.get() + 1);
        // The vendor library waits for the answer: a pause waits for that, too.
        self.context.end.borrow_mut().set_interruptible(false);
        let result = self.send(header, body, &mut Vec::new(), false).and_then(|()| self.await_answer(into));
        self.context.nesting.set(self.context.nesting.get() - 1);
        self.context.end.borrow_mut().set_interruptible(self.context.nesting.get() == 0);
        result
    }
}

#[cfg(test)]
pub mod tests;
