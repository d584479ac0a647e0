//! Clients of a card in other processes: results through the library, and clients that lie, flood and die. The library is C, and
//! the card is simulated.

use crate::common;
use std::io::{IoSlice, IoSliceMut, PipeReader, PipeWriter, Read, Write};
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread::JoinHandle;

use aviary_card::Simulated;
use aviary_fpga::link::{LINK_VERSION, Limits, MESSAGE_BYTES, Service};
use aviary_fpga::{Mediator, Settings, nanoseconds};
use aviary_schedule::Fair;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg, sendmsg, shutdown, socket_with,
};

const LL: [u64; 2] = [0x6c6c_0001_4a5e_4f0a, 0x9d1b_2f4f_0c11_0002];
const HELLO: u32 = 1;
const READ: u32 = 2;
const WRITE: u32 = 3;
const BASE: u32 = 4;
const STATE: u32 = 5;
const MAP: u32 = 6;
const RESET: u32 = 8;
const WAIT: u32 = 9;
pub(super) const INFO: u32 = 10;
const INTERRUPT: u32 = 11;
const PORT: u32 = 12;
const MEMORY: u32 = 13;
const FORGET: u32 = 14;
const FAULT: u32 = 15;
const UNMAP: u32 = 7;
const SRCH: u32 = 3;
const MIB: u64 = 1 << 20;
const NOTCONN: u32 = 107;
const NOMEM: u32 = 12;
const BADF: u32 = 9;
const BUSY: u32 = 16;
const PROTONOSUPPORT: u32 = 93;
const NOENT: u32 = 2;
const INVAL: u32 = 22;
const MFILE: u32 = 24;
const TOOBIG: u32 = 7;

/// A card that is served by a thread until it is dropped.
pub(super) struct Card {
    pub(super) path: PathBuf,
    stop: PipeWriter,
    lines: mpsc::Receiver<String>,
    thread: JoinHandle<(Service<Simulated>, PipeReader)>,
    _folder: tempfile::TempDir,
}

pub(super) fn card(image: &str, limits: Limits) -> Option<Card> {
    let image = common::image(image)?;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("card.sock");
    let (stopped, stop) = std::io::pipe().unwrap();
    let (to, lines) = mpsc::channel();
    let (ready, is_ready) = mpsc::channel();
    let place = path.to_str().unwrap().to_owned();
    let thread = std::thread::spawn(move || {
        let settings = Settings { save_timeout: 50_000 };
        let discipline = || -> Box<dyn aviary_schedule::Discipline> { Box::new(Fair::new(nanoseconds(20_000))) };
        let mediator = Mediator::new(Simulated::start(&image).unwrap(), settings, discipline);
        let log = move |line: std::fmt::Arguments<'_>| drop(to.send(line.to_string()));
        let mut service = Service::listen(mediator, &place, limits, log).unwrap();
        ready.send(()).unwrap();
        service.serve(stopped.as_fd()).unwrap();
        (service, stopped)
    });
    is_ready.recv().unwrap();
    Some(Card { path, stop, lines, thread, _folder: folder })
}

/// A connection that is hung up when it is dropped, even while another process has a copy of its descriptor: a process that another
/// test of this file starts (the compiler, a program) has copies of all descriptors until it executes its program.
pub(super) struct Socket(OwnedFd);

impl Deref for Socket {
    type Target = OwnedFd;
    fn deref(&self) -> &OwnedFd {
        &self.0
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // A socket that the card has closed is not connected any more.
        let _ = shutdown(&self.0, Shutdown::Both);
    }
}

fn client(card: &Path) -> Socket {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    connect(&socket, &SocketAddrUnix::new(card).unwrap()).unwrap();
    Socket(socket)
}

impl Card {
    /// Ends the card's thread; the order to stop stays readable.
    fn stop(mut self) -> (Service<Simulated>, PipeReader) {
        self.stop.write_all(b"x").unwrap();
        self.thread.join().unwrap()
    }

