//! The memory of one call, reused for the next.

use aviary_transport::Region;
use aviary_wire::Encoder;

use crate::blocks::Block;

/// Buffers above this are given back after use.
const KEEP: usize = 1 << 20;

/// Where the bytes of an output come from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// The application passed NULL.
    Nowhere,
    /// They follow in the reply.
    Message,
    /// They are in a block that belongs to the call.
    Block(u64),
    /// The application's buffer is itself shared memory.
    Direct,
}

/// An output of the request.
#[derive(Clone, Copy)]
pub(crate) struct Output {
    pub to: *mut u8,
    pub bytes: usize,
    pub place: Place,
}

/// What happens to shared memory after the vendor's function succeeded.
#[derive(Clone, Copy)]
pub(crate) enum End {
    /// Copy the shadow back.
    Shadow { to: *mut u8, bytes: usize, offset: u64, end: bool },
    /// The mapping is over.
    Mapping { pointer: usize, id: u64 },
}

/// One call's request and reply.
#[derive(Default)]
pub(crate) struct Frame {
    pub encoder: Encoder,
    pub outputs: Vec<Output>,
    /// For each `buffer_until`: the offset of the block that waits for a delivery.
    pub untils: Vec<Option<u64>>,
    pub ends: Vec<End>,
    /// Shadows that this call made.
    pub new_shadows: Vec<*mut u8>,
    /// Callbacks that are called at most once and were registered by this call.
    pub once: Vec<u64>,
    /// Handles of what this call creates, which the guest named beforehand.
    pub minted: Vec<u64>,
    /// Handles that this call ends: the application's value and its id.
    pub ending: Vec<(u64, u64)>,
    /// Arena regions with inputs.
    pub regions: Vec<Region>,
    /// Freed after the call.
    pub blocks: Vec<Block>,
    /// The server sees memory of the application that may change once the call has returned.
    pub lent: bool,
    pub reply: Vec<u8>,
    /// For `cache`: ranges of the request that hold outputs' present content, not arguments.
    pub contents: Vec<(usize, usize)>,
    /// For `cache`: the request without that content.
    pub key: Vec<u8>,
    /// For `cache`: the ids in the request; with a handle go the answers about it.
    pub handles: Vec<u64>,
}

impl Frame {
    #[inline]
    pub fn reset(&mut self) {
        self.encoder.start();
        self.outputs.clear();
        self.untils.clear();
        self.ends.clear();
        self.new_shadows.clear();
        self.once.clear();
        self.minted.clear();
        self.ending.clear();
        self.regions.clear();
        self.blocks.clear();
        self.lent = false;
        self.contents.clear();
        self.key.clear();
        self.handles.clear();
    }

    /// After an unusually large call.
    #[inline]
    pub fn slim(&mut self) {
        if self.encoder.capacity() > KEEP {
            self.encoder.shrink(KEEP);
        }
        if self.reply.capacity() > KEEP {
            self.reply.clear();
            self.reply.shrink_to(KEEP);
        }
    }
}
