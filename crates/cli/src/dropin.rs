//! Search for a library of a given name, without loading it.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
};

/// Where every dynamic linker looks by itself.
pub const USUAL: [&str; 6] =
    ["/lib", "/usr/lib", "/lib64", "/usr/lib64", "/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu"];

/// Where the dynamic linker would find the library.
pub fn find_library(soname: &str) -> Option<PathBuf> {
    in_library_path(soname)
        .or_else(|| in_cache(soname))
        .or_else(|| USUAL.iter().find_map(|place| exists(Path::new(place), soname)))
}

fn in_library_path(soname: &str) -> Option<PathBuf> {
    let path = env::var_os("LD_LIBRARY_PATH")?;
    env::split_paths(&path).find_map(|directory| exists(&directory, soname))
}

fn in_cache(soname: &str) -> Option<PathBuf> {
    // One process for all libraries that are asked for.
    static LIST: OnceLock<Option<String>> = OnceLock::new();
    parse_cache(LIST.get_or_init(list_cache).as_ref()?, soname)
}

fn list_cache() -> Option<String> {
    let programs = ["ldconfig", "/sbin/ldconfig", "/usr/sbin/ldconfig"];
    programs.iter().find_map(|program| {
        let output = Command::new(program).arg("-p").stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    })
}

/// Lines look like `libz.so.1`; other architectures do not count.
fn parse_cache(list: &str, soname: &str) -> Option<PathBuf> {
    let native = if cfg!(target_arch = "x86_64") { "x86-64" } else { "AArch64" };
    list.lines().find_map(|line| {
        let (name, path) = line.trim().split_once(" => ")?;
        let (name, kind) = name.split_once(" (")?;
        (name == soname && kind.contains(native)).then(|| PathBuf::from(path))
    })
}

fn exists(directory: &Path, soname: &str) -> Option<PathBuf> {
    let path = directory.join(soname);
    fs::metadata(&path).is_ok().then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_linkers_cache() {
        let list =
            "2 libs found\n\tlibz.so.1 (libc6) => /lib32/libz.so.1\n\tlibz.so.1 (libc6,x86-64) => /lib/libz.so.1\n";
        if cfg!(target_arch = "x86_64") {
            assert_eq!(parse_cache(list, "libz.so.1"), Some("/lib/libz.so.1".into()));
        }
        assert_eq!(parse_cache(list, "libz.so"), None);
    }

    #[test]
    fn the_c_library_is_here() {
        assert!(find_library("libc.so.6").is_some());
        assert!(find_library("libno-such-thing.so.77").is_none());
    }
}