    /// Clients that are still connected, and IO slices. Sockets that were closed before this call count as gone, whether or not
    /// the card's thread had come to read them: the card itself looks once more after it was told to stop.
    pub(super) fn end(self) -> (usize, usize) {
        self.stop().0.served()
    }
}

fn send(socket: &OwnedFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL).unwrap();
}

fn request(kind: u32, small: u32, words: &[u64]) -> [u8; MESSAGE_BYTES] {
    let mut bytes = [0; MESSAGE_BYTES];
    bytes[..4].copy_from_slice(&kind.to_ne_bytes());
    bytes[4..8].copy_from_slice(&small.to_ne_bytes());
    for (at, word) in words.iter().enumerate() {
        bytes[8 * (at + 1)..][..8].copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

/// Errno and first word of the reply; `None`: the card has hung up.
fn reply(socket: &OwnedFd) -> Option<(u32, u64)> {
    let mut bytes = [0; MESSAGE_BYTES];
    let mut ancillary = RecvAncillaryBuffer::default();
    match recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, RecvFlags::empty()) {
        Ok(message) if message.bytes == MESSAGE_BYTES => {
            let errno = u32::from_ne_bytes(bytes[..4].try_into().unwrap());
            Some((errno, u64::from_ne_bytes(bytes[8..16].try_into().unwrap())))
        }
        _ => None,
    }
}

pub(super) fn ask(socket: &OwnedFd, kind: u32, small: u32, words: &[u64]) -> (u32, u64) {
    send(socket, &request(kind, small, words), &[]);
    reply(socket).expect("the card answers")
}

/// Makes the first `length` bytes of a file known as memory `id`.
fn register(socket: &OwnedFd, id: u64, length: u64, file: &impl AsFd) -> u32 {
    send(socket, &request(MEMORY, 1, &[id, length]), &[file.as_fd()]);
    reply(socket).expect("the card answers").0
}

/// A client with 2 MB of memory at [`common::GUEST`].
pub(super) fn connected(card: &Path) -> (Socket, common::Client) {
    let (socket, memory) = (client(card), common::Client::new(2 * MIB));
    assert_eq!(ask(&socket, HELLO, LINK_VERSION, &LL), (0, LINK_VERSION.into()));
    assert_eq!(ask(&socket, BASE, 0, &[common::GUEST]).0, 0);
    assert_eq!(register(&socket, 0, 2 * MIB, &memory.file), 0);
    assert_eq!(ask(&socket, MAP, 1, &[common::GUEST, 2 * MIB, 0, 0]).0, 0);
    assert_eq!(ask(&socket, STATE, 0, &[common::GUEST + 2 * MIB - 64]).0, 0);
    (socket, memory)
}

/// A list that never ends.
pub(super) fn start_endless_walk(socket: &OwnedFd, memory: &common::Client) {
    memory.put(0, &[common::GUEST, 1]);
    assert_eq!(ask(socket, WRITE, 8, &[common::LL_HEAD.into(), common::GUEST]).0, 0);
    assert_eq!(ask(socket, WRITE, 8, &[0x18, 1]).0, 0);
}

/// A walk of a client ends with its sum.
fn walk(card: &Path) {
    let (socket, memory) = connected(card);
    let (head, sum) = memory.list(300, MIB);
    assert_eq!(ask(&socket, WRITE, 8, &[common::LL_HEAD.into(), head]).0, 0);
    assert_eq!(ask(&socket, WRITE, 8, &[0x18, 1]).0, 0);
    while ask(&socket, INFO, 0, &[]).1 != 3 {
        assert_eq!(ask(&socket, WAIT, 1000, &[]).0, 0);
    }
    assert_eq!(ask(&socket, READ, 8, &[common::LL_SUM.into()]), (0, sum));
}

#[test]
fn walks_of_several_clients_end_with_their_sums() {
    let Some(card) = card("pair", Limits::default()) else { return };
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| walk(&card.path));
        }
    });
    assert_eq!(card.end(), (0, 0));
}

