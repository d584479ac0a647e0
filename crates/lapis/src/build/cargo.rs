//! Runs cargo.

use super::error::BuildError;
use super::source::Source;
use super::versions::Linker;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles the workspace at `crates` into `target`.
pub fn run_cargo(linker: &Linker, crates: &Path, target: &Path, source: &Source) -> Result<(), BuildError> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["build", "--release", "--quiet", "--manifest-path"])
        .arg(crates.join("Cargo.toml"))
        .args(["--config", &places(source)])
        .args(source.vendor().map(vendored).into_iter().flatten())
        .env("CARGO_TARGET_DIR", target)
        .env(&linker.variable, &linker.script)
        .status()
        .map_err(BuildError::NoCargo)?;
    if status.success() { Ok(()) } else { Err(BuildError::Compile(crates.to_path_buf())) }
}

/// cargo's options with which crates come from a folder and nothing is fetched.
fn vendored(vendor: &Path) -> [String; 5] {
    // A string is written alike in JSON and TOML.
    let folder = serde_json::Value::from(vendor.to_string_lossy());
    [
        "--offline".to_owned(),
        "--config".to_owned(),
        "source.crates-io.replace-with=\"aviary-vendor\"".to_owned(),
        "--config".to_owned(),
        format!("source.aviary-vendor.directory={folder}"),
    ]
}

/// cargo's setting that has messages in the libraries (of panics) name source files by `aviary/crates/...` and `cargo/registry/...`:
/// an installed library names no folder of the machine that compiled it. Debug information keeps the real places, for debuggers.
fn places(source: &Source) -> String {
    let named = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = named.or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cargo")));
    let of = |path: &Path, name: &str| format!("--remap-path-prefix={}={name}", path.display());
    let mut flags = vec!["--remap-path-scope=macro".to_owned(), of(source.tree(), "aviary")];
    flags.extend(home.map(|home| of(&home, "cargo")));
    flags.extend(source.vendor().map(|vendor| of(vendor, "vendor")));
    // A list of strings is written alike in JSON and TOML.
    format!("build.rustflags={}", serde_json::Value::from(flags))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_this_machine_are_replaced() {
        let root = tempfile::tempdir().expect("a folder");
        let tree = root.path().join("a \"b\"/tree");
        std::fs::create_dir_all(tree.join("crates")).expect("made");
        let tree = tree.canonicalize().expect("its name");
        let setting = places(&Source::at(&tree).expect("a source"));
        let name = tree.to_string_lossy().replace('"', "\\\"");
        let expected = format!(r#"build.rustflags=["--remap-path-scope=macro","--remap-path-prefix={name}=aviary""#);
        assert!(setting.starts_with(&expected), "{setting}");
        assert!(setting.ends_with("=cargo\"]"), "{setting}");
    }

    #[test]
    fn folder_of_dependencies_is_quoted() {
        let options = vendored(Path::new("/a \"b\"/vendor"));
        assert_eq!(options[0], "--offline");
        assert_eq!(options[4], r#"source.aviary-vendor.directory="/a \"b\"/vendor""#);
    }
}
