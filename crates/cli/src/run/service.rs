//! What serves one program of `aviary run`: a private node, a relay to a node elsewhere, a card, or only a node's own socket.

use crate::daemons::remote::NodeAddress;
use crate::dropin::find_library;
use crate::run::answer::Answer;
use crate::run::bypass::{Started, bypasses, other_c_library};
use crate::run::entrances;
use crate::run::launch::{self, Variables};
use crate::run::marks::{MARK, wait_for_ending_nodes};
use crate::run::options::RunCommand;
use crate::run::strays::Strays;
use crate::{apis, fpga};
use anyhow::Context;
use aviary_fpga::link::Limits;
use aviary_node::{ApiServerCommand, CardSettings, Level, Node, NodeConfig, PrivateDir};
use aviary_relay::Relay;
use std::{
    collections::BTreeMap,
    ffi::OsStr,
    io,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
};

/// Permissions of the socket of a private node's card.
const CARD_MODE: u32 = 0o600;

/// What serves one program. Dropped, it is gone, with its directories.
pub struct Service {
    backend: Backend,
    _card: Option<fpga::PrivateCard>,
    directory: PrivateDir,
    _links: PrivateDir,
    strays: Strays,
}

impl Service {
    /// Prepares everything for the program of `command`, and says which variables the program gets.
    pub fn start(command: &RunCommand) -> anyhow::Result<(Service, Answer)> {
        let search = apis::search_path(&command.api_dir)?;
        let only_card = command.fpga.is_some() && command.api.is_empty();
        let mut apis = if only_card { Vec::new() } else { apis::select(&search, &command.api)? };
        if command.api.is_empty() && command.server.is_none() {
            keep_those_of_this_machine(&mut apis);
        }
        let directory = PrivateDir::create()?;
        // The program may load libraries after it has changed its user.
        let links = PrivateDir::create_readable()?;
        let mut variables = launch::prepare(&apis, &links.path().join("lib"))?;
        if command.share_heap {
            anyhow::ensure!(
                !matches!(command.server, Some(NodeAddress::Remote(_))),
                "--share-heap: a node on another machine cannot map this program's memory; leave the option out"
            );
            launch::share_heap(&mut variables)?;
        }
        warn_of_bypasses(&command.command[0], &apis);
        let strays = Strays::new(dropins(&apis));
        // API servers reach the cards of their node only.
        let of_node = !only_card && command.server.is_none();
        let place = directory.path().join("card.sock");
        let (mut card, mut cards) = (None, Vec::new());
        anyhow::ensure!(
            !command.waveforms.are_wanted() || command.fpga.is_some() && !of_node,
            "--trace: needs the option --fpga, and not --api: a node's cards record no waveforms"
        );
        match command.fpga.as_deref() {
            Some(image) if of_node => cards.push(card_of_node(image, &place, &mut variables)?),
            Some(image) => card = Some(give_card(image, &place, command, &mut variables)?),
            None => {}
        }
        let vendors = fpga::own_libraries(&apis);
        let (backend, address) = start_backend(command, &directory, search, vendors, cards)?;
        let own = !matches!(backend, Backend::Direct);
        let entry = address.strip_prefix("unix:").filter(|_| own).map(PathBuf::from);
        variables.insert("AVIARY_SERVER".into(), address.into());
        variables.insert(MARK.into(), directory.path().into());
        if command.mirror {
            variables.insert("AVIARY_TRANSPORT".into(), "stream".into());
        }
        if command.relaxed {
            variables.insert("AVIARY_RELAXED".into(), "1".into());
        }
        let service = Service { backend, _card: card, directory, _links: links, strays };
        Ok((service, Answer { variables, entry }))
    }

    /// Lets processes of the program in that cannot use the node's socket.
    pub fn open_entrances(&self, channel: &UnixStream) -> io::Result<()> {
        match &self.backend {
            Backend::Private(node) => entrances::open(&node.entrance(), channel, node.address().path()),
            Backend::Direct | Backend::Relay(_) => Ok(()),
        }
    }

    /// To look for vendors' libraries that the program has loaded past the guest libraries.
    pub fn take_strays(&mut self) -> Strays {
        std::mem::take(&mut self.strays)
    }

    /// The value of [`MARK`].
    pub fn mark(&self) -> &OsStr {
        self.directory.path().as_os_str()
    }

    /// Accepts no guest from now on, and ends once none is left.
    pub fn drain(&self) {
        self.backend.drain();
    }

    pub fn is_finished(&self) -> bool {
        self.backend.is_finished()
    }

    /// Guests that are served now.
    pub fn busy(&self) -> usize {
        self.backend.busy()
    }
}

/// Sonames of vendors' libraries in whose places guest libraries are, and those.
fn dropins(apis: &[apis::Api]) -> impl Iterator<Item = (String, PathBuf)> {
    let steps = apis.iter().flat_map(|api| api.launch.iter().map(move |step| (api, step)));
    steps.filter_map(|(api, step)| match step {
        apis::Launch::DropIn { soname, only_if_missing: false } => Some((soname.clone(), api.library.clone())),
        _ => None,
    })
}

