//! Vendor sets in the node's configuration file: `[vendors.NAME]`, and which tenant has which.

use crate::config::error::{ConfigError, VendorError};
use aviary_control::is_api_name;
use aviary_node::{Tenant, VendorSet};
use aviary_server::{process::sandboxing::SEARCH_PATHS, vendor_variable};
use serde::Deserialize;
use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Variables that make a program a guest of a node; API servers never have them.
const NEVER: &[&str] = &["AVIARY_SERVER", "AVIARY_PRIVATE_NODE"];

/// One version of vendors' software.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VendorConfig {
    /// By APIs; absolute paths of files.
    #[serde(default)]
    libraries: BTreeMap<String, PathBuf>,
    /// Variables of API servers, in place of the node's own.
    #[serde(default)]
    environment: BTreeMap<String, String>,
    /// Files and directories that its API servers can read, besides the folders of its libraries; absolute paths.
    #[serde(default)]
    read: Vec<PathBuf>,
}

impl VendorConfig {
    fn check(&self) -> Result<(), VendorError> {
        if self.libraries.is_empty() && self.environment.is_empty() {
            return Err(VendorError::Empty);
        }
        for (api, file) in &self.libraries {
            let (api, file) = (api.clone(), file.clone());
            if !is_api_name(&api) {
                return Err(VendorError::NoApi { api });
            }
            if !file.is_absolute() {
                return Err(VendorError::RelativeLibrary { api, file });
            }
            match fs::metadata(&file) {
                Err(error) => return Err(VendorError::MissingLibrary { api, file, error }),
                Ok(found) if !found.is_file() => return Err(VendorError::NoFile { api, file }),
                Ok(_) => {}
            }
        }
        self.environment.iter().try_for_each(|(name, value)| check_variable(name, value))?;
        for path in &self.read {
            if !path.is_absolute() {
                return Err(VendorError::RelativeFolder { path: path.clone() });
            }
            fs::metadata(path).map_err(|error| VendorError::MissingFolder { path: path.clone(), error })?;
        }
        Ok(())
    }

    /// # Errors
    /// What its files or texts are not.
    pub fn set(&self, name: &str) -> Result<VendorSet, VendorError> {
        self.check()?;
        let mut environment = self.environment.clone();
        let mut files: Vec<PathBuf> = self.libraries.values().cloned().collect();
        for (api, file) in &self.libraries {
            let text = file.to_str().ok_or_else(|| VendorError::NotText { api: api.clone(), file: file.clone() })?;
            environment.insert(vendor_variable(api), text.to_owned());
        }
        for place in searched(&self.environment) {
            files.extend(drivers_in(&place).into_iter().map(|(_, library)| library).filter(|path| path.is_file()));
            files.push(place);
        }
        VendorSet::new(name, environment, self.read.clone(), &files)
            .map_err(|(path, error)| VendorError::MissingFolder { path, error })
    }

    /// Its variables, beside those that name libraries.
    pub fn environment(&self) -> &BTreeMap<String, String> {
        &self.environment
    }

    /// Libraries that OpenCL's loader would find by its variables, and the files that name them.
    pub fn drivers(&self) -> Vec<(PathBuf, PathBuf)> {
        searched(&self.environment).iter().flat_map(|folder| drivers_in(folder)).collect()
    }

    /// By APIs, the libraries that it names.
    pub fn libraries(&self) -> &BTreeMap<String, PathBuf> {
        &self.libraries
    }
}

/// Files and folders where the vendors' libraries search, as these variables say.
fn searched(environment: &BTreeMap<String, String>) -> Vec<PathBuf> {
    let values = SEARCH_PATHS.iter().filter_map(|name| environment.get(*name));
    values.flat_map(|value| env::split_paths(value).collect::<Vec<_>>()).collect()
}

/// The `.icd` files of a folder, with the libraries that they name by their paths.
fn drivers_in(folder: &Path) -> Vec<(PathBuf, PathBuf)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut icds: Vec<PathBuf> = entries.filter(|path| path.extension().is_some_and(|end| end == "icd")).collect();
    icds.sort();
    let library = |icd: PathBuf| {
        let text = fs::read_to_string(&icd).ok()?;
        let path = PathBuf::from(text.lines().next()?.trim());
        Some((icd, path))
    };
    icds.into_iter().filter_map(library).collect()
}

