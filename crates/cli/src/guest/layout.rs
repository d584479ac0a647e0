//! Where guest libraries lie in a guest, in an image as in an installed system.

use crate::apis::{Api, Launch, filled};
use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

/// Everything of ours is in here.
pub const HOME: &str = "/usr/lib/aviary";
/// Libraries that stand in for the vendors', under their names.
pub const LIBRARIES: &str = "/usr/lib/aviary/lib";
/// Where a program is found before one of the system with the same name.
pub const PROGRAMS: &str = "/usr/local/bin";

/// Loaders read these folders of theirs without being told; `aviary run` names others in these variables.
const STANDARD_FOLDERS: [(&str, &str); 1] = [("OCL_ICD_VENDORS", "/etc/OpenCL/vendors")];

#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub enum LayoutError {
    /// cannot read {0}: {1}; run `aviary spec build` for API `{2}` again
    Unreadable(PathBuf, io::Error, String),
    /// APIs `{0}` and `{1}` both replace {2}: choose one with --api
    Conflict(String, String, String),
}

#[derive(Debug, PartialEq, Eq)]
pub enum Item {
    File { data: Vec<u8>, mode: u32 },
    Link(String),
}

/// Items by their absolute paths in the guest, and variables that programs need.
#[derive(Debug, Default)]
pub struct Layout {
    pub items: BTreeMap<String, Item>,
    pub variables: BTreeMap<String, String>,
}

impl Layout {
    /// The layout of APIs. `has` returns true if the guest has a library of its own under this
    /// name.
    pub fn of(apis: &[Api], has: &dyn Fn(&str) -> bool) -> Result<Self, LayoutError> {
        let mut layout = Self::default();
        let mut owners = BTreeMap::new();
        for api in apis {
            let place = Place { api, folder: format!("{HOME}/{}", api.name) };
            let library = place.library();
            let data = place.read(&api.library)?;
            layout.items.insert(library.clone(), Item::File { data, mode: 0o755 });
            for step in &api.launch {
                match step {
                    Launch::Environment { name, value } => layout.environment(&place, name, value),
                    Launch::File { path, content } => {
                        let data = place.filled(content).into_bytes();
                        layout.items.insert(place.file(path), Item::File { data, mode: 0o644 });
                    }
                    Launch::Program(name) => layout.program(&place, name)?,
                    Launch::DropIn { soname, only_if_missing: true } if has(soname) => {}
                    Launch::DropIn { soname, .. } => {
                        if let Some(other) = owners.insert(soname.clone(), api.name.clone()) {
                            return Err(LayoutError::Conflict(other, api.name.clone(), soname.clone()));
                        }
                        layout.items.insert(format!("{LIBRARIES}/{soname}"), Item::Link(library.clone()));
                    }
                }
            }
        }
        Ok(layout)
    }

    /// Loaders that read a standard folder of their own need no variable.
    fn environment(&mut self, place: &Place<'_>, name: &str, value: &str) {
        if standard_folder(name).is_none() {
            self.variables.insert(name.to_owned(), place.filled(value));
        }
    }

    /// One that this installation lacks is left out.
    fn program(&mut self, place: &Place<'_>, name: &str) -> Result<(), LayoutError> {
        if let Some(program) = crate::run::launch::beside(name) {
            let target = format!("{}/{name}", place.folder);
            self.items.insert(target.clone(), Item::File { data: place.read(&program)?, mode: 0o755 });
            self.items.insert(format!("{PROGRAMS}/{name}"), Item::Link(target));
        }
        Ok(())
    }
}

/// Of the loader that reads this variable.
fn standard_folder(variable: &str) -> Option<&'static str> {
    STANDARD_FOLDERS.iter().find(|(name, _)| *name == variable).map(|(_, folder)| *folder)
}

struct Place<'a> {
    api: &'a Api,
    /// In the guest.
    folder: String,
}

