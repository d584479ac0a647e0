//! What cards have of the rules of devices.

use crate::{
    scheduling::DeviceSettings,
    scheduling::{Rules, Scheduler},
};
use aviary_control::{PortRule, PortScheduler};

/// The schedulers of ports. A card's clock stands still while no job runs: schedulers that let a device stand idle are not for it.
pub fn port_rules(rules: &Rules, notes: &mut Vec<String>) -> Vec<PortRule> {
    let of = |(name, settings): &(String, DeviceSettings)| {
        let scheduler = match settings.scheduler {
            Scheduler::None | Scheduler::Fair => PortScheduler::Fair,
            Scheduler::RoundRobin => PortScheduler::RoundRobin,
            Scheduler::Slices => PortScheduler::Slices,
            Scheduler::Priority => PortScheduler::Priority,
            Scheduler::WfqPoll
            | Scheduler::WfqAimd
            | Scheduler::Ebpf
            | Scheduler::Credit
            | Scheduler::StrictCoscheduling => {
                notes.push(format!(
                    "device `{name}`: this scheduler is not available for ports of FPGA cards: fair is used (or choose round-robin, slices or priority)"
                ));
                PortScheduler::Fair
            }
        };
        let slice_ns = settings.slice.map(|slice| u64::try_from(slice.as_nanos()).unwrap_or(u64::MAX));
        PortRule { name: name.clone(), scheduler, slice_ns }
    };
    rules.0.iter().map(of).collect()
}
