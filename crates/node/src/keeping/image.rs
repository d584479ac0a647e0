//! What the node itself writes of a program: everything that the next node cannot know from its configuration.

use crate::gateways::yielding::KeptOrigin;
use crate::relocation::request::SessionMoves;
use crate::sessions::permissions::Permissions;
use crate::tenants::vendor_set::VendorSet;
use aviary_control::FunctionRule;
use aviary_gate::HeldAmount;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::SystemTime,
};

/// What the kernel's driver says of itself.
const DRIVER: &str = "/proc/driver/nvidia/version";

/// All sessions of one program.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramImage {
    pub tenant: String,
    /// `None`: the node's own libraries.
    pub vendor: Option<VendorSet>,
    pub software: Software,
    /// What its API server held: resource, device and amount.
    pub held: Vec<(String, Option<String>, u64)>,
    pub sessions: Vec<KeptSession>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptSession {
    pub number: u64,
    pub origin: KeptOrigin,
    pub since: SystemTime,
    pub threads: Option<usize>,
    pub apis: Option<Vec<String>>,
    pub functions: FunctionRule,
    pub only_devices: Option<Vec<String>>,
    pub api: String,
    pub spec_hash: u64,
    pub moves: SessionMoves,
    pub swaps: bool,
}

/// Vendors' software that a program was told about: after a change of it the program's objects may be others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Software {
    /// By the library's file: its length, and when it was written, in seconds and nanoseconds. `None`: it is not there.
    libraries: BTreeMap<PathBuf, Option<(u64, i64, i64)>>,
    /// `None`: there is none.
    driver: Option<String>,
}

impl Software {
    /// As it is now. `vendors`: by API, the file of its library.
    pub fn of<'a>(apis: impl Iterator<Item = &'a str>, vendors: &BTreeMap<String, String>) -> Self {
        let files = apis.filter_map(|api| vendors.get(api)).map(PathBuf::from);
        let libraries = files.map(|file| (file.clone(), Self::library(&file))).collect();
        Self { libraries, driver: fs::read_to_string(DRIVER).ok() }
    }

    fn library(file: &Path) -> Option<(u64, i64, i64)> {
        let found = fs::metadata(file).ok()?;
        Some((found.len(), found.mtime(), found.mtime_nsec()))
    }

    /// The first thing that is not as it was, for people.
    pub fn changed(&self, now: &Software) -> Option<String> {
        if self.driver != now.driver {
            return Some(format!("the driver ({DRIVER}) is another one"));
        }
        let changed = self.libraries.iter().find(|(file, was)| now.libraries.get(*file) != Some(was));
        changed.map(|(file, _)| format!("the vendor's library {} is another one", file.display()))
    }
}

impl ProgramImage {
    pub fn held_amounts(&self) -> Vec<HeldAmount> {
        let amount = |(name, device, amount): &(String, Option<String>, u64)| HeldAmount {
            name: name.clone(),
            device: device.clone(),
            amount: *amount,
        };
        self.held.iter().map(amount).collect()
    }
}

impl KeptSession {
    pub fn permissions(&self) -> Permissions {
        Permissions {
            threads: self.threads,
            apis: self.apis.clone(),
            functions: self.functions.clone(),
            only_devices: self.only_devices.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach::private::PrivateDir;

    #[test]
    fn other_software_is_named() {
        let folder = PrivateDir::create().unwrap();
        let file = folder.path().join("lib.so");
        fs::write(&file, "one").unwrap();
        let vendors = BTreeMap::from([("a".to_owned(), file.to_str().unwrap().to_owned())]);
        let now = || Software::of(["a", "b"].into_iter(), &vendors);
        let before = now();
        assert_eq!((before.libraries.len(), before.changed(&now())), (1, None));
        fs::write(&file, "another").unwrap();
        assert!(before.changed(&now()).unwrap().contains("lib.so"));
        fs::remove_file(&file).unwrap();
        assert!(before.changed(&now()).unwrap().contains("lib.so"));
        let driven = Software { driver: Some("580".into()), ..before.clone() };
        assert!(driven.changed(&before).unwrap().contains("driver"));
    }
}
