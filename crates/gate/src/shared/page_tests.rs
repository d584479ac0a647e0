use super::*;
use crate::{Gate, Resource, TenantSlot};
use proptest::prelude::*;
use rustix::fs::{MemfdFlags, SealFlags};
use std::cell::Cell;
use std::io::Read;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

thread_local! {
    /// How many more points this thread survives.
    static LIVES: Cell<Option<u32>> = const { Cell::new(None) };
}

struct Killed;

pub fn point() {
    match LIVES.get() {
        Some(0) => resume_unwind(Box::new(Killed)),
        Some(left) => LIVES.set(Some(left - 1)),
        None => {}
    }
}

/// Runs `life` until it passes the point with this number: what it did before stays, what follows does not happen.
/// False: it died.
fn survives(points: u32, life: impl FnOnce()) -> bool {
    LIVES.set(Some(points));
    let ended = catch_unwind(AssertUnwindSafe(life)).is_ok();
    LIVES.set(None);
    ended
}

fn page(seats: u32) -> TenantPage {
    let (page, _) = TenantPage::create().unwrap();
    page.note_slot(seats - 1);
    page
}

fn balance(page: &TenantPage, name: &str) -> Balance {
    page.balances().into_iter().find(|balance| balance.name == name && balance.device.is_none()).unwrap()
}

fn balance_on(page: &TenantPage, device: &str) -> Balance {
    page.balances().into_iter().find(|balance| balance.device.as_deref() == Some(device)).unwrap()
}

fn on_device(device: &str, limit: u64) -> DeviceLimit {
    DeviceLimit { device: device.into(), resource: "memory".into(), limit }
}

#[test]
fn all_sessions_share_one_limit_and_get_the_last_byte() {
    let (page, fd) = TenantPage::create().unwrap();
    page.note_slot(1);
    page.set_limit("memory", Some(10)).unwrap();
    let gate = |slot| {
        let seat = TenantSlot::new(TenantPage::open(fd.as_fd()).unwrap(), slot).unwrap();
        Gate::of_tenant([Resource { name: "memory", kind: Kind::Continuous }], &seat).unwrap()
    };
    let (one, two) = (gate(0), gate(1));
    one.charge(0, 7).unwrap();
    assert_eq!(two.charge(0, 4), Err(Refused { used: 7, limit: 10 }.into()));
    two.charge(0, 3).unwrap();
    assert_eq!(one.charge(0, 1), Err(Refused { used: 10, limit: 10 }.into()));
    assert_eq!((one.accounts()[0].used(), two.accounts()[0].used()), (7, 3));
    assert_eq!(one.accounts()[0].limit(), Some(10));
    one.uncharge(0, 7);
    two.charge(0, 7).unwrap();
    let now = balance(&page, "memory");
    assert_eq!((now.used, now.held, now.peak, now.refused), (10, 10, 10, 2));
}

#[test]
fn amounts_move_to_another_slot_and_what_is_used_stays() {
    let (page, fd) = TenantPage::create().unwrap();
    page.note_slot(2);
    page.set_limit("memory", Some(10)).unwrap();
    let gate = |slot| {
        let seat = TenantSlot::new(TenantPage::open(fd.as_fd()).unwrap(), slot).unwrap();
        Gate::of_tenant([Resource { name: "memory", kind: Kind::Continuous }], &seat).unwrap()
    };
    let (old, other, new) = (gate(0), gate(1), gate(2));
    old.charge(0, 6).unwrap();
    other.charge(0, 4).unwrap();
    page.move_slot(0, 2).unwrap();
    let now = balance(&page, "memory");
    assert_eq!((now.used, now.held), (10, 10));
    assert!(other.charge(0, 1).is_err());
    // The old API server is reaped: it holds nothing any more.
    page.release(0);
    assert_eq!(balance(&page, "memory").used, 10);
    new.uncharge(0, 6);
    old.uncharge(0, 6);
    assert_eq!((balance(&page, "memory").used, balance(&page, "memory").held), (4, 4));
    // Slots that were never given out, and one and the same.
    page.move_slot(1, 1).unwrap();
    page.move_slot(1, 4000).unwrap();
    assert_eq!(balance(&page, "memory").held, 4);
}

