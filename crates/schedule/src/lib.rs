//! Device scheduling without a device: who may submit work to an accelerator now, and how much.
//!
//! # The problem
//!
//! Programs of several tenants use one accelerator. None of them is trusted, and most accelerators cannot be interrupted:
//! work that was submitted runs until it is done. A scheduler that asks a central process before each call would cost a
//! round trip of tens of microseconds per call, which is as long as many kernels take. One that only looks from time to
//! time lets a program that submits a hundred calls at once keep the device from all others until they are done.
//!
//! # The idea
//!
//! Time on the device is handed out in advance, as a number. Each session has one word per device, its *allowance*: the
//! device time that it may have submitted by now, since it began. It also keeps its own *position*: the device time of
//! work that was completed, and an estimate of what is in flight. A call that submits work compares the two words and
//! goes on while the position is lower. That costs a load and a comparison; nobody is asked.
//!
//! The node raises one job's allowance at a time, by one turn. So everything that a scheduler does is a number in
//! that word: to hand the device over is to raise another job's allowance; to let a job run while it is alone is to write
//! [`ALONE`]; a priority is whose word is raised first; a cap is a word that is raised more slowly.
//!
//! # Terms
//!
//! - A *job* is all sessions of one tenant on one device; it has a [`Share`]. A *member* is one session of it.
//! - A *turn* is the time in which one job's allowance was raised and is not used up; its length is the *quantum*.
//! - *In flight* is work that was submitted and whose completion was not seen yet.
//! - A *mark* is something behind the work in flight whose completion the API can report: an event, a fence.
//! - *Depth* is how much estimated work a job may have in flight; it bounds how long another job waits for a device that
//!   cannot be preempted.
//! - A *tag* is what a job has used, divided by its weight; see [`Fair`].
//!
//! # The mechanism
//!
//! Two machines share a page, and each of them writes only its own words there.
//!
//! The [`Holder`] is in the API server, one per session and device. Before a call it answers a [`Verdict`]: submit, or
//! wait for the allowance, or wait because enough is in flight. Afterwards it learns what calls cost: it puts a mark behind
//! a batch of calls, sees when that is completed, and divides. It writes a [`Report`]: what was used, since when work is
//! in flight, when that will be done, whether threads wait.
//!
//! The [`Arbiter`] is in the node, one per device. [`Arbiter::step`] is all that it does: it reads the reports of those
//! members that may want something, charges what their jobs have used, asks the [`Discipline`] which of the waiting jobs
//! is next, and writes [`Limits`]. It answers when it wants to look again. A job's successor is let in a little before
//! its last work is expected to end, because two threads must wake up for that while the device would be idle.
//!
//! A [`Discipline`] is only the order. [`Fair`] is the one that is used: start-time fair queueing with a bounded depth,
//! SFQ(D). The lowest tag is next, and a job that slept starts near the lowest tag of those that did not: it may make
//! up for two turns, and cannot save up more. [`RoundRobin`] gives slices in turn. [`Wfq`] and [`Credit`] are other
//! papers' schedulers, for comparison.
//!
//! # What an API server that lies can get
//!
//! A report is written by a process that may have been taken over. The arbiter believes no number beyond what its own
//! clock allows: work cannot have taken longer than the time since the last look, and the work of all jobs together not
//! longer than that time, however it overlapped ([`split`]). A job pays for most of the time in which it kept the device
//! from others, whatever it says that it used. So a lie costs other sessions of the liar's own tenant, and at most a
//! turn of somebody else's time; work that is kept on a device beyond that is what `hold_limit` ends
//! ([`Arbiter::take_overdue`]).
//!
//! # Memory
//!
//! [`residency`] decides whose memory is on a device that is smaller than all of it together: who leaves, who comes, and for how
//! long. It is as pure as the rest.
//!
//! # What is not here
//!
//! No clock, no memory of other processes, no file, no thread: time is an argument, and pages are behind [`Slots`]. The
//! same code runs in the node, in API servers, and in tests that let an arbiter and many holders run against each other
//! on a clock of their own, with exact expected shares.

mod arbiter;
mod cap;
mod credit;
mod discipline;
mod fair;
mod holder;
mod job;
pub mod residency;
mod round_robin;
#[cfg(test)]
mod simulation;
mod split;
mod wfq;

pub use arbiter::{Arbiter, Settings, Slots, Usage};
pub use credit::Credit;
pub use discipline::{AccountingMode, Charge, Decision, Discipline, JobIndex, Precedence, Share};
pub use fair::Fair;
pub use holder::{ALONE, Holder, Limits, Report, UNMANAGED, Verdict};
pub use job::MemberId;
pub use round_robin::RoundRobin;
pub use split::{DeviceKind, split};
pub use wfq::Wfq;
