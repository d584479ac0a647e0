//! Finding API builds: folders with an `api.json`, as `aviary spec build` writes them.

use aviary_control::FPGA_MEMORY;
use aviary_node::{HANDLES, HOST_LOG, HOST_MEMORY, HOST_SWAP};
use serde::Deserialize;
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs, io,
    path::{Component, Path, PathBuf},
};

#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub enum ApiError {
    /// no API build found in {0}: build one with `aviary spec build SPEC` (in the source tree: ./x setup), or name its folder with --api-dir or AVIARY_API_PATH
    NoneFound(String),
    /// no build of API `{0}` found; there is {1}
    NotFound(String, String),
    /// {0}: {1}
    Unreadable(PathBuf, io::Error),
    /// {0} is not an API description: {1}; run `aviary spec build` for this API again
    Malformed(PathBuf, String),
    /// {0} is not a directory
    NotADirectory(PathBuf),
}

#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub enum PolicyChoice {
    /// scheduler `ebpf` needs `policy = "FILE"`: no API that is built here has a policy in its specification
    None,
    /// scheduler `ebpf` needs `policy = "FILE"`: the specifications of `{0}` and `{1}` each have a policy
    Several(String, String),
}

/// One API build, paths made absolute.
#[derive(Debug, Clone)]
pub struct Api {
    pub name: String,
    pub version: String,
    pub soname: String,
    pub directory: PathBuf,
    /// The guest library.
    pub library: PathBuf,
    pub launch: Vec<Launch>,
    /// Names, for checking those in a configuration. Empty: it was built before they were written down.
    pub functions: Vec<String>,
    pub resources: Vec<String>,
    /// Those that are counted by device.
    pub device_resources: Vec<String>,
    /// The policy that schedules devices where nothing else is said: an eBPF object.
    pub policy: Option<PathBuf>,
    /// Needs of its API servers in a sandbox; `None`: the specification does not say.
    pub sandbox: Option<SandboxNeeds>,
}

/// All resources that these APIs and every API server have; `None`: one of them was built before they were written down.
pub fn declared_resources(apis: &[Api]) -> Option<BTreeSet<String>> {
    if apis.iter().any(|api| api.functions.is_empty()) {
        return None;
    }
    let of_all = [HANDLES, HOST_LOG, HOST_MEMORY, HOST_SWAP, FPGA_MEMORY].map(str::to_owned);
    Some(apis.iter().flat_map(|api| api.resources.iter().cloned()).chain(of_all).collect())
}

/// The `sandbox` block of a specification.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct SandboxNeeds {
    #[serde(default)]
    pub read: Vec<PathBuf>,
    #[serde(default)]
    pub devices: Vec<PathBuf>,
    #[serde(default)]
    pub system_calls: Vec<String>,
    #[serde(default)]
    pub ioctls: Vec<String>,
}

/// The settings with which a program finds the guest library. Texts have placeholders: [`filled`] replaces them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Launch {
    Environment {
        name: String,
        value: String,
    },
    /// A file below `{dir}`.
    File {
        path: PathBuf,
        content: String,
    },
    DropIn {
        soname: String,
        only_if_missing: bool,
    },
    /// A program of Aviary's own, first in the program's PATH.
    Program(String),
}

#[derive(Deserialize)]
struct Description {
    name: String,
    version: String,
    soname: String,
    library: PathBuf,
    #[serde(default)]
    launch: Vec<Value>,
    #[serde(default)]
    functions: Vec<String>,
    #[serde(default)]
    resources: Vec<String>,
    #[serde(default)]
    device_resources: Vec<String>,
    policy: Option<PathBuf>,
    sandbox: Option<SandboxNeeds>,
}

#[derive(Deserialize)]
struct Environment {
    name: String,
    value: String,
}

#[derive(Deserialize)]
struct File {
    path: PathBuf,
    content: String,
}

#[derive(Deserialize)]
struct DropIn {
    soname: String,
    #[serde(default)]
    only_if_missing: bool,
}