#[test]
fn amounts_stay_where_they_are_while_an_api_server_has_the_lock() {
    let (page, fd) = TenantPage::create().unwrap();
    page.note_slot(1);
    let seat = TenantSlot::new(TenantPage::open(fd.as_fd()).unwrap(), 0).unwrap();
    let gate = Gate::of_tenant([Resource { name: "memory", kind: Kind::Continuous }], &seat).unwrap();
    gate.charge(0, 6).unwrap();
    // It stopped in the middle of a change.
    assert!(page.layout().lock.lock(1, Duration::from_secs(1)));
    assert_eq!(page.move_slot(0, 1), Err(PageError::Busy));
    page.layout().lock.unlock();
    gate.uncharge(0, 6);
    assert_eq!(balance(&page, "memory").used, 0);
}

#[test]
fn a_lower_limit_takes_nothing_back_and_grants_nothing() {
    let page = page(1);
    let memory = page.account(0, "memory", Kind::Continuous).unwrap();
    page.charge(0, &[memory], 8).unwrap();
    page.set_limit("memory", Some(5)).unwrap();
    assert!(page.charge(0, &[memory], 1).is_err());
    assert_eq!(balance(&page, "memory").used, 8);
    page.uncharge(0, &[memory], 4);
    page.charge(0, &[memory], 1).unwrap();
    assert!(page.charge(0, &[memory], 1).is_err());
    page.set_limit("memory", None).unwrap();
    page.charge(0, &[memory], 1000).unwrap();
}

#[test]
fn process_uses_name_each_guest_once_and_end_with_its_api_server() {
    let (page, fd) = TenantPage::create().unwrap();
    page.note_slot(3);
    let server = |slot, guest| {
        let slot = TenantSlot::new(TenantPage::open(fd.as_fd()).unwrap(), slot).unwrap();
        slot.show_guest(guest);
        Gate::of_tenant([Resource { name: "memory", kind: Kind::Continuous }], &slot).unwrap()
    };
    let gates = [server(0, 70), server(1, 71), server(2, 70), server(3, 72)];
    for (gate, amount) in gates.iter().zip([5, 3, 4]) {
        let card = gate.residency(0, &["card".to_owned()]).unwrap();
        gate.charge(card, amount).unwrap();
    }
    gates[1].charge(gates[1].residency(0, &["chip".to_owned()]).unwrap(), 100).unwrap();
    let on = |device| -> Vec<(u32, u64)> {
        gates[3].process_uses("memory", device).iter().map(|found| (found.process, found.amount)).collect()
    };
    assert_eq!(on("card"), [(70, 9), (71, 3)], "one that holds nothing there is not listed");
    assert_eq!((on("chip"), on("other")), (vec![(71, 100)], vec![]));
    page.release(1);
    assert_eq!((on("card"), on("chip")), (vec![(70, 9)], vec![]));
    assert_eq!(Gate::default().process_uses("memory", "card"), [], "a session without a tenant's page");
}

