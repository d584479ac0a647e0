//! Vendors' libraries that a running program has loaded past the guest libraries: by an absolute path, without LD_LIBRARY_PATH, or from
//! its own package. Before the program starts only its files can be asked (bypass.rs); what it loads later is seen among its mapped files.
//!
//! They are looked at a few times after the start, as programs load their libraries then; later ones are not seen.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    time::Duration,
};

/// Times between looks.
const LOOKS: [Duration; 5] = [
    Duration::from_millis(300),
    Duration::from_secs(1),
    Duration::from_secs(4),
    Duration::from_secs(15),
    Duration::from_secs(60),
];

/// The libraries of virtualized APIs.
#[derive(Default)]
pub struct Strays {
    sonames: Vec<String>,
    /// The guest libraries, as the kernel names them.
    own: BTreeSet<PathBuf>,
    told: BTreeSet<PathBuf>,
}

impl Strays {
    /// Pairs of a vendor's soname and the guest library of that name.
    pub fn new(libraries: impl IntoIterator<Item = (String, PathBuf)>) -> Self {
        let (sonames, own): (Vec<String>, BTreeSet<PathBuf>) = libraries.into_iter().unzip();
        let own = own.into_iter().map(|path| fs::canonicalize(&path).unwrap_or(path)).collect();
        Self { sonames, own, told: BTreeSet::new() }
    }

    /// Looks at the processes that `all` names, for as long as programs usually load libraries, and has `tell` say what it finds.
    pub fn watch(mut self, all: impl Fn() -> Vec<u32>, tell: impl Fn(u32, &Path)) {
        if self.sonames.is_empty() {
            return;
        }
        for pause in LOOKS {
            std::thread::sleep(pause);
            for process in all() {
                self.new_in(process).iter().for_each(|library| tell(process, library));
            }
        }
    }

    /// Libraries that the process has mapped, each once for all processes.
    fn new_in(&mut self, process: u32) -> Vec<PathBuf> {
        // Another user's process cannot be read, unless this one is root.
        let maps = fs::read(format!("/proc/{process}/maps")).unwrap_or_default();
        let found = self.among(&maps);
        found.into_iter().filter(|path| self.told.insert(path.clone())).collect()
    }

    fn among(&self, maps: &[u8]) -> BTreeSet<PathBuf> {
        let paths = maps.split(|byte| *byte == b'\n').filter_map(path_of_line);
        paths.filter(|path| self.is_stray(path)).map(Path::to_owned).collect()
    }

    fn is_stray(&self, path: &Path) -> bool {
        let name = path.file_name().map(|name| stem(name.as_bytes()));
        let known = |soname: &String| name == Some(stem(soname.as_bytes()));
        self.sonames.iter().any(known) && !self.own.contains(path)
    }
}

/// The file of a line of `/proc/PID/maps`, if one is mapped.
fn path_of_line(line: &[u8]) -> Option<&Path> {
    let at = line.iter().position(|byte| *byte == b'/')?;
    Some(Path::new(std::ffi::OsStr::from_bytes(&line[at..])))
}

/// `libcuda` of `libcuda.so.1`, `libcuda.so.550.54` and of `libcuda-0a1b2c3d.so.1`, as packages name copies of a library.
fn stem(name: &[u8]) -> &[u8] {
    let end = name.windows(3).position(|part| part == b".so").unwrap_or(name.len());
    let name = &name[..end];
    match name.iter().rposition(|byte| *byte == b'-') {
        Some(at) if name.len() - at == 9 && name[at + 1..].iter().all(u8::is_ascii_hexdigit) => &name[..at],
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_of_virtualized_apis_are_seen_wherever_they_are_from() {
        let own = PathBuf::from("/nowhere/guest/libcuda.so.1");
        let strays = Strays::new([("libcuda.so.1".to_owned(), own)]);
        let maps = b"7f00-7f01 r-xp 0000 08:01 42                         /nowhere/guest/libcuda.so.1\n\
            7f02-7f03 r-xp 0000 08:01 43                         /usr/lib/libcuda.so.550.54\n\
            7f04-7f05 r--p 0000 08:01 43                         /usr/lib/libcuda.so.550.54\n\
            7f06-7f07 r-xp 0000 08:01 44                         /opt/a package/libcuda-0a1b2c3d.so.1\n\
            7f08-7f09 r-xp 0000 08:01 45                         /usr/lib/libcudart.so.12\n\
            7f0a-7f0b rw-p 0000 00:00 0                          [heap]\n\
            7f0c-7f0d rw-p 0000 00:00 0\n";
        let expected = ["/opt/a package/libcuda-0a1b2c3d.so.1", "/usr/lib/libcuda.so.550.54"];
        assert_eq!(strays.among(maps), expected.map(PathBuf::from).into());
    }

    #[test]
    fn each_is_told_once() {
        let own_library = fs::read_to_string("/proc/self/maps").unwrap();
        let libc =
            own_library.lines().find_map(|line| line.split_once('/').filter(|(_, path)| path.contains("libc.so.6")));
        let Some((_, path)) = libc else { return };
        let mut strays = Strays::new([("libc.so.6".to_owned(), PathBuf::from("/nowhere/libc.so.6"))]);
        let process = std::process::id();
        assert_eq!(strays.new_in(process), [PathBuf::from(format!("/{path}"))]);
        assert!(strays.new_in(process).is_empty());
    }
}