#[test]
fn clients_that_lie_are_sent_away_and_others_go_on() {
    let Some(card) = card("pair", Limits::default()) else { return };
    let (neighbour, memory) = connected(&card.path);
    start_endless_walk(&neighbour, &memory);
    let lies: [(Vec<u8>, &str); 3] = [
        (vec![1, 2, 3], "a request of 3 bytes"),
        (vec![1; 200], "a request of 65 bytes"),
        (request(77, 0, &[]).to_vec(), "unknown kind 77"),
    ];
    for (bytes, told) in lies {
        let (liar, memory) = connected(&card.path);
        start_endless_walk(&liar, &memory);
        send(&liar, &bytes, &[]);
        assert_eq!(reply(&liar), None, "{told}");
        let line = card.lines.recv().unwrap();
        assert!(line.contains(told), "{line}");
    }
    // One that never reads its replies.
    let (deaf, _) = connected(&card.path);
    let reset = request(RESET, 0, &[]);
    let sent = |_| {
        sendmsg(&*deaf, &[IoSlice::new(&reset)], &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL)
            == Ok(reset.len())
    };
    assert!(!(0..1_000_000).all(sent), "the card reads all requests of a client that reads no replies");
    assert!(card.lines.recv().unwrap().contains("did not read its replies"));
    assert_eq!(ask(&neighbour, INFO, 0, &[]).0, 0);
    walk(&card.path);
    drop(neighbour);
    assert_eq!(card.end(), (0, 0));
}

#[test]
fn wishes_of_clients_are_refused_by_number() {
    let Some(card) = card("pair", Limits { clients: 3, memories: 2, mapped_bytes: 6 * MIB }) else { return };
    let stranger = client(&card.path);
    assert_eq!(ask(&stranger, READ, 8, &[0x40]).0, NOTCONN);
    assert_eq!(ask(&stranger, HELLO, LINK_VERSION + 1, &LL), (PROTONOSUPPORT, LINK_VERSION.into()));
    assert_eq!(ask(&stranger, HELLO, LINK_VERSION, &[1, 2]).0, NOENT);
    assert_eq!(ask(&stranger, HELLO, LINK_VERSION, &LL).0, 0);
    assert_eq!(ask(&stranger, HELLO, LINK_VERSION, &LL).0, BUSY);
    let (own, memory) = connected(&card.path);
    // No memfd; a memfd that could shrink; more memories and more bytes than allowed; descriptors where none belong.
    let (pipe, _writer) = std::io::pipe().unwrap();
    assert_eq!(register(&own, 1, MIB, &pipe), BADF);
    let unsealed = rustix::fs::memfd_create("unsealed", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&unsealed, MIB).unwrap();
    assert_eq!(register(&own, 1, MIB, &unsealed), BADF);
    assert_eq!(ask(&own, MEMORY, 1, &[1, MIB]).0, INVAL);
    let large = common::Client::new(8 * MIB);
    assert_eq!(register(&own, 1, 8 * MIB, &large.file), 0);
    assert_eq!(register(&own, 2, MIB, &memory.file), MFILE);
    assert_eq!(ask(&own, MAP, 1, &[common::GUEST + 8 * MIB, 8 * MIB, 0, 1]).0, NOMEM);
    assert_eq!(ask(&own, MAP, 1, &[common::GUEST + 8 * MIB, MIB, 0, 2]).0, BADF);
    assert_eq!(ask(&own, MAP, 1, &[common::GUEST + 8 * MIB, MIB, 0, 1]).0, 0);
    send(&own, &request(MAP, 1, &[common::GUEST + 16 * MIB, MIB, 0, 1]), &[memory.file.as_fd()]);
    assert_eq!(reply(&own).unwrap().0, INVAL);
    assert_eq!(ask(&own, FORGET, 0, &[1]).0, BUSY);
    assert_eq!(ask(&own, UNMAP, 0, &[common::GUEST + 8 * MIB, 8 * MIB]).0, 0);
    assert_eq!(ask(&own, FORGET, 0, &[1]).0, 0);
    assert_eq!(ask(&own, FORGET, 0, &[1]).0, NOENT);
    // A fourth client is refused.
    let third = connected(&card.path);
    let fourth = client(&card.path);
    assert_eq!(reply(&fourth), None);
    assert!(card.lines.recv().unwrap().contains("was refused"));
    drop(third);
    assert_eq!(card.end(), (2, 2));
}

