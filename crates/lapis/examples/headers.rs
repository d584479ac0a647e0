//! Writes the provisional specification of each header named on the command line and checks it: one line per header
//! says how many placeholders it has, and what else `check` found, which should be nothing.

use aviary_lapis::{InitOptions, Options, Severity, init, load};
use std::path::{Path, PathBuf};

/// Warnings that every provisional specification has.
const EXPECTED: [&str; 4] = [
    "never deallocated",
    "does not have the variable",
    "is a copy in the guest library",
    // Of one header, where the library has more.
    "that no included header declares",
];

fn main() {
    let folder = std::env::temp_dir().join(format!("headers-{}", std::process::id()));
    if let Err(error) = std::fs::create_dir_all(&folder) {
        eprintln!("{}: {error}", folder.display());
        std::process::exit(1);
    }
    let file = folder.join("provisional.lapis");
    for header in std::env::args_os().skip(1).map(PathBuf::from) {
        let result = std::panic::catch_unwind(|| answer(&header, &file));
        println!("{}: {}", header.display(), result.unwrap_or_else(|_| "other: a panic".into()));
    }
    let _ = std::fs::remove_dir_all(&folder);
}

fn answer(header: &Path, file: &Path) -> String {
    let options = Options::default();
    let text = match init(header, &InitOptions::default()) {
        Ok(text) => text,
        Err(diagnostics) => {
            let first = diagnostics.list.first().map(|d| d.message.clone()).unwrap_or_default();
            return if first.ends_with("declares no functions") {
                "no functions".into()
            } else {
                format!("init: {first}")
            };
        }
    };
    if let Err(error) = std::fs::write(file, text) {
        return format!("init: {error}");
    }
    let list = match load(file, &options) {
        Ok(loaded) => loaded.warnings,
        Err(diagnostics) => diagnostics.list,
    };
    let placeholders = list.iter().filter(|d| d.severity == Severity::Error && d.placeholder).count();
    let others: Vec<String> = list
        .iter()
        .filter(|d| !d.placeholder)
        .filter(|d| d.severity == Severity::Error || !EXPECTED.iter().any(|what| d.message.contains(what)))
        .map(|d| d.message.clone())
        .collect();
    match others.first() {
        None => format!("{placeholders} placeholders"),
        Some(first) => format!("other: {} of them, {first}", others.len()),
    }
}
