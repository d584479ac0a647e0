//! Both kinds of lanes behave alike; sockets carry descriptors and report deaths.

use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use aviary_transport::*;
use aviary_wire::control::control_kind;
use aviary_wire::{Control, Hello, Welcome};

/// Upper bound of a wait in a test: a longer one is a hang. Says nothing about speed.
const HANG_TIMEOUT: Duration = Duration::from_secs(60);

const RING: usize = 2 * (4096 + 65536);

fn live() -> Arc<Liveness> {
    Arc::new(Liveness::notified())
}

/// The guest's end, the server's end and the two arenas.
fn pair(mirrored: bool) -> (LaneEnd, LaneEnd, Arc<Arena>, Arc<Arena>) {
    if mirrored {
        let ours = Arena::mirror(1 << 24).unwrap();
        let theirs = Arena::mirror_of(ours.address(), 1 << 24).unwrap();
        let (a, b) = UnixStream::pair().unwrap();
        let guest = LaneEnd::Stream(StreamLane::new(a.into(), ours.clone()));
        let server = accept_lane(&Control::default(), Some(b.into()), &theirs, &live()).unwrap();
        return (guest, server, ours, theirs);
    }
    let ours = Arena::create(1 << 24).unwrap();
    let file = ours.file().unwrap().try_clone_to_owned().unwrap();
    let theirs = Arena::open(file, ours.address(), 1 << 24).unwrap();
    LaneEnd::clear(&ours, 4096, RING).unwrap();
    let guest = LaneEnd::shared(&ours, 4096, RING, Side::Guest, &live()).unwrap();
    let open = Control { kind: control_kind::LANE_OPEN, offset: 4096, length: RING as u64, ..Control::default() };
    let server = accept_lane(&open, None, &theirs, &live()).unwrap();
    (guest, server, ours, theirs)
}

fn echo(mirrored: bool) {
    let (mut guest, mut server, ours, theirs) = pair(mirrored);
    let block = ours.pointer(1 << 20, 9000).unwrap();
    // SAFETY: inside the arena; the server thread writes only after the message.
    unsafe { block.write_bytes(0x5a, 9000) };
    let region = Region { offset: 1 << 20, length: 9000 };
    let peer = std::thread::spawn(move || {
        let mut got = Vec::new();
        for _ in 0..3 {
            server.receive(&mut got).unwrap();
            let there = theirs.pointer(1 << 20, 9000).unwrap();
            // SAFETY: inside the arena; the guest waits.
            unsafe {
                assert_eq!(there.add(8999).read(), 0x5a);
                there.add(1).write(7);
            }
            server.send(&got, &[Region { offset: 1 << 20, length: 2 }]).unwrap();
        }
    });
    for length in [32, 5000, 3 << 20] {
        let message: Vec<u8> = (0..length).map(|i| (i * 31) as u8).collect();
        let mut got = Vec::new();
        assert!(!guest.try_receive(&mut got).unwrap());
        guest.send(&message, &[region]).unwrap();
        guest.receive(&mut got).unwrap();
        assert!(got == message);
        // SAFETY: inside the arena; the server waits.
        unsafe { assert_eq!((block.read(), block.add(1).read(), block.add(2).read()), (0x5a, 7, 0x5a)) };
    }
    peer.join().unwrap();
}

#[test]
fn shared_lanes_echo() {
    echo(false);
}

#[test]
fn stream_lanes_echo() {
    echo(true);
}

#[test]
fn killed_lane_stops_waiting() {
    for mirrored in [false, true] {
        let (_guest, server, ..) = pair(mirrored);
        let waker = server.waker();
        let mut server = server;
        let waiting = std::thread::spawn(move || server.receive(&mut Vec::new()));
        std::thread::sleep(Duration::from_millis(20));
        if mirrored {
            waker.wake();
            assert!(matches!(waiting.join().unwrap(), Err(LaneError::Dead)));
        } else {
            // A wake-up without a death ends no wait.
            waker.wake();
            std::thread::sleep(Duration::from_millis(20));
            assert!(!waiting.is_finished());
        }
    }
}

#[test]
fn stream_regions_outside_the_arena_are_refused() {
    let (mut guest, mut server, ours, _theirs) = pair(true);
    assert!(guest.send(&[0; 32], &[Region { offset: 1 << 24, length: 1 }]).is_err());
    drop(guest);
    assert!(server.receive(&mut Vec::new()).is_err());
    let (hostile, honest) = UnixStream::pair().unwrap();
    let mut honest = StreamLane::new(honest.into(), ours);
    use std::io::Write;
    let frame: Vec<u8> = [0u64, 1, (1 << 24) - 1, 2, 0].iter().flat_map(|w| w.to_le_bytes()).collect();
    (&hostile).write_all(&frame).unwrap();
    assert!(matches!(honest.receive(&mut Vec::new()), Err(LaneError::Arena(_))));
    let frame: Vec<u8> = [u64::MAX, 0].iter().flat_map(|w| w.to_le_bytes()).collect();
    (&hostile).write_all(&frame).unwrap();
    assert!(honest.receive(&mut Vec::new()).is_err());
}