/// Says which vendors' libraries the program loads past their guest libraries, or that it can load no guest library.
fn warn_of_bypasses(program: &OsStr, apis: &[apis::Api]) {
    let Some(started) = Started::by(program) else { return };
    if let Some(why) = other_c_library(&started) {
        eprintln!("aviary: warning: {why}");
    }
    let sonames: Vec<String> = dropins(apis).map(|(soname, _)| soname).collect();
    for bypass in bypasses(started, &sonames.iter().map(String::as_str).collect()) {
        eprintln!("aviary: warning: {bypass}");
    }
}

/// A private node serves what this machine has: programs that look for an accelerator which is not here should find
/// nothing, as without Aviary. Of nothing at all they are told.
fn keep_those_of_this_machine(apis: &mut Vec<apis::Api>) {
    let here = |api: &apis::Api| {
        // Somebody who names another library has it.
        aviary_server::vendor_place(&api.name, &api.soname) != api.soname || find_library(&api.soname).is_some()
    };
    if apis.iter().any(here) {
        apis.retain(here);
    }
}

/// A card for the program, and where it finds that and the library.
fn give_card(
    image: &str,
    socket: &Path,
    command: &RunCommand,
    variables: &mut Variables,
) -> anyhow::Result<fpga::PrivateCard> {
    let card = fpga::PrivateCard::start(image, socket, Limits::default(), &command.waveforms)?;
    launch::set(variables, "LD_LIBRARY_PATH", card.folder.as_os_str());
    variables.insert(fpga::CARD_VARIABLE.into(), format!("unix:{}", socket.display()).into());
    Ok(card)
}

/// A card of the private node, for API servers and for the program itself. Guest libraries go before the library beside
/// the image.
fn card_of_node(image: &str, socket: &Path, variables: &mut Variables) -> anyhow::Result<CardSettings> {
    let file = fpga::find_image(image)?;
    let folder = file.parent().unwrap_or(Path::new("."));
    launch::add_last(variables, "LD_LIBRARY_PATH", folder.as_os_str());
    variables.insert(fpga::CARD_VARIABLE.into(), format!("unix:{}", socket.display()).into());
    let image = file.to_str().context("the image's path is not UTF-8")?.to_owned();
    Ok(CardSettings { name: "card0".into(), image, socket: socket.to_owned(), mode: CARD_MODE })
}

/// The relay that the program's connections go through in this process.
enum Backend {
    /// Nothing: a node's own socket.
    Direct,
    Private(Node),
    Relay(Relay),
}

/// And the address where the program finds it.
fn start_backend(
    command: &RunCommand,
    directory: &PrivateDir,
    modules: Vec<PathBuf>,
    vendors: BTreeMap<String, String>,
    cards: Vec<CardSettings>,
) -> anyhow::Result<(Backend, String)> {
    match &command.server {
        Some(NodeAddress::Local(address)) => Ok((Backend::Direct, address.to_string())),
        Some(NodeAddress::Remote(address)) => {
            let socket = directory.path().join("relay.sock");
            let verbose = command.log_level > Level::Warn;
            let relay = command.remote.start(address, &socket, verbose)?;
            Ok((Backend::Relay(relay), format!("unix:{}", socket.display())))
        }
        None => {
            wait_for_ending_nodes();
            let node = start_node(command, directory, modules, vendors, cards)?;
            let address = node.address().to_string();
            Ok((Backend::Private(node), address))
        }
    }
}

impl Backend {
    fn drain(&self) {
        if let Backend::Private(node) = self {
            node.drain();
        }
    }

    fn is_finished(&self) -> bool {
        match self {
            Backend::Direct => true,
            Backend::Private(node) => node.is_finished(),
            Backend::Relay(relay) => relay.busy() == 0,
        }
    }

    /// Guests that are served now.
    fn busy(&self) -> usize {
        match self {
            Backend::Direct => 0,
            Backend::Private(node) => node.busy(),
            Backend::Relay(relay) => relay.busy(),
        }
    }
}

fn start_node(
    command: &RunCommand,
    directory: &PrivateDir,
    modules: Vec<PathBuf>,
    vendors: BTreeMap<String, String>,
    cards: Vec<CardSettings>,
) -> anyhow::Result<Node> {
    let servers = ApiServerCommand::own()?;
    let mut config = NodeConfig::new(PathBuf::new(), servers);
    config.launch_slice = crate::daemons::serve::launch_slice()?;
    config.test_move_every = crate::daemons::serve::test_move_every()?;
    config.test_move_kind = crate::daemons::serve::test_move_kind()?;
    config.parked_memory = crate::daemons::remote::usual_memory();
    (config.modules, config.vendors) = (modules, vendors);
    config.cards = cards;
    config.log = command.log_level;
    crate::config::amount::add_limits(&mut config.tenants, &command.limit);
    config.tenants.only_devices = Some(command.only_device.clone()).filter(|names| !names.is_empty());
    Ok(Node::start_private(directory, config)?)
}
