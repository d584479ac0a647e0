//! `aviary spec build`: from a specification to loadable libraries.
//!
//! The output folder holds one folder per API with the guest library under its
//! soname, the server module `server.so`, the files the specification asks for
//! and `api.json`; the generated crates stay beside them in `gen/` for reading.

use crate::diagnostics::Diagnostics;
use crate::generate::{self, Sources, glue};
use crate::lower;
use crate::model::{Launch, Model, Policy, Side};
use crate::utility;
use crate::{Options, load};
use serde_json::{Value, json};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

mod commands;

/// Why a build failed.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The specification has errors.
    #[error("{0}")]
    Specification(Box<Diagnostics>),
    /// The specification does not say what it is.
    #[error(
        "{0} has no `api(\"name\", \"version\", \"soname\");`: the build needs a name for its folder and libraries"
    )]
    Unnamed(PathBuf),
    /// A file of the output folder.
    #[error("cannot write {0}: {1}")]
    Output(PathBuf, io::Error),
    /// There is no compiler for it.
    #[error("the policy `{0}` cannot be built in: {1}")]
    Policy(String, String),
    /// Where the runtime crates should be.
    #[error("the runtime crates are not at {0}: set AVIARY_SOURCE to Aviary's source tree")]
    NoRuntime(PathBuf),
    /// Cargo did not start.
    #[error("cannot run cargo ({0}): building a specification needs a Rust toolchain and a C compiler")]
    NoCargo(io::Error),
    /// Cargo's own messages have been printed.
    #[error("the generated crates in {0} do not compile; cargo's messages are above")]
    Compile(PathBuf),
}

/// The folder of generated crates and C, in an API's folder.
const GENERATED: &str = "gen";

/// The specification's policy, an eBPF object.
const POLICY: &str = "policy.o";

/// What a build produced.
#[derive(Debug, Clone)]
pub struct Built {
    pub directory: PathBuf,
    pub library: PathBuf,
    pub module: PathBuf,
    /// Rendered warnings of the front end.
    pub warnings: Vec<String>,
}

/// Builds the specification at `spec` into a folder of `out_dir` named after its API.
pub fn build(spec: &Path, out_dir: &Path, options: &Options) -> Result<Built, BuildError> {
    let loaded = load(spec, options).map_err(|d| BuildError::Specification(Box::new(d)))?;
    let model = &loaded.model;
    if model.api.name.is_empty() || model.api.soname.is_empty() {
        return Err(BuildError::Unnamed(spec.to_path_buf()));
    }
    let program = lower::lower(model);
    let sources = generate::generate(model, &program, generate::spec_hash(model, &program));
    let directory = absolute(out_dir)?.join(&model.api.name);
    let crates = directory.join(GENERATED);
    write_c(model, &directory)?;
    write_crates(model, &sources, &crates)?;
    let target = build_cache(out_dir)?;
    compile(&crates, &target)?;
    let (library, module) = collect(model, &target, &directory)?;
    write_policy(model, &directory)?;
    write_launch_files(model, &directory, &library)?;
    let warnings = loaded.warnings.iter().map(|w| w.render(&loaded.sources)).collect();
    Ok(Built { directory, library, module, warnings })
}

/// What a build without a policy does not leave behind.
fn write_policy(model: &Model, directory: &Path) -> Result<(), BuildError> {
    let path = directory.join(POLICY);
    let failed = |e| BuildError::Output(path.clone(), e);
    match &model.policy {
        None if path.exists() => fs::remove_file(&path).map_err(failed),
        None => Ok(()),
        Some(Policy { file, object }) => {
            let object = object.as_ref().map_err(|why| BuildError::Policy(file.clone(), why.clone()))?;
            fs::write(&path, object).map_err(failed)
        }
    }
}

fn absolute(path: &Path) -> Result<PathBuf, BuildError> {
    fs::create_dir_all(path).map_err(|e| BuildError::Output(path.to_path_buf(), e))?;
    path.canonicalize().map_err(|e| BuildError::Output(path.to_path_buf(), e))
}

/// Where cargo compiles: one place per source tree, so that the runtime crates are compiled once for
/// all specifications; beside the output if that tree cannot be written.
fn build_cache(out_dir: &Path) -> Result<PathBuf, BuildError> {
    let shared = runtime()?.join("../target/aviary/build");
    absolute(&shared).or_else(|_| absolute(&out_dir.join("build")))
}

/// The folder that holds the runtime crates.
fn runtime() -> Result<PathBuf, BuildError> {
    let crates = match std::env::var_os("AVIARY_SOURCE") {
        Some(source) => PathBuf::from(source).join("crates"),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join(".."),
    };
    crates.canonicalize().map_err(|_| BuildError::NoRuntime(crates))
}

