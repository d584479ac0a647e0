//! Kernel modules for an image: their dependencies, their order, and the check that they belong to
//! its kernel.

use object::{
    Endianness,
    elf::FileHeader64,
    read::elf::{FileHeader, SectionHeader},
};
use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub enum ModuleError {
    /// cannot read {0}: {1}
    Unreadable(PathBuf, io::Error),
    /// {0} has no module `{1}`{2}: give the kernel's folder /lib/modules/VERSION with --modules
    NotFound(PathBuf, String, String),
    /// {0} cannot be unpacked: is `{1}` installed?
    Packed(PathBuf, &'static str),
    /// {0} is not a kernel module
    NoModule(PathBuf),
    /// {0} was built for Linux {1}, and the modules of the image are for {2}: build it with KDIR set to the headers of {2}
    OtherKernel(PathBuf, String, String),
}

/// A module, unpacked.
pub struct Module {
    pub name: String,
    pub data: Vec<u8>,
}

/// The modules of one kernel.
pub struct Modules {
    folder: PathBuf,
    files: BTreeMap<String, PathBuf>,
    /// In the kernel itself.
    built_in: Vec<String>,
}

impl Modules {
    pub fn read(folder: &Path) -> Result<Self, ModuleError> {
        let mut files = BTreeMap::new();
        // The folder may be given as a link, and links of the package itself (build, source) lead
        // outside.
        let folder = fs::canonicalize(folder).map_err(|error| ModuleError::Unreadable(folder.into(), error))?;
        collect(&folder.join("kernel"), &mut files)?;
        let built_in = fs::read_to_string(folder.join("modules.builtin")).unwrap_or_default();
        let built_in = built_in.lines().filter_map(|line| name_of(Path::new(line))).collect();
        Ok(Self { folder, files, built_in })
    }

    /// The named modules and their dependencies, each after those that it needs; built-in ones are
    /// left out.
    pub fn in_order(&self, names: &[String]) -> Result<Vec<Module>, ModuleError> {
        let mut order = Vec::new();
        for name in names {
            self.visit(name, "", &mut order)?;
        }
        Ok(order)
    }

    /// Adds the dependencies of a module outside the kernel's package, and then the module itself.
    pub fn with_driver(&self, path: &Path, order: &mut Vec<Module>) -> Result<(), ModuleError> {
        let data = fs::read(path).map_err(|error| ModuleError::Unreadable(path.into(), error))?;
        let information = Information::read(&data).ok_or_else(|| ModuleError::NoModule(path.into()))?;
        if let Some(other) = order.first().and_then(|module| Information::read(&module.data))
            && other.kernel != information.kernel
        {
            return Err(ModuleError::OtherKernel(path.into(), information.kernel, other.kernel));
        }
        for name in &information.needs {
            self.visit(name, &format!(" (which {} needs)", path.display()), order)?;
        }
        order.push(Module { name: information.name, data });
        Ok(())
    }

    fn visit(&self, name: &str, why: &str, order: &mut Vec<Module>) -> Result<(), ModuleError> {
        let name = plain(name);
        if self.built_in.contains(&name) || order.iter().any(|module| module.name == name) {
            return Ok(());
        }
        let path = self.files.get(&name);
        let path = path.ok_or_else(|| ModuleError::NotFound(self.folder.clone(), name.clone(), why.into()))?;
        let data = unpack(path)?;
        let information = Information::read(&data).ok_or_else(|| ModuleError::NoModule(path.clone()))?;
        for needed in &information.needs {
            self.visit(needed, &format!(" (which {name} needs)"), order)?;
        }
        order.push(Module { name, data });
        Ok(())
    }
}

fn collect(folder: &Path, files: &mut BTreeMap<String, PathBuf>) -> Result<(), ModuleError> {
    let failed = |error| ModuleError::Unreadable(folder.into(), error);
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let path = entry.path();
        if entry.file_type().map_err(failed)?.is_dir() {
            collect(&path, files)?;
        } else if let Some(name) = name_of(&path) {
            files.insert(name, path);
        }
    }
    Ok(())
}

/// `kernel/drivers/char/virtio-rng.ko.xz` is `virtio_rng`.
fn name_of(path: &Path) -> Option<String> {
    let (name, packed) = path.file_name()?.to_str()?.split_once(".ko")?;
    (packed.is_empty() || packed.starts_with('.')).then(|| plain(name))
}

fn plain(name: &str) -> String {
    name.replace('-', "_")
}

fn unpack(path: &Path) -> Result<Vec<u8>, ModuleError> {
    let program = match path.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        Some("gz") => "gzip",
        _ => return fs::read(path).map_err(|error| ModuleError::Unreadable(path.into(), error)),
    };
    let packed = || ModuleError::Packed(path.into(), program);
    let output = Command::new(program).arg("-dc").arg(path).output().map_err(|_| packed())?;
    if output.status.success() { Ok(output.stdout) } else { Err(packed()) }
}

/// The metadata of a module.
struct Information {
    name: String,
    needs: Vec<String>,
    /// The version of its kernel.
    kernel: String,
}

impl Information {
    fn read(data: &[u8]) -> Option<Self> {
        let header = FileHeader64::<Endianness>::parse(data).ok()?;
        let endian = header.endian().ok()?;
        let sections = header.sections(endian, data).ok()?;
        let (_, section) = sections.section_by_name(endian, b".modinfo")?;
        Some(Self::parse(section.data(endian, data).ok()?))
    }

    /// `name=value`, each with a zero after it.
    fn parse(text: &[u8]) -> Self {
        let text = String::from_utf8_lossy(text);
        let value =
            |key: &str| text.split('\0').find_map(|field| field.strip_prefix(key)?.strip_prefix('=')).unwrap_or("");
        let needs = value("depends").split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
        let kernel = value("vermagic").split(' ').next().unwrap_or_default().to_owned();
        Self { name: plain(value("name")), needs, kernel }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files() {
        assert_eq!(name_of(Path::new("a/virtio-rng.ko.xz")).as_deref(), Some("virtio_rng"));
        assert_eq!(name_of(Path::new("virtio_pci.ko")).as_deref(), Some("virtio_pci"));
        assert_eq!(name_of(Path::new("modules.dep")), None);
        assert_eq!(name_of(Path::new("x.kobject")), None);
    }

    #[test]
    fn information_of_a_module() {
        let text = b"license=GPL\0depends=virtio_ring,virtio\0name=virtio_console\0vermagic=6.1.0-9 SMP preempt\0";
        let information = Information::parse(text);
        assert_eq!(information.needs, ["virtio_ring", "virtio"]);
        assert_eq!((information.name.as_str(), information.kernel.as_str()), ("virtio_console", "6.1.0-9"));
        assert!(Information::parse(b"depends=\0").needs.is_empty());
    }
}
