//! The C interface between the generic API server process and a generated module.
//!
//! Both sides contain a copy of this crate, perhaps of different versions, so
//! only plain C types cross, and `abi_version` is checked first.

use std::ffi::c_void;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Once, OnceLock};

pub use aviary_delegate::door::DoorTable;

use crate::api::ApiDescriptor;
use crate::connection::exchange::{self, ExchangeAbi};
use crate::connection::{self, Connection, MovedState};
use crate::session::Journal;
use crate::session::printed::{Look, Printed};
use crate::session::vendor::{place, try_loading};

/// Changes whenever the structures below or the meaning of their fields change.
pub const ABI_VERSION: u32 = 11;

/// The exported symbol.
pub const ENTRY: &std::ffi::CStr = c"aviary_module";

#[repr(C)]
pub struct ModuleAbi {
    pub abi_version: u32,
    pub spec_hash: u64,
    pub name: *const u8,
    pub name_length: usize,
    pub version: *const u8,
    pub version_length: usize,
    pub serve: extern "C" fn(*const ServeArguments) -> i32,
    /// Loads the vendor's library and what that loads at its first call, in a process that will be copied.
    pub preload: extern "C" fn(),
    /// Loads and starts the vendor's library for a session that may come.
    pub prepare: extern "C" fn(*const PrepareArguments),
}

// SAFETY: the pointers name string constants of the module, which is never unloaded.
unsafe impl Send for ModuleAbi {}
// SAFETY: as above.
unsafe impl Sync for ModuleAbi {}

/// Events, for [`ServeArguments::event`].
pub mod event {
    pub const STARTED: u32 = 1;
    /// With the reason as its text.
    pub const ENDED: u32 = 2;
}

/// A session that may come to this process. Memory is borrowed for the call.
#[repr(C)]
pub struct PrepareArguments {
    /// A whole `Hello`.
    pub hello: *const u8,
    pub hello_length: usize,
    pub private: bool,
    /// Where the node says that the vendor's library is; empty: it says nothing.
    pub vendor: *const u8,
    pub vendor_length: usize,
}

/// A connection that a module shall serve. Descriptors become the module's; memory is borrowed for the call.
#[repr(C)]
pub struct ServeArguments {
    pub session: u64,
    pub socket: RawFd,
    /// -1 where the arena is mirrored.
    pub arena: RawFd,
    pub stats: RawFd,
    /// Page and bell of the devices; -1 if the node schedules nothing.
    pub grants: RawFd,
    pub bell: RawFd,
    /// The accounts of the tenant; -1: the session has its own.
    pub tenant_page: RawFd,
    /// Where what the vendor's library prints can be read, standard output and standard error; -1: the guest has it.
    pub printed: [RawFd; 2],
    /// The node's log; remains the process's.
    pub journal: RawFd,
    /// A whole `Hello`.
    pub hello: *const u8,
    pub hello_length: usize,
    /// The node's JSON.
    pub config: *const u8,
    pub config_length: usize,
    /// Of the process; NULL if it has none.
    pub exchange: *const ExchangeAbi,
    /// A socket: orders to move come, and reports go (`aviary_control::MoveOrder`); -1: the session is never moved.
    pub orders: RawFd,
    /// The sealed file with the state of a session that another process has served; -1: the guest has just attached. Then
    /// `hello` is not looked at, and the guest hears nothing.
    pub snapshot: RawFd,
    /// The file of that session's application heap; -1: there is none.
    pub heap: RawFd,
    /// A socket with descriptors that the module handed over with the state; -1: there is none.
    pub handed: RawFd,
    pub event: extern "C" fn(context: *mut c_void, event: u32, text: *const u8, length: usize),
    pub context: *mut c_void,
}

impl ModuleAbi {
    pub const fn new(
        api: &ApiDescriptor,
        serve: extern "C" fn(*const ServeArguments) -> i32,
        preload: extern "C" fn(),
        prepare: extern "C" fn(*const PrepareArguments),
    ) -> ModuleAbi {
        ModuleAbi {
            abi_version: ABI_VERSION,
            spec_hash: api.spec_hash,
            name: api.name.as_ptr(),
            name_length: api.name.len(),
            version: api.version.as_ptr(),
            version_length: api.version.len(),
            serve,
            preload,
            prepare,
        }
    }
}

