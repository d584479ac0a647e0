//! Messages of vfio-user 0.1 as bytes, in the machine's byte order. They come from a VMM and may be anything.

use rustix::io::Errno;

/// Bytes of the header of each message.
pub const HEADER_BYTES: usize = 16;
/// The longest message that is taken: a hundred times the longest one that a VMM has a reason for.
pub const MAX_MESSAGE_BYTES: usize = 16 << 10;
/// Descriptors of one message.
pub const MAX_DESCRIPTORS: usize = 8;

/// Bits of a header's flags.
const REPLY: u32 = 1;
const TYPE: u32 = 0xf;
const NO_REPLY: u32 = 1 << 4;
const ERROR: u32 = 1 << 5;

const VERSION: u16 = 1;
const DMA_MAP: u16 = 2;
const DMA_UNMAP: u16 = 3;
const DEVICE_INFO: u16 = 4;
const REGION_INFO: u16 = 5;
const IRQ_INFO: u16 = 7;
const SET_IRQS: u16 = 8;
const REGION_READ: u16 = 9;
const REGION_WRITE: u16 = 10;
const DEVICE_RESET: u16 = 13;

/// What each message begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    pub id: u16,
    pub command: u16,
    /// Bytes of the message with this header.
    pub size: u32,
    pub flags: u32,
}

impl Header {
    /// `None`: the bytes are fewer than a header has.
    pub fn parse(bytes: &[u8]) -> Option<Header> {
        let fields: &[u8; HEADER_BYTES] = bytes.first_chunk()?;
        let [a, b, c, d, e, f, g, h, i, j, k, l, ..] = *fields;
        Some(Header {
            id: u16::from_ne_bytes([a, b]),
            command: u16::from_ne_bytes([c, d]),
            size: u32::from_ne_bytes([e, f, g, h]),
            flags: u32::from_ne_bytes([i, j, k, l]),
        })
    }

    /// Bytes behind the header; `None`: no message is so long or so short.
    pub fn body_bytes(&self) -> Option<usize> {
        let size = usize::try_from(self.size).ok().filter(|size| *size <= MAX_MESSAGE_BYTES)?;
        size.checked_sub(HEADER_BYTES)
    }

    pub fn is_command(&self) -> bool {
        self.flags & TYPE == 0
    }

    /// A write of the accelerator's registers: nobody waits for what it does. Words of the body: offset, then region.
    pub fn may_be_late(&self, body: &[u8]) -> bool {
        self.command == REGION_WRITE && body.get(8..12) == Some(&[0; 4])
    }

    pub fn wants_reply(&self) -> bool {
        self.flags & NO_REPLY == 0
    }

    /// The reply to this message.
    pub fn answered(&self, result: &Result<Vec<u8>, Errno>) -> Vec<u8> {
        let (flags, error, body): (u32, u32, &[u8]) = match result {
            Ok(body) => (REPLY, 0, body),
            Err(errno) => (REPLY | ERROR, errno.raw_os_error().unsigned_abs(), &[]),
        };
        let size = (HEADER_BYTES + body.len()) as u32;
        let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
        bytes.extend(self.id.to_ne_bytes());
        bytes.extend(self.command.to_ne_bytes());
        [size, flags, error].iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
        bytes.extend(body);
        bytes
    }
}

/// A wish of the VMM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VfioCommand<'a> {
    Version {
        major: u16,
        minor: u16,
    },
    /// The descriptor of the memory comes with the message; without one it is no memory that could be shared.
    DmaMap {
        flags: u32,
        /// In the file.
        offset: u64,
        address: u64,
        size: u64,
    },
    DmaUnmap {
        flags: u32,
        address: u64,
        size: u64,
    },
    DeviceInfo,
    RegionInfo {
        region: u32,
    },
    IrqInfo {
        index: u32,
    },
    SetIrqs {
        flags: u32,
        index: u32,
        start: u32,
        count: u32,
        data: &'a [u8],
    },
    RegionRead {
        offset: u64,
        region: u32,
        count: u32,
    },
    RegionWrite {
        offset: u64,
        region: u32,
        data: &'a [u8],
    },
    Reset,
}

/// Fields of a body, one after the other.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take<const BYTES: usize>(&mut self) -> Result<[u8; BYTES], Errno> {
        let (field, rest) = self.0.split_first_chunk().ok_or(Errno::INVAL)?;
        self.0 = rest;
        Ok(*field)
    }

    fn half(&mut self) -> Result<u32, Errno> {
        self.take().map(u32::from_ne_bytes)
    }

    fn word(&mut self) -> Result<u64, Errno> {
        self.take().map(u64::from_ne_bytes)
    }

    fn rest(self) -> &'a [u8] {
        self.0
    }
}

