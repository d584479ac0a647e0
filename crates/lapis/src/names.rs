//! Names that become files: what a specification may call its library and the files that it asks for.

use std::path::{Component, Path};

/// The fault of a name, in words for a label; None: it is the name of a file and nothing else.
pub fn not_a_file_name(name: &str) -> Option<&'static str> {
    match name {
        "" => Some("no name"),
        "." | ".." => Some("a folder"),
        _ if name.contains('/') => Some("a path"),
        _ if name.contains('\0') => Some("it contains NUL"),
        _ => None,
    }
}

/// The same for the name of a library, which stands in build scripts and in commands of the linker as well.
pub fn not_a_soname(name: &str) -> Option<&'static str> {
    let odd = |c: char| !(c.is_ascii_alphanumeric() || "._-+~@".contains(c));
    not_a_file_name(name).or(name.contains(odd).then_some("a character that no library has in its name"))
}

/// The same for a path that must stay below the folder that it starts from.
pub fn not_below(path: &str) -> Option<&'static str> {
    let parts = || Path::new(path).components();
    match () {
        () if path.contains('\0') => Some("it contains NUL"),
        () if parts().next().is_none() || path.ends_with('/') => Some("no file"),
        () if !parts().all(|part| matches!(part, Component::Normal(_))) => Some("it leaves the build folder"),
        () => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_are_file_names() {
        for good in ["libcuda.so.1", "a", "...", "lib with space.so"] {
            assert_eq!(not_a_file_name(good), None, "{good}");
        }
        for bad in ["", ".", "..", "/usr/lib/libn.so.1", "./libn.so", "a/b", "a/", "/", "a\0b", "../x"] {
            assert!(not_a_file_name(bad).is_some() && not_a_soname(bad).is_some(), "{bad:?}");
        }
        assert_eq!(not_a_soname("libstdc++.so.6"), None);
        for odd in ["lib,x.so", "lib\"x.so", "lib x.so", "lib{}.so", "lib\nx.so", "libü.so"] {
            assert!(not_a_soname(odd).is_some(), "{odd:?}");
        }
    }

    #[test]
    fn only_paths_that_go_down_are_below() {
        for good in ["a", "a/b.icd", "etc/OpenCL/vendors/x.icd"] {
            assert_eq!(not_below(good), None, "{good}");
        }
        for bad in ["", ".", "..", "/etc/x", "../x", "a/../../x", "./x", "a/", "a\0"] {
            assert!(not_below(bad).is_some(), "{bad:?}");
        }
    }
}