#[test]
fn allocation_on_devices_counts_on_all_or_none() {
    let (page, fd) = TenantPage::create().unwrap();
    page.note_slot(0);
    page.set_limit("memory", Some(100)).unwrap();
    page.set_device_limits(&[on_device("card 2", 20), on_device("card*", 30)]).unwrap();
    let seat = TenantSlot::new(TenantPage::open(fd.as_fd()).unwrap(), 0).unwrap();
    let gate = Gate::of_tenant([Resource { name: "memory", kind: Kind::Continuous }], &seat).unwrap();
    let place =
        |devices: &[&str]| gate.residency(0, &devices.iter().map(|d| d.to_string()).collect::<Vec<_>>()).unwrap();
    let (one, both, chip) = (place(&["card 1"]), place(&["card 1", "card 2"]), place(&["chip"]));
    assert_eq!((place(&[]), place(&["card 1"]), place(&["card 1", "card 1"])), (0, one, one));
    gate.charge(one, 15).unwrap();
    let refused = gate.charge(both, 16).unwrap_err();
    assert_eq!((refused.figures, refused.device.as_deref()), (Refused { used: 15, limit: 30 }, Some("card 1")));
    gate.charge(both, 15).unwrap();
    gate.charge(chip, 60).unwrap();
    let all = |page: &TenantPage| {
        let of = |device| balance_on(page, device).used;
        (balance(page, "memory").used, of("card 1"), of("card 2"), of("chip"))
    };
    assert_eq!(all(&page), (90, 30, 15, 60), "what a place refused is nowhere");
    let refused = gate.charge(place(&["card 2"]), 6).unwrap_err();
    assert_eq!((refused.figures, refused.device.as_deref()), (Refused { used: 15, limit: 20 }, Some("card 2")));
    assert_eq!(gate.charge(chip, 11), Err(Refused { used: 90, limit: 100 }.into()), "the tenant's own limit");
    assert_eq!((balance_on(&page, "card 2").refused, balance_on(&page, "chip").refused), (1, 0));
    let there_is = |device| gate.allowance("memory", device).map(|found| (found.limit, found.left));
    assert_eq!((there_is(None), there_is(Some("chip"))), (Some((100, 10)), Some((100, 10))));
    assert_eq!((there_is(Some("card 1")), there_is(Some("card 2"))), (Some((30, 0)), Some((20, 5))));
    assert_eq!(there_is(Some("card 3")), Some((30, 10)), "nothing is on it yet, but the tenant has not more");
    assert_eq!(gate.allowance("files", Some("card 1")), None);
    assert_eq!(gate.device_accounts().iter().map(|account| account.used()).collect::<Vec<_>>(), [30, 15, 60]);
    // New limits hold for the accounts there are, and for those to come.
    page.set_device_limits(&[on_device("*", 50)]).unwrap();
    assert_eq!((balance_on(&page, "card 1").limit, balance_on(&page, "chip").limit), (Some(50), Some(50)));
    gate.charge(one, 10).unwrap();
    assert!(gate.charge(place(&["new"]), 51).is_err());
    page.set_device_limits(&[]).unwrap();
    assert_eq!(balance_on(&page, "new").limit, None);
    for (item, amount) in [(one, 25), (both, 15), (chip, 60)] {
        gate.uncharge(item, amount);
    }
    assert_eq!(all(&page), (0, 0, 0, 0));
    assert_eq!(page.set_device_limits(&vec![on_device("x", 1); DEVICE_LIMITS + 1]), Err(PageError::ManyLimits));
}

#[test]
fn no_more_is_returned_than_the_slot_holds() {
    let page = page(2);
    let memory = page.account(0, "memory", Kind::Continuous).unwrap();
    page.charge(0, &[memory], 8).unwrap();
    page.charge(1, &[memory], 5).unwrap();
    page.uncharge(0, &[memory], u64::MAX);
    assert_eq!(balance(&page, "memory").used, 5);
}

#[test]
fn a_limited_total_is_the_tenants_and_an_unlimited_one_the_sessions() {
    let page = page(2);
    let launches = page.account(0, "launches", Kind::Instantaneous).unwrap();
    page.set_limit("launches", Some(3)).unwrap();
    page.consume(launches, 2).unwrap();
    assert!(page.consume(launches, 2).is_err());
    page.consume(launches, 1).unwrap();
    // Sessions end, totals stay.
    page.release(0);
    assert_eq!(balance(&page, "launches").used, 3);
    let seat = TenantSlot::new(page, 1).unwrap();
    let gate = Gate::of_tenant([Resource { name: "launches", kind: Kind::Instantaneous }], &seat).unwrap();
    assert!(gate.consume(0, 1).is_err());
    seat.page.set_limit("launches", None).unwrap();
    gate.consume(0, u64::MAX).unwrap();
    gate.consume(0, 1).unwrap();
    assert_eq!(balance(&seat.page, "launches").used, 3);
}

