//! Taking a port from one virtual accelerator and giving it to another: pause, saved (or a forced reset), reset, drained, slice,
//! registers, resume.

use aviary_card::monitor::{Command, JobState, STATE_ADDRESS};
use aviary_card::{Board, Monitor, RegisterKind};

use crate::faults::JobFault;
use crate::slices::SLICE_BYTES;
use crate::virtual_accelerator::{Failure, Phase, VirtualAccelerator};

/// Cycles between two looks at a job that saves.
const SAVE_POLL_CYCLES: u64 = 200;

/// Takes the port away from its virtual accelerator: afterwards the port is in reset and drained. `since`: the port's cycle counter
/// when it was charged last. Returns the cycles in which the job ran since then.
pub fn leave<B: Board>(board: &mut B, own: &mut VirtualAccelerator, since: u64, save_timeout: u64) -> u64 {
    let port = own.port;
    if own.phase == Phase::Running {
        // A job that ended meanwhile ignores the pause.
        let end = board.now() + save_timeout;
        own.phase = if Monitor(board).command(port, Command::Pause).is_err() {
            Phase::Failed(Failure::Silent)
        } else {
            loop {
                match Monitor(board).job(port) {
                    JobState::Saved => break Phase::Queued { saved: true },
                    JobState::Done => break Phase::Done,
                    JobState::Error => break Phase::Failed(Failure::Job),
                    JobState::Silent => break Phase::Failed(Failure::Silent),
                    _ if board.now() >= end => break Phase::Failed(Failure::Stuck),
                    // A job that loads ignores the pause. It is told again, and saves once it runs.
                    JobState::Running if Monitor(board).command(port, Command::Pause).is_err() => {
                        break Phase::Failed(Failure::Silent);
                    }
                    _ => {
                        board.advance(SAVE_POLL_CYCLES);
                    }
                }
            }
        };
        if own.phase == (Phase::Queued { saved: true }) {
            own.preemptions += 1;
        }
    }
    copy_status(board, own);
    note_refusals(board, own);
    let cycles = Monitor(board).cycles(port).saturating_sub(since);
    own.cycles += cycles;
    vacate(board, port);
    cycles
}

/// Takes what the port's fault record says of requests that the monitor refused.
fn note_refusals<B: Board>(board: &mut B, own: &mut VirtualAccelerator) {
    let refused = Monitor(board).refused(own.port);
    if refused > 0 {
        let now = board.now();
        let fault = Monitor(board).fault(own.port).map(|fault| JobFault::of_port(&fault, now, own.base.unwrap_or(0)));
        own.refusal = own.refusal.or(fault);
        own.refused += refused;
        Monitor(board).clear_fault(own.port);
    }
}

/// Puts a port into reset and waits until it is drained, which takes the longest latency of the link at most.
pub fn vacate<B: Board>(board: &mut B, port: usize) {
    Monitor(board).reset(port);
    while !Monitor(board).is_drained(port) {}
}

/// Copies what may be read while the virtual accelerator is away.
pub fn copy_status<B: Board>(board: &mut B, own: &mut VirtualAccelerator) {
    let registers: Vec<u32> =
        own.kinds.iter().filter(|(_, kind)| **kind == RegisterKind::Status).map(|(register, _)| *register).collect();
    for register in registers {
        let address = Monitor(board).of_accelerator(own.port, register);
        own.cache.insert(register, board.read(address));
    }
}

/// Gives a port in reset and drained to a virtual accelerator. Returns the port's cycle counter.
pub fn enter<B: Board>(board: &mut B, own: &mut VirtualAccelerator) -> u64 {
    let (port, ports) = (own.port, board.description().ports.len());
    let since = Monitor(board).cycles(port);
    own.wants_port = false;
    if let Some(guest) = own.base {
        let slice = own.place.base(port, ports);
        if Monitor(board).set_slice(port, guest, slice, SLICE_BYTES).is_err() {
            own.phase = Phase::Failed(Failure::Silent);
            return since;
        }
    } else if Monitor(board).clear_slice(port).is_err() {
        own.phase = Phase::Failed(Failure::Silent);
        return since;
    }
    Monitor(board).release(port);
    let plain = own.kinds.iter().filter(|(_, kind)| **kind == RegisterKind::Plain);
    let writes: Vec<(u32, u64)> = plain
        .filter_map(|(register, _)| own.cache.get(register).map(|value| (*register, *value)))
        .chain(own.state_address.map(|address| (STATE_ADDRESS, address)))
        .chain(own.queue.drain(..))
        .collect();
    for (register, value) in writes {
        let address = Monitor(board).of_accelerator(port, register);
        // An accelerator that does not answer is found by the command that follows, or at the next switch.
        let _ = board.write(address, value);
    }
    if let Phase::Queued { saved } = own.phase {
        let command = if saved { Command::Resume } else { Command::Start };
        own.phase = match Monitor(board).command(port, command) {
            Ok(()) => Phase::Running,
            Err(_) => Phase::Failed(Failure::Silent),
        };
    }
    since
}

/// Looks at a running job; true if it ended.
pub fn look<B: Board>(board: &mut B, own: &mut VirtualAccelerator) -> bool {
    if own.phase != Phase::Running {
        return false;
    }
    own.phase = match Monitor(board).job(own.port) {
        JobState::Done => Phase::Done,
        JobState::Error => {
            // Its owner asks for them now, not after the turn.
            note_refusals(board, own);
            Phase::Failed(Failure::Job)
        }
        JobState::Silent => Phase::Failed(Failure::Silent),
        _ => return false,
    };
    true
}
