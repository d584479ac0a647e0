//! Where guest libraries lie in a guest, in an image as in an installed system.

use crate::apis::{Api, Launch};
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
    /// APIs `{0}` and `{1}` both stand in for {2}: choose one with --api
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
            let library = place.translate(&api.library.to_string_lossy());
            let data = place.read(&api.library)?;
            layout.items.insert(library.clone(), Item::File { data, mode: 0o755 });
            for step in &api.launch {
                match step {
                    Launch::Environment { name, value } => layout.environment(&place, name, value)?,
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

    /// A variable that names a file or a folder of the API's build takes it along.
    fn environment(&mut self, place: &Place<'_>, name: &str, value: &str) -> Result<(), LayoutError> {
        let source = Path::new(value);
        let inside = source.starts_with(&place.api.directory);
        let standard = STANDARD_FOLDERS.iter().find(|(variable, _)| *variable == name);
        let target = standard.map_or_else(|| place.translate(value), |(_, folder)| (*folder).to_owned());
        if inside && source.is_dir() {
            let failed = |error| LayoutError::Unreadable(source.into(), error, place.api.name.clone());
            for entry in fs::read_dir(source).map_err(failed)? {
                let path = entry.map_err(failed)?.path();
                let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                self.copy(place, &path, format!("{target}/{file}"))?;
            }
        } else if inside && source.is_file() && source != place.api.library {
            self.copy(place, source, target.clone())?;
        }
        if standard.is_none() {
            self.variables.insert(name.to_owned(), target);
        }
        Ok(())
    }

    /// One that this installation lacks is left out.
    fn program(&mut self, place: &Place<'_>, name: &str) -> Result<(), LayoutError> {
        if let Some(program) = crate::launch::beside(name) {
            let target = format!("{}/{name}", place.folder);
            self.items.insert(target.clone(), Item::File { data: place.read(&program)?, mode: 0o755 });
            self.items.insert(format!("{PROGRAMS}/{name}"), Item::Link(target));
        }
        Ok(())
    }

    /// Texts name files of the build by their paths on this machine.
    fn copy(&mut self, place: &Place<'_>, source: &Path, target: String) -> Result<(), LayoutError> {
        let data = place.read(source)?;
        let data = match String::from_utf8(data) {
            Ok(text) => place.translate(&text).into_bytes(),
            Err(binary) => binary.into_bytes(),
        };
        self.items.insert(target, Item::File { data, mode: 0o644 });
        Ok(())
    }
}

struct Place<'a> {
    api: &'a Api,
    /// In the guest.
    folder: String,
}

impl Place<'_> {
    fn translate(&self, text: &str) -> String {
        text.replace(&*self.api.directory.to_string_lossy(), &self.folder)
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
        let vendors = opencl.directory.join("vendors");
        fs::create_dir(&vendors).unwrap();
        fs::write(vendors.join("aviary.icd"), format!("{}\n", opencl.library.display())).unwrap();
        let value = vendors.to_string_lossy().into_owned();
        opencl.launch.push(Launch::Environment { name: "OCL_ICD_VENDORS".into(), value });
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
        let value = a.library.to_string_lossy().into_owned();
        a.launch.push(Launch::Environment { name: "A_LIBRARY".into(), value });
        let layout = Layout::of(&[a], &|_| false).unwrap();
        assert_eq!(layout.variables["A_LIBRARY"], "/usr/lib/aviary/a/liba.so.1");
    }
}
