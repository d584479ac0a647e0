//! `aviary spec build`: from a specification to loadable libraries.
//!
//! The output folder holds one folder per API with the guest library under its
//! soname, the server module `server.so`, the modules of the last builds by the
//! hashes of their specifications (`modules/`), the files the specification asks
//! for and `api.json`; the generated crates stay beside them in `gen/` for reading.

use crate::diagnostics::Diagnostics;
use crate::generate::{self, GeneratedCrates, glue};
use crate::lower;
use crate::model::{Launch, Model, Policy, Side};
use crate::utility;
use crate::{Options, load};
use serde_json::{Value, json};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use turn::Turn;

mod commands;
mod folder;
mod modules;
mod turn;
mod versions;

pub use folder::Folder;
pub(crate) use versions::vendor_library;
pub use versions::{VERSIONS_FOLDER, versions};

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
    /// A path or a link leads elsewhere.
    #[error(
        "{0} leads out of the build folder, where a build writes nothing: remove the link, or name a file below it"
    )]
    Outside(PathBuf),
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

/// The specification's policy, an eBPF object.
const POLICY: &str = "policy.o";
/// The API server module.
const MODULE: &str = "server.so";
/// The description of an API that nodes and `aviary run` read.
const DESCRIPTION: &str = "api.json";
/// The generated crates and their C.
const CRATES: &str = "gen";

/// Names of a build's own files: no library and no file of a specification has such a name.
pub const OWN_NAMES: [&str; 6] = [POLICY, MODULE, DESCRIPTION, CRATES, commands::DATABASE, modules::KEPT];

/// Result of a build.
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
    let spec_hash = generate::spec_hash(model, &program);
    let sources = generate::generate(model, &program, spec_hash);
    let out = Folder::at(out_dir)?;
    let folder = out.below(&model.api.name)?;
    write_c(model, &sources, &out, &folder)?;
    write_crates(model, &sources, &folder)?;
    let target = build_cache(out_dir)?;
    let crates = folder.path().join(CRATES);
    let turn = Turn::take(&target, &glue::crate_identifier(&model.api.name), &crates)?;
    compile(&crates, &target)?;
    let (library, module) = collect(model, spec_hash, &target, &folder)?;
    drop(turn);
    write_policy(model, &folder)?;
    write_launch_files(model, &folder, &library)?;
    let warnings = loaded.warnings.iter().map(|w| w.render(&loaded.sources)).collect();
    Ok(Built { directory: folder.path().to_path_buf(), library, module, warnings })
}

