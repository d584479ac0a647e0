//! What a verified program says (AvA 4.4, Figure 7; docs/policies.md).

use aviary_policy::{Context, HOLD, Policy, PolicyError, PolicySlot, resource_id};
use aviary_schedule::{Charge, Decision, Discipline, JobIndex, Precedence, Share};
use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Nanoseconds until the program is asked again after it has held back all tenants.
const RETRY_PICK_NS: u64 = 500_000;

/// A program that runs, and the file it came from.
#[derive(Clone)]
pub struct LoadedPolicy {
    file: PathBuf,
    slot: Arc<PolicySlot>,
}

impl LoadedPolicy {
    /// Compiles (a `.c` file), verifies and loads.
    pub fn load(file: &Path) -> Result<Self, PolicyError> {
        Ok(Self { file: file.to_owned(), slot: Arc::new(PolicySlot::new(Policy::load(file)?)) })
    }

    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Puts what the file is now in the place of the running program, which goes on if that is refused.
    pub fn load_again(&self) -> Result<(), String> {
        let policy = Policy::load(&self.file).map_err(|error| format!("{}: {error}", self.file.display()))?;
        self.slot.swap(policy);
        Ok(())
    }
}

/// The same running program, whatever its file says by now.
impl PartialEq for LoadedPolicy {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.slot, &other.slot)
    }
}

impl fmt::Debug for LoadedPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LoadedPolicy({})", self.file.display())
    }
}

#[derive(Debug)]
pub struct Ebpf {
    slice: u64,
    policy: LoadedPolicy,
    tenants: Vec<EbpfTenant>,
    turn: u64,
}

#[derive(Debug, Clone)]
struct EbpfTenant {
    share: Share,
    used: u64,
    /// Since its last turn, or since it woke up.
    waits_since: u64,
    last: u64,
}

impl Ebpf {
    pub fn new(slice: u64, policy: LoadedPolicy) -> Ebpf {
        Ebpf { slice, policy, tenants: Vec::new(), turn: 0 }
    }

    fn urgency(&self, tenant: JobIndex, now: u64) -> i64 {
        let waiting_since_ns = self.tenants[tenant].waits_since;
        self.policy.slot.schedule(&Context { waiting_since_ns, queued: 1, ..self.context(tenant, now) })
    }

    fn context(&self, tenant: JobIndex, now: u64) -> Context {
        let entry = &self.tenants[tenant];
        Context {
            // Programs keep totals under 0.
            tenant: tenant as u64 + 1,
            weight: entry.share.weight.max(1).into(),
            // Programs compare it; what is below zero would be large there.
            priority: u64::try_from(entry.share.priority).unwrap_or(0),
            now_ns: now,
            device_time_ns: entry.used,
            ..Context::default()
        }
    }
}

impl Discipline for Ebpf {
    fn set_share(&mut self, tenant: JobIndex, share: Share) {
        if self.tenants.len() <= tenant {
            self.tenants.resize(tenant + 1, EbpfTenant { share, used: 0, waits_since: 0, last: 0 });
        }
        self.tenants[tenant].share = share;
    }

    fn enqueue(&mut self, tenant: JobIndex, now: u64) {
        self.tenants[tenant].waits_since = now;
    }

    fn charge(&mut self, tenant: JobIndex, charge: Charge, now: u64) {
        let entry = &mut self.tenants[tenant];
        entry.used = entry.used.saturating_add(charge.used);
        entry.waits_since = now;
        let mut context = self.context(tenant, now);
        // There is room for eight.
        context.add(resource_id("device_time"), charge.used);
        context.add(resource_id("kernel_calls"), charge.calls);
        self.policy.slot.consume(&context);
    }

    fn may_precede(&self, _other: Share, _job: Share) -> bool {
        true
    }

    /// A program that says that a tenant that comes is more urgent than the one that has the device ends that one's turn.
    fn precedence(&mut self, tenant: JobIndex, holder: JobIndex, now: u64) -> Precedence {
        let comes = self.urgency(tenant, now);
        let first = tenant != holder && comes != HOLD && comes > self.urgency(holder, now);
        if first { Precedence::First } else { Precedence::Behind }
    }

    fn pick(&mut self, wanting: &[JobIndex], now: u64) -> Decision {
        let asked =
            wanting.iter().map(|tenant| (self.urgency(*tenant, now), *tenant)).filter(|(urgency, _)| *urgency != HOLD);
        // In turn among equals.
        let first = asked.max_by_key(|(urgency, tenant)| (*urgency, std::cmp::Reverse(self.tenants[*tenant].last)));
        let Some((_, tenant)) = first else { return Decision::IdleUntil { until: now.saturating_add(RETRY_PICK_NS) } };
        self.turn += 1;
        self.tenants[tenant].last = self.turn;
        Decision::Grant(tenant, self.slice)
    }
}
