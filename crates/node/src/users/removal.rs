//! Removal of folders that others have filled: of any depth, and not on the node's thread.
//!
//! A tenant can nest folders deeper than a process may have descriptors or a path characters. So no folder is entered below the
//! second level: what lies deeper is moved up first, one level at a time.

use std::{
    ffi::OsStr,
    fs, io,
    path::{Path, PathBuf},
};

/// Removes a folder and all that is in it; `last`: the file in it that goes last, by which others tell that it is not complete.
///
/// # Errors
/// The first thing that cannot be removed; the rest was tried.
pub fn remove_folder(folder: &Path, last: Option<&str>) -> io::Result<()> {
    let is_last = |path: &Path| last.is_some_and(|last| path.file_name() == Some(OsStr::new(last)));
    let mut moved = 0u64;
    let mut failed = None;
    loop {
        let mut again = false;
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if is_last(&path) {
                continue;
            }
            match empty_into(&path, folder, &mut moved) {
                Ok(went_up) => again |= went_up,
                Err(error) => _ = failed.get_or_insert(error),
            }
        }
        if !again || failed.is_some() {
            break;
        }
    }
    if let Some(error) = failed {
        return Err(error);
    }
    if let Some(last) = last {
        fs::remove_file(folder.join(last)).or_else(unless_gone)?;
    }
    fs::remove_dir(folder)
}

/// Removes what is at `path`. The folders in a folder come to `top` first. True if there were any.
fn empty_into(path: &Path, top: &Path, moved: &mut u64) -> io::Result<bool> {
    if !fs::symlink_metadata(path)?.is_dir() {
        return fs::remove_file(path).map(|()| false);
    }
    let _ = open_up(path);
    let mut went_up = false;
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            // To move a folder is to change its entry `..`, which takes the right to write to it.
            let _ = open_up(&entry.path());
            fs::rename(entry.path(), free_name(top, moved))?;
            went_up = true;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    fs::remove_dir(path).map(|()| went_up)
}

/// Of one user with the tenant the node may not write to folders that the tenant has closed.
fn open_up(folder: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(folder, fs::Permissions::from_mode(0o700))
}

fn free_name(top: &Path, moved: &mut u64) -> PathBuf {
    loop {
        *moved += 1;
        let path = top.join(format!("removed-{moved}"));
        if fs::symlink_metadata(&path).is_err() {
            return path;
        }
    }
}

fn unless_gone(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

/// Takes a folder out of its place at once, under a name beside it, and removes it on a thread of its own.
///
/// # Errors
/// It cannot be moved.
pub fn remove_aside(folder: &Path) -> io::Result<()> {
    let mut number = 0;
    let parent = folder.parent().unwrap_or(Path::new("/"));
    let gone = free_name(parent, &mut number);
    fs::rename(folder, &gone)?;
    // What is left of it when the node ends goes with the folder that it is in.
    std::thread::Builder::new().name("removal".into()).spawn(move || drop(remove_folder(&gone, None)))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::attach::private::PrivateDir;
    use crate::users::removal::*;
    use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
    use std::os::unix::fs::{PermissionsExt, symlink};

    /// Folders in each other, with a file and a link in each.
    fn nest(root: &Path, levels: usize) {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut at = openat(CWD, root, flags, Mode::empty()).unwrap();
        for _ in 0..levels {
            mkdirat(&at, "d", Mode::from_raw_mode(0o700)).unwrap();
            at = openat(&at, "d", flags, Mode::empty()).unwrap();
        }
    }

    #[test]
    fn folders_of_any_depth_go_and_what_links_name_stays() {
        let root = PrivateDir::create().unwrap();
        let (folder, precious) = (root.path().join("home"), root.path().join("precious"));
        fs::create_dir_all(&precious).unwrap();
        fs::write(precious.join("file"), "x").unwrap();
        fs::create_dir_all(folder.join("wide/a/b")).unwrap();
        symlink(&precious, folder.join("link")).unwrap();
        symlink(&precious, folder.join("wide/a/link")).unwrap();
        fs::write(folder.join("removed-1"), "a name of ours").unwrap();
        fs::create_dir_all(folder.join("closed/in")).unwrap();
        fs::set_permissions(folder.join("closed"), fs::Permissions::from_mode(0o0)).unwrap();
        // Deeper than a path can say and than a process has descriptors.
        nest(&folder, 5000);
        remove_folder(&folder, None).unwrap();
        assert!(!folder.exists() && precious.join("file").exists());
    }

    #[test]
    fn the_last_file_goes_last() {
        let root = PrivateDir::create().unwrap();
        let folder = root.path().join("folder");
        fs::create_dir_all(folder.join("a/b")).unwrap();
        fs::write(folder.join("lock"), "").unwrap();
        fs::write(folder.join("a/lock"), "another").unwrap();
        remove_folder(&folder, Some("lock")).unwrap();
        assert!(!folder.exists());
    }

    #[test]
    fn a_folder_is_out_of_its_place_at_once() {
        let root = PrivateDir::create().unwrap();
        let folder = root.path().join("home");
        fs::create_dir_all(folder.join("a")).unwrap();
        remove_aside(&folder).unwrap();
        assert!(!folder.exists());
        fs::create_dir(&folder).unwrap();
    }
}
