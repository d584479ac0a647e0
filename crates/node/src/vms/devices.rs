//! The processes that are VMs' devices: their start, their end, and changes of the configuration.

use crate::epoll::{KILL_PATIENCE, Token, ends_by};
use crate::error::NodeError;
use crate::helpers::HelperAccess;
use crate::node::{Core, CoreState, Goal};
use crate::vms::{Vm, VmDeviceCommand, VmDeviceProcess, VmSettings};
use aviary_control::Aside;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::{
    fs::{self, Permissions},
    io,
    os::{
        fd::AsFd,
        unix::{fs::PermissionsExt, process::CommandExt},
    },
    process::{Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

/// A device that failed will probably fail again.
const DEVICE_RESTART_BACKOFF: Duration = Duration::from_secs(1);

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
            let spawned = spawn(&self.config.vm_device, &access, vm, &self.aside);
            spawned.map_err(|error| NodeError::Spawn(self.config.vm_device.program.clone(), error))
        });
        let started = spawned.and_then(|device| match self.epoll.add(device.exit.as_fd(), Token::DeviceExit(place)) {
            Ok(()) => Ok(device),
            Err(error) => {
                device.end();
                Err(error)
            }
        });
        match started {
            Ok(device) => {
                let pid = device.child.id();
                let (name, tenant) = (name.escape_debug(), tenant.escape_debug());
                self.log.info(format_args!("VM {name} (tenant {tenant}) connected: device process {pid}"));
                vm.device = Some(device);
            }
            Err(error) => {
                self.log.error(format_args!("VM {} cannot get a device: {error}", name.escape_debug()));
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
        let text = format!("VM {}: its device process ended: {how}", vm.settings.name.escape_debug());
        if clean { self.log.info(text) } else { self.log.warn(text) }
    }

    /// The VMs that may attach from now on. What is not possible is left out, and the result says why.
    pub(crate) fn change_vms(&self, state: &mut CoreState, settings: &[VmSettings]) -> Vec<String> {
        for vm in state.vms.strike_off(settings) {
            self.log.info(format_args!("VM {} may no longer attach", vm.settings.name.escape_debug()));
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
                    let added = state.vms.add(new, &self.aside).map_err(|error| error.to_string());
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
            let pid = device.child.id();
            if !device.end() {
                self.log.error(format_args!("device {pid} of a VM was killed and does not end: it is left behind"));
            }
        }
    }
}

impl VmDeviceProcess {
    /// Now: it holds nothing that is worth an orderly end.
    /// False: it does not end, as a descriptor of the VM keeps it, and is left behind.
    fn end(mut self) -> bool {
        let _ = pidfd_send_signal(&self.exit, Signal::KILL);
        ends_by(&self.exit, Instant::now() + KILL_PATIENCE) && self.child.wait().is_ok()
    }
}

fn spawn(command: &VmDeviceCommand, node: &HelperAccess, vm: &Vm, aside: &Aside) -> io::Result<VmDeviceProcess> {
    let mut process = Command::new(&command.program);
    process
        .arg0("aviary")
        .args(&command.arguments)
        .args(node.arguments())
        .arg("--name")
        .arg(&vm.settings.name)
        // It reads what the VM's kernel writes, and needs nothing of the node's.
        .env_clear()
        .stdin(Stdio::from(vm.listener.socket.as_fd().try_clone_to_owned()?))
        .stdout(Stdio::null())
        // Signals from the terminal are for the node, which ends its devices itself.
        .process_group(0);
    let mut child = aside.while_spawning(|| process.spawn())?;
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