#[test]
fn small_pages_are_mapped_one_by_one_and_taken_away_by_any_range() {
    let Some(card) = card("pair", Limits { mapped_bytes: 64 * MIB, ..Limits::default() }) else { return };
    let (socket, _memory) = connected(&card.path);
    let pages = common::Client::new(60 * MIB);
    let at = common::GUEST + 64 * MIB;
    let mapped = |socket: &OwnedFd| words(socket, INFO)[4];
    assert_eq!(register(&socket, 1, 60 * MIB, &pages.file), 0);
    for page in (0..60 * MIB).step_by(4096) {
        assert_eq!(ask(&socket, MAP, 1, &[at + page, 4096, page, 1]).0, 0, "{page:#x}");
    }
    assert_eq!(mapped(&socket), 62 * MIB);
    // Half of them, in other borders; then what is there no more, and all.
    assert_eq!(ask(&socket, UNMAP, 0, &[at + 8192, 30 * MIB]).0, 0);
    assert_eq!(mapped(&socket), 32 * MIB);
    assert_eq!(ask(&socket, UNMAP, 0, &[at + 8192, 30 * MIB]).0, 0);
    assert_eq!(mapped(&socket), 32 * MIB);
    assert_eq!(ask(&socket, UNMAP, 0, &[at, 64 << 30]).0, INVAL);
    assert_eq!(ask(&socket, UNMAP, 0, &[at, 1 << 30]).0, 0);
    assert_eq!(mapped(&socket), 2 * MIB);
    // What was returned can be mapped again, up to the limit exactly.
    assert_eq!(ask(&socket, MAP, 1, &[at, 60 * MIB, 0, 1]).0, 0);
    drop(socket);
    assert_eq!(card.end(), (0, 0));
}

#[test]
fn entries_of_the_page_table_are_bounded() {
    let Some(card) = card("pair", Limits::default()) else { return };
    let (socket, _memory) = connected(&card.path);
    let large = common::Client::new(1 << 30);
    assert_eq!(register(&socket, 1, 1 << 30, &large.file), 0);
    let at = common::GUEST + (1 << 30);
    // Shifted by a page, each GB takes 262,144 entries; in its place 512.
    assert_eq!(ask(&socket, MAP, 1, &[at + 4096, (1 << 30) - 4096, 0, 1]).0, TOOBIG);
    assert_eq!(ask(&socket, MAP, 1, &[at, 1 << 30, 0, 1]).0, 0);
    assert_eq!(ask(&socket, MAP, 1, &[at + (1 << 30) + 4096, 128 * MIB, 0, 1]).0, 0);
    // Half of the table is left. A hole in each 2 MB would take 511 entries for one.
    let holes = (0..512_u64).map(|huge| ask(&socket, UNMAP, 0, &[at + huge * 2 * MIB + 4096, 4096]).0);
    let made = holes.take_while(|errno| *errno == 0).count();
    assert!((60..64).contains(&made), "{made}");
    drop(socket);
    assert_eq!(card.end(), (0, 0));
}

