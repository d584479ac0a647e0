//! How each C file of a specification is compiled, for the build and for tools (clangd, clang-tidy): `compile_commands.json`.

use super::error::BuildError;
use super::folder::Folder;
use super::names::DATABASE;
use crate::model::{Model, Side};
use crate::utility;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

/// The folder of one side's generated crate.
pub fn folder(side: Side, crates: &Path) -> PathBuf {
    crates.join(if side == Side::Guest { "guest" } else { "server" })
}

/// All C files of a side: the generated ones, then the specification's.
pub fn files(model: &Model, side: Side, crates: &Path) -> Vec<PathBuf> {
    let generated = ["support.c", "shims.c", "inline.c"].map(|name| folder(side, crates).join(name));
    generated.into_iter().chain(utility::files(model, side).map(|f| f.path.clone())).collect()
}

/// Headers that C files may include: generated ones, and those beside utility files and in the specification's folders.
pub fn headers(model: &Model, crates: &Path) -> Vec<PathBuf> {
    let include = crates.join(utility::INCLUDE_FOLDER);
    let mut found: Vec<PathBuf> = utility::RUNTIME_HEADERS.iter().map(|(name, _)| include.join(name)).collect();
    found.push(include.join(utility::types_header_name(model)));
    let beside = model.utility_files.iter().filter_map(|f| f.path.parent().map(Path::to_path_buf));
    let mut folders: Vec<PathBuf> =
        beside.chain(model.include_dirs.iter().filter_map(|dir| dir.canonicalize().ok())).collect();
    folders.sort();
    folders.dedup();
    for folder in folders {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let mut headers: Vec<PathBuf> = entries.filter(|p| p.extension().is_some_and(|e| e == "h")).collect();
        headers.sort();
        found.append(&mut headers);
    }
    found
}

/// Writes the database of this API beside its libraries in `folder`, and one of all APIs into the output folder `out`.
pub fn write_database(model: &Model, crates: &Path, out: &Folder, folder: &Folder) -> Result<(), BuildError> {
    let entries: Vec<Value> =
        [Side::Guest, Side::Server].into_iter().flat_map(|side| entries(model, side, crates)).collect();
    write_list(folder, &entries)?;
    let apis = fs::read_dir(out.path()).map_err(|e| BuildError::Output(out.path().to_path_buf(), e))?;
    let mut databases: Vec<PathBuf> = apis.flatten().map(|api| api.path().join(DATABASE)).collect();
    databases.sort();
    let merged: Vec<Value> = databases.iter().filter_map(|path| read_list(path)).flatten().collect();
    write_list(out, &merged)
}

fn entries(model: &Model, side: Side, crates: &Path) -> Vec<Value> {
    let flags = utility::flags(model, side, crates);
    let entry = |file: &PathBuf| {
        let command: Vec<&str> = ["cc"].into_iter().chain(flags.iter().map(String::as_str)).collect();
        let arguments: Vec<Value> =
            command.into_iter().chain(["-c"]).map(Value::from).chain([json!(file.to_string_lossy())]).collect();
        json!({"directory": folder(side, crates).to_string_lossy(), "file": file.to_string_lossy(), "arguments": arguments})
    };
    files(model, side, crates).iter().map(entry).collect()
}

/// None: there is no such list, or it is being written.
fn read_list(path: &Path) -> Option<Vec<Value>> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

fn write_list(folder: &Folder, entries: &[Value]) -> Result<(), BuildError> {
    folder.write(Path::new(DATABASE), format!("{:#}\n", Value::from(entries)).as_bytes())
}
