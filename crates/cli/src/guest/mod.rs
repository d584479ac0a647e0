//! `aviary guest`: what lies in a virtual machine.

mod cpio;
pub mod elf;
mod fpga;
mod image;
mod install;
mod layout;
mod modules;
mod root;

pub use cpio::Archive;
pub use image::{Additions, COMMAND, INITRAMFS, KERNEL, quoted};

use clap::{Args, Subcommand};
use std::process::ExitCode;

/// Prepare virtual machines: build an image, or install into a system.
#[derive(Args)]
pub struct GuestCommand {
    #[command(subcommand)]
    action: GuestAction,
}

#[derive(Subcommand)]
enum GuestAction {
    Image(image::ImageCommand),
    Install(install::InstallCommand),
}

pub fn run(command: &GuestCommand) -> anyhow::Result<ExitCode> {
    match &command.action {
        GuestAction::Image(command) => image::run(command),
        GuestAction::Install(command) => install::run(command),
    }
}
