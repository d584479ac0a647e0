//! The text of a specification: from characters to a tree, and messages about places in it.

pub mod ast;
pub mod descriptors;
pub mod diagnostics;
pub mod lexer;
pub mod parser;
pub mod source;
pub(crate) mod suggest;
