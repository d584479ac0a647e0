//! Tests of policies as clang compiles them.

mod behaviour;
mod benign;
mod common;
mod hostile;
mod mutations;
