//! The C functions of `aviary/guest.h`, which each generated library defines for its own [`crate::Api`].

/// Defines them. `$api`: the library's `static` [`crate::Api`]; `$by_name`: an `unsafe fn(usize) -> usize` that finds the
/// library's own function by the address of its name.
#[macro_export]
macro_rules! utility_exports {
    ($api:ident, $by_name:ident) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_metadata(handle: usize, kind: u32) -> usize {
            $api.metadata(handle as u64, kind) as usize
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_zerocopy_alloc(bytes: usize) -> usize {
            $api.zerocopy_alloc(bytes) as usize
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_zerocopy_free(pointer: usize) {
            $api.zerocopy_free(pointer as *mut u8)
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_zerocopy_alloc_uninitialized(bytes: usize) -> usize {
            $api.zerocopy_alloc_uninitialized(bytes) as usize
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_zerocopy_lend(pointer: usize) {
            $api.zerocopy_lend(pointer as *mut u8)
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_connected() -> ::std::ffi::c_int {
            $api.connected() as ::std::ffi::c_int
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_calls() -> u64 {
            $api.calls()
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_keep_connection() {
            $api.keep_connection()
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_after_fork(function: extern "C" fn()) {
            $api.after_fork(function)
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_same_handle(now: usize, before: usize) -> ::std::ffi::c_int {
            $api.same_handle(now as u64, before as u64) as ::std::ffi::c_int
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_follow_output() {
            $api.follow_output()
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_is_zerocopy(pointer: usize) -> ::std::ffi::c_int {
            $api.is_zerocopy(pointer as *const u8) as ::std::ffi::c_int
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_is_shared(pointer: usize, bytes: usize) -> ::std::ffi::c_int {
            $api.is_shared(pointer as *const u8, bytes) as ::std::ffi::c_int
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_is_handle(value: usize) -> ::std::ffi::c_int {
            $api.is_handle(value as u64) as ::std::ffi::c_int
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_function(name: usize) -> usize {
            // SAFETY: what the header asks of the C caller is what this function asks.
            unsafe { $by_name(name) }
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_log_text(text: *const ::std::ffi::c_char) {
            // SAFETY: what the header asks of the C caller is what this function asks.
            unsafe { $crate::ffi::log(text) }
        }
    };
}
