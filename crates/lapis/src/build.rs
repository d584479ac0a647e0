//! `aviary spec build`: from a specification to loadable libraries.
//!
//! The output folder holds one folder per API with the guest library under its
//! soname, the server module `server.so`, the modules of the last builds by the
//! hashes of their specifications (`modules/`), the files the specification asks
//! for and `api.json`; the generated crates stay beside them in `gen/` for reading.

use crate::generate::{self, GeneratedCrates, glue};
use crate::load;
use crate::load::Options;
use crate::lower;
use crate::model::{Launch, Model, Policy, Side};
use crate::utility;
use cargo::run_cargo;
use folder::absolute;
use names::{CRATES, DESCRIPTION, MODULE, POLICY};
use serde_json::{Value, json};
use source::Source;
use std::path::{Path, PathBuf};
use turn::Turn;

mod cargo;
mod commands;
mod error;
mod folder;
mod modules;
pub(crate) mod names;
mod source;
mod turn;
pub(crate) mod versions;

pub use error::BuildError;
pub use folder::Folder;
pub use versions::versions;

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
pub fn build(spec: &Path, out_dir: &Path, options: &Options, linker: Option<&Path>) -> Result<Built, BuildError> {
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
    let source = Source::find()?;
    write_crates(model, &sources, &folder, &source)?;
    let cache = build_cache(&source, out_dir, linker)?;
    let crates = folder.path().join(CRATES);
    let linker = versions::linker(&cache, linker)?;
    let turn = Turn::take(&cache, &glue::crate_identifier(&model.api.name), &crates, &source, &linker)?;
    run_cargo(&linker, &crates, turn.target(), &source)?;
    let (library, module) = collect(model, spec_hash, turn.target(), &folder)?;
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

/// Where cargo compiles, see [`Turn`]: where the source says; beside the output if a linker is named, with which all is compiled apart.
fn build_cache(source: &Source, out_dir: &Path, linker: Option<&Path>) -> Result<PathBuf, BuildError> {
    match linker {
        Some(_) => absolute(&out_dir.join("build")),
        None => source.cache(out_dir),
    }
}

/// Where a build would find the runtime crates.
///
/// # Errors
/// They are not here.
pub fn runtime_crates() -> Result<PathBuf, BuildError> {
    Ok(Source::find()?.crates().to_path_buf())
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

fn write_crates(model: &Model, sources: &GeneratedCrates, folder: &Folder, from: &Source) -> Result<(), BuildError> {
    let crates = Path::new(CRATES);
    folder.write(&crates.join("Cargo.toml"), glue::WORKSPACE.as_bytes())?;
    let lock = folder.place(&crates.join("Cargo.lock"))?;
    if !lock.exists()
        && let Some(text) = from.tested_versions()
    {
        folder.write(&crates.join("Cargo.lock"), text.as_bytes())?;
    }
    let generated = folder.path().join(CRATES);
    let headers = commands::headers(model, &generated);
    for (side, name, source) in [(Side::Guest, "guest", &sources.guest), (Side::Server, "server", &sources.server)] {
        let side_crate = crates.join(name);
        let flags = utility::flags(model, side, &generated);
        let script = glue::build_script(model, side, &flags, &commands::files(model, side, &generated), &headers);
        let files = [
            ("Cargo.toml", glue::manifest(&model.api.name, side, &from.crates().to_string_lossy())),
            ("build.rs", script),
            ("lib.rs", source.clone()),
        ];
        for (file, content) in files {
            folder.write(&side_crate.join(file), content.as_bytes())?;
        }
    }
    versions::write(&model.api, &crates.join("guest"), folder)
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
            // Right as long as the folder stays where it is; `aviary run` has the text for any other place.
            Launch::File { path, content } => {
                folder.write(Path::new(path), fill(content, folder.path(), library).as_bytes())?;
                launch.push(json!({"file": {"path": path, "content": content}}));
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
        // Functions and resources that a node's configuration may name.
        "functions": model.functions.iter().filter(|f| f.on_behalf_of.is_empty()).map(|f| &f.name).collect::<Vec<_>>(),
        "resources": model.resources.iter().map(|r| &r.name).collect::<Vec<_>>(),
        "device_resources": model.resources.iter().filter(|r| r.devices.is_some()).map(|r| &r.name).collect::<Vec<_>>(),
    });
    folder.write(Path::new(DESCRIPTION), format!("{description:#}\n").as_bytes())
}

fn fill(content: &str, directory: &Path, library: &Path) -> String {
    content.replace("{dir}", &directory.to_string_lossy()).replace("{library}", &library.to_string_lossy())
}
