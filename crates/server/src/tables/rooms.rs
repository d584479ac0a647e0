//! Room on devices whose memory the node shares out: what the session has charged there must be granted before the vendor's
//! library hears of the allocation.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use aviary_control::{MoveReport, Patience, SharedDevice, SwapReport};
use aviary_gate::{Account, Gate, ProcessUse, fits};

use crate::session::pause::{Beneath, Pause, StopEnd};

/// The resource that is device memory, in all APIs.
pub const DEVICE_MEMORY: &str = "device_memory";

/// Memory of a device that the node shares out (`[devices."NAME"] memory`), in bytes. `struct aviary_shared_memory`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct SharedMemory {
    /// What sessions share.
    pub memory: u64,
    /// `device_memory` of the calling program, wherever it is.
    pub programs: u64,
    /// `device_memory` of all the tenant's programs, wherever it is.
    pub tenants: u64,
}

impl SharedMemory {
    /// `uses`: what the tenant's programs have on the device; `guest`: the process id of the calling one.
    pub fn new(memory: u64, uses: &[ProcessUse], guest: u32) -> SharedMemory {
        let nothing = SharedMemory { memory, programs: 0, tenants: 0 };
        uses.iter().fold(nothing, |sum, part| {
            let own = if part.process == guest { part.amount } else { 0 };
            let (programs, tenants) = (sum.programs.saturating_add(own), sum.tenants.saturating_add(part.amount));
            SharedMemory { memory, programs, tenants }
        })
    }
}

/// The answer to an allocation that gets no room.
#[derive(Debug, PartialEq, Eq)]
pub struct NoRoom {
    pub device: String,
    pub bytes: u64,
}

/// A request that the node has not answered.
#[derive(Debug, Clone)]
struct Asked {
    request: u64,
    device: String,
    bytes: u64,
}

#[derive(Debug, Default)]
struct Granted {
    by_device: BTreeMap<String, u64>,
    asked: Option<Asked>,
    /// The last request, and the last one that was refused.
    last: u64,
    refused: u64,
}

/// What the node has granted to the session.
#[derive(Debug)]
pub struct Rooms {
    shared: Vec<SharedDevice>,
    orders: OwnedFd,
    granted: Mutex<Granted>,
}

impl Rooms {
    /// `None`: the session shares no device.
    ///
    /// # Errors
    /// There is no descriptor for it.
    pub fn new(shared: &[SharedDevice], orders: Option<&OwnedFd>) -> io::Result<Option<Rooms>> {
        let Some(orders) = orders.filter(|_| !shared.is_empty()) else { return Ok(None) };
        let orders = rustix::io::fcntl_dupfd_cloexec(orders, 3)?;
        Ok(Some(Rooms { shared: shared.to_vec(), orders, granted: Mutex::default() }))
    }

    fn is_shared(&self, device: &str) -> bool {
        self.memory(device).is_some()
    }

    /// The bytes that the node shares out of this device's memory.
    pub fn memory(&self, device: &str) -> Option<u64> {
        self.shared.iter().find(|shared| fits(&shared.name, device)).map(|shared| shared.memory)
    }

    /// Waits until the node has granted all that is charged on the devices of this item.
    ///
    /// # Errors
    /// It does not, or the session is over.
    pub fn secure(&self, gate: &Gate, item: usize, (pause, beneath): (&Pause, Beneath)) -> Result<(), NoRoom> {
        let resource = gate.resource(item).and_then(|resource| gate.accounts().get(resource));
        if resource.is_none_or(|account| account.name() != DEVICE_MEMORY) {
            return Ok(());
        }
        let devices = gate.devices(item).into_iter().filter(|device| self.is_shared(device));
        devices.into_iter().try_for_each(|device| self.secure_on(gate, &device, (pause, beneath)))
    }

    fn secure_on(&self, gate: &Gate, device: &str, (pause, beneath): (&Pause, Beneath)) -> Result<(), NoRoom> {
        loop {
            let mut granted = self.lock();
            let (used, has) = (used(gate, device), granted.by_device.get(device).copied().unwrap_or(0));
            let Some(bytes) = used.checked_sub(has).filter(|bytes| *bytes > 0) else {
                // Others may have freed some of what was asked for, before it was granted.
                self.give_surplus(gate, &mut granted);
                return Ok(());
            };
            let (request, mine) = match &granted.asked {
                // Another call of the session has asked, perhaps for this one, too.
                Some(asked) => (asked.request, false),
                None => {
                    granted.last += 1;
                    let request = granted.last;
                    granted.asked = Some(Asked { request, device: device.to_owned(), bytes });
                    let asks = SwapReport::Room { request, device: device.to_owned(), bytes };
                    self.tell(asks);
                    (request, true)
                }
            };
            drop(granted);
            let waits = || self.lock().asked.as_ref().is_none_or(|asked| asked.request != request);
            let end = pause.wait_aside(beneath, waits);
            if end == StopEnd::SessionOver || mine && self.lock().refused == request {
                return Err(NoRoom { device: device.to_owned(), bytes });
            }
        }
    }

