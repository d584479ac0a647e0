//! The environment in which a program finds guest libraries instead of the vendors'.

use crate::{
    apis::{Api, Launch},
    dropin::find_library,
};
use std::{
    collections::BTreeMap,
    env,
    ffi::{OsStr, OsString},
    io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

/// Lists that an API adds to; any other variable is replaced.
const LISTS: [&str; 2] = ["LD_LIBRARY_PATH", "LD_PRELOAD"];

/// Built by crates/heap.
const HEAP_LIBRARY: &str = "libaviary_heap.so";

#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub enum LaunchError {
    /// the guest library {0} is missing: run `aviary spec build` for API `{1}` again
    NoLibrary(PathBuf, String),
    /// APIs `{0}` and `{1}` both stand in for {2}: choose one with --api
    Conflict(String, String, String),
    /// {0} is not beside this program or in ../lib/aviary, where --share-heap looks for it (in the source tree: ./x setup)
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
    for api in apis {
        if !api.library.is_file() {
            return Err(LaunchError::NoLibrary(api.library.clone(), api.name.clone()));
        }
        for step in &api.launch {
            match step {
                Launch::Environment { name, value } => set(&mut variables, name, value.as_ref()),
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
    if !owners.is_empty() {
        set(&mut variables, "LD_LIBRARY_PATH", directory.as_os_str());
    }
    Ok(variables)
}

/// Has the program's large allocations made by the library that guest libraries share with their API servers.
pub fn share_heap(variables: &mut Variables) -> Result<(), LaunchError> {
    let program = env::current_exe().unwrap_or_default();
    let place = program.parent().into_iter().flat_map(|folder| [folder.to_owned(), folder.join("../lib/aviary")]);
    let library = place.map(|folder| folder.join(HEAP_LIBRARY)).find(|library| library.is_file());
    let library = library.ok_or(LaunchError::NoHeap(HEAP_LIBRARY))?;
    set(variables, "LD_PRELOAD", library.as_os_str());
    Ok(())
}

fn set(variables: &mut Variables, name: &str, value: &OsStr) {
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
