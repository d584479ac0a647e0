//! The C functions of `aviary/server.h`, which each server module defines, and the vendor's functions under their own names.

use std::ffi::CStr;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Defines the runtime's C functions.
#[macro_export]
macro_rules! utility_exports {
    () => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_metadata(handle: usize, kind: u32) -> usize {
            // SAFETY: what the header asks of the C caller is what this function asks.
            unsafe { $crate::connection::ffi::metadata(handle as *const ::std::ffi::c_void, kind) as usize }
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_object_id(object: usize) -> u64 {
            // SAFETY: what the header asks of the C caller is what this function asks.
            unsafe { $crate::connection::ffi::object_id(object as *const ::std::ffi::c_void) }
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_object(id: u64) -> usize {
            // SAFETY: what the header asks of the C caller is what this function asks.
            unsafe { $crate::connection::ffi::object(id) as usize }
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_is_zerocopy(pointer: usize) -> ::std::ffi::c_int {
            // SAFETY: what the header asks of the C caller is what this function asks.
            unsafe { $crate::connection::ffi::is_zerocopy(pointer as *const ::std::ffi::c_void) as ::std::ffi::c_int }
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_zerocopy_return(pointer: usize) {
            // SAFETY: what the header asks of the C caller is what this function asks.
            unsafe { $crate::connection::ffi::zerocopy_return(pointer as *const ::std::ffi::c_void) }
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_owes_error() -> ::std::ffi::c_int {
            $crate::connection::ffi::owes_error()
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_settle_callbacks(at_most_ns: u64) {
            $crate::connection::ffi::settle_callbacks(at_most_ns)
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_when_guest_is_gone(end_waits: unsafe extern "C" fn()) {
            $crate::connection::ffi::when_guest_is_gone(end_waits)
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_watch_time() -> u64 {
            $crate::connection::ffi::watch_time()
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_slice_time() -> u64 {
            $crate::connection::ffi::slice_time()
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_is_private_node() -> ::std::ffi::c_int {
            $crate::connection::ffi::is_private_node()
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_device_gets_work(device: u64) -> ::std::ffi::c_int {
            $crate::connection::ffi::device_gets_work(device)
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_device_preempts(device: u64) {
            $crate::connection::ffi::device_preempts(device)
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_device_pause(device: u64) {
            // SAFETY: what the header asks of the C caller is what this function asks.
            unsafe { $crate::connection::ffi::device_pause(device) }
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_charge_keep(number: u64) {
            // SAFETY: what the header asks of the C caller is what this function asks.
            unsafe { $crate::connection::ffi::charge_keep(number) }
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_charge_return(number: u64) {
            // SAFETY: what the header asks of the C caller is what this function asks.
            unsafe { $crate::connection::ffi::charge_return(number) }
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_allowance(
            resource: *const ::std::ffi::c_char,
            device: *const ::std::ffi::c_char,
            limit: *mut u64,
            left: *mut u64,
        ) -> ::std::ffi::c_int {
            // SAFETY: what the header asks of the C caller is what this function asks.
            unsafe { $crate::connection::ffi::allowance(resource, device, limit, left) }
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_shared_memory(
            device: *const ::std::ffi::c_char,
            shared: *mut $crate::SharedMemory,
        ) -> ::std::ffi::c_int {
            // SAFETY: what the header asks of the C caller is what this function asks.
            unsafe { $crate::connection::ffi::shared_memory(device, shared) }
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_context_bytes(device: *const ::std::ffi::c_char) -> u64 {
            // SAFETY: what the header asks of the C caller is what this function asks.
            unsafe { $crate::connection::ffi::context_bytes(device) }
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_may_use(device: *const ::std::ffi::c_char) -> ::std::ffi::c_int {
            // SAFETY: what the header asks of the C caller is what this function asks.
            unsafe { $crate::connection::ffi::may_use(device) }
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_make_room(device: *const ::std::ffi::c_char, bytes: u64) -> ::std::ffi::c_int {
            // SAFETY: what the header asks of the C caller is what this function asks.
            unsafe { $crate::connection::ffi::make_room(device, bytes) }
        }
        #[unsafe(no_mangle)]
        extern "C" fn aviary_keeps(memory: *const ::std::ffi::c_void) -> usize {
            $crate::connection::ffi::keeps(memory)
        }
        #[unsafe(no_mangle)]
        extern "C" fn aviary_unchanged(bytes: u64) {
            $crate::connection::ffi::unchanged(bytes)
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_output_part(output: *const ::std::ffi::c_void, bytes: usize) -> usize {
            // SAFETY: what the header asks of the C caller is what this function asks.
            unsafe { $crate::connection::ffi::output_part(output, bytes) }
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_output_there(output: *const ::std::ffi::c_void, bytes: usize) {
            // SAFETY: what the header asks of the C caller is what this function asks.
            unsafe { $crate::connection::ffi::output_there(output, bytes) }
        }
        #[unsafe(no_mangle)]
        extern "C" fn aviary_left(bytes: u64) {
            $crate::connection::ffi::left(bytes)
        }
        #[unsafe(no_mangle)]
        extern "C" fn aviary_must_leave() -> u64 {
            $crate::connection::ffi::must_leave()
        }
        #[unsafe(no_mangle)]
        extern "C" fn aviary_may_return(bytes: u64) -> ::std::ffi::c_int {
            $crate::connection::ffi::may_return(bytes)
        }
        #[unsafe(no_mangle)]
        extern "C" fn aviary_keeps_buffers(bytes: usize, give_back: ::std::option::Option<extern "C" fn()>) {
            $crate::connection::ffi::keeps_buffers(bytes, give_back)
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_privileged(function: *const ::std::ffi::c_char) -> ::std::ffi::c_int {
            // SAFETY: what the header asks of the C caller is what this function asks.
            unsafe { $crate::connection::ffi::privileged(function) }
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_process_uses(
            resource: *const ::std::ffi::c_char,
            device: *const ::std::ffi::c_char,
            process_uses: *mut $crate::ProcessUse,
            room: ::std::ffi::c_uint,
        ) -> ::std::ffi::c_uint {
            // SAFETY: what the header asks of the C caller is what this function asks.
            unsafe { $crate::connection::ffi::process_uses(resource, device, process_uses, room) }
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_offer(
            descriptor: ::std::ffi::c_int,
            note: u64,
            name: *mut $crate::OfferName,
        ) -> ::std::ffi::c_int {
            // SAFETY: what the header asks of the C caller is what this function asks.
            unsafe { $crate::connection::ffi::offer(descriptor, note, name) }
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_withdraw(name: *const $crate::OfferName) {
            // SAFETY: what the header asks of the C caller is what this function asks.
            unsafe { $crate::connection::ffi::withdraw(name) }
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_fetch(name: *const $crate::OfferName, note: *mut u64) -> ::std::ffi::c_int {
            // SAFETY: what the header asks of the C caller is what this function asks.
            unsafe { $crate::connection::ffi::fetch(name, note) }
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_hand_over(descriptor: ::std::ffi::c_int) -> i64 {
            // SAFETY: what the header asks of the C caller is what this function asks.
            unsafe { $crate::connection::ffi::hand_over(descriptor) }
        }
        #[unsafe(no_mangle)]
        extern "C" fn aviary_handed(number: u64) -> ::std::ffi::c_int {
            $crate::connection::ffi::handed(number)
        }
        #[unsafe(no_mangle)]
        extern "C" fn aviary_contents_to_write(bytes: u64) -> *mut ::std::ffi::c_void {
            $crate::connection::ffi::contents_to_write(bytes)
        }
        #[unsafe(no_mangle)]
        extern "C" fn aviary_contents_to_read(bytes: u64) -> *const ::std::ffi::c_void {
            $crate::connection::ffi::contents_to_read(bytes)
        }
        #[unsafe(no_mangle)]
        extern "C" fn aviary_must_copy() -> ::std::ffi::c_int {
            $crate::connection::ffi::must_copy()
        }
        #[unsafe(no_mangle)]
        extern "C" fn aviary_card() -> ::std::ffi::c_int {
            $crate::connection::ffi::card()
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_zerocopy_file(pointer: usize, bytes: usize, offset: *mut u64) -> ::std::ffi::c_int {
            // SAFETY: what the header asks of the C caller is what this function asks.
            unsafe { $crate::connection::ffi::zerocopy_file(pointer as *const ::std::ffi::c_void, bytes, offset) }
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_function(name: *const ::std::ffi::c_char) -> usize {
            // SAFETY: what the header asks of the C caller is what this function asks.
            unsafe { $crate::connection::ffi::function(name) as usize }
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_log_text(text: *const ::std::ffi::c_char) {
            // SAFETY: what the header asks of the C caller is what this function asks.
            unsafe { $crate::connection::ffi::log(text) }
        }
    };
}

/// Defines a function of the API under its own name, so that utility code calls the vendor's by it; behind it its value where
/// the vendor's library has no such function.
#[macro_export]
macro_rules! vendor_function {
    (fn $name:ident = $symbol:literal, ($($argument:ident: $type:ty),* $(,)?) -> $result:ty = $missing:expr) => {
        #[unsafe(export_name = $symbol)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            static FOUND: $crate::connection::exports::VendorFunction = $crate::connection::exports::VendorFunction::new();
            const NAME: &::std::ffi::CStr =
                match ::std::ffi::CStr::from_bytes_with_nul(concat!($symbol, "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => c"",
                };
            let address = FOUND.address(NAME);
            if address == 0 {
                return $missing;
            }
            // SAFETY: the vendor's function of this name has the type that the vendor's header declares.
            let function: unsafe extern "C" fn($($type),*) -> $result = unsafe { ::std::mem::transmute(address) };
            // SAFETY: the caller's promise is the one that the vendor's function asks for.
            unsafe { function($($argument),*) }
        }
    };
}

/// The address of a vendor's function, looked up once it is there.
pub struct VendorFunction(AtomicUsize);

impl VendorFunction {
    #[allow(clippy::new_without_default)]
    pub const fn new() -> VendorFunction {
        VendorFunction(AtomicUsize::new(0))
    }

    /// 0: the vendor's library has none of this name, or is not loaded yet.
    #[inline]
    pub fn address(&self, name: &CStr) -> usize {
        match self.0.load(Ordering::Relaxed) {
            0 => self.look_up(name),
            address => address,
        }
    }

    #[cold]
    fn look_up(&self, name: &CStr) -> usize {
        // SAFETY: a NUL-terminated string.
        let address = unsafe { crate::connection::ffi::function(name.as_ptr()) } as usize;
        self.0.store(address, Ordering::Relaxed);
        address
    }
}