    /// The vendor's library has no memory although the node has granted it: waits until others have left that have so much there.
    /// False: nobody does, or the session is over. The session's own memory stays meanwhile.
    pub fn make_room(&self, device: &str, bytes: u64, pause: &Pause) -> bool {
        if !self.is_shared(device) {
            return false;
        }
        loop {
            let mut granted = self.lock();
            let (request, mine) = match &granted.asked {
                Some(asked) => (asked.request, false),
                None => {
                    granted.last += 1;
                    let request = granted.last;
                    // What is granted was counted before.
                    granted.asked = Some(Asked { request, device: device.to_owned(), bytes: 0 });
                    self.tell(SwapReport::Need { request, device: device.to_owned(), bytes });
                    (request, true)
                }
            };
            drop(granted);
            let waits = || self.lock().asked.as_ref().is_none_or(|asked| asked.request != request);
            let end = pause.wait_aside(Beneath::Callback, waits);
            if mine || end == StopEnd::SessionOver {
                return end == StopEnd::GoesOn && self.lock().refused != request;
            }
        }
    }

    /// The node's answer. Whoever waits must be woken.
    pub fn answer(&self, request: u64, is_granted: bool) {
        let mut granted = self.lock();
        let Some(asked) = granted.asked.take_if(|asked| asked.request == request) else { return };
        if is_granted {
            *granted.by_device.entry(asked.device).or_default() += asked.bytes;
        } else {
            granted.refused = request;
        }
    }

    /// Returns what the session does not need any more.
    pub fn give_back(&self, gate: &Gate) {
        self.give_surplus(gate, &mut self.lock());
    }

    fn give_surplus(&self, gate: &Gate, granted: &mut Granted) {
        for (device, has) in &mut granted.by_device {
            let surplus = has.saturating_sub(used(gate, device));
            if surplus > 0 {
                *has -= surplus;
                let less = SwapReport::Surplus { device: device.clone(), bytes: surplus };
                self.tell(less);
            }
        }
    }

    fn tell(&self, report: SwapReport) {
        // A node that does not listen has gone, and the session ends.
        let _ = aviary_control::send(self.orders.as_fd(), &MoveReport::Swap(report), &[], Patience::Waits);
    }

