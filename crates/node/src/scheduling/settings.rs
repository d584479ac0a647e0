//! How a device is scheduled: what node.toml says of it.

use super::ebpf::{Ebpf, LoadedPolicy};
pub use aviary_schedule::DeviceKind;
use aviary_schedule::{Credit, Discipline, Fair, RoundRobin, Settings, Wfq};
use serde::Deserialize;
use std::time::Duration;

/// FairGV's slice for devices that cannot be preempted.
const EXCLUSIVE_SLICE: Duration = Duration::from_millis(6);
/// FairGV's slice for devices that can be.
const PREEMPTIVE_SLICE: Duration = Duration::from_millis(30);

/// Several contexts with much code and graphs.
const USUAL_BESIDE: u64 = 4 << 30;

/// The disciplines by their names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheduler {
    /// The device is not scheduled.
    None,
    /// Start-time fair queueing (FairGV 3.2.1).
    Fair,
    /// A tenant that used more than its share waits (AvA 5.2.2), looked at in fixed intervals.
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
    /// The same with Pegasus' rule: a tenant that comes with more credit takes the device at once. For comparison only.
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
    /// `None`: as is usual for the kind of the device.
    pub slice: Option<Duration>,
    /// How long a session without work is taken to want the device, because more usually follows.
    pub linger: Duration,
    /// For how long the threads of a program that calls often stay awake while it may use the device.
    pub awake: Duration,
    /// How long beyond its slice a tenant may keep the device from others before its session is ended; zero: as long
    /// as it likes.
    pub hold_limit: Duration,
    /// Work that a session may have in flight which another one can come before; zero: as much as fits into its slice.
    pub latency: Duration,
    /// `None`: as the API's specification says.
    pub kind: Option<DeviceKind>,
    /// For `Ebpf`.
    pub policy: Option<LoadedPolicy>,
    /// Bytes of its memory that sessions may have on it at a time; `None`: the node does not share its memory out.
    pub memory: Option<u64>,
    /// How much of it sessions may have, on it and in the host's memory, in thousandths of that.
    pub oversubscribe: u32,
    /// Bytes that an API server may have there besides what its sessions allocate: contexts, code, graphs. One that has more after its
    /// sessions have left is ended.
    pub beside: u64,
    /// Bytes of its memory that are charged for each context; `None`: as many as were measured.
    pub context: Option<u64>,
}

impl Default for DeviceSettings {
    fn default() -> Self {
        Self {
            scheduler: Scheduler::Fair,
            slice: None,
            linger: Duration::from_micros(200),
            awake: usual_awake(),
            hold_limit: Duration::from_secs(10),
            latency: Duration::from_millis(1),
            kind: None,
            policy: None,
            memory: None,
            oversubscribe: 1000,
            beside: USUAL_BESIDE,
            context: None,
        }
    }
}

/// No thread stays awake where CPUs are few: there they are needed for others, and may be the device.
fn usual_awake() -> Duration {
    const MIN_CPUS_TO_SPIN: usize = 8;
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    if cpus < MIN_CPUS_TO_SPIN { Duration::ZERO } else { Duration::from_micros(300) }
}

pub(super) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl DeviceSettings {
    /// The slice on a device of this kind, where its own kind is not configured.
    pub fn slice(&self, usual: DeviceKind) -> Duration {
        self.slice.unwrap_or(match self.kind.unwrap_or(usual) {
            DeviceKind::Exclusive => EXCLUSIVE_SLICE,
            DeviceKind::Preemptive => PREEMPTIVE_SLICE,
        })
    }

    pub(super) fn arbitration(&self, usual: DeviceKind) -> Settings {
        Settings {
            kind: self.kind.unwrap_or(usual),
            quantum: nanoseconds(self.slice(usual)).max(1),
            latency: nanoseconds(self.latency),
            hold_limit: nanoseconds(self.hold_limit),
        }
    }

    /// `None`: the device is not scheduled.
    pub(super) fn discipline(&self, usual: DeviceKind) -> Option<Box<dyn Discipline>> {
        let slice = nanoseconds(self.slice(usual)).max(1);
        Some(match self.scheduler {
            Scheduler::None => return None,
            Scheduler::Fair if self.slice.is_none() && self.kind.unwrap_or(usual) == DeviceKind::Preemptive => {
                Box::new(Fair::in_rounds(slice))
            }
            Scheduler::Fair => Box::new(Fair::new(slice)),
            Scheduler::WfqPoll => Box::new(Wfq::polling(slice)),
            Scheduler::WfqAimd => Box::new(Wfq::adaptive(slice)),
            Scheduler::RoundRobin => Box::new(RoundRobin::equal(slice)),
            Scheduler::Slices => Box::new(RoundRobin::weighted(slice)),
            Scheduler::Priority => Box::new(RoundRobin::by_priority(slice)),
            // Without a program nothing can be scheduled: the configuration refuses that.
            Scheduler::Ebpf => Box::new(Ebpf::new(slice, self.policy.clone()?)),
            Scheduler::Credit => Box::new(Credit::new(slice, false)),
            Scheduler::StrictCoscheduling => Box::new(Credit::new(slice, true)),
        })
    }
}
