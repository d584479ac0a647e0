//! `aviary completions` and `aviary man`: what packages install beside the command.

use anyhow::Context;
use clap::{Args, CommandFactory};
use std::{fs, path::PathBuf, process::ExitCode};

/// Print a completion script for a shell.
#[derive(Args)]
pub struct CompletionsCommand {
    #[arg(value_name = "SHELL")]
    shell: clap_complete::Shell,
}

/// Write manual pages, one per command, into a folder.
#[derive(Args)]
pub struct ManCommand {
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

pub fn completions<C: CommandFactory>(command: &CompletionsCommand) -> anyhow::Result<ExitCode> {
    // Printed at once: the generator panics where it cannot write.
    let mut script = Vec::new();
    clap_complete::generate(command.shell, &mut C::command(), "aviary", &mut script);
    print!("{}", String::from_utf8_lossy(&script));
    Ok(ExitCode::SUCCESS)
}

pub fn man<C: CommandFactory>(command: &ManCommand) -> anyhow::Result<ExitCode> {
    let folder = command.directory.display();
    fs::create_dir_all(&command.directory).with_context(|| format!("cannot create {folder}"))?;
    clap_mangen::generate_to(C::command(), &command.directory).with_context(|| format!("cannot write to {folder}"))?;
    Ok(ExitCode::SUCCESS)
}