#[test]
fn lanes_outside_the_arena_are_refused() {
    let arena = Arena::create(1 << 20).unwrap();
    for (offset, length) in [(0, 1 << 21), (u64::MAX, RING as u64), (0, 100), (3, RING as u64), (0, u64::MAX)] {
        let open = Control { offset, length, ..Control::default() };
        assert!(accept_lane(&open, None, &arena, &live()).is_err(), "{offset} {length}");
    }
    let mirror = Arena::mirror(1 << 20).unwrap();
    assert!(matches!(accept_lane(&Control::default(), None, &mirror, &live()), Err(LaneError::Open(_))));
}

#[test]
fn greetings_carry_descriptors() {
    let (a, b) = UnixStream::pair().unwrap();
    let arena = Arena::create(1 << 20).unwrap();
    let hello = Hello { api: "test".into(), arena_size: 1 << 20, ..Hello::default() };
    send_greeting(&a, &hello.to_bytes(), &[arena.file().unwrap(), a.as_fd()]).unwrap();
    let (got, fds) = receive_hello(&b, Duration::from_secs(1)).unwrap();
    assert_eq!(got, hello);
    assert_eq!(fds.len(), 2);
    let file: OwnedFd = fds.into_iter().next().unwrap();
    assert!(Arena::open(file, 0, 1 << 20).is_ok());

    let welcome = Welcome { text: "no".into(), status: 3, ..Welcome::default() };
    send_greeting(&b, &welcome.to_bytes(), &[]).unwrap();
    assert_eq!(receive_greeting(&a, HANG_TIMEOUT).unwrap(), welcome);
    let mine = PeerCredentials::of(&a).unwrap();
    assert_eq!(mine.pid as u32, std::process::id());
}

#[test]
fn silent_peer_times_out_and_noise_is_refused() {
    let (a, b) = UnixStream::pair().unwrap();
    let silent = receive_greeting(&a, Duration::from_millis(50));
    assert!(matches!(silent, Err(ControlError::Timeout(_))));
    send_greeting(&b, b"GET / HTTP/1.1\r\n", &[]).unwrap();
    assert!(matches!(receive_greeting(&a, HANG_TIMEOUT), Err(ControlError::Greeting(_))));
}

#[test]
fn control_socket_reports_messages_and_deaths() {
    let (a, b) = UnixStream::pair().unwrap();
    let (a, b) = (ControlSocket::new(a.into()), ControlSocket::new(b.into()));
    let open = Control { kind: control_kind::LANE_OPEN, lane: 3, offset: 1, length: 2, flags: 1 };
    assert!(b.try_receive().unwrap().is_none());
    a.send(open, Some(a.as_fd())).unwrap();
    let (got, fd) = b.receive().unwrap().unwrap();
    assert_eq!((got, fd.is_some()), (open, true));
    drop(fd);
    a.send(open, None).unwrap();
    assert!(b.alive() && b.intact(), "unread messages are no death");
    drop(a);
    assert!(!b.alive());
    assert!(b.receive().unwrap().is_some());
    assert!(b.receive().unwrap().is_none());
}

#[test]
fn descriptor_of_another_file_is_noticed() {
    use std::os::fd::AsRawFd;
    let (a, _b) = UnixStream::pair().unwrap();
    let number = a.as_raw_fd();
    let control = ControlSocket::new(a.into());
    assert!(control.intact());
    let other = std::fs::File::open("/dev/null").unwrap();
    // SAFETY: replaces the file behind the number, as a daemon's clean-up and its next `open`
    // would.
    unsafe { libc::dup2(other.as_raw_fd(), number) };
    assert!(!control.intact());
}

/// A watched end, the number of its descriptor, and the peer's end.
fn watched(alive: &'static AtomicBool) -> (StreamLane, i32, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let number = ours.as_raw_fd();
    let liveness = Liveness::probed(Duration::from_millis(100), || alive.load(Ordering::SeqCst));
    let lane = StreamLane::watched(ours.into(), Arena::mirror(1 << 20).unwrap(), Arc::new(liveness)).unwrap();
    (lane, number, theirs)
}

