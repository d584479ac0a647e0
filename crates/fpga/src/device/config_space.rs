//! The PCI configuration space of the function that a virtual machine sees. The VMM makes BARs and MSI-X work by itself; here is
//! what it starts from, and where a guest's driver resets the function.

/// Bytes of the space.
pub const CONFIG_BYTES: u64 = 256;
/// Bytes of each BAR: a page, so that programs map it.
pub const BAR_BYTES: u64 = 0x1000;
/// The BAR of the MSI-X table.
pub const MSIX_BAR: u32 = 4;

const VENDOR: usize = 0x00;
const COMMAND: usize = 0x04;
const STATUS: usize = 0x06;
const CLASS: usize = 0x09;
const BARS: usize = 0x10;
const SUBSYSTEM: usize = 0x2c;
const CAPABILITIES: usize = 0x34;
const INTERRUPT_LINE: usize = 0x3c;
const MSIX: usize = 0x40;
const RESETS: usize = 0x50;

/// A processing accelerator.
const ACCELERATOR: [u8; 3] = [0x00, 0x00, 0x12];
const HAS_CAPABILITIES: u8 = 1 << 4;
/// A BAR of 64 bits.
const WIDE: u8 = 4;
/// MSI-X: table of 4 vectors at the begin of its BAR, bits of those that wait at 0x800.
const MSIX_CAPABILITY: [u8; 12] = [0x11, RESETS as u8, 3, 0, MSIX_BAR as u8, 0, 0, 0, MSIX_BAR as u8, 8, 0, 0];
/// Advanced features: the function can be reset alone, and says when nothing of it is under way.
const RESETS_CAPABILITY: [u8; 6] = [0x13, 0, 6, 3, 0, 0];
const RESET_CONTROL: usize = RESETS + 4;

/// What the function says that it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PciIds {
    pub vendor: u16,
    pub device: u16,
    pub subsystem_vendor: u16,
    pub subsystem: u16,
}

impl Default for PciIds {
    fn default() -> Self {
        Self { vendor: 0x8086, device: 0x0a5e, subsystem_vendor: 0x8086, subsystem: 0x0a5e }
    }
}

/// The space, and which bits of it a guest can change.
#[derive(Debug)]
pub struct ConfigSpace {
    bytes: [u8; CONFIG_BYTES as usize],
    writable: [u8; CONFIG_BYTES as usize],
}

impl ConfigSpace {
    pub fn new(ids: PciIds) -> ConfigSpace {
        let mut space = ConfigSpace { bytes: [0; CONFIG_BYTES as usize], writable: [0; CONFIG_BYTES as usize] };
        space.put(VENDOR, &ids.vendor.to_le_bytes());
        space.put(VENDOR + 2, &ids.device.to_le_bytes());
        space.put(SUBSYSTEM, &ids.subsystem_vendor.to_le_bytes());
        space.put(SUBSYSTEM + 2, &ids.subsystem.to_le_bytes());
        space.put(STATUS, &[HAS_CAPABILITIES]);
        space.put(CLASS, &ACCELERATOR);
        space.put(CAPABILITIES, &[MSIX as u8]);
        space.put(MSIX, &MSIX_CAPABILITY);
        space.put(RESETS, &RESETS_CAPABILITY);
        for bar in [0, 2, 4] {
            let at = BARS + 4 * bar;
            space.put(at, &[WIDE]);
            space.writable[at + 1..at + 8].fill(0xff);
            space.writable[at + 1] = 0xf0;
        }
        // Memory, bus master, no interrupt by a line.
        space.writable[COMMAND] = 0x06;
        space.writable[COMMAND + 1] = 0x04;
        space.writable[INTERRUPT_LINE] = 0xff;
        space.writable[MSIX + 3] = 0xc0;
        space
    }

    /// With these bytes, which were read from another one.
    pub fn again(bytes: [u8; CONFIG_BYTES as usize]) -> ConfigSpace {
        ConfigSpace { bytes, ..ConfigSpace::new(PciIds::default()) }
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        if let Some(place) = self.bytes.get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    }

    /// What is beyond the space is 0.
    pub fn read(&self, offset: u64, count: usize) -> Vec<u8> {
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        (0..count).map(|i| self.bytes.get(from.saturating_add(i)).copied().unwrap_or(0)).collect()
    }

    /// True: the guest resets the function.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> bool {
        let mut resets = false;
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        for (i, new) in data.iter().enumerate() {
            let at = from.saturating_add(i);
            resets |= at == RESET_CONTROL && new & 1 == 1;
            let (Some(byte), Some(mask)) = (self.bytes.get_mut(at), self.writable.get(at)) else { continue };
            *byte = *byte & !mask | new & mask;
        }
        resets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_a_list_that_ends() {
        let space = ConfigSpace::new(PciIds::default());
        let (mut at, mut kinds) = (space.bytes[CAPABILITIES], Vec::new());
        while at != 0 {
            kinds.push(space.bytes[usize::from(at)]);
            at = space.bytes[usize::from(at) + 1];
        }
        assert_eq!(kinds, [0x11, 0x13]);
        assert_eq!(space.read(0, 4), [0x86, 0x80, 0x5e, 0x0a]);
        assert_eq!(space.read(8, 4), [0, 0, 0, 0x12]);
    }

    #[test]
    fn guest_changes_what_it_may_and_nothing_beyond() {
        let mut space = ConfigSpace::new(PciIds::default());
        for at in 0..CONFIG_BYTES + 8 {
            let resets = space.write(at, &[0xff]);
            assert_eq!(resets, at == RESET_CONTROL as u64);
        }
        assert!(!space.write(u64::MAX, &[0xff; 16]));
        assert_eq!(space.read(0, 6), [0x86, 0x80, 0x5e, 0x0a, 0x06, 0x04]);
        assert_eq!(space.read(0x10, 8), [WIDE, 0xf0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(space.read(u64::from(u32::MAX), 2), [0, 0]);
        assert_eq!(space.read(u64::MAX, 2), [0, 0]);
    }
}
