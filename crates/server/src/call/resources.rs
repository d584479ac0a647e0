//! What a call takes of its tenant's limits and of the devices' time.

use std::sync::atomic::Ordering;
use std::time::Duration;

use aviary_wire::kind;

use super::Call;
use crate::api::Reject;
use crate::lane::clock;
use crate::lane::current;
use crate::lane::devices::{Drain, Name, device_name};
use crate::session::Accounts;
use crate::session::pause::{Beneath, StopEnd};
use crate::session::residency::{ResidencyDevices, as_shown, devices_of};
use crate::tables::rooms::{NoRoom, Rooms};

impl Call {
    /// The item of a resource (see [`aviary_gate::Gate`]) on the devices that `place` stands for.
    pub fn place(&mut self, resource: u32, place: u64, names: ResidencyDevices) -> Result<u32, Reject> {
        if self.replayed.is_some() {
            return Ok(resource);
        }
        let mut devices = devices_of(place, names);
        if self.session.accounts.policy.has_only_some_devices() {
            self.session.accounts.check_devices(self.request.header.function, &devices)?;
        }
        // Memory on a device without a name has no account.
        devices.retain(|name| !name.is_empty());
        let item = self.session.accounts.place(self.request.header.function, resource as usize, &devices)?;
        Ok(item as u32)
    }

    /// `allocates_rc`: taken now, given back if the call fails. `item` as [`Call::place`] answers, or a resource.
    pub fn charge(&mut self, item: u32, amount: u64) -> Result<(), Reject> {
        if self.replayed.is_some() {
            return Ok(());
        }
        self.session.accounts.charge(self.request.header.function, item as usize, amount)?;
        // Charged and without room it is given back with the rest of what the call holds.
        self.effects.holding.add(item as usize, amount);
        match &self.session.accounts.rooms {
            Some(rooms) if amount > 0 => self.await_room(rooms, item as usize),
            _ => Ok(()),
        }
    }

    #[cold]
    fn await_room(&self, rooms: &Rooms, item: usize) -> Result<(), Reject> {
        let Accounts { gate, .. } = &self.session.accounts;
        let is_called = current::lane_of(&self.session).is_some_and(|lane| lane.nesting.get() > 0);
        let beneath = if is_called { Beneath::Callback } else { Beneath::Nothing };
        rooms.secure(gate, item, (&self.session.pause, beneath)).map_err(|NoRoom { device, bytes }| {
            let figures = format_args!("resource=resident_memory device={device:?} asked={bytes}");
            let function = self.session.api.functions.get(self.request.header.function as usize);
            self.session.accounts.audit(function.map_or("?", |function| function.name), figures);
            Reject::Refused
        })
    }

    /// `allocate`: the call creates so many objects at most.
    pub fn reserve_handles(&mut self, count: u64) -> Result<(), Reject> {
        if self.replayed.is_some() {
            return Ok(());
        }
        self.session.reserve_handles(self.request.header.function, count)?;
        self.effects.reserved += count;
        Ok(())
    }

    /// `consumes_rc`.
    pub fn consume(&mut self, resource: u32, amount: u64) -> Result<(), Reject> {
        if self.replayed.is_some() {
            return Ok(());
        }
        self.session.accounts.consume(self.request.header.function, resource as usize, amount)
    }

    /// `deallocates_rc`: takes effect if the call succeeds.
    pub fn uncharge(&mut self, item: u32, amount: u64) {
        if self.replayed.is_some() {
            return;
        }
        self.effects.rare.on_success.uncharged.push((item as usize, amount));
    }

    pub fn begin_vendor(&mut self) {
        if self.request.header.kind == kind::CALL && self.work.stay.is_none() && self.scheduled() {
            self.work.wait = self.session.devices.begin_blocking_call();
        }
        self.work.since = clock::ticks();
    }

    pub fn end_vendor(&mut self) {
        self.work.ticks += clock::ticks().saturating_sub(self.work.since);
        if let Some(device) = self.work.wait.take() {
            self.session.devices.end_blocking_call(device);
        }
    }

    /// The call about to begin only waits: its message, as it came, is kept for a process that has to make it again. Not for
    /// a call below a callback, for which others wait here, nor for one that a rebuild makes.
    #[cold]
    pub(crate) fn offer_wait(&mut self) {
        if self.request.header.kind != kind::CALL || self.replayed.is_some() {
            return;
        }
        if let Some(lane) = current::lane_of(&self.session).filter(|lane| lane.nesting.get() == 0) {
            lane.wait.prepare(&self.request.bytes);
            self.work.may_be_given_up = true;
        }
    }

    /// `waits`: from here on the session may move without this call, until [`Call::end_wait`].
    pub fn begin_wait(&mut self) {
        self.begin_vendor();
        if self.work.may_be_given_up
            && let Some(lane) = current::lane()
        {
            lane.begin_wait();
        }
    }

    /// An error: another process answers the call, or nobody.
    pub fn end_wait(&mut self) -> Result<(), Reject> {
        if self.work.may_be_given_up
            && let Some(lane) = current::lane()
            && lane.end_wait() == StopEnd::SessionOver
        {
            return Err(Reject::Over);
        }
        self.end_vendor();
        Ok(())
    }

    /// The node schedules devices.
    #[inline]
    pub fn scheduled(&self) -> bool {
        self.session.devices.scheduled()
    }

    /// It matters which device a call gives work: the node schedules devices, or some are not the tenant's.
    #[inline]
    pub fn minds_devices(&self) -> bool {
        (self.scheduled() || self.session.accounts.policy.has_only_some_devices()) && self.replayed.is_none()
    }

    /// `occupies`: waits until the session may give the device work. False: nobody schedules this device.
    pub fn occupy(&mut self, device: u64, drain: Drain, name: Name) -> Result<bool, Reject> {
        let session = &self.session;
        if device != 0 && session.accounts.policy.has_only_some_devices() {
            session.accounts.check_devices(self.request.header.function, &[as_shown(&device_name(device, name))])?;
        }
        if !self.scheduled() {
            return Ok(false);
        }
        self.work.stay =
            session.devices.acquire(device, drain, name, || session.pause.is_dead()).map_err(|()| Reject::Refused)?;
        Ok(self.work.stay.is_some())
    }

    /// The cost of the call on the device, as the specification measures it.
    pub fn device_time(&mut self, ns: u64) {
        self.work.device_time = Some(Duration::from_nanos(ns));
        self.session.accounts.stats.device_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// The device has its work, or will never get it.
    pub fn vacate(&mut self) {
        if let Some(stay) = self.work.stay.take() {
            if stay.answers_soon
                && let Some(lane) = current::lane()
            {
                lane.wake_guest();
            }
            self.session.devices.submit_done(stay, self.work.device_time.take());
        }
    }
}
