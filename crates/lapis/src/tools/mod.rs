//! Work on specifications beside compiling them: a first draft from a header, coverage, a new version's differences.

pub mod coverage;
pub mod diff;
pub mod init;
pub mod score;