/// The kernel of a virtual machine that has no huge pages maps each small one by itself, and in no order that it promises.
#[test]
fn small_pages_that_continue_each_other_take_the_entries_of_huge_ones() {
    let Some(card) = card("pair", Limits::default()) else { return };
    let (socket, _memory) = connected(&card.path);
    // More small pages than a client may have entries.
    let bytes = 272 * MIB;
    let (large, at) = (common::Client::new(bytes), common::GUEST + (1 << 30));
    assert_eq!(register(&socket, 1, bytes, &large.file), 0);
    for huge in (0..bytes).step_by(2 << 20) {
        for page in (0..512).map(|i| huge + i * 199 % 512 * 4096) {
            assert_eq!(ask(&socket, MAP, 1, &[at + page, 4096, page, 1]).0, 0, "{page:#x}");
        }
    }
    // Also one that is not writable, or of another place, joins no other.
    assert_eq!(ask(&socket, MAP, 0, &[at + bytes, 4096, 0, 1]).0, 0);
    assert_eq!(ask(&socket, UNMAP, 0, &[at + 4096, bytes]).0, 0);
    assert_eq!(words(&socket, INFO)[4], 2 * MIB + 4096);
    drop(socket);
    assert_eq!(card.end(), (0, 0));
}

#[test]
fn requests_at_a_busy_card_do_not_wait_for_thousands_of_cycles_each() {
    let Some(card) = card("pair", Limits::default()) else { return };
    let (busy, memory) = connected(&card.path);
    start_endless_walk(&busy, &memory);
    let cycles = || words(&busy, INFO)[2];
    let mut between: Vec<u64> = (0..1000)
        .map(|_| {
            let before = cycles();
            cycles() - before
        })
        .collect();
    between.sort_unstable();
    // A machine that is busy itself lets the client run late: not all, but some are soon enough. An access of the card takes some
    // hundreds of cycles.
    assert!(between[10] < 1500, "cycles between requests: {:?}", &between[..20]);
}

/// The words of a reply.
fn words(socket: &OwnedFd, kind: u32) -> Vec<u64> {
    send(socket, &request(kind, 0, &[]), &[]);
    let mut bytes = [0; MESSAGE_BYTES];
    recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut RecvAncillaryBuffer::default(), RecvFlags::empty())
        .unwrap();
    bytes[8..].chunks(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect()
}

#[test]
fn first_fault_of_a_job_is_told_with_its_cause_and_place() {
    let Some(card) = card("pair", Limits::default()) else { return };
    let (socket, _memory) = connected(&card.path);
    assert_eq!(words(&socket, FAULT)[..4], [0; 4]);
    let below = common::GUEST - (1 << 30);
    let unmapped = common::GUEST + (1 << 30);
    // 3: below the slice; 4: above; 1: nothing is mapped there.
    for (round, (head, cause)) in [(common::GUEST + (65 << 30), 4), (below, 3), (unmapped, 1)].into_iter().enumerate() {
        assert_eq!(ask(&socket, WRITE, 8, &[common::LL_HEAD.into(), head]).0, 0);
        assert_eq!(ask(&socket, WRITE, 8, &[0x18, 1]).0, 0);
        let ended = || Some(words(&socket, INFO)[0]).filter(|phase| matches!(phase, 3 | 4));
        let phase = std::iter::repeat_with(|| (ended(), ask(&socket, WAIT, 1000, &[])).0).find_map(|phase| phase);
        assert_eq!(phase, Some(4), "{round}");
        let fault = words(&socket, FAULT);
        assert_eq!(fault[..3], [cause, 0, head], "{round}");
        assert!(fault[3] > 0);
        let line = card.lines.recv().unwrap();
        assert!(line.contains(&format!("a read of {head:#x} was refused")), "{line}");
        assert_eq!(ask(&socket, RESET, 0, &[]).0, 0);
        assert_eq!(words(&socket, FAULT)[0], 0);
    }
    drop(socket);
    assert_eq!(card.end(), (0, 0));
}

