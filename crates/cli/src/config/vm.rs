//! Virtual machines in the node's configuration file, and the accelerators of FPGA cards that they have.

use crate::config::error::VmError;
use crate::config::values::{is_plain, parse_mode};
use aviary_node::{CardSettings, FpgaDeviceSettings, VmSettings};
use aviary_wire::tenant::is_reserved;
use serde::Deserialize;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// Permissions of a VM's sockets where nobody says anything.
const VM_MODE: u32 = 0o600;
/// Digits of a type's GUID.
const GUID_DIGITS: usize = 32;

/// `[vms.NAME]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmConfig {
    /// Of the device of Aviary; a VM that has only accelerators of cards needs none.
    socket: Option<PathBuf>,
    /// The VM's name if it is not there.
    tenant: Option<String>,
    /// Octal, as a string.
    mode: Option<String>,
    /// Accelerators of cards, by name.
    #[serde(default)]
    fpga: BTreeMap<String, FpgaDeviceConfig>,
}

/// `[vms.NAME.fpga.NAME]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct FpgaDeviceConfig {
    /// The card's name in `[fpga]`.
    card: String,
    /// A GUID.
    #[serde(rename = "type")]
    kind: String,
    socket: PathBuf,
    /// Octal, as a string; the VM's if it is not there.
    mode: Option<String>,
}

impl VmConfig {
    pub fn tenant(&self) -> Option<&String> {
        self.tenant.as_ref()
    }

    fn mode(&self) -> u32 {
        self.mode.as_deref().and_then(|mode| parse_mode(mode).ok()).unwrap_or(VM_MODE)
    }

    /// `None`: it has accelerators of cards only.
    pub fn settings(&self, name: &str) -> Option<VmSettings> {
        let usual = vm_at(name, self.socket.as_ref()?);
        Some(VmSettings { tenant: self.tenant.clone().unwrap_or(usual.tenant), mode: self.mode(), ..usual })
    }

    pub fn fpga_devices(&self, vm: &str) -> Vec<FpgaDeviceSettings> {
        let device = |(name, device): (&String, &FpgaDeviceConfig)| FpgaDeviceSettings {
            vm: vm.to_owned(),
            name: name.clone(),
            tenant: self.tenant.clone().unwrap_or_else(|| vm.to_owned()),
            card: device.card.clone(),
            guid: device.kind.to_lowercase(),
            socket: device.socket.clone(),
            mode: device.mode.as_deref().and_then(|mode| parse_mode(mode).ok()).unwrap_or(self.mode()),
        };
        self.fpga.iter().map(device).collect()
    }

    fn sockets<'a>(&'a self, vm: &str) -> impl Iterator<Item = (&'a Path, String)> {
        let owner = format!("VM `{vm}`");
        let own = self.socket.iter().map(move |socket| (socket.as_path(), owner.clone()));
        let name = |device: &String| format!("fpga `{device}` of VM `{vm}`");
        let devices = self.fpga.iter().map(|(device, config)| (config.socket.as_path(), name(device)));
        own.chain(devices.collect::<Vec<_>>())
    }
}

/// Sockets of VMs and their devices, with whose they are.
pub fn check_vms(vms: &BTreeMap<String, VmConfig>) -> Result<BTreeMap<&Path, String>, VmError> {
    let mut owners: BTreeMap<&Path, String> = BTreeMap::new();
    for (name, vm) in vms {
        if vm.socket.is_none() && vm.fpga.is_empty() {
            return Err(VmError::NoSocket { vm: name.clone() });
        }
        for (device, FpgaDeviceConfig { kind, .. }) in &vm.fpga {
            let (vm, device) = (name.clone(), device.clone());
            if !is_plain(&device) {
                return Err(VmError::DeviceName { vm, device });
            }
            let hexadecimal = kind.chars().filter(char::is_ascii_hexdigit).count() == GUID_DIGITS;
            if !hexadecimal || kind.chars().any(|letter| !letter.is_ascii_hexdigit() && letter != '-') {
                return Err(VmError::NoGuid { vm, device, kind: kind.clone() });
            }
        }
        let modes = vm.mode.iter().chain(vm.fpga.values().filter_map(|device| device.mode.as_ref()));
        for mode in modes {
            parse_mode(mode).map_err(|reason| VmError::Mode { vm: name.clone(), reason })?;
        }
        for (socket, whose) in vm.sockets(name) {
            if !socket.is_absolute() {
                return Err(VmError::RelativeSocket { whose });
            }
            if let Some(other) = owners.insert(socket, whose.clone()) {
                return Err(VmError::TwoOwners { one: other, other: whose });
            }
        }
    }
    Ok(owners)
}

