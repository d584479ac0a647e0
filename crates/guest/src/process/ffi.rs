//! Functions that utility code calls through `aviary.h`, apart from those that need the library's
//! own [`crate::Api`].

use std::ffi::{CStr, c_char};

/// Logs one line of the library's utility code.
///
/// # Safety
/// `text` is NULL or a NUL-terminated string.
pub unsafe fn log(text: *const c_char) {
    if !text.is_null() {
        // SAFETY: the caller's promise.
        let text = unsafe { CStr::from_ptr(text) };
        crate::process::log::line(&text.to_string_lossy());
    }
}
