//! Sessions over connections that something in between resets, with all threads.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Mutex;

use aviary_transport::{Arena, ControlSocket};

use super::*;
use crate::frames::frame::Kind;
use crate::output::Output;
use crate::resuming::resume::{Resumed, Ticket};

/// Longer than any of these tests: nothing here ends because time has passed.
const GRACE: Duration = Duration::from_secs(600);

/// A connection through something that resets it after so many bytes of one direction.
fn connection(bytes: usize) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let connect = || {
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (one, listener.accept().unwrap().0)
    };
    let ((one, near), (other, far)) = (connect(), connect());
    let ends = Arc::new(Mutex::new(Some((near.try_clone().unwrap(), far.try_clone().unwrap()))));
    for (mut from, mut to) in [(near.try_clone().unwrap(), far.try_clone().unwrap()), (far, near)] {
        let ends = ends.clone();
        std::thread::spawn(move || {
            let (mut left, mut piece) = (bytes, vec![0; 4096]);
            while left > 0 {
                let most = left.min(piece.len());
                match from.read(&mut piece[..most]) {
                    // An orderly end of one direction.
                    Ok(0) => {
                        let _ = to.shutdown(Shutdown::Write);
                        return;
                    }
                    Ok(n) if to.write_all(&piece[..n]).is_ok() => left -= n,
                    // One end has reset it.
                    _ => break,
                }
            }
            if let Some((near, far)) = ends.lock().unwrap().take() {
                reset(&near);
                reset(&far);
            }
        });
    }
    (one, other)
}

/// Ends a connection as a router does that has forgotten it.
fn reset(socket: &TcpStream) {
    let _ = rustix::net::connect_unspec(socket);
}

/// Where connections come from: the relay's end makes them, the gateway's gets them.
struct Exchange {
    /// Of the gateway's end.
    arrivals: Mutex<Option<Sender<Event>>>,
    /// Bytes after which the next connections are cut, the last first; then they last.
    cuts: Mutex<Vec<usize>>,
    ticket: Ticket,
}

struct Dials(Arc<Exchange>);
struct Waits(Arc<Exchange>);

impl Reconnection for Dials {
    fn begin(&mut self, _: &Sender<Event>) -> io::Result<()> {
        Ok(())
    }

    fn search(&mut self, received: u64, _: Instant, events: &Sender<Event>) {
        let (exchange, events) = (self.0.clone(), events.clone());
        std::thread::spawn(move || {
            loop {
                let cut = exchange.cuts.lock().unwrap().pop().unwrap_or(usize::MAX);
                let (one, other) = connection(cut);
                let shown = Some(Proof { ticket: exchange.ticket, number: 1, received });
                let link = Link::new(other, None, GRACE).unwrap();
                let told = exchange.arrivals.lock().unwrap().clone().unwrap();
                if told.send(Event::Back(Box::new(Arrival { link, received, shown, role: Role::First }))).is_err() {
                    return;
                }
                let mut link = Link::new(one, None, GRACE).unwrap();
                if let Ok(resumed) = link.receive(Kind::Resumed, Instant::now() + GRACE) {
                    let received = Resumed::from_bytes(&resumed).unwrap().received;
                    let _ =
                        events.send(Event::Back(Box::new(Arrival { link, received, shown: None, role: Role::First })));
                    return;
                }
            }
        });
    }

    fn leads(&mut self, _: Link, _: &[u8]) -> Result<Arrival, String> {
        unreachable!("there are no strands")
    }

    fn admits(&self, _: &Arrival) -> bool {
        true
    }

    fn answer(&mut self, _: &mut Arrival, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn confirm(&mut self) {}

    fn stop(&mut self) {}
}

impl Reconnection for Waits {
    fn begin(&mut self, events: &Sender<Event>) -> io::Result<()> {
        *self.0.arrivals.lock().unwrap() = Some(events.clone());
        Ok(())
    }

    fn search(&mut self, _: u64, _: Instant, _: &Sender<Event>) {}

    fn leads(&mut self, _: Link, _: &[u8]) -> Result<Arrival, String> {
        unreachable!("there are no strands")
    }

    fn admits(&self, arrival: &Arrival) -> bool {
        arrival.shown.is_some()
    }

    fn answer(&mut self, arrival: &mut Arrival, received: u64) -> io::Result<()> {
        arrival.link.send(Kind::Resumed, &Resumed { ticket: self.0.ticket, received }.to_bytes())
    }

    fn confirm(&mut self) {}

