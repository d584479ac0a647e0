//! The provisional specification of a header: what can be guessed safely, and placeholders for the rest.
//!
//! A descriptor is written only where being wrong would not corrupt anything. Where rules find a likely answer it stands beside the
//! `placeholder("...")`, which `aviary spec check` reports as an error, or, if asked for, in its place inside a `guess { }`.

use crate::header::unit::Unit;
use crate::header::{Header, Notes};
use crate::load::{Options, quoted};
use crate::syntax::diagnostics::{Diagnostic, Diagnostics};
use gathered::{ApiFunction, GatheredApi};
pub use gathered::{InitOptions, Level, Library};
use std::path::{Path, PathBuf};
use writer::Writer;

mod counts;
mod endings;
mod evidence;
mod facts;
mod gathered;
mod rules;
mod subject;
mod words;
mod writer;

/// Writes the provisional specification of `header`: a file, or a name on the include path.
pub fn init(header: &Path, options: &InitOptions) -> Result<String, Diagnostics> {
    let Options { headers, include_dirs, defines } = &options.headers;
    let mut unit = Unit::new(PathBuf::from("(init).c"), include_dirs, defines);
    let line = unit.push(&format!("#include {}", quoted(header)), None);
    for extra in headers {
        unit.push(&format!("#include {}", quoted(extra)), None);
    }
    let fail = |list| Diagnostics { list, ..Diagnostics::default() };
    let read = Header::parse(&unit).map_err(|e| fail(vec![Diagnostic::global(e.to_string())]))?;
    if !read.problems.is_empty() {
        let message =
            |p: &crate::header::Problem| Diagnostic::global(format!("in {}: {}", header.display(), p.message));
        return Err(fail(read.problems.iter().map(message).collect()));
    }
    let files: Vec<PathBuf> = read.included.iter().filter(|(l, _)| *l == line).map(|(_, f)| f.clone()).collect();
    let none = Notes::default();
    let api = gather(&read, &files, options.library.as_ref(), &none);
    if api.functions.is_empty() {
        return Err(fail(vec![Diagnostic::global(format!("{} declares no functions", header.display()))]));
    }
    Ok(Writer::new(&api, options).write(header))
}

fn gather<'a>(header: &'a Header, files: &[PathBuf], library: Option<&Library>, none: &'a Notes) -> GatheredApi<'a> {
    let declared = header.api_functions(files);
    let tables = facts::tables(header, files, &declared, none);
    let is_exported = |name: &str| library.is_none_or(|l| l.exported.iter().any(|e| e == name));
    let symbol = |f: &'a crate::header::HeaderFunction| f.symbol.as_deref().unwrap_or(&f.name);
    let missing = declared.iter().filter(|f| !is_exported(symbol(f))).map(|f| f.name.as_str()).collect();
    let exported = declared.iter().filter(|f| is_exported(symbol(f))).map(|f| ApiFunction::exported(f));
    let mut members = Vec::new();
    for table in &tables {
        for &(name, signature, notes) in &table.members {
            members.push(ApiFunction { table: Some(table.name.clone()), name, signature, notes });
        }
    }
    let functions = exported.chain(members).collect();
    GatheredApi { header, functions, tables, missing }
}