fn check_variable(name: &str, value: &str) -> Result<(), VendorError> {
    let wrong = |reason: &'static str| Err(VendorError::Variable { name: name.to_owned(), reason });
    if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
        return wrong("expected the name and the value of an environment variable");
    }
    if name.starts_with("AVIARY_VENDOR_") {
        return wrong("name the library in `libraries` instead");
    }
    if NEVER.contains(&name) {
        return wrong("API servers never have this variable");
    }
    if !SEARCH_PATHS.contains(&name) {
        return Ok(());
    }
    for path in env::split_paths(value) {
        if !path.is_absolute() {
            return Err(VendorError::RelativePlace { name: name.to_owned(), path });
        }
        if let Err(error) = fs::metadata(&path) {
            return Err(VendorError::MissingPlace { name: name.to_owned(), path, error });
        }
    }
    Ok(())
}

/// By their names, as they are in the configuration file.
pub type VendorConfigs = BTreeMap<String, VendorConfig>;

/// Vendor sets, as their files are now. `path`: of the configuration.
pub fn sets(all: &VendorConfigs, path: &Path) -> Result<BTreeMap<String, Arc<VendorSet>>, ConfigError> {
    let set = |(name, vendor): (&String, &VendorConfig)| match vendor.set(name) {
        Ok(set) => Ok((name.clone(), Arc::new(set))),
        Err(error) => Err(ConfigError::Vendor { path: path.into(), vendor: name.clone(), error }),
    };
    all.iter().map(set).collect()
}

/// `tenants`: their names, and the sets that they name.
pub fn check_known<'a>(
    all: &VendorConfigs,
    path: &Path,
    tenants: impl Iterator<Item = (&'a String, Option<&'a String>)>,
) -> Result<(), ConfigError> {
    for (tenant, vendor) in tenants.filter_map(|(name, vendor)| Some((name, vendor?))) {
        if !all.contains_key(vendor) {
            let there = match all.is_empty() {
                true => "none".to_owned(),
                false => all.keys().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "),
            };
            let (tenant, vendor) = (tenant.clone(), vendor.clone());
            return Err(ConfigError::NoVendor { path: path.into(), tenant, vendor, there });
        }
    }
    Ok(())
}

/// Files and folders that API servers of any vendor set can read.
pub fn read_by(all: &VendorConfigs) -> impl Iterator<Item = &PathBuf> {
    all.values().flat_map(|vendor| &vendor.read)
}

