//! Device scheduling without a device: start-time fair queueing with a bounded depth, SFQ(D), over jobs.
//!
//! Each session has one word per device, its *allowance*: device time that it may have submitted by now. The node's
//! [`Arbiter`] writes it, the API server's [`Holder`] submits while its position is below it. Hand-over with overlap,
//! running ahead while alone, priorities and caps are numbers in that word. Nothing here reads a clock, memory or a
//! file: time and reports are arguments, so that both sides run against each other in tests on a clock of their own.
//! Reports of an API server are bounded by the time that passed; see [`split`].

mod arbiter;
mod cap;
mod credit;
mod discipline;
mod fair;
mod holder;
mod job;
mod round_robin;
#[cfg(test)]
mod simulation;
mod split;
mod wfq;

pub use arbiter::{Arbiter, MemberId, Settings, Slots, Usage};
pub use credit::Credit;
pub use discipline::{AccountingMode, Charge, Decision, Discipline, JobIndex, Precedence, Share};
pub use fair::Fair;
pub use holder::{ALONE, Holder, Limits, Report, UNMANAGED, Verdict};
pub use round_robin::RoundRobin;
pub use split::{DeviceKind, split};
pub use wfq::Wfq;
