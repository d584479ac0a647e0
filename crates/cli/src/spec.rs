//! `aviary spec`: work on LAPIS specifications.

use anyhow::Context;
use aviary_lapis::coverage::{Fate, State, state_coverage};
use aviary_lapis::init::Level;
use aviary_lapis::{Diagnostics, InitOptions, Loaded, Options, build, coverage, diff, init, load, score};
use clap::{Args, Subcommand};
use std::collections::HashSet;
use std::fmt::Display;
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Write, check and build specifications of accelerator APIs.
#[derive(Args)]
pub struct SpecCommand {
    #[command(subcommand)]
    action: SpecAction,
}

#[derive(Subcommand)]
enum SpecAction {
    /// Check a specification. Prints each error with its remedy; the exit status is 1 if there are any.
    Check {
        #[command(flatten)]
        specifications: Specifications,
        /// Treat guesses (`guess { }`) as errors.
        #[arg(long)]
        strict: bool,
    },
    /// Build the guest library and the API server module.
    Build {
        #[command(flatten)]
        specification: Specification,
        /// Folder for the result, which is written to DIR/API.
        #[arg(short, long, default_value = "target/aviary")]
        output: PathBuf,
        /// Link with this program, which takes cc's arguments: one for systems with an older C library, say.
        #[arg(long, value_name = "PROGRAM")]
        linker: Option<PathBuf>,
    },
    /// Write a provisional specification of a header, with questions where the header does not say enough.
    Init {
        /// The header: a file, or a name such as CL/cl.h, which is searched in the include folders.
        header: PathBuf,
        /// File for the specification (default: standard output).
        #[arg(short, long)]
        output: Option<PathBuf>,
        /// Write likely answers as descriptors inside `guess { }`, each with its reason, instead of as comments.
        #[arg(long)]
        guess: bool,
        /// The vendor library, to read its soname and exported functions from.
        #[arg(long, value_name = "FILE")]
        library: Option<PathBuf>,
        #[command(flatten)]
        headers: Headers,
    },
    /// Compare the descriptors of a provisional specification with those of the finished one.
    Score {
        /// The provisional specification, as `init` wrote it.
        guessed: PathBuf,
        /// The finished specification of the same API.
        finished: PathBuf,
        #[command(flatten)]
        headers: Headers,
    },
    /// Show what changes when the API's header is replaced by another version of it.
    Diff {
        /// The specification (NAME.lapis).
        specification: PathBuf,
        /// The new header.
        new_header: PathBuf,
        #[command(flatten)]
        headers: Headers,
    },
    /// Show how every function of the API is virtualized.
    Coverage {
        /// Show what a move of the session does to each function's calls.
        #[arg(long)]
        state: bool,
        #[command(flatten)]
        specifications: Specifications,
    },
    /// Print the API's functions as a C table, for the test that passes bad pointers to them (tests/pointers).
    #[command(hide = true)]
    Pointers(Specifications),
}

/// Several files are allowed; a file that another one imports is checked as part of it.
#[derive(Args)]
struct Specifications {
    /// The specifications (NAME.lapis).
    #[arg(required = true, value_name = "SPECIFICATION")]
    specifications: Vec<PathBuf>,
    #[command(flatten)]
    headers: Headers,
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
    /// A further header of the API, besides those that the specification includes.
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
        SpecAction::Check { specifications, strict } => check(specifications, strict),
        SpecAction::Build { specification, output, linker } => {
            build_libraries(specification, &output, linker.as_deref())
        }
        SpecAction::Init { header, output, guess, library, headers } => {
            let level = if guess { Level::Guesses } else { Level::Comments };
            let library = library.as_deref().map(crate::library::read).transpose()?;
            provisional(&header, output.as_deref(), &InitOptions { headers: headers.options(), level, library })
        }
        SpecAction::Score { guessed, finished, headers } => compare_guesses(&guessed, &finished, headers),
        SpecAction::Diff { specification, new_header, headers } => compare(&specification, &new_header, headers),
        SpecAction::Coverage { state: false, specifications } => for_each(specifications, show_coverage),
        SpecAction::Coverage { state: true, specifications } => for_each(specifications, show_state_coverage),
        SpecAction::Pointers(specifications) => for_each(specifications, |loaded| {
            print!("{}", aviary_lapis::generate::pointers::table(&loaded.model));
            Ok(())
        }),
    }
}

fn check(specifications: Specifications, strict: bool) -> anyhow::Result<ExitCode> {
    let mut guesses = 0;
    let status = for_each(specifications, |loaded| {
        for warning in &loaded.warnings {
            print_error(&format!("{}\n", warning.render_with(&loaded.sources, &renderer())));
        }
        guesses += loaded.warnings.iter().filter(|w| w.guess).count();
        Ok(())
    })?;
    if !strict || guesses == 0 {
        return Ok(status);
    }
    print_error(&format!("{guesses} guess{} (--strict): confirm them\n", if guesses == 1 { "" } else { "es" }));
    Ok(ExitCode::from(1))
}

