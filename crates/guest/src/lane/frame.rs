//! The memory of one call, reused for the next.

use aviary_transport::{Region, Rows};
use aviary_wire::Encoder;

use crate::memory::block::Block;
use crate::memory::crew::Copies;
use crate::memory::early::Early;
use crate::memory::outputs::{Before, Output, OutputSource, write_back};
use crate::memory::overlaps::{Overlaps, Piece};

/// Bytes above which a buffer is freed after use.
const MAX_KEPT_BYTES: usize = 1 << 20;

/// An action on shared memory after the vendor's function succeeded.
#[derive(Clone, Copy)]
pub(crate) enum End {
    /// Copy what has changed in the shadow back. `before`: its content is in [`Frame::before`], not with the shadow.
    Shadow { to: *mut u8, bytes: usize, offset: u64, before: Option<usize>, end: bool },
    /// The application has freed or unmapped what is at the address.
    Foreign { address: usize, id: u64 },
    /// The application waits for this callback, which is called at most once.
    Callback { id: u64 },
}

/// One call's request and reply.
#[derive(Default)]
pub(crate) struct Frame {
    pub encoder: Encoder,
    pub outputs: Vec<Output>,
    /// True if there is anything in the lists that follow, or something was sent ahead.
    pub names_memory: bool,
    /// Parts of inputs were sent ahead of the message: their blocks are in use before it is sent, and if it never is.
    pub ahead: bool,
    /// Parts of outputs in blocks that the application has already.
    pub early: Early,
    /// Of such parts, which end before anything else of the call does.
    pub copies: Copies,
    /// The application's memory that the request names, where that matters.
    pub pieces: Vec<Piece>,
    /// Contents of outputs in blocks, see [`Before`].
    pub before: Vec<u8>,
    /// The unions of it that are sent as one.
    pub joined: Overlaps,
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
    /// For `cache`: the request.
    pub key: Vec<u8>,
    /// For `cache`: the ids in the request; the reply is forgotten with any of their handles.
    pub handles: Vec<u64>,
}

impl Frame {
    /// The output in a block whose bytes these are, if the application gets all of it as it is.
    pub fn output_at(&self, offset: u64, length: usize) -> Option<(&Output, usize)> {
        self.outputs.iter().find_map(|output| {
            let OutputSource::Block(start) = output.source else { return None };
            let at = usize::try_from(offset.checked_sub(start)?).ok()?;
            let whole = output.before == Before::Written && output.rows.is_none();
            (whole && at.checked_add(length)? <= output.bytes).then_some((output, at))
        })
    }

    #[inline]
    pub fn reset(&mut self) {
        self.encoder.start();
        self.outputs.clear();
        if self.names_memory {
            self.forget_memory();
        }
        self.untils.clear();
        self.ends.clear();
        self.new_shadows.clear();
        self.once.clear();
        self.minted.clear();
        self.ending.clear();
        self.regions.clear();
        self.blocks.clear();
        self.lent = false;
        self.key.clear();
        self.handles.clear();
    }

    #[inline(never)]
    fn forget_memory(&mut self) {
        (self.names_memory, self.ahead) = (false, false);
        self.early.clear();
        self.before.clear();
        self.before.shrink_to(MAX_KEPT_BYTES);
        self.pieces.clear();
        self.joined.clear();
    }

    /// The content that an output had; `None`: all of it was written. Of no more than the output's own bytes.
    pub fn before(&self, output: &Output) -> Option<*const u8> {
        let (bytes, at) = match output.before {
            Before::Written => return None,
            Before::Request(at) => (self.encoder.message(), at),
            Before::Kept(at) => (self.before.as_slice(), at),
        };
        bytes.get(at..at.checked_add(output.bytes)?).map(<[u8]>::as_ptr)
    }

    /// Notes the content of an output; `None`: there is no memory.
    ///
    /// # Safety
    /// `n` bytes at `p` are readable, of rows those in them.
    pub unsafe fn keep_before(&mut self, p: *const u8, n: usize, rows: Option<Rows>) -> Option<usize> {
        let at = self.before.len();
        self.names_memory = true;
        self.before.try_reserve(n).ok()?;
        match rows {
            // SAFETY: room was made; the caller's promise.
            None => unsafe {
                std::ptr::copy_nonoverlapping(p, self.before.as_mut_ptr().add(at), n);
                self.before.set_len(at + n);
            },
            Some(rows) => {
                self.before.resize(at + n, 0);
                // SAFETY: as above; pieces lie within the `n` bytes.
                unsafe { write_back(p, None, self.before.as_mut_ptr().add(at), n, Some(rows)) };
            }
        }
        Some(at)
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

    /// Notes the content of a union of `bytes` bytes at `start`, as [`Frame::keep_before`] does.
    ///
    /// # Safety
    /// The pieces can be read, and lie in the union.
    pub unsafe fn keep_pieces(&mut self, start: usize, bytes: usize, pieces: &[Piece]) -> Option<usize> {
        let at = self.before.len();
        self.names_memory = true;
        self.before.try_reserve(bytes).ok()?;
        self.before.resize(at + bytes, 0);
        for piece in pieces {
            let from = std::ptr::with_exposed_provenance(piece.start);
            // SAFETY: the caller's promise.
            unsafe {
                let to = self.before.as_mut_ptr().add(at + piece.start - start);
                write_back(from, None, to, piece.end - piece.start, piece.rows);
            }
        }
        Some(at)
    }
}
