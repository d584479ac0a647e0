//! Connections through something that cuts them between any two packets, or within one. For tests; the streams are plain, so
//! that it sees where packets end.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};

/// Of the word before a packet.
const LENGTH: u32 = (1 << 30) - 1;

/// Connections, which have numbers from 0 on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// The one whose packet is the last.
    Seen,
    One(usize),
    /// Those with these numbers, which must include that one.
    These(&'static [usize]),
    From(usize),
    All,
}

/// Cuts when connections have passed so many packets of one direction, and so many bytes of the next.
#[derive(Debug, Clone, Copy)]
pub struct Breakage {
    pub seen: Which,
    /// To the node, instead of from it.
    pub up: bool,
    pub packets: usize,
    pub bytes: usize,
    pub which: Which,
}

#[derive(Default)]
struct CutterState {
    /// The next one first. Packets are counted from the cut before it.
    cuts: VecDeque<Breakage>,
    counted: usize,
    lines: Vec<[TcpStream; 2]>,
    /// How often something was cut.
    done: usize,
}

#[derive(Default)]
pub struct Cutter(Mutex<CutterState>);

impl Which {
    fn has(self, number: usize, seen: usize) -> bool {
        match self {
            Which::Seen => number == seen,
            Which::One(one) => number == one,
            Which::These(these) => these.contains(&number),
            Which::From(first) => number >= first,
            Which::All => true,
        }
    }
}

impl Cutter {
    fn state(&self) -> MutexGuard<'_, CutterState> {
        self.0.lock().unwrap()
    }

    /// From now on.
    pub fn arm(&self, cuts: &[Breakage]) {
        let mut state = self.state();
        (state.cuts, state.counted) = (cuts.iter().copied().collect(), 0);
    }

    pub fn done(&self) -> usize {
        self.state().done
    }

    /// A connection: the relay's end, and the node's.
    pub fn connection(self: &Arc<Self>) -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, self.through(listener.accept().unwrap().0))
    }

    /// The node's end of a connection whose other end a relay has made.
    pub fn through(self: &Arc<Self>, near: TcpStream) -> TcpStream {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let number = {
            let mut state = self.state();
            state.lines.push([near.try_clone().unwrap(), far.try_clone().unwrap()]);
            state.lines.len() - 1
        };
        for (from, to, up) in [(&near, &far, true), (&far, &near, false)] {
            let (cutter, from, to) = (self.clone(), from.try_clone().unwrap(), to.try_clone().unwrap());
            std::thread::spawn(move || {
                let passed = cutter.pass(from.try_clone().unwrap(), to.try_clone().unwrap(), number, up);
                match passed {
                    // An orderly end of one direction.
                    Ok(()) => drop(to.shutdown(Shutdown::Write)),
                    Err(_) => [from, to].iter().for_each(reset),
                }
            });
        }
        listener.accept().unwrap().0
    }

    fn pass(&self, mut from: TcpStream, mut to: TcpStream, number: usize, up: bool) -> io::Result<()> {
        let mut packet = vec![0; 4];
        while from.peek(&mut packet[..1])? > 0 {
            packet.resize(4, 0);
            from.read_exact(&mut packet)?;
            let length = u32::from_le_bytes(packet[..4].try_into().unwrap()) & LENGTH;
            packet.resize(4 + length as usize, 0);
            from.read_exact(&mut packet[4..])?;
            let cut = self.claim(number, up);
            let passes = cut.map_or(packet.len(), |cut| cut.bytes.min(packet.len()));
            to.write_all(&packet[..passes])?;
            if let Some(cut) = cut {
                self.cut(cut, number);
                return Err(io::ErrorKind::ConnectionReset.into());
            }
        }
        Ok(())
    }

    /// Another packet. `Some`: the cut that it meets, which is its connection's alone: another one's next packet passes whole.
    fn claim(&self, number: usize, up: bool) -> Option<Breakage> {
        let mut state = self.state();
        let cut = state.cuts.front().copied().filter(|cut| cut.up == up && cut.seen.has(number, number))?;
        state.counted += 1;
        if state.counted <= cut.packets {
            return None;
        }
        state.cuts.pop_front();
        (state.counted, state.done) = (0, state.done + 1);
        Some(cut)
    }

    fn cut(&self, cut: Breakage, seen: usize) {
        let state = self.state();
        let lines = state.lines.iter().enumerate().filter(|(number, _)| cut.which.has(*number, seen));
        lines.for_each(|(_, line)| line.iter().for_each(reset));
    }
}

/// Ends a connection as a router does that has forgotten it.
fn reset(socket: &TcpStream) {
    if rustix::net::connect_unspec(socket).is_err() {
        let _ = socket.shutdown(Shutdown::Both);
    }
}
