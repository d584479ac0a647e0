//! The monitor's registers, and what software does with them, on any board. docs/fpga-monitor.md has the map.

use std::fmt;

use thiserror::Error;

use crate::LINE;
use crate::board::{Board, MmioRefused};

/// Registers of the VCU's page.
pub const VERSION: u32 = 0x018;
pub const RESET: u32 = 0x020;
pub const DRAINED: u32 = 0x028;
pub const RUNNING: u32 = 0x030;
pub const FAULTS: u32 = 0x038;
pub const OUTSIDE: u32 = 0x040;
pub const SILENT: u32 = 0x048;
/// Registers of port i begin at `PORT_REGISTERS + i * PORT_STRIDE`.
pub const PORT_REGISTERS: u32 = 0x100;
pub const PORT_STRIDE: u32 = 0x80;
pub const OFFSET: u32 = 0x00;
pub const FIRST: u32 = 0x08;
pub const LAST: u32 = 0x10;
pub const ENABLE: u32 = 0x18;
pub const WEIGHT: u32 = 0x20;
pub const RATE: u32 = 0x28;
pub const FAULT: u32 = 0x30;
pub const FAULT_ADDRESS: u32 = 0x38;
pub const REFUSED: u32 = 0x40;
pub const CYCLES: u32 = 0x48;
pub const LINES_READ: u32 = 0x50;
pub const LINES_WRITTEN: u32 = 0x58;
pub const STALLED: u32 = 0x60;
/// A line address has 42 bits.
pub const LINE_MASK: u64 = (1 << 42) - 1;

/// Registers of an accelerator's page that no client reaches.
pub const CONTROL: u32 = 0x18;
pub const STATE_LINES: u32 = 0x20;
pub const STATE_ADDRESS: u32 = 0x28;

const PAGE: u32 = 0x1000;

/// A port cannot get an IO slice.
#[derive(Debug, Error, displaydoc::Display, Clone, Copy, PartialEq, Eq)]
pub enum SliceError {
    /// an IO slice of {bytes:#x} bytes at {base:#x}: expected whole lines within the IO address space, at least one
    Range { base: u64, bytes: u64 },
    /// port {0} must be in reset and drained
    Busy(usize),
}

/// Commands of the preemption interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    Start = 1,
    Pause = 2,
    Resume = 3,
}

/// States of a job, as CONTROL reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobState {
    Idle,
    Running,
    Saving,
    Saved,
    Loading,
    Done,
    Error,
    /// The accelerator does not answer, or answers nonsense.
    Silent,
}

impl JobState {
    fn from_register(value: u64) -> Self {
        match value {
            0 => Self::Idle,
            1 => Self::Running,
            2 => Self::Saving,
            3 => Self::Saved,
            4 => Self::Loading,
            5 => Self::Done,
            6 => Self::Error,
            _ => Self::Silent,
        }
    }
}

/// Why the monitor refused a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    Shape,
    Below,
    Above,
    Disabled,
    Burst,
    Unknown(u8),
}

/// The first request of a port that the monitor refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortFault {
    pub kind: FaultKind,
    pub write: bool,
    pub lines: u8,
    /// Guest virtual address of the first line, as the accelerator gave it.
    pub address: u64,
}

/// Counters of a port since the card began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PortCounters {
    /// Cycles in which a job ran.
    pub cycles: u64,
    pub lines_read: u64,
    pub lines_written: u64,
    /// Cycles in which a request waited.
    pub stalled: u64,
    /// Refused requests since the fault record was cleared.
    pub refused: u64,
}

/// The monitor of a board.
///
/// ```
/// use aviary_card::{Board, Monitor};
///
/// /// Starts over with the accelerator at a port.
/// fn restart(board: &mut dyn Board, port: usize) {
///     Monitor(board).reset(port);
/// }
/// ```
pub struct Monitor<'a, B: Board + ?Sized>(pub &'a mut B);

