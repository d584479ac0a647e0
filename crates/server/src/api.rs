//! The description of an API in its generated module.

use std::ffi::{CStr, c_char, c_int, c_void};

pub use aviary_gate::Kind as ResourceKind;
pub use aviary_wire::Metadata;

/// Everything constant about one API, printed by the generator.
pub struct ApiDescriptor {
    pub name: &'static str,
    pub version: &'static str,
    pub spec_hash: u64,
    /// Names of the variables that an application may set for the vendor's library, in the specification's order.
    pub environment: &'static [&'static str],
    /// The vendor library.
    pub soname: &'static str,
    /// Further files of it: what the first one lacks is looked for there.
    pub libraries: &'static [&'static str],
    pub functions: &'static [FunctionInfo],
    pub handle_types: &'static [HandleTypeInfo],
    pub resources: &'static [(&'static str, ResourceKind)],
    /// Functions for the state that the vendor's library and utility code keep for the process, beside objects.
    pub state: Option<SessionState>,
    /// The objects one of which is current on each thread.
    pub current: Option<CurrentObject>,
    /// Waits for what the vendor's library was given. 0: all of that is done; more: it is not yet, ask again; less: what
    /// there is ends only by the application's calls.
    pub quiesce: Option<unsafe extern "C" fn() -> c_int>,
    /// Answers why the session cannot move now, NUL-terminated and valid until the thread's next call; NULL: it can.
    pub stays: Option<unsafe extern "C" fn() -> *const c_char>,
    /// Answers how many bytes of content the session's state would have now, beside its pieces. Called while calls are under
    /// way, too.
    pub contents: Option<unsafe extern "C" fn() -> u64>,
    /// The error value that an asynchronous call of this function leaves behind when it is rejected.
    pub rejected: fn(function: u32, Reject) -> i64,
}

pub struct FunctionInfo {
    pub name: &'static str,
    /// The functions for which the guest calls it: what a tenant may do is said of those.
    pub on_behalf_of: &'static [&'static str],
    pub handler: Handler,
    /// Its calls may have to be made again where the session moves.
    pub replayable: bool,
    /// Its calls only wait: one that has not come back may be made again in another process.
    pub waits: bool,
    /// Its handler tells of calls that fail after they have returned, also of those that the tenant may not make.
    pub late: bool,
    /// Why a session that has called it cannot be moved.
    pub blocker: Option<&'static str>,
}

pub struct HandleTypeInfo {
    pub name: &'static str,
    /// Bytes of a native value: 4 or 8.
    pub size: usize,
    /// Values that are no objects and cross as they are.
    pub predefined: &'static [u64],
    /// The structure that each object of the type carries, if any.
    pub metadata: Option<Metadata>,
    /// The name by which another process finds an object of the type.
    pub identity: Option<ObjectName>,
    /// Why a session with such an object cannot be moved.
    pub blocker: Option<&'static str>,
    /// Objects that no record makes again.
    pub remade: Option<RemadeType>,
    /// Objects whose device memory can leave the device.
    pub evictable: Option<EvictableType>,
}

impl HandleTypeInfo {
    /// A type of which nothing else is said.
    pub const fn plain(name: &'static str, size: usize) -> HandleTypeInfo {
        HandleTypeInfo {
            name,
            size,
            predefined: &[],
            metadata: None,
            identity: None,
            blocker: None,
            remade: None,
            evictable: None,
        }
    }
}

/// Answers the name of an object: NUL-terminated, and valid until the thread's next call; NULL: it has none.
pub type ObjectName = unsafe extern "C" fn(u64) -> *const c_char;

