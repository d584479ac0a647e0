//! A call as values: its message, what it has done so far, and what the reply says.
//!
//! Effects are committed or undone when the call is over.

use std::time::Duration;

use aviary_gate::Charges;
use aviary_transport::Rows;
use aviary_wire::{DecodeError, Decoder, Encoder, HEADER_SIZE, RequestHeader};

use super::per_call::{InOrder, MessageBytes, PerCall, Touched, per_call};
use crate::api::Reject;
use crate::callbacks::closures::{ClosureKey, ClosureLifetime};
use crate::lane::devices::Admission;
use crate::session::config::MAX_SCRATCH;
use crate::tables::scratch::Scratch;
use crate::tables::states::UsedState;

/// Memory of `len` bytes behind one pointer argument; NULL if the application passed NULL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffer {
    pub ptr: *mut u8,
    pub len: usize,
}

impl Buffer {
    pub(crate) const NULL: Buffer = Buffer { ptr: std::ptr::null_mut(), len: 0 };
}

/// How a buffer crossed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transfer {
    Null,
    /// In the message, both ways (also outputs without data).
    Inline,
    Arena(u64),
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    pub place: Transfer,
    pub buffer: Buffer,
    pub rows: Option<Rows>,
    /// Of memory that the library has a copy of, in which it is one for several arguments: the content that it had, and
    /// where what has changed goes.
    pub copied_from: Option<(*const u8, *mut u8)>,
}

/// Memory that several arguments share. Each argument is a part of it.
pub(crate) struct Union {
    pub buffer: Buffer,
    pub place: Transfer,
    /// Where the library has a copy: the content that it had, and the memory itself.
    pub copied_from: Option<(*const u8, *mut u8)>,
}

impl Default for Scratch {
    fn default() -> Scratch {
        Scratch::new(MAX_SCRATCH)
    }
}

impl PerCall for Scratch {
    #[inline(always)]
    fn renew(&mut self) {
        self.reset();
    }
}

per_call! {
    /// A private copy of the message.
    pub(crate) struct Request {
        pub header: RequestHeader,
        /// The whole message; fields start after the header.
        pub bytes: MessageBytes,
        /// What was decoded, in bytes behind the header.
        at: usize,
        /// Memory of the arguments.
        pub scratch: Scratch,
        /// Memory that several arguments share.
        pub unions: Vec<Union>,
        /// True: the library works on a copy of it.
        pub private_unions: bool,
        /// Why it is malformed, for the log.
        pub complaint: Option<DecodeError>,
    }
}

impl Request {
    pub fn decode<T>(&mut self, read: impl FnOnce(&mut Decoder) -> Result<T, DecodeError>) -> Result<T, Reject> {
        let body = self.bytes.get(HEADER_SIZE..).unwrap_or_default();
        let mut decoder = Decoder::resume(body, self.at);
        let result = read(&mut decoder);
        self.at = decoder.position();
        result.map_err(|error| {
            self.complaint = Some(error);
            Reject::Malformed("the message")
        })
    }

    /// True: the message has fields that were not decoded.
    pub fn trailing(&self) -> bool {
        self.at != self.bytes.len().saturating_sub(HEADER_SIZE)
    }

    /// The data of the field just decoded, `length` bytes and their padding before the current position.
    pub fn field_before(&mut self, length: usize) -> *mut u8 {
        let start = HEADER_SIZE + self.at - aviary_wire::padded(length);
        // The decoder found `length` bytes there, so `start` is inside or (empty data) at the end.
        self.bytes[start..].as_mut_ptr()
    }

    pub fn is_async(&self) -> bool {
        self.header.kind == aviary_wire::kind::CALL_ASYNC
    }
}

per_call! {
    /// The answer, as far as it is known.
    pub(crate) struct Reply {
        pub body: Encoder,
        pub outputs: InOrder<Output>,
        /// The owners of the object that is mentioned next.
        pub owners: Vec<u64>,
        /// Arena regions whose content the reply changes: carried along if the arena is mirrored.
        pub regions: Vec<(u64, u64)>,
        /// If the vendor's function succeeded, and what it answered; `None`: there is no such value.
        pub result: Option<(bool, i64)>,
        /// The id because of which the call was rejected.
        pub invalid: u64,
    }
}

impl Reply {
    /// The reply changes this part of the arena.
    pub fn region(&mut self, offset: u64, bytes: usize) {
        if bytes > 0 {
            self.regions.push((offset, bytes as u64));
        }
    }
}

/// A buffer that the vendor library may use after its function returned.
pub(crate) struct UntilBuffer {
    pub place: Transfer,
    pub output: bool,
    pub length: usize,
    /// Private memory that must outlive the call.
    pub keep: Option<Box<[u8]>>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct UsedHandle {
    pub ty: u32,
    pub native: u64,
    pub id: u64,
    pub mark: HandleMark,
}

/// How the table knows an object that a call uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HandleMark {
    Used,
    /// Given back by this call.
    Ending,
    /// No other call uses it meanwhile.
    Exclusive,
}

per_call! {
    /// Effects of one call.
    pub(crate) struct Effects {
        /// The objects that it uses.
        pub handles: Vec<UsedHandle>,
        /// Ids that the guest chose for what the call creates, by the address where the vendor's function writes it
        /// (0: it returns it).
        pub minted: InOrder<(usize, u64)>,
        /// Charges that nothing holds yet.
        pub holding: Charges,
        /// Objects that it may create, beyond those that it has.
        pub reserved: u64,
        pub rare: Touched<RareEffects>,
    }
}

/// Resident memory that a call may change: from the library's address to the block.
pub(crate) struct UsedResident {
    pub from: usize,
    pub to: *mut u8,
    pub offset: u64,
    pub bytes: usize,
}

per_call! {
    /// Effects that few calls have.
    pub(crate) struct RareEffects {
        pub closures: Vec<(ClosureKey, ClosureLifetime)>,
        pub untils: InOrder<UntilBuffer>,
        pub states: Vec<UsedState>,
        /// Pointers that the library may advance, and by how many bytes.
        pub cursors: Vec<(usize, usize)>,
        /// Ids of the library's memory that it frees.
        pub freeing: Vec<u64>,
        /// Memory of the library's that it may change.
        pub residents: Vec<UsedResident>,
        pub on_success: OnSuccess,
    }
}

per_call! {
    /// Effects that take place only if the call succeeds.
    pub(crate) struct OnSuccess {
        pub created: Option<u64>,
        pub unmapped: Vec<u64>,
        pub unmapped_in_arena: i64,
        pub uncharged: Vec<(usize, u64)>,
        /// Shadows whose content the guest copies to the application.
        pub copied_back: Vec<(u64, u64)>,
    }
}

per_call! {
    /// The vendor's function, and the device that the call gives work.
    pub(crate) struct VendorWork {
        /// The device that the call gives work.
        pub stay: Option<Admission>,
        /// It only waits, and its message is kept.
        pub may_be_given_up: bool,
        /// The device that it may be waiting for.
        pub wait: Option<usize>,
        /// The cost of the call, if the library reports it.
        pub device_time: Option<Duration>,
        /// When the vendor's function was entered last, in ticks.
        pub since: u64,
        /// Ticks inside the vendor library.
        pub ticks: u64,
        /// Why the tenant may not make the call, whose handler is to tell of it.
        pub denied: Option<Reject>,
    }
}