impl VfioCommand<'_> {
    /// # Errors
    /// NOTSUP: a command that this device was never said to have. INVAL: a body that is too short for its command.
    pub fn parse(command: u16, body: &[u8]) -> Result<VfioCommand<'_>, Errno> {
        let mut fields = Fields(body);
        Ok(match command {
            VERSION => {
                let major = fields.take().map(u16::from_ne_bytes)?;
                VfioCommand::Version { major, minor: fields.take().map(u16::from_ne_bytes)? }
            }
            DMA_MAP => {
                fields.half()?;
                let (flags, offset) = (fields.half()?, fields.word()?);
                VfioCommand::DmaMap { flags, offset, address: fields.word()?, size: fields.word()? }
            }
            DMA_UNMAP => {
                fields.half()?;
                VfioCommand::DmaUnmap { flags: fields.half()?, address: fields.word()?, size: fields.word()? }
            }
            DEVICE_INFO => VfioCommand::DeviceInfo,
            REGION_INFO => {
                fields.word()?;
                VfioCommand::RegionInfo { region: fields.half()? }
            }
            IRQ_INFO => {
                fields.word()?;
                VfioCommand::IrqInfo { index: fields.half()? }
            }
            SET_IRQS => {
                fields.half()?;
                let (flags, index) = (fields.half()?, fields.half()?);
                let (start, count) = (fields.half()?, fields.half()?);
                VfioCommand::SetIrqs { flags, index, start, count, data: fields.rest() }
            }
            REGION_READ => {
                VfioCommand::RegionRead { offset: fields.word()?, region: fields.half()?, count: fields.half()? }
            }
            REGION_WRITE => {
                let (offset, region, count) = (fields.word()?, fields.half()?, fields.half()?);
                let data = fields.rest();
                if usize::try_from(count) != Ok(data.len()) {
                    return Err(Errno::INVAL);
                }
                VfioCommand::RegionWrite { offset, region, data }
            }
            DEVICE_RESET => VfioCommand::Reset,
            _ => return Err(Errno::NOTSUP),
        })
    }
}

/// A body of halves.
pub fn halves(halves: &[u32]) -> Vec<u8> {
    halves.iter().flat_map(|half| half.to_ne_bytes()).collect()
}

/// A body of halves with words behind them.
pub fn halves_and_words(first: &[u32], words: &[u64]) -> Vec<u8> {
    let mut body = halves(first);
    words.iter().for_each(|word| body.extend(word.to_ne_bytes()));
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_qemu_writes_them() {
        let map = halves_and_words(&[32, 3], &[0x1000, 0x20_0000, 0x4000]);
        let wish = VfioCommand::DmaMap { flags: 3, offset: 0x1000, address: 0x20_0000, size: 0x4000 };
        assert_eq!(VfioCommand::parse(DMA_MAP, &map), Ok(wish));
        assert_eq!(VfioCommand::parse(DMA_MAP, &map[..31]), Err(Errno::INVAL));
        let irqs = halves(&[20, 0x24, 2, 1, 1]);
        let wish = VfioCommand::SetIrqs { flags: 0x24, index: 2, start: 1, count: 1, data: &[] };
        assert_eq!(VfioCommand::parse(SET_IRQS, &irqs), Ok(wish));
        let mut write = 0x40_u64.to_ne_bytes().to_vec();
        write.extend(halves(&[0, 8]));
        write.extend(7_u64.to_ne_bytes());
        let wish = VfioCommand::RegionWrite { offset: 0x40, region: 0, data: &7_u64.to_ne_bytes() };
        assert_eq!(VfioCommand::parse(REGION_WRITE, &write), Ok(wish));
        write.push(0);
        assert_eq!(VfioCommand::parse(REGION_WRITE, &write), Err(Errno::INVAL));
        assert_eq!(VfioCommand::parse(14, &[]), Err(Errno::NOTSUP));
    }

    #[test]
    fn replies_repeat_id_and_command() {
        let header = Header { id: 7, command: DEVICE_RESET, size: 16, flags: 0 };
        let told = header.answered(&Err(Errno::INVAL));
        assert_eq!(Header::parse(&told), Some(Header { flags: REPLY | ERROR, ..header }));
        assert_eq!(told[12..], 22_u32.to_ne_bytes());
        assert_eq!(Header::parse(&header.answered(&Ok(vec![1, 2]))).map(|header| header.size), Some(18));
        assert_eq!(Header { size: 15, ..header }.body_bytes(), None);
        assert_eq!(Header { size: 16 + (16 << 10), ..header }.body_bytes(), None);
        assert_eq!(Header { size: 16 << 10, ..header }.body_bytes(), Some(MAX_MESSAGE_BYTES - HEADER_BYTES));
    }
}
