//! `aviary spec`: work on LAPIS specifications.

use aviary_lapis::{Diagnostics, Options, build, load};
use clap::{Args, Subcommand};
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// Write, check and build specifications of accelerator APIs.
#[derive(Args)]
pub struct SpecCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Check a specification; mistakes are explained and the exit status is 1.
    Check(Specification),
    /// Build the guest library and the API server module.
    Build {
        #[command(flatten)]
        specification: Specification,
        /// Folder for the result; the API gets a folder of its own in it.
        #[arg(short, long, default_value = "target/aviary")]
        output: PathBuf,
    },
}

#[derive(Args)]
struct Specification {
    /// The specification (NAME.lapis).
    specification: PathBuf,
    #[command(flatten)]
    headers: Headers,
}

#[derive(Args)]
struct Headers {
    /// A header of the API beside those that the specification includes.
    #[arg(long = "header", value_name = "HEADER")]
    headers: Vec<PathBuf>,
    /// A folder to look for headers in.
    #[arg(short = 'I', value_name = "DIR")]
    include_dirs: Vec<PathBuf>,
    /// A macro for the headers.
    #[arg(short = 'D', value_name = "NAME[=VALUE]")]
    defines: Vec<String>,
}

impl Headers {
    fn options(self) -> Options {
        Options { headers: self.headers, include_dirs: self.include_dirs, defines: self.defines }
    }
}

pub fn run(command: SpecCommand) -> anyhow::Result<ExitCode> {
    match command.action {
        Action::Check(specification) => check(specification),
        Action::Build { specification, output } => build_libraries(specification, &output),
    }
}

fn check(specification: Specification) -> anyhow::Result<ExitCode> {
    match load(&specification.specification, &specification.headers.options()) {
        Ok(loaded) => {
            for warning in &loaded.warnings {
                print_error(&format!("{}\n", warning.render_with(&loaded.sources, &renderer())));
            }
            Ok(ExitCode::SUCCESS)
        }
        Err(diagnostics) => Ok(explain(&diagnostics)),
    }
}

fn build_libraries(specification: Specification, output: &std::path::Path) -> anyhow::Result<ExitCode> {
    let options = specification.headers.options();
    match build::build(&specification.specification, output, &options) {
        Ok(built) => {
            for warning in &built.warnings {
                print_error(&format!("{warning}\n"));
            }
            println!("{}", built.directory.display());
            Ok(ExitCode::SUCCESS)
        }
        Err(build::BuildError::Specification(diagnostics)) => Ok(explain(&diagnostics)),
        Err(error) => Err(error.into()),
    }
}

/// Prints the mistakes; the exit status says that there are some.
fn explain(diagnostics: &Diagnostics) -> ExitCode {
    print_error(&diagnostics.render_with(&renderer()));
    let count = diagnostics.errors().count();
    print_error(&format!("{count} error{}", if count == 1 { "" } else { "s" }));
    ExitCode::from(1)
}

fn renderer() -> aviary_lapis::diagnostics::Renderer {
    use aviary_lapis::diagnostics::Renderer;
    if std::io::stderr().is_terminal() { Renderer::styled() } else { Renderer::plain() }
}

/// Where standard error is closed there is nobody to tell.
fn print_error(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}
