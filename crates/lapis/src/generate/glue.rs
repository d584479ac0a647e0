//! What surrounds the printed Rust: the C side of utility code and the crates' build files.

use crate::model::{Model, Side};
use proc_macro2::TokenStream;
use quote::quote;
use std::path::PathBuf;

/// C functions of `aviary.h` in the guest library.
pub fn guest_exports() -> TokenStream {
    quote! {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_metadata(handle: usize, kind: u32) -> usize {
            unsafe { API.metadata(handle as u64, kind) as usize }
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_zerocopy_alloc(bytes: usize) -> usize { unsafe { API.zerocopy_alloc(bytes) as usize } }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_zerocopy_free(pointer: usize) { unsafe { API.zerocopy_free(pointer as *mut u8) } }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_zerocopy_alloc_uninitialized(bytes: usize) -> usize {
            unsafe { API.zerocopy_alloc_uninitialized(bytes) as usize }
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_zerocopy_lend(pointer: usize) { unsafe { API.zerocopy_lend(pointer as *mut u8) } }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_connected() -> std::ffi::c_int { unsafe { API.connected() as std::ffi::c_int } }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_is_zerocopy(pointer: usize) -> std::ffi::c_int {
            unsafe { API.is_zerocopy(pointer as *const u8) as std::ffi::c_int }
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_is_shared(pointer: usize, bytes: usize) -> std::ffi::c_int {
            unsafe { API.is_shared(pointer as *const u8, bytes) as std::ffi::c_int }
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_is_handle(value: usize) -> std::ffi::c_int {
            unsafe { API.is_handle(value as u64) as std::ffi::c_int }
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_function(name: usize) -> usize { unsafe { function_by_name(name) } }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_log_text(text: *const std::ffi::c_char) { unsafe { aviary_guest::ffi::log(text) } }
    }
}

/// The same in the API server module.
pub fn server_exports() -> TokenStream {
    quote! {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_metadata(handle: usize, kind: u32) -> usize {
            unsafe { aviary_server::ffi::metadata(handle as *const std::ffi::c_void, kind) as usize }
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_is_zerocopy(pointer: usize) -> std::ffi::c_int {
            unsafe { aviary_server::ffi::is_zerocopy(pointer as *const std::ffi::c_void) as std::ffi::c_int }
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_zerocopy_return(pointer: usize) {
            unsafe { aviary_server::ffi::zerocopy_return(pointer as *const std::ffi::c_void) }
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_owes_error() -> std::ffi::c_int { aviary_server::ffi::owes_error() }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_watch_time() -> u64 { aviary_server::ffi::watch_time() }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_device_gets_work(device: u64) -> std::ffi::c_int {
            aviary_server::ffi::device_gets_work(device)
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_device_pause(device: u64) { unsafe { aviary_server::ffi::device_pause(device) } }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_charge_keep(number: u64) { unsafe { aviary_server::ffi::charge_keep(number) } }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_charge_return(number: u64) { unsafe { aviary_server::ffi::charge_return(number) } }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_allowance(
            resource: *const std::ffi::c_char,
            device: *const std::ffi::c_char,
            limit: *mut u64,
            left: *mut u64,
        ) -> std::ffi::c_int {
            unsafe { aviary_server::ffi::allowance(resource, device, limit, left) }
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_may_use(device: *const std::ffi::c_char) -> std::ffi::c_int {
            unsafe { aviary_server::ffi::may_use(device) }
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_offer(
            descriptor: std::ffi::c_int,
            note: u64,
            name: *mut aviary_server::OfferName,
        ) -> std::ffi::c_int {
            unsafe { aviary_server::ffi::offer(descriptor, note, name) }
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_withdraw(name: *const aviary_server::OfferName) {
            unsafe { aviary_server::ffi::withdraw(name) }
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_fetch(name: *const aviary_server::OfferName, note: *mut u64) -> std::ffi::c_int {
            unsafe { aviary_server::ffi::fetch(name, note) }
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_function(name: *const std::ffi::c_char) -> usize {
            unsafe { aviary_server::ffi::function(name) as usize }
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_log_text(text: *const std::ffi::c_char) { unsafe { aviary_server::ffi::log(text) } }
        unsafe extern "C" {
            fn aviary_preload_utility();
        }
    }
}

/// `Cargo.toml` of one side's crate; `runtime` is the folder that holds the runtime crates.
pub fn manifest(model: &Model, side: Side, runtime: &str) -> String {
    let (crate_name, dependency) = match side {
        Side::Guest => ("guest", "aviary-guest"),
        _ => ("server", "aviary-server"),
    };
    let folder = dependency.trim_start_matches("aviary-");
    format!(
        "[package]\nname = \"{api}-{crate_name}\"\nversion = \"0.0.0\"\nedition = \"2024\"\nbuild = \"build.rs\"\n\n\
         [lib]\nname = \"aviary_{api}_{crate_name}\"\npath = \"lib.rs\"\ncrate-type = [\"cdylib\"]\n\n\
         [dependencies]\n{dependency} = {{ path = \"{runtime}/{folder}\" }}\n\n\
         [build-dependencies]\ncc = \"1\"\n",
        api = crate_identifier(&model.api.name),
    )
}

/// The API's name as a part of crate names.
pub fn crate_identifier(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' }).collect()
}

/// `Cargo.toml` of the workspace around both crates. The way of a call leads through four runtime crates, a
/// few instructions in each: without link-time optimisation a fifth of its instructions only pass it on.
pub const WORKSPACE: &str = "[workspace]\nresolver = \"3\"\nmembers = [\"guest\", \"server\"]\n\n\
    [profile.release]\nopt-level = 3\ncodegen-units = 1\nlto = \"thin\"\ndebug = \"line-tables-only\"\n";

/// `build.rs` of one side's crate: compiles the C files, each by itself, and fixes the library's name. `headers` are
/// files whose change has to be noticed besides.
pub fn build_script(model: &Model, side: Side, flags: &[String], files: &[PathBuf], headers: &[PathBuf]) -> String {
    let list = |items: &mut dyn Iterator<Item = String>| items.map(|i| format!("    {i:?},\n")).collect::<String>();
    let paths = |paths: &[PathBuf]| list(&mut paths.iter().map(|p| p.to_string_lossy().into_owned()));
    let (files, headers, flags) = (paths(files), paths(headers), list(&mut flags.iter().cloned()));
    let soname = match side {
        Side::Guest => format!("    println!(\"cargo::rustc-cdylib-link-arg=-Wl,-soname,{}\");\n", model.api.soname),
        _ => String::new(),
    };
    format!(
        "const FILES: &[&str] = &[\n{files}];\nconst HEADERS: &[&str] = &[\n{headers}];\n\
         const FLAGS: &[&str] = &[\n{flags}];\n\n\
         fn main() {{\n    let mut build = cc::Build::new();\n\
         \x20   for file in FILES.iter().chain(HEADERS) {{\n\
         \x20       println!(\"cargo::rerun-if-changed={{file}}\");\n    }}\n\
         \x20   build.files(FILES).flags(FLAGS).warnings(false);\n\
         \x20   // Files whose functions only a constructor calls are part of the library, too.\n\
         \x20   build.link_lib_modifier(\"+whole-archive\").compile(\"utility\");\n\
         \x20   // A call from utility code or a table to one of our own functions stays inside this library,\n\
         \x20   // whatever else the process has loaded under the same name; what no file defines is an error now.\n\
         \x20   println!(\"cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic,-z,defs\");\n{soname}}}\n"
    )
}
