//! A session's use of a device, with the node's side played by the test.

use super::*;
use std::os::fd::AsFd;
use std::sync::atomic::AtomicBool;

const MS: u64 = 1_000_000;

/// Answers of the device, for tests that run one after the other in one thread each: the number of the device says which.
static BUSY: [AtomicBool; 8] = [const { AtomicBool::new(false) }; 8];

unsafe extern "C" fn drain(request: *const DrainRequest) -> c_int {
    // SAFETY: as `Drain` says.
    let device = unsafe { (*request).device } as usize;
    if BUSY[device].load(Ordering::SeqCst) { -1 } else { 0 }
}

unsafe extern "C" fn name(_: u64) -> *const c_char {
    c"a device".as_ptr()
}

struct Fixture {
    devices: Devices,
    node: GrantPage,
    doorbell: OwnedFd,
    device: u64,
}

impl Fixture {
    fn new(device: u64) -> Fixture {
        let fd = GrantPage::create().unwrap();
        let (page, node) = (GrantPage::open(fd.as_fd()).unwrap(), GrantPage::open(fd.as_fd()).unwrap());
        let doorbell = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
        let theirs = doorbell.try_clone().unwrap();
        node.schedule();
        Fixture { devices: Devices::new(Some(page), Some(theirs), 0), node, doorbell, device }
    }

    fn slot(&self) -> &DeviceSlot {
        &self.node.slots()[0]
    }

    fn allow(&self, allowance: u64, depth: u64) {
        self.slot().depth_ns.store(depth, Ordering::SeqCst);
        self.slot().allowance.store(allowance, Ordering::SeqCst);
        self.slot().open();
    }

    fn call(&self) -> Result<bool, ()> {
        let admission = self.devices.acquire(self.device, drain, name, || false)?;
        if let Some(admission) = admission {
            self.devices.submit_done(admission, None);
        }
        Ok(admission.is_some())
    }

    /// True if the doorbell rang since the last question.
    fn rang(&self) -> bool {
        rustix::io::read(&self.doorbell, &mut [0u8; 8]).is_ok()
    }
}

#[test]
fn unmanaged_device_needs_no_allowance() {
    let fixture = Fixture::new(0);
    assert!(fixture.devices.acquire(0, drain, name, || false).unwrap().is_none(), "no device");
    let fixture = Fixture { device: 1, ..fixture };
    fixture.allow(UNMANAGED, 0);
    assert_eq!(fixture.call(), Ok(false));
}

#[test]
fn call_waits_for_an_allowance_and_dies_with_its_session() {
    let fixture = Fixture::new(2);
    assert!(fixture.devices.acquire(2, drain, name, || true).is_err());
    assert!(fixture.rang(), "the node is told that it waits");
    assert_eq!(fixture.slot().waiters.load(Ordering::SeqCst), 0);
    std::thread::scope(|scope| {
        let call = scope.spawn(|| fixture.call());
        while fixture.slot().waiters.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        fixture.allow(MS, MS);
        assert_eq!(call.join().unwrap(), Ok(true));
    });
    assert_eq!(fixture.slot().waiters.load(Ordering::SeqCst), 0);
}

#[test]
fn parked_session_rings_with_its_next_call_and_does_not_wait() {
    let fixture = Fixture::new(3);
    fixture.allow(ALONE, 20 * MS);
    assert_eq!(fixture.call(), Ok(true));
    fixture.rang();
    assert_eq!(fixture.call(), Ok(true));
    assert!(!fixture.rang(), "alone on the device");
    fixture.slot().parked.store(1, Ordering::SeqCst);
    assert_eq!(fixture.call(), Ok(true));
    assert!(fixture.rang());
    assert_eq!(fixture.slot().parked.load(Ordering::SeqCst), 0);
}

#[test]
fn idle_lane_gives_the_device_up_once_the_work_is_completed() {
    let fixture = Fixture::new(4);
    BUSY[4].store(true, Ordering::SeqCst);
    fixture.allow(10_000 * MS, 10_000 * MS);
    assert_eq!(fixture.call(), Ok(true));
    fixture.rang();
    assert_ne!(fixture.slot().busy_since.load(Ordering::SeqCst), 0);
    let mut looks = 0;
    fixture.devices.lane_idle(|_| {
        looks += 1;
        BUSY[4].store(looks < 3, Ordering::SeqCst);
        false
    });
    assert!(looks >= 3);
    assert_eq!(fixture.slot().busy_since.load(Ordering::SeqCst), 0);
    assert_eq!(fixture.slot().wanted.load(Ordering::SeqCst), 0);
    assert_eq!(fixture.slot().calls.load(Ordering::SeqCst), 1);
    assert!(fixture.slot().used_ns.load(Ordering::SeqCst) > 0);
    assert!(fixture.rang(), "others may have it");
}

#[test]
fn message_keeps_the_device() {
    let fixture = Fixture::new(5);
    fixture.allow(10_000 * MS, 10_000 * MS);
    assert_eq!(fixture.call(), Ok(true));
    fixture.rang();
    fixture.devices.lane_idle(|_| true);
    assert_eq!(fixture.slot().wanted.load(Ordering::SeqCst), 1);
    assert!(!fixture.rang());
}

#[test]
fn session_that_waits_for_a_device_gives_up_its_others() {
    let fixture = Fixture::new(6);
    fixture.allow(10_000 * MS, 10_000 * MS);
    assert_eq!(fixture.call(), Ok(true));
    let wanted = || fixture.slot().wanted.load(Ordering::SeqCst);
    let given_up = || wanted() == 0 && fixture.slot().busy_since.load(Ordering::SeqCst) == 0;
    // The session's end, as its only way out: the second device is never allowed.
    assert!(fixture.devices.acquire(7, drain, name, given_up).is_err());
    assert!(given_up());
}
