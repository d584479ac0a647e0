//! The vendor's library, loaded by the API server alone.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::api::ApiDescriptor;

/// the vendor library {name} cannot be loaded on the server ({reason}); install the package that contains it, or point {variable} of the server at it
#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub struct Missing {
    name: String,
    reason: String,
    variable: String,
}

/// Marks a symbol that was looked up and does not exist; 0 is "not looked up yet".
const ABSENT: *mut c_void = std::ptr::dangling_mut();

pub struct Vendor {
    /// Its files, in the order in which symbols are looked for.
    libraries: Vec<*mut c_void>,
    symbols: Box<[AtomicPtr<c_void>]>,
    names: Box<[CString]>,
    /// Symbols that utility code asks for by a name that is no function of the API.
    others: Mutex<HashMap<CString, usize>>,
}

// SAFETY: library handles are only passed to dlsym, which is thread-safe; the rest is atomics and a mutex.
unsafe impl Send for Vendor {}
// SAFETY: as above.
unsafe impl Sync for Vendor {}

/// The name of the variable that overrides where an API's library is.
pub fn variable(api: &str) -> String {
    let capitals = api.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' });
    "AVIARY_VENDOR_".chars().chain(capitals).collect()
}

/// Where an API's library is: `soname`, or what `AVIARY_VENDOR_<API>` of this process says instead.
pub fn place(api: &str, soname: &str) -> String {
    std::env::var(variable(api)).unwrap_or_else(|_| soname.to_owned())
}

impl Vendor {
    /// Loads `soname`, or what `AVIARY_VENDOR_<API>` of this process says instead.
    pub fn load<'a>(api: &str, soname: &str, functions: impl Iterator<Item = &'a str>) -> Result<Vendor, Missing> {
        let name = place(api, soname);
        let library = open(&name).map_err(|reason| Missing { name, reason, variable: variable(api) })?;
        // A function name with a NUL inside cannot come from C; it would simply not be found.
        let names: Box<[CString]> = functions.map(|f| CString::new(f).unwrap_or_default()).collect();
        let symbols = names.iter().map(|_| AtomicPtr::default()).collect();
        Ok(Vendor { libraries: vec![library], symbols, names, others: Mutex::default() })
    }

    /// Loads a further file of the library.
    fn and(mut self, api: &str, soname: &str) -> Result<Vendor, Missing> {
        let missing = |reason| Missing { name: soname.to_owned(), reason, variable: variable(api) };
        self.libraries.push(open(soname).map_err(missing)?);
        Ok(self)
    }

    /// The vendor's function with this index in the API, or `None` if the library lacks it.
    pub fn function(&self, index: usize) -> Option<*const c_void> {
        let symbol = self.symbols.get(index)?;
        let mut address = symbol.load(Ordering::Relaxed);
        if address.is_null() {
            address = match self.lookup(&self.names[index]) {
                found if found.is_null() => ABSENT,
                found => found,
            };
            symbol.store(address, Ordering::Relaxed);
        }
        (address != ABSENT).then_some(address.cast_const())
    }

    /// The vendor's symbol of any name; NULL if there is none.
    pub fn symbol(&self, name: &CStr) -> *mut c_void {
        let mut others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(address) = others.get(name) {
            return *address as *mut c_void;
        }
        let address = self.lookup(name);
        others.insert(name.to_owned(), address as usize);
        address
    }

    fn lookup(&self, name: &CStr) -> *mut c_void {
        // SAFETY: each library came from dlopen and is never closed; `name` is NUL-terminated.
        let find = |library: &*mut c_void| unsafe { libc::dlsym(*library, name.as_ptr()) };
        self.libraries.iter().map(find).find(|found| !found.is_null()).unwrap_or_default()
    }
}

/// The vendor library is loaded once per process, with the first connection.
static VENDOR: OnceLock<Result<Vendor, String>> = OnceLock::new();

/// The vendor library, once a connection has loaded it.
pub(crate) fn loaded() -> Option<&'static Vendor> {
    VENDOR.get().and_then(|v| v.as_ref().ok())
}

/// `path`: where the node says that the library is, instead of where the linker finds its name.
pub(crate) fn load(api: &ApiDescriptor, path: Option<&str>) -> Result<&'static Vendor, String> {
    let functions = api.functions.iter().map(|f| f.name);
    let load = || {
        let first = Vendor::load(api.name, path.unwrap_or(api.soname), functions);
        api.libraries.iter().fold(first, |all, soname| all?.and(api.name, soname)).map_err(|e| e.to_string())
    };
    VENDOR.get_or_init(load).as_ref().map_err(Clone::clone)
}

// The library stays loaded: its own threads may still run when the session ends, and the process
// ends soon after.

/// Loads a vendor's library, or says why it cannot be loaded. For a process that does nothing else: the
/// library's constructors run, it stays loaded, and it may misbehave.
pub fn try_loading(soname: &str) -> Result<(), String> {
    open(soname).map(|_| ())
}

fn open(name: &str) -> Result<*mut c_void, String> {
    let path = CString::new(name).map_err(|_| "its name contains a NUL byte".to_owned())?;
    // SAFETY: loading runs the library's constructors, which is what the operator asked for by
    // configuring it; no guest influences the name.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if !library.is_null() {
        return Ok(library);
    }
    // SAFETY: dlerror answers this thread's last error, a NUL-terminated string, or NULL.
    let reason = unsafe {
        let text = libc::dlerror();
        if text.is_null() { "unknown error".into() } else { CStr::from_ptr(text).to_string_lossy().into_owned() }
    };
    Err(reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_named_with_what_to_do() {
        let error = Vendor::load("my-api", "libsurely-not-there.so.9", [].into_iter()).err().unwrap().to_string();
        assert!(error.contains("libsurely-not-there.so.9"), "{error}");
        assert!(error.contains("AVIARY_VENDOR_MY_API"), "{error}");
    }

    #[test]
    fn symbols_are_found_or_known_to_be_missing() {
        let vendor = Vendor::load("m", "libm.so.6", ["cos", "no_such_function"].into_iter()).unwrap();
        assert!(vendor.function(0).is_some());
        assert!(vendor.function(1).is_none());
        assert!(vendor.function(1).is_none());
        assert!(vendor.function(2).is_none());
        assert!(!vendor.symbol(c"sin").is_null());
        assert!(vendor.symbol(c"no_such_function").is_null());
    }
}
