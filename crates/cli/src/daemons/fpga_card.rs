//! `aviary fpga-card`: the process of one FPGA card. Started by a node only.

use crate::fpga::find_image;
use anyhow::Context;
use aviary_card::Simulated;
use aviary_fpga::link::{Limits, Service, ServiceError};
use aviary_fpga::{Mediator, Settings, usual_discipline};
use aviary_server::process::sandboxing::confine_helper;
use clap::Args;
use rustix::process::{Resource, Rlimit};
use std::{fs::File, io, os::fd::AsFd, process::ExitCode};

/// Serves the clients that the node passes to it on standard input, until the node ends.
#[derive(Args)]
pub struct FpgaCardCommand {
    /// The card's name in the node's configuration.
    #[arg(long, value_name = "NAME")]
    name: String,
    /// The image's file or name.
    #[arg(long, value_name = "IMAGE")]
    image: String,
    /// Run as this user.
    #[arg(long, value_name = "UID")]
    user: Option<u32>,
}

pub fn run(command: FpgaCardCommand) -> anyhow::Result<ExitCode> {
    let FpgaCardCommand { name, image, user } = command;
    let shown = name.escape_debug().to_string();
    // The end of the node is the end of this socket, also while the image is being loaded. A signal at the parent's end would come
    // when the thread that has started this process ends, as in an upgrade of the node.
    let control = io::stdin().as_fd().try_clone_to_owned()?;
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    // No core dumps: they would contain clients' memory.
    rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    let board = Simulated::start(&find_image(&image)?).with_context(|| format!("card {shown}: image {image}"))?;
    // Before clients come: what they send is hostile. The image is loaded, and no other file is needed.
    confine_helper(user).map_err(|error| anyhow::anyhow!("card {shown}: {error}"))?;
    let mediator = Mediator::new(board, Settings::default(), usual_discipline);
    let told = shown.clone();
    let log = move |line: std::fmt::Arguments<'_>| eprintln!("aviary fpga-card {told}: {line}");
    let mut service = Service::of_node(mediator, control, &name, Limits::default(), log)?;
    let (never, _kept) = io::pipe()?;
    match service.serve(never.as_fd()) {
        Ok(()) | Err(ServiceError::Node) => Ok(ExitCode::SUCCESS),
        Err(error) => {
            eprintln!(
                "aviary fpga-card {shown}: the card's service ended ({error}): its programs lose their accelerators"
            );
            Ok(ExitCode::FAILURE)
        }
    }
}
