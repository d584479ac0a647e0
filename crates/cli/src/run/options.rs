//! The options of `aviary run`.

use crate::daemons::remote::{ClientArgs, NodeAddress};
use aviary_node::Level;
use clap::Args;
use std::{ffi::OsString, path::PathBuf};

/// Run a program with an accelerator that it does not own.
///
/// Without --server (or AVIARY_SERVER) a private node is started for the program. It uses the vendors' libraries of this
/// machine and ends with the program.
/// The exit status is the program's own, 128+N if signal N ended it, 126 if it cannot be executed, 127 if it does not
/// exist.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  aviary run -- clinfo\n  aviary run --api opencl --server unix:/run/aviary/node.sock -- python3 train.py"
)]
pub struct RunCommand {
    /// Virtualize this API only (repeatable; default: all that are built).
    #[arg(long, value_name = "NAME")]
    pub api: Vec<String>,
    /// Use the node at this address instead of a private one: unix:/PATH, HOST:PORT or vsock:CID:PORT.
    #[arg(long, value_name = "ADDR", env = "AVIARY_SERVER")]
    pub server: Option<NodeAddress>,
    #[command(flatten)]
    pub remote: ClientArgs,
    /// Send all data through a socket instead of sharing memory with the API server.
    #[arg(long)]
    pub mirror: bool,
    /// Put the program's large allocations into memory that the API server maps, so that buffers are not copied. The API
    /// server can then read and write all of that memory. Not with a node on another machine.
    #[arg(long, conflicts_with = "mirror")]
    pub share_heap: bool,
    /// Do not wait for the results of more calls, where the API's specification allows it; a later call then reports the
    /// failure. For slow links.
    #[arg(long)]
    pub relaxed: bool,
    /// Look for API builds in this folder first (repeatable).
    #[arg(long, value_name = "DIR")]
    pub api_dir: Vec<PathBuf>,
    /// Limit a resource that the API's specification declares, for the program and all its child processes together; with
    /// @DEVICE: on each device of that name, which may end with * (repeatable).
    #[arg(long, value_name = "RESOURCE[@DEVICE]=AMOUNT", value_parser = crate::config::amount::parse_limit, conflicts_with = "server")]
    pub limit: Vec<(crate::config::amount::LimitPlace, u64)>,
    /// Let the program use only devices of this name, as the vendor's library reports it; it may end with * (repeatable).
    #[arg(long, value_name = "NAME", value_parser = crate::config::parse_device, conflicts_with = "server")]
    pub only_device: Vec<String>,
    /// Give the program a simulated FPGA card of its own with this image: the name of one built by `fpga/build`, or a file.
    /// Without --api, no other API is virtualized.
    #[arg(long, value_name = "IMAGE")]
    pub fpga: Option<String>,
    #[command(flatten)]
    pub waveforms: crate::fpga::WaveformArguments,
    /// Log level of the private node, which logs to standard error: error, warn, info or debug.
    #[arg(long, value_name = "LEVEL", default_value = "warn")]
    pub log_level: Level,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}
