//! Bounds of what clients may take.

/// Bounds of what clients may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Clients at the same time.
    pub clients: usize,
    /// Memories of a client, whatever is mapped of them. Each takes a descriptor and a mapping of this process, of which all
    /// clients together must leave it enough: the kernel gives 65,530 mappings.
    pub memories: usize,
    /// Bytes that a client may have mapped.
    pub mapped_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { clients: 32, memories: 64, mapped_bytes: 64 << 30 }
    }
}
