//! The card's end of the control socket to its node: clients whose tenants the node knows, and figures for people.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use aviary_card::Board;
use aviary_control::{
    CardClient, ClientFigures, FromCard, Patience, PortFigures, PortRule, PortScheduler, PortTenant, Received, ToCard,
    receive, send,
};
use aviary_gate::{TenantPage, TenantSlot, fits};
use aviary_schedule::{Discipline, Fair, RoundRobin, Share};

use super::account::MemoryAccount;
use super::client::{Client, ClientTerms, Threads};
use crate::mediator::{Mediator, USUAL_TURN};
use crate::turns::{PortUse, nanoseconds};
use crate::virtual_accelerator::Owner;

/// Time between two reports of figures.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);
/// Messages of the node between two looks at the clients.
const MESSAGES_PER_LOOK: usize = 16;
/// Tenants of a port in a report: a message has 64 KB.
const REPORTED_TENANTS: usize = 128;

/// The end of the node.
#[derive(Debug)]
pub struct NodeGone;

/// The control socket.
#[derive(Debug)]
pub struct NodeLink {
    control: OwnedFd,
    /// The card's name in the node's configuration.
    card: String,
    /// Ends of sessions, and answers to moves, that the node was not told yet.
    untold: Vec<FromCard>,
    ports: BTreeMap<String, PortFigures>,
    clients: BTreeMap<u64, ClientFigures>,
    report_at: Option<Instant>,
}

impl NodeLink {
    pub fn new(control: OwnedFd, card: String) -> NodeLink {
        NodeLink {
            control,
            card,
            untold: Vec::new(),
            ports: BTreeMap::new(),
            clients: BTreeMap::new(),
            report_at: None,
        }
    }

    pub fn control(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }

    /// Something waits for room in the socket.
    pub fn wants_room(&self) -> bool {
        !self.untold.is_empty()
    }

    pub fn deadline(&self) -> Option<Instant> {
        self.report_at
    }

    /// Tells that the card serves.
    ///
    /// # Errors
    /// The node has gone.
    pub fn tell_ready<B: Board>(&self, mediator: &Mediator<B>) -> Result<(), NodeGone> {
        let ports = mediator.port_names().map(str::to_owned).collect();
        send(self.control.as_fd(), &FromCard::Ready { ports }, &[], Patience::Waits).map_err(|_| NodeGone)
    }

    /// Takes what the node says.
    ///
    /// # Errors
    /// The node has gone, or is of another version.
    pub fn hear<B: Board>(
        &mut self,
        mediator: &mut Mediator<B>,
        clients: &mut Vec<Client>,
        threads: &Threads,
    ) -> Result<(), NodeGone> {
        for _ in 0..MESSAGES_PER_LOOK {
            match receive(self.control.as_fd()) {
                Received::Message(ToCard::Admit(client), descriptors) => {
                    match self.admit(*client, descriptors, threads) {
                        Ok(client) => clients.push(client),
                        Err(session) => self.untold.push(FromCard::Ended { session }),
                    }
                }
                Received::Message(ToCard::Share { tenant, weight, priority }, _) => {
                    mediator.set_share(&tenant, share(weight, priority));
                }
                Received::Message(ToCard::End { sessions }, _) => {
                    clients.iter_mut().filter(|client| sessions.contains(&client.session())).for_each(Client::end);
                }
                Received::Message(ToCard::Move { session, port }, _) => {
                    let refusal = move_client(mediator, clients, session, &port).err();
                    self.untold.push(FromCard::Moved { session, refusal });
                }
                Received::Message(ToCard::Rules { rules }, _) => self.apply(mediator, &rules),
                Received::Nothing => return Ok(()),
                Received::Garbage(_) | Received::Closed => return Err(NodeGone),
            }
        }
        Ok(())
    }

    /// Its session where it cannot be served.
    fn admit(&self, client: CardClient, mut descriptors: Vec<OwnedFd>, threads: &Threads) -> Result<Client, u64> {
        let session = client.session;
        let (Some(page), Some(socket)) = (descriptors.pop(), descriptors.pop()) else { return Err(session) };
        let page = TenantPage::open(page.as_fd()).map_err(|_| session)?;
        let slot = TenantSlot::new(page, client.slot).ok_or(session)?;
        let account = MemoryAccount::of_tenant(&slot, &self.card).map_err(|_| session)?;
        let terms = ClientTerms {
            session,
            owner: Owner { tenant: client.tenant, share: share(client.weight, client.priority) },
            card: self.card.clone(),
            only_devices: client.only_devices,
        };
        Ok(Client::new(socket, account, terms, threads))
    }