/// Sets and tenants that are worth a note, of APIs with these names.
pub fn notes(all: &VendorConfigs, tenants: &[Tenant], apis: &[&str]) -> Vec<String> {
    let mut notes = Vec::new();
    for (name, vendor) in all {
        for api in vendor.libraries.keys().filter(|api| !apis.contains(&api.as_str())) {
            notes.push(format!(
                "vendor set {name}: API `{api}` is not built on this machine: its library is not loaded"
            ));
        }
        if !tenants.iter().any(|tenant| tenant.vendor.as_ref() == Some(name)) {
            notes.push(format!("vendor set {name} is not used: no tenant has `vendor = \"{name}\"`"));
        }
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::FileConfig;
    use aviary_node::PrivateDir;

    fn read(folder: &Path, text: &str) -> Result<BTreeMap<String, Arc<VendorSet>>, ConfigError> {
        let path = folder.join("node.toml");
        fs::write(&path, text.replace("DIR", folder.to_str().unwrap())).unwrap();
        sets(&FileConfig::read(&path)?.vendors, &path)
    }

    #[test]
    fn sets_are_read_and_tenants_have_them() {
        let folder = PrivateDir::create().unwrap();
        fs::write(folder.path().join("libx.so"), "").unwrap();
        let text = "[vendors.old]\nlibraries = { my-api = \"DIR/libx.so\" }\nread = [\"DIR\"]\n\
                    [vendors.new]\nenvironment = { OCL_ICD_VENDORS = \"DIR\", X = \"1\" }\n\
                    [tenants.a]\nvendor = \"old\"\n[tenants.b]\n";
        let sets = read(folder.path(), text).unwrap();
        let library = folder.path().join("libx.so");
        assert_eq!(sets["old"].environment["AVIARY_VENDOR_MY_API"], library.to_str().unwrap());
        assert_eq!(
            (&sets["old"].read[..], sets["new"].environment["X"].as_str()),
            (&[folder.path().to_owned()][..], "1")
        );
        let config: FileConfig = toml::from_str(text).unwrap();
        let tenants = config.tenants();
        let vendors: Vec<Option<&str>> = tenants.iter().map(|tenant| tenant.vendor.as_deref()).collect();
        assert_eq!(vendors, [Some("old"), None]);
        let notes = notes(&config.vendors, &tenants, &["opencl"]);
        let says = |text: &str| notes.iter().any(|note| note.contains(text));
        assert!(notes.len() == 2 && says("`my-api`") && says("vendor set new is not used"), "{notes:?}");
    }

    #[test]
    fn library_behind_an_icd_file_belongs_to_the_set() {
        let folder = PrivateDir::create().unwrap();
        let (icds, library) = (folder.path().join("icds"), folder.path().join("libx.so"));
        fs::create_dir(&icds).unwrap();
        fs::write(&library, "").unwrap();
        fs::write(icds.join("x.icd"), format!("{}\n", library.display())).unwrap();
        let text = "[vendors.a]\nenvironment = { OCL_ICD_VENDORS = \"DIR/icds\" }\n";
        let first = read(folder.path(), text).unwrap();
        assert_eq!(first, read(folder.path(), text).unwrap());
        fs::write(folder.path().join("new"), "another").unwrap();
        fs::rename(folder.path().join("new"), &library).unwrap();
        assert_ne!(first, read(folder.path(), text).unwrap());
    }

    #[test]
    fn mistakes_say_what_was_expected() {
        let folder = PrivateDir::create().unwrap();
        for (wrong, why) in [
            ("[vendors.a]\n", "it changes nothing"),
            ("[vendors.a]\nread = [\"DIR\"]\n", "it changes nothing"),
            ("[vendors.a]\nlibraries = { opencl = \"libx.so\" }\n", "`libx.so`: expected an absolute path"),
            ("[vendors.a]\nlibraries = { opencl = \"\" }\n", "`libraries.opencl`: ``: expected an absolute path"),
            ("[vendors.a]\nlibraries = { opencl = \"DIR/none.so\" }\n", "none.so: No such file"),
            ("[vendors.a]\nlibraries = { opencl = \"DIR\" }\n", "is no file"),
            ("[vendors.a]\nlibraries = { \"../x\" = \"DIR\" }\n", "`../x` is not the name of an API"),
            ("[vendors.a]\nenvironment = { \"A=B\" = \"1\" }\n", "the name and the value of an environment variable"),
            ("[vendors.a]\nenvironment = { AVIARY_SERVER = \"x\" }\n", "never"),
            ("[vendors.a]\nenvironment = { AVIARY_VENDOR_OPENCL = \"/x\" }\n", "in `libraries` instead"),
            (
                "[vendors.a]\nenvironment = { OCL_ICD_VENDORS = \"icds\" }\n",
                "OCL_ICD_VENDORS: `icds`: expected an absolute",
            ),
            ("[vendors.a]\nenvironment = { LD_LIBRARY_PATH = \"DIR/none:/\" }\n", "none: No such file"),
            ("[vendors.a]\nenvironment = { A = \"1\" }\nread = [\"x\"]\n", "`read`: `x`: expected an absolute path"),
            ("[vendors.a]\nenvironment = { A = \"1\" }\nread = [\"DIR/none\"]\n", "none: No such file"),
            ("[vendors.\"a b\"]\nenvironment = { A = \"1\" }\n", "`a b`"),
            ("[vendors.a]\nlibrary = 1\n", "line 2"),
            ("[tenants.t]\nvendor = \"a\"\n", "tenant `t`: there is no vendor set `a` ([vendors.a]); there is none"),
            ("[vendors.b]\nenvironment = { A = \"1\" }\n[tenants.t]\nvendor = \"a\"\n", "there is `b`"),
        ] {
            let error = read(folder.path(), wrong).unwrap_err().to_string();
            assert!(error.contains(why) && error.contains("node.toml"), "{wrong}: {error}");
        }
    }
}
