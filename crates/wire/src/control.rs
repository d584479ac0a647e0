//! Messages on the control socket after the attachment.

/// The kind of a control message.
pub mod control_kind {
    pub const LANE_OPEN: u32 = 1;
    pub const LANE_CLOSE: u32 = 2;
    pub const FAREWELL: u32 = 3;
    pub const LANE_CLOSED: u32 = 4;
    /// From a VM's device: memory of the guest appears at `offset`, `length` bytes. `lane` extents follow, 16 bytes each
    /// (where in the file, how much of it); the file is the message's descriptor.
    pub const MEMORY_MAP: u32 = 5;
    /// From a VM's device: the memory at `offset`, `length` bytes, disappears.
    pub const MEMORY_UNMAP: u32 = 6;
    /// To a VM's device, in the order of its requests: done at `offset`; `lane` is 0 or an errno value.
    pub const MEMORY_DONE: u32 = 7;
    /// To and from a VM's device: a sleeper at the word at `offset` is to be woken.
    pub const WAKE: u32 = 8;
    /// From a guest library, before its first lane: the file that is the message's descriptor, where the application's
    /// large allocations lie, appears at `offset`, `length` bytes.
    pub const HEAP: u32 = 9;
    /// From a VM's device, its last message: the VM's memory has another meaning from now on. The window is closed before
    /// anything else, whatever calls are under way, and the session is over.
    pub const WINDOW_CLOSE: u32 = 10;
    /// From the node to a gateway: its session is to go on in another process. It gives its connection up, and takes no other.
    pub const GATEWAY_HOLD: u32 = 11;
    /// From the node to a gateway that holds, whose API server stands: it writes its session to the file that is the message's
    /// descriptor, and ends.
    pub const GATEWAY_SAVE: u32 = 12;
    /// From the node to a gateway that goes on with such a session: it leaves what its API server needs in the socket that is
    /// the message's descriptor.
    pub const GATEWAY_REST: u32 = 13;
}

/// Flag of `LANE_OPEN`: the lane carries callbacks only.
pub const CALLBACK_LANE: u64 = 1;

/// Flag of `MEMORY_MAP`: the memory may be written here.
pub const WRITABLE: u64 = 1;
/// Flag of `MEMORY_MAP`: it is the application's own memory. For statistics only.
pub const APPLICATION_MEMORY: u64 = 2;

/// A control message; always [`Control::CONTROL_BYTES`] bytes.
///
/// ```
/// use aviary_wire::Control;
///
/// let message = Control { kind: 1, lane: 2, length: 4096, ..Control::default() };
/// assert_eq!(Control::from_bytes(&message.to_bytes()), message);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Control {
    pub kind: u32,
    pub lane: u32,
    pub offset: u64,
    pub length: u64,
    pub flags: u64,
}

impl Control {
    pub const CONTROL_BYTES: usize = 32;

    pub fn to_bytes(self) -> [u8; Self::CONTROL_BYTES] {
        let mut b = [0; Self::CONTROL_BYTES];
        b[0..4].copy_from_slice(&self.kind.to_le_bytes());
        b[4..8].copy_from_slice(&self.lane.to_le_bytes());
        b[8..16].copy_from_slice(&self.offset.to_le_bytes());
        b[16..24].copy_from_slice(&self.length.to_le_bytes());
        b[24..32].copy_from_slice(&self.flags.to_le_bytes());
        b
    }

    /// Every bit pattern is some message; the receiver judges the kind.
    pub fn from_bytes(b: &[u8; Self::CONTROL_BYTES]) -> Self {
        let word = |at: usize| {
            let mut w = [0; 8];
            w.copy_from_slice(&b[at..at + 8]);
            u64::from_le_bytes(w)
        };
        let first = word(0);
        Control { kind: first as u32, lane: (first >> 32) as u32, offset: word(8), length: word(16), flags: word(24) }
    }
}
