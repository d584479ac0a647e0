//! Programs that load a vendor's library past the guest library: `aviary run` puts guest libraries into LD_LIBRARY_PATH,
//! and the dynamic linker looks elsewhere first where a program has a DT_RPATH, or names a library by its path. One of another C
//! library loads none.

use crate::guest::elf::{Wants, wants};
use std::{
    collections::{BTreeSet, VecDeque},
    env,
    ffi::OsStr,
    fmt, fs,
    io::Read,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

/// A vendor's library that a program loads instead of the guest library.
#[derive(Debug, PartialEq, Eq)]
pub struct Bypass {
    /// The file that names it: the program, or a library that it needs.
    by: PathBuf,
    library: PathBuf,
    how: How,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    Rpath,
    Path,
}

impl fmt::Display for Bypass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (by, library) = (self.by.display(), self.library.display());
        match self.how {
            How::Rpath => write!(
                f,
                "{by} loads {library}, because its DT_RPATH comes before LD_LIBRARY_PATH: calls of that library bypass Aviary; give {by} a DT_RUNPATH instead (patchelf --set-rpath), or take the folder out of its DT_RPATH"
            ),
            How::Path => write!(
                f,
                "{by} loads {library} by its path: calls of that library bypass Aviary; link {by} against the library's name (patchelf --replace-needed)"
            ),
        }
    }
}

/// The program of a command as the kernel runs it, and what its file names.
pub struct Started {
    program: PathBuf,
    wants: Wants,
}

impl Started {
    /// `None`: there is no such program, or it is none of this machine's.
    pub fn by(command: &OsStr) -> Option<Started> {
        let program = program(command)?;
        let wants = wants(&program).ok()?;
        Some(Started { program, wants })
    }
}

/// The vendors' libraries of `sonames` that a program loads past their guest libraries, as far as it is written down in its
/// files. Libraries that it loads while it runs (dlopen), and programs that it starts, are not seen.
pub fn bypasses(started: Started, sonames: &BTreeSet<&str>) -> Vec<Bypass> {
    let mut found = Vec::new();
    let mut seen = BTreeSet::new();
    let mut left = VecDeque::from([(started.program, Some(started.wants), Vec::new())]);
    while let Some((file, read, inherited)) = left.pop_front() {
        let Some(wants) = read.or_else(|| wants(&file).ok()) else { continue };
        let folders: Vec<PathBuf> = wants.before_library_path.into_iter().chain(inherited).collect();
        for name in wants.libraries {
            let path = Path::new(&name);
            let by_path = name.contains('/');
            let is_vendors = path.file_name().and_then(OsStr::to_str).is_some_and(|name| sonames.contains(name));
            let first = || folders.iter().map(|folder| folder.join(path)).find(|path| path.is_file());
            let place = match by_path {
                true => Some(path.to_owned()).filter(|path| path.is_file()),
                false => first(),
            };
            match place {
                Some(library) if is_vendors => {
                    let how = if by_path { How::Path } else { How::Rpath };
                    let bypass = Bypass { by: file.clone(), library, how };
                    if !found.contains(&bypass) {
                        found.push(bypass);
                    }
                }
                _ if is_vendors => {}
                place => {
                    let place = place.or_else(|| crate::dropin::find_library(&name));
                    left.extend(
                        place.filter(|place| seen.insert(place.clone())).map(|place| (place, None, folders.clone())),
                    );
                }
            }
        }
    }
    found
}

/// Why no guest library can be loaded by a program at all, if it is so: it is linked to another C library than they are.
pub fn other_c_library(started: &Started) -> Option<String> {
    let loader = started.wants.interpreter.as_ref()?;
    let is_musl = loader.file_name()?.as_bytes().starts_with(b"ld-musl-");
    is_musl.then(|| {
        format!(
            "{} is a program for musl ({}), and guest libraries are for glibc: it cannot load them; use a build of it for glibc, in an image with glibc",
            started.program.display(),
            loader.display()
        )
    })
}

