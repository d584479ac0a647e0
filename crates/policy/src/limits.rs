//! What a policy may take, whoever wrote it.

/// Bytes of the object file.
pub const FILE: usize = 4 << 20;
/// Instructions of one program.
pub const INSTRUCTIONS: usize = 4096;
/// Instructions of one decision, loops counted as often as they run: some microseconds.
pub const STEPS: usize = 16_384;
/// Instructions that the verifier looks at, all paths together: bounds the time of a verification.
pub const VISITS: usize = 100_000;
/// States that the verifier remembers, to look at nothing twice: bounds its memory.
pub const STATES: usize = 4096;
/// Bytes of a program's stack.
pub const STACK: i64 = 512;
pub const MAPS: usize = 16;
pub const ENTRIES: u32 = 65_536;
/// Bytes of one map entry.
pub const VALUE: u32 = 64;
/// Bytes of all shared maps of a policy.
pub const SHARED_BYTES: u64 = 16 << 20;
/// Bytes of one tenant's part of all per-tenant maps.
pub const TENANT_BYTES: u64 = 64 << 10;
/// Tenants that a per-tenant map has room for; to more of them it looks full.
pub const TENANTS: usize = 1024;
/// Sections of global variables, and the bytes of one.
pub const DATA_SECTIONS: usize = 4;
pub const DATA_BYTES: u64 = 64 << 10;
