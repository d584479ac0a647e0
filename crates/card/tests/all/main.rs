//! Tests of the simulated card.

#[path = "../common/mod.rs"]
mod common;
mod jobs;
mod sharing;
mod waveforms;
