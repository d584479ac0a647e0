//! The build folder: what a build writes stays below it, whatever links lie there.

use super::error::BuildError;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

/// The path of a folder without links, made if need be.
pub fn absolute(path: &Path) -> Result<PathBuf, BuildError> {
    fs::create_dir_all(path).map_err(|e| BuildError::Output(path.to_path_buf(), e))?;
    path.canonicalize().map_err(|e| BuildError::Output(path.to_path_buf(), e))
}

/// A folder that files are written to, its path without links.
#[derive(Debug, Clone)]
pub struct Folder {
    root: PathBuf,
}

impl Folder {
    /// The folder at a path that its user chose, made if need be.
    pub fn at(path: &Path) -> Result<Folder, BuildError> {
        Ok(Folder { root: absolute(path)? })
    }

    /// The folder `name` of this one, made if need be.
    pub fn below(&self, name: &str) -> Result<Folder, BuildError> {
        Ok(Folder { root: self.folder(Path::new(name))? })
    }

    pub fn path(&self) -> &Path {
        &self.root
    }

    /// Writes a file unless it already has this content, so that cargo sees only real changes.
    pub fn write(&self, path: &Path, content: &[u8]) -> Result<(), BuildError> {
        let to = self.place(path)?;
        if fs::read(&to).is_ok_and(|old| old == content) {
            return Ok(());
        }
        replace(&to, |new| fs::write(new, content)).map_err(|e| BuildError::Output(to, e))
    }

    /// Takes a copy of a file. Running programs keep the one that they have mapped.
    pub fn copy(&self, from: &Path, path: &Path) -> Result<PathBuf, BuildError> {
        let to = self.place(path)?;
        replace(&to, |new| fs::copy(from, new).map(drop)).map_err(|e| BuildError::Output(to.clone(), e))?;
        Ok(to)
    }

    /// Removes a file if it is there.
    pub fn remove(&self, path: &Path) -> Result<(), BuildError> {
        let to = self.place(path)?;
        match fs::remove_file(&to) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(BuildError::Output(to, e)),
            _ => Ok(()),
        }
    }

    /// Where the file of that path below the folder is written: its folders exist then, and no link leads out.
    pub fn place(&self, path: &Path) -> Result<PathBuf, BuildError> {
        let (Some(name), parent) = (path.file_name(), path.parent().unwrap_or(Path::new(""))) else {
            return Err(BuildError::Outside(path.to_path_buf()));
        };
        let to = self.folder(parent)?.join(name);
        // A link inside is replaced like a file; one that leads out was not made by a build.
        match fs::symlink_metadata(&to) {
            Ok(found) if found.is_symlink() => self.inside(&to).map(|_| to),
            _ => Ok(to),
        }
    }

    /// A folder below this one, made if need be, its path without links.
    fn folder(&self, path: &Path) -> Result<PathBuf, BuildError> {
        let mut at = self.root.clone();
        for part in path.components() {
            let Component::Normal(name) = part else { return Err(BuildError::Outside(path.to_path_buf())) };
            at.push(name);
            if fs::symlink_metadata(&at).is_err() {
                fs::create_dir(&at).map_err(|e| BuildError::Output(at.clone(), e))?;
            }
            at = self.inside(&at)?;
        }
        Ok(at)
    }

    fn inside(&self, path: &Path) -> Result<PathBuf, BuildError> {
        match path.canonicalize() {
            Ok(real) if real.starts_with(&self.root) => Ok(real),
            _ => Err(BuildError::Outside(path.to_path_buf())),
        }
    }
}

/// Replaces `to` in one step by what `make` makes beside it.
fn replace(to: &Path, make: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let mut name = to.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".new-{}", std::process::id()));
    let new = to.with_file_name(name);
    let made = fs::remove_file(&new).or_else(|e| match e.kind() {
        io::ErrorKind::NotFound => Ok(()),
        _ => Err(e),
    });
    made.and_then(|()| make(&new)).and_then(|()| fs::rename(&new, to)).inspect_err(|_| {
        let _ = fs::remove_file(&new);
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    struct Scratch(PathBuf);
    impl Scratch {
        fn new(name: &str) -> Scratch {
            let path = std::env::temp_dir().join(format!("aviary-lapis-folder-{name}-{}", std::process::id()));
            fs::create_dir_all(path.join("elsewhere")).expect("a folder");
            Scratch(path)
        }
    }
    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn listed(folder: &Path) -> usize {
        fs::read_dir(folder).expect("a folder").count()
    }

    #[test]
    fn files_are_made_and_replaced_below_the_folder() {
        let scratch = Scratch::new("plain");
        let folder = Folder::at(&scratch.0).and_then(|out| out.below("api")).expect("a folder");
        folder.write(Path::new("gen/guest/lib.rs"), b"one").expect("written");
        folder.write(Path::new("gen/guest/lib.rs"), b"two").expect("written again");
        let at = folder.copy(&folder.path().join("gen/guest/lib.rs"), Path::new("libn.so.1")).expect("copied");
        assert_eq!(fs::read(at).expect("a file"), b"two");
        folder.remove(Path::new("libn.so.1")).expect("removed");
        folder.remove(Path::new("libn.so.1")).expect("nothing to remove");
        assert_eq!(listed(folder.path()), 1);
        assert_eq!(listed(&folder.path().join("gen/guest")), 1);
    }

    #[test]
    fn no_path_and_no_link_leads_out() {
        let scratch = Scratch::new("links");
        let elsewhere = scratch.0.join("elsewhere");
        fs::write(elsewhere.join("vendor.so"), "the vendor's").expect("written");
        let folder = Folder::at(&scratch.0).and_then(|out| out.below("api")).expect("a folder");
        symlink(elsewhere.join("vendor.so"), folder.path().join("libn.so.1")).expect("a link to a file");
        symlink(&elsewhere, folder.path().join("gen")).expect("a link to a folder");
        symlink(elsewhere.join("gone"), folder.path().join("dangling")).expect("a dangling link");
        symlink(&elsewhere, scratch.0.join("other")).expect("a link beside");
        for path in ["libn.so.1", "gen/lib.rs", "gen/new/lib.rs", "dangling", "../x", "a/../../x", "/tmp/x", "..", ""] {
            let result = folder.write(Path::new(path), b"ours");
            assert!(matches!(result, Err(BuildError::Outside(_))), "{path}: {result:?}");
        }
        let below = |path: &Path, name| Folder::at(path).and_then(|parent| parent.below(name));
        assert!(below(&folder.path().join("gen"), "../up").is_err());
        assert!(below(&folder.path().join(".."), "other/x").is_ok(), "links between folders are inside");
        assert_eq!(fs::read(elsewhere.join("vendor.so")).expect("a file"), b"the vendor's");
        assert!(
            !elsewhere.join("lib.rs").exists() && !elsewhere.join("gone").exists() && !elsewhere.join("new").exists()
        );
    }
}
