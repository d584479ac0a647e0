//! Modules that builds keep: a program that runs has the guest library of its time, whose specification is the module's.

use super::error::BuildError;
use super::folder::Folder;
use super::names::KEPT;
use std::fs;
use std::path::Path;

/// Most modules that are kept: the newest.
const MOST: usize = 4;

/// Keeps a module that was just compiled, and drops the oldest beyond [`MOST`].
pub fn keep(compiled: &Path, spec_hash: u64, folder: &Folder) -> Result<(), BuildError> {
    folder.copy(compiled, &Path::new(KEPT).join(format!("{spec_hash:016x}.so")))?;
    let entries = fs::read_dir(folder.path().join(KEPT)).into_iter().flatten().flatten();
    let aged = |entry: fs::DirEntry| {
        let name = entry.file_name();
        let is_module = name.to_str().and_then(|name| name.strip_suffix(".so")).is_some_and(|hash| hash.len() == 16);
        is_module.then_some((entry.metadata().and_then(|found| found.modified()).ok()?, name))
    };
    let mut all: Vec<_> = entries.filter_map(aged).collect();
    all.sort();
    let surplus = all.len().saturating_sub(MOST);
    all.iter().take(surplus).try_for_each(|(_, name)| folder.remove(&Path::new(KEPT).join(name)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, SystemTime};

    #[test]
    fn newest_modules_are_kept_and_nothing_else_is_touched() {
        let root = std::env::temp_dir().join(format!("aviary-lapis-modules-{}", std::process::id()));
        fs::create_dir_all(root.join("api/modules")).expect("a folder");
        let folder = Folder::at(&root).and_then(|out| out.below("api")).expect("a folder");
        fs::write(root.join("module"), "code").expect("written");
        fs::write(root.join("api/modules/README"), "an operator's").expect("written");
        let kept = |hash: u64| root.join(format!("api/modules/{hash:016x}.so"));
        for hash in 1..=6 {
            keep(&root.join("module"), hash, &folder).expect("kept");
            // As if each build came an hour after the one before.
            let file = fs::File::options().write(true).open(kept(hash)).expect("a module");
            let built = SystemTime::UNIX_EPOCH + Duration::from_secs(3600 * hash);
            file.set_modified(built).expect("its time");
        }
        // The newest by its time is the one that is built now.
        keep(&root.join("module"), 7, &folder).expect("kept");
        assert_eq!((1..=7).filter(|hash| kept(*hash).exists()).collect::<Vec<_>>(), [4, 5, 6, 7]);
        assert!(root.join("api/modules/README").exists());
        fs::remove_dir_all(root).expect("removed");
    }
}
