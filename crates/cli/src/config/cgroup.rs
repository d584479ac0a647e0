//! `[cgroup]` of node.toml: control groups of API servers.

use crate::config::amount::Amount;
use anyhow::{Context, bail};
use aviary_node::{GroupLimits, GroupSettings, delegated_groups};
use serde::Deserialize;
use std::{collections::BTreeMap, path::PathBuf};

/// Processes and threads of one tenant that are usual.
const USUAL_PROCESSES: u64 = 16_384;

/// Weights that the kernel takes.
const WEIGHTS: std::ops::RangeInclusive<u64> = 1..=10_000;

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CgroupConfig {
    /// `auto`, `on` or `off`.
    mode: Option<String>,
    /// A directory of cgroup v2 that the node may use; without it, its own one if that was delegated.
    path: Option<PathBuf>,
    /// Of each tenant.
    memory: Option<Amount>,
    processes: Option<u64>,
    cpu_weight: Option<u64>,
    /// Of each guest process.
    #[serde(default)]
    session: GroupConfig,
    /// Of tenants that have others, by their names.
    #[serde(default)]
    tenants: BTreeMap<String, GroupConfig>,
}

/// Limits of one group.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct GroupConfig {
    memory: Option<Amount>,
    processes: Option<u64>,
    cpu_weight: Option<u64>,
}

impl GroupConfig {
    fn limits(&self) -> GroupLimits {
        let GroupConfig { memory, processes, cpu_weight } = self;
        GroupLimits { memory: memory.map(|amount| amount.0), processes: *processes, cpu_weight: *cpu_weight }
    }
}

impl CgroupConfig {
    /// `None`: API servers are in no groups of their own.
    ///
    /// # Errors
    /// A setting is wrong, or `on` without a directory.
    pub fn settings(&self) -> anyhow::Result<Option<GroupSettings>> {
        let all = GroupConfig { memory: self.memory, processes: self.processes, cpu_weight: self.cpu_weight };
        for group in self.tenants.values().chain([&all, &self.session]) {
            if let Some(weight) = group.cpu_weight.filter(|weight| !WEIGHTS.contains(weight)) {
                bail!("[cgroup]: cpu_weight = {weight}: expected 1 to 10000");
            }
        }
        let folder = match self.mode.as_deref() {
            Some("off") => return Ok(None),
            None | Some("auto") => self.path.clone().or_else(delegated_groups),
            Some("on") => Some(self.path.clone().or_else(delegated_groups).context(
                "[cgroup] mode = \"on\": no cgroup v2 directory is delegated to this process (systemd: Delegate=yes); name one \
                 with `path`",
            )?),
            Some(other) => bail!("[cgroup] mode: `{other}`: expected auto, on or off"),
        };
        let usual = GroupLimits { processes: Some(USUAL_PROCESSES), ..GroupLimits::default() };
        Ok(folder.map(|folder| GroupSettings {
            folder,
            tenant: all.limits().or(usual),
            tenants: self.tenants.iter().map(|(name, group)| (name.clone(), group.limits())).collect(),
            session: self.session.limits(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> anyhow::Result<Option<GroupSettings>> {
        toml::from_str::<CgroupConfig>(text)?.settings()
    }

    #[test]
    fn limits_are_those_of_the_file() {
        let text = "path = \"/a\"\nmemory = \"2G\"\nsession = { processes = 9 }\ntenants.big = { memory = \"4G\" }\n";
        let found = settings(text).unwrap().unwrap();
        let usual = GroupLimits { processes: Some(USUAL_PROCESSES), ..GroupLimits::default() };
        assert_eq!(found.tenant, GroupLimits { memory: Some(2 << 30), ..usual });
        assert_eq!(found.session, GroupLimits { processes: Some(9), ..GroupLimits::default() });
        assert_eq!(found.tenants["big"].memory, Some(4 << 30));
        assert_eq!(settings("mode = \"off\"\npath = \"/a\"\n").unwrap(), None);
    }

    #[test]
    fn mistakes_are_told() {
        for text in ["mode = \"maybe\"", "cpu_weight = 0", "tenants.a = { cpu_weight = 20000 }", "memry = 1"] {
            assert!(settings(text).is_err(), "{text}");
        }
    }
}
