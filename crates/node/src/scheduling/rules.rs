//! The settings of devices by their names.

use super::{
    ebpf::LoadedPolicy,
    settings::{DeviceKind, DeviceSettings, Scheduler},
};
use aviary_control::{DeviceContext, SharedDevice};
use aviary_gate::fits;
use std::time::Duration;

/// DeviceSettings by the names of devices: the first rule that fits.
#[derive(Debug, Clone, Default)]
pub struct Rules(pub Vec<(String, DeviceSettings)>);

impl Rules {
    /// The program of the rule with this name.
    pub fn policy(&self, name: &str) -> Option<&LoadedPolicy> {
        let (_, settings) = self.0.iter().find(|(pattern, _)| pattern == name)?;
        settings.policy.as_ref()
    }

    /// The devices whose memory the node shares out.
    pub fn shared(&self) -> Vec<SharedDevice> {
        let shared = self.0.iter().filter_map(|(name, settings)| Some((name, settings.memory?)));
        shared.map(|(name, memory)| SharedDevice { name: name.clone(), memory }).collect()
    }

    /// What contexts are charged with, where the file says so.
    pub fn contexts(&self) -> Vec<DeviceContext> {
        let told = self.0.iter().filter_map(|(name, settings)| Some((name, settings.context?)));
        told.map(|(name, bytes)| DeviceContext { name: name.clone(), bytes }).collect()
    }

    /// A name may end with `*`.
    pub fn of(&self, device: &str) -> Option<&DeviceSettings> {
        self.0.iter().find(|(pattern, _)| fits(pattern, device)).map(|(_, settings)| settings)
    }

    /// The shortest slice of a scheduled device.
    pub fn shortest_slice(&self) -> Option<Duration> {
        let scheduled = self.0.iter().filter(|(_, settings)| settings.scheduler != Scheduler::None);
        scheduled.map(|(_, settings)| settings.slice(DeviceKind::Exclusive)).min()
    }
}
