//! Limits of a policy, for any author.

/// Bytes of the object file.
pub const MAX_FILE_BYTES: usize = 4 << 20;
/// Instructions of one program.
pub const MAX_INSTRUCTIONS: usize = 4096;
/// Instructions of one decision, loops counted as often as they run: takes some microseconds.
pub const MAX_STEPS: usize = 16_384;
/// Instructions that the verifier visits, all paths together: bounds the time of a verification.
pub const MAX_VISITS: usize = 100_000;
/// States that the verifier remembers, so that no state is walked twice: bounds its memory.
pub const MAX_STATES: usize = 4096;
/// Bytes of a program's stack.
pub const MAX_STACK_BYTES: i64 = 512;
/// Maps of a policy.
pub const MAX_MAPS: usize = 16;
/// Entries of one map, or of one tenant in it.
pub const MAX_ENTRIES: u32 = 65_536;
/// Bytes of one map entry.
pub const MAX_VALUE_BYTES: u32 = 64;
/// Bytes of all shared maps of a policy.
pub const MAX_SHARED_BYTES: u64 = 16 << 20;
/// Bytes of one tenant's part of all per-tenant maps.
pub const MAX_TENANT_BYTES: u64 = 64 << 10;
/// Tenants for which a per-tenant map has room; to further tenants it looks full.
pub const MAX_TENANTS: usize = 1024;
/// Sections of global variables of a policy.
pub const MAX_DATA_SECTIONS: usize = 4;
/// Bytes of one section of global variables.
pub const MAX_DATA_BYTES: u64 = 64 << 10;
