//! The mediator of one FPGA card: clients see *virtual accelerators*, each with memory of its own, and share the card's ports by
//! turns that are measured in device time. The card is simulated and its IOMMU a model (docs/fpga-monitor.md).
//!
//! [`Mediator`] has the functions, called by one thread. [`link`] serves clients in other processes with them;
//! [`device`] is a client that shows its virtual accelerator to a virtual machine.
#![forbid(unsafe_code)]

// The fuzz targets use the crate from outside.
#[cfg(test)]
extern crate self as aviary_fpga;

pub mod device;
mod faults;
#[cfg(test)]
mod fuzz_tests;
pub mod link;
mod mappings;
mod mediator;
mod registers;
mod slices;
mod switching;
mod turns;
mod virtual_accelerator;

pub use faults::{FaultCause, FaultyRequest, JobFault};
pub use mappings::MappingError;
pub use mediator::moving::Departed;
pub use mediator::{Error, Mediator, Settings, USUAL_TURN, usual_discipline};
pub use registers::{ReadAnswer, WriteAnswer};
pub use slices::SLICE_BYTES;
pub use turns::{PortUse, nanoseconds};
pub use virtual_accelerator::{Failure, Owner, Phase, Status, VirtualId};
