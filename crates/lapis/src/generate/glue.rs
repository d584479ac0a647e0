//! What surrounds the printed Rust: the C side of utility code and the crates' build files.

use crate::model::{Model, Side};
use proc_macro2::TokenStream;
use quote::quote;

/// The header that utility code is compiled with.
pub const AVIARY_H: &str = include_str!("../../include/aviary.h");

/// C functions of `aviary.h` in the guest library.
pub fn guest_exports() -> TokenStream {
    quote! {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_metadata(handle: usize) -> usize { unsafe { API.metadata(handle as u64) as usize } }
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
        unsafe extern "C" fn aviary_metadata(handle: usize) -> usize {
            unsafe { aviary_server::ffi::metadata(handle as *const std::ffi::c_void) as usize }
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
        unsafe extern "C" fn aviary_patience() -> u64 { aviary_server::ffi::patience() }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_wait_number() -> u64 { aviary_server::ffi::wait_number() }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_watch_time() -> u64 { aviary_server::ffi::watch_time() }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_slice_time() -> u64 { aviary_server::ffi::slice_time() }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_takes_turns() -> std::ffi::c_int { aviary_server::ffi::takes_turns() }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn aviary_is_private_node() -> std::ffi::c_int { aviary_server::ffi::is_private_node() }
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

/// The C file with one side's utility code.
pub fn utility_c(model: &Model, side: Side) -> String {
    let macro_name = if side == Side::Guest { "AVIARY_GUEST" } else { "AVIARY_SERVER" };
    let mut c = format!("#define _GNU_SOURCE\n#define {macro_name} 1\n");
    for line in &model.preamble {
        c.push_str(line);
        c.push('\n');
    }
    c.push_str("#include <stdarg.h>\n#include <stdio.h>\n#include \"aviary.h\"\n");
    for declaration in &model.declarations {
        c.push_str(declaration);
        c.push('\n');
    }
    for utility in model.utilities.iter().filter(|u| u.side == side || u.side == Side::Both) {
        c.push_str(&utility.code);
        c.push('\n');
    }
    c.push_str(LOG_C);
    if side == Side::Server {
        c.push_str(PRELOAD_C);
    }
    c
}

/// Formatting stays in C because only C can take variable arguments.
const LOG_C: &str = "
void aviary_log_text(const char *text);
__attribute__((visibility(\"hidden\"))) void aviary_log(const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    aviary_log_text(text);
}
";

/// Only C can ask whether a function was defined.
const PRELOAD_C: &str = "
void aviary_preload_utility(void) {
    if (aviary_preload)
        aviary_preload();
}
";

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

/// `build.rs` of one side's crate: compiles the utility code and fixes the library's name.
pub fn build_script(model: &Model, side: Side) -> String {
    let mut includes = String::new();
    for dir in &model.include_dirs {
        // Cargo runs the build script elsewhere; a folder that is gone is the C compiler's to report.
        let dir = dir.canonicalize().unwrap_or_else(|_| dir.clone());
        includes.push_str(&format!("    build.include({:?});\n", dir.to_string_lossy()));
    }
    let soname = match side {
        Side::Guest => format!("    println!(\"cargo::rustc-cdylib-link-arg=-Wl,-soname,{}\");\n", model.api.soname),
        _ => String::new(),
    };
    format!(
        "fn main() {{\n    println!(\"cargo::rerun-if-changed=utility.c\");\n    let mut build = cc::Build::new();\n\
         \x20   build.file(\"utility.c\").include(\"..\").flag(\"-fvisibility=hidden\").warnings(false);\n\
         {includes}    build.compile(\"utility\");\n\
         \x20   // A call from utility code or a table to one of our own functions stays inside this library,\n\
         \x20   // whatever else the process has loaded under the same name.\n\
         \x20   println!(\"cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic\");\n{soname}}}\n"
    )
}
