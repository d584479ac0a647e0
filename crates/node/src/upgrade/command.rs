//! How a node's program is replaced.

use std::ffi::OsString;

/// How the program of a node is started again.
#[derive(Debug, Clone)]
pub struct UpgradeCommand {
    /// Behind the program's name.
    pub arguments: Vec<OsString>,
    /// The option that is followed by [`versions`]: the program says if it could take over, and does nothing.
    pub check: &'static str,
    /// The option that is followed by the number of the state's descriptor.
    pub handover: &'static str,
}
