//! The relay's side of resuming a session: connects to the node again and shows the session's ticket. Used by
//! [`crate::carry::life`] after a connection has broken.
//!
//! A connection that resumes a session has two TLS sessions, one after the other. In the first, a new gateway learns tenant
//! and session, and finds the gateway process of the session; in the second, that process checks the ticket.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use aviary_wire::Welcome;
use aviary_wire::attach::{PREFIX, welcome_status};

use crate::carry::life::{Arrival, Event, Reconnection, Role};
use crate::carry::link::Link;
use crate::carry::threads::thread;
use crate::dial::{RelayOptions, connect, secure};
use crate::frames::frame::{Kind, put_frame, put_packet};
use crate::resuming::resume::{Claims, Proof, Resume, Resumed, Resumption, StrandKey, random};
use crate::strands::together::MOST_STRANDS;

/// The most time for each step of an attempt; TCP sends a lost packet again after one second.
const STEP_TIMEOUT: Duration = Duration::from_secs(3);
/// The most time to wait for this connection's turn: the node admits resuming sessions one by one.
const TURN_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause after the first attempt; it doubles with each further one, up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// After a strand could not be made none is tried for so long.
const JOIN_PAUSE: Duration = Duration::from_secs(10);
/// A peer with this round trip is far.
const FAR: Duration = Duration::from_millis(1);

pub(crate) struct Redial {
    options: Arc<RelayOptions>,
    resumption: Resumption,
    /// The valid ticket; each answer of the node replaces it.
    claims: Arc<Mutex<Claims>>,
    stopped: Arc<AtomicBool>,
    strands: Arc<Mutex<StrandKey>>,
}

impl Redial {
    pub fn new(options: Arc<RelayOptions>, resumption: Resumption) -> Self {
        let claims = Arc::new(Mutex::new(Claims::new(resumption.ticket)));
        let strands = Arc::new(Mutex::new(StrandKey::new(resumption.strands)));
        Redial { options, resumption, claims, stopped: Arc::default(), strands }
    }

    fn claims(&self) -> MutexGuard<'_, Claims> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The reason why an attempt failed.
enum Failure {
    /// The next attempt may succeed.
    Passing,
    /// No attempt will succeed.
    Final(String),
}

impl Reconnection for Redial {
    fn begin(&mut self, _: &Sender<Event>) -> io::Result<()> {
        Ok(())
    }

    fn search(&mut self, received: u64, until: Instant, events: &Sender<Event>) {
        let (options, session, claims) = (self.options.clone(), self.resumption.session, self.claims.clone());
        let (stopped, told) = (self.stopped.clone(), events.clone());
        if options.verbose {
            let (node, grace) = (&options.node, self.resumption.grace);
            eprintln!("aviary: the connection to {node} is broken: reconnecting for at most {grace:?}; calls wait");
        }
        let attempts = move || {
            let mut attempt = 0;
            while !stopped.load(Ordering::SeqCst) && Instant::now() < until {
                let proof = claims.lock().unwrap_or_else(PoisonError::into_inner).next(received);
                let resume = |proof| Resume { token: options.security.token.clone(), session, proof, joins: false };
                match resume_once(&options, resume, proof, until) {
                    Ok((link, resumed)) => {
                        claims.lock().unwrap_or_else(PoisonError::into_inner).renew(resumed.ticket);
                        let arrival = Arrival { link, received: resumed.received, shown: None, role: Role::First };
                        let _ = told.send(Event::Back(Box::new(arrival)));
                        return;
                    }
                    Err(Failure::Final(why)) => {
                        let _ = told.send(Event::Over(why));
                        return;
                    }
                    Err(Failure::Passing) => {
                        let [chance] = random().unwrap_or([128]);
                        std::thread::sleep(pause(attempt, chance));
                        attempt += 1;
                    }
                }
            }
        };
        if let Err(error) = thread("redial", attempts) {
            let _ = events.send(Event::Over(format!("cannot start a thread to reconnect: {error}")));
        }
    }

    fn claim(&mut self, received: u64) -> Option<Vec<u8>> {
        let (session, proof) = (self.resumption.session, Some(self.claims().next(received)));
        // Whose strand it is was proven when it began.
        let resume = Resume { token: Vec::new(), session, proof, joins: false };
        let (mut frames, mut packet) = (Vec::new(), Vec::new());
        put_frame(&mut frames, Kind::Resume, 0, &resume.to_bytes());
        put_packet(&mut packet, &frames, false);
        Some(packet)
    }

    fn leads(&mut self, link: Link, said: &[u8]) -> Result<Arrival, String> {
        let Resumed { ticket, received } = Resumed::from_bytes(said).map_err(|error| error.to_string())?;
        self.claims().renew(ticket);
        Ok(Arrival { link, received, shown: None, role: Role::Leads })
    }

    fn admits(&self, _: &Arrival) -> bool {
        true
    }

