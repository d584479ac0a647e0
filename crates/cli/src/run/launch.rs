//! The environment in which a program finds guest libraries instead of the vendors'.

use crate::{
    apis::{Api, Launch, filled},
    dropin::find_library,
};
use std::{
    collections::BTreeMap,
    env,
    ffi::{OsStr, OsString},
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

/// Lists that an API adds to; any other variable is replaced.
const LISTS: [&str; 3] = ["LD_LIBRARY_PATH", "LD_PRELOAD", "PATH"];

/// Built by crates/heap.
const HEAP_LIBRARY: &str = "libaviary_heap.so";

#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub enum LaunchError {
    /// the guest library {0} is missing: run `aviary spec build` for API `{1}` again
    NoLibrary(PathBuf, String),
    /// APIs `{0}` and `{1}` both replace {2}: choose one with --api
    Conflict(String, String, String),
    /// --share-heap needs {0}, which is neither in this program's folder nor in ../lib/aviary (in the source tree: ./x setup)
    NoHeap(&'static str),
    /// cannot put {0} into {1}: {2}
    Link(String, PathBuf, io::Error),
}

/// Variables to set for the program.
pub type Variables = BTreeMap<OsString, OsString>;

/// Lays the stand-ins out in `directory` (created when needed) and says which variables to set.
pub fn prepare(apis: &[Api], directory: &Path) -> Result<Variables, LaunchError> {
    let mut variables = Variables::new();
    let mut owners = BTreeMap::new();
    let (bin, mut programs) = (directory.join("bin"), false);
    for api in apis {
        if !api.library.is_file() {
            return Err(LaunchError::NoLibrary(api.library.clone(), api.name.clone()));
        }
        let folder = folder_of_files(api, directory)?;
        for step in &api.launch {
            match step {
                Launch::File { .. } => {}
                Launch::Environment { name, value } => {
                    set(&mut variables, name, filled(value, &folder, &api.library).as_ref());
                }
                // Without it the program finds the machine's own, if there is one.
                Launch::Program(name) => {
                    if let Some(program) = beside(name) {
                        programs = true;
                        link(&bin, name, &program)?;
                    }
                }
                Launch::DropIn { soname, only_if_missing: true } if find_library(soname).is_some() => {}
                Launch::DropIn { soname, .. } => {
                    if let Some(other) = owners.insert(soname.clone(), api.name.clone()) {
                        return Err(LaunchError::Conflict(other, api.name.clone(), soname.clone()));
                    }
                    link(directory, soname, &api.library)?;
                }
            }
        }
    }
    // Behind the links, which may lie in a `/tmp` that the program leaves: the folders where a library has its soname.
    let named = |api: &&Api| {
        api.library.file_name().and_then(OsStr::to_str).is_some_and(|name| owners.get(name) == Some(&api.name))
    };
    for api in apis.iter().filter(named) {
        set(&mut variables, "LD_LIBRARY_PATH", api.directory.as_os_str());
    }
    if programs {
        set(&mut variables, "PATH", bin.as_os_str());
    }
    if !owners.is_empty() {
        set(&mut variables, "LD_LIBRARY_PATH", directory.as_os_str());
    }
    Ok(variables)
}

/// The folder of an API's files. Those of its build name that build's folder; where it was moved or installed since, ones that name
/// where it is now are written below `directory`.
fn folder_of_files(api: &Api, directory: &Path) -> Result<PathBuf, LaunchError> {
    let files = || {
        api.launch.iter().filter_map(|step| match step {
            Launch::File { path, content } => Some((path, content)),
            _ => None,
        })
    };
    let text = |content: &str, folder: &Path| filled(content, folder, &api.library);
    let is_right = |(path, content): (&PathBuf, &String)| {
        fs::read(api.directory.join(path)).is_ok_and(|found| found == text(content, &api.directory).into_bytes())
    };
    if files().all(is_right) {
        return Ok(api.directory.clone());
    }
    let folder = directory.join("files").join(&api.name);
    for (path, content) in files() {
        let file = folder.join(path);
        let written = fs::create_dir_all(file.parent().unwrap_or(&folder))
            .and_then(|()| fs::write(&file, text(content, &folder)));
        written.map_err(|error| LaunchError::Link(path.display().to_string(), folder.clone(), error))?;
    }
    Ok(folder)
}

/// A file that is installed with this program: beside it, or in `../lib/aviary`.
pub fn beside(name: &str) -> Option<PathBuf> {
    let program = env::current_exe().unwrap_or_default();
    let mut places = program.parent().into_iter().flat_map(|folder| [folder.to_owned(), folder.join("../lib/aviary")]);
    places.find_map(|folder| Some(folder.join(name)).filter(|file| file.is_file()))
}

/// Has the program's large allocations made by the library that guest libraries share with their API servers.
pub fn share_heap(variables: &mut Variables) -> Result<(), LaunchError> {
    let library = beside(HEAP_LIBRARY).ok_or(LaunchError::NoHeap(HEAP_LIBRARY))?;
    set(variables, "LD_PRELOAD", library.as_os_str());
    Ok(())
}

pub fn set(variables: &mut Variables, name: &str, value: &OsStr) {
    let mut value = value.to_owned();
    if LISTS.contains(&name) {
        let earlier =
            variables.get(OsStr::new(name)).cloned().or_else(|| env::var_os(name)).filter(|list| !list.is_empty());
        if let Some(earlier) = earlier {
            value.push(":");
            value.push(earlier);
        }
    }
    variables.insert(name.into(), value);
}

/// Behind what the list has already.
pub fn add_last(variables: &mut Variables, name: &str, value: &OsStr) {
    let earlier =
        variables.get(OsStr::new(name)).cloned().or_else(|| env::var_os(name)).filter(|list| !list.is_empty());
    let list = earlier.map_or_else(OsString::new, |mut list| {
        list.push(":");
        list
    });
    variables.insert(name.into(), [list.as_os_str(), value].into_iter().collect());
}

fn link(directory: &Path, soname: &str, library: &Path) -> Result<(), LaunchError> {
    let failed = |error| LaunchError::Link(soname.into(), directory.into(), error);
    std::fs::create_dir_all(directory).map_err(failed)?;
    symlink(library, directory.join(soname)).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use aviary_node::PrivateDir;

    fn api(root: &Path, name: &str, launch: Vec<Launch>) -> Api {
        let library = root.join(format!("lib{name}.so"));
        std::fs::write(&library, "").unwrap();
        let (version, soname) = ("1".into(), "s".into());
        let (functions, resources) = (Vec::new(), Vec::new());
        Api {
            name: name.into(),
            version,
            soname,
            directory: root.into(),
            library,
            launch,
            functions,
            resources,
            device_resources: Vec::new(),
            policy: None,
            sandbox: None,
        }
    }

    fn dropin(soname: &str, only_if_missing: bool) -> Launch {
        Launch::DropIn { soname: soname.into(), only_if_missing }
    }

    #[test]
    fn links_what_is_missing_only() {
        let root = PrivateDir::create().unwrap();
        let api = api(root.path(), "a", vec![dropin("libc.so.6", true), dropin("libno-such.so.1", true)]);
        let links = root.path().join("lib");
        let variables = prepare(&[api], &links).unwrap();
        assert!(!links.join("libc.so.6").exists());
        assert!(links.join("libno-such.so.1").exists());
        let path = variables[OsStr::new("LD_LIBRARY_PATH")].clone().into_string().unwrap();
        assert!(path.starts_with(links.to_str().unwrap()));
    }

    #[test]
    fn a_library_is_found_without_its_link() {
        let root = PrivateDir::create().unwrap();
        let mut api = api(root.path(), "a", vec![dropin("libno-such.so.1", false)]);
        api.library = root.path().join("libno-such.so.1");
        std::fs::write(&api.library, "").unwrap();
        let links = root.path().join("lib");
        let variables = prepare(&[api], &links).unwrap();
        let path = variables[OsStr::new("LD_LIBRARY_PATH")].clone().into_string().unwrap();
        let [links, folder] = [links.as_path(), root.path()].map(Path::display);
        assert!(path.starts_with(&format!("{links}:{folder}")), "{path}");
    }

    #[test]
    fn files_of_a_build_that_was_moved_name_its_new_place() {
        let root = PrivateDir::create().unwrap();
        let file = Launch::File { path: "vendors/a.icd".into(), content: "{dir} {library}\n".into() };
        let variable = Launch::Environment { name: "AVIARY_TEST_FILES".into(), value: "{dir}/vendors".into() };
        let api = api(root.path(), "a", vec![file, variable]);
        let (links, vendors) = (root.path().join("lib"), root.path().join("vendors"));
        let icd = || {
            let variables = prepare(std::slice::from_ref(&api), &links).unwrap();
            let folder = PathBuf::from(&variables[OsStr::new("AVIARY_TEST_FILES")]);
            (fs::read_to_string(folder.join("a.icd")).unwrap(), folder)
        };
        let own = links.join("files/a");
        let moved = (format!("{} {}\n", own.display(), api.library.display()), own.join("vendors"));
        assert_eq!(icd(), moved, "a package without the file");
        fs::create_dir(&vendors).unwrap();
        fs::write(vendors.join("a.icd"), "/where/it/was/built /where/it/was/built/liba.so\n").unwrap();
        assert_eq!(icd(), moved, "a folder that was moved");
        let right = format!("{} {}\n", root.path().display(), api.library.display());
        fs::write(vendors.join("a.icd"), &right).unwrap();
        assert_eq!(icd(), (right, vendors.clone()), "a build where it was made");
    }

    #[test]
    fn programs_come_first_in_the_path() {
        let root = PrivateDir::create().unwrap();
        // This test's own program stands for one that is installed beside `aviary`.
        let own = env::current_exe().unwrap();
        let own = own.file_name().unwrap().to_str().unwrap();
        let api = api(root.path(), "a", vec![Launch::Program(own.into()), Launch::Program("no-such-program".into())]);
        let links = root.path().join("lib");
        let variables = prepare(&[api], &links).unwrap();
        assert!(links.join("bin").join(own).is_file() && !links.join("bin/no-such-program").exists());
        let path = variables[OsStr::new("PATH")].clone().into_string().unwrap();
        assert!(path.starts_with(links.join("bin").to_str().unwrap()) && path.contains(':'), "{path}");
    }

    #[test]
    fn two_stand_ins_conflict() {
        let root = PrivateDir::create().unwrap();
        let apis = [
            api(root.path(), "a", vec![dropin("libx.so", false)]),
            api(root.path(), "b", vec![dropin("libx.so", false)]),
        ];
        assert!(matches!(prepare(&apis, &root.path().join("lib")), Err(LaunchError::Conflict(..))));
    }

    #[test]
    fn lists_grow_and_values_are_replaced() {
        let mut variables = Variables::new();
        for value in ["x", "y"] {
            set(&mut variables, "AVIARY_TEST_VALUE", value.as_ref());
            set(&mut variables, "LD_PRELOAD", value.as_ref());
        }
        assert_eq!(variables[OsStr::new("AVIARY_TEST_VALUE")], "y");
        assert!(variables[OsStr::new("LD_PRELOAD")].to_str().unwrap().starts_with("y:x"));
    }
}