impl Api {
    fn read(directory: &Path) -> Result<Self, ApiError> {
        let path = directory.join("api.json");
        let text = fs::read(&path).map_err(|error| ApiError::Unreadable(path.clone(), error))?;
        let malformed = |error: String| ApiError::Malformed(path.clone(), error);
        let description: Description = serde_json::from_slice(&text).map_err(|error| malformed(error.to_string()))?;
        let directory = fs::canonicalize(directory).map_err(|error| ApiError::Unreadable(directory.into(), error))?;
        let library = directory.join(&description.library);
        let launch = description.launch.iter().filter_map(|step| launch(step).transpose());
        let launch = launch.collect::<Result<_, _>>().map_err(malformed)?;
        let policy = description.policy.map(|file| directory.join(file));
        let Description { name, version, soname, functions, resources, device_resources, sandbox, .. } = description;
        Ok(Self {
            name,
            version,
            soname,
            directory,
            library,
            launch,
            functions,
            resources,
            device_resources,
            policy,
            sandbox,
        })
    }
}

/// `None`: a step that this version does not know.
fn launch(step: &Value) -> Result<Option<Launch>, String> {
    let wrong = |error: serde_json::Error| error.to_string();
    if let Some(environment) = step.get("environment") {
        let Environment { name, value } = Environment::deserialize(environment).map_err(wrong)?;
        return Ok(Some(Launch::Environment { name, value }));
    }
    if let Some(file) = step.get("file") {
        let File { path, content } = File::deserialize(file).map_err(wrong)?;
        if path.components().next().is_none() || !path.components().all(|part| matches!(part, Component::Normal(_))) {
            return Err(format!("`{}` is not a file below the build folder", path.display()));
        }
        return Ok(Some(Launch::File { path, content }));
    }
    if let Some(dropin) = step.get("dropin") {
        let DropIn { soname, only_if_missing } = DropIn::deserialize(dropin).map_err(wrong)?;
        if soname.is_empty() || soname.contains('/') {
            return Err(format!("`{soname}` is not a library's name: it is empty or has a `/` in it"));
        }
        return Ok(Some(Launch::DropIn { soname, only_if_missing }));
    }
    if let Some(program) = step.get("program") {
        let name = program.as_str().unwrap_or_default();
        if name.is_empty() || name.contains('/') {
            return Err(format!("`{program}` is not a program's name: it is empty or has a `/` in it"));
        }
        return Ok(Some(Launch::Program(name.to_owned())));
    }
    Ok(None)
}

/// The text of a [`Launch`], whose files are in `folder` and whose guest library is `library`.
pub fn filled(text: &str, folder: &Path, library: &Path) -> String {
    text.replace("{dir}", &folder.to_string_lossy()).replace("{library}", &library.to_string_lossy())
}

/// The policy of the APIs' specifications, if just one of them has one.
pub fn policy(apis: &[Api]) -> Result<&Path, PolicyChoice> {
    let mut with = apis.iter().filter_map(|api| Some((&api.name, api.policy.as_ref()?)));
    match (with.next(), with.next()) {
        (Some((_, file)), None) => Ok(file),
        (None, _) => Err(PolicyChoice::None),
        (Some((one, _)), Some((other, _))) => Err(PolicyChoice::Several(one.clone(), other.clone())),
    }
}

/// Folders whose subfolders are API builds, in order of preference.
pub fn search_path(given: &[PathBuf]) -> Result<Vec<PathBuf>, ApiError> {
    if let Some(wrong) = given.iter().find(|directory| !directory.is_dir()) {
        return Err(ApiError::NotADirectory(wrong.clone()));
    }
    let named =
        env::var_os("AVIARY_API_PATH").map(|path| env::split_paths(&path).collect::<Vec<_>>()).unwrap_or_default();
    let near = env::current_exe().ok().map(|program| beside(&program)).unwrap_or_default();
    let mut found = Vec::new();
    for directory in given.iter().chain(&named).chain(&near) {
        // API servers run in another working directory and must get full names.
        if let Ok(directory) = fs::canonicalize(directory)
            && !found.contains(&directory)
        {
            found.push(directory);
        }
    }
    Ok(found)
}