/// Loads the vendor's library. Whether that succeeds is the business of the session that needs it.
pub fn preload(api: &ApiDescriptor) {
    let _ = try_loading(&place(api.name, api.soname));
}

/// Loads the vendor's library as a session that may come will need it, and lets `start` start it. Failures are told by the
/// session itself, if it comes. Without `start` nothing is done: the library is loaded at the same point as in the process
/// that the session attached to, and finds the same addresses free.
///
/// # Safety
/// `arguments` points to a filled-in structure whose pointers are valid during the call; `start` may be called on any thread
/// once the vendor's library is loaded.
pub unsafe fn prepare(
    api: &'static ApiDescriptor,
    arguments: *const PrepareArguments,
    start: Option<unsafe extern "C" fn()>,
) {
    let Some(start) = start else { return };
    // SAFETY: the caller's promise.
    let arguments = unsafe { &*arguments };
    // SAFETY: the caller's promise about pointers and lengths.
    let bytes = |p: *const u8, n: usize| unsafe { std::slice::from_raw_parts(p, n) };
    let vendor = std::str::from_utf8(bytes(arguments.vendor, arguments.vendor_length)).unwrap_or_default();
    let hello = bytes(arguments.hello, arguments.hello_length);
    let vendor = Some(vendor).filter(|path| !path.is_empty());
    let loaded = || connection::load_for(api, hello, arguments.private, vendor);
    let is_loaded = catch_unwind(AssertUnwindSafe(loaded)).unwrap_or_default();
    if is_loaded {
        // SAFETY: the caller's promise.
        unsafe { start() }
    }
}

/// The door behind which this module serves, if it is one.
static DOOR: OnceLock<&'static DoorTable> = OnceLock::new();

/// The exported symbol of [`open_door`], which a process need not call.
pub const OPEN_DOOR: &std::ffi::CStr = c"aviary_open_door";

/// The lanes of all later connections can be borrowed through this door. NULL, or one of another version, changes nothing.
pub fn open_door(table: Option<&'static DoorTable>) {
    if let Some(door) = table.filter(|door| door.is_known()) {
        let _ = DOOR.set(door);
    }
}

/// Serves one connection; returns when it is over.
///
/// # Safety
/// `arguments` points to a filled-in structure whose pointers are valid during the call and whose
/// descriptors are open and handed over.
pub unsafe fn serve(api: &'static ApiDescriptor, arguments: *const ServeArguments) -> i32 {
    // SAFETY: the caller's promise.
    let arguments = unsafe { &*arguments };
    let end = |text: &str| (arguments.event)(arguments.context, event::ENDED, text.as_ptr(), text.len());
    report_panics(arguments);
    // SAFETY: NULL or a table that is valid during the call.
    if let Some(exchange) = unsafe { arguments.exchange.as_ref() } {
        exchange::introduce(*exchange);
    }
    // SAFETY: the caller's promise.
    let serve = || connection::serve(api, unsafe { Connection::from_arguments(arguments) });
    match catch_unwind(AssertUnwindSafe(serve)) {
        Ok(reason) => {
            end(&reason);
            0
        }
        Err(_) => {
            end("internal error: the connection's thread panicked");
            1
        }
    }
}

/// Standard error is the guest's: what a panic says belongs into the node's log.
fn report_panics(arguments: &ServeArguments) {
    static HOOK: Once = Once::new();
    let journal = Journal { fd: arguments.journal, session: arguments.session };
    HOOK.call_once(|| std::panic::set_hook(Box::new(move |panic| journal.note(&panic.to_string()))));
}

