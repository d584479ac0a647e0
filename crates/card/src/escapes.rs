//! The independent check of isolation that is always on: every AXI request is compared with the slice that software gave to the
//! port in the request's id. It knows slices from the MMIO writes that the monitor accepted, not from the monitor's registers.

use crate::LINE;
use crate::board::Escape;

/// First and last line of a port's slice.
#[derive(Debug, Clone, Copy, Default)]
struct PortSlice {
    first: u64,
    last: u64,
    enabled: bool,
}

/// The slices, and what left them.
#[derive(Debug)]
pub struct Escapes {
    slices: Vec<PortSlice>,
    count: u64,
    first: Option<Escape>,
}

impl Escapes {
    pub fn new(ports: usize) -> Self {
        Self { slices: vec![PortSlice::default(); ports], count: 0, first: None }
    }

    /// An MMIO write to the VCU's page that the monitor accepted.
    pub fn note_write(&mut self, offset: u32, value: u64) {
        let Some(place) = offset.checked_sub(crate::monitor::PORT_REGISTERS) else { return };
        let index = (place / crate::monitor::PORT_STRIDE) as usize;
        let Some(slice) = self.slices.get_mut(index) else { return };
        match place % crate::monitor::PORT_STRIDE {
            crate::monitor::FIRST => slice.first = value & crate::monitor::LINE_MASK,
            crate::monitor::LAST => slice.last = value & crate::monitor::LINE_MASK,
            crate::monitor::ENABLE => slice.enabled = value & 1 != 0,
            _ => {}
        }
    }

    /// Compares a request with its port's slice.
    pub fn check(&mut self, at: u64, id: u16, address: u64, lines: u64, write: bool) {
        let port = (id >> 8) as u8;
        let first = address / LINE;
        let inside = self.slices.get(usize::from(port)).is_some_and(|slice| {
            slice.enabled && address.is_multiple_of(LINE) && first >= slice.first && first + lines - 1 <= slice.last
        });
        if !inside {
            self.count += 1;
            self.first.get_or_insert(Escape { at, port, address, lines, write });
        }
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    pub fn first(&self) -> Option<Escape> {
        self.first
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::monitor::{ENABLE, FIRST, LAST, PORT_REGISTERS, PORT_STRIDE};

    #[test]
    fn request_outside_the_slice_of_its_port_is_counted() {
        let mut escapes = Escapes::new(2);
        for (register, value) in [(FIRST, 16), (LAST, 31), (ENABLE, 1)] {
            escapes.note_write(PORT_REGISTERS + PORT_STRIDE + register, value);
        }
        escapes.check(1, 0x100, 16 * 64, 4, false);
        escapes.check(2, 0x1ff, 28 * 64, 4, true);
        assert_eq!(escapes.count(), 0);
        // Below, above, over the end, of another port, of a port that does not exist, between lines.
        for (id, line, lines) in [(0x100, 15, 1), (0x100, 32, 1), (0x100, 30, 4), (0x000, 16, 1), (0x200, 16, 1)] {
            escapes.check(3, id, line * 64, lines, true);
        }
        escapes.check(4, 0x100, 16 * 64 + 8, 1, false);
        assert_eq!(escapes.count(), 6);
        assert_eq!(escapes.first(), Some(Escape { at: 3, port: 1, address: 15 * 64, lines: 1, write: true }));
    }
}