/// Each device has a card of this node, be it of the file or of the command line.
pub fn check_has_cards(devices: &[FpgaDeviceSettings], cards: &[CardSettings]) -> Result<(), VmError> {
    let lacks = |device: &&FpgaDeviceSettings| !cards.iter().any(|card| card.name == device.card);
    match devices.iter().find(lacks).cloned() {
        Some(FpgaDeviceSettings { vm, name: device, card, .. }) => Err(VmError::NoCard { vm, device, card }),
        None => Ok(()),
    }
}

pub fn vm_at(name: &str, socket: &Path) -> VmSettings {
    VmSettings { name: name.to_owned(), socket: socket.to_owned(), tenant: name.to_owned(), mode: VM_MODE }
}

/// `NAME=SOCKET` of the command line.
pub fn parse_vm(text: &str) -> Result<VmSettings, String> {
    let wrong = || format!("`{text}`: expected NAME=SOCKET, such as build=/run/aviary/build.sock");
    let (name, socket) = text.split_once('=').filter(|(name, _)| is_plain(name)).ok_or_else(wrong)?;
    if is_reserved(name) {
        return Err(format!(
            "`{name}` cannot be the name of a VM: it is reserved for a local user without a tenant; choose another name"
        ));
    }
    let socket = std::path::absolute(socket).map_err(|_| wrong())?;
    Ok(vm_at(name, &socket))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NLB: &str = "D8424DC4-a4a3-c413-f89e-433683f9040b";

    fn read(text: &str) -> BTreeMap<String, VmConfig> {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn accelerators_are_those_of_the_vms_tenant() {
        let text = format!(
            "[a]\ntenant = \"t\"\nmode = \"660\"\n[a.fpga.x]\ncard = \"card0\"\ntype = \"{NLB}\"\nsocket = \"/run/x\"\n\
             [b]\nsocket = \"/run/b\"\n[b.fpga.y]\ncard = \"card0\"\ntype = \"{NLB}\"\nsocket = \"/run/y\"\nmode = \"666\"\n"
        );
        let vms = read(&text);
        check_vms(&vms).unwrap();
        assert_eq!(vms["a"].settings("a"), None);
        let of = |vm: &str| vms[vm].fpga_devices(vm).remove(0);
        let x = of("a");
        assert_eq!((x.vm.as_str(), x.name.as_str(), x.tenant.as_str(), x.mode), ("a", "x", "t", 0o660));
        assert_eq!(x.guid, NLB.to_lowercase());
        let card = |name| crate::config::card::card_at(name, "all", Path::new("/run/node.sock"), 0o600);
        check_has_cards(&[of("a"), of("b")], &[card("card0")]).unwrap();
        let told = check_has_cards(&[of("b")], &[card("card1")]).unwrap_err().to_string();
        assert!(told.contains("no card `card0`"), "{told}");
        assert_eq!((of("b").tenant.as_str(), of("b").mode), ("b", 0o666));
    }

    #[test]
    fn mistakes_are_told() {
        let device =
            |more: &str| format!("[a.fpga.x]\ncard = \"card0\"\ntype = \"{NLB}\"\nsocket = \"/run/x\"\n{more}");
        for (wrong, why) in [
            ("[a]\n".to_owned(), "socket"),
            (device("").replace(NLB, "nlb"), "`nlb`: expected a GUID"),
            (device("").replace("/run", "run"), "absolute"),
            (device("mode = \"9\"\n"), "mode"),
            (device("[b]\nsocket = \"/run/x\"\n"), "fpga `x` of VM `a` and VM `b` have the same socket"),
            (device("").replace("fpga.x", "fpga.\"x y\""), "`x y`"),
        ] {
            let error = check_vms(&read(&wrong)).unwrap_err();
            assert!(error.to_string().contains(why), "{error}");
        }
    }
}
