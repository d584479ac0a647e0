//! What went wrong first in a job, for the one whose job it is: as the monitor's records and the IO page table tell it.

use std::fmt;

use aviary_card::IoFault;
use aviary_card::monitor::{FaultKind, PortFault};

/// Why a job has failed. The numbers are those of the link and of `fpga/library/aviary-fpga.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, displaydoc::Display)]
pub enum FaultCause {
    /// no memory is mapped there
    NotMapped = 1,
    /// the memory there is mapped to be read only
    ReadOnly = 2,
    /// the address is below the program's 64 GB
    Below = 3,
    /// the address is above the program's 64 GB
    Above = 4,
    /// it is no request of 1 to 4 lines that the monitor carries
    Shape = 5,
    /// the accelerator did not answer
    Silent = 6,
    /// the job did not save its state in time when another's turn began
    Stuck = 7,
    /// the accelerator says so itself: no request of it was refused
    Accelerator = 8,
}

/// The first fault of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobFault {
    pub cause: FaultCause,
    /// The request that was refused, if it was one.
    pub request: Option<FaultyRequest>,
    /// Cycle of the card's clock at which it was seen.
    pub at: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FaultyRequest {
    pub write: bool,
    /// Of the line, as the program knows it.
    pub address: u64,
}

impl JobFault {
    /// Of a request that the monitor refused, seen at cycle `at`, in a slice that is at `base` for the program. The monitor
    /// compares IO virtual addresses, which wrap: what is below the first slice is above it there.
    pub fn of_port(fault: &PortFault, at: u64, base: u64) -> JobFault {
        let cause = match fault.kind {
            FaultKind::Below | FaultKind::Above if fault.address < base => FaultCause::Below,
            FaultKind::Below | FaultKind::Above => FaultCause::Above,
            FaultKind::Disabled => FaultCause::NotMapped,
            FaultKind::Shape | FaultKind::Burst | FaultKind::Unknown(_) => FaultCause::Shape,
        };
        JobFault { cause, request: Some(FaultyRequest { write: fault.write, address: fault.address }), at }
    }

    /// Of a request that the IO page table refused; the slice that begins at `slice` is at `base` for the program.
    pub fn of_io(fault: &IoFault, slice: u64, base: u64) -> JobFault {
        let cause = if fault.read_only { FaultCause::ReadOnly } else { FaultCause::NotMapped };
        let address = fault.address.wrapping_sub(slice).wrapping_add(base);
        JobFault { cause, request: Some(FaultyRequest { write: fault.write, address }), at: fault.at }
    }
}

impl fmt::Display for JobFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.request {
            Some(FaultyRequest { write, address }) => {
                let kind = if write { "write to" } else { "read of" };
                write!(f, "a {kind} {address:#x} was refused at cycle {}: {}", self.at, self.cause)
            }
            None => write!(f, "at cycle {}: {}", self.at, self.cause),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_that_of_the_program() {
        let refused = IoFault { at: 9, port: 0, address: 0x8000_0040, write: true, read_only: true };
        let fault = JobFault::of_io(&refused, 0x8000_0000, 0x7f00_0000_0000);
        assert_eq!(
            fault.to_string(),
            "a write to 0x7f0000000040 was refused at cycle 9: the memory there is mapped to be read only"
        );
        let record = PortFault { kind: FaultKind::Above, write: false, lines: 1, address: 0x1000 };
        assert_eq!(JobFault::of_port(&record, 4, 0x2000).cause, FaultCause::Below);
        let fault = JobFault::of_port(&record, 4, 0);
        assert_eq!(fault.cause, FaultCause::Above);
        assert_eq!(
            fault.to_string(),
            "a read of 0x1000 was refused at cycle 4: the address is above the program's 64 GB"
        );
    }
}
