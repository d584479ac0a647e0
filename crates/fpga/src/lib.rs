//! The mediator of one FPGA card: clients see *virtual accelerators*, each with memory of its own, and share the card's ports by
//! turns that are measured in device time. The card is simulated and its IOMMU a model (docs/fpga-monitor.md).
//!
//! This is the in-process form: functions of [`Mediator`], called by one thread. There is no link to other processes yet.
#![forbid(unsafe_code)]

mod mappings;
mod mediator;
mod registers;
mod slices;
mod switching;
mod turns;
mod virtual_accelerator;

pub use mappings::MappingError;
pub use mediator::{Error, Mediator, Settings};
pub use registers::{ReadAnswer, WriteAnswer};
pub use slices::SLICE_BYTES;
pub use turns::{Fair, RoundRobin, Turns};
pub use virtual_accelerator::{Failure, Phase, Status, VirtualId};