fn compare_guesses(guessed: &Path, finished: &Path, headers: Headers) -> anyhow::Result<ExitCode> {
    match score(guessed, finished, &headers.options()) {
        Ok(score) => print(&score.to_string()).map(|()| ExitCode::SUCCESS),
        Err(diagnostics) => Ok(explain(&diagnostics)),
    }
}

/// Loads the specifications and hands over those that no other one imports; explains the mistakes of the rest.
fn for_each(
    specifications: Specifications,
    mut show: impl FnMut(&Loaded) -> anyhow::Result<()>,
) -> anyhow::Result<ExitCode> {
    let options = specifications.headers.options();
    let loaded: Vec<_> =
        specifications.specifications.into_iter().map(|path| (load(&path, &options), canonical(&path))).collect();
    let imported: HashSet<PathBuf> = loaded
        .iter()
        .filter_map(|(result, path)| Some((result.as_ref().ok()?, path)))
        .flat_map(|(whole, path)| whole.sources.files().iter().map(|f| canonical(&f.path)).filter(move |f| f != path))
        .collect();
    let mut status = ExitCode::SUCCESS;
    for (result, _) in loaded.iter().filter(|(_, path)| !imported.contains(path)) {
        match result {
            Ok(loaded) => show(loaded)?,
            Err(diagnostics) => status = explain(diagnostics),
        }
    }
    Ok(status)
}

fn canonical(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_path_buf())
}

fn build_libraries(specification: Specification, output: &Path, linker: Option<&Path>) -> anyhow::Result<ExitCode> {
    let options = specification.headers.options();
    // The linker's script runs in other folders.
    let linker = linker.map(|program| match program.components().count() {
        1 => Ok(program.to_path_buf()),
        _ => program.canonicalize().with_context(|| format!("--linker: {}", program.display())),
    });
    let linker = linker.transpose()?;
    match build::build(&specification.specification, output, &options, linker.as_deref()) {
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

fn provisional(header: &Path, output: Option<&Path>, options: &InitOptions) -> anyhow::Result<ExitCode> {
    // Quoted includes are looked up beside the specification: a relative path is only right in this folder.
    let elsewhere = output.and_then(Path::parent).is_some_and(|folder| folder != Path::new(""));
    let header = if elsewhere { header.canonicalize().unwrap_or_else(|_| header.into()) } else { header.into() };
    let text = match init(&header, options) {
        Ok(text) => text,
        Err(diagnostics) => return Ok(explain(&diagnostics)),
    };
    match output {
        // An existing specification is never overwritten: it may have been edited.
        Some(path) => File::create_new(path)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .with_context(|| format!("cannot write {}", path.display()))?,
        None => print(&text)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Exit status 1 says that something changed, as with `diff`.
fn compare(specification: &Path, new_header: &Path, headers: Headers) -> anyhow::Result<ExitCode> {
    match diff(specification, new_header, &headers.options()) {
        Ok(report) => {
            print(&report.to_string())?;
            Ok(ExitCode::from(u8::from(!report.is_empty())))
        }
        Err(diagnostics) => Ok(explain(&diagnostics)),
    }
}

fn show_coverage(loaded: &Loaded) -> anyhow::Result<()> {
    let lines = coverage(&loaded.model);
    print(&table(&State::ALL, lines.iter().map(|line| (line.function.as_str(), line.state)).collect()))
}

fn show_state_coverage(loaded: &Loaded) -> anyhow::Result<()> {
    let lines = state_coverage(&loaded.model);
    print(&table(&Fate::ALL, lines.iter().map(|line| (line.function.as_str(), line.fate)).collect()))
}

/// A line for each function with its column, and how many there are of each of `all`.
fn table<T: Copy + PartialEq + Display>(all: &[T], lines: Vec<(&str, T)>) -> String {
    let width = lines.iter().map(|(function, _)| function.len()).max().unwrap_or(0);
    let mut text: String = lines.iter().map(|(function, value)| format!("{function:width$}  {value}\n")).collect();
    let count = |value: &T| format!("{} {value}", lines.iter().filter(|(_, other)| other == value).count());
    text += &format!("{} functions: {}\n", lines.len(), all.iter().map(count).collect::<Vec<_>>().join(", "));
    text
}

/// To standard output; a reader that has seen enough is no error.
fn print(text: &str) -> anyhow::Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other.context("cannot write to standard output"),
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

/// Prints on standard error; a closed one is ignored.
fn print_error(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}
