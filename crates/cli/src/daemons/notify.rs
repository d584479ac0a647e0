//! What `aviary serve` tells the service manager that started it (`Type=notify` of systemd): that it serves, that it ends, and, if
//! the manager watches (`WatchdogSec=`), that its loop goes round. The manager waits for the first before it starts what comes after
//! the node, and ends a node that is silent. Without a manager nothing is sent.

use std::{
    ffi::OsStr,
    io,
    os::{
        linux::net::SocketAddrExt,
        unix::{
            ffi::OsStrExt,
            net::{SocketAddr, UnixDatagram},
        },
    },
    time::{Duration, Instant},
};

/// The variable that names the manager's socket: a path, or `@` and an abstract name.
const SOCKET: &str = "NOTIFY_SOCKET";
/// The variables of a manager that watches: after how many microseconds of silence it ends which process.
const SILENCE: &str = "WATCHDOG_USEC";
const WATCHED: &str = "WATCHDOG_PID";
/// A process is looked at so often in that time: one late look does no harm.
const LOOKS: u32 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
    /// The node accepts guests; after an upgrade again.
    Ready,
    Stopping,
    /// It does its work.
    Alive,
}

/// Tells a manager that watches.
#[derive(Debug)]
pub struct Watchdog {
    every: Duration,
    next: Option<Instant>,
    pulse: Option<u64>,
}

impl Watchdog {
    /// `None`: nobody watches this process.
    pub fn of_environment() -> Option<Self> {
        let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
        Self::of(number(SILENCE), number(WATCHED), std::process::id())
    }

    fn of(microseconds: Option<u64>, watched: Option<u64>, own: u32) -> Option<Self> {
        let silence =
            microseconds.filter(|time| *time > 0 && watched.is_none_or(|watched| watched == u64::from(own)))?;
        Some(Self { every: Duration::from_micros(silence) / LOOKS, next: None, pulse: None })
    }

    /// Tells it if it is time and the process has another pulse than the last time. Returns how long not to look again.
    pub fn look(&mut self, now: Instant, pulse: impl FnOnce() -> u64) -> Duration {
        if self.is_due(now) && self.beats(pulse()) {
            tell(Word::Alive);
        }
        self.next.map_or(self.every, |next| next.saturating_duration_since(now))
    }

    fn is_due(&mut self, now: Instant) -> bool {
        let due = self.next.is_none_or(|next| now >= next);
        if due {
            self.next = Some(now + self.every);
        }
        due
    }

    fn beats(&mut self, pulse: u64) -> bool {
        self.pulse.replace(pulse) != Some(pulse)
    }
}

/// Tells it, or says on standard error why it could not: the manager then ends the node when its patience does.
pub fn tell(word: Word) {
    let socket = std::env::var_os(SOCKET).filter(|name| !name.is_empty());
    if let Some(Err(error)) = socket.map(|name| send(&name, word)) {
        eprintln!("aviary: warning: {SOCKET}: {error}: the service manager does not know that this node is {word:?}");
    }
}

fn send(name: &OsStr, word: Word) -> io::Result<()> {
    let text = match word {
        Word::Ready => "READY=1",
        Word::Stopping => "STOPPING=1",
        Word::Alive => "WATCHDOG=1",
    };
    let address = match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(name)?,
    };
    let socket = UnixDatagram::unbound()?;
    // A manager whose queue is full is not waited for.
    socket.set_nonblocking(true)?;
    socket.send_to_addr(text.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use aviary_node::PrivateDir;

    fn heard(manager: &UnixDatagram) -> String {
        let mut text = [0; 64];
        let length = manager.recv(&mut text).unwrap();
        String::from_utf8(text[..length].to_vec()).unwrap()
    }

    #[test]
    fn manager_hears_both_words_at_a_path_and_at_an_abstract_name() {
        let directory = PrivateDir::create().unwrap();
        let path = directory.path().join("notify");
        let abstract_name = format!("aviary-notify-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&abstract_name).unwrap();
        let managers = [
            (UnixDatagram::bind(&path).unwrap(), path.into_os_string()),
            (UnixDatagram::bind_addr(&address).unwrap(), format!("@{abstract_name}").into()),
        ];
        for (manager, name) in &managers {
            send(name, Word::Ready).unwrap();
            send(name, Word::Stopping).unwrap();
            assert_eq!([heard(manager), heard(manager)], ["READY=1", "STOPPING=1"]);
        }
    }

    #[test]
    fn watchdog_of_another_process_or_of_none_is_not_ours() {
        assert!(Watchdog::of(None, None, 7).is_none());
        assert!(Watchdog::of(Some(0), None, 7).is_none());
        assert!(Watchdog::of(Some(30_000_000), Some(8), 7).is_none());
        let watchdog = Watchdog::of(Some(30_000_000), Some(7), 7).unwrap();
        assert_eq!(watchdog.every, Duration::from_secs(10));
    }

    #[test]
    fn a_process_whose_pulse_stands_still_is_not_called_alive() {
        let mut watchdog = Watchdog::of(Some(30_000_000), None, 7).unwrap();
        let start = Instant::now();
        assert!(watchdog.is_due(start) && watchdog.beats(1));
        assert!(!watchdog.is_due(start + Duration::from_secs(9)));
        assert_eq!(watchdog.look(start + Duration::from_secs(9), || unreachable!()), Duration::from_secs(1));
        assert!(watchdog.is_due(start + Duration::from_secs(10)) && !watchdog.beats(1));
        assert!(watchdog.is_due(start + Duration::from_secs(20)) && watchdog.beats(2));
    }

    #[test]
    fn a_manager_that_is_gone_is_an_error_and_no_wait() {
        assert!(send(OsStr::new("/no/such/socket"), Word::Ready).is_err());
    }
}
