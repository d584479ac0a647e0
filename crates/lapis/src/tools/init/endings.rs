//! Functions that end an object, by their names.

use crate::tools::init::words::words;

/// The end of objects, as a function's name tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// Nothing, or it asks: `get_free_bytes`.
    None,
    /// It ends an object.
    Ends,
    /// It drops a reference, if another function adds one.
    Drops,
    /// It adds a reference.
    Keeps,
    /// A word of that kind in the middle of the name.
    Unclear,
}

const ENDS: [&str; 5] = ["free", "destroy", "delete", "close", "release"];
const KEEPS: [&str; 1] = ["retain"];
/// A name with one of these asks or sets.
const ASKS: [&str; 9] = ["get", "set", "is", "has", "query", "count", "num", "on", "register"];

pub fn ending(function: &str) -> Ending {
    let words = words(function);
    if words.iter().any(|w| ASKS.contains(&w.as_str())) {
        return Ending::None;
    }
    if words.iter().any(|w| KEEPS.contains(&w.as_str())) {
        return Ending::Keeps;
    }
    let Some(at) = words.iter().position(|w| ENDS.contains(&w.as_str())) else { return Ending::None };
    // `xy_thing_free`, `xyDestroyThing`, `FreeThing`
    match at + 1 == words.len() || at <= 1 {
        true if words[at] == "release" => Ending::Drops,
        true => Ending::Ends,
        false => Ending::Unclear,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_what_ends() {
        let cases = [
            ("sm_close", Ending::Ends),
            ("ov_core_free", Ending::Ends),
            ("TF_DeleteGraph", Ending::Ends),
            ("cuCtxDestroy_v2", Ending::Ends),
            ("free_thing", Ending::Ends),
            ("clReleaseMemObject", Ending::Drops),
            ("clRetainMemObject", Ending::Keeps),
            ("OrtReleaseEnv", Ending::Drops),
            ("cuMemGetFree", Ending::None),
            ("ov_get_free_bytes", Ending::None),
            ("sm_open", Ending::None),
            ("cuGraphExecKernelDestroyLater", Ending::Unclear),
            ("sm_freely", Ending::None),
        ];
        for (name, expected) in cases {
            assert_eq!(ending(name), expected, "{name}: {:?}", words(name));
        }
    }
}
