//! Runtime of generated guest libraries.
//!
//! A generated library has one static [`Api`]. Its stubs open a [`Call`], write the fields of the
//! request, send it and read the fields of the [`Reply`]; the normative description is
//! `docs/runtime.md`. This crate runs inside the application's process: it never panics into it,
//! prints only a few lines on standard error, starts no thread unless the application registers
//! callbacks or the API's utility code asks for one, and answers [`Lost`] when there is no server.

mod api;
mod attach;
mod backpressure;
mod blocks;
mod bound;
mod boxes;
mod cache;
mod call;
mod callback;
mod cancellation;
mod chains;
mod connection;
mod deliveries;
mod descriptor;
mod exports;
pub mod ffi;
mod fork;
mod frame;
mod guest_ids;
mod handles;
mod heap;
mod incoming;
mod interned;
mod keeper;
mod kept;
mod lane;
mod log;
mod mappings;
mod output;
mod pins;
mod registry;
mod reply;
mod shadows;
mod shapes;
mod states;
mod tables;
pub mod trace;
mod unwind;
mod zerocopy;

pub use api::{Api, guard};
pub use aviary_transport::bounds;
pub use aviary_wire::Metadata;
pub use call::Call;
pub use descriptor::{ApiDescriptor, CallbackFn, CallbackKind, HandleType, Lost, Role, Status};
pub use incoming::Incoming;
pub use kept::Keep;
pub use reply::Reply;
pub use tables::VendorTable;

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
    *RELAXED.get_or_init(|| attach::flag_set("AVIARY_RELAXED"))
}
