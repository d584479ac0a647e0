//! Tests of the VM's device through its queues.

mod cycles;
mod device;
mod hostile;
mod lies;
mod pauses;
mod support;
