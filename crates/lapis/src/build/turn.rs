//! Where cargo compiles an API, and what it need not compile there.
//!
//! Every output folder has a compile folder of its own: cargo locks the folder in which it compiles, and takes crates of one name and
//! one place within their workspace for the same ones, wherever that workspace is. The runtime crates, which all APIs have in common,
//! are compiled once, into a seed; a compile folder begins as a copy of it, in which large files are links.

use super::cargo::run_cargo;
use super::error::BuildError;
use super::source::Source;
use super::versions::Linker;
use crate::generate::glue;
use crate::model::Side;
use std::fs::{self, File, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read, Seek, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Folders of the cache: where the runtime's workspace is, where it is compiled, where the APIs are.
const RUNTIME: &str = "runtime";
const SEED: &str = "seed";
const PLACES: &str = "apis";
/// Names the crates of a compile folder, beside it.
const OF: &str = "of";
/// Folders of cargo's that hold compiled crates.
const COMPILED: [&str; 3] = ["release/.fingerprint", "release/build", "release/deps"];
/// Files of at least so many bytes are linked. rustc replaces them by new ones; what cargo writes in place is smaller.
const LINKED: u64 = 64 << 10;

/// The right to compile an API for one output folder, until it is dropped.
#[derive(Debug)]
pub struct Turn {
    target: PathBuf,
    _lock: File,
}

impl Turn {
    /// Waits for builds of the API `name` into the same output that are under way; its crates are at `crates`, the runtime
    /// crates in `source`. The compile folder then has the runtime, compiled.
    ///
    /// # Errors
    /// A file cannot be written, or the runtime does not compile.
    pub fn take(cache: &Path, name: &str, crates: &Path, source: &Source, linker: &Linker) -> Result<Turn, BuildError> {
        let (target, lock) =
            take_place(cache, name, crates).map_err(|error| BuildError::Output(cache.join(PLACES), error))?;
        plant(cache, source, &target, linker)?;
        Ok(Turn { target, _lock: lock })
    }

    /// Where cargo compiles.
    pub fn target(&self) -> &Path {
        &self.target
    }
}

fn locked(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
    file.lock()?;
    Ok(file)
}

/// The compile folder of the crates at `crates`, locked.
fn take_place(cache: &Path, name: &str, crates: &Path) -> io::Result<(PathBuf, File)> {
    let places = cache.join(PLACES);
    let mut hasher = DefaultHasher::new();
    crates.hash(&mut hasher);
    let place = places.join(format!("{name}-{:016x}", hasher.finish()));
    fs::create_dir_all(&place)?;
    let mut lock = locked(&place.join(OF))?;
    lock.rewind()?;
    lock.set_len(0)?;
    lock.write_all(crates.as_os_str().as_bytes())?;
    for entry in fs::read_dir(&places)? {
        remove_abandoned(&entry?.path());
    }
    Ok((place, lock))
}

/// Removes a compile folder whose crates are no longer there: outputs in temporary folders would fill the disk. Nothing depends
/// on it, so errors do not matter.
fn remove_abandoned(place: &Path) {
    let Ok(mut of) = OpenOptions::new().read(true).open(place.join(OF)) else { return };
    let mut crates = Vec::new();
    if of.try_lock().is_ok() && of.read_to_end(&mut crates).is_ok() && !crates.is_empty() {
        let crates = Path::new(std::ffi::OsStr::from_bytes(&crates));
        if !crates.exists() {
            let _ = fs::remove_dir_all(place);
        }
    }
}

/// Compiles the runtime, if it changed, and gives it to the compile folder `target`.
fn plant(cache: &Path, source: &Source, target: &Path, linker: &Linker) -> Result<(), BuildError> {
    let (crates, seed) = (cache.join(RUNTIME), cache.join(SEED));
    let failed = |error| BuildError::Output(crates.clone(), error);
    fs::create_dir_all(&crates).map_err(failed)?;
    // Copies wait, too: what is being compiled is not copied.
    let _lock = locked(&cache.join("seed.lock")).map_err(failed)?;
    write_runtime(&crates, source).map_err(failed)?;
    run_cargo(linker, &crates, &seed, source)?;
    for folder in COMPILED {
        mirror(&seed.join(folder), &target.join(folder))
            .map_err(|error| BuildError::Output(target.join(folder), error))?;
    }
    Ok(())
}

/// A workspace like that of an API, of crates with nothing of their own.
fn write_runtime(crates: &Path, source: &Source) -> io::Result<()> {
    write_changed(&crates.join("Cargo.toml"), glue::WORKSPACE)?;
    let lock = crates.join("Cargo.lock");
    match source.tested_versions() {
        Some(text) if !lock.exists() => fs::write(lock, text)?,
        _ => {}
    }
    for (side, name) in [(Side::Guest, "guest"), (Side::Server, "server")] {
        let folder = crates.join(name);
        fs::create_dir_all(&folder)?;
        write_changed(
            &folder.join("Cargo.toml"),
            &glue::manifest("runtime", side, &source.crates().to_string_lossy()),
        )?;
        write_changed(&folder.join("build.rs"), "fn main() {}\n")?;
        write_changed(&folder.join("lib.rs"), "")?;
    }
    Ok(())
}

/// Cargo compiles again what is newer.
fn write_changed(path: &Path, text: &str) -> io::Result<()> {
    if fs::read_to_string(path).is_ok_and(|old| old == text) { Ok(()) } else { fs::write(path, text) }
}

/// Makes the files of a folder those of another one that are new there or have another time; keeps all others.
fn mirror(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (source, target, about) = (entry.path(), to.join(entry.file_name()), entry.metadata()?);
        if about.is_dir() {
            mirror(&source, &target)?;
            continue;
        }
        let modified = about.modified()?;
        if fs::metadata(&target)
            .is_ok_and(|old| old.len() == about.len() && old.modified().is_ok_and(|time| time == modified))
        {
            continue;
        }
        // Never written through: another name of the file may be in use.
        let _ = fs::remove_file(&target);
        if about.len() < LINKED || fs::hard_link(&source, &target).is_err() {
            fs::copy(&source, &target)?;
            OpenOptions::new().append(true).open(&target)?.set_modified(modified)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;
    use std::sync::mpsc;
    use std::time::{Duration, SystemTime};

    fn crates(root: &Path, folder: &str) -> PathBuf {
        let crates = root.join(folder);
        fs::create_dir_all(&crates).unwrap();
        crates
    }

    #[test]
    fn outputs_have_compile_folders_of_their_own_and_abandoned_ones_go() {
        let root = tempfile::tempdir().unwrap();
        let (one, other) = (crates(root.path(), "one"), crates(root.path(), "other"));
        let (place, _lock) = take_place(root.path(), "api", &one).unwrap();
        let (another, lock) = take_place(root.path(), "api", &other).unwrap();
        assert_ne!(place, another);
        drop(lock);
        fs::remove_dir_all(&other).unwrap();
        fs::remove_dir_all(&one).unwrap();
        let third = crates(root.path(), "third");
        drop(take_place(root.path(), "api", &third).unwrap());
        assert!(!another.exists(), "its crates are gone");
        assert!(place.exists(), "a build is under way");
    }

    #[test]
    fn builds_into_one_output_wait_for_each_other() {
        let root = tempfile::tempdir().unwrap();
        let one = crates(root.path(), "one");
        let first = take_place(root.path(), "api", &one).unwrap();
        let (told, taken) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let turn = take_place(root.path(), "api", &one).unwrap();
                told.send(()).unwrap();
                drop(turn);
            });
            assert!(taken.recv_timeout(Duration::from_millis(50)).is_err());
            drop(first);
            taken.recv().unwrap();
        });
    }

    #[test]
    fn compile_folder_has_the_seeds_files_with_their_times_and_keeps_its_own() {
        let root = tempfile::tempdir().unwrap();
        let (seed, target) = (root.path().join("seed"), root.path().join("target"));
        fs::create_dir_all(seed.join("deep")).unwrap();
        fs::create_dir_all(&target).unwrap();
        let (small, large) = (seed.join("deep/small"), seed.join("large"));
        fs::write(&small, "old").unwrap();
        fs::write(&large, vec![7; LINKED as usize]).unwrap();
        File::options().append(true).open(&small).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        fs::write(target.join("own"), "own").unwrap();
        mirror(&seed, &target).unwrap();
        let about = fs::metadata(target.join("deep/small")).unwrap();
        assert_eq!(about.modified().unwrap(), SystemTime::UNIX_EPOCH);
        assert_eq!(fs::metadata(target.join("large")).unwrap().ino(), fs::metadata(&large).unwrap().ino());
        // Cargo writes small files in place: the seed's must not change.
        fs::write(target.join("deep/small"), "changed").unwrap();
        assert_eq!(fs::read_to_string(&small).unwrap(), "old");
        mirror(&seed, &target).unwrap();
        assert_eq!(fs::read_to_string(target.join("deep/small")).unwrap(), "old");
        assert_eq!(fs::read_to_string(target.join("own")).unwrap(), "own");
    }
}
