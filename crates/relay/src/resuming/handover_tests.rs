//! Connections that come for a session, honest and others, with all of TLS. The test is the node and the other gateway.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};

use aviary_transport::RemoteAddress;
use aviary_wire::Control;
use aviary_wire::attach::PREFIX;

use super::*;
use crate::carry::link::Compression;
use crate::dial::{RelayOptions, secure};
use crate::keys::identity::{Days, write_identities};
use crate::keys::security::ClientSecurity;
use crate::resuming::resume::SessionName;

const SESSION: SessionName = [5; 16];
const GRACE: Duration = Duration::from_secs(60);
/// Longer than any of these tests.
const LONG: Duration = Duration::from_secs(120);

struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let name = u64::from_le_bytes(crate::resuming::resume::random().unwrap());
        let path = std::env::temp_dir().join(format!("aviary-handover-{name:x}"));
        let days = Days { node: 1, tenant: 1 };
        for tenant in ["alice", "bob"] {
            write_identities(&path, &["localhost".to_owned()], tenant, days, false).unwrap();
        }
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A session of alice's.
struct Session {
    folder: Folder,
    node: UnixStream,
    way: HandOvers,
    events: Receiver<Event>,
    ticket: Ticket,
    /// Of the last proof that was shown.
    number: u64,
    strands: StrandKey,
}

impl Session {
    fn new() -> Self {
        let folder = Folder::new();
        let (node, report) = UnixStream::pair().unwrap();
        let security = NodeSecurity::load(&folder.0.join("node"), None).unwrap();
        let ticket = Ticket::random().unwrap();
        let strands = Ticket::random().unwrap();
        let resumption = Resumption { session: SESSION, ticket, strands, grace: GRACE };
        let mut way = HandOvers::new(report.into(), security, "alice".to_owned(), resumption, LONG);
        let (told, events) = channel();
        way.begin(&told).unwrap();
        Session { folder, node, way, events, ticket, number: 0, strands: StrandKey::new(strands) }
    }

    fn options(&self, tenant: &str) -> RelayOptions {
        let folder = self.folder.0.join(format!("tenant-{tenant}"));
        RelayOptions {
            node: RemoteAddress::Tcp { host: "localhost".to_owned(), port: 1 },
            security: ClientSecurity::load(Some(&folder), None, None).unwrap(),
            patience: LONG,
            compression: Compression::Off,
            strands: None,
            verbose: false,
            dialer: None,
        }
    }

    /// The node's and the other gateway's part: the client's end of a connection that the session's gateway has taken.
    fn pass(&self) -> TcpStream {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (connection, _) = listener.accept().unwrap();
        let (gateway, theirs) = UnixStream::pair().unwrap();
        send_greeting(&self.node, &Control::default().to_bytes(), &[theirs.as_fd()]).unwrap();
        send_greeting(&gateway, &Hello::default().to_bytes(), &[connection.as_fd()]).unwrap();
        assert_eq!(receive_greeting(&gateway, LONG).unwrap().status, welcome_status::OK);
        client
    }

    /// A client's connection that has shown this.
    fn show(&self, tenant: &str, session: SessionName, proof: Option<Proof>) -> Link {
        self.show_as(tenant, session, proof, false)
    }

    /// As that; `joins`: a strand's.
    fn show_as(&self, tenant: &str, session: SessionName, proof: Option<Proof>, joins: bool) -> Link {
        let mut link = secure(&self.options(tenant), self.pass(), LONG).unwrap();
        link.send(Kind::Resume, &Resume { token: Vec::new(), session, proof, joins }.to_bytes()).unwrap();
        link
    }

    fn is_refused(&self, tenant: &str, session: SessionName, proof: Option<Proof>) {
        self.is_refused_as(tenant, session, proof, false);
    }

    fn is_refused_as(&self, tenant: &str, session: SessionName, proof: Option<Proof>, joins: bool) {
        let mut link = self.show_as(tenant, session, proof, joins);
        let refusal = link.receive(Kind::Welcome, Instant::now() + LONG).unwrap();
        let welcome = Welcome::from_body(&refusal[PREFIX..]).unwrap();
        assert_eq!((welcome.status, &welcome.text[..]), (welcome_status::OVER, NOT_OURS));
        assert!(self.events.try_recv().is_err(), "nobody is told");
    }

    fn arrival(&self) -> Arrival {
        match self.events.recv_timeout(LONG) {
            Ok(Event::Back(arrival)) => *arrival,
            _ => panic!("no connection"),
        }
    }

    /// A client comes with a ticket that counts; the next one.
    fn resume(&mut self, ticket: Ticket, received: u64) -> Ticket {
        self.number += 1;
        let proof = Proof { ticket, number: self.number, received };
        let mut link = self.show("alice", SESSION, Some(proof));
        let mut arrival = self.arrival();
        assert_eq!(arrival.received, received);
        assert!(self.way.admits(&arrival));
        self.way.answer(&mut arrival, 77).unwrap();
        let resumed = link.receive(Kind::Resumed, Instant::now() + LONG).unwrap();
        let resumed = Resumed::from_bytes(&resumed).unwrap();
        assert_eq!(resumed.received, 77);
        resumed.ticket
    }
}