/// In the source tree the program is in `target/PROFILE`, or deeper when cargo was told so;
/// installed it is in `PREFIX/bin`. The current directory is never searched:
/// API builds are code, and that directory may be anybody's.
fn beside(program: &Path) -> Vec<PathBuf> {
    let mut places = Vec::new();
    if let Some(prefix) = program.parent().and_then(Path::parent) {
        places.extend([prefix.join("aviary"), prefix.join("lib/aviary")]);
    }
    let trees = program.ancestors().filter(|ancestor| ancestor.join("apis").is_dir());
    places.extend(trees.map(|tree| tree.join("target/aviary")));
    places
}

/// All API builds by name; the first of a name wins.
pub fn all(search: &[PathBuf]) -> Result<BTreeMap<String, Api>, ApiError> {
    let mut apis = BTreeMap::new();
    for directory in search {
        let entries = fs::read_dir(directory).map_err(|error| ApiError::Unreadable(directory.clone(), error))?;
        for entry in entries.flatten().filter(|entry| entry.path().join("api.json").is_file()) {
            let api = Api::read(&entry.path())?;
            apis.entry(api.name.clone()).or_insert(api);
        }
    }
    Ok(apis)
}

/// The builds of the named APIs, or all of them.
pub fn select(search: &[PathBuf], names: &[String]) -> Result<Vec<Api>, ApiError> {
    let mut apis = all(search)?;
    if apis.is_empty() {
        let searched = search.iter().map(|directory| directory.display().to_string()).collect::<Vec<_>>().join(", ");
        return Err(ApiError::NoneFound(if searched.is_empty() { "any known place".into() } else { searched }));
    }
    if names.is_empty() {
        return Ok(apis.into_values().collect());
    }
    let known = apis.keys().cloned().collect::<Vec<_>>().join(", ");
    let take = |name: &String| apis.remove(name).ok_or_else(|| ApiError::NotFound(name.clone(), known.clone()));
    let mut unique = names.to_vec();
    unique.sort();
    unique.dedup();
    unique.iter().map(take).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use aviary_node::PrivateDir;

    fn build(root: &Path, name: &str, description: &str) {
        let directory = root.join(name);
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("api.json"), description).unwrap();
    }

    #[test]
    fn reads_a_build() {
        let root = PrivateDir::create().unwrap();
        let text = r#"{"name":"a","version":"1","soname":"liba.so.1","library":"liba.so.1","launch":[
            {"environment":{"name":"A","value":"{dir}/x:{library}"}},
            {"file":{"path":"x/y","content":"{library}"}},
            {"step of another version":{}},
            {"dropin":{"soname":"liba.so","only_if_missing":true}}]}"#;
        build(root.path(), "a", text);
        let apis = select(&[root.path().to_owned()], &[]).unwrap();
        assert_eq!(
            apis[0].launch,
            [
                Launch::Environment { name: "A".into(), value: "{dir}/x:{library}".into() },
                Launch::File { path: "x/y".into(), content: "{library}".into() },
                Launch::DropIn { soname: "liba.so".into(), only_if_missing: true }
            ]
        );
        assert_eq!(filled("{dir}/x:{library}", Path::new("/d"), Path::new("/e/l")), "/d/x:/e/l");
    }

    #[test]
    fn dropins_and_files_stay_in_their_directory() {
        let root = PrivateDir::create().unwrap();
        for step in [
            r#"{"dropin":{"soname":"../x"}}"#,
            r#"{"file":{"path":"../x","content":""}}"#,
            r#"{"file":{"path":"/x","content":""}}"#,
            r#"{"file":{"path":"","content":""}}"#,
        ] {
            let text = format!(r#"{{"name":"a","version":"1","soname":"s","library":"l","launch":[{step}]}}"#);
            build(root.path(), "a", &text);
            assert!(matches!(select(&[root.path().to_owned()], &[]), Err(ApiError::Malformed(..))), "{step}");
        }
    }

    #[test]
    fn errors_name_what_is_there() {
        let root = PrivateDir::create().unwrap();
        let search = [root.path().to_owned()];
        assert!(matches!(select(&search, &[]), Err(ApiError::NoneFound(_))));
        build(root.path(), "a", r#"{"name":"a","version":"1","soname":"s","library":"l"}"#);
        let error = select(&search, &["b".into()]).unwrap_err().to_string();
        assert_eq!(error, "no build of API `b` found; there is a");
    }
}