impl Connection {
    /// # Safety
    /// As for [`serve`].
    unsafe fn from_arguments(arguments: &ServeArguments) -> Connection {
        // SAFETY: the caller's promise: open descriptors that are ours from now on.
        let own = |fd: RawFd| (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) });
        // SAFETY: the caller's promise about pointers and lengths.
        let bytes = |p: *const u8, n: usize| unsafe { std::slice::from_raw_parts(p, n) }.to_vec();
        let (notify, context) = (arguments.event, arguments.context);
        Connection {
            socket: own(arguments.socket),
            arena: own(arguments.arena),
            stats: own(arguments.stats),
            grants: own(arguments.grants).zip(own(arguments.bell)),
            tenant_page: own(arguments.tenant_page),
            printed: own(arguments.printed[0])
                .zip(own(arguments.printed[1]))
                .and_then(|(out, errors)| Printed::new([out, errors], Look::IfLikely).ok()),
            journal: Journal { fd: arguments.journal, session: arguments.session },
            hello: bytes(arguments.hello, arguments.hello_length),
            config: bytes(arguments.config, arguments.config_length),
            started: Box::new(move || notify(context, event::STARTED, std::ptr::null(), 0)),
            orders: own(arguments.orders),
            door: DOOR.get().copied(),
            state: own(arguments.snapshot).map(|snapshot| MovedState {
                snapshot,
                heap: own(arguments.heap),
                handed: own(arguments.handed),
            }),
        }
    }
}

/// Exports a module's entry: the argument is a `static ApiDescriptor`; after it perhaps three `unsafe extern "C" fn()`:
/// one that loads what the vendor's library loads at its first call, one that starts that library, and those that answer the
/// functions that list its devices, who has memory there, and what contexts take of it.
#[macro_export]
macro_rules! export_module {
    ($api:path $(, $preload:path, $start:path, $devices:path, $holders:path, $contexts:path)?) => {
        extern "C" fn aviary_serve(arguments: *const $crate::connection::module::ServeArguments) -> i32 {
            // SAFETY: the API server process calls this with arguments as `serve` requires them.
            unsafe { $crate::connection::module::serve(&$api, arguments) }
        }

        extern "C" fn aviary_preload_all() {
            $crate::connection::module::preload(&$api);
            // SAFETY: the specification's own function; the zygote calls it once, on its only thread.
            $(unsafe { $preload() })?
        }

        extern "C" fn aviary_prepare_for(arguments: *const $crate::connection::module::PrepareArguments) {
            // SAFETY: the specification's own function, which answers another one of it.
            let start: &[Option<unsafe extern "C" fn()>] = &[$(unsafe { $start() })?];
            // SAFETY: the API server process calls this with arguments as `prepare` requires them; the function is the
            // specification's own.
            unsafe { $crate::connection::module::prepare(&$api, arguments, start.first().copied().flatten()) }
        }

        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn aviary_list_devices(
                library: *const ::std::ffi::c_char,
                tell: $crate::connection::listing::TellDevice,
                context: *mut ::std::ffi::c_void,
            ) -> i32 {
                // SAFETY: the caller passes what `list` asks for; the function is the specification's own.
                unsafe { $crate::connection::listing::list(&$api, library, $devices(), tell, context) }
            }

            #[unsafe(no_mangle)]
            unsafe extern "C" fn aviary_list_holders(
                library: *const ::std::ffi::c_char,
                tell: $crate::connection::listing::TellHolder,
                context: *mut ::std::ffi::c_void,
            ) -> i32 {
                // SAFETY: the caller passes what `list_holders` asks for; the function is the specification's own.
                unsafe { $crate::connection::listing::list_holders(&$api, library, $holders(), tell, context) }
            }

            #[unsafe(no_mangle)]
            unsafe extern "C" fn aviary_list_contexts(
                library: *const ::std::ffi::c_char,
                tell: $crate::connection::listing::TellHolder,
                context: *mut ::std::ffi::c_void,
            ) -> i32 {
                // SAFETY: the caller passes what `list_holders` asks for; the function is the specification's own.
                unsafe { $crate::connection::listing::list_holders(&$api, library, $contexts(), tell, context) }
            }
        )?

        #[unsafe(no_mangle)]
        pub extern "C" fn aviary_open_door(table: Option<&'static $crate::connection::module::DoorTable>) {
            $crate::connection::module::open_door(table);
        }

        #[unsafe(no_mangle)]
        pub extern "C" fn aviary_module() -> *const $crate::connection::module::ModuleAbi {
            static MODULE: std::sync::OnceLock<$crate::connection::module::ModuleAbi> = std::sync::OnceLock::new();
            MODULE.get_or_init(|| $crate::connection::module::ModuleAbi::new(&$api, aviary_serve, aviary_preload_all, aviary_prepare_for))
        }
    };
}
