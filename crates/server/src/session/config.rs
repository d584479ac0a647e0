//! The limits that keep one guest from exhausting its API server.

/// Lanes, that is threads, of one connection.
pub const MAX_LANES: usize = 1024;
/// Scratch memory of one call.
pub const MAX_SCRATCH: usize = 1 << 30;
/// Callbacks that a connection may have registered at a time.
pub const MAX_CALLBACKS: usize = 1 << 16;
/// Bytes of callbacks that wait for the guest to run those before them.
pub const MAX_POSTED_BYTES: usize = 64 << 20;
/// Deliveries that may be under way at a time.
pub const MAX_LATE: usize = 1 << 20;
/// Bytes of small inputs that the vendor library may still read, for all deliveries together.
pub const MAX_LATE_BYTES: usize = 256 << 20;
/// Vendor memory mapped by the guest at a time, where it cannot be shared.
pub const MAX_MAPPINGS: usize = 1 << 16;
/// Objects whose memory one object shares, and pieces of memory of each.
pub const MAX_USED_MEMORY: u64 = 1 << 16;
/// Pieces of the library's memory that the guest's application has to free.
pub const MAX_FREED: usize = 1 << 20;
/// States that the guest's application has at a time.
pub const MAX_STATES: usize = 1 << 16;
/// Bytes of all of them, with the memory that the library keeps with them.
pub const MAX_STATE_BYTES: usize = 1 << 30;
/// Bytes of earlier contents of states, for copies of their structs.
pub const MAX_VERSIONS_BYTES: usize = 64 << 20;
/// Callbacks inside calls inside callbacks, on one lane.
pub const MAX_NESTING: usize = 64;
/// Addresses an arena may span: 64 GiB are usual.
pub const MAX_ARENA: u64 = 1 << 40;
