//! Tests of the VM's device through its queues.

mod device;
mod hostile;
mod lies;
mod pauses;
#[path = "../support/mod.rs"]
mod support;