fn proof(ticket: Ticket) -> Option<Proof> {
    Some(Proof { ticket, number: u64::MAX, received: 3 })
}

#[test]
fn a_ticket_counts_for_its_session_and_tenant_only() {
    let session = Session::new();
    let own = session.ticket;
    session.is_refused("alice", SESSION, proof(Ticket::random().unwrap()));
    session.is_refused("alice", SESSION, None);
    session.is_refused("alice", [6; 16], proof(own));
    session.is_refused("bob", SESSION, proof(own));
    session.show("alice", SESSION, proof(own));
    assert_eq!(session.arrival().received, 3);
}

#[test]
fn a_ticket_is_renewed_and_counts_no_more_once_its_successor_has_arrived() {
    let mut session = Session::new();
    let first = session.ticket;
    let second = session.resume(first, 0);
    // The answer may not have arrived.
    let third = session.resume(first, 5);
    session.is_refused("alice", SESSION, proof(second));
    session.way.confirm();
    session.is_refused("alice", SESSION, proof(first));
    let fourth = session.resume(third, 6);
    session.way.confirm();
    session.is_refused("alice", SESSION, proof(third));
    session.resume(fourth, 7);
}

#[test]
fn of_two_connections_with_one_ticket_the_later_finds_it_used() {
    let mut session = Session::new();
    let ticket = session.ticket;
    let _one = session.show("alice", SESSION, proof(ticket));
    let mut first = session.arrival();
    let _other = session.show("alice", SESSION, proof(ticket));
    let second = session.arrival();
    session.way.answer(&mut first, 0).unwrap();
    session.way.confirm();
    assert!(!session.way.admits(&second));
}

#[test]
fn a_connection_that_says_nothing_makes_room_for_a_newer_one() {
    let mut session = Session::new();
    let silent: Vec<TcpStream> = (0..20).map(|_| session.pass()).collect();
    let ticket = session.ticket;
    session.resume(ticket, 1);
    drop(silent);
}

#[test]
fn a_connection_that_is_no_client_is_closed() {
    let session = Session::new();
    let mut stranger = session.pass();
    stranger.set_read_timeout(Some(LONG)).unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\nHost: node\r\n\r\n").unwrap();
    let mut told = Vec::new();
    // To its end, or until it is reset: what is not read may be lost.
    let end = stranger.read_to_end(&mut told).map_err(|error| error.kind());
    assert!(matches!(end, Ok(_) | Err(io::ErrorKind::ConnectionReset)), "{end:?}");
    assert!(session.events.try_recv().is_err(), "nobody is told");
}

#[test]
fn the_node_hears_of_a_connection_that_is_lost_and_found() {
    use std::io::Read;
    let mut session = Session::new();
    let (told, _events) = channel();
    session.way.search(0, Instant::now(), &told);
    let ticket = session.ticket;
    session.resume(ticket, 1);
    let mut lines = [0; 100];
    let n = session.node.read(&mut lines).unwrap();
    let lines = std::str::from_utf8(&lines[..n]).unwrap();
    let since = lines.strip_prefix("away ").and_then(|rest| rest.strip_suffix("\nback\n")).unwrap();
    assert!(since.parse::<i64>().unwrap() > 0);
}

#[test]
fn a_strand_joins_its_session_once_with_each_proof_and_none_of_another_tenant_does() {
    let mut session = Session::new();
    let own = session.strands.next();
    let forged = Proof { ticket: Ticket::random().unwrap(), ..own };
    let of_session = Proof { ticket: session.ticket, ..own };
    for (tenant, name, shown) in [
        ("alice", SESSION, Some(forged)),
        ("alice", SESSION, Some(of_session)),
        ("alice", SESSION, None),
        ("alice", [6; 16], Some(own)),
        ("bob", SESSION, Some(own)),
    ] {
        session.is_refused_as(tenant, name, shown, true);
    }
    session.is_refused("alice", SESSION, Some(own));
    let mut link = session.show_as("alice", SESSION, Some(own), true);
    let mut arrival = session.arrival();
    assert_eq!(arrival.role, Role::Joins);
    session.way.welcome(&mut arrival.link).unwrap();
    link.receive(Kind::Welcome, Instant::now() + LONG).unwrap();
    session.is_refused_as("alice", SESSION, Some(own), true);
    let (later, last) = (session.strands.next(), session.strands.next());
    session.show_as("alice", SESSION, Some(last), true);
    assert_eq!(session.arrival().role, Role::Joins);
    session.is_refused_as("alice", SESSION, Some(later), true);
    // The session's own ticket is not used up by it.
    let ticket = session.ticket;
    session.resume(ticket, 1);
}
