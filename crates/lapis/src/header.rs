//! Declarations that libclang finds in the headers of an API.

mod convert;
pub mod macros;
pub mod unit;

use crate::model::{Signature, Type};
use macros::Macro;
use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};
use unit::Unit;

/// A function as a header declares it.
#[derive(Debug, Clone, PartialEq)]
pub struct HeaderFunction {
    pub name: String,
    pub signature: Signature,
    /// Header that declares it.
    pub file: PathBuf,
    /// Has a body (utility code, inline functions).
    pub defined: bool,
    /// `static`: no other file can call it.
    pub internal: bool,
}

/// One translation unit, without any reference to libclang.
#[derive(Debug, Clone, Default)]
pub struct Header {
    /// In the order of their first declaration.
    pub functions: Vec<HeaderFunction>,
    /// Underlying type of every typedef.
    pub typedefs: HashMap<String, Type>,
    /// How the underlying type of every typedef is spelled.
    pub aliases: HashMap<String, String>,
    /// Complete and incomplete `struct x`, `union x`, `enum x`.
    pub tags: HashMap<String, Type>,
    pub enumerators: HashMap<String, i128>,
    pub macros: HashMap<String, Macro>,
    /// Global variables, which expressions cannot read.
    pub variables: Vec<String>,
    /// For every `#include` of the unit itself: line (from 1) and the file that it found.
    pub included: Vec<(usize, PathBuf)>,
    pub problems: Vec<Problem>,
}

/// An error that the C compiler found.
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    pub message: String,
    pub file: Option<PathBuf>,
    /// From 1.
    pub line: usize,
    pub column: usize,
    /// It lies in the unit's own text.
    pub own: bool,
}

/// libclang could not do its part.
#[derive(Debug, thiserror::Error)]
pub enum HeaderError {
    /// libclang is not available
    #[error(
        "libclang is not available ({0}); install libclang (Debian: libclang-19-dev) or set LIBCLANG_PATH to its folder"
    )]
    Library(String),
    /// libclang could not read the headers
    #[error("libclang could not read the headers: {0}")]
    Parse(String),
}

impl Header {
    pub fn parse(unit: &Unit) -> Result<Header, HeaderError> {
        convert::parse(unit)
    }

    /// Takes in the functions and variables of another translation unit of the same program.
    pub fn add_unit(&mut self, other: Header) {
        for function in other.functions {
            match self.functions.iter_mut().find(|f| f.name == function.name) {
                // A function that other files can call counts before a private one of its name.
                Some(known) if known.internal && !function.internal || !known.defined => *known = function,
                Some(_) => {}
                None => self.functions.push(function),
            }
        }
        self.variables.extend(other.variables);
    }

    pub fn function(&self, name: &str) -> Option<&HeaderFunction> {
        self.functions.iter().find(|f| f.name == name)
    }

    /// A type by the name of its typedef or tag.
    pub fn named_type(&self, name: &str) -> Option<&Type> {
        self.typedefs.get(name).or_else(|| self.tags.get(name))
    }

    /// The functions that the given headers declare. A header that declares none and only includes
    /// its siblings stands for the files below its own folder that it pulls in.
    pub fn api_functions(&self, headers: &[PathBuf]) -> Vec<&HeaderFunction> {
        let files: Vec<PathBuf> = self.functions.iter().map(|f| plain(&f.file)).collect();
        let headers: Vec<(PathBuf, bool)> = headers
            .iter()
            .map(|h| plain(h))
            .map(|h| (h.clone(), !files.contains(&h) && h.parent() != Some(Path::new("/usr/include"))))
            .collect();
        let counts = |file: &PathBuf| {
            headers.iter().any(|(header, umbrella)| {
                header == file || *umbrella && header.parent().is_some_and(|folder| file.starts_with(folder))
            })
        };
        self.functions.iter().zip(&files).filter(|(_, file)| counts(file)).map(|(f, _)| f).collect()
    }
}

/// A path without `.` and `..`.
fn plain(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if matches!(out.components().next_back(), Some(Component::Normal(_))) => {
                out.pop();
            }
            other => out.push(other),
        }
    }
    out
}
