//! Names, constants, types and expressions of a specification.

pub(crate) mod constants;
pub(crate) mod expressions;
pub(crate) mod scope;
pub(crate) mod types;
