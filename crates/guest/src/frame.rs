//! The memory of one call, reused for the next.

use aviary_transport::Region;
use aviary_wire::Encoder;

use crate::blocks::Block;

/// Bytes above which a buffer is freed after use.
const MAX_KEPT_BYTES: usize = 1 << 20;

/// The source of an output's bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutputSource {
    /// None: the application passed NULL.
    Nowhere,
    /// The reply, in which the bytes follow.
    Message,
    /// A block that belongs to the call, by its offset.
    Block(u64),
    /// The application's buffer, which is shared memory itself.
    Direct,
}

/// An output of the request.
#[derive(Clone, Copy)]
pub(crate) struct Output {
    pub to: *mut u8,
    pub bytes: usize,
    pub source: OutputSource,
}

/// An action on shared memory after the vendor's function succeeded.
#[derive(Clone, Copy)]
pub(crate) enum End {
    /// Copy the shadow back.
    Shadow { to: *mut u8, bytes: usize, offset: u64, end: bool },
    /// Ends the mapping.
    Mapping { pointer: usize, id: u64 },
    /// The application has freed the copy at this address.
    Freed { address: usize },
    /// The application waits for this callback, which is called at most once.
    Callback { id: u64 },
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
    /// Callbacks that this call registered and that are called at most once.
    pub once: Vec<u64>,
    /// Handles that the guest allocated for the objects that this call creates.
    pub minted: Vec<u64>,
    /// Handles that this call ends: the application's value and its id.
    pub ending: Vec<(u64, u64)>,
    /// Arena regions with inputs.
    pub regions: Vec<Region>,
    /// Blocks to free after the call.
    pub blocks: Vec<Block>,
    /// True if the server accesses memory of the application that may change once the call has
    /// returned.
    pub lent: bool,
    pub reply: Vec<u8>,
    /// For `cache`: ranges of the request that hold outputs' present content, not arguments.
    pub contents: Vec<(usize, usize)>,
    /// For `cache`: the request without the present content of outputs.
    pub key: Vec<u8>,
    /// For `cache`: the ids in the request; the reply is forgotten with any of their handles.
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

    /// Frees large buffers after an unusually large call.
    #[inline]
    pub fn slim(&mut self) {
        if self.encoder.capacity() > MAX_KEPT_BYTES {
            self.encoder.shrink(MAX_KEPT_BYTES);
        }
        if self.reply.capacity() > MAX_KEPT_BYTES {
            self.reply.clear();
            self.reply.shrink_to(MAX_KEPT_BYTES);
        }
    }
}
