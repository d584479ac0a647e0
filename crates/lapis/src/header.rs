//! Declarations that libclang finds in the headers of an API.

mod convert;
pub mod declarator;
pub mod macros;
pub mod unit;

use crate::model::{Signature, Type};
use macros::Macro;
use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};
use unit::Unit;

/// Words of a header about a declaration, which say more than its types.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Notes {
    /// The documentation comment in front of it.
    pub comment: String,
    /// The declaration as it is written, with macros that mean nothing to a compiler.
    pub text: String,
}

/// A function as a header declares it.
#[derive(Debug, Clone, PartialEq)]
pub struct HeaderFunction {
    pub name: String,
    /// Name for the linker, where a declaration gives another one.
    pub symbol: Option<String>,
    pub signature: Signature,
    /// Header that declares it.
    pub file: PathBuf,
    /// Has a body (utility code, inline functions).
    pub defined: bool,
    /// `static`: no other file can call it.
    pub internal: bool,
    pub notes: Notes,
}

/// A variable that a header declares and a library defines.
#[derive(Debug, Clone, PartialEq)]
pub struct HeaderVariable {
    pub name: String,
    pub file: PathBuf,
    pub ty: Type,
    /// A program cannot write to it.
    pub constant: bool,
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
    /// The headers that define them.
    pub tag_files: HashMap<String, PathBuf>,
    /// Of function pointers in structs, by the struct's name and their own.
    pub members: HashMap<(String, String), Notes>,
    pub enumerators: HashMap<String, i128>,
    /// The names that each enum defines, in order, by the enum's name.
    pub enumerations: HashMap<String, Vec<String>>,
    pub macros: HashMap<String, Macro>,
    /// Global variables, which expressions cannot read.
    pub variables: Vec<String>,
    /// Global variables that other files define.
    pub externals: Vec<HeaderVariable>,
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

    /// The variables that the given headers declare and a library defines.
    pub fn api_variables(&self, headers: &[PathBuf]) -> impl Iterator<Item = &HeaderVariable> {
        let headers: Vec<PathBuf> = headers.iter().map(|h| plain(h)).collect();
        self.externals.iter().filter(move |variable| headers.contains(&plain(&variable.file)))
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
        let headers: Vec<(PathBuf, Option<PathBuf>)> = headers
            .iter()
            .map(|h| plain(h))
            .map(|h| (h.clone(), (!files.contains(&h)).then(|| umbrella_folder(&h)).flatten()))
            .collect();
        let counts = |file: &PathBuf| {
            headers
                .iter()
                .any(|(header, umbrella)| header == file || umbrella.as_ref().is_some_and(|u| file.starts_with(u)))
        };
        // An application has its own copy of a `static` function.
        let exported = self.functions.iter().zip(&files).filter(|(f, _)| !f.internal);
        exported.filter(|(_, file)| counts(file)).map(|(f, _)| f).collect()
    }
}

/// The folder of the headers that one without functions of its own pulls in. Beside a header in the system's own folder are
/// those of everything else: there it is the folder of the same name (`isa-l.h`, `isa-l/`).
fn umbrella_folder(header: &Path) -> Option<PathBuf> {
    let folder = header.parent()?;
    let is_shared = folder.file_name().is_some_and(|name| name == "include");
    let own = header.with_extension("");
    match is_shared {
        true => own.is_dir().then_some(own),
        false => Some(folder.to_path_buf()),
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
