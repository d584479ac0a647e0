use super::*;
use crate::{Gate, Kind, Resource, TenantSlot};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicU64;

const MEMORY: Resource<'static> = Resource { name: "memory", kind: Kind::Continuous };
const CALLS: Resource<'static> = Resource { name: "calls", kind: Kind::Instantaneous };

struct Tenant {
    page: TenantPage,
    descriptor: OwnedFd,
    watch: Watch,
    taken: BTreeSet<u32>,
}

impl Tenant {
    /// With 100 of memory, 60 on each device, and three API servers.
    fn new() -> Tenant {
        let (page, descriptor) = TenantPage::create().unwrap();
        let taken: BTreeSet<u32> = (0..3).collect();
        taken.iter().for_each(|slot| page.note_slot(*slot));
        let mut tenant = Tenant { page, descriptor, watch: Watch::default(), taken };
        tenant.limit(100);
        tenant
    }

    fn limit(&mut self, memory: u64) {
        let on_each = DeviceLimit { device: "*".into(), resource: "memory".into(), limit: 60 };
        let declared = ["memory", "calls"].map(str::to_owned).into();
        let rules = Rules {
            limits: [("memory".to_owned(), memory)].into(),
            device_limits: vec![on_each],
            declared: Some(declared),
        };
        self.page.set_device_limits(&rules.device_limits).unwrap();
        self.page.set_limit("memory", Some(memory)).unwrap();
        self.watch.set_rules(rules);
        self.watch.begin_anew(&self.page, &self.taken);
    }

    fn gate(&self, slot: u32) -> Gate {
        let page = TenantPage::open(self.descriptor.as_fd()).unwrap();
        Gate::of_tenant([MEMORY, CALLS], &TenantSlot::new(page, slot).unwrap()).unwrap()
    }

    fn look(&mut self) -> Findings {
        self.watch.look(&self.page, &self.taken)
    }

    fn words(&self) -> &[AtomicU64] {
        let layout = self.page.layout();
        let words = size_of_val(layout) / 8;
        // SAFETY: the layout has that many words, all of them atomics that anybody may write.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(layout).cast(), words) }
    }

    fn index(&self, name: &str, device: &str) -> usize {
        self.page.find(name, device).unwrap()
    }
}

#[test]
fn honest_api_servers_are_never_found_out() {
    let mut tenant = Tenant::new();
    let (one, two) = (tenant.gate(0), tenant.gate(1));
    let card = one.residency(0, &["card".to_owned()]).unwrap();
    for round in 0..20 {
        one.charge(card, 10).unwrap();
        two.charge(0, 30).unwrap();
        let _ = two.charge(0, 90);
        one.consume(1, round).unwrap();
        assert_eq!(tenant.look(), Findings::default(), "round {round}");
        one.uncharge(card, 10);
        assert_eq!(tenant.look(), Findings::default(), "round {round}");
        two.uncharge(0, 30);
    }
    // A limit below what is held, and an API server that ends.
    two.charge(0, 80).unwrap();
    tenant.limit(50);
    assert_eq!(tenant.look(), Findings::default());
    one.charge(0, 1).unwrap_err();
    tenant.page.move_slot(1, 2).unwrap();
    assert_eq!(tenant.look(), Findings::default());
    tenant.page.release(1);
    tenant.taken.remove(&1);
    assert_eq!(tenant.look(), Findings::default());
}

