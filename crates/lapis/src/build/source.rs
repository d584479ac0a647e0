//! Where a build takes the runtime crates and their dependencies from, and where it compiles them: a source tree of Aviary, or
//! what the package aviary-dev installs, with which nothing is fetched.

use super::error::BuildError;
use super::folder::absolute;
use std::fs;
use std::path::{Path, PathBuf};

/// Below the prefix (`/usr`) of an installed program.
const INSTALLED: &str = "share/aviary/source";
/// Names the content of an installed source. A source tree has no such file.
const ID: &str = "package-id";
/// The dependencies of an installed source, as `cargo vendor` writes them, beside it.
const VENDOR: &str = "vendor";

/// The source of a build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    crates: PathBuf,
    package: Option<Package>,
}

/// What an installed source has besides.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Package {
    id: String,
    vendor: PathBuf,
}

impl Source {
    /// The one that `AVIARY_SOURCE` names, else the source tree that this program is in, else what is installed with it. A program
    /// names no folder in which it was compiled.
    ///
    /// # Errors
    /// There is none, or it is incomplete.
    pub fn find() -> Result<Source, BuildError> {
        let named = std::env::var_os("AVIARY_SOURCE").map(PathBuf::from);
        let program = std::env::current_exe().unwrap_or_default();
        Source::at(&named.or_else(|| beside(&program)).ok_or(BuildError::NoTree)?)
    }

    pub(super) fn at(tree: &Path) -> Result<Source, BuildError> {
        let crates = tree.join("crates");
        let crates = crates.canonicalize().map_err(|_| BuildError::NoRuntime(crates))?;
        let tree = crates.parent().unwrap_or(&crates);
        let package = match fs::read_to_string(tree.join(ID)) {
            Ok(id) => Some(Package { id: id.trim().to_owned(), vendor: tree.with_file_name(VENDOR) }),
            Err(_) => None,
        };
        match &package {
            Some(Package { vendor, .. }) if !vendor.is_dir() => Err(BuildError::NoVendor(vendor.clone())),
            _ => Ok(Source { crates, package }),
        }
    }

    /// The folder that holds the runtime crates.
    pub fn crates(&self) -> &Path {
        &self.crates
    }

    /// The folder above.
    pub fn tree(&self) -> &Path {
        self.crates.parent().unwrap_or(&self.crates)
    }

    /// `Cargo.lock` with the versions that the runtime was tested with. Cargo writes to a workspace's own one as well.
    pub fn tested_versions(&self) -> Option<String> {
        fs::read_to_string(self.tree().join("Cargo.lock")).ok()
    }

    /// The dependencies, if they are here and cargo is to fetch none.
    pub fn vendor(&self) -> Option<&Path> {
        self.package.as_ref().map(|package| package.vendor.as_path())
    }

    /// Where cargo compiles, so that the runtime crates are compiled once for all specifications: below the source tree, or beside
    /// the output if that tree cannot be written; for an installed source in the user's cache, in a folder for its content, because
    /// the files of another version may be older than what was compiled of this one.
    pub fn cache(&self, out_dir: &Path) -> Result<PathBuf, BuildError> {
        match &self.package {
            None => absolute(&self.tree().join("target/aviary/build")).or_else(|_| absolute(&out_dir.join("build"))),
            Some(package) => {
                let named = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
                let home = || Some(Path::new(&std::env::var_os("HOME")?).join(".cache"));
                let caches = named.or_else(home).ok_or(BuildError::NoCache)?;
                absolute(&caches.join("aviary").join(&package.id))
            }
        }
    }
}

/// The source tree that a program is in, usually below `target/`; else the source that is installed beside it.
fn beside(program: &Path) -> Option<PathBuf> {
    let has_runtime = |tree: &PathBuf| tree.join("crates/guest/Cargo.toml").is_file();
    let above = program.ancestors().map(Path::to_path_buf).find(has_runtime);
    above.or_else(|| Some(program.parent()?.parent()?.join(INSTALLED)).filter(has_runtime))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_a_tree_find_it_and_compile_below_it() {
        let tree = beside(&std::env::current_exe().expect("this program")).expect("the tree of this test");
        assert!(tree.join("crates/lapis/src/build.rs").is_file());
        assert_eq!(Source::at(&tree).expect("a source").vendor(), None);
        assert_eq!(beside(Path::new("/no-such-prefix/bin/aviary")), None);
    }

    #[test]
    fn installed_programs_find_the_installed_source_and_compile_apart_from_it() {
        let prefix = tempfile::tempdir().expect("a folder");
        let prefix = prefix.path().canonicalize().expect("its name");
        let tree = prefix.join(INSTALLED);
        fs::create_dir_all(tree.join("crates/guest")).expect("made");
        fs::write(tree.join("crates/guest/Cargo.toml"), "").expect("written");
        fs::write(tree.join(ID), "0123\n").expect("written");
        assert_eq!(beside(&prefix.join("bin/aviary")), Some(tree.clone()));
        let vendor = prefix.join("share/aviary/vendor");
        assert!(matches!(Source::at(&tree), Err(BuildError::NoVendor(missing)) if missing == vendor));
        fs::create_dir_all(&vendor).expect("made");
        let source = Source::at(&tree).expect("a source");
        assert_eq!(source.vendor(), Some(vendor.as_path()));
        let cache = source.cache(&prefix.join("out")).expect("a home");
        assert!(cache.ends_with("aviary/0123") && !cache.starts_with(&prefix), "{cache:?}");
    }
}
