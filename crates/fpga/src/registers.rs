//! Trap and emulate: a client's accesses to the page of its virtual accelerator.

use aviary_card::monitor::{CONTROL, Command, STATE_ADDRESS, STATE_LINES};
use aviary_card::{Board, Monitor, RegisterKind};

use crate::virtual_accelerator::{Phase, StartBits, VirtualAccelerator};

/// Writes that a virtual accelerator without its port may leave behind.
const QUEUED_WRITES: usize = 256;
/// Bytes of the page.
const PAGE: u32 = 0x1000;
/// The registers before this one are the header and the preemption interface.
const FIRST_REGISTER: u32 = 0x30;

/// The answer to a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadAnswer {
    Value(u64),
    /// The register has an effect and the virtual accelerator is not on its port. It asked for the port; the client waits.
    NotScheduled,
}

/// The answer to a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteAnswer {
    Done,
    /// 256 writes wait already. The virtual accelerator asked for the port; the client waits.
    QueueFull,
}

/// An access is naturally aligned, 4 or 8 bytes, and in the page.
fn is_allowed(offset: u32, bytes: u32) -> bool {
    matches!(bytes, 4 | 8) && offset.is_multiple_of(bytes) && offset <= PAGE - bytes
}

fn part(word: u64, offset: u32, bytes: u32) -> u64 {
    if bytes == 8 { word } else { word >> (offset % 8 * 8) & 0xffff_ffff }
}

fn merged(word: u64, offset: u32, bytes: u32, value: u64) -> u64 {
    if bytes == 8 {
        return value;
    }
    let shift = offset % 8 * 8;
    word & !(0xffff_ffff << shift) | (value & 0xffff_ffff) << shift
}

/// The job's state as the client sees it: a job that is queued runs.
fn control(phase: Phase) -> u64 {
    match phase {
        Phase::Idle => 0,
        Phase::Queued { .. } | Phase::Running => 1,
        Phase::Done => 5,
        Phase::Failed(_) => 6,
    }
}

/// A read of `bytes` at `offset`. `scheduled`: the virtual accelerator is on its port.
pub fn read<B: Board>(
    board: &mut B,
    own: &mut VirtualAccelerator,
    scheduled: bool,
    offset: u32,
    bytes: u32,
) -> ReadAnswer {
    if !is_allowed(offset, bytes) {
        own.bad_accesses += 1;
        return ReadAnswer::Value(0);
    }
    let word = offset & !7;
    let value = match (word, own.kinds.get(&word)) {
        (CONTROL, _) => control(own.phase),
        (STATE_LINES | STATE_ADDRESS, _) => 0,
        (word, None) if word < FIRST_REGISTER => own.cache.get(&word).copied().unwrap_or(0),
        (_, None) => 0,
        (word, Some(_)) if scheduled => {
            let address = Monitor(board).of_accelerator(own.port, word);
            board.read(address)
        }
        (_, Some(RegisterKind::Effect)) => {
            own.wants_port = true;
            return ReadAnswer::NotScheduled;
        }
        (word, Some(RegisterKind::Plain | RegisterKind::Status)) => own.cache.get(&word).copied().unwrap_or(0),
    };
    ReadAnswer::Value(part(value, offset, bytes))
}

/// A write of `bytes` at `offset` that is no command: those are the mediator's.
pub fn write<B: Board>(
    board: &mut B,
    own: &mut VirtualAccelerator,
    scheduled: bool,
    offset: u32,
    bytes: u32,
    value: u64,
) -> WriteAnswer {
    let word = offset & !7;
    if !is_allowed(offset, bytes) {
        own.bad_accesses += 1;
        return WriteAnswer::Done;
    }
    let Some(kind) = own.kinds.get(&word).copied() else {
        // The header, the preemption interface, or no register.
        return WriteAnswer::Done;
    };
    if kind == RegisterKind::Status {
        return WriteAnswer::Done;
    }
    // Halves of a register with an effect are written as they come; others are merged, since the cache has the rest.
    let cached = own.cache.get(&word).copied().unwrap_or(0);
    let whole = merged(cached, offset, bytes, value);
    if kind == RegisterKind::Plain {
        own.cache.insert(word, whole);
    }
    if scheduled {
        let address = Monitor(board).of_accelerator(own.port, offset);
        // An accelerator that does not answer is found at the next switch.
        let _ = match (kind, bytes) {
            (RegisterKind::Effect, 4) => board.write_half(address, value as u32),
            _ => board.write(address, whole),
        };
        return WriteAnswer::Done;
    }
    if kind == RegisterKind::Plain {
        return WriteAnswer::Done;
    }
    own.wants_port = true;
    if own.queue.len() >= QUEUED_WRITES {
        return WriteAnswer::QueueFull;
    }
    own.queue.push_back((word, whole));
    WriteAnswer::Done
}

/// Is this write a start of the job?
pub fn is_start(offset: u32, bytes: u32, value: u64) -> bool {
    offset == CONTROL && is_allowed(offset, bytes) && value == Command::Start as u64
}

/// The change that a write makes to the bits of a register that start a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartEdge {
    /// All are set, and were not.
    Rises,
    /// Not all are set any more.
    Falls,
}

/// The change that this write would make to the virtual accelerator's start bits.
pub fn start_edge(own: &VirtualAccelerator, offset: u32, bytes: u32, value: u64) -> Option<StartEdge> {
    let StartBits { register, bits } = own.starts?;
    if !is_allowed(offset, bytes) || offset & !7 != register {
        return None;
    }
    let before = own.cache.get(&register).copied().unwrap_or(0);
    let after = merged(before, offset, bytes, value);
    match (before & bits == bits, after & bits == bits) {
        (false, true) => Some(StartEdge::Rises),
        (true, false) => Some(StartEdge::Falls),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_are_whole_and_in_the_page() {
        for (offset, bytes) in [(0x40, 4), (0x44, 4), (0x40, 8), (0xff8, 8), (0xffc, 4)] {
            assert!(is_allowed(offset, bytes), "{offset:#x} {bytes}");
        }
        for (offset, bytes) in
            [(0x40, 1), (0x40, 2), (0x40, 16), (0x44, 8), (0x42, 4), (0x1000, 4), (0xffc, 8), (u32::MAX, 4)]
        {
            assert!(!is_allowed(offset, bytes), "{offset:#x} {bytes}");
        }
    }

    #[test]
    fn halves_are_taken_from_and_put_into_a_word() {
        let word = 0x1111_1111_2222_2222;
        assert_eq!((part(word, 0x40, 4), part(word, 0x44, 4), part(word, 0x40, 8)), (0x2222_2222, 0x1111_1111, word));
        assert_eq!(merged(word, 0x44, 4, 0x3_3333_3333), 0x3333_3333_2222_2222);
        assert_eq!(merged(word, 0x40, 4, 0x4444_4444), 0x1111_1111_4444_4444);
        assert_eq!(merged(word, 0x40, 8, 5), 5);
    }
}
