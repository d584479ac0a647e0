//! Virtual machines: a socket for each, and a process that is its device while the VM is there.

mod accelerators;
mod devices;
mod fpga_devices;

pub(crate) use accelerators::{FpgaDevice, ServedVmm};
pub use accelerators::{FpgaDeviceCommand, FpgaDeviceReport, FpgaDeviceSettings, FpgaDevices};

use crate::attach::listener::Listener;
use crate::error::NodeError;
use aviary_control::Aside;
use aviary_wire::Origin;
use rustix::net::{SocketAddrUnix, getpeername};
use std::{
    collections::BTreeMap,
    ffi::OsString,
    os::fd::{BorrowedFd, OwnedFd},
    path::PathBuf,
    process::Child,
    time::Instant,
};

/// A VM that may attach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VmSettings {
    pub name: String,
    /// Where its VMM connects. Who may do so belongs to the tenant, and so do all processes in the VM.
    pub socket: PathBuf,
    pub tenant: String,
    /// Permissions of the socket.
    pub mode: u32,
}

/// The command line of a device. Its standard input is the listening socket.
#[derive(Debug, Clone)]
pub struct VmDeviceCommand {
    pub program: PathBuf,
    pub arguments: Vec<OsString>,
}

impl VmDeviceCommand {
    /// This executable, as `aviary vm-device`.
    pub fn own() -> Self {
        Self { program: "/proc/self/exe".into(), arguments: vec!["vm-device".into()] }
    }
}

#[derive(Debug)]
struct VmDeviceProcess {
    child: Child,
    /// Readable when the process has ended.
    exit: OwnedFd,
}

#[derive(Debug)]
struct Vm {
    settings: VmSettings,
    listener: Listener,
    /// It takes one connection; until it ends nobody else looks at the listener.
    device: Option<VmDeviceProcess>,
    /// When the listener is looked at again.
    listen_at: Option<Instant>,
}

#[derive(Debug, Default)]
pub struct Vms {
    /// By place, which is never given to another: an event may still be under way when a VM is struck off.
    list: BTreeMap<u64, Vm>,
    last: u64,
}

/// A VM whose device has made a connection, and for whom in there it did so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VmGuest {
    pub vm: String,
    /// The identity that the VM's driver claims. It decides which connections of this VM share an API server, and
    /// nothing else.
    pub origin: Origin,
}

impl Vms {
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub fn bind(settings: &[VmSettings], aside: &Aside) -> Result<Self, NodeError> {
        let mut vms = Self::default();
        settings.iter().try_for_each(|vm| vms.add(vm, aside))?;
        Ok(vms)
    }

    fn add(&mut self, settings: &VmSettings, aside: &Aside) -> Result<(), NodeError> {
        let mut listener = Listener::bind(&settings.socket, settings.mode)?;
        listener.guard(aside);
        self.last += 1;
        let vm = Vm { settings: settings.clone(), listener, device: None, listen_at: Some(Instant::now()) };
        self.list.insert(self.last, vm);
        Ok(())
    }

    /// `None`: the process is no VM's device.
    pub fn guest_of(&self, pid: u32, socket: BorrowedFd<'_>) -> Option<VmGuest> {
        let vm = self.list.values().find(|vm| vm.device.as_ref().is_some_and(|device| device.child.id() == pid))?;
        let peer = getpeername(socket).ok().flatten().and_then(|address| SocketAddrUnix::try_from(address).ok());
        let origin = peer.as_ref().and_then(SocketAddrUnix::abstract_name).and_then(Origin::from_name);
        Some(VmGuest { vm: vm.settings.name.clone(), origin: origin.unwrap_or_default() })
    }

    /// Whose the processes of a VM are; `None`: it may not attach.
    pub fn tenant_of(&self, vm: &str) -> Option<&str> {
        let settings = self.list.values().map(|vm| &vm.settings).find(|settings| settings.name == vm);
        settings.map(|settings| settings.tenant.as_str())
    }

    /// True if processes of a VM are this tenant's.
    pub fn has_tenant(&self, tenant: &str) -> bool {
        self.list.values().any(|vm| vm.settings.tenant == tenant)
    }

    pub fn next_listen(&self) -> Option<Instant> {
        self.list.values().filter_map(|vm| vm.listen_at).min()
    }

    /// Those that `settings` do not have, or not at that socket: they are not listed any more.
    fn strike_off(&mut self, settings: &[VmSettings]) -> Vec<Vm> {
        let stays =
            |vm: &Vm| settings.iter().any(|new| new.name == vm.settings.name && new.socket == vm.settings.socket);
        self.list.extract_if(.., |_, vm| !stays(vm)).map(|(_, vm)| vm).collect()
    }
}