    fn stop(&mut self) {}
}

/// A gateway's carrier whose API server prints, and a relay's that shows it.
struct Pair {
    exchange: Arc<Exchange>,
    /// The API server's end of its output.
    prints: File,
    /// The application's end.
    shown: File,
    /// The local peers: API server and guest.
    locals: [UnixStream; 2],
    /// Gateway and relay.
    ends: [JoinHandle<io::Result<String>>; 2],
}

impl Pair {
    /// The first connection is cut after `first` bytes, the next ones as [`Exchange::cuts`] say.
    fn new(first: usize, cuts: Vec<usize>) -> Self {
        let (out, prints) = io::pipe().unwrap();
        let (shown, sink) = io::pipe().unwrap();
        let (gateway_control, server) = UnixStream::pair().unwrap();
        let (relay_control, guest) = UnixStream::pair().unwrap();
        let arena = || Arena::create(1 << 20).unwrap();
        let gateway_output = Output::sources([Some(out.into()), None]);
        let gateway_control = ControlSocket::new(gateway_control.into());
        let gateway = Carrier::gateway(arena(), 1 << 20, gateway_control, gateway_output, GRACE);
        let relay_output = Output::sinks([Some(sink.into()), None]);
        let relay = Carrier::relay(arena(), ControlSocket::new(relay_control.into()), relay_output, GRACE);
        let (one, other) = connection(first);
        let ticket = Ticket::random().unwrap();
        let exchange = Arc::new(Exchange { arrivals: Mutex::default(), cuts: Mutex::new(cuts), ticket });
        let start = |carrier: Arc<Carrier>, socket: TcpStream, way: Box<dyn Reconnection>| {
            let link = Link::new(socket, None, GRACE).unwrap();
            // The bytes of a connection are those that were printed.
            std::thread::spawn(move || carrier.run(link, Compression::Off, way))
        };
        let gateway = start(gateway, other, Box::new(Waits(exchange.clone())));
        // The relay's end may search as soon as it runs.
        while exchange.arrivals.lock().unwrap().is_none() {
            std::thread::yield_now();
        }
        let ends = [gateway, start(relay, one, Box::new(Dials(exchange.clone())))];
        let [prints, shown] = [OwnedFd::from(prints), OwnedFd::from(shown)].map(File::from);
        Pair { exchange, prints, shown, locals: [server, guest], ends }
    }

    /// Printed bytes are shown, however often the connection breaks.
    fn print(&mut self, bytes: usize) {
        let printed: Vec<u8> = (0..bytes).map(|at| (at ^ at >> 8 ^ at >> 16) as u8).collect();
        let mut shown = vec![0; bytes];
        std::thread::scope(|scope| {
            scope.spawn(|| self.prints.write_all(&printed).unwrap());
            self.shown.read_exact(&mut shown).unwrap();
        });
        assert!(shown == printed);
    }
}

#[test]
fn session_goes_on_over_a_hundred_broken_connections() {
    let cuts = (0..100).map(|n| n * n * 7 % 40_000).collect();
    let mut pair = Pair::new(3000, cuts);
    pair.print(3 << 20);
    assert_eq!(pair.exchange.cuts.lock().unwrap().len(), 0, "all of them broke");
    let Pair { prints, locals: [server, _guest], ends: [gateway, relay], .. } = pair;
    drop((prints, server));
    assert_eq!(gateway.join().unwrap().unwrap(), "the API server has ended");
    assert_eq!(relay.join().unwrap().unwrap(), "the peer ended the session");
}

#[test]
fn only_a_ticket_displaces_a_connection_and_its_counts_are_checked() {
    let mut pair = Pair::new(usize::MAX, Vec::new());
    pair.print(100_000);
    let events = pair.exchange.arrivals.lock().unwrap().clone().unwrap();
    let (mut refused, wrong) = connection(usize::MAX);
    let link = Link::new(wrong, None, GRACE).unwrap();
    events.send(Event::Back(Box::new(Arrival { link, received: 0, shown: None, role: Role::First }))).unwrap();
    assert_eq!(refused.read(&mut [0]).unwrap(), 0, "it is closed without an answer");
    pair.print(100_000);
    let (_right, other) = connection(usize::MAX);
    let link = Link::new(other, None, GRACE).unwrap();
    let shown = Some(Proof { ticket: pair.exchange.ticket, number: 1, received: u64::MAX });
    events.send(Event::Back(Box::new(Arrival { link, received: u64::MAX, shown, role: Role::First }))).unwrap();
    let [gateway, _] = pair.ends;
    let why = gateway.join().unwrap().unwrap();
    assert!(why.contains("acknowledged 18446744073709551615 packets"), "{why}");
}

#[test]
fn session_without_a_connection_ends_with_its_api_server() {
    // Every connection is cut at once, for as long as the test lasts.
    let Pair { locals: [server, _guest], ends: [gateway, _], prints, .. } = Pair::new(1, vec![0; 100_000]);
    drop((server, prints));
    assert_eq!(gateway.join().unwrap().unwrap(), "the API server has ended");
}
