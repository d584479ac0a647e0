//! State that all lanes of one connection share.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use aviary_gate::Charges;

use crate::api::{ApiDescriptor, Reject};
use crate::callbacks::Callbacks;
use crate::callbacks::closures::{CallbackOwner, ClosureKey, HeldObject, KeptObject};
use crate::handles::Ended;
use crate::handles::in_use::LaneUses;
use crate::lane::cpu_demand::CpuDemand;
use crate::lane::devices::Devices;
use crate::session::deferred_ends::DeferredEnds;
use crate::session::pause::Pause;
use crate::session::tickets::Tickets;
use crate::session::vendor::Vendor;
use crate::state::object_log::ObjectLog;
use crate::tables::Tables;
use crate::tables::deferred_outputs::{DeferredOutput, Delivery};
use crate::tables::foreign::logged::Logged;
use crate::tables::memory::SessionMemory;

mod accounts;
pub mod config;
pub mod deferred_ends;
mod objects;
pub mod pause;
mod peer;
pub mod policy;
pub mod printed;
pub mod residency;
pub mod tickets;
pub mod vendor;
pub mod waits;

pub use accounts::{Accounts, gate};
pub use objects::Objects;
pub use peer::{Journal, Peer};

pub struct Session {
    pub api: &'static ApiDescriptor,
    pub vendor: &'static Vendor,
    pub accounts: Accounts,
    pub peer: Peer,
    pub objects: Objects,
    pub tables: Tables,
    pub calls: CallOrder,
    pub callbacks: Callbacks,
    pub devices: Devices,
    pub demand: CpuDemand,
    pub pause: Pause,
    /// Where orders to move come from, and reports go. `None`: there is no process around the module.
    pub orders: Option<OwnedFd>,
}

/// The order of asynchronous calls, and those that wait for others.
#[derive(Default)]
pub struct CallOrder {
    pub tickets: Tickets,
    pub deferred_ends: DeferredEnds,
    /// Asynchronous calls that wait for the application.
    yielded: AtomicUsize,
    /// The specification's own function that ends waits of its own when the guest has gone.
    pub gone: OnceLock<unsafe extern "C" fn()>,
}

impl CallOrder {
    /// The vendor library, inside an asynchronous call, waits for the application. Calls that follow this
    /// one may run now, as the application's answer may depend on them; the vendor has seen this one.
    pub fn yield_ticket(&self, ticket: u64) {
        // Before its successors can finish: they must not declare this call's blocks free.
        self.yielded.fetch_add(1, Ordering::SeqCst);
        self.tickets.finish(ticket);
    }
}

/// Parts of a session.
pub struct Parts {
    pub api: &'static ApiDescriptor,
    pub vendor: &'static Vendor,
    pub accounts: Accounts,
    pub peer: Peer,
    pub memory: SessionMemory,
    pub devices: Devices,
    pub log: ObjectLog,
    /// For tests: the session asks to be moved after so many calls, again and again.
    pub move_every: Option<u64>,
    pub orders: Option<OwnedFd>,
}

impl Session {
    pub fn new(parts: Parts) -> Arc<Session> {
        Arc::new(Session {
            api: parts.api,
            vendor: parts.vendor,
            accounts: parts.accounts,
            peer: parts.peer,
            objects: Objects::new(parts.api.handle_types, parts.log),
            tables: Tables::new(parts.memory),
            calls: CallOrder::default(),
            callbacks: Callbacks::default(),
            devices: parts.devices,
            demand: CpuDemand::default(),
            pause: Pause::new(parts.move_every),
            orders: parts.orders,
        })
    }

    /// The vendor library is done with memory that the guest lent it: told with the next answer.
    pub fn return_memory(&self, pointer: *const u8) {
        // While a session is made again: it had been returned where that was before.
        let offset = self.tables.memory.shared_offset(pointer, 0).filter(|_| !self.objects.is_rebuilding());
        let Some(offset) = offset else { return };
        let delivery = Some(Delivery { offset, bytes: 0 });
        self.finish_later(DeferredOutput { until: None, delivery, copy: None, keep: None });
    }

    /// The guest is told when the vendor library is done with it.
    pub fn finish_later(&self, pending: DeferredOutput) {
        if !self.tables.late.add(pending) {
            self.fail("the guest has too many unfinished transfers");
        }
    }

    /// Ends the session: the guest broke the protocol, or something failed beyond repair.
    pub fn fail(&self, reason: &str) {
        if self.pause.kill() {
            self.peer.journal.note(&format!("session ended: {reason}"));
        }
        self.peer.farewell();
    }

    /// All waits of the session end.
    pub fn kill(&self) {
        self.pause.kill();
        self.calls.tickets.interrupt();
        self.callbacks.lane.kill();
        self.callbacks.posted.end();
    }

    /// An asynchronous call has run: its successor may, and the guest may reuse the blocks it named.
    pub fn finish_ticket(&self, ticket: u64, yielded: bool) {
        let CallOrder { tickets, yielded: all, .. } = &self.calls;
        tickets.finish(ticket);
        let others = all.fetch_sub(usize::from(yielded), Ordering::SeqCst) - usize::from(yielded);
        if others == 0 {
            self.tables.memory.show_finished(tickets.done());
        }
    }