#[test]
fn counters_go_on_in_a_new_page() {
    let old = page(1);
    let (memory, launches) =
        (old.account(0, "memory", Kind::Continuous).unwrap(), old.account(0, "launches", Kind::Instantaneous).unwrap());
    old.set_limit("memory", Some(5)).unwrap();
    old.set_limit("launches", Some(5)).unwrap();
    old.charge(0, &[memory], 5).unwrap();
    assert!(old.charge(0, &[memory], 1).is_err());
    old.consume(launches, 3).unwrap();
    old.release(0);
    let new = page(1);
    new.restore(&old.balances()).unwrap();
    let (memory, launches) = (balance(&new, "memory"), balance(&new, "launches"));
    assert_eq!((memory.used, memory.held, memory.peak, memory.refused, memory.limit), (0, 0, 5, 1, None));
    assert_eq!((launches.used, launches.kind), (3, Some(Kind::Instantaneous)));
}

#[test]
fn names_are_checked() {
    let page = page(1);
    assert_eq!(page.account(0, &"x".repeat(33), Kind::Continuous), Err(PageError::LongName));
    page.account(0, &"x".repeat(32), Kind::Continuous).unwrap();
    page.account(0, "memory", Kind::Continuous).unwrap();
    assert_eq!(page.account(0, "memory", Kind::Instantaneous), Err(PageError::OtherKind));
    for number in 2..ACCOUNTS {
        page.account(0, &format!("r{number}"), Kind::Continuous).unwrap();
    }
    assert_eq!(page.account(0, "one_more", Kind::Continuous), Err(PageError::Full));
    assert_eq!(page.account(0, "memory", Kind::Continuous), Ok(1));
}

#[test]
fn another_file_is_no_page() {
    let file = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&file, size_of::<TenantPageLayout>().next_multiple_of(4096) as u64).unwrap();
    assert!(TenantPage::open(file.as_fd()).is_err(), "not sealed");
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
    assert!(TenantPage::open(file.as_fd()).is_err(), "no magic");
}

/// Every operation, killed at every point: after the repair nothing of the dead is left, the others lost nothing,
/// and the lock is free.
#[test]
fn death_between_any_two_stores_is_repaired() {
    let operations: [fn(&TenantPage); 8] = [
        |page| assert!(page.charge(1, &[0], 30).is_ok()),
        |page| page.uncharge(1, &[0], 20),
        |page| assert!(page.account(1, "other", Kind::Continuous).is_ok()),
        |page| assert!(page.charge(1, &[0], 1000).is_err()),
        |page| assert!(page.charge(1, &[0, 1], 24).is_ok()),
        |page| page.uncharge(1, &[0, 1], 20),
        |page| assert!(page.charge(1, &[0, 1], 36).is_err()),
        |page| assert_eq!(page.device_account(1, "memory", "other"), Ok(2)),
    ];
    for operation in operations {
        let mut points = 0;
        loop {
            let page = page(3);
            page.set_limit("memory", Some(100)).unwrap();
            page.set_device_limits(&[on_device("*", 60)]).unwrap();
            page.account(0, "memory", Kind::Continuous).unwrap();
            page.device_account(0, "memory", "card").unwrap();
            page.charge(0, &[0, 1], 11).unwrap();
            page.charge(1, &[0, 1], 25).unwrap();
            let survived = survives(points, || operation(&page));
            page.release(1);
            let now = balance(&page, "memory");
            assert_eq!((now.used, now.held), (11, 11), "after {points} points");
            let card = balance_on(&page, "card");
            assert_eq!((card.used, card.held), (11, 11), "after {points} points");
            assert_eq!(page.layout().lock.owner(), 0);
            page.charge(2, &[0, 1], 49).unwrap();
            assert!(page.charge(2, &[1], 1).is_err());
            page.charge(2, &[0], 40).unwrap();
            assert!(page.charge(2, &[0], 1).is_err());
            page.account(2, "other", Kind::Continuous).unwrap();
            if survived {
                break;
            }
            points += 1;
            assert!(points < 100, "it never ends well");
        }
        assert!(points >= 1, "no point was passed");
    }
}