#[test]
fn clients_that_die_leave_nothing() {
    let Some(card) = card("pair", Limits::default()) else { return };
    for round in 0..40 {
        let (socket, memory) = connected(&card.path);
        start_endless_walk(&socket, &memory);
        if round % 2 == 0 {
            // Dies while it waits.
            send(&socket, &request(WAIT, 60_000, &[]), &[]);
        }
    }
    walk(&card.path);
    drop(client(&card.path));
    walk(&card.path);
    assert_eq!(card.end(), (0, 0));
}

#[test]
fn ports_are_told_before_and_after_a_client_has_an_accelerator() {
    let Some(card) = card("pair", Limits::default()) else { return };
    let socket = client(&card.path);
    assert_eq!(ask(&socket, PORT, LINK_VERSION + 1, &[0]), (PROTONOSUPPORT, LINK_VERSION.into()));
    assert_eq!(ask(&socket, PORT, LINK_VERSION, &[0]), (0, LL[0]));
    for beyond in [2, 3, u64::MAX] {
        assert_eq!(ask(&socket, PORT, LINK_VERSION, &[beyond]).0, SRCH);
    }
    assert_eq!(ask(&socket, HELLO, LINK_VERSION, &LL).0, 0);
    send(&socket, &request(PORT, LINK_VERSION, &[0]), &[]);
    let mut bytes = [0; MESSAGE_BYTES];
    recvmsg(&*socket, &mut [IoSliceMut::new(&mut bytes)], &mut RecvAncillaryBuffer::default(), RecvFlags::empty())
        .unwrap();
    let words: Vec<u64> = bytes.chunks(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect();
    assert_eq!(words[..5], [0, LL[0], LL[1], 0, 1]);
    drop(socket);
    assert_eq!(card.end(), (0, 0));
}

/// A descriptor that is readable when the vector is raised.
fn event(socket: &OwnedFd, vector: u32) -> OwnedFd {
    send(socket, &request(INTERRUPT, vector, &[]), &[]);
    let (mut bytes, mut space) = ([0; MESSAGE_BYTES], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))]);
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, RecvFlags::CMSG_CLOEXEC).unwrap();
    assert_eq!(bytes[..4], [0; 4]);
    let Some(RecvAncillaryMessage::ScmRights(mut came)) = ancillary.drain().next() else { panic!("no descriptor") };
    came.next().unwrap()
}

#[test]
fn end_of_a_job_is_read_from_an_event_descriptor() {
    let Some(card) = card("pair", Limits::default()) else { return };
    let (socket, memory) = connected(&card.path);
    let (head, sum) = memory.list(300, MIB);
    let (ends, other) = (event(&socket, 0), event(&socket, 1));
    rustix::io::ioctl_fionbio(&other, true).unwrap();
    assert_eq!(ask(&socket, WRITE, 8, &[common::LL_HEAD.into(), head]).0, 0);
    for _ in 0..3 {
        assert_eq!(ask(&socket, WRITE, 8, &[0x18, 1]).0, 0);
        let mut count = [0; 8];
        assert_eq!(rustix::io::read(&ends, &mut count), Ok(8));
        assert_eq!(u64::from_ne_bytes(count), 1);
        assert_eq!(ask(&socket, INFO, 0, &[]).1, 3);
        assert_eq!(ask(&socket, READ, 8, &[common::LL_SUM.into()]), (0, sum));
    }
    assert_eq!(rustix::io::read(&other, &mut [0; 8]), Err(rustix::io::Errno::AGAIN));
    let stranger = client(&card.path);
    assert_eq!(ask(&stranger, INTERRUPT, 0, &[]).0, NOTCONN);
    assert_eq!(ask(&socket, INTERRUPT, 4, &[]).0, INVAL);
}

