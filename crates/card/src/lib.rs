//! An FPGA card that several clients share: [`Board`] is the seam where a real board goes, [`Simulated`] its one
//! implementation. The card is simulated cycle by cycle from its RTL (`fpga/`), and its IOMMU, link and memory latency are
//! a model; times are cycles of the monitor's clock, never wall-clock time.
//!
//! The crate knows ports and IO addresses, not tenants or virtual accelerators.

mod axi;
mod board;
mod description;
mod escapes;
mod image;
mod iommu;
mod memory;
mod mmio;
pub mod monitor;
mod simulated;
mod tlb;

pub use board::{Board, Escape, MmioRefused, Stop};
pub use description::{
    DescriptionError, ImageDescription, ModelParameters, PortDescription, RegisterDescription, RegisterKind,
};
pub use image::ImageError;
pub use iommu::{HUGE_PAGE, IoFault, IommuError, PAGE, Rights, entries_of};
pub use memory::{ClientMemory, ClientMemoryError};
pub use monitor::Monitor;
pub use simulated::{CardError, Simulated, Statistics, WaveformOptions};

/// Bytes of a line, the unit of every memory request.
pub const LINE: u64 = 64;
