//! From a policy's source to its programs and maps: clang, and the object file that it writes.

pub(crate) mod btf;
pub(crate) mod compile;
pub(crate) mod elf;
