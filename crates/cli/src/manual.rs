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
    clap_complete::generate(command.shell, &mut C::command(), "aviary", &mut std::io::stdout());
    Ok(ExitCode::SUCCESS)
}

pub fn man<C: CommandFactory>(command: &ManCommand) -> anyhow::Result<ExitCode> {
    let folder = command.directory.display();
    fs::create_dir_all(&command.directory).with_context(|| format!("cannot create {folder}"))?;
    clap_mangen::generate_to(C::command(), &command.directory).with_context(|| format!("cannot write to {folder}"))?;
    Ok(ExitCode::SUCCESS)
}
