//! The seam where a real board goes.

use std::fmt;
use std::sync::Arc;

use thiserror::Error;

use crate::description::ImageDescription;
use crate::iommu::{IoFault, IommuError, Rights};
use crate::memory::ClientMemory;

/// the monitor refused the MMIO write to {0:#x}
#[derive(Debug, Error, displaydoc::Display, Clone, Copy, PartialEq, Eq)]
pub struct MmioRefused(pub u32);

/// The reason why [`Board::advance`] returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// The cycles are over.
    Elapsed,
    /// Nothing runs and nothing is under way: the clock stands still until the next access.
    Idle,
    /// An accelerator raised an interrupt.
    Interrupt,
}

/// A request outside the slice of its port. There must be none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Escape {
    /// Cycle, port, and IO virtual address of the request's first line.
    pub at: u64,
    pub port: u8,
    pub address: u64,
    pub lines: u64,
    pub write: bool,
}

impl fmt::Display for Escape {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Escape { at, port, address, write, .. } = self;
        write!(to, "a {} of {address:#x} by port {port} at cycle {at}", if *write { "write" } else { "read" })
    }
}

/// A card with a monitor: MMIO, a clock, an IO page table and interrupts.
///
/// ```
/// use aviary_card::{Board, Stop};
///
/// /// Lets a card run until an accelerator has something to say; false: it never will.
/// fn wait_for_interrupt(board: &mut dyn Board) -> bool {
///     loop {
///         match board.advance(10_000) {
///             Stop::Interrupt => return true,
///             Stop::Idle => return false,
///             Stop::Elapsed => {}
///         }
///     }
/// }
/// ```
pub trait Board {
    fn description(&self) -> &ImageDescription;

    /// Cycles of the monitor's clock since the card began.
    fn now(&self) -> u64;

    /// Reads 8 bytes of the MMIO window; `address` is rounded down to a multiple of 8. What does not exist or does not
    /// answer reads as all ones.
    fn read(&mut self, address: u32) -> u64;

    /// Writes 8 bytes of the MMIO window.
    ///
    /// # Errors
    /// The monitor refused the write: a slice of a port that is not drained, a page that does not exist, an accelerator in
    /// reset or without an answer.
    fn write(&mut self, address: u32, value: u64) -> Result<(), MmioRefused>;

    /// Writes the half of an 8-byte word in which `address`, a multiple of 4, lies.
    ///
    /// # Errors
    /// As [`Board::write`].
    fn write_half(&mut self, address: u32, value: u32) -> Result<(), MmioRefused>;

    /// Maps `length` bytes of a client's memory from `offset` on at an IO virtual address.
    ///
    /// # Errors
    /// See [`IommuError`]; nothing is mapped then.
    fn map(
        &mut self,
        address: u64,
        memory: &Arc<ClientMemory>,
        offset: u64,
        length: u64,
        rights: Rights,
    ) -> Result<(), IommuError>;

    /// Takes away all mappings in a range. On return no request that was translated before is under way: the memory can be
    /// given to others.
    ///
    /// # Errors
    /// See [`IommuError`]; nothing is unmapped then.
    fn unmap(&mut self, address: u64, length: u64) -> Result<(), IommuError>;

    /// Lets the clock run for at most this many cycles.
    fn advance(&mut self, cycles: u64) -> Stop;

    /// Interrupts since the last call: bit 4 p + v is vector v of port p.
    fn take_interrupts(&mut self) -> u64;

    /// A job has failed. A board that records what happens keeps what it has of the time before.
    fn note_failed_job(&mut self) {}

    /// The first request that has left the slice of its port, where the board sees that. There must be none: a monitor that lets one
    /// pass keeps nobody apart.
    fn first_escape(&self) -> Option<Escape> {
        None
    }

    /// The first requests that the IO page table refused since the last call, and how many there were in all.
    fn take_io_faults(&mut self) -> (Vec<IoFault>, u64);
}
