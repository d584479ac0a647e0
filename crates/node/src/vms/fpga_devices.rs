//! Accelerators of VMs: their processes, what becomes of them, and changes of the configuration.

use crate::attach::foreign::CONNECTION;
use crate::attach::guest::Guest;
use crate::epoll::Token;
use crate::error::NodeError;
use crate::helpers::HelperProcess;
use crate::node::{Core, CoreState, Goal};
use crate::servers::api_server::ServerEnd;
use crate::vms::{FpgaDevice, FpgaDeviceCommand, FpgaDeviceSettings, ServedVmm};
use aviary_control::{Aside, Foreign};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use std::{
    collections::BTreeSet,
    fs::{self, Permissions},
    io,
    os::{
        fd::AsFd,
        unix::{fs::PermissionsExt, process::CommandExt},
    },
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// A VMM that was refused will probably be refused again.
const FPGA_DEVICE_BACKOFF: Duration = Duration::from_secs(1);

impl Core {
    /// Looks for VMMs where nobody does, if the card serves.
    pub(crate) fn listen_for_fpga_devices(&self) {
        let (now, mut state) = (Instant::now(), self.state());
        let CoreState { cards, fpga_devices, .. } = &mut *state;
        for (place, device) in &mut fpga_devices.list {
            let due = device.listen_at.is_some_and(|at| at <= now) && cards.serving(&device.settings.card).is_some();
            let Some(listener) = device.listener.as_ref().filter(|_| due) else { continue };
            device.listen_at = None;
            if let Err(error) = self.epoll.add(listener.socket.as_fd(), Token::FpgaDevice(*place)) {
                self.log.error(error);
                device.listen_at = Some(now + FPGA_DEVICE_BACKOFF);
            }
        }
    }

    /// A VMM connects: it is served until it ends, and meanwhile nobody looks at the listener.
    pub(crate) fn start_fpga_device(&self, place: u64) {
        let mut state = self.state();
        let Some(device) = state.fpga_devices.list.get(&place) else { return };
        let (Some(listener), settings) = (&device.listener, device.settings.clone()) else { return };
        let vmm = match accept_with(&listener.socket, SocketFlags::CLOEXEC) {
            Ok(socket) => self.foreign_socket(socket),
            Err(Errno::INTR | Errno::CONNABORTED | Errno::WOULDBLOCK) => return,
            Err(errno) => return self.pause_accepting(state, errno),
        };
        self.epoll.remove(listener.socket.as_fd());
        let started = if self.aims_at(Goal::Drain) { return } else { self.serve_vmm(&mut state, &settings, vmm) };
        let watched =
            started.and_then(|served| match self.epoll.add(served.helper.exit.as_fd(), Token::FpgaDeviceExit(place)) {
                Ok(()) => Ok(served),
                Err(error) => {
                    served.helper.kill();
                    served.helper.part();
                    Err(error.to_string())
                }
            });
        let Some(device) = state.fpga_devices.list.get_mut(&place) else { return };
        match watched {
            Ok(served) => {
                let (pid, session, shown) = (served.helper.pid(), served.session, settings.shown());
                self.log.info(format_args!("{shown} connected: device process {pid}, session {session}"));
                device.served = Some(served);
            }
            Err(why) => {
                let shown = settings.shown();
                self.log.warn(format_args!("{shown} gets no accelerator ({why}): the VMM's connection is closed"));
                device.listen_at = Some(Instant::now() + FPGA_DEVICE_BACKOFF);
            }
        }
    }

    fn serve_vmm(
        &self,
        state: &mut CoreState,
        settings: &FpgaDeviceSettings,
        mut vmm: Foreign,
    ) -> Result<ServedVmm, String> {
        vmm.becomes(&self.aside, &settings.tenant.as_str().into(), CONNECTION);
        let guest = Guest::of(vmm.as_fd()).map_err(|error| error.to_string())?;
        let card = settings.card.escape_debug();
        let place = state.cards.serving(&settings.card).ok_or_else(|| format!("card {card} does not serve"))?;
        let helper = |users: &mut crate::users::server_users::ServerUsers| {
            users.helper(&format!("VM {}", settings.vm)).map_err(|error| error.to_string())
        };
        let user = state.server_users.as_mut().map_or(Ok(None), helper)?;
        let handed = self.hand_vm_to_card(state, place, (guest, &settings.vm), &settings.tenant);
        let (session, socket) = handed.map_err(|refusal| refusal.to_string())?;
        let spawned = spawn(&self.config.fpga_device, settings, user, (&vmm, &socket), &self.aside);
        match spawned {
            Ok(helper) => Ok(ServedVmm { helper, session }),
            // The card sees the end of the connection.
            Err(error) => Err(NodeError::Spawn(self.config.fpga_device.program.clone(), error).to_string()),
        }
    }

    pub(crate) fn reap_fpga_device(&self, place: u64) {
        let mut state = self.state();
        let Some(device) = state.fpga_devices.list.get_mut(&place) else { return };
        let Some(served) = device.served.take() else { return };
        self.epoll.remove(served.helper.exit.as_fd());
        let (end, now) = (served.helper.part(), Instant::now());
        let clean = end == Some(ServerEnd::Status(0));
        device.listen_at = Some(if clean { now } else { now + FPGA_DEVICE_BACKOFF });
        let how = end.map_or_else(|| "it does not end".to_owned(), |end| end.to_string());
        let text = format!("{}: its process ended: {how}", device.settings.shown());
        let removed = device.listener.is_none();
        if clean {
            self.log.info(text)
        } else {
            self.log.warn(text)
        }
        if removed {
            state.fpga_devices.list.remove(&place);
        }
    }

    /// The devices from now on. One that is removed or has another card, type, tenant or socket stays in its VM, dead: a VMM
    /// cannot part with it.
    pub(crate) fn change_fpga_devices(&self, state: &mut CoreState, settings: &[FpgaDeviceSettings]) -> Vec<String> {
        let same = |old: &FpgaDeviceSettings, new: &FpgaDeviceSettings| {
            FpgaDeviceSettings { mode: new.mode, ..old.clone() } == *new
        };
        let mut notes = self.remove_fpga_devices(state, |old| !settings.iter().any(|new| same(old, new)));
        for new in settings {
            let known = |device: &&mut FpgaDevice| device.listener.is_some() && same(&device.settings, new);
            let changed = match state.fpga_devices.list.values_mut().find(known) {
                Some(device) => {
                    device.settings.mode = new.mode;
                    fs::set_permissions(&new.socket, Permissions::from_mode(new.mode))
                        .map_err(|error| format!("{}: {error}", new.socket.display()))
                }
                None => state.fpga_devices.add(new, &self.aside).map_err(|error| error.to_string()),
            };
            notes.extend(changed.err().map(|why| format!("{}: {why}", new.shown())));
        }
        notes
    }

    fn remove_fpga_devices(&self, state: &mut CoreState, goes: impl Fn(&FpgaDeviceSettings) -> bool) -> Vec<String> {
        let (mut notes, mut sessions) = (Vec::new(), BTreeSet::new());
        for device in state.fpga_devices.list.values_mut().filter(|device| goes(&device.settings)) {
            let Some(listener) = device.listener.take() else { continue };
            self.epoll.remove(listener.socket.as_fd());
            device.listen_at = None;
            self.log.info(format_args!("{} is removed", device.settings.shown()));
            if let Some(served) = &device.served {
                sessions.insert(served.session);
                notes.push(format!("{} stays in the VM, dead, until that ends", device.settings.shown()));
            }
        }
        // Their cards hang up, and the processes go on without one.
        self.end_card_sessions(state, &sessions);
        state.fpga_devices.list.retain(|_, device| device.listener.is_some() || device.served.is_some());
        notes
    }

    pub(crate) fn end_fpga_devices(&self, state: &mut CoreState) {
        for device in std::mem::take(&mut state.fpga_devices.list).into_values() {
            if let Some(listener) = &device.listener {
                self.epoll.remove(listener.socket.as_fd());
            }
            let Some(served) = device.served else { continue };
            self.epoll.remove(served.helper.exit.as_fd());
            let pid = served.helper.pid();
            // Its connection is ended in order by the process that keeps it.
            served.helper.kill();
            if served.helper.part().is_none() {
                self.log
                    .error(format_args!("device process {pid} of a VM was killed and does not end: it is left behind"));
            }
        }
    }
}

fn spawn(
    command: &FpgaDeviceCommand,
    settings: &FpgaDeviceSettings,
    user: Option<u32>,
    (vmm, card): (&Foreign, &Foreign),
    aside: &Aside,
) -> io::Result<HelperProcess> {
    let mut process = Command::new(&command.program);
    process
        .arg0("aviary")
        .args(&command.arguments)
        .arg(&settings.guid)
        .args(["--of-node", &format!("{}/{}", settings.vm, settings.name)])
        // It reads what the VMM sends, and needs nothing of the node's.
        .env_clear()
        .stdin(Stdio::from(vmm.as_fd().try_clone_to_owned()?))
        .stdout(Stdio::from(card.as_fd().try_clone_to_owned()?))
        // Signals from the terminal are for the node, which ends its devices itself.
        .process_group(0);
    if let Some(user) = user {
        process.args(["--user", &user.to_string()]);
    }
    HelperProcess::spawn(&mut process, aside)
}
