//! The limit of descriptors of a process that serves others.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Lets this process have as many descriptors as it may: each session or client takes a few, and the usual limit is 1,024. Where
/// that is refused, it serves as many as the limit allows.
pub(crate) fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}