impl<B: Board + ?Sized> Monitor<'_, B> {
    fn control(&self) -> u32 {
        self.0.description().shell_pages * PAGE
    }

    fn of_port(&self, port: usize, register: u32) -> u32 {
        self.control() + PORT_REGISTERS + port as u32 * PORT_STRIDE + register
    }

    /// Address of a register of a port's accelerator.
    pub fn of_accelerator(&self, port: usize, register: u32) -> u32 {
        self.control() + (port as u32 + 1) * PAGE + register % PAGE
    }

    fn update_reset(&mut self, change: impl Fn(u64) -> u64) {
        let address = self.control() + RESET;
        let bits = change(self.0.read(address));
        // The monitor accepts every write to this register.
        let _ = self.0.write(address, bits);
    }

    /// Puts a port into reset: its accelerator stops, and what is under way is dropped when it is answered.
    pub fn reset(&mut self, port: usize) {
        self.update_reset(|bits| bits | 1 << port);
    }

    /// Lets a port out of reset.
    pub fn release(&mut self, port: usize) {
        self.update_reset(|bits| bits & !(1 << port));
    }

    /// Is nothing of the port under way?
    pub fn is_drained(&mut self, port: usize) -> bool {
        let address = self.control() + DRAINED;
        self.0.read(address) >> port & 1 != 0
    }

    /// Gives a port in reset a slice: guest virtual addresses from `guest` on are IO virtual addresses from `base` on.
    ///
    /// # Errors
    /// See [`SliceError`]. The monitor itself refuses to change the slice of a port that is not in reset and drained.
    pub fn set_slice(&mut self, port: usize, guest: u64, base: u64, bytes: u64) -> Result<(), SliceError> {
        let whole = [guest, base, bytes].iter().all(|value| value.is_multiple_of(LINE));
        let inside = base.checked_add(bytes).is_some_and(|end| end <= 1 << 48);
        if bytes == 0 || !whole || !inside {
            return Err(SliceError::Range { base, bytes });
        }
        let offset = (base / LINE).wrapping_sub(guest / LINE) & LINE_MASK;
        for (register, value) in
            [(OFFSET, offset), (FIRST, base / LINE), (LAST, (base + bytes) / LINE - 1), (ENABLE, 1)]
        {
            self.0.write(self.of_port(port, register), value).map_err(|_| SliceError::Busy(port))?;
        }
        Ok(())
    }

    /// Takes a port's slice away.
    ///
    /// # Errors
    /// See [`SliceError`].
    pub fn clear_slice(&mut self, port: usize) -> Result<(), SliceError> {
        self.0.write(self.of_port(port, ENABLE), 0).map_err(|_| SliceError::Busy(port))
    }

    /// Sets the weight of a port, 1 to 15, in images with weights.
    pub fn set_weight(&mut self, port: usize, weight: u8) {
        let _ = self.0.write(self.of_port(port, WEIGHT), u64::from(weight.clamp(1, 15)));
    }

    /// Limits a port to this many lines per 1,024 cycles; 0 is no limit.
    pub fn set_rate(&mut self, port: usize, lines: u16) {
        let _ = self.0.write(self.of_port(port, RATE), u64::from(lines));
    }

    /// The port's fault record.
    pub fn fault(&mut self, port: usize) -> Option<PortFault> {
        let record = self.0.read(self.of_port(port, FAULT));
        if record >> 63 == 0 {
            return None;
        }
        let kind = match record & 0xf {
            1 => FaultKind::Shape,
            2 => FaultKind::Below,
            3 => FaultKind::Above,
            4 => FaultKind::Disabled,
            5 => FaultKind::Burst,
            other => FaultKind::Unknown(other as u8),
        };
        let address = (self.0.read(self.of_port(port, FAULT_ADDRESS)) & LINE_MASK) * LINE;
        Some(PortFault { kind, write: record >> 4 & 1 != 0, lines: (record >> 8 & 3) as u8 + 1, address })
    }

    /// Clears the port's fault record and its count of refused requests.
    pub fn clear_fault(&mut self, port: usize) {
        let _ = self.0.write(self.control() + FAULTS, 1 << port);
    }

    /// Cycles in which a job ran at the port. Each register that is read takes the host hundreds of cycles.
    pub fn cycles(&mut self, port: usize) -> u64 {
        self.0.read(self.of_port(port, CYCLES))
    }

    /// Requests that were refused since the port's fault record was cleared.
    pub fn refused(&mut self, port: usize) -> u64 {
        self.0.read(self.of_port(port, REFUSED)) & 0xffff_ffff
    }

    pub fn counters(&mut self, port: usize) -> PortCounters {
        let [cycles, lines_read, lines_written, stalled, refused] =
            [CYCLES, LINES_READ, LINES_WRITTEN, STALLED, REFUSED]
                .map(|register| self.0.read(self.of_port(port, register)));
        PortCounters { cycles, lines_read, lines_written, stalled, refused: refused & 0xffff_ffff }
    }

    /// Gives a command to a port's accelerator; one in reset or without an answer does not get it.
    ///
    /// # Errors
    /// The accelerator is in reset or does not answer.
    pub fn command(&mut self, port: usize, command: Command) -> Result<(), MmioRefused> {
        self.0.write(self.of_accelerator(port, CONTROL), command as u64)
    }

    pub fn job(&mut self, port: usize) -> JobState {
        JobState::from_register(self.0.read(self.of_accelerator(port, CONTROL)))
    }
}

impl<B: Board + ?Sized> fmt::Debug for Monitor<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Monitor({})", self.0.description().name)
    }
}
