//! Starting and ending a node from outside.

use crate::admin::{self, Desk, Request};
use crate::attach::listener::{Address, Listener, listen_on};
use crate::attach::private::PrivateDir;
use crate::attach::secret::{Secret, secret_path};
use crate::config::NodeConfig;
use crate::error::NodeError;
use crate::log::Log;
use crate::node::{Core, CoreState, Goal};
use crate::relocation::request::ParkedMemory;
use crate::report;
use crate::report::{NodeReport, SessionReport};
use crate::upgrade::Handover;
use aviary_control::DeviceContext;
use rustix::net::{Shutdown, shutdown};
use std::{
    fs,
    io::{PipeReader, PipeWriter},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixListener,
    },
    path::{Path, PathBuf},
    sync::Arc,
    thread::JoinHandle,
    time::Instant,
};

/// A running node. Dropping it ends all its sessions and removes its sockets.
#[derive(Debug)]
pub struct Node {
    address: Address,
    core: Arc<Core>,
    admin: Arc<UnixListener>,
    admin_path: PathBuf,
    threads: Vec<JoinHandle<()>>,
    /// Hangs up when the node has ended.
    ended: PipeReader,
}

/// A way into a private node beside its socket.
#[derive(Debug, Clone)]
pub struct Doorway(Arc<Core>);

impl Doorway {
    /// The other end of the connection is a process of the program, which attaches.
    pub fn admit(&self, connection: OwnedFd) {
        self.0.admit(connection);
    }
}

impl Node {
    pub fn entrance(&self) -> Doorway {
        Doorway(self.core.clone())
    }

    pub fn start(config: NodeConfig) -> Result<Self, NodeError> {
        Self::start_after(config, None)
    }

    /// `before`: of the program whose place this one takes, in the same process.
    pub fn start_after(mut config: NodeConfig, mut before: Option<Handover>) -> Result<Self, NodeError> {
        config.pass_on(std::env::vars_os());
        if let Some(before) = &before {
            config.socket = before.image.socket.clone();
        }
        let log = Log::new(config.log);
        let address = Address::Unix(config.socket.clone());
        let admin_path = admin::admin_path(&config.socket);
        let (listener, admin) = match &mut before {
            Some(before) => sockets_of(before, &config.socket).map_err(NodeError::Handover)?,
            None => (Listener::bind(&config.socket, config.mode)?, bind_admin(&admin_path)?),
        };
        let admin = Arc::new(admin);
        let secret = match config.server_users {
            Some(_) => None,
            // One that the program before has left is replaced: who asks reads the file each time.
            None => Some(Secret::create(secret_path(&config.socket)).map_err(NodeError::Secret)?),
        };
        let remote = config.remote.as_ref().map_or(Vec::new(), |(addresses, _)| addresses.clone());
        let vms = config.vms.clone();
        let core = Arc::new(Core::new(config, listener, log, before.as_mut())?);
        let (ended, alive) = std::io::pipe().map_err(NodeError::Watch)?;
        let threads = vec![run_core(&core, alive, log), run_admin(&admin, &core, &address, secret, log)];
        log.info(format_args!("listening on {address}"));
        remote.iter().for_each(|remote| log.info(format_args!("listening on {remote}")));
        for DeviceContext { name, bytes } in &core.config.contexts {
            log.info(format_args!("contexts on {name:?} are charged with {bytes} bytes of device_memory each"));
        }
        for vm in vms {
            let (name, socket) = (vm.name.escape_debug(), vm.socket.display());
            log.info(format_args!("listening for VM {name} on {socket}"));
        }
        Ok(Self { address, core, admin, admin_path, threads, ended })
    }

    /// A node in a private directory: only this user's processes that are told the name find it.
    pub fn start_private(directory: &PrivateDir, mut config: NodeConfig) -> Result<Self, NodeError> {
        config.socket = directory.path().join("node.sock");
        // The directory keeps others out. A program that has changed its user comes by an inherited descriptor.
        config.mode = 0o666;
        config.private = true;
        Self::start(config)
    }

    pub fn address(&self) -> &Address {
        &self.address
    }

    pub fn report(&self) -> NodeReport {
        report_of(&self.core, &self.address)
    }

    /// Reads the configuration again; sessions go on. What is wrong is also told in the log.
    pub fn reload(&self) -> Result<Vec<String>, NodeError> {
        self.core.reload()
    }

    /// Guest processes that are served now.
    pub fn busy(&self) -> usize {
        self.core.busy()
    }

    /// Ends once no guest is left.
    pub fn drain(&self) {
        self.core.aim(Goal::Drain);
    }

    /// Ends once the sessions of other machines are in files, from which the next node goes on with them. False: no such folder
    /// was given.
    pub fn keep(&self) -> bool {
        let keeps = self.core.keep.is_some();
        if keeps {
            self.core.aim(Goal::Keep);
        }
        keeps
    }

    /// A number that is another one at the next call, unless the node hangs or the calls are too close.
    pub fn pulse(&self) -> u64 {
        self.core.round()
    }

    /// Readable (it hangs up) when the node has ended.
    pub fn ended(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }

    /// True if the node has ended (after `drain`).
    pub fn is_finished(&self) -> bool {
        self.threads.first().is_none_or(|thread| thread.is_finished())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.core.aim(Goal::Stop);
        let _ = shutdown(&*self.admin, Shutdown::Both);
        for thread in self.threads.drain(..) {
            // A panic there was printed already, and there is nothing left to save.
            let _ = thread.join();
        }
        let _ = fs::remove_file(&self.admin_path);
    }
}

