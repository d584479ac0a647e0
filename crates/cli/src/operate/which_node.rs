//! Which running node a command of an operator is about.

use aviary_node::{Address, default_socket};
use clap::Args;
use std::path::PathBuf;

#[derive(Args)]
pub struct WhichNode {
    /// The node's address, unix:/PATH [default: the default node's]
    #[arg(long, value_name = "ADDR", env = "AVIARY_SERVER")]
    server: Option<Address>,
}

impl WhichNode {
    pub fn socket(&self) -> PathBuf {
        self.server.as_ref().map_or_else(default_socket, |address| address.path().to_owned())
    }
}