/// One of two dies with the lock while the other waits for it.
#[test]
fn waiter_for_a_dead_holder_continues_after_the_repair() {
    let page = Arc::new(page(2));
    let memory = page.account(0, "memory", Kind::Continuous).unwrap();
    assert!(!survives(0, || assert!(page.charge(0, &[memory], 5).is_ok())));
    let other = page.clone();
    let waiter = std::thread::spawn(move || other.charge(1, &[memory], 7));
    std::thread::sleep(Duration::from_millis(50));
    assert!(!waiter.is_finished());
    page.release(0);
    waiter.join().unwrap().unwrap();
    assert_eq!(balance(&page, "memory").used, 7);
}

#[test]
fn the_node_does_not_wait_for_a_holder_that_does_not_go_on() {
    let page = page(2);
    let memory = page.account(0, "memory", Kind::Continuous).unwrap();
    page.charge(1, &[memory], 4).unwrap();
    assert!(!survives(0, || assert!(page.charge(0, &[memory], 5).is_ok())));
    page.release(1);
    assert_eq!(balance(&page, "memory").used, 0);
    page.set_limit("memory", Some(1)).unwrap();
    assert_eq!(page.set_limit("new", Some(1)), Err(PageError::Busy));
}

/// With any bytes that an API server writes into the page, the node's part neither panics nor hangs.
#[test]
fn garbage_page_harms_no_other_tenant() {
    let page = page(2);
    let words = size_of::<TenantPageLayout>() / 8;
    // SAFETY: the mapping has that many words, and atomics may be written by anybody.
    let all = unsafe { std::slice::from_raw_parts(std::ptr::from_ref(page.layout()).cast::<AtomicU64>(), words) };
    for pattern in [u64::MAX, 0x0101_0101_0101_0101, 1 << 63] {
        all.iter().for_each(|word| word.store(pattern, Ordering::Relaxed));
        page.release(0);
        page.release(u32::MAX);
        let _ = page.set_limit("memory", Some(1));
        assert!(page.balances().len() <= ACCOUNTS);
    }
}

proptest! {
    /// Random operations of four API servers on no device, on one, on another and on both, some killed at a random
    /// point: never over a limit, no drift.
    #[test]
    fn no_sequence_of_operations_and_deaths_drifts(
        limits in (1u64..2000, 1u64..1500, 1u64..1500),
        steps in prop::collection::vec(
            (0u32..4, 0usize..4, 0u64..600, 0u8..3, prop::option::weighted(0.3, 0u32..16)), 1..120),
    ) {
        const PLACES: [&[usize]; 4] = [&[0], &[0, 1], &[0, 2], &[0, 1, 2]];
        let page = page(4);
        let limits = [limits.0, limits.1, limits.2];
        page.set_limit("memory", Some(limits[0])).unwrap();
        page.set_device_limits(&[on_device("a", limits[1]), on_device("b", limits[2])]).unwrap();
        page.account(0, "memory", Kind::Continuous).unwrap();
        page.device_account(0, "memory", "a").unwrap();
        page.device_account(0, "memory", "b").unwrap();
        // The amounts that each slot holds in each place.
        let mut held = [[0u64; 4]; 4];
        let on = |held: &[[u64; 4]; 4], account: usize| -> u64 {
            let places = (0..4).filter(|place| PLACES[*place].contains(&account));
            places.map(|place| held.iter().map(|slot| slot[place]).sum::<u64>()).sum()
        };
        for (slot, place, amount, operation, death) in steps {
            let fits = PLACES[place].iter().all(|account| on(&held, *account) + amount <= limits[*account]);
            // Callers return what they hold there.
            let returned = amount.min(held[slot as usize][place]);
            let mut result = Ok(());
            let mut step = || match operation {
                0 => page.uncharge(slot, PLACES[place], returned),
                _ => result = page.charge(slot, PLACES[place], amount),
            };
            let alive = match death {
                Some(points) => survives(points, step),
                None => { step(); true }
            };
            let mine = &mut held[slot as usize];
            if !alive {
                page.release(slot);
                *mine = [0; 4];
            } else if operation == 0 {
                mine[place] -= returned;
            } else if result.is_ok() {
                mine[place] += amount;
            }
            for (account, now) in page.balances().iter().enumerate() {
                let total = on(&held, account);
                prop_assert_eq!((now.used, now.held), (total, total));
                prop_assert!(total <= limits[account] && now.peak <= limits[account]);
            }
            if alive && operation != 0 {
                prop_assert_eq!(result.is_ok(), fits);
            }
        }
    }
}

