//! Files around the printed Rust: the crates' build files.

use crate::model::{Model, Side};
use std::path::PathBuf;

/// The folder beside a guest crate's sources that the script looks for among the linker's arguments.
pub const VERSIONS_FOLDER: &str = "aviary-versions";

/// `Cargo.toml` of one side's crate of the API `api`; `runtime` is the folder that holds the runtime crates.
pub fn manifest(api: &str, side: Side, runtime: &str) -> String {
    let (crate_name, dependency) = match side {
        Side::Guest => ("guest", "aviary-guest"),
        _ => ("server", "aviary-server"),
    };
    let folder = dependency.trim_start_matches("aviary-");
    format!(
        "[package]\nname = \"{api}-{crate_name}\"\nversion = \"0.0.0\"\nedition = \"2024\"\nbuild = \"build.rs\"\n\n\
         [lib]\nname = \"aviary_{api}_{crate_name}\"\npath = \"lib.rs\"\ncrate-type = [\"cdylib\"]\n\n\
         [dependencies]\n{dependency} = {{ path = \"{runtime}/{folder}\" }}\n\n\
         [build-dependencies]\ncc = \"1\"\n",
        api = crate_identifier(api),
    )
}

/// The API's name as a part of crate names.
pub fn crate_identifier(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' }).collect()
}

/// `Cargo.toml` of the workspace around both crates. The way of a call leads through four runtime crates, a
/// few instructions in each: without link-time optimisation a fifth of its instructions only pass it on.
pub const WORKSPACE: &str = "[workspace]\nresolver = \"3\"\nmembers = [\"guest\", \"server\"]\n\n\
    [profile.release]\nopt-level = 3\ncodegen-units = 1\nlto = \"thin\"\ndebug = \"line-tables-only\"\n";

/// `build.rs` of one side's crate: compiles the C files, each by itself, and fixes the library's name. `headers` are
/// files whose change has to be noticed besides.
pub fn build_script(model: &Model, side: Side, flags: &[String], files: &[PathBuf], headers: &[PathBuf]) -> String {
    let list = |items: &mut dyn Iterator<Item = String>| items.map(|i| format!("    {i:?},\n")).collect::<String>();
    let paths = |paths: &[PathBuf]| list(&mut paths.iter().map(|p| p.to_string_lossy().into_owned()));
    let (files, headers, flags) = (paths(files), paths(headers), list(&mut flags.iter().cloned()));
    let soname = match side {
        Side::Guest => format!(
            "    println!(\"cargo::rustc-cdylib-link-arg=-Wl,-soname,{}\");\n\
             \x20   // The vendor library's symbol versions, where it has some.\n\
             \x20   println!(\"cargo::rerun-if-changed={VERSIONS_FOLDER}/list\");\n\
             \x20   println!(\"cargo::rustc-cdylib-link-arg=-L{{}}/{VERSIONS_FOLDER}\", env!(\"CARGO_MANIFEST_DIR\"));\n",
            model.api.soname
        ),
        _ => String::new(),
    };
    format!(
        "const FILES: &[&str] = &[\n{files}];\nconst HEADERS: &[&str] = &[\n{headers}];\n\
         const FLAGS: &[&str] = &[\n{flags}];\n\n\
         fn main() {{\n    let mut build = cc::Build::new();\n\
         \x20   for file in FILES.iter().chain(HEADERS) {{\n\
         \x20       println!(\"cargo::rerun-if-changed={{file}}\");\n    }}\n\
         \x20   build.files(FILES).flags(FLAGS).warnings(false);\n\
         \x20   // Files whose functions only a constructor calls are part of the library, too.\n\
         \x20   build.link_lib_modifier(\"+whole-archive\").compile(\"utility\");\n\
         \x20   // A call from utility code or a table to one of our own functions stays inside this library,\n\
         \x20   // whatever else the process has loaded under the same name; what no file defines is an error now.\n\
         \x20   println!(\"cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic,-z,defs\");\n{soname}}}\n"
    )
}
