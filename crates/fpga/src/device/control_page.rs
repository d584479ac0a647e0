//! BAR2: what a guest's library asks and tells a device beside the accelerator's own registers. `fpga/library/vfio.c` has the
//! other end. Registers are 64 bits; they may come as two halves in either order.

/// "AVIARYFP" as a little-endian word.
pub const MAGIC: u64 = 0x5046_5952_4149_5641;
/// Changes with every change of this page but for registers at its end, which are 0 where they are not there.
pub const CONTROL_VERSION: u64 = 1;
/// STATUS of a device whose card has ended. Lower ones are the phases of the link's INFO.
pub const STATUS_LOST: u64 = 5;

/// STATUS where the card lives and does not answer in time: a job that is queued.
pub const STATUS_WAITS: u64 = 1;

/// The registers, by their offsets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum ControlRegister {
    Magic = 0x00,
    Version = 0x08,
    GuidHigh = 0x10,
    GuidLow = 0x18,
    StateBytes = 0x20,
    SliceBytes = 0x28,
    /// The first IO address of the accelerator's memory. 0: none is set.
    Base = 0x30,
    StateAddress = 0x38,
    /// 1: ends the job and forgets the accelerator's registers. 2: the same, unmaps everything, and forgets BASE.
    Reset = 0x40,
    /// The errno of the last write of BASE, STATE_ADDRESS or RESET, or of a start that was refused.
    Error = 0x48,
    Status = 0x50,
    Port = 0x58,
    Cycles = 0x60,
    Preemptions = 0x68,
    MappedBytes = 0x70,
    RefusedRequests = 0x78,
    /// Of the accelerator's registers and of this page: wrong size or place.
    BadAccesses = 0x80,
    FaultCause = 0x88,
    FaultWrite = 0x90,
    FaultAddress = 0x98,
    FaultCycle = 0xa0,
    /// Maps within the accelerator's memory that the card does not have, since the last reset 2.
    RefusedMaps = 0xa8,
    FirstRefused = 0xb0,
    FirstErrno = 0xb8,
    /// Maps of memory that the guest has not meant for the accelerator.
    OutsideMaps = 0xc0,
    /// Messages of the VMM since it connected.
    DeviceReads = 0xc8,
    DeviceWrites = 0xd0,
    MapMessages = 0xd8,
    UnmapMessages = 0xe0,
    /// Unmaps that also took what was mapped beside them in huge pages: the rest of those had no room in the card's page table.
    LostUnmaps = 0xe8,
}

impl ControlRegister {
    const ALL: [ControlRegister; 30] = {
        use ControlRegister::*;
        [
            Magic,
            Version,
            GuidHigh,
            GuidLow,
            StateBytes,
            SliceBytes,
            Base,
            StateAddress,
            Reset,
            Error,
            Status,
            Port,
            Cycles,
            Preemptions,
            MappedBytes,
            RefusedRequests,
            BadAccesses,
            FaultCause,
            FaultWrite,
            FaultAddress,
            FaultCycle,
            RefusedMaps,
            FirstRefused,
            FirstErrno,
            OutsideMaps,
            DeviceReads,
            DeviceWrites,
            MapMessages,
            UnmapMessages,
            LostUnmaps,
        ]
    };

    /// The register of 8 bytes in which an offset is.
    pub fn at(offset: u64) -> Option<ControlRegister> {
        Self::ALL.get(usize::try_from(offset / 8).ok()?).copied()
    }
}

/// An access of a page that is done: aligned, and 4 or 8 bytes.
pub fn is_whole_or_half(offset: u64, bytes: usize, page: u64) -> bool {
    matches!(bytes, 4 | 8) && offset.is_multiple_of(bytes as u64) && offset <= page - bytes as u64
}

/// The bytes of a register that an access of [`is_whole_or_half`] reads.
pub fn part_of(value: u64, offset: u64, bytes: usize) -> Vec<u8> {
    let shift = if bytes == 4 { offset % 8 * 8 } else { 0 };
    (value >> shift).to_le_bytes().into_iter().take(bytes).collect()
}

/// A register of which one half has been written.
#[derive(Debug, Default, Clone, Copy)]
pub struct HalfWritten {
    low: Option<u32>,
    high: Option<u32>,
}

impl HalfWritten {
    /// Which halves there are, and both.
    pub fn words(&self) -> [u64; 2] {
        let there = u64::from(self.low.is_some()) | u64::from(self.high.is_some()) << 1;
        [there, u64::from(self.high.unwrap_or(0)) << 32 | u64::from(self.low.unwrap_or(0))]
    }

    /// As [`HalfWritten::words`] gives it.
    pub fn of([there, halves]: [u64; 2]) -> HalfWritten {
        let (low, high) = (there & 1 != 0, there & 2 != 0);
        HalfWritten { low: low.then_some(halves as u32), high: high.then_some((halves >> 32) as u32) }
    }

    /// The value, if all of it has been written now.
    pub fn put(&mut self, offset: u64, data: &[u8]) -> Option<u64> {
        if let Ok(whole) = data.try_into() {
            *self = HalfWritten::default();
            return Some(u64::from_le_bytes(whole));
        }
        let half = u32::from_le_bytes(data.try_into().ok()?);
        *(if offset.is_multiple_of(8) { &mut self.low } else { &mut self.high }) = Some(half);
        let value = u64::from(self.high?) << 32 | u64::from(self.low?);
        *self = HalfWritten::default();
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_are_at_their_offsets() {
        for (place, register) in ControlRegister::ALL.into_iter().enumerate() {
            assert_eq!(register as usize, 8 * place);
            assert_eq!(ControlRegister::at(8 * place as u64 + 4), Some(register));
        }
        assert_eq!(ControlRegister::at(8 * 30), None);
        assert_eq!(ControlRegister::at(u64::MAX), None);
    }

    #[test]
    fn halves_come_in_either_order() {
        let (low, high) = (7_u32.to_le_bytes(), 9_u32.to_le_bytes());
        let mut half = HalfWritten::default();
        for _ in 0..2 {
            assert_eq!(half.put(0x30, &low), None);
            assert_eq!(half.put(0x34, &high), Some(9 << 32 | 7));
            assert_eq!(half.put(0x34, &high), None);
            assert_eq!(half.put(0x30, &low), Some(9 << 32 | 7));
        }
        assert_eq!(half.put(0x30, &low), None);
        assert_eq!(half.put(0x30, &1_u64.to_le_bytes()), Some(1));
        assert_eq!(half.put(0x34, &high), None);
        assert_eq!(half.put(0x30, &[1, 2]), None);
    }

    #[test]
    fn parts_are_read_as_they_are_written() {
        assert_eq!(part_of(0x1122_3344_5566_7788, 0x10, 4), 0x5566_7788_u32.to_le_bytes());
        assert_eq!(part_of(0x1122_3344_5566_7788, 0x14, 4), 0x1122_3344_u32.to_le_bytes());
        assert_eq!(part_of(0x1122_3344_5566_7788, 0x10, 8), 0x1122_3344_5566_7788_u64.to_le_bytes());
        for (offset, bytes) in [(0, 1), (0, 16), (4, 8), (2, 4), (0x1000, 4), (0xffc, 8), (u64::MAX - 3, 4)] {
            assert!(!is_whole_or_half(offset, bytes, 0x1000), "{offset:#x} {bytes}");
        }
    }
}
