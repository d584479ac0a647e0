//! Runs cargo.

use super::error::BuildError;
use super::versions::Linker;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// `Cargo.lock` with the versions that the runtime was tested with. Cargo writes to a workspace's own one as well.
pub fn tested_versions(runtime: &Path) -> Option<String> {
    fs::read_to_string(runtime.join("../Cargo.lock")).ok()
}

/// Compiles the workspace at `crates` into `target`; `runtime` is the folder of the runtime crates.
pub fn run_cargo(linker: &Linker, crates: &Path, target: &Path, runtime: &Path) -> Result<(), BuildError> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["build", "--release", "--quiet", "--manifest-path"])
        .arg(crates.join("Cargo.toml"))
        .args(["--config", &places(runtime)])
        .env("CARGO_TARGET_DIR", target)
        .env(&linker.variable, &linker.script)
        .status()
        .map_err(BuildError::NoCargo)?;
    if status.success() { Ok(()) } else { Err(BuildError::Compile(crates.to_path_buf())) }
}

/// cargo's setting that has messages in the libraries (of panics) name source files by `aviary/crates/...` and `cargo/registry/...`:
/// an installed library names no folder of the machine that compiled it. Debug information keeps the real places, for debuggers.
fn places(runtime: &Path) -> String {
    let named = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = named.or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cargo")));
    let tree = runtime.parent().unwrap_or(runtime);
    let of = |path: &Path, name: &str| format!("--remap-path-prefix={}={name}", path.display());
    let mut flags = vec!["--remap-path-scope=macro".to_owned(), of(tree, "aviary")];
    flags.extend(home.map(|home| of(&home, "cargo")));
    // A list of strings is written alike in JSON and TOML.
    format!("build.rustflags={}", serde_json::Value::from(flags))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_this_machine_are_replaced() {
        let setting = places(Path::new("/home/a \"b\"/tree/crates"));
        let expected = r#"build.rustflags=["--remap-path-scope=macro","--remap-path-prefix=/home/a \"b\"/tree=aviary""#;
        assert!(setting.starts_with(expected), "{setting}");
        assert!(setting.ends_with("=cargo\"]"), "{setting}");
    }
}
