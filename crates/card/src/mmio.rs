//! Single accesses at the card's AXI4-Lite subordinate.

use crate::image::Pins;

/// An access as the bus has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Read {
        address: u32,
    },
    /// `strobe` has a bit per byte of `value`.
    Write {
        address: u32,
        value: u64,
        strobe: u8,
    },
}

/// Where an access is on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Offered(Access),
    Taken(Access),
    /// The value that was read; for a write, 0 if it was accepted.
    Answered(u64),
}

impl Phase {
    /// Sets the inputs of the next edge.
    pub fn drive(self, pins: &mut Pins) {
        (pins.s_arvalid, pins.s_awvalid, pins.s_wvalid) = (0, 0, 0);
        (pins.s_bready, pins.s_rready) = (1, 1);
        match self {
            Self::Offered(Access::Read { address }) => (pins.s_arvalid, pins.s_address) = (1, address),
            Self::Offered(Access::Write { address, value, strobe }) => {
                (pins.s_awvalid, pins.s_wvalid, pins.s_address) = (1, 1, address);
                (pins.s_wdata, pins.s_wstrb) = (value, strobe);
            }
            Self::Taken(_) | Self::Answered(_) => {}
        }
    }

    /// The phase after the edge. `before` are the outputs before the edge: readies of this subordinate are combinational, and an
    /// access that it offers to an idle one is taken at once.
    #[must_use]
    pub fn after(self, before: &Pins) -> Self {
        match self {
            // The router takes an access in its idle state only, and shows no answer then.
            Self::Offered(access) if before.s_bvalid == 0 && before.s_rvalid == 0 => Self::Taken(access),
            Self::Taken(Access::Read { .. }) if before.s_rvalid != 0 => Self::Answered(before.s_rdata),
            Self::Taken(Access::Write { .. }) if before.s_bvalid != 0 => Self::Answered(u64::from(before.s_bresp)),
            phase => phase,
        }
    }
}