    fn apply<B: Board>(&self, mediator: &mut Mediator<B>, rules: &[PortRule]) {
        let names: Vec<String> = mediator.port_names().map(|port| format!("{}/{port}", self.card)).collect();
        for (port, name) in names.iter().enumerate() {
            let rule = rules.iter().find(|rule| fits(&rule.name, name));
            mediator.set_discipline(port, discipline(rule));
        }
    }

    /// The client of this session has gone.
    pub fn note_end(&mut self, session: u64) {
        self.clients.remove(&session);
        self.untold.push(FromCard::Ended { session });
    }

    /// Tells ends, and figures that have changed. The node reads them sooner or later: figures for which there is no room are told
    /// the next time.
    pub fn report<B: Board>(&mut self, mediator: &mut Mediator<B>, clients: &[Client], now: Instant) {
        let control = self.control.as_fd();
        let tell = |message: &FromCard| send(control, message, &[], Patience::None).is_ok();
        self.untold.retain(|message| !tell(message));
        let busy = mediator.is_busy();
        if self.report_at.is_some_and(|at| now < at) {
            return;
        }
        let mut changed = false;
        let names: Vec<String> = mediator.port_names().map(str::to_owned).collect();
        for (number, port) in names.iter().enumerate() {
            let figures = port_figures(mediator, number, port);
            if self.ports.get(port) != Some(&figures) {
                changed = true;
                if tell(&FromCard::Port(figures.clone())) {
                    self.ports.insert(port.clone(), figures);
                }
            }
        }
        for client in clients {
            let figures = client.figures(mediator, &names);
            if self.clients.get(&figures.session) != Some(&figures) {
                changed = true;
                if tell(&FromCard::Client(figures.clone())) {
                    self.clients.insert(figures.session, figures);
                }
            }
        }
        // Once more after the last change.
        self.report_at = (busy || changed).then(|| now + REPORT_INTERVAL);
    }
}

/// The virtual accelerator of a session goes to another port. The client does not notice.
fn move_client<B: Board>(
    mediator: &mut Mediator<B>,
    clients: &[Client],
    session: u64,
    port: &str,
) -> Result<(), String> {
    let client = clients.iter().find(|client| client.session() == session).ok_or("the program has ended")?;
    let id = client.id().ok_or("the program has no accelerator yet")?;
    if !client.may_use(port) {
        return Err("its tenant may not use the port (only_devices)".into());
    }
    let number = mediator.port_names().position(|name| name == port).ok_or("the card has no such port")?;
    mediator.move_to(id, number).map_err(|error| error.to_string())
}

fn port_figures<B: Board>(mediator: &Mediator<B>, number: usize, port: &str) -> PortFigures {
    let of = |(tenant, waiting): (PortUse, usize)| PortTenant {
        tenant: tenant.tenant,
        weight: tenant.share.weight,
        priority: tenant.share.priority,
        used_ns: tenant.used_ns,
        sessions: tenant.members.len(),
        waiting,
    };
    let mut uses: Vec<(PortUse, usize)> = mediator.port_uses(number);
    // Those that are there first.
    uses.sort_by_key(|(tenant, _)| tenant.members.is_empty());
    PortFigures { port: port.to_owned(), tenants: uses.into_iter().take(REPORTED_TENANTS).map(of).collect() }
}

fn share(weight: u32, priority: i32) -> Share {
    Share { weight: weight.max(1), priority, cap: None }
}

/// That of a rule, or the usual one.
fn discipline(rule: Option<&PortRule>) -> Box<dyn Discipline> {
    let slice = rule.and_then(|rule| rule.slice_ns).unwrap_or(nanoseconds(USUAL_TURN)).max(1);
    match rule.map_or(PortScheduler::Fair, |rule| rule.scheduler) {
        PortScheduler::Fair => Box::new(Fair::new(slice)),
        PortScheduler::RoundRobin => Box::new(RoundRobin::equal(slice)),
        PortScheduler::Slices => Box::new(RoundRobin::weighted(slice)),
        PortScheduler::Priority => Box::new(RoundRobin::by_priority(slice)),
    }
}
