//! Names of files of a build.

/// The name that tools look for.
pub const DATABASE: &str = "compile_commands.json";
/// The folder of an API's modules, by the hashes of their specifications.
pub const KEPT: &str = "modules";
/// The specification's policy, an eBPF object.
pub const POLICY: &str = "policy.o";
/// The API server module.
pub const MODULE: &str = "server.so";
/// The description of an API that nodes and `aviary run` read.
pub const DESCRIPTION: &str = "api.json";
/// The generated crates and their C.
pub const CRATES: &str = "gen";

/// Names of a build's own files: no library and no file of a specification has such a name.
pub const OWN_NAMES: [&str; 6] = [POLICY, MODULE, DESCRIPTION, CRATES, DATABASE, KEPT];
