//! A header and its specification in a folder, for tests that need no others.

use aviary_lapis::{Diagnostics, Loaded, Options, load};
use std::path::PathBuf;

/// A folder of its own, which ends with it.
pub struct Folder(pub PathBuf);

impl Folder {
    /// `name` tells it from those of other tests.
    pub fn new(name: &str, header: &[u8], specification: &str) -> Folder {
        let folder = std::env::temp_dir().join(format!("aviary-lapis-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        std::fs::write(folder.join("h.h"), header).expect("written");
        std::fs::write(folder.join("main.lapis"), format!("#include \"h.h\"\n{specification}")).expect("written");
        Folder(folder)
    }

    pub fn load(&self) -> Result<Loaded, Diagnostics> {
        load(&self.0.join("main.lapis"), &Options::default())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
