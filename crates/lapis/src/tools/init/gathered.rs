//! What is asked for, and what the header has.

use crate::header::{Header, HeaderFunction, Notes};
use crate::load::Options;
use crate::model::Signature;

/// The form of a likely answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Level {
    /// A comment beside the placeholder.
    #[default]
    Comments,
    /// Descriptors inside `guess { }`.
    Guesses,
}

/// A vendor library, as far as its symbols tell.
#[derive(Debug, Clone, Default)]
pub struct Library {
    /// Its file's name, for messages.
    pub file: String,
    pub soname: Option<String>,
    pub exported: Vec<String>,
}

#[derive(Debug, Clone, Default)]
pub struct InitOptions {
    pub headers: Options,
    pub level: Level,
    pub library: Option<Library>,
}

/// The functions and tables of a header.
pub(crate) struct GatheredApi<'a> {
    pub header: &'a Header,
    pub functions: Vec<ApiFunction<'a>>,
    pub tables: Vec<FunctionTable<'a>>,
    /// Functions of the header that the vendor library does not export.
    pub missing: Vec<&'a str>,
}

/// A function of the API: one that the library exports, or a member of a table.
#[derive(Clone)]
pub struct ApiFunction<'a> {
    pub table: Option<String>,
    pub name: &'a str,
    pub signature: &'a Signature,
    pub notes: &'a Notes,
}

impl<'a> ApiFunction<'a> {
    pub fn exported(function: &'a HeaderFunction) -> Self {
        ApiFunction { table: None, name: &function.name, signature: &function.signature, notes: &function.notes }
    }
}

/// A struct of function pointers that the library fills.
pub struct FunctionTable<'a> {
    /// As C writes its type.
    pub ty: String,
    /// As the specification calls it.
    pub name: String,
    pub members: Vec<(&'a str, &'a Signature, &'a Notes)>,
}