/// The file that the kernel runs for a command: the program, or a script's interpreter.
fn program(command: &OsStr) -> Option<PathBuf> {
    let path = if command.as_bytes().contains(&b'/') {
        PathBuf::from(command)
    } else {
        env::split_paths(&env::var_os("PATH")?).map(|folder| folder.join(command)).find(|path| path.is_file())?
    };
    let mut start = Vec::new();
    fs::File::open(&path).ok()?.take(256).read_to_end(&mut start).ok()?;
    let Some(line) = start.strip_prefix(b"#!") else { return Some(path) };
    let line = line.split(|byte| *byte == b'\n').next()?.trim_ascii_start();
    let interpreter = line.split(|byte| byte.is_ascii_whitespace()).next()?;
    Some(PathBuf::from(OsStr::from_bytes(interpreter)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Compiles `source` with these options in `folder`; the file's path.
    fn compiled(folder: &Path, name: &str, source: &str, options: &[&str]) -> PathBuf {
        let file = folder.join(format!("{name}.c"));
        fs::write(&file, source).unwrap();
        let to = folder.join(name);
        let status = Command::new("gcc").arg(&file).arg("-o").arg(&to).args(options).current_dir(folder).status();
        assert!(status.unwrap().success(), "{name}");
        to
    }

    #[test]
    fn programs_for_musl_are_named() {
        let folder = env::temp_dir().join(format!("aviary-musl-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let source = "int main(void) { return 0; }";
        let musl = compiled(&folder, "musl", source, &["-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1"]);
        let glibc = compiled(&folder, "glibc", source, &[]);
        let told_of = |program: &Path| other_c_library(&Started::by(program.as_os_str()).unwrap());
        let told = told_of(&musl).unwrap();
        assert!(told.contains("/musl is a program for musl (/lib/ld-musl-x86_64.so.1)"), "{told}");
        assert_eq!(told_of(&glibc), None);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn rpath_and_paths_are_seen_and_runpath_is_in_order() {
        let folder = env::temp_dir().join(format!("aviary-bypass-{}", std::process::id()));
        let vendor = folder.join("vendor");
        fs::create_dir_all(&vendor).unwrap();
        let soname = "-Wl,-soname,libvendor.so.1";
        let library = compiled(&vendor, "libvendor.so.1", "int f(void) { return 1; }", &["-shared", "-fPIC", soname]);
        let unnamed = compiled(&vendor, "libunnamed.so.1", "int f(void) { return 1; }", &["-shared", "-fPIC"]);
        let main = "int f(void); int main(void) { return f(); }";
        let (by_name, by_path) = (library.to_str().unwrap(), unnamed.to_str().unwrap());
        let rpath = "-Wl,--disable-new-dtags,-rpath,$ORIGIN/vendor";
        let old = compiled(&folder, "old", main, &[by_name, rpath]);
        let new = compiled(&folder, "new", main, &[by_name, "-Wl,--enable-new-dtags,-rpath,$ORIGIN/vendor"]);
        let path = compiled(&folder, "path", main, &[by_path]);
        let sonames = BTreeSet::from(["libvendor.so.1", "libunnamed.so.1"]);
        let seen = |program: &Path| bypasses(Started::by(program.as_os_str()).unwrap(), &sonames);
        let told = |by: &Path, library: &Path, how| {
            let library = library.to_owned();
            vec![Bypass { by: by.to_owned(), library, how }]
        };
        assert_eq!(seen(&old), told(&old, &folder.join("vendor/libvendor.so.1"), How::Rpath));
        assert_eq!(seen(&new), []);
        assert_eq!(seen(&path), told(&path, &unnamed, How::Path));
        // A library that the program needs is looked for in the program's folders, too, and so is what that one needs.
        let middle = compiled(
            &vendor,
            "libmiddle.so",
            "int f(void); int g(void) { return f(); }",
            &["-shared", "-fPIC", "-Wl,-soname,libmiddle.so", by_name],
        );
        let through = "int g(void); int main(void) { return g(); }";
        let link = format!("-Wl,-rpath-link,{}", vendor.display());
        let far = compiled(&folder, "far", through, &[middle.to_str().unwrap(), rpath, &link]);
        let found = seen(&far);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].by.ends_with("vendor/libmiddle.so") && found[0].how == How::Rpath, "{found:?}");
        // A script is seen by its interpreter.
        let script = folder.join("script");
        fs::write(&script, format!("#!{} x\n", old.display())).unwrap();
        assert_eq!(seen(&script), seen(&old));
        fs::remove_dir_all(&folder).unwrap();
    }
}
