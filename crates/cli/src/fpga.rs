//! Simulated FPGA cards: `aviary run --fpga`, a card for one program, and `aviary fpga card`, one for several.

use crate::apis::Api;
use crate::daemons::descriptors::raise_descriptor_limit;
use crate::daemons::signals::Signals;
use crate::dropin::find_library;
use crate::fpga_move::MoveCommand;
use anyhow::{Context, bail};
use aviary_card::Simulated;
use aviary_fpga::link::{Limits, Service};
use aviary_fpga::{Mediator, Settings, usual_discipline};
use clap::{Args, Subcommand};
use std::{
    collections::BTreeMap,
    env,
    io::{self, PipeWriter, Write},
    os::fd::AsFd,
    path::{Path, PathBuf},
    process::ExitCode,
    thread::JoinHandle,
};

/// Folders with images and libraries, seen from this program's: that of `fpga/build` in the source tree, and that of an
/// installation.
const OWN_FOLDERS: [&str; 2] = ["../fpga", "../lib/aviary/fpga"];
/// The variable in which programs find their card.
pub const CARD_VARIABLE: &str = "AVIARY_FPGA";

/// Share a simulated FPGA card among programs.
#[derive(Args)]
pub struct FpgaCommand {
    #[command(subcommand)]
    command: FpgaSubcommand,
}

#[derive(Subcommand)]
enum FpgaSubcommand {
    Card(CardCommand),
    Move(MoveCommand),
}

/// Serve a simulated card until SIGINT or SIGTERM.
///
/// Programs use it if they are started with AVIARY_FPGA=unix:PATH. All users who may connect to the socket count as
/// one tenant. Accelerators of the same type take equal turns at a port.
#[derive(Args)]
#[command(after_help = "Example:\n  aviary fpga card all --listen unix:/run/user/1000/card0.sock")]
pub struct CardCommand {
    /// The image: a name that `fpga/build` made, or a file.
    #[arg(value_name = "IMAGE")]
    image: String,
    /// The socket to which programs connect.
    #[arg(long, value_name = "unix:PATH")]
    listen: String,
    /// The most memory that a program may map for its accelerator.
    #[arg(long, value_name = "AMOUNT", value_parser = parse_memory, default_value = "64G")]
    memory: u64,
}

pub fn run(command: FpgaCommand) -> anyhow::Result<ExitCode> {
    match command.command {
        FpgaSubcommand::Card(command) => serve_card(command),
        FpgaSubcommand::Move(command) => crate::fpga_move::run(&command),
    }
}

fn serve_card(command: CardCommand) -> anyhow::Result<ExitCode> {
    let Some(path) = command.listen.strip_prefix("unix:") else {
        bail!("--listen {}: expected unix:PATH", command.listen);
    };
    raise_descriptor_limit();
    let signals = Signals::catch().context("cannot catch signals")?;
    let limits = Limits { mapped_bytes: command.memory, ..Limits::default() };
    let card = PrivateCard::start(&command.image, Path::new(path), limits)?;
    eprintln!("aviary: serving a simulated card with image {} at {}", command.image, command.listen);
    let (never, _kept) = io::pipe()?;
    while signals.noted().is_none() {
        signals.wait(never.as_fd())?;
    }
    drop(card);
    // A socket that is left behind would refuse the next card.
    let _ = std::fs::remove_file(path);
    Ok(ExitCode::SUCCESS)
}

fn parse_memory(text: &str) -> Result<u64, String> {
    crate::config::amount::parse_amount(text).ok_or_else(|| "expected a number of bytes, such as 64M or 2G".into())
}

/// A card that a thread of this process serves until it is dropped.
pub struct PrivateCard {
    stop: PipeWriter,
    thread: Option<JoinHandle<()>>,
    /// Where its image lies, and the library for programs beside it.
    pub folder: PathBuf,
}

impl PrivateCard {
    pub fn start(image: &str, socket: &Path, limits: Limits) -> anyhow::Result<Self> {
        let file = find_image(image)?;
        let (stopped, stop) = io::pipe()?;
        let board = Simulated::start(&file).with_context(|| format!("image {image}"))?;
        let mediator = Mediator::new(board, Settings::default(), usual_discipline);
        let place = socket.to_str().context("the path of the card's socket is not UTF-8")?;
        let log = |line: std::fmt::Arguments<'_>| eprintln!("aviary fpga: {line}");
        let mut service = Service::listen(mediator, place, limits, log)?;
        let thread = std::thread::Builder::new().name("fpga-card".into()).spawn(move || {
            if let Err(error) = service.serve(stopped.as_fd()) {
                eprintln!("aviary fpga: the card's service ended ({error}): its programs lose their accelerators");
            }
        })?;
        let folder = file.parent().unwrap_or(Path::new(".")).to_owned();
        Ok(Self { stop, thread: Some(thread), folder })
    }
}

impl Drop for PrivateCard {
    fn drop(&mut self) {
        // A thread that has ended by itself does not read it.
        let _ = self.stop.write_all(b"x");
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn own_folders() -> Vec<PathBuf> {
    let program = env::current_exe().unwrap_or_default();
    let own = program.parent().unwrap_or(Path::new("."));
    OWN_FOLDERS.iter().map(|folder| own.join(folder)).collect()
}

/// The file of Aviary's own library of an API, which stands in where the machine has none of this name.
pub fn own_library(soname: &str) -> Option<PathBuf> {
    let mut files = own_folders().into_iter().map(|folder| folder.join(soname));
    let own = files.find(|file| file.is_file())?.canonicalize().ok()?;
    find_library(soname).is_none().then_some(own)
}

/// Per API, Aviary's own library, for a node ([`NodeConfig::vendors`](aviary_node::NodeConfig::vendors)).
pub fn own_libraries(apis: &[Api]) -> BTreeMap<String, String> {
    let own = |api: &Api| Some((api.name.clone(), own_library(&api.soname)?.to_str()?.to_owned()));
    apis.iter().filter_map(own).collect()
}

/// The file of an image, given by a name or a path.
pub fn find_image(image: &str) -> anyhow::Result<PathBuf> {
    let path = Path::new(image);
    if image.contains('/') || path.extension().is_some_and(|extension| extension == "so") {
        let path = path.canonicalize().with_context(|| format!("image {image}"))?;
        if path.extension().is_some_and(|extension| extension == "toml") {
            bail!(
                "image {image} is a description, not an image: build it with `fpga/build {image}`, which prints the image's file"
            );
        }
        return Ok(path);
    }
    let places = own_folders();
    if let Some(found) = places.iter().map(|folder| folder.join(format!("{image}.so"))).find(|file| file.is_file()) {
        return Ok(found.canonicalize()?);
    }
    let looked: Vec<String> = places.iter().map(|folder| folder.display().to_string()).collect();
    bail!("there is no image {image} in {}: build it with `fpga/build {image}`, or give its file", looked.join(" or "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_that_is_missing_is_told_with_what_to_do() {
        let told = |image: &str| format!("{:#}", find_image(image).unwrap_err());
        assert!(told("no-such-image").contains("fpga/build no-such-image"));
        assert!(told("./no-such-image.so").contains("No such file"));
        let description = format!("{}/Cargo.toml", env!("CARGO_MANIFEST_DIR"));
        assert!(told(&description).contains("is a description"));
    }
}