#[test]
fn watched_lane_notices_a_death_although_its_socket_stays_open() {
    static ALIVE: AtomicBool = AtomicBool::new(true);
    let (mut lane, _, theirs) = watched(&ALIVE);
    let receiver = std::thread::spawn(move || lane.receive(&mut Vec::new()));
    std::thread::sleep(Duration::from_millis(300));
    assert!(!receiver.is_finished(), "a slow peer is not a dead one");
    ALIVE.store(false, Ordering::SeqCst);
    assert!(matches!(receiver.join().unwrap(), Err(LaneError::Dead)));
    // A peer that no longer reads must not block a sender either.
    ALIVE.store(true, Ordering::SeqCst);
    let (mut lane, _, _unread) = watched(&ALIVE);
    let sender = std::thread::spawn(move || (0..100).try_for_each(|_| lane.send(&vec![0; 1 << 20], &[])));
    std::thread::sleep(Duration::from_millis(300));
    ALIVE.store(false, Ordering::SeqCst);
    assert!(matches!(sender.join().unwrap(), Err(LaneError::Dead)));
    drop(theirs);
}

#[test]
fn watched_lane_is_interrupted_between_messages_only() {
    static ALIVE: AtomicBool = AtomicBool::new(true);
    let (mut lane, _, mut theirs) = watched(&ALIVE);
    let mut got = Vec::new();
    assert!(matches!(lane.receive_unless(&mut |_| true, &mut got), Err(LaneError::Interrupted)));
    // Half a header, and the rest when the end has looked after its peer once.
    theirs.write_all(&[4, 0, 0, 0]).unwrap();
    let mut rest = theirs.try_clone().unwrap();
    let peer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        rest.write_all(&[&[0; 12][..], b"text"].concat()).unwrap();
    });
    lane.receive_unless(&mut |_| true, &mut got).unwrap();
    assert_eq!(got, b"text");
    peer.join().unwrap();
}

#[test]
fn watched_lane_leaves_other_files_alone() {
    static ALIVE: AtomicBool = AtomicBool::new(true);
    let (mut lane, number, _theirs) = watched(&ALIVE);
    let (others, mut other_end) = UnixStream::pair().unwrap();
    // SAFETY: both numbers are open; an application that closes everything and opens a socket has
    // this effect.
    assert_eq!(unsafe { libc::dup2(others.as_raw_fd(), number) }, number);
    assert!(matches!(lane.send(b"a request", &[]), Err(LaneError::Dead)));
    assert!(matches!(lane.receive(&mut Vec::new()), Err(LaneError::Dead)));
    other_end.set_nonblocking(true).unwrap();
    assert_eq!(other_end.read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    drop(lane);
    other_end.write_all(b"x").unwrap();
    // SAFETY: the buffer has room for one byte.
    let read = unsafe { libc::read(number, [0u8].as_mut_ptr().cast(), 1) };
    assert_eq!(read, 1, "the descriptor is still open");
}

#[test]
fn carrier_gets_the_regions_and_passes_on_the_message() {
    let ours = Arena::create(1 << 24).unwrap();
    let file = ours.file().unwrap().try_clone_to_owned().unwrap();
    // The carrier maps the arena as a plain one; the guest knows that a carrier shares it.
    let theirs = Arena::open(file, 0, 1 << 24).unwrap();
    ours.set_carried();
    assert!(ours.mirrored() && !theirs.mirrored());
    LaneEnd::clear(&ours, 4096, RING).unwrap();
    let mut guest = LaneEnd::shared(&ours, 4096, RING, Side::Guest, &live()).unwrap();
    let carrier = LaneEnd::shared(&theirs, 4096, RING, Side::Server, &live()).unwrap();
    let (mut tx, mut rx) = carrier.split().unwrap();
    let regions = [Region { offset: 1 << 20, length: 70_000 }, Region { offset: 0, length: 1 }];
    let mut got = Vec::new();
    for regions in [&regions[..], &[]] {
        guest.send(b"a message", regions).unwrap();
        rx.receive(&mut got).unwrap();
        assert_eq!(take_regions(&mut got).unwrap(), regions);
        assert_eq!(got, b"a message");
    }
    tx.send(b"an answer").unwrap();
    guest.receive(&mut got).unwrap();
    assert_eq!(got, b"an answer");
}

#[test]
fn malformed_region_list_is_refused() {
    for list in [&b"short"[..], &[1, 0, 0, 0, 0, 0, 0, 0], &[255; 8], &[255; 64]] {
        assert!(take_regions(&mut list.to_vec()).is_err(), "{list:?}");
    }
}
