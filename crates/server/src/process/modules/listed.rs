//! The devices of a module's API and who has memory there, for a process that does nothing else: the vendor's library is started here,
//! and may misbehave.

use std::ffi::{CStr, CString, c_char, c_void};
use std::path::Path;
use std::ptr::NonNull;

use super::{handle, open};
use crate::connection::listing::{
    HoldersEntry, LIST, LIST_CONTEXTS, LIST_HOLDERS, ListEntry, ListedDevice, ListedHolder,
};

/// A device, as its API's specification lists it. Empty texts and 0 are unknown.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceFacts {
    pub name: String,
    pub uuid: String,
    pub driver: String,
    pub library: String,
    pub pci: String,
    /// Bytes.
    pub memory: u64,
    /// Empty: nothing is known to be wrong.
    pub unhealthy: String,
}

/// Empty for NULL.
///
/// # Safety
/// Another text ends with NUL and is valid.
unsafe fn text_at(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

unsafe extern "C" fn take_device(context: *mut c_void, device: *const ListedDevice) {
    // SAFETY: `devices` passes its list, and no other thread has it; the module a device.
    let (list, device) = unsafe { (&mut *context.cast::<Vec<DeviceFacts>>(), &*device) };
    // SAFETY: the module's texts end with NUL and are valid during the call.
    let text = |text: *const c_char| unsafe { text_at(text) };
    list.push(DeviceFacts {
        name: text(device.name),
        uuid: text(device.uuid),
        driver: text(device.driver),
        library: text(device.library),
        pci: text(device.pci),
        memory: device.memory,
        unhealthy: text(device.unhealthy),
    });
}

/// The devices of a module's API. For a process that does nothing else: the vendor's library is started, and may misbehave. `vendor`:
/// its file, instead of where the linker finds its name. `None`: the specification lists none.
///
/// # Errors
/// The module or the vendor's library cannot be used.
pub fn devices(module: &Path, vendor: Option<&str>) -> Result<Option<Vec<DeviceFacts>>, String> {
    let Some((entry, vendor)) = entry(module, LIST, vendor)? else { return Ok(None) };
    // SAFETY: a symbol of this name has this type in every version.
    let entry: ListEntry = unsafe { std::mem::transmute(entry) };
    let mut list: Vec<DeviceFacts> = Vec::new();
    // SAFETY: a text that lives until the call ends, and the list that `take_device` expects.
    let lists = unsafe { entry(name_of(vendor.as_ref()), take_device, (&raw mut list).cast()) } != 0;
    match list.iter().find(|device| device.name.is_empty()) {
        Some(none) => Err(none.unhealthy.clone()),
        None => Ok(lists.then_some(list)),
    }
}

/// What a process has of a device's memory, as the vendor's library says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HolderFacts {
    /// As limits of devices name it.
    pub device: String,
    /// 0: none, and the library tells of this device.
    pub process: u64,
    pub bytes: u64,
}

unsafe extern "C" fn take_holder(context: *mut c_void, holder: *const ListedHolder) {
    // SAFETY: `held` passes its list, and no other thread has it; the module a holder, whose text ends with NUL.
    unsafe {
        let (list, holder) = (&mut *context.cast::<Vec<HolderFacts>>(), &*holder);
        list.push(HolderFacts { device: text_at(holder.device), process: holder.process, bytes: holder.bytes });
    }
}

/// Who has memory of devices of a module's API; otherwise as [`devices`]. `None`: the specification does not tell.
///
/// # Errors
/// The module cannot be used.
pub fn holders(module: &Path, vendor: Option<&str>) -> Result<Option<Vec<HolderFacts>>, String> {
    held(module, LIST_HOLDERS, vendor)
}

/// What a context takes of each device of a module's API, of no process; otherwise as [`holders`].
///
/// # Errors
/// The module cannot be used.
pub fn contexts(module: &Path, vendor: Option<&str>) -> Result<Option<Vec<HolderFacts>>, String> {
    held(module, LIST_CONTEXTS, vendor)
}

fn held(module: &Path, symbol: &CStr, vendor: Option<&str>) -> Result<Option<Vec<HolderFacts>>, String> {
    let Some((entry, vendor)) = entry(module, symbol, vendor)? else { return Ok(None) };
    // SAFETY: a symbol of this name has this type in every version.
    let entry: HoldersEntry = unsafe { std::mem::transmute(entry) };
    let mut list: Vec<HolderFacts> = Vec::new();
    // SAFETY: a text that lives until the call ends, and the list that `take_holder` expects.
    let lists = unsafe { entry(name_of(vendor.as_ref()), take_holder, (&raw mut list).cast()) } != 0;
    Ok(lists.then_some(list))
}

fn name_of(library: Option<&CString>) -> *const c_char {
    library.map_or(std::ptr::null(), |path| path.as_ptr())
}

/// A function of a module, and the name of the vendor's library for it.
type Entry = (NonNull<c_void>, Option<CString>);

/// A symbol of a module, with the vendor's library for C. `None`: it has none of this name.
fn entry(module: &Path, symbol: &CStr, vendor: Option<&str>) -> Result<Option<Entry>, String> {
    open(module).map_err(|refusal| refusal.whole())?;
    let vendor =
        vendor.map(CString::new).transpose().map_err(|_| "the library's path contains a NUL byte".to_owned())?;
    // SAFETY: a live library handle, as the module was opened above, and a NUL-terminated name.
    let entry = unsafe { libc::dlsym(handle(module), symbol.as_ptr()) };
    Ok(NonNull::new(entry).map(|entry| (entry, vendor)))
}
