//! Tests of the mediator on the simulated card.

mod accelerators;
#[path = "../../../card/tests/common/mod.rs"]
mod common;
#[path = "../golden/mod.rs"]
mod golden;
mod link;
mod nlb;
mod refused_moves;
mod turns;
mod vfio;