#[test]
fn client_that_reads_no_interrupts_holds_up_no_other() {
    let Some(card) = card("pair", Limits::default()) else { return };
    let (socket, memory) = connected(&card.path);
    let (head, sum) = memory.list(1, 64);
    assert_eq!(ask(&socket, WRITE, 8, &[common::LL_HEAD.into(), head]).0, 0);
    let unread = event(&socket, 0);
    // Its own end may wait as long as it likes, and it may ask for more ends than it keeps.
    rustix::io::ioctl_fionbio(&unread, false).unwrap();
    for round in 0..200 {
        assert_eq!(ask(&socket, WRITE, 8, &[0x18, 1]).0, 0);
        while ask(&socket, INFO, 0, &[]).1 != 3 {
            assert_eq!(ask(&socket, WAIT, 1000, &[]).0, 0);
        }
        assert_eq!(ask(&socket, READ, 8, &[common::LL_SUM.into()]), (0, sum));
        if round % 2 == 1 {
            drop(event(&socket, 1));
        }
    }
    walk(&card.path);
    drop(socket);
    assert_eq!(card.end(), (0, 0));
}

#[test]
fn hang_up_beside_the_order_to_stop_is_seen() {
    let Some(card) = card("pair", Limits::default()) else { return };
    let (client, memory) = connected(&card.path);
    start_endless_walk(&client, &memory);
    let (mut service, stopped) = card.stop();
    assert_eq!(service.served(), (1, 1));
    drop(client);
    // The order to stop is still there: no round comes that would read the hang-up.
    service.serve(stopped.as_fd()).unwrap();
    assert_eq!(service.served(), (0, 0));
}

/// A C program as `app` in a folder, and the folder of the library.
fn compiled(source: &Path) -> (tempfile::TempDir, PathBuf) {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let built = Command::new(root.join("fpga/library/build")).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let library = PathBuf::from(String::from_utf8(built.stdout).unwrap().trim());
    let folder = tempfile::tempdir().unwrap();
    let compiled = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(root.join("fpga/library"))
        .arg(source)
        .args(["-L", library.to_str().unwrap(), "-laviary-fpga", "-o"])
        .arg(folder.path().join("app"))
        .output()
        .unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    (folder, library)
}

/// A program of this folder runs well beside a card of its own, and leaves nothing there.
fn runs_well(program: &str) {
    let Some(card) = card("pair", Limits::default()) else { return };
    let (folder, library) = compiled(&PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests").join(program));
    let ran = Command::new(folder.path().join("app"))
        .env("AVIARY_FPGA", format!("unix:{}", card.path.display()))
        .env("LD_LIBRARY_PATH", &library)
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&ran.stderr), "");
    assert!(ran.status.success());
    assert_eq!(card.end(), (0, 0));
}

#[test]
fn program_is_woken_by_the_end_of_its_jobs() {
    runs_well("events.c");
}

#[test]
fn program_is_told_why_its_jobs_have_failed() {
    runs_well("faults.c");
}

#[test]
fn program_with_the_library_has_right_sums() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let image = root.join("examples/fpga-accelerator/adders.toml");
    let Some(card) = card(image.to_str().unwrap(), Limits::default()) else { return };
    let (folder, library) = compiled(&root.join("examples/fpga-accelerator/app.c"));
    let program = folder.path().join("app");
    let start = |count: &str| {
        Command::new(&program)
            .arg(count)
            .env("AVIARY_FPGA", format!("unix:{}", card.path.display()))
            .env("LD_LIBRARY_PATH", &library)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    };
    // Three programs on two ports.
    let running: Vec<_> = ["100", "16384", "20000"].map(|count| (count, start(count))).into();
    for (count, mut process) in running {
        let mut told = String::new();
        process.stdout.take().unwrap().read_to_string(&mut told).unwrap();
        assert!(process.wait().unwrap().success());
        assert_eq!(told, format!("{count} sums, 0 wrong\n"));
    }
    assert_eq!(card.end(), (0, 0));
}
