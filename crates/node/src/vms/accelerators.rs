//! Accelerators of cards as PCI functions of VMs: a socket for each, at which the VM's VMM connects, and a process that serves it.
//!
//! The socket says whose the accelerator is: what the process asks of the card counts as the tenant's, with its memory and ports.
//! The node reads nothing that the VMM sends.

use crate::attach::listener::Listener;
use crate::error::NodeError;
use crate::helpers::HelperProcess;
use aviary_control::Aside;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, ffi::OsString, path::PathBuf, time::Instant};

/// An accelerator of a VM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FpgaDeviceSettings {
    pub vm: String,
    /// Among those of the VM.
    pub name: String,
    pub tenant: String,
    /// The card's name.
    pub card: String,
    /// The accelerator's type, a GUID.
    pub guid: String,
    /// Where the VMM connects.
    pub socket: PathBuf,
    /// Permissions of the socket.
    pub mode: u32,
}

impl FpgaDeviceSettings {
    /// For people.
    pub(crate) fn shown(&self) -> String {
        format!("{} of VM {}", self.name.escape_debug(), self.vm.escape_debug())
    }
}

/// The command line of a device's process. Its standard input is the VMM's connection, its standard output one to the card.
#[derive(Debug, Clone)]
pub struct FpgaDeviceCommand {
    pub program: PathBuf,
    pub arguments: Vec<OsString>,
}

impl FpgaDeviceCommand {
    /// This executable, as `aviary fpga-device`.
    pub fn own() -> Self {
        Self { program: "/proc/self/exe".into(), arguments: vec!["fpga-device".into()] }
    }
}

/// An accelerator of a VM, for people.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FpgaDeviceReport {
    pub vm: String,
    pub name: String,
    pub tenant: String,
    pub card: String,
    #[serde(rename = "type")]
    pub guid: String,
    pub socket: String,
    /// `waiting`: for the VM, or for its card. `connected`. `lost`: its card or its session has ended, or it was removed.
    pub state: String,
    /// Of the card's session, or 0.
    pub session: u64,
    /// Process id, or 0.
    pub process: u32,
}

/// A VMM and the process that serves it.
#[derive(Debug)]
pub(crate) struct ServedVmm {
    pub helper: HelperProcess,
    pub session: u64,
}

#[derive(Debug)]
pub(crate) struct FpgaDevice {
    pub settings: FpgaDeviceSettings,
    /// `None`: it was removed, and stays until the VMM ends.
    pub listener: Option<Listener>,
    pub served: Option<ServedVmm>,
    /// When somebody looks at the listener again; `None`: somebody does, or a VMM is served.
    pub listen_at: Option<Instant>,
}

#[derive(Debug, Default)]
pub struct FpgaDevices {
    /// By place, which is never given to another: an event may still be under way when a device is struck off.
    pub(crate) list: BTreeMap<u64, FpgaDevice>,
    pub(crate) last: u64,
}

impl FpgaDevices {
    pub fn bind(settings: &[FpgaDeviceSettings], aside: &Aside) -> Result<Self, NodeError> {
        let mut devices = Self::default();
        settings.iter().try_for_each(|device| devices.add(device, aside))?;
        Ok(devices)
    }

    pub(crate) fn add(&mut self, settings: &FpgaDeviceSettings, aside: &Aside) -> Result<(), NodeError> {
        let mut listener = Listener::bind(&settings.socket, settings.mode)?;
        listener.guard(aside);
        self.last += 1;
        let (listener, listen_at) = (Some(listener), Some(Instant::now()));
        self.list.insert(self.last, FpgaDevice { settings: settings.clone(), listener, served: None, listen_at });
        Ok(())
    }

    /// Those that wait for a moment, not for their cards.
    pub fn next_listen(&self) -> Option<Instant> {
        let now = Instant::now();
        self.list.values().filter_map(|device| device.listen_at).filter(|at| *at > now).min()
    }

    /// `lives`: the session is there.
    pub fn report(&self, lives: impl Fn(u64) -> bool) -> Vec<FpgaDeviceReport> {
        let of = |device: &FpgaDevice| {
            let FpgaDeviceSettings { vm, name, tenant, card, guid, socket, .. } = device.settings.clone();
            let (session, process) = device.served.as_ref().map_or((0, 0), |one| (one.session, one.helper.pid()));
            let state = match &device.served {
                None => "waiting",
                Some(served) if lives(served.session) => "connected",
                Some(_) => "lost",
            };
            let (state, socket) = (state.to_owned(), socket.display().to_string());
            FpgaDeviceReport { vm, name, tenant, card, guid, socket, state, session, process }
        };
        self.list.values().map(of).collect()
    }
}
