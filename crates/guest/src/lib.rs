//! Runtime of generated guest libraries.
//!
//! A generated library has one static [`Api`]. Its stubs open a [`Call`], write the fields of the
//! request, send it and read the fields of the [`Reply`]; the normative description is
//! `docs/runtime.md`. This crate runs inside the application's process: it never panics into it,
//! prints only a few lines on standard error, starts no thread unless the application registers
//! callbacks or the API's utility code asks for one, and answers [`Lost`] when there is no server.

mod api;
mod call;
mod connection;
mod descriptor;
mod exports;
mod handles;
mod lane;
mod memory;
mod objects;
mod process;
mod reply;

pub use api::{Api, guard};
pub use aviary_transport::bounds;
pub use aviary_wire::Metadata;
pub use call::Call;
pub use connection::incoming::Incoming;
pub use descriptor::{ApiDescriptor, CallbackFn, CallbackKind, Lost, Status};
pub use handles::handle_type::{HandleType, Role};
pub use handles::tables::VendorTable;
pub use memory::overlaps::Overlaps;
pub use objects::foreign::Keep;
#[doc(hidden)]
pub use process::{ffi, trace};
pub use reply::Reply;

/// The whole body of a naked function that is another name for the C function `target`: arguments and stack are the caller's.
#[macro_export]
macro_rules! jump {
    ($target:ident) => {
        $crate::jump_to!($target)
    };
}

#[cfg(target_arch = "x86_64")]
#[doc(hidden)]
#[macro_export]
macro_rules! jump_to {
    ($target:ident) => {
        ::std::arch::naked_asm!("jmp {}", sym $target)
    };
}

#[cfg(target_arch = "aarch64")]
#[doc(hidden)]
#[macro_export]
macro_rules! jump_to {
    ($target:ident) => {
        ::std::arch::naked_asm!("b {}", sym $target)
    };
}

/// True with AVIARY_RELAXED=1: specifications may let more calls proceed without waiting for their
/// replies.
pub fn relaxed() -> bool {
    static RELAXED: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *RELAXED.get_or_init(|| process::settings::flag_set("AVIARY_RELAXED"))
}
