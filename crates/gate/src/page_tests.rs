use super::*;
use crate::{Gate, Resource, Seat};
use proptest::prelude::*;
use rustix::fs::{MemfdFlags, SealFlags};
use std::cell::Cell;
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
    page.seat(seats - 1);
    page
}

fn balance(page: &TenantPage, name: &str) -> Balance {
    page.balances().into_iter().find(|balance| balance.name == name).unwrap()
}

#[test]
fn all_sessions_share_one_limit_and_get_the_last_byte() {
    let (page, fd) = TenantPage::create().unwrap();
    page.seat(1);
    page.set_limit("memory", Some(10)).unwrap();
    let gate = |slot| {
        let seat = Seat::new(TenantPage::open(fd.as_fd()).unwrap(), slot).unwrap();
        Gate::of_tenant([Resource { name: "memory", kind: Kind::Continuous }], &seat).unwrap()
    };
    let (one, two) = (gate(0), gate(1));
    one.charge(0, 7).unwrap();
    assert_eq!(two.charge(0, 4), Err(Refused { used: 7, limit: 10 }));
    two.charge(0, 3).unwrap();
    assert_eq!(one.charge(0, 1), Err(Refused { used: 10, limit: 10 }));
    assert_eq!((one.accounts()[0].used(), two.accounts()[0].used()), (7, 3));
    assert_eq!(one.accounts()[0].limit(), Some(10));
    one.uncharge(0, 7);
    two.charge(0, 7).unwrap();
    let now = balance(&page, "memory");
    assert_eq!((now.used, now.held, now.peak, now.refused), (10, 10, 10, 2));
}

#[test]
fn a_lower_limit_takes_nothing_back_and_grants_nothing() {
    let page = page(1);
    let memory = page.account(0, "memory", Kind::Continuous).unwrap();
    page.charge(0, memory, 8).unwrap();
    page.set_limit("memory", Some(5)).unwrap();
    assert!(page.charge(0, memory, 1).is_err());
    assert_eq!(balance(&page, "memory").used, 8);
    page.uncharge(0, memory, 4);
    page.charge(0, memory, 1).unwrap();
    assert!(page.charge(0, memory, 1).is_err());
    page.set_limit("memory", None).unwrap();
    page.charge(0, memory, 1000).unwrap();
}

#[test]
fn no_more_is_returned_than_the_slot_holds() {
    let page = page(2);
    let memory = page.account(0, "memory", Kind::Continuous).unwrap();
    page.charge(0, memory, 8).unwrap();
    page.charge(1, memory, 5).unwrap();
    page.uncharge(0, memory, u64::MAX);
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
    let seat = Seat::new(page, 1).unwrap();
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
    old.charge(0, memory, 5).unwrap();
    assert!(old.charge(0, memory, 1).is_err());
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
    rustix::fs::ftruncate(&file, size_of::<Layout>().next_multiple_of(4096) as u64).unwrap();
    assert!(TenantPage::open(file.as_fd()).is_err(), "not sealed");
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
    assert!(TenantPage::open(file.as_fd()).is_err(), "no magic");
}

/// Every operation, killed at every point: after the repair nothing of the dead is left, the others lost nothing,
/// and the lock is free.
#[test]
fn death_between_any_two_stores_is_repaired() {
    let operations: [fn(&TenantPage); 4] = [
        |page| assert!(page.charge(1, 0, 30).is_ok()),
        |page| page.uncharge(1, 0, 20),
        |page| assert!(page.account(1, "other", Kind::Continuous).is_ok()),
        |page| assert!(page.charge(1, 0, 1000).is_err()),
    ];
    for operation in operations {
        let mut points = 0;
        loop {
            let page = page(3);
            page.set_limit("memory", Some(100)).unwrap();
            page.account(0, "memory", Kind::Continuous).unwrap();
            page.charge(0, 0, 11).unwrap();
            page.charge(1, 0, 25).unwrap();
            let survived = survives(points, || operation(&page));
            page.release(1);
            let now = balance(&page, "memory");
            assert_eq!((now.used, now.held), (11, 11), "after {points} points");
            assert_eq!(page.layout().lock.owner(), 0);
            page.charge(2, 0, 89).unwrap();
            assert!(page.charge(2, 0, 1).is_err());
            page.account(2, "other", Kind::Continuous).unwrap();
            if survived {
                break;
            }
            points += 1;
        }
        assert!(points >= 1, "no point was passed");
    }
}