/// Writes the C of an API (headers, the specification's own code) into its folder, and how each file is compiled.
pub fn write_c(model: &Model, directory: &Path) -> Result<(), BuildError> {
    let crates = directory.join(GENERATED);
    let include = crates.join(utility::INCLUDE_FOLDER);
    for (name, text) in utility::RUNTIME_HEADERS {
        write(&include.join(name), text)?;
    }
    write(&include.join(utility::types_header_name(model)), &utility::types_header(model))?;
    for side in [Side::Guest, Side::Server] {
        let folder = commands::folder(side, &crates);
        write(&folder.join("inline.c"), &utility::inline_unit(model, side))?;
        write(&folder.join("support.c"), utility::SUPPORT_C)?;
    }
    commands::write_database(model, &crates, directory)
}

fn write_crates(model: &Model, sources: &Sources, crates: &Path) -> Result<(), BuildError> {
    let runtime = runtime()?;
    write(&crates.join("Cargo.toml"), glue::WORKSPACE)?;
    let lock = runtime.join("../Cargo.lock");
    if !crates.join("Cargo.lock").exists()
        && let Ok(text) = fs::read_to_string(&lock)
    {
        // The versions that the workspace was tested with.
        write(&crates.join("Cargo.lock"), &text)?;
    }
    let headers = commands::headers(model, crates);
    for (side, name, source) in [(Side::Guest, "guest", &sources.guest), (Side::Server, "server", &sources.server)] {
        let folder = crates.join(name);
        write(&folder.join("Cargo.toml"), &glue::manifest(model, side, &runtime.to_string_lossy()))?;
        write(&folder.join("lib.rs"), source)?;
        let flags = utility::flags(model, side, crates);
        let script = glue::build_script(model, side, &flags, &commands::files(model, side, crates), &headers);
        write(&folder.join("build.rs"), &script)?;
    }
    Ok(())
}

/// Writes a file unless it already has this content, so that cargo sees only real changes.
fn write(path: &Path, content: &str) -> Result<(), BuildError> {
    if fs::read(path).is_ok_and(|old| old == content.as_bytes()) {
        return Ok(());
    }
    let failed = |e| BuildError::Output(path.to_path_buf(), e);
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(failed)?;
    }
    fs::write(path, content).map_err(failed)
}

fn compile(crates: &Path, target: &Path) -> Result<(), BuildError> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["build", "--release", "--quiet", "--manifest-path"])
        .arg(crates.join("Cargo.toml"))
        .env("CARGO_TARGET_DIR", target)
        .status()
        .map_err(BuildError::NoCargo)?;
    if status.success() { Ok(()) } else { Err(BuildError::Compile(crates.to_path_buf())) }
}

/// Copies the compiled libraries to where guests and API servers look for them.
fn collect(model: &Model, target: &Path, directory: &Path) -> Result<(PathBuf, PathBuf), BuildError> {
    let name = glue::crate_identifier(&model.api.name);
    let library = directory.join(&model.api.soname);
    let module = directory.join("server.so");
    for (side, to) in [("guest", &library), ("server", &module)] {
        let from = target.join("release").join(format!("libaviary_{name}_{side}.so"));
        replace(&from, to).map_err(|e| BuildError::Output(to.clone(), e))?;
    }
    Ok((library, module))
}

/// Replaces `to` in one step: running programs keep the file that they have mapped.
fn replace(from: &Path, to: &Path) -> io::Result<()> {
    let new = to.with_extension(format!("new-{}", std::process::id()));
    fs::copy(from, &new)?;
    fs::rename(&new, to)
}

fn write_launch_files(model: &Model, directory: &Path, library: &Path) -> Result<(), BuildError> {
    let mut launch = Vec::new();
    for step in &model.launch {
        match step {
            Launch::File { path, content } => write(&directory.join(path), &fill(content, directory, library))?,
            Launch::Environment { name, value } => launch.push(json!({"environment": {"name": name, "value": value}})),
            Launch::DropIn { soname, only_if_missing } => {
                launch.push(json!({"dropin": {"soname": soname, "only_if_missing": only_if_missing}}));
            }
        }
    }
    let description: Value = json!({
        "name": model.api.name,
        "version": model.api.version,
        "soname": model.api.soname,
        "library": model.api.soname,
        "launch": launch,
        "policy": model.policy.as_ref().map(|_| POLICY),
        // What a node's configuration may name.
        "functions": model.functions.iter().map(|f| &f.name).collect::<Vec<_>>(),
        "resources": model.resources.iter().map(|r| &r.name).collect::<Vec<_>>(),
        "device_resources": model.resources.iter().filter(|r| r.devices.is_some()).map(|r| &r.name).collect::<Vec<_>>(),
    });
    write(&directory.join("api.json"), &format!("{description:#}\n"))
}

fn fill(content: &str, directory: &Path, library: &Path) -> String {
    content.replace("{dir}", &directory.to_string_lossy()).replace("{library}", &library.to_string_lossy())
}