/// The name of an object as the specification says it.
///
/// # Safety
/// `identity` may be called with this native value.
pub(crate) unsafe fn name_of(identity: ObjectName, native: u64) -> Option<String> {
    // SAFETY: the caller's promise.
    let name = unsafe { identity(native) };
    if name.is_null() {
        return None;
    }
    // SAFETY: not NULL, so it ends with a NUL and is still there, as `ObjectName` says.
    Some(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
}

/// Utility functions that save and restore what no call brings back. They are given the object's native value.
#[derive(Debug, Clone, Copy)]
pub struct ExplicitState {
    /// Writes up to so many bytes of the state from an offset on, and answers how many; fewer: that was all. Negative: it
    /// cannot.
    pub write: unsafe extern "C" fn(u64, u64, *mut c_void, usize) -> i64,
    /// Restores these bytes at an offset; 0: they are there.
    pub read: unsafe extern "C" fn(u64, u64, *const c_void, usize) -> c_int,
}

/// Utility functions for objects that are saved whole where the session moves, instead of the calls that made them.
#[derive(Debug, Clone, Copy)]
pub struct RemadeType {
    /// Writes what makes the object again, into at most so many bytes, and answers how many; negative: not now.
    pub save: unsafe extern "C" fn(u64, *mut c_void, usize) -> i64,
    /// Makes an object with so many references of these bytes; 0: it cannot.
    pub make: unsafe extern "C" fn(u64, *const c_void, usize) -> u64,
    /// Gives the object, which has its handle now, what is left of the same bytes; 0: done.
    pub load: unsafe extern "C" fn(u64, *const c_void, usize) -> c_int,
}

/// Utility functions for objects whose device memory leaves the device and returns, while they stay. They are given the
/// object's native value, and called while no call is under way.
#[derive(Debug, Clone, Copy)]
pub struct EvictableType {
    /// Bytes of host memory that the content needs; 0: the object's memory stays where it is, or, if it is one that is
    /// dropped, it has none of its own. [`EvictableType::STAYS`]: this object is not dropped.
    pub bytes: unsafe extern "C" fn(u64) -> u64,
    /// Copies all of the content there, and gives the device memory back; 0: it is gone; else nothing has changed.
    pub out: unsafe extern "C" fn(u64, *mut c_void, usize) -> c_int,
    /// Makes device memory for the object, at the same address, and copies the content back; 0: it is there; else nothing
    /// has changed.
    pub back: unsafe extern "C" fn(u64, *const c_void, usize) -> c_int,
    /// The name of the device whose memory it is, as accounts have it; NULL: of none. It stays valid. `None`: the devices
    /// and amounts are those that the object is charged for.
    pub device: Option<unsafe extern "C" fn(u64) -> *const c_char>,
    /// `None`: the object stays. Else it is given back when its content is out (`out` gives nothing back then), with so many
    /// references, and its recorded calls make it again before `back`; 0: nothing holds it any longer.
    pub drop: Option<unsafe extern "C" fn(u64, u64) -> c_int>,
}

impl EvictableType {
    /// Instead of a number of bytes.
    pub const STAYS: u64 = u64::MAX;
}

/// Utility functions for the object that is current on the calling thread. Calls depend on it without naming it.
#[derive(Debug, Clone, Copy)]
pub struct CurrentObject {
    /// The type of such objects.
    pub ty: u32,
    /// The native value of the current one; 0: there is none.
    pub get: unsafe extern "C" fn() -> u64,
    /// Makes this one current, or none; 0: it is.
    pub set: unsafe extern "C" fn(u64) -> c_int,
}

/// The same for what belongs to no object.
#[derive(Debug, Clone, Copy)]
pub struct SessionState {
    pub write: unsafe extern "C" fn(u64, *mut c_void, usize) -> i64,
    pub read: unsafe extern "C" fn(u64, *const c_void, usize) -> c_int,
}

/// A generated handler: it decodes one request, calls the vendor's function, encodes the reply. Made and called by
/// `dispatch`: what it takes is above this description.
#[derive(Clone, Copy)]
pub struct Handler(pub(crate) unsafe fn(*mut c_void) -> Result<(), Reject>);

/// Answers whether the vendor library is done with what `token` stands for; non-zero once, then never asked again. Negative:
/// it has failed, and nothing of an output counts (what is mapped has content all the same).
pub type Poll = unsafe extern "C" fn(token: u64) -> c_int;

/// Why a call never reached the vendor's function, or what it answers instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reject {
    /// The guest sent what no honest guest sends: ends the session.
    Malformed(&'static str),
    /// A handle of this type that does not exist in this session.
    InvalidHandle(u32),
    /// Not in this way.
    Unsupported,
    /// The vendor library has no such function.
    Absent,
    /// A quota or policy said no.
    Refused,
    /// The call would end an object that a call of another thread still uses.
    Busy,
    /// The call fails with this value of the API's error type.
    Failed(i64),
    /// The session ended, or went on in another process, while the call waited: nobody must be answered here.
    Over,
}

/// The treatment of a handle by the reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Mentions an object that exists on its own.
    Borrow,
    /// Created it, or adds a reference that the guest will release.
    Allocate,
}
