//! Tests of the API server's runtime through its lanes and its processes.

mod calls;
mod fuzz;
mod hostile;
mod moves;
mod process;
#[path = "../support/mod.rs"]
mod support;
