//! The calling thread, as code knows it that the vendor's library or its utility code has called: the lane whose calls it
//! executes. C brings no argument that leads there, so this is the one place that asks the thread.
//!
//! Lanes enter when their thread begins; calls, callbacks and the functions for utility code look.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::{self, Arc};
use std::time::Duration;

use aviary_control::cpu;
use aviary_ring::ablation::{Term, without};
use aviary_transport::LaneEnd;
use aviary_wire::{Encoder, ReplyHeader};

use crate::callbacks::posted::PostedCallback;
use crate::handles::in_use::LaneUses;
use crate::lane::ahead::{Ahead, OUTPUT_PART};
use crate::lane::ended::LaneEnded;
use crate::session::Session;
use crate::session::pause::StopEnd;
use crate::session::waits::LaneWait;

/// Takes callbacks to the guest on its lane, and serves the guest's calls until it answers.
pub trait CallBack {
    /// The answer is left in `into`.
    fn call_back(&self, header: ReplyHeader, body: &mut Encoder, into: &mut Vec<u8>) -> Result<(), LaneEnded>;
}

/// A lane, for code below its calls. Only the lane's own thread has it.
pub struct LaneContext {
    pub session: Arc<Session>,
    /// By which the guest opened it.
    number: u32,
    /// The handles that the calls under way use.
    pub uses: Arc<LaneUses>,
    pub end: RefCell<LaneEnd>,
    /// The guest's thread waits for an answer on this lane, so it can run callbacks.
    pub guest_waits: Cell<bool>,
    /// The asynchronous call under way, and whether it let its successors go ahead.
    pub turn: Cell<Option<(u64, bool)>>,
    /// The error of an asynchronous call, which no answer has told the guest yet.
    pub deferred: Cell<Option<i64>>,
    /// For how long this thread watches the device before it sleeps over work that the guest waits for.
    pub completion_poll_time: Cell<Duration>,
    /// Callbacks of the application that this lane waits for, one within another.
    pub nesting: Cell<usize>,
    /// The call under way, while it only waits.
    pub wait: Arc<LaneWait>,
    /// Callbacks that the vendor library posted during the call under way.
    pub posted: RefCell<Vec<PostedCallback>>,
    pub ahead: Ahead,
    lane: Weak<dyn CallBack>,
}

impl LaneContext {
    /// `deferred`: as the field.
    pub fn new(
        session: Arc<Session>,
        number: u32,
        end: LaneEnd,
        deferred: Option<i64>,
        lane: Weak<dyn CallBack>,
    ) -> Rc<LaneContext> {
        Rc::new(LaneContext {
            nesting: Cell::new(0),
            wait: session.pause.waits_of(number),
            number,
            uses: session.objects.handles.in_use.lane_numbered(number),
            session,
            end: RefCell::new(end),
            guest_waits: Cell::new(false),
            turn: Cell::new(None),
            deferred: Cell::new(deferred),
            completion_poll_time: Cell::default(),
            posted: RefCell::default(),
            ahead: Ahead::default(),
            lane,
        })
    }

    /// `None`: the lane has ended.
    pub fn lane(&self) -> Option<Rc<dyn CallBack>> {
        self.lane.upgrade()
    }

    /// The call under way only waits from here on.
    pub fn begin_wait(&self) {
        let position = self.end.borrow().position().unwrap_or_default();
        self.wait.begin(position, self.deferred.get());
        self.session.pause.wait_began();
    }

    /// The call does something, or is over: only once no pause has claimed it.
    pub fn end_wait(&self) -> StopEnd {
        self.session.pause.end_wait(self.number, &self.wait)
    }

    /// How much of an output of so many bytes leaves at a time; 0: all of it, with the answer.
    pub fn output_part(&self, pointer: *const u8, bytes: usize) -> usize {
        let is_long = bytes >= 2 * OUTPUT_PART && self.session.tables.memory.contains(pointer);
        let leaves = || self.guest_waits.get() && self.end.try_borrow().is_ok_and(|end| end.is_carried());
        if is_long && leaves() { OUTPUT_PART } else { 0 }
    }

    /// These bytes of an output are as the application is to have them, and leave now.
    pub fn output_there(&self, pointer: *const u8, bytes: usize) {
        if let Some(offset) = self.session.tables.memory.offset_of(pointer, bytes)
            && let Ok(mut end) = self.end.try_borrow_mut()
            && self.guest_waits.get()
            && end.is_carried()
        {
            self.ahead.send(&mut end, offset, bytes);
        }
    }

    /// The calling thread is about to wait for the application on another lane than its own.
    pub fn yield_turn(&self) {
        if let Some((ticket, false)) = self.turn.get() {
            self.turn.set(Some((ticket, true)));
            self.session.calls.yield_ticket(ticket);
        }
    }

    /// The guest's thread will get an answer on this lane soon: it should be awake by then. It waits for that by spinning, so
    /// not where this thread runs and has no other CPU.
    pub fn wake_guest(&self) {
        if without(Term::GuestWake) {
            return;
        }
        let end = self.end.borrow();
        // It would be awake where this thread has to run, too.
        if end.peer_sleeps() && end.shares_cpu() && !cpu::has_other_cpus() {
            return;
        }
        end.wake_peer();
    }
}

struct ThisThread {
    /// The lane whose calls it executes.
    lane: RefCell<Option<Rc<LaneContext>>>,
    /// Of a thread that executes no calls: its session, and what it has looked at there.
    looked_at: RefCell<Option<(sync::Weak<Session>, Arc<LaneUses>)>>,
}

thread_local! {
    static THREAD: ThisThread = const { ThisThread { lane: RefCell::new(None), looked_at: RefCell::new(None) } };
    /// The number that `charge_keep` was given during the present call. By itself, as each call looks here: it needs no
    /// destructor.
    static KEPT: Cell<Option<u64>> = const { Cell::new(None) };
}

/// From now on the thread executes the calls of this lane, or of none.
pub fn enter(lane: Option<Rc<LaneContext>>) {
    THREAD.with(|thread| drop(thread.lane.replace(lane)));
}

/// The lane whose calls this thread executes; `None`: it executes none, or ends.
pub fn lane() -> Option<Rc<LaneContext>> {
    THREAD.try_with(|thread| thread.lane.borrow().clone()).ok().flatten()
}

/// The same, if it executes calls of `session`.
pub fn lane_of(session: &Arc<Session>) -> Option<Rc<LaneContext>> {
    lane().filter(|lane| Arc::ptr_eq(&lane.session, session))
}

/// The same, if the guest waits on it.
pub fn waiting_lane(session: &Arc<Session>) -> Option<Rc<LaneContext>> {
    lane_of(session).filter(|lane| lane.guest_waits.get())
}

/// The charges of the present call stay until they are returned by this number.
pub fn keep_charges(number: u64) {
    KEPT.set(Some(number));
}

/// The number under which the charges of the call that ends now stay.
#[inline]
pub fn take_kept() -> Option<u64> {
    KEPT.take()
}

/// The calling thread will have a pointer to the structure of this object.
pub fn announce(session: &Arc<Session>, id: u64) {
    if let Some(lane) = lane() {
        return lane.uses.announce(id);
    }
    THREAD.with(|thread| {
        let looked_at = &mut *thread.looked_at.borrow_mut();
        if looked_at.as_ref().is_none_or(|(of, _)| sync::Weak::as_ptr(of) != Arc::as_ptr(session)) {
            *looked_at = Some((Arc::downgrade(session), session.objects.handles.in_use.other_thread()));
        }
        if let Some((_, uses)) = looked_at {
            uses.announce_last(id);
        }
    });
}
