//! A VMM that sends any messages, and a card that refuses what the input says: the device answers each message once, and asks the
//! card only for what is in the region.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use aviary_fpga::SLICE_BYTES;
use aviary_fpga::device::{Card, CardLost, FpgaDevice, HEADER_BYTES, Header, MAX_MESSAGE_BYTES, PciIds};
use aviary_fpga::link::Request;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;

const PAGE: u64 = 4096;

/// Knows what the device may ask for. Bits of `answers`, from the lowest on: does it refuse the next requests?
struct Model {
    answers: u64,
    base: Option<u64>,
    files: BTreeSet<u64>,
    lives: bool,
}

impl Model {
    /// The range is in the region.
    fn check(&self, address: u64, length: u64) {
        let base = self.base.expect("no BASE");
        assert!(length > 0 && address >= base && length <= SLICE_BYTES && address - base <= SLICE_BYTES - length);
    }
}

impl Card for Model {
    fn ask_words(&mut self, request: &Request, file: Option<OwnedFd>) -> Result<Result<[u64; 7], Errno>, CardLost> {
        if !self.lives {
            return Err(CardLost);
        }
        let refuses = self.answers & 1 == 1;
        self.answers = self.answers.rotate_right(1);
        assert_eq!(file.is_some(), matches!(request, Request::Memory { .. }));
        match *request {
            Request::Map { address, length, memory, .. } => {
                self.check(address, length);
                assert!(self.files.contains(&memory));
            }
            Request::Unmap { address, length } => {
                self.check(address, length);
                assert!(address.is_multiple_of(PAGE) && length.is_multiple_of(PAGE));
            }
            Request::Hello { .. } => return Ok(Ok([4, 64, SLICE_BYTES, 0, 0, 0, 0])),
            _ => {}
        }
        if refuses {
            return Ok(Err(Errno::TOOBIG));
        }
        match *request {
            Request::Base { address } if !address.is_multiple_of(2 << 20) || address > (1 << 48) - SLICE_BYTES => {
                return Ok(Err(Errno::INVAL));
            }
            Request::Base { address } => self.base = Some(address),
            Request::Memory { id, .. } => assert!(self.files.insert(id), "a number that is taken"),
            Request::Forget { id } => assert!(self.files.remove(&id), "a number of none"),
            _ => {}
        }
        Ok(Ok([1, 2, 3, 4, 5, 6, 7]))
    }

    fn event(&mut self, _: u32) -> Result<Option<OwnedFd>, CardLost> {
        Ok(None)
    }

    fn lives(&self) -> bool {
        self.lives
    }
}

/// 16 MB, the same each time.
fn memory() -> Option<OwnedFd> {
    static MEMORY: OnceLock<OwnedFd> = OnceLock::new();
    let file = MEMORY.get_or_init(|| {
        let file = memfd_create("memory", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 16 << 20).unwrap();
        fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
        file
    });
    file.try_clone().ok()
}

/// Eight bytes of answers; then messages, each behind a byte: descriptors that come with it, up to 2; 3: too many; bit 7: the card
/// ends before it.
pub fn run(bytes: &[u8]) {
    let Some((answers, mut rest)) = bytes.split_first_chunk() else { return };
    let card = Model { answers: u64::from_ne_bytes(*answers), base: None, files: BTreeSet::new(), lives: true };
    let guid = "6c6c0001-4a5e-4f0a-9d1b-2f4f0c110002";
    let Ok(mut device) = FpgaDevice::new(card, guid, PciIds::default()) else { return };
    while let Some((how, after)) = rest.split_first() {
        let Some(header) = Header::parse(after) else { return };
        // The connection ends.
        let Some(length) = header.body_bytes() else { return };
        let body = &after[HEADER_BYTES..];
        let body = &body[..length.min(body.len())];
        rest = &after[HEADER_BYTES + body.len()..];
        device.card.lives &= how & 0x80 == 0;
        let descriptors = (how & 3 < 3).then(|| (0..how & 3).filter_map(|_| memory()).collect());
        if let Some(reply) = device.execute(&header, body, descriptors) {
            let told = Header::parse(&reply).expect("a header");
            assert_eq!((told.id, told.command, told.size as usize), (header.id, header.command, reply.len()));
            assert!(reply.len() <= MAX_MESSAGE_BYTES && !told.is_command() && header.is_command());
        }
    }
}