/// Called with the node's lock held, so that a socket found there is a dead node's.
fn bind_admin(path: &Path) -> Result<UnixListener, NodeError> {
    let failed = |error| NodeError::Listen(path.to_owned(), error);
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let listener = UnixListener::from(listen_on(path, 0o600)?);
    listener.set_nonblocking(false).map_err(failed)?;
    Ok(listener)
}

/// Those of the program before: what connects meanwhile waits there.
fn sockets_of(before: &mut Handover, path: &Path) -> std::io::Result<(Listener, UnixListener)> {
    let Handover { image, inherited } = before;
    let (socket, lock) = (inherited.take(image.listener)?, inherited.take(image.lock)?);
    Ok((Listener::again(path, socket, lock.into()), inherited.take(image.admin)?.into()))
}

fn run_core(core: &Arc<Core>, alive: PipeWriter, log: Log) -> JoinHandle<()> {
    let core = Arc::clone(core);
    std::thread::spawn(move || {
        let _alive = alive;
        if let Err(error) = core.run() {
            log.error(format_args!("the node ends: {error}"));
        }
    })
}

fn run_admin(
    admin: &Arc<UnixListener>,
    core: &Arc<Core>,
    address: &Address,
    secret: Option<Secret>,
    log: Log,
) -> JoinHandle<()> {
    let (admin, core, address) = (Arc::clone(admin), Arc::clone(core), address.clone());
    std::thread::spawn(move || {
        let desk = Desk {
            answer: &|request| answer(&core, &address, &admin, request),
            is_api_servers: &|peer| core.state().is_api_servers(peer),
            secret: secret.as_ref(),
        };
        admin::serve(&admin, &desk, log);
    })
}

fn answer(core: &Core, address: &Address, admin: &UnixListener, request: Request) -> Result<serde_json::Value, String> {
    let json = |value: serde_json::Result<serde_json::Value>| value.map_err(|error| error.to_string());
    match request {
        Request::Ps => json(serde_json::to_value(report_of(core, address))),
        Request::Tenants => json(serde_json::to_value(core.tenants())),
        Request::Set(change) => {
            let report = core.change_tenant(&change).map_err(|error| error.to_string())?;
            json(serde_json::to_value(report))
        }
        Request::End(which) => {
            json(serde_json::to_value(core.end_sessions(&which).map_err(|error| error.to_string())?))
        }
        Request::Migrate(request) => {
            json(serde_json::to_value(core.begin_move(&request).map_err(|error| error.to_string())?))
        }
        Request::MoveStatus(number) => {
            json(serde_json::to_value(core.move_status(number).map_err(|error| error.to_string())?))
        }
        Request::Unpark(session) => {
            json(serde_json::to_value(core.unpark(session).map_err(|error| error.to_string())?))
        }
        Request::Swap(request) => json(serde_json::to_value(core.swap(&request).map_err(|error| error.to_string())?)),
        Request::SwapStatus(session) => {
            json(serde_json::to_value(core.swap_status(session).map_err(|error| error.to_string())?))
        }
        Request::MoveAtCard(request) => {
            json(serde_json::to_value(core.state().cards.begin_move(&request).map_err(|error| error.to_string())?))
        }
        Request::CardMoveStatus(session) => {
            json(serde_json::to_value(core.state().cards.move_of(session).map_err(|error| error.to_string())?))
        }
        Request::Upgrade(request) => match core.upgrade(admin.as_fd(), &request) {
            Ok(never) => match never {},
            Err(error) => Err(error.to_string()),
        },
        Request::Proceed(number) => {
            json(serde_json::to_value(core.proceed_with_move(number).map_err(|error| error.to_string())?))
        }
        Request::Grant(request) => json(serde_json::to_value(core.grant(&request).map_err(|error| error.to_string())?)),
        Request::Grants => json(serde_json::to_value(core.grants())),
        Request::Devices => match &core.config.device_lister {
            Some(lister) => json(serde_json::to_value(lister.answer(Instant::now()))),
            None => Err("this node does not list devices".to_owned()),
        },
        Request::Revoke(name) => json(serde_json::to_value(core.revoke(&name).map_err(|error| error.to_string())?)),
        Request::Reload => json(serde_json::to_value(core.reload().map_err(|error| error.to_string())?)),
    }
}

fn report_of(core: &Core, address: &Address) -> NodeReport {
    let (zygote, devices) = (core.zygote(), core.devices());
    core.state().gateways.hear_all();
    core.with_state(|state| NodeReport {
        address: address.to_string(),
        pid: std::process::id(),
        upgrades: state.upgrades,
        spares: state.registry.spares(None),
        zygote,
        vendors: state.report_vendors(),
        parked: ParkedMemory { used: state.kept_bytes(), limit: core.config.parked_memory },
        sessions: sessions_of(state),
        servers: state.registry.without_sessions().map(|(_, server)| report::server(server)).collect(),
        devices,
        cards: state.cards.report(),
        fpga_devices: state.fpga_devices.report(|session| state.cards.has(session)),
    })
}

fn sessions_of(state: &CoreState) -> Vec<SessionReport> {
    let of_servers = state.registry.sessions.iter().map(|(id, session)| report::session(state, *id, session));
    let mut all: Vec<SessionReport> = of_servers.chain(state.cards.report_sessions()).collect();
    all.sort_by_key(|session| session.session);
    all
}
