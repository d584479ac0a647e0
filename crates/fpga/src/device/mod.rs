//! A virtual accelerator as a PCI function of a virtual machine: a vfio-user 0.1 server, and a client of the card's link.
//!
//! A keeper and a worker serve one VMM (`aviary fpga-device`). What the VMM sends is hostile: a message is bounded, wrong ones are
//! answered with an errno or end the connection, and whatever happens harms this machine's own virtual accelerator only. The card
//! checks everything again that it is asked.

mod card;
mod config_space;
mod control_page;
mod fpga_device;
mod keeper;
mod message;
mod passing;
mod state;
mod vm_memory;
mod worker;

pub use card::{Card, CardLost, CardSocket};
pub use config_space::PciIds;
pub use fpga_device::{DeviceError, FpgaDevice, MessageCounts};
pub use keeper::{DeviceFarewell, Keeper, StartedWorker};
pub use message::{HEADER_BYTES, Header, MAX_MESSAGE_BYTES};
pub use passing::end_connection;
pub use worker::{Worker, WorkerError};