/// One of two dies with the lock while the other waits for it.
#[test]
fn who_waits_for_a_dead_holder_goes_on_after_the_repair() {
    let page = Arc::new(page(2));
    let memory = page.account(0, "memory", Kind::Continuous).unwrap();
    assert!(!survives(0, || assert!(page.charge(0, memory, 5).is_ok())));
    let other = page.clone();
    let waiter = std::thread::spawn(move || other.charge(1, memory, 7));
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
    page.charge(1, memory, 4).unwrap();
    assert!(!survives(0, || assert!(page.charge(0, memory, 5).is_ok())));
    page.release(1);
    assert_eq!(balance(&page, "memory").used, 0);
    page.set_limit("memory", Some(1)).unwrap();
    assert_eq!(page.set_limit("new", Some(1)), Err(PageError::Busy));
}

/// Whatever an API server writes into the page, the node's part neither panics nor hangs.
#[test]
fn a_page_full_of_nonsense_harms_nobody_else() {
    let page = page(2);
    let words = size_of::<Layout>() / 8;
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
    /// Random operations of four API servers, some killed at a random point: never over the limit, no drift.
    #[test]
    fn no_sequence_of_operations_and_deaths_drifts(
        limit in 1u64..2000,
        steps in prop::collection::vec((0u32..4, 0u64..600, 0u8..3, prop::option::weighted(0.3, 0u32..8)), 1..120),
    ) {
        let page = page(4);
        page.set_limit("memory", Some(limit)).unwrap();
        page.account(0, "memory", Kind::Continuous).unwrap();
        let mut held = [0u64; 4];
        for (slot, amount, operation, death) in steps {
            let fits = held.iter().sum::<u64>() + amount <= limit;
            let mine = &mut held[slot as usize];
            let mut result = Ok(());
            let mut step = || match operation {
                0 => page.uncharge(slot, 0, amount),
                _ => result = page.charge(slot, 0, amount),
            };
            let alive = match death {
                Some(points) => survives(points, step),
                None => { step(); true }
            };
            if !alive {
                page.release(slot);
                *mine = 0;
            } else if operation == 0 {
                *mine -= amount.min(*mine);
            } else if result.is_ok() {
                *mine += amount;
            }
            let total: u64 = held.iter().sum();
            let now = balance(&page, "memory");
            prop_assert_eq!((now.used, now.held), (total, total));
            prop_assert!(total <= limit && now.peak <= limit);
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
    page.account(0, "memory", Kind::Continuous).unwrap();
    for round in 0..40u64 {
        let children: Vec<i32> = (0..2).map(|slot| hammer(&page, slot, round)).collect();
        let until = std::time::Instant::now() + Duration::from_micros(500 + round * 137);
        while std::time::Instant::now() < until {
            assert!(page.layout().accounts[0].used.load(Ordering::Relaxed) <= LIMIT);
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
        assert_eq!(page.layout().lock.owner(), 0);
    }
    assert!(balance(&page, "memory").peak > 0, "the children did nothing");
}

/// A child process that never returns from here.
fn hammer(page: &TenantPage, slot: u32, seed: u64) -> i32 {
    // SAFETY: the child allocates nothing, takes no lock of this process and is killed; it uses the shared page and
    // the futex call only.
    match unsafe { libc::fork() } {
        0 => {
            let mut state = seed * 2 + u64::from(slot) + 1;
            loop {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let amount = (state >> 33) % 4000;
                if state >> 63 == 0 {
                    let _ = page.charge(slot, 0, amount);
                } else {
                    page.uncharge(slot, 0, amount);
                }
            }
        }
        child => child,
    }
}
