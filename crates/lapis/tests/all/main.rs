//! Tests of the specification compiler on whole specifications.

mod chains;
mod combinations;
mod files;
mod folder;
mod golden;
mod guesses;
mod inside;
mod load;
mod memory;
mod outcomes;
mod passed_environment;
mod pointers;
mod sandbox;
mod states;
mod statuses;
mod tables;
mod tools;
mod unpack;
mod values;
mod varargs;
