//! LAPIS, the language that tells Aviary what a C header cannot say: from a header and a
//! specification to the [`model`], and from there to the generated code.

pub mod ast;
pub mod build;
mod check;
pub mod coverage;
pub mod descriptors;
pub mod diagnostics;
pub mod diff;
mod exported;
pub mod generate;
pub mod header;
pub mod init;
pub mod lexer;
pub mod load;
pub mod lower;
pub mod model;
mod names;
pub mod parser;
mod policy;
mod resolve;
pub mod score;
pub mod source;
mod suggest;
pub mod unpacked;
pub mod utility;

pub use coverage::{Coverage, coverage};
pub use diagnostics::{Diagnostic, Diagnostics, Severity};
pub use diff::diff;
pub use init::{InitOptions, init};
pub use load::{Loaded, Options, load};
pub use score::score;
