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

/// The same for the name of an API, which is a folder, a part of variables and crates, and what a guest asks a node for.
pub fn not_an_api_name(name: &str) -> Option<String> {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == '-';
    match name.chars().find(|letter| !plain(*letter)) {
        _ if name.is_empty() => Some("no name".into()),
        Some(odd) => Some(format!("`{odd}` is neither a letter, a digit, `_` nor `-`")),
        None if name.len() > MAX_API_NAME => Some(format!("it has {} letters, at most {MAX_API_NAME}", name.len())),
        None => None,
    }
}

/// The nearest name that an API can have.
pub fn api_name_for(name: &str) -> String {
    let plain = |letter: char| if letter.is_ascii_alphanumeric() || letter == '_' { letter } else { '-' };
    let near: String = name.chars().map(plain).take(MAX_API_NAME).collect();
    if near.is_empty() { "api".into() } else { near }
}

/// Letters of a name that nodes take (aviary-control).
const MAX_API_NAME: usize = 64;

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
    fn names_of_apis_are_those_that_nodes_take() {
        for good in ["opencl", "a_b-1", "x"] {
            assert_eq!((not_an_api_name(good), api_name_for(good)), (None, good.into()));
        }
        for bad in ["", "my-lib.v2", "größe", "a b", "../x", &"x".repeat(65)] {
            assert!(not_an_api_name(bad).is_some() && not_an_api_name(&api_name_for(bad)).is_none(), "{bad:?}");
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
