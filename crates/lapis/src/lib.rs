//! LAPIS, the language that tells Aviary what a C header cannot say: from a header and a
//! specification to the [`model`], and from there to the generated code.

// The fuzz targets use the crate from outside.
#[cfg(test)]
extern crate self as aviary_lapis;
pub mod build;
mod check;
mod exported;
#[cfg(test)]
mod fuzz_tests;
pub mod generate;
pub mod header;
pub mod load;
pub mod lower;
pub mod model;
mod names;
mod policy;
mod resolve;
mod syntax;
mod tools;
pub mod utility;

pub use load::{Loaded, Options, load};
pub use syntax::diagnostics::{Diagnostic, Diagnostics, Severity};
pub use syntax::{ast, descriptors, diagnostics, lexer, parser, source};
pub use tools::coverage::{Coverage, coverage};
pub use tools::diff::diff;
pub use tools::init::{InitOptions, init};
pub use tools::score::score;
pub use tools::{coverage, diff, init, score};