#[test]
fn a_limit_that_an_api_server_has_written_holds_until_the_next_look() {
    let mut tenant = Tenant::new();
    let gate = tenant.gate(0);
    gate.residency(0, &["card".to_owned()]).unwrap();
    assert_eq!(tenant.look(), Findings::default());
    for word in tenant.words() {
        for limit in [100, 60] {
            let _ = word.compare_exchange(limit, 1 << 40, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
    assert!(tenant.look().rewritten.is_some());
    let limits: Vec<_> = tenant.page.balances().iter().map(|balance| (balance.name.clone(), balance.limit)).collect();
    assert!(
        limits.contains(&("memory".into(), Some(100))) && limits.contains(&("memory".into(), Some(60))),
        "{limits:?}"
    );
    assert!(gate.charge(0, 101).is_err());
    let other = gate.residency(0, &["other".to_owned()]).unwrap();
    assert!(gate.charge(other, 61).is_err(), "a device that comes later");
    assert_eq!(tenant.look(), Findings::default());
}

#[test]
fn who_takes_without_room_is_named_and_nobody_else() {
    let mut tenant = Tenant::new();
    let (honest, taker) = (tenant.gate(0), tenant.gate(1));
    honest.charge(0, 90).unwrap();
    assert_eq!(tenant.look(), Findings::default());
    let index = tenant.index("memory", "");
    let layout = tenant.page.layout();
    // It writes nothing but its own amount, and the sum.
    layout.held[1][index].store(50, Ordering::Relaxed);
    layout.accounts[index].used.store(140, Ordering::Relaxed);
    assert_eq!(tenant.look().takers, [(1, "memory".to_owned())]);
    assert_eq!(tenant.look().takers, [], "told once");
    drop(taker);
    // The sum alone: honest programs would get what is in use.
    let layout = tenant.page.layout();
    layout.held[1][index].store(0, Ordering::Relaxed);
    layout.accounts[index].used.store(0, Ordering::Relaxed);
    assert_eq!(tenant.look().rewritten, Some("a sum"));
    assert!(honest.charge(0, 11).is_err());
}

#[test]
fn names_kinds_and_totals_are_what_they_were() {
    let mut tenant = Tenant::new();
    let gate = tenant.gate(0);
    gate.charge(0, 40).unwrap();
    gate.consume(1, 7).unwrap();
    tenant.page.consume(tenant.index("calls", ""), 7).unwrap();
    assert_eq!(tenant.look(), Findings::default());
    let before = tenant.page.balances();
    let (memory, calls) = (tenant.index("memory", ""), tenant.index("calls", ""));
    let changes: [&dyn Fn(&crate::shared::page::TenantPageLayout); 9] = [
        &|layout| layout.accounts[memory].name.store("junk"),
        &|layout| layout.accounts[memory].device.store("junk"),
        &|layout| layout.accounts[memory].kind.store(2, Ordering::Relaxed),
        &|layout| layout.accounts[calls].used.store(0, Ordering::Relaxed),
        &|layout| layout.accounts[calls].used.store(u64::MAX, Ordering::Relaxed),
        &|layout| layout.accounts[memory].refused.store(17_285_634_111_312_670_308, Ordering::Relaxed),
        &|layout| layout.accounts[memory].peak.store(1 << 50, Ordering::Relaxed),
        &|layout| layout.count.store(0, Ordering::Relaxed),
        &|layout| layout.held[1000][memory].store(5, Ordering::Relaxed),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        change(tenant.page.layout());
        tenant.page.note_slot(1000);
        assert!(tenant.look().rewritten.is_some(), "change {number}");
        assert_eq!(tenant.page.balances(), before, "change {number}");
        assert_eq!(tenant.look(), Findings::default(), "change {number}");
    }
}

#[test]
fn noise_in_the_whole_page_leaves_what_the_node_knows() {
    let mut tenant = Tenant::new();
    let gate = tenant.gate(0);
    gate.charge(0, 40).unwrap();
    assert_eq!(tenant.look(), Findings::default());
    let known = tenant.page.balances().len();
    let mut state = 7u64;
    let words = tenant.words();
    for word in words {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        word.store(state, Ordering::Relaxed);
    }
    tenant.page.layout().count.store(ACCOUNTS as u32, Ordering::Relaxed);
    assert!(tenant.look().rewritten.is_some());
    let balances = tenant.page.balances();
    let honest: Vec<_> = balances.iter().map(|one| (one.name.as_str(), one.limit)).collect();
    assert_eq!((balances.len(), honest[0]), (known, ("memory", Some(100))), "{honest:?}");
    // The next programs of the tenant have room for their accounts.
    tenant.gate(1);
    let kept = |name: &str, device| tenant.watch.keeps(name, device);
    assert!(kept("memory", None) && kept("calls", None) && kept("memory", Some("card")));
    assert!(!kept("junk", None) && !kept("calls", Some("card")));
}

#[test]
fn a_lock_of_nobody_is_freed_and_who_keeps_it_is_told() {
    let mut tenant = Tenant::new();
    assert!(tenant.page.layout().lock.try_lock(77));
    assert_eq!(tenant.look().rewritten, Some("the lock"));
    let gate = tenant.gate(0);
    gate.charge(0, 1).unwrap();
    // Of slot 1, which is there.
    assert!(tenant.page.layout().lock.try_lock(2));
    for _ in 1..LOCKED_LOOKS {
        assert_eq!(tenant.look(), Findings::default());
    }
    assert_eq!(tenant.look().keeper, Some(1));
    assert_eq!(tenant.look(), Findings::default(), "told once");
    tenant.page.release(1);
    assert_eq!(tenant.look(), Findings::default());
}