impl Place<'_> {
    fn library(&self) -> String {
        format!("{}/{}", self.folder, self.api.library.file_name().unwrap_or_default().to_string_lossy())
    }

    fn filled(&self, text: &str) -> String {
        filled(text, Path::new(&self.folder), Path::new(&self.library()))
    }

    /// Where a file of the specification is in the guest: in the standard folder, if it is in the folder that a variable names
    /// in that one's stead.
    fn file(&self, path: &Path) -> String {
        let standard = self.api.launch.iter().find_map(|step| {
            let Launch::Environment { name, value } = step else { return None };
            let name_there = path.strip_prefix(value.strip_prefix("{dir}/")?).ok()?;
            Some(format!("{}/{}", standard_folder(name)?, name_there.display()))
        });
        standard.unwrap_or_else(|| format!("{}/{}", self.folder, path.display()))
    }

    fn read(&self, path: &Path) -> Result<Vec<u8>, LayoutError> {
        fs::read(path).map_err(|error| LayoutError::Unreadable(path.into(), error, self.api.name.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aviary_node::PrivateDir;

    fn api(root: &Path, name: &str, launch: Vec<Launch>) -> Api {
        let directory = root.join(name);
        fs::create_dir_all(&directory).unwrap();
        let library = directory.join("liba.so.1");
        fs::write(&library, name).unwrap();
        Api {
            name: name.into(),
            version: "1".into(),
            soname: "liba.so.1".into(),
            directory,
            library,
            launch,
            functions: Vec::new(),
            resources: Vec::new(),
            device_resources: Vec::new(),
            policy: None,
            sandbox: None,
        }
    }

    fn dropin(only_if_missing: bool) -> Launch {
        Launch::DropIn { soname: "liba.so.1".into(), only_if_missing }
    }

    #[test]
    fn icd_files_go_where_loaders_look_and_name_the_guests_library() {
        let root = PrivateDir::create().unwrap();
        let mut opencl = api(root.path(), "opencl", vec![dropin(true)]);
        let content = "{library}\n".into();
        opencl.launch.push(Launch::Environment { name: "OCL_ICD_VENDORS".into(), value: "{dir}/vendors".into() });
        opencl.launch.push(Launch::File { path: "vendors/aviary.icd".into(), content });
        let layout = Layout::of(&[opencl], &|_| true).unwrap();
        let icd = Item::File { data: b"/usr/lib/aviary/opencl/liba.so.1\n".into(), mode: 0o644 };
        assert_eq!(layout.items.get("/etc/OpenCL/vendors/aviary.icd"), Some(&icd));
        assert!(layout.variables.is_empty());
        assert!(!layout.items.contains_key("/usr/lib/aviary/lib/liba.so.1"), "the guest has its own loader");
    }

    #[test]
    fn programs_are_found_before_the_systems() {
        let root = PrivateDir::create().unwrap();
        let own = std::env::current_exe().unwrap();
        let own = own.file_name().unwrap().to_str().unwrap();
        let a = api(root.path(), "a", vec![Launch::Program(own.into()), Launch::Program("no-such-program".into())]);
        let layout = Layout::of(&[a], &|_| false).unwrap();
        let target = format!("/usr/lib/aviary/a/{own}");
        assert_eq!(layout.items.get(&format!("/usr/local/bin/{own}")), Some(&Item::Link(target.clone())));
        assert!(matches!(layout.items.get(&target), Some(Item::File { mode: 0o755, .. })));
        assert_eq!(layout.items.len(), 3, "the library, the program and its link");
    }

    #[test]
    fn libraries_stand_in_under_their_names() {
        let root = PrivateDir::create().unwrap();
        let apis = [api(root.path(), "a", vec![dropin(true)])];
        let layout = Layout::of(&apis, &|_| false).unwrap();
        let link = Item::Link("/usr/lib/aviary/a/liba.so.1".into());
        assert_eq!(layout.items.get("/usr/lib/aviary/lib/liba.so.1"), Some(&link));
        let apis = [api(root.path(), "a", vec![dropin(false)]), api(root.path(), "b", vec![dropin(false)])];
        assert!(matches!(Layout::of(&apis, &|_| false), Err(LayoutError::Conflict(..))));
    }

    #[test]
    fn other_variables_are_kept_with_paths_of_the_guest() {
        let root = PrivateDir::create().unwrap();
        let mut a = api(root.path(), "a", Vec::new());
        for (name, value) in [("A_LIBRARY", "{library}"), ("A_FILE", "{dir}/a.conf")] {
            a.launch.push(Launch::Environment { name: name.into(), value: value.into() });
        }
        a.launch.push(Launch::File { path: "a.conf".into(), content: "{dir}".into() });
        let layout = Layout::of(&[a], &|_| false).unwrap();
        assert_eq!(layout.variables["A_LIBRARY"], "/usr/lib/aviary/a/liba.so.1");
        assert_eq!(layout.variables["A_FILE"], "/usr/lib/aviary/a/a.conf");
        let file = Item::File { data: b"/usr/lib/aviary/a".into(), mode: 0o644 };
        assert_eq!(layout.items.get("/usr/lib/aviary/a/a.conf"), Some(&file));
    }
}
