//! Virtual machines: a socket for each, and a process that is its device while the VM is there.

use crate::{
    NodeError,
    epoll::Token,
    helpers::HelperAccess,
    listener::Listener,
    node::{Core, CoreState, Goal},
};
use aviary_wire::Origin;
use rustix::net::{SocketAddrUnix, getpeername};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs::{self, Permissions},
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::{fs::PermissionsExt, process::CommandExt},
    },
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

/// A device that failed will probably fail again.
const DEVICE_RESTART_BACKOFF: Duration = Duration::from_secs(1);

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

    pub fn bind(settings: &[VmSettings]) -> Result<Self, NodeError> {
        let mut vms = Self::default();
        settings.iter().try_for_each(|vm| vms.add(vm))?;
        Ok(vms)
    }

    fn add(&mut self, settings: &VmSettings) -> Result<(), NodeError> {
        let listener = Listener::bind(&settings.socket, settings.mode)?;
        self.last += 1;
        let vm = Vm { settings: settings.clone(), listener, device: None, listen_at: Some(Instant::now()) };
        self.list.insert(self.last, vm);
        Ok(())
    }

    /// `None`: the process is no VM's device.
    pub fn guest_of(&self, pid: u32, socket: &OwnedFd) -> Option<VmGuest> {
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

impl Core {
    /// Looks for VMs where nobody does.
    pub(crate) fn listen_for_vms(&self) {
        let now = Instant::now();
        for (place, vm) in &mut self.state().vms.list {
            if vm.listen_at.is_none_or(|at| at > now) {
                continue;
            }
            vm.listen_at = None;
            if let Err(error) = self.epoll.add(vm.listener.socket.as_fd(), Token::Vm(*place)) {
                self.log.error(error);
                vm.listen_at = Some(now + DEVICE_RESTART_BACKOFF);
            }
        }
    }

    /// A VMM connects: from now on its device looks at the listener.
    pub(crate) fn start_device(&self, place: u64) {
        let mut state = self.state();
        let CoreState { vms, server_users, .. } = &mut *state;
        let Some(vm) = vms.list.get_mut(&place) else { return };
        self.epoll.remove(vm.listener.socket.as_fd());
        if self.aims_at(Goal::Drain) {
            return;
        }
        let VmSettings { name, tenant, .. } = &vm.settings;
        let spawned = self.helper_access(server_users.as_mut(), &format!("VM {name}")).and_then(|access| {
            let spawned = spawn(&self.config.vm_device, &access, vm);
            spawned.map_err(|error| NodeError::Spawn(self.config.vm_device.program.clone(), error))
        });
        let started = spawned.and_then(|device| match self.epoll.add(device.exit.as_fd(), Token::DeviceExit(place)) {
            Ok(()) => Ok(device),
            Err(error) => {
                let _ = device.end();
                Err(error)
            }
        });
        match started {
            Ok(device) => {
                let pid = device.child.id();
                let (name, tenant) = (name.escape_debug(), tenant.escape_debug());
                self.log.info(format_args!("VM {name} (tenant {tenant}) connects to device {pid}"));
                vm.device = Some(device);
            }
            Err(error) => {
                self.log.error(format_args!("VM {} gets no device: {error}", name.escape_debug()));
                vm.listen_at = Some(Instant::now() + DEVICE_RESTART_BACKOFF);
            }
        }
    }

    pub(crate) fn reap_device(&self, place: u64) {
        let mut state = self.state();
        let Some(vm) = state.vms.list.get_mut(&place) else { return };
        let Some(mut device) = vm.device.take() else { return };
        self.epoll.remove(device.exit.as_fd());
        let (status, now) = (device.child.wait(), Instant::now());
        let clean = status.as_ref().is_ok_and(ExitStatus::success);
        vm.listen_at = Some(if clean { now } else { now + DEVICE_RESTART_BACKOFF });
        let how = status.map_or_else(|_| "status unknown".to_owned(), |status| status.to_string());
        let text = format!("VM {}: its device ended: {how}", vm.settings.name.escape_debug());
        if clean { self.log.info(text) } else { self.log.warn(text) }
    }

    /// The VMs that may attach from now on. What is not possible is left out, and the result says why.
    pub(crate) fn change_vms(&self, state: &mut CoreState, settings: &[VmSettings]) -> Vec<String> {
        for vm in state.vms.strike_off(settings) {
            self.log.info(format_args!("VM {} may not attach any more", vm.settings.name.escape_debug()));
            self.end_vm(vm);
        }
        let mut notes = Vec::new();
        for new in settings {
            let known = state.vms.list.values_mut().find(|vm| vm.settings.name == new.name);
            let changed = match known {
                Some(vm) if vm.settings == *new => Ok(()),
                Some(vm) => {
                    vm.settings = new.clone();
                    fs::set_permissions(&new.socket, Permissions::from_mode(new.mode))
                        .map_err(|error| format!("{}: {error}", new.socket.display()))
                }
                None => {
                    let added = state.vms.add(new).map_err(|error| error.to_string());
                    added.inspect(|()| self.log.info(format_args!("listening for VM {}", new.name.escape_debug())))
                }
            };
            notes.extend(changed.err().map(|why| format!("VM {}: {why}", new.name.escape_debug())));
        }
        notes
    }

    pub(crate) fn end_vms(&self, state: &mut CoreState) {
        std::mem::take(&mut state.vms.list).into_values().for_each(|vm| self.end_vm(vm));
    }

    /// Removes the socket. The device's guests see that it is gone.
    fn end_vm(&self, Vm { listener, device, .. }: Vm) {
        self.epoll.remove(listener.socket.as_fd());
        if let Some(device) = device {
            self.epoll.remove(device.exit.as_fd());
            let _ = device.end();
        }
    }
}

impl VmDeviceProcess {
    /// Now: it holds nothing that is worth an orderly end.
    fn end(mut self) -> io::Result<ExitStatus> {
        let _ = pidfd_send_signal(&self.exit, Signal::KILL);
        self.child.wait()
    }
}

fn spawn(command: &VmDeviceCommand, node: &HelperAccess, vm: &Vm) -> io::Result<VmDeviceProcess> {
    let mut child = Command::new(&command.program)
        .arg0("aviary")
        .args(&command.arguments)
        .args(node.arguments())
        .arg("--name")
        .arg(&vm.settings.name)
        // It reads what the VM's kernel writes, and needs nothing of the node's.
        .env_clear()
        .stdin(Stdio::from(vm.listener.socket.try_clone()?))
        .stdout(Stdio::null())
        // Signals from the terminal are for the node, which ends its devices itself.
        .process_group(0)
        .spawn()?;
    let exit = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidData.into());
    match exit.and_then(|pid| Ok(pidfd_open(pid, PidfdFlags::empty())?)) {
        Ok(exit) => Ok(VmDeviceProcess { child, exit }),
        Err(error) => {
            let _ = child.kill();
            let _ = child.wait();
            Err(error)
        }
    }
}
