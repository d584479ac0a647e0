//! The files that a program of this machine needs to run elsewhere: its loader and its shared
//! libraries.

use crate::dropin::{USUAL, find_library};
use object::{
    Endianness,
    elf::{self, FileHeader64},
    read::elf::{Dyn, FileHeader, ProgramHeader},
};
use std::{
    collections::{BTreeMap, VecDeque},
    fs, io,
    path::{Path, PathBuf},
};

#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub enum ElfError {
    /// cannot read {0}: {1}
    Unreadable(PathBuf, io::Error),
    /// {0} is not a 64-bit ELF program of this machine's architecture: add a script with --add, and its interpreter with --program
    NoProgram(PathBuf),
    /// {0} is damaged: {1}
    Damaged(PathBuf, object::Error),
    /// {0} needs {1}, which this machine does not have
    NoLibrary(PathBuf, String),
}

/// The loader, libraries and folders that a file names.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Wants {
    pub interpreter: Option<PathBuf>,
    pub libraries: Vec<String>,
    /// Folders to look into first.
    pub folders: Vec<PathBuf>,
    /// Folders of these that come before LD_LIBRARY_PATH (DT_RPATH in a file without DT_RUNPATH), for its own libraries and
    /// for those that they need.
    pub before_library_path: Vec<PathBuf>,
}

/// Folders in which every loader looks.
pub fn is_usual(folder: &Path) -> bool {
    USUAL.iter().any(|usual| Path::new(usual) == folder)
}

/// Loaders and libraries of `start`, by the names that they are looked for (a loader: its path). Libraries that a
/// program loads while it runs (dlopen) are not written down in it, and not found.
pub fn closure(start: &Path) -> Result<BTreeMap<String, PathBuf>, ElfError> {
    let mut found = BTreeMap::new();
    let mut left = VecDeque::from([(start.to_owned(), Vec::new())]);
    while let Some((file, inherited)) = left.pop_front() {
        let wants = wants(&file)?;
        if let Some(interpreter) = wants.interpreter {
            found.insert(interpreter.to_string_lossy().into_owned(), interpreter);
        }
        let folders: Vec<PathBuf> = wants.folders.into_iter().chain(inherited).collect();
        for name in wants.libraries {
            if found.contains_key(&name) || found.keys().any(|known| known.ends_with(&format!("/{name}"))) {
                continue;
            }
            let near = folders.iter().map(|folder| folder.join(&name)).find(|path| path.is_file());
            let place = near.or_else(|| find_library(&name));
            let place = place.ok_or_else(|| ElfError::NoLibrary(file.clone(), name.clone()))?;
            left.push_back((place.clone(), folders.clone()));
            found.insert(name, place);
        }
    }
    Ok(found)
}

/// Names in the file at `path`.
pub fn wants(path: &Path) -> Result<Wants, ElfError> {
    let data = fs::read(path).map_err(|error| ElfError::Unreadable(path.into(), error))?;
    let header = FileHeader64::<Endianness>::parse(&*data).map_err(|_| ElfError::NoProgram(path.into()))?;
    let damaged = |error| ElfError::Damaged(path.into(), error);
    let endian = header.endian().map_err(damaged)?;
    let native = if cfg!(target_arch = "x86_64") { elf::EM_X86_64 } else { elf::EM_AARCH64 };
    if header.e_machine(endian) != native {
        return Err(ElfError::NoProgram(path.into()));
    }
    let mut wants = Wants::default();
    for segment in header.program_headers(endian, &*data).map_err(damaged)? {
        if let Some(interpreter) = segment.interpreter(endian, &*data).map_err(damaged)? {
            wants.interpreter = Some(String::from_utf8_lossy(interpreter).into_owned().into());
        }
    }
    let sections = header.sections(endian, &*data).map_err(damaged)?;
    let Some((entries, names)) = sections.dynamic(endian, &*data).map_err(damaged)? else { return Ok(wants) };
    let strings = sections.strings(endian, &*data, names).map_err(damaged)?;
    let origin = path.parent().unwrap_or(Path::new("/")).to_string_lossy().into_owned();
    let mut has_runpath = false;
    for entry in entries {
        let tag = entry.d_tag(endian);
        has_runpath |= tag == elf::DT_RUNPATH;
        if ![elf::DT_NEEDED, elf::DT_RUNPATH, elf::DT_RPATH].contains(&tag) {
            continue;
        }
        let text = entry.string(endian, strings).map_err(damaged)?;
        let text = String::from_utf8_lossy(text).into_owned();
        if tag == elf::DT_NEEDED {
            wants.libraries.push(text);
        } else {
            let text = text.replace("${ORIGIN}", &origin).replace("$ORIGIN", &origin);
            let folders = text.split(':').filter(|folder| !folder.is_empty()).map(PathBuf::from);
            if tag == elf::DT_RPATH {
                wants.before_library_path.extend(folders.clone());
            }
            wants.folders.extend(folders);
        }
    }
    if has_runpath {
        wants.before_library_path.clear();
    }
    Ok(wants)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_test_needs_the_c_library_and_a_loader() {
        let own = std::env::current_exe().unwrap();
        let found = closure(&own).unwrap();
        assert!(found.contains_key("libc.so.6"), "{found:?}");
        let loader = found.keys().find(|name| name.starts_with('/')).expect("a loader");
        assert!(loader.contains("ld-linux"), "{loader}");
        // The C library names the loader as a library, too: it is there once.
        assert_eq!(found.keys().filter(|name| name.contains("ld-linux")).count(), 1, "{found:?}");
    }

    #[test]
    fn file_that_is_no_program_is_an_error() {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        assert!(matches!(closure(&script), Err(ElfError::NoProgram(_))));
        assert!(matches!(closure(Path::new("/no/such/file")), Err(ElfError::Unreadable(..))));
    }
}
