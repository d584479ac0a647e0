//! Why builds fail.

use crate::syntax::diagnostics::Diagnostics;
use std::io;
use std::path::PathBuf;

/// Why a build failed.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The specification has errors.
    #[error("{0}")]
    Specification(Box<Diagnostics>),
    /// The specification does not say what it is.
    #[error(
        "{0} has no `api(\"name\", \"version\", \"soname\");`: the build needs a name for its folder and libraries"
    )]
    Unnamed(PathBuf),
    /// A path or a link leads elsewhere.
    #[error(
        "{0} leads out of the build folder, where a build writes nothing: remove the link, or name a file below it"
    )]
    Outside(PathBuf),
    /// A file of the output folder.
    #[error("cannot write {0}: {1}")]
    Output(PathBuf, io::Error),
    /// There is no compiler for it.
    #[error("the policy `{0}` cannot be built in: {1}")]
    Policy(String, String),
    /// There is no default: it would be a folder of the machine that compiled this program.
    #[error(
        "the runtime crates, which a build needs, are not here: install the package aviary-dev, or set AVIARY_SOURCE to a source tree of Aviary"
    )]
    NoTree,
    /// Where the runtime crates should be.
    #[error("the runtime crates are not at {0}: set AVIARY_SOURCE to Aviary's source tree")]
    NoRuntime(PathBuf),
    /// It comes with the crates.
    #[error("the dependencies of the runtime crates are not at {0}: install the package aviary-dev again")]
    NoVendor(PathBuf),
    /// Nobody's home is known.
    #[error("the runtime crates are compiled into the user's cache, which is unknown: set XDG_CACHE_HOME or HOME")]
    NoCache,
    /// Cargo did not start.
    #[error("cannot run cargo ({0}): building a specification needs a Rust toolchain and a C compiler")]
    NoCargo(io::Error),
    /// Cargo's own messages have been printed.
    #[error("the generated crates in {0} do not compile; cargo's messages are above")]
    Compile(PathBuf),
}