    fn answer(&mut self, _: &mut Arrival, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn strands(&self, round_trip: Duration) -> usize {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        self.options.strands.unwrap_or_else(|| that_pay(processors, round_trip)).saturating_sub(1)
    }

    fn join(&mut self, count: usize, events: &Sender<Event>) {
        let (options, session, strands) = (self.options.clone(), self.resumption.session, self.strands.clone());
        let (stopped, told) = (self.stopped.clone(), events.clone());
        let attempts = move || {
            let resume = |proof| Resume { token: options.security.token.clone(), session, proof, joins: true };
            for _ in 0..count {
                if stopped.load(Ordering::SeqCst) {
                    break;
                }
                let proof = strands.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Ok(link) = join_once(&options, resume, proof) else {
                    // The session does without.
                    std::thread::sleep(JOIN_PAUSE);
                    break;
                };
                let arrival = Arrival { link, received: 0, shown: None, role: Role::Joins };
                let _ = told.send(Event::Back(Box::new(arrival)));
            }
            let _ = told.send(Event::Joined);
        };
        // Without a thread the session does without, too.
        let _ = thread("join", attempts);
    }

    fn confirm(&mut self) {}

    fn stop(&mut self) {
        self.stopped.store(true, Ordering::SeqCst);
    }
}

/// The pause after this attempt. `chance`, a random byte, spreads it, so that many relays behind one broken router do not
/// reconnect at the same moments.
fn pause(attempt: u32, chance: u8) -> Duration {
    let whole = FIRST_PAUSE.saturating_mul(1 << attempt.min(16)).min(LONGEST_PAUSE);
    whole / 2 + whole * u32::from(chance) / 512
}

/// Connections of a session that make it faster. A far peer: each has a window of its own. A near one: each needs a processor on
/// either side.
fn that_pay(processors: usize, round_trip: Duration) -> usize {
    if round_trip >= FAR { 1 + MOST_STRANDS } else { (processors / 2).clamp(1, 1 + MOST_STRANDS) }
}

fn join_once(options: &RelayOptions, resume: impl Fn(Option<Proof>) -> Resume, proof: Proof) -> Result<Link, Failure> {
    let mut link = show(options, resume, proof, Instant::now() + TURN_TIMEOUT)?;
    let welcome = link.receive(Kind::Welcome, Instant::now() + STEP_TIMEOUT).map_err(|_| Failure::Passing)?;
    check(&welcome).map(|()| link)
}

fn resume_once(
    options: &RelayOptions,
    resume: impl Fn(Option<Proof>) -> Resume,
    proof: Proof,
    until: Instant,
) -> Result<(Link, Resumed), Failure> {
    let mut link = show(options, resume, proof, until)?;
    match link.receive_one_of(&[Kind::Resumed, Kind::Welcome], Instant::now() + STEP_TIMEOUT) {
        Ok((Kind::Resumed, resumed)) => {
            Resumed::from_bytes(&resumed).map(|resumed| (link, resumed)).map_err(|e| Failure::Final(e.to_string()))
        }
        Ok((_, refusal)) => Err(check(&refusal).err().unwrap_or(Failure::Passing)),
        Err(_) => Err(Failure::Passing),
    }
}

/// Reaches the gateway of the session, and shows it the proof.
fn show(
    options: &RelayOptions,
    resume: impl Fn(Option<Proof>) -> Resume,
    proof: Proof,
    until: Instant,
) -> Result<Link, Failure> {
    let passing = |_: String| Failure::Passing;
    let failed = |_: io::Error| Failure::Passing;
    let mut link = connect(options, STEP_TIMEOUT).map_err(passing)?;
    link.send(Kind::Resume, &resume(None).to_bytes()).map_err(failed)?;
    let turn = until.min(Instant::now() + TURN_TIMEOUT);
    let welcome = link.receive(Kind::Welcome, turn).map_err(failed)?;
    check(&welcome)?;
    let mut link = secure(options, link.into_socket(), STEP_TIMEOUT).map_err(passing)?;
    link.send(Kind::Resume, &resume(Some(proof)).to_bytes()).map_err(failed)?;
    Ok(link)
}

/// Reads the node's answer. A node without room may have room later; a node without the session will never have it.
fn check(welcome: &[u8]) -> Result<(), Failure> {
    let welcome = Welcome::from_body(welcome.get(PREFIX..).unwrap_or_default());
    match welcome.map_err(|e| Failure::Final(e.to_string()))? {
        Welcome { status: welcome_status::OK, .. } => Ok(()),
        Welcome { status: welcome_status::OVER, text, .. } => Err(Failure::Final(text)),
        _ => Err(Failure::Passing),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_differ_by_chance() {
        for attempt in [0, 1, 3, 5, 10, 1000, u32::MAX] {
            let (least, most) = (pause(attempt, 0), pause(attempt, 255));
            assert!(least < most && most <= LONGEST_PAUSE, "{attempt}");
            assert!(least >= FIRST_PAUSE / 2);
        }
        assert_eq!(pause(0, 0), FIRST_PAUSE / 2);
        assert!(pause(1, 0) > pause(0, 0) && pause(20, 0) == LONGEST_PAUSE / 2);
    }
}
