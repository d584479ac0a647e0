//! Simulated FPGA cards: `aviary run --fpga`, a card for one program, and `aviary fpga card`, one for several.

use crate::apis::Api;
use crate::daemons::descriptors::raise_descriptor_limit;
use crate::daemons::signals::Signals;
use crate::dropin::find_library;
use crate::fpga_move::MoveCommand;
use anyhow::{Context, bail};
use aviary_card::{Simulated, WaveformOptions};
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
    #[command(flatten)]
    waveforms: WaveformArguments,
}

/// Waveforms of the card.
#[derive(Args, Debug, Clone, Default)]
pub struct WaveformArguments {
    /// Record waveforms of the card in this file (FST). Of Aviary's own images the one with waveforms is built if it is missing.
    #[arg(long, value_name = "FILE.fst")]
    trace: Option<PathBuf>,
    /// Record from this cycle of the card's clock on.
    #[arg(long, value_name = "CYCLE", default_value_t = 0, requires = "trace")]
    trace_from: u64,
    /// Record so many cycles: from the first one on, or before a fault (then 10,000 by default).
    #[arg(long, value_name = "N", requires = "trace", value_parser = clap::value_parser!(u64).range(1..))]
    trace_cycles: Option<u64>,
    /// End at the first refused request or failed job, and keep the cycles before it.
    #[arg(long, requires = "trace")]
    trace_on_fault: bool,
}

/// Cycles before a fault.
const CYCLES_BEFORE_FAULT: u64 = 10_000;

impl WaveformArguments {
    /// `None`: none are wanted.
    fn options(&self) -> Option<WaveformOptions> {
        let cycles = self.trace_cycles.or(self.trace_on_fault.then_some(CYCLES_BEFORE_FAULT));
        // The process that writes it may have another folder.
        let file = std::path::absolute(self.trace.as_ref()?).ok()?;
        Some(WaveformOptions { file, from: self.trace_from, cycles, on_fault: self.trace_on_fault })
    }

    pub fn are_wanted(&self) -> bool {
        self.trace.is_some()
    }
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
    let card = PrivateCard::start(&command.image, Path::new(path), limits, &command.waveforms)?;
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
    pub fn start(image: &str, socket: &Path, limits: Limits, waveforms: &WaveformArguments) -> anyhow::Result<Self> {
        let usual = find_image(image)?;
        let waveforms = waveforms.options();
        let file = if waveforms.is_some() { find_traced(&usual)? } else { usual };
        let (stopped, stop) = io::pipe()?;
        let mut board = Simulated::start(&file).with_context(|| format!("image {image}"))?;
        if let Some(options) = waveforms {
            let told = options.file.display().to_string();
            board.record(options).with_context(|| format!("--trace {told}"))?;
        }
        let mediator = Mediator::new(board, Settings::default(), usual_discipline);
        let place = socket.to_str().context("the path of the card's socket is not UTF-8")?;
        let log = |line: std::fmt::Arguments<'_>| eprintln!("aviary fpga: {line}");
        let mut service = Service::listen(mediator, place, limits, log)?;
        let thread = std::thread::Builder::new().name("fpga-card".into()).spawn(move || {
            if let Err(error) = service.serve(stopped.as_fd()) {
                eprintln!("aviary fpga: the card's service ended ({error}): its programs lose their accelerators");
            }
            if let Some(told) = service.board_mut().end_recording() {
                eprintln!("aviary fpga: {told}");
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

/// The file of a library of Aviary's own.
pub fn find_own(soname: &str) -> Option<PathBuf> {
    let mut files = own_folders().into_iter().map(|folder| folder.join(soname));
    files.find(|file| file.is_file())?.canonicalize().ok()
}

/// The file of Aviary's own library of an API, which stands in where the machine has none of this name.
pub fn own_library(soname: &str) -> Option<PathBuf> {
    let own = find_own(soname)?;
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

/// The image that records waveforms, beside the one that does not: built by the source tree's `fpga/build`, if this is one, and if
/// its sources have changed.
fn find_traced(image: &Path) -> anyhow::Result<PathBuf> {
    let stem = image.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    if stem.ends_with("-trace") {
        return Ok(image.to_owned());
    }
    let traced = image.with_file_name(format!("{stem}-trace.so"));
    let build = env::current_exe().unwrap_or_default().with_file_name("../../fpga/build");
    // Images of other people's own are named by their descriptions.
    let is_ours = build.with_file_name(format!("images/{stem}.toml")).is_file();
    if is_ours {
        eprintln!("aviary fpga: building the image {stem} with waveforms, if that is missing");
        let built = std::process::Command::new(&build).args(["--trace", &stem]).stdout(io::stderr()).status();
        if !built.with_context(|| build.display().to_string())?.success() {
            bail!("the image {stem} with waveforms cannot be built: the lines above say why");
        }
    }
    if !traced.is_file() {
        bail!(
            "there is no {}: build the image with waveforms first, `fpga/build --trace {stem}.toml`",
            traced.display()
        );
    }
    Ok(traced)
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
