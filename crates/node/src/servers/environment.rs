//! The part of the node's environment that API servers get.
//!
//! A node that is a system's service has secrets of that service in its environment. An API server is one `getenv` away
//! from a tenant's native code, so it gets what vendors' libraries look at and nothing else.

use std::ffi::{OsStr, OsString};

/// Variables that vendors' libraries and their compilers look at. A name may end with `*`.
const PASSED: &[&str] = &[
    // Where programs, libraries and their files are.
    "PATH",
    "HOME",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "XDG_CACHE_HOME",
    // Language and time.
    "LANG",
    "LANGUAGE",
    "LC_*",
    "TZ",
    // Vendors'.
    "CUDA_*",
    "NVIDIA_*",
    "OCL_*",
    "OPENCL_*",
    "CL_*",
    "POCL_*",
    "OMP_*",
    "HIP_*",
    "HSA_*",
    "ROCR_*",
    "ZE_*",
    // Aviary's own for API servers: another vendor library, and how long launches are divided.
    "AVIARY_VENDOR_*",
    "AVIARY_SLICE_*",
    // The text of a crash.
    "RUST_BACKTRACE",
];

/// A vendor library that is itself an Aviary library must not find this node, and which kind of node this is only its
/// own command says.
const NEVER: &[&str] = &["AVIARY_SERVER", "AVIARY_PRIVATE_NODE"];

/// The part of an environment that passes.
#[derive(Debug, Clone, Copy)]
pub enum Passing<'a> {
    /// Everything: a private node's API servers serve the one program that has this environment itself.
    Whole,
    /// The list of this module, and these names, which may end with `*`.
    Listed(&'a [String]),
}

impl Passing<'_> {
    fn admits(self, name: &OsStr) -> bool {
        let fits = |pattern: &str| match pattern.strip_suffix('*') {
            Some(start) => name.as_encoded_bytes().starts_with(start.as_bytes()),
            None => name == pattern,
        };
        if NEVER.iter().any(|never| fits(never)) {
            return false;
        }
        match self {
            Self::Whole => true,
            Self::Listed(more) => PASSED.iter().copied().chain(more.iter().map(String::as_str)).any(fits),
        }
    }
}

/// The variables of `environment` that pass.
pub fn passed(
    environment: impl Iterator<Item = (OsString, OsString)>,
    passing: Passing<'_>,
) -> impl Iterator<Item = (OsString, OsString)> {
    environment.filter(move |(name, _)| passing.admits(name))
}

#[cfg(test)]
mod tests {
    use crate::servers::environment::*;

    #[test]
    fn secrets_stay_and_vendors_variables_pass() {
        let all =
            ["PATH", "LC_ALL", "CUDA_VISIBLE_DEVICES", "POCL_CACHE_DIR", "AVIARY_VENDOR_OPENCL", "AVIARY_SLICE_MS"];
        let secret =
            ["AWS_SECRET_ACCESS_KEY", "DATABASE_URL", "PATHS", "LC", "MY_CUDA_X", "AVIARY_TOKEN", "LD_PRELOAD"];
        let never = ["AVIARY_SERVER", "AVIARY_PRIVATE_NODE"];
        let names = |passing| -> Vec<String> {
            let environment = all.iter().chain(&secret).chain(&never).map(|name| (name.into(), "x".into()));
            passed(environment, passing).map(|(name, _)| name.into_string().unwrap()).collect()
        };
        assert_eq!(names(Passing::Listed(&[])), all);
        let more = ["DATABASE_URL".to_owned(), "AWS*".to_owned(), "AVIARY_*".to_owned()];
        let expected: Vec<&str> =
            all.iter().copied().chain(["AWS_SECRET_ACCESS_KEY", "DATABASE_URL", "AVIARY_TOKEN"]).collect();
        assert_eq!(names(Passing::Listed(&more)), expected, "never what a guest reads");
        assert_eq!(names(Passing::Whole).len(), all.len() + secret.len());
    }
}