/// Processes that charge and return at random until they are killed.
#[test]
fn killed_processes_leave_nothing_behind() {
    const LIMIT: u64 = 10_000;
    let page = page(2);
    page.set_limit("memory", Some(LIMIT)).unwrap();
    page.set_device_limits(&[on_device("card", LIMIT / 2)]).unwrap();
    page.account(0, "memory", Kind::Continuous).unwrap();
    page.device_account(0, "memory", "card").unwrap();
    for round in 0..40u64 {
        let (mut begun, begins) = std::io::pipe().unwrap();
        let children: Vec<i32> = (0..2).map(|slot| hammer(&page, slot, round, &begins)).collect();
        begun.read_exact(&mut [0; 2]).unwrap();
        let until = std::time::Instant::now() + Duration::from_micros(500 + round * 137);
        while std::time::Instant::now() < until {
            assert!(page.layout().accounts[0].used.load(Ordering::Relaxed) <= LIMIT);
            assert!(page.layout().accounts[1].used.load(Ordering::Relaxed) <= LIMIT / 2);
        }
        for (slot, child) in children.into_iter().enumerate() {
            // SAFETY: a child of this process that is not reaped yet.
            unsafe {
                libc::kill(child, libc::SIGKILL);
                libc::waitpid(child, std::ptr::null_mut(), 0);
            }
            page.release(slot as u32);
            let now = balance(&page, "memory");
            assert!(now.used <= LIMIT && now.peak <= LIMIT);
        }
        let now = balance(&page, "memory");
        assert_eq!((now.used, now.held), (0, 0), "round {round}");
        let card = balance_on(&page, "card");
        assert_eq!((card.used, card.held), (0, 0), "round {round}");
        assert!(card.peak <= LIMIT / 2);
        assert_eq!(page.layout().lock.owner(), 0);
    }
    assert!(balance(&page, "memory").peak > 0, "the children did nothing");
}

/// A child process that never returns from here. It writes a byte to `begins` after its first charge.
fn hammer(page: &TenantPage, slot: u32, seed: u64, begins: &std::io::PipeWriter) -> i32 {
    // SAFETY: the child allocates nothing, takes no lock of this process and is killed; it uses the shared page, the
    // pipe and the futex call only.
    match unsafe { libc::fork() } {
        0 => {
            let _ = page.charge(slot, &[0, 1], 1);
            let _ = rustix::io::write(begins, &[0]);
            let mut state = seed * 2 + u64::from(slot) + 1;
            loop {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let amount = (state >> 33) % 4000;
                if state >> 63 == 0 {
                    let _ = page.charge(slot, &[0, 1], amount);
                } else {
                    page.uncharge(slot, &[0, 1], amount);
                }
            }
        }
        child => child,
    }
}