    /// A call is about to create so many objects, until [`Session::return_handles`].
    pub fn reserve_handles(&self, function: u32, count: u64) -> Result<(), Reject> {
        let item = self.accounts.handles_item();
        let charge = |amount| self.accounts.gate.charge(item, amount).map_err(|refusal| (amount, refusal));
        self.objects.handles.quota.reserve(count, charge).map_err(|(amount, refusal)| {
            self.accounts.show(item);
            self.accounts.refuse(function, item, amount, &refusal)
        })
    }

    pub fn return_handles(&self, count: u64) {
        if count > 0 {
            let item = self.accounts.handles_item();
            self.objects.handles.quota.release(count, |amount| self.accounts.gate.uncharge(item, amount));
            self.accounts.show(item);
        }
    }

    /// Charges the tenant for the object log as it is now. While the session is made again the charge is the old process's.
    pub fn settle_log(&self) {
        if self.objects.log.is_unsettled() && !self.objects.is_rebuilding() {
            self.settle_log_now();
        }
    }

    #[cold]
    fn settle_log_now(&self) {
        let (item, gate) = (self.accounts.log_item(), &self.accounts.gate);
        let log = &self.objects.log;
        let fits = log.settle(|amount| gate.charge(item, amount), |amount| gate.uncharge(item, amount));
        self.accounts.show(item);
        if !fits {
            self.peer
                .journal
                .note("its tenant's limit of host_log has no room for the object log: the session cannot be moved");
        }
    }

    /// Ties the charges of a successful call to the object that it created, or to the session.
    #[inline]
    pub fn hold(&self, created: Option<u64>, holding: &mut Charges) {
        if !holding.is_empty() {
            self.hold_charges(created, holding);
        }
    }

    fn hold_charges(&self, created: Option<u64>, holding: &mut Charges) {
        if !created.is_some_and(|id| self.objects.handles.hold(id, holding)) {
            self.accounts.hold(holding);
        }
    }

    /// `deallocates_rc`: returns at most what was charged and is still held, so accounts cannot drift:
    /// first what no object holds, then what the objects hold that the call names.
    pub fn uncharge(&self, item: usize, amount: u64, named: impl Iterator<Item = u64>) {
        let mut returned = self.accounts.take(item, amount);
        for id in named {
            returned += self.objects.handles.take(id, item, amount - returned);
        }
        self.accounts.gate.uncharge(item, returned);
        self.accounts.show(item);
    }

    pub fn object_ended(&self, ended: Ended) {
        let mut counted = 0;
        for mut ended in ended.along.into_iter().chain([Ended { along: Vec::new(), ..ended }]) {
            counted += u64::from(ended.counted);
            self.accounts.settle(&mut ended.holding);
            self.objects.log.object_ended(ended.id);
            self.resident_owner_ended(ended.id);
        }
        self.settle_log();
        self.return_handles(counted);
        self.show_handles();
    }

    /// The guest has given the id to another object, although the vendor's library still has this one. Nobody can
    /// name it: so what it holds stays charged.
    pub fn object_lost(&self, ended: Ended) {
        for mut ended in ended.along.into_iter().chain([Ended { along: Vec::new(), ..ended }]) {
            self.hold(None, &mut ended.holding);
            self.objects.log.object_ended(ended.id);
        }
    }

    /// Memory of the library's that an object had has ended with it.
    pub(crate) fn resident_owner_ended(&self, owner: u64) {
        for id in self.tables.foreign.owner_ended(owner) {
            self.resident_ended(id);
        }
    }

    pub(crate) fn resident_ended(&self, id: u64) {
        Logged::Resident.word(id).into_iter().for_each(|word| self.objects.log.object_ended(word));
    }

    pub fn show_handles(&self) {
        self.accounts.stats.handles.store(self.objects.handles.len() as u64, Ordering::Relaxed);
    }

    /// Returns all references of callbacks that have run; false: calls still use some of the objects.
    pub fn let_go_all(&self) -> bool {
        self.objects.release_held(None, |object| self.let_go_unused(object))
    }

    /// False: a call of some lane uses the object.
    fn let_go_unused(&self, HeldObject { native, id, let_go }: HeldObject) -> bool {
        let handles = &self.objects.handles;
        let Ok(_) = handles.ending(id, false, &LaneUses::default(), || false) else { return false };
        // SAFETY: `Call::callback_holds` has retained the object for this release, and nothing else releases for it.
        unsafe { let_go(native) };
        if let Some(ended) = handles.unpin(id) {
            self.object_ended(ended);
        }
        true
    }
}

impl CallbackOwner for Session {
    fn calls_back(&self) -> bool {
        !self.objects.is_rebuilding()
    }

    fn end_closure(self: Arc<Self>, key: ClosureKey) -> Option<KeptObject> {
        let object = self.objects.forget_closure(key)?;
        Some(KeptObject::new(self, object))
    }

    /// Returns the reference of a callback that has run, and those of earlier ones that calls under way still used then.
    fn let_go(&self, object: HeldObject) {
        self.objects.release_held(Some(object), |object| self.let_go_unused(object));
    }
}
