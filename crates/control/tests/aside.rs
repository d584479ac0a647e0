//! Real sockets whose close waits, beside processes that are started. The tests run one after the other: a process that one of
//! them starts has copies of the others' descriptors.

use aviary_control::{Aside, Foreign, MOST_OF_ONE};
use rustix::event::{PollFd, PollFlags, poll};
use std::{
    io::{PipeReader, Read, Write, pipe},
    net::{TcpListener, TcpStream},
    os::fd::OwnedFd,
    process::Command,
    sync::{Mutex, PoisonError},
    time::Duration,
};

static ALONE: Mutex<()> = Mutex::new(());

/// A socket to a peer that does not read, which lingers for hours.
fn lingering(listener: &TcpListener) -> OwnedFd {
    let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::from_secs(30_000))).unwrap();
    socket.set_nonblocking(true).unwrap();
    while socket.write(&[0; 1 << 16]).is_ok() {}
    socket.into()
}

fn closed(descriptor: impl Into<OwnedFd>, aside: &Aside) {
    drop(Foreign::new(descriptor.into(), aside, &"alice".into(), "a test's"));
}

/// Waits until every copy of the other end is closed.
fn await_end(reader: &mut PipeReader) {
    assert_eq!(reader.read(&mut [0]).unwrap(), 0);
}

fn finish(aside: &Aside) {
    while aside.busy().is_some() {
        aside.hurry();
        std::thread::yield_now();
    }
}

/// Beyond a number that wait, closes are interrupted: a party cannot keep more and more descriptors open.
#[test]
fn flood_of_sockets_that_linger_fills_nothing() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (aside, listener) = (Aside::default(), TcpListener::bind("127.0.0.1:0").unwrap());
    (0..MOST_OF_ONE).for_each(|_| closed(lingering(&listener), &aside));
    let pipes: Vec<_> = (0..500).map(|_| pipe().unwrap()).collect();
    let mut readers = Vec::new();
    for (reader, writer) in pipes {
        readers.push(reader);
        closed(writer, &aside);
    }
    // Those that are left behind the sockets are no more than may wait.
    readers.iter_mut().take(400).for_each(await_end);
    finish(&aside);
    readers.iter_mut().skip(400).for_each(await_end);
}

#[test]
fn nothing_begins_to_be_closed_while_a_process_is_started() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let aside = Aside::default();
    let (mut reader, writer) = pipe().unwrap();
    aside.while_spawning(|| {
        closed(writer, &aside);
        // A process that is started here has a copy of it.
        assert!(Command::new("true").status().unwrap().success());
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        assert_eq!(poll(&mut [PollFd::new(&reader, PollFlags::IN)], Some(&now)), Ok(0), "it is open");
    });
    await_end(&mut reader);
}

/// A process that is started while a socket is being closed is not the one that closes it.
#[test]
fn processes_start_beside_closes_that_wait() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (aside, listener) = (Aside::default(), TcpListener::bind("127.0.0.1:0").unwrap());
    for _ in 0..30 {
        closed(lingering(&listener), &aside);
        let started = aside.while_spawning(|| Command::new("true").spawn());
        assert!(started.unwrap().wait().unwrap().success());
    }
    finish(&aside);
}
