//! The devices of an API, without a session: the specification's own function lists them, in a process that does nothing else.
//!
//! Used by `process::devices` across the C interface of modules. The vendor's library is loaded and started here; whatever it does is
//! this process's alone.

use std::ffi::{CStr, CString, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::api::ApiDescriptor;
use crate::session::vendor;

/// The exported symbol. A module of an earlier version has none.
pub const LIST: &CStr = c"aviary_list_devices";

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
    let library = (!library.is_null()).then(|| unsafe { CStr::from_ptr(library) }.to_string_lossy());
    let loaded = catch_unwind(AssertUnwindSafe(|| vendor::load(api, library.as_deref()).map(drop)));
    match loaded.unwrap_or_else(|_| Err("internal error".to_owned())) {
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