/// Files that a build without a policy removes.
fn write_policy(model: &Model, folder: &Folder) -> Result<(), BuildError> {
    match &model.policy {
        None => folder.remove(Path::new(POLICY)),
        Some(Policy { file, object }) => {
            let object = object.as_ref().map_err(|why| BuildError::Policy(file.clone(), why.clone()))?;
            folder.write(Path::new(POLICY), object)
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

/// Writes the C of an API (headers, the specification's own code) into its `folder`, and how each file is compiled there and
/// into `out`, the folder of all APIs.
pub fn write_c(model: &Model, sources: &GeneratedCrates, out: &Folder, folder: &Folder) -> Result<(), BuildError> {
    let crates = Path::new(CRATES);
    let include = crates.join(utility::INCLUDE_FOLDER);
    for (name, text) in utility::RUNTIME_HEADERS {
        folder.write(&include.join(name), text.as_bytes())?;
    }
    folder.write(&include.join(utility::types_header_name(model)), utility::types_header(model).as_bytes())?;
    for (side, shims) in [(Side::Guest, &sources.guest_shims), (Side::Server, &sources.server_shims)] {
        let side_crate = commands::folder(side, crates);
        folder.write(&side_crate.join("shims.c"), shims.as_bytes())?;
        folder.write(&side_crate.join("inline.c"), utility::inline_unit(model, side).as_bytes())?;
        folder.write(&side_crate.join("support.c"), utility::SUPPORT_C.as_bytes())?;
    }
    commands::write_database(model, &folder.path().join(CRATES), out, folder)
}

fn write_crates(model: &Model, sources: &GeneratedCrates, folder: &Folder) -> Result<(), BuildError> {
    let runtime = runtime()?;
    let crates = Path::new(CRATES);
    folder.write(&crates.join("Cargo.toml"), glue::WORKSPACE.as_bytes())?;
    // Cargo writes it as well.
    let lock = folder.place(&crates.join("Cargo.lock"))?;
    if !lock.exists()
        && let Ok(text) = fs::read_to_string(runtime.join("../Cargo.lock"))
    {
        // The versions that the workspace was tested with.
        folder.write(&crates.join("Cargo.lock"), text.as_bytes())?;
    }
    let generated = folder.path().join(CRATES);
    let headers = commands::headers(model, &generated);
    for (side, name, source) in [(Side::Guest, "guest", &sources.guest), (Side::Server, "server", &sources.server)] {
        let side_crate = crates.join(name);
        let flags = utility::flags(model, side, &generated);
        let script = glue::build_script(model, side, &flags, &commands::files(model, side, &generated), &headers);
        let files = [
            ("Cargo.toml", glue::manifest(model, side, &runtime.to_string_lossy())),
            ("build.rs", script),
            ("lib.rs", source.clone()),
        ];
        for (file, content) in files {
            folder.write(&side_crate.join(file), content.as_bytes())?;
        }
    }
    versions::write(&model.api.soname, &crates.join("guest"), folder)
}

fn compile(crates: &Path, target: &Path) -> Result<(), BuildError> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let (variable, linker) = versions::linker(target)?;
    let status = Command::new(cargo)
        .args(["build", "--release", "--quiet", "--manifest-path"])
        .arg(crates.join("Cargo.toml"))
        .env("CARGO_TARGET_DIR", target)
        .env(variable, linker)
        .status()
        .map_err(BuildError::NoCargo)?;
    if status.success() { Ok(()) } else { Err(BuildError::Compile(crates.to_path_buf())) }
}

/// Copies the compiled libraries to where guests and API servers look for them.
fn collect(model: &Model, spec_hash: u64, target: &Path, folder: &Folder) -> Result<(PathBuf, PathBuf), BuildError> {
    let name = glue::crate_identifier(&model.api.name);
    let compiled = |side: &str| target.join("release").join(format!("libaviary_{name}_{side}.so"));
    let library = folder.copy(&compiled("guest"), Path::new(&model.api.soname))?;
    let module = folder.copy(&compiled("server"), Path::new(MODULE))?;
    modules::keep(&compiled("server"), spec_hash, folder)?;
    Ok((library, module))
}

fn write_launch_files(model: &Model, folder: &Folder, library: &Path) -> Result<(), BuildError> {
    let mut launch = Vec::new();
    for step in &model.launch {
        match step {
            Launch::File { path, content } => {
                folder.write(Path::new(path), fill(content, folder.path(), library).as_bytes())?;
            }
            Launch::Environment { name, value } => launch.push(json!({"environment": {"name": name, "value": value}})),
            Launch::Program { name } => launch.push(json!({"program": name})),
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
        "sandbox": model.sandbox.as_ref().map(|sandbox| json!({
            "read": sandbox.read,
            "devices": sandbox.devices,
            "system_calls": sandbox.system_calls,
            "ioctls": sandbox.ioctls,
        })),
        "policy": model.policy.as_ref().map(|_| POLICY),
        // Resources that a node's configuration may name.
        "functions": model.functions.iter().map(|f| &f.name).collect::<Vec<_>>(),
        "resources": model.resources.iter().map(|r| &r.name).collect::<Vec<_>>(),
        "device_resources": model.resources.iter().filter(|r| r.devices.is_some()).map(|r| &r.name).collect::<Vec<_>>(),
    });
    folder.write(Path::new(DESCRIPTION), format!("{description:#}\n").as_bytes())
}

fn fill(content: &str, directory: &Path, library: &Path) -> String {
    content.replace("{dir}", &directory.to_string_lossy()).replace("{library}", &library.to_string_lossy())
}
