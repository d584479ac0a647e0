//! What the arbiter of memory is told, and what it says.

/// A device whose memory is shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Bytes that may be on it at a time.
    pub memory: u64,
    /// Bytes that sessions may have of it, in and out.
    pub most: u64,
}

/// How long the arbiter waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// For room, before an allocation is refused, in nanoseconds.
    pub room: u64,
    /// For the answer to an order, before the session is late.
    pub leave: u64,
}

/// What is to be done now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    Evict {
        session: u64,
        /// Bytes of the one device that it has memory on which must leave at least; `None`: all that it has.
        part: Option<u64>,
    },
    /// As far as its credit goes.
    Return {
        session: u64,
    },
    /// It has more credit.
    Credit {
        session: u64,
    },
    Grant {
        session: u64,
        request: u64,
    },
    Refuse {
        session: u64,
        request: u64,
    },
}

/// The session cannot have done that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Impossible;
