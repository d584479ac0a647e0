//! What the program prints: each view has a file.

pub(crate) mod csv;
pub(crate) mod dmon;
pub(crate) mod help;
pub(crate) mod pmon;
pub(crate) mod table;
pub(crate) mod text;
pub(crate) mod topology;
pub(crate) mod tree;
