//! Modules of APIs: found in the node's directories, loaded once per process.

pub mod listed;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, CString, c_void};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use aviary_control::is_api_name;
use aviary_wire::attach::welcome_status;

use crate::connection::module::{ABI_VERSION, ENTRY, ModuleAbi};
use crate::connection::refusal::AttachRefusal;
use crate::session::vendor::try_loading;

/// The folder beside a module with those of earlier builds, by the hashes of their specifications.
const KEPT: &str = "modules";

/// The guest names the API, so the name must not lead out of the modules' directories.
fn find(directories: &[PathBuf], api: &str) -> Result<PathBuf, AttachRefusal> {
    let mut candidates = directories.iter().map(|d| d.join(api).join("server.so"));
    // This process may not be able to look there any more.
    let there = |path: &PathBuf| is_api_name(api) && (loaded().contains_key(path) || path.is_file());
    match candidates.find(there) {
        Some(path) => Ok(path),
        None => {
            let text = format!("the server has no module for the API {api:?}; build it there with `aviary spec build`");
            Err(AttachRefusal::new(welcome_status::API, text).detail(format!("searched {directories:?}")))
        }
    }
}

/// The module of a guest library's specification: the present one, or one that an earlier build has left. If there is none
/// the present one answers, which says what does not fit.
pub fn module_for(directories: &[PathBuf], api: &str, spec_hash: u64) -> Result<&'static ModuleAbi, AttachRefusal> {
    let path = find(directories, api)?;
    let present = load(&path)?;
    if present.spec_hash == spec_hash {
        return Ok(present);
    }
    let kept = path.with_file_name(KEPT).join(format!("{spec_hash:016x}.so"));
    let there = loaded().contains_key(&kept) || kept.is_file();
    let kept = there.then(|| load(&kept)).and_then(Result::ok).filter(|module| module.spec_hash == spec_hash);
    Ok(kept.unwrap_or(present))
}

/// Modules that this process has loaded, by their files.
fn loaded() -> MutexGuard<'static, BTreeMap<PathBuf, &'static ModuleAbi>> {
    static LOADED: Mutex<BTreeMap<PathBuf, &'static ModuleAbi>> = Mutex::new(BTreeMap::new());
    LOADED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn load(path: &Path) -> Result<&'static ModuleAbi, AttachRefusal> {
    if let Some(module) = loaded().get(path) {
        return Ok(module);
    }
    let module = open(path)?;
    loaded().insert(path.to_owned(), module);
    Ok(module)
}

/// Loads every module in these directories, and what it needs, before a guest is there. What cannot be loaded is not:
/// the session that asks for it tries again and tells why. Answers what was loaded, one by one. `vendors`: as in an
/// [`Assignment`](aviary_control::Assignment). A library that is loaded from its file is there by its name, too, by which a
/// module asks for it.
pub fn preload(directories: &[PathBuf], vendors: &BTreeMap<String, String>) -> impl Iterator<Item = PathBuf> {
    let mut seen = BTreeSet::new();
    for file in vendors.values() {
        let _ = try_loading(file);
    }
    let files = directories.iter().flat_map(|directory| modules(directory)).collect::<Vec<_>>();
    files.into_iter().filter(move |path| {
        let first = seen.insert(path.parent().and_then(Path::file_name).map(ToOwned::to_owned));
        first && load(path).map(|module| (module.preload)()).is_ok()
    })
}

/// In a fixed order.
fn modules(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> =
        entries.map(|entry| entry.path().join("server.so")).filter(|path| path.is_file()).collect();
    found.sort();
    found
}

/// NULL if it cannot be loaded.
fn handle(path: &Path) -> *mut c_void {
    use std::os::unix::ffi::OsStrExt;
    let Ok(name) = CString::new(path.as_os_str().as_bytes()) else { return std::ptr::null_mut() };
    // SAFETY: modules are the operator's files, found in the directories that the node configured.
    unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) }
}

fn open(path: &Path) -> Result<&'static ModuleAbi, AttachRefusal> {
    use std::os::unix::ffi::OsStrExt;
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|e| AttachRefusal::failed("the module's path", e))?;
    // SAFETY: modules are the operator's files, found in the directories that the node configured.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        // SAFETY: dlerror answers a NUL-terminated text of this thread, or NULL.
        let reason = unsafe {
            let text = libc::dlerror();
            if text.is_null() { String::new() } else { CStr::from_ptr(text).to_string_lossy().into_owned() }
        };
        return Err(unusable("the module cannot be loaded", path, &reason));
    }
    // SAFETY: a live library handle and a NUL-terminated name.
    let entry = unsafe { libc::dlsym(library, ENTRY.as_ptr()) };
    if entry.is_null() {
        return Err(unusable("the module cannot be used", path, "not a server module (no aviary_module)"));
    }
    // SAFETY: a symbol of this name is `extern "C" fn() -> *const ModuleAbi` in every version.
    let entry: extern "C" fn() -> *const ModuleAbi = unsafe { std::mem::transmute(entry) };
    // SAFETY: the structure is static in a module that is never unloaded; its first field has the same place
    // in every version, and the others are used only if the version is ours.
    let module = unsafe { entry().as_ref() };
    match module {
        Some(module) if module.abi_version == ABI_VERSION => Ok(module),
        Some(module) => {
            let text =
                format!("its interface has version {}, the server's {ABI_VERSION}; build it again", module.abi_version);
            Err(unusable("the module cannot be used", path, &text))
        }
        None => Err(unusable("the module cannot be used", path, "it does not describe a module")),
    }
}

fn unusable(what: &str, path: &Path, why: &str) -> AttachRefusal {
    AttachRefusal::new(welcome_status::FAILED, what).detail(format!("{}: {why}", path.display()))
}
