//! The devices of an API and who has memory there, without a session: the specification's own functions list them, in a process that
//! does nothing else.
//!
//! Used by `process::listing` across the C interface of modules. The vendor's library is loaded and started here; whatever it does is
//! this process's alone.

use std::ffi::{CStr, CString, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::api::ApiDescriptor;
use crate::session::vendor;

/// The exported symbol. A module of an earlier version has none.
pub const LIST: &CStr = c"aviary_list_devices";
/// As above.
pub const LIST_HOLDERS: &CStr = c"aviary_list_holders";
/// As above.
pub const LIST_CONTEXTS: &CStr = c"aviary_list_contexts";

/// `struct aviary_device` of `aviary/server.h`. Texts that are NULL are unknown.
#[repr(C)]
pub struct ListedDevice {
    /// NULL: no device, and `unhealthy` says why none can be listed.
    pub name: *const c_char,
    pub uuid: *const c_char,
    pub driver: *const c_char,
    pub library: *const c_char,
    pub pci: *const c_char,
    /// NULL: nothing is known to be wrong.
    pub unhealthy: *const c_char,
    /// Bytes; 0: unknown.
    pub memory: u64,
}

/// Called once for each device; the texts are valid during the call.
pub type TellDevice = unsafe extern "C" fn(context: *mut c_void, device: *const ListedDevice);

/// Of a specification: calls the function for each device.
pub type ListFunction = unsafe extern "C" fn(tell: TellDevice, context: *mut c_void);

/// What a module exports under [`LIST`]; the first argument is the vendor's library, or NULL. 0: its specification lists none.
pub type ListEntry = unsafe extern "C" fn(*const c_char, TellDevice, *mut c_void) -> i32;

/// `struct aviary_holder` of `aviary/server.h`. Of what contexts take: with process 0.
#[repr(C)]
pub struct ListedHolder {
    pub device: *const c_char,
    /// 0: none, and the library tells of this device.
    pub process: u64,
    pub bytes: u64,
}

/// Called once for each; the text is valid during the call.
pub type TellHolder = unsafe extern "C" fn(context: *mut c_void, holder: *const ListedHolder);

/// Of a specification: calls the function for each holder.
pub type HoldersFunction = unsafe extern "C" fn(tell: TellHolder, context: *mut c_void);

/// What a module exports under [`LIST_HOLDERS`] and [`LIST_CONTEXTS`]; as [`ListEntry`].
pub type HoldersEntry = unsafe extern "C" fn(*const c_char, TellHolder, *mut c_void) -> i32;

/// # Errors
/// Why the vendor's library is not here.
///
/// # Safety
/// `library` is NULL or a NUL-terminated text.
unsafe fn start(api: &'static ApiDescriptor, library: *const c_char) -> Result<(), String> {
    // SAFETY: the caller's promise.
    let library = (!library.is_null()).then(|| unsafe { CStr::from_ptr(library) }.to_string_lossy());
    let loaded = catch_unwind(AssertUnwindSafe(|| vendor::load(api, library.as_deref()).map(drop)));
    loaded.unwrap_or_else(|_| Err("internal error".to_owned()))
}

/// # Safety
/// `library` is NULL or a NUL-terminated text; `list` is the specification's own function; `tell` may be called with `context`.
pub unsafe fn list(
    api: &'static ApiDescriptor,
    library: *const c_char,
    list: Option<ListFunction>,
    tell: TellDevice,
    context: *mut c_void,
) -> i32 {
    let Some(list) = list else { return 0 };
    // SAFETY: the caller's promise.
    match unsafe { start(api, library) } {
        // SAFETY: the caller's promise; the vendor's library is loaded, as the functions that it calls need it.
        Ok(()) => unsafe { list(tell, context) },
        Err(why) => {
            let null = std::ptr::null();
            let why = CString::new(why).unwrap_or_default();
            let none = ListedDevice {
                name: null,
                uuid: null,
                driver: null,
                library: null,
                pci: null,
                unhealthy: why.as_ptr(),
                memory: 0,
            };
            // SAFETY: the caller's promise; the text lives until the call ends.
            unsafe { tell(context, &none) };
        }
    }
    1
}

/// Who has memory of devices, or what contexts take of them. Tells nothing if the vendor's library is not here.
///
/// # Safety
/// As [`list`].
pub unsafe fn list_holders(
    api: &'static ApiDescriptor,
    library: *const c_char,
    list: Option<HoldersFunction>,
    tell: TellHolder,
    context: *mut c_void,
) -> i32 {
    let Some(list) = list else { return 0 };
    // SAFETY: the caller's promise.
    if unsafe { start(api, library) }.is_ok() {
        // SAFETY: the caller's promise; the vendor's library is loaded, as the functions that it calls need it.
        unsafe { list(tell, context) };
    }
    1
}
