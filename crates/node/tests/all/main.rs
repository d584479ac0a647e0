//! Tests of a node with API servers, guests and VMs that are processes: this program, started again as one of its tests.

mod foreign;
mod hostile;
mod identity;
mod moves;
mod node;
mod support;
mod vms;