    fn lock(&self) -> MutexGuard<'_, Granted> {
        self.granted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Device memory of the session on all devices.
pub fn device_memory(gate: &Gate) -> u64 {
    gate.accounts().iter().find(|account| account.name() == DEVICE_MEMORY).map_or(0, Account::used)
}

/// Device memory of the session on a device.
fn used(gate: &Gate, device: &str) -> u64 {
    let is_its = |account: &Account| account.name() == DEVICE_MEMORY && account.device() == Some(device);
    gate.device_accounts().iter().filter(|account| is_its(account)).map(|account| account.used()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use aviary_control::{Received, order_sockets};
    use aviary_gate::{Kind, Resource};

    fn gate() -> Gate {
        let resource = |name| Resource { name, kind: Kind::Continuous };
        Gate::new([resource(DEVICE_MEMORY), resource("streams")], |_| None)
    }

    fn heard(node: &OwnedFd) -> Option<SwapReport> {
        match aviary_control::receive::<MoveReport>(node.as_fd()) {
            Received::Message(MoveReport::Swap(report), _) => Some(report),
            _ => None,
        }
    }

    #[test]
    fn a_program_is_told_of_its_own_and_of_its_tenants_memory() {
        let uses = [(7, 100), (8, 30), (9, u64::MAX)].map(|(process, amount)| ProcessUse { amount, process });
        let shown = |guest, uses| SharedMemory::new(1000, uses, guest);
        assert_eq!(shown(8, &uses[..2]), SharedMemory { memory: 1000, programs: 30, tenants: 130 });
        assert_eq!(shown(6, &uses), SharedMemory { memory: 1000, programs: 0, tenants: u64::MAX });
    }

    #[test]
    fn what_is_charged_is_asked_for_and_what_is_returned_is_given_back() {
        let (gate, pause) = (gate(), Pause::new(None));
        let [node, module] = order_sockets().unwrap();
        let shared = [SharedDevice { name: "card*".into(), memory: 1000 }];
        let rooms = Rooms::new(&shared, Some(&module)).unwrap().unwrap();
        assert_eq!((rooms.memory("card 0"), rooms.memory("other")), (Some(1000), None));
        assert!(Rooms::new(&[], Some(&module)).unwrap().is_none());
        let item = |resource, device: &str| gate.residency(resource, &[device.to_owned()]).unwrap();
        // What is elsewhere, or no memory, needs no room.
        for (item, amount) in [(item(0, "other"), 9), (item(1, "card 0"), 9), (0, 9)] {
            gate.charge(item, amount).unwrap();
            assert_eq!(rooms.secure(&gate, item, (&pause, Beneath::Nothing)), Ok(()));
        }
        let memory = item(0, "card 0");
        let answers = |granted| {
            // The call is asked on a thread of its own.
            let asked = std::iter::repeat_with(|| heard(&node)).flatten().next();
            let Some(SwapReport::Room { request, device, bytes }) = asked else { panic!("{asked:?}") };
            assert_eq!((device.as_str(), bytes), ("card 0", 100));
            rooms.answer(request + 1, granted);
            rooms.answer(request, granted);
            pause.wake_aside();
        };
        for granted in [true, false] {
            gate.charge(memory, 100).unwrap();
            std::thread::scope(|scope| {
                let call = scope.spawn(|| rooms.secure(&gate, memory, (&pause, Beneath::Nothing)));
                answers(granted);
                let refused = NoRoom { device: "card 0".into(), bytes: 100 };
                assert_eq!(call.join().unwrap(), if granted { Ok(()) } else { Err(refused) });
            });
        }
        gate.uncharge(memory, 130);
        rooms.give_back(&gate);
        assert_eq!(heard(&node), Some(SwapReport::Surplus { device: "card 0".into(), bytes: 30 }));
        gate.charge(memory, 0).unwrap();
        assert_eq!(rooms.secure(&gate, memory, (&pause, Beneath::Nothing)), Ok(()), "it has all that it uses");
    }

    #[test]
    fn others_make_room_for_memory_that_was_granted_and_is_not_there() {
        let (gate, pause) = (gate(), Pause::new(None));
        let [node, module] = order_sockets().unwrap();
        let shared = [SharedDevice { name: "card*".into(), memory: 1000 }];
        let rooms = Rooms::new(&shared, Some(&module)).unwrap().unwrap();
        assert!(!rooms.make_room("other", 9, &pause));
        for granted in [true, false] {
            std::thread::scope(|scope| {
                let call = scope.spawn(|| rooms.make_room("card 0", 9, &pause));
                let asked = std::iter::repeat_with(|| heard(&node)).flatten().next();
                let Some(SwapReport::Need { request, device, bytes }) = asked else { panic!("{asked:?}") };
                assert_eq!((device.as_str(), bytes), ("card 0", 9));
                rooms.answer(request, granted);
                pause.wake_aside();
                assert_eq!(call.join().unwrap(), granted);
            });
        }
        rooms.give_back(&gate);
        assert_eq!(heard(&node), None, "it was granted nothing");
    }

    #[test]
    fn what_others_free_while_a_call_waits_for_room_is_given_back() {
        let (gate, pause) = (gate(), Pause::new(None));
        let [node, module] = order_sockets().unwrap();
        let shared = [SharedDevice { name: "card*".into(), memory: 1000 }];
        let rooms = Rooms::new(&shared, Some(&module)).unwrap().unwrap();
        let memory = gate.residency(0, &["card 0".to_owned()]).unwrap();
        let asks = |bytes| {
            let asked = std::iter::repeat_with(|| heard(&node)).flatten().next();
            let Some(SwapReport::Room { request, bytes: asked, .. }) = asked else { panic!("{asked:?}") };
            assert_eq!(asked, bytes);
            request
        };
        let secure = || rooms.secure(&gate, memory, (&pause, Beneath::Nothing));
        for freed in [0, 40] {
            gate.charge(memory, 100).unwrap();
            std::thread::scope(|scope| {
                let call = scope.spawn(secure);
                let request = asks(100);
                gate.uncharge(memory, freed);
                rooms.give_back(&gate);
                rooms.answer(request, true);
                pause.wake_aside();
                assert_eq!(call.join().unwrap(), Ok(()));
            });
        }
        assert_eq!(heard(&node), Some(SwapReport::Surplus { device: "card 0".into(), bytes: 40 }));
    }
}
