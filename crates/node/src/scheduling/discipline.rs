//! Who gets a device next: the interface of the disciplines, which are pure bookkeeping.
//!
//! Times are nanoseconds of one clock that starts anywhere.

use super::ebpf::LoadedPolicy;
use aviary_gate::{DeviceSeat, Manner};
use serde::Deserialize;
use std::{fmt, sync::atomic::Ordering::Relaxed, time::Duration};

/// One tenant on one device, as long as the device exists.
pub type Tenant = usize;

/// What a tenant is entitled to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// Relative to the other tenants'; at least 1.
    pub weight: u32,
    /// Higher goes first where priorities count.
    pub priority: i32,
}

impl Default for Share {
    fn default() -> Self {
        Self { weight: 1, priority: 0 }
    }
}

/// What a tenant did with a device since it was charged last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Spent {
    /// Nanoseconds for which the device worked.
    pub used: u64,
    /// Nanoseconds for which the tenant held it, perhaps without using it; counted at the end of a slice.
    pub held: u64,
    /// Calls that gave it work.
    pub calls: u64,
}

/// What a discipline decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pick {
    /// This tenant may use the device for so many nanoseconds.
    Grant(Tenant, u64),
    /// None of them before then.
    Nobody { until: u64 },
}

pub trait Discipline: fmt::Debug + Send {
    /// A tenant is there, perhaps with another share than before.
    fn set_share(&mut self, tenant: Tenant, share: Share);
    /// A tenant that had nothing to do wants the device.
    fn wakes(&mut self, tenant: Tenant, now: u64);
    /// A tenant wants nothing any longer.
    fn rests(&mut self, _tenant: Tenant) {}
    /// The device did nothing for so many nanoseconds, in which nobody waited for it.
    fn stood_still(&mut self, _time: u64) {}
    fn charge(&mut self, tenant: Tenant, spent: Spent, now: u64);
    /// Which of `wanting`, which is not empty, goes next.
    fn pick(&mut self, wanting: &[Tenant], now: u64) -> Pick;
    /// Whether the arrival of `tenant` ends the slice of `holder` early.
    fn preempts(&mut self, _tenant: Tenant, _holder: Tenant, _now: u64) -> bool {
        false
    }
    /// True if the arrival of a tenant can end another's slice, so that what that one has in flight is to be short.
    fn has_first_ones(&self) -> bool {
        false
    }
    /// True if `tenant` is admitted at once beside `holder` on a device that preempts.
    fn precedes(&mut self, tenant: Tenant, holder: Tenant, now: u64) -> bool {
        self.preempts(tenant, holder, now)
    }
    fn manner(&self) -> Manner {
        Manner::Measured
    }
}

/// The way of a device with the work of several processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceKind {
    /// One after the other: a session that has the device keeps it until its work is done.
    Exclusive,
    /// It gives each a part of its time by itself, also in the middle of long work: CUDA devices.
    Preemptive,
}

/// The disciplines by their names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheduler {
    /// Nobody schedules the device.
    None,
    /// Start-time fair queueing (FairGV 3.2.1).
    Fair,
    /// Who used more than its share waits (AvA 5.2.2), looked at in fixed intervals.
    WfqPoll,
    /// As above, with a delay that adapts.
    WfqAimd,
    /// Equal slices in turn.
    RoundRobin,
    /// Slices in turn, as long as the weights say (Optimus 6.8).
    Slices,
    /// The highest priority first, in turn among equals (Optimus 6.8).
    Priority,
    /// As a verified program says (docs/policies.md).
    Ebpf,
    /// Xen's credits, blind to what is queued on the device (FairGV 5.4). For comparison only.
    Credit,
    /// The same with Pegasus' rule: who comes with more credit takes the device at once. For comparison only.
    StrictCoscheduling,
}

impl std::str::FromStr for Scheduler {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let name = serde::de::value::StrDeserializer::<serde::de::value::Error>::new(text);
        Scheduler::deserialize(name).map_err(|error| error.to_string())
    }
}

/// How one device is scheduled.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceSettings {
    pub scheduler: Scheduler,
    pub slice: Duration,
    /// How long a holder without work keeps the device, because more usually follows.
    pub linger: Duration,
    /// For how long the threads of a program that calls often stay awake while it has the device.
    pub awake: Duration,
    /// How long beyond its slice a holder may keep the device from others before its session is ended; zero: as long
    /// as it likes.
    pub hold_limit: Duration,
    /// Work that a session may have in flight which another one can come before; zero: as much as fits into its slice.
    pub latency: Duration,
    /// `None`: as the API's specification says.
    pub kind: Option<DeviceKind>,
    /// For `Ebpf`.
    pub policy: Option<LoadedPolicy>,
}

impl Default for DeviceSettings {
    /// FairGV's slice for devices that cannot be preempted.
    fn default() -> Self {
        let (slice, linger) = (Duration::from_millis(6), Duration::from_micros(200));
        Self {
            scheduler: Scheduler::Fair,
            slice,
            linger,
            awake: usual_awake(),
            hold_limit: Duration::from_secs(10),
            latency: Duration::from_millis(1),
            kind: None,
            policy: None,
        }
    }
}

/// Nobody stays awake where processors are few: there they are needed for others, and may be the device.
fn usual_awake() -> Duration {
    const MANY: usize = 8;
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    if processors < MANY { Duration::ZERO } else { Duration::from_micros(300) }
}

impl DeviceSettings {
    /// Writes what a session's API server has to know.
    pub fn tell(&self, seat: &DeviceSeat, discipline: &dyn Discipline) {
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        seat.set_manner(discipline.manner());
        seat.linger.store(nanoseconds(self.linger), Relaxed);
        seat.awake.store(nanoseconds(self.awake), Relaxed);
        let depth = if discipline.has_first_ones() { nanoseconds(self.latency) } else { 0 };
        seat.depth.store(depth, Relaxed);
    }

    pub fn discipline(&self) -> Option<Box<dyn Discipline>> {
        use super::{credit::Credit, ebpf::Ebpf, fair::Fair, turns::Turns, wfq::Wfq};
        let slice = u64::try_from(self.slice.as_nanos()).unwrap_or(u64::MAX).max(1);
        Some(match self.scheduler {
            Scheduler::None => return None,
            Scheduler::Fair => Box::new(Fair::new(slice)),
            Scheduler::WfqPoll => Box::new(Wfq::polling(slice)),
            Scheduler::WfqAimd => Box::new(Wfq::adaptive(slice)),
            Scheduler::RoundRobin => Box::new(Turns::equal(slice)),
            Scheduler::Slices => Box::new(Turns::weighted(slice)),
            Scheduler::Priority => Box::new(Turns::by_priority(slice)),
            // Without a program nobody can be scheduled: the configuration refuses that.
            Scheduler::Ebpf => Box::new(Ebpf::new(slice, self.policy.clone()?)),
            Scheduler::Credit => Box::new(Credit::new(slice, false)),
            Scheduler::StrictCoscheduling => Box::new(Credit::new(slice, true)),
        })
    }
}
