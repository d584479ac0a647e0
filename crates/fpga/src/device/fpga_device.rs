//! A virtual accelerator as a PCI function: what each command of the VMM does.

use std::os::fd::{AsFd, OwnedFd};

use aviary_card::Rights;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::card::{Card, CardLost};
use super::config_space::{BAR_BYTES, CONFIG_BYTES, ConfigSpace, MSIX_BAR, PciIds};
use super::control_page::{
    CONTROL_VERSION, ControlRegister, HalfWritten, MAGIC, STATUS_LOST, STATUS_WAITS, is_whole_or_half, part_of,
};
use super::message::{Header, MAX_MESSAGE_BYTES, VfioCommand, halves, halves_and_words};
use super::vm_memory::VmMemory;
use crate::link::{LINK_VERSION, Request};
use crate::mediator::guid_halves;

/// Vectors of MSI-X.
pub const VECTORS: usize = 4;

/// Regions of a PCI device: six BARs, ROM, configuration space, VGA.
const REGIONS: u32 = 9;
const CONFIG_REGION: u32 = 7;
/// INTx, MSI, MSI-X. Those of errors and of requests of the host are not there.
const IRQS: u32 = 3;
const MSIX_IRQ: u32 = 2;
/// Bits of infos and wishes, as in the kernel's `vfio.h`.
const DEVICE_RESET_PCI: u32 = 3;
const REGION_READ_WRITE: u32 = 3;
const IRQ_EVENTFD: u32 = 1;
const DATA_NONE: u32 = 1;
const DATA_BOOL: u32 = 2;
const DATA_EVENTFD: u32 = 4;
const ACTION_TRIGGER: u32 = 1 << 5;
const MAP_WRITE: u32 = 2;
const UNMAP_BITMAP: u32 = 1;
const UNMAP_ALL: u32 = 2;
/// Bytes of a read or write: more than any access of a guest has.
const MAX_ACCESS: usize = 4096;
/// What the server can do, with the final NUL.
const CAPABILITIES: &[u8] =
    b"{\"capabilities\":{\"max_msg_fds\":8,\"max_data_xfer_size\":4096,\"max_dma_maps\":65535}}\0";

/// A device cannot start.
#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub enum DeviceError {
    /// the card gives no accelerator of this type: {0}
    Refused(Errno),
    /// the card has hung up: it has ended, or has too many clients
    HungUp,
}

/// Messages of the VMM since it connected.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MessageCounts {
    pub reads: u64,
    pub writes: u64,
    pub maps: u64,
    pub unmaps: u64,
    /// Reads and writes of wrong sizes or places.
    pub bad: u64,
}

/// The device of one virtual machine. All that its VMM sends is hostile; it harms its own virtual accelerator only.
#[derive(Debug)]
pub struct FpgaDevice<C> {
    pub card: C,
    pub memory: VmMemory,
    pub counts: MessageCounts,
    pub(super) guid: [u64; 2],
    pub(super) state_bytes: u64,
    pub(super) state_address: u64,
    pub(super) config: ConfigSpace,
    pub(super) irqs: [Option<OwnedFd>; VECTORS],
    /// Halves of BASE, STATE_ADDRESS and RESET.
    pub(super) half_written: [HalfWritten; 3],
    /// Errno of the last write that the card has answered.
    pub(super) error: u64,
    pub(super) has_version: bool,
}

type Answer = Result<Vec<u8>, Errno>;

impl<C: Card> FpgaDevice<C> {
    /// A device with a new virtual accelerator of this type.
    ///
    /// # Errors
    /// See [`DeviceError`].
    pub fn new(mut card: C, guid: &str, ids: PciIds) -> Result<FpgaDevice<C>, DeviceError> {
        let hello = Request::Hello { version: LINK_VERSION, guid: guid.to_owned() };
        let greeted = card.ask_words(&hello, None).map_err(|CardLost| DeviceError::HungUp)?;
        let [_, state_bytes, slice_bytes, ..] = greeted.map_err(DeviceError::Refused)?;
        Ok(FpgaDevice {
            card,
            memory: VmMemory::new(slice_bytes),
            counts: MessageCounts::default(),
            guid: guid_halves(guid),
            state_bytes,
            state_address: 0,
            config: ConfigSpace::new(ids),
            irqs: Default::default(),
            half_written: Default::default(),
            error: 0,
            has_version: false,
        })
    }

    /// Executes a message and returns the reply, if it gets one. `descriptors` came with it; `None`: more than the kernel or the
    /// device takes.
    pub fn execute(&mut self, header: &Header, body: &[u8], descriptors: Option<Vec<OwnedFd>>) -> Option<Vec<u8>> {
        // A reply to nothing that was asked.
        if !header.is_command() {
            return None;
        }
        // A card that does not answer yet is asked again with the next message, but for a VMM's writes: there are many of those, and
        // it waits 5 s at most for what comes after them.
        if !header.may_be_late(body) {
            let _ = self.memory.finish_unmaps(&mut self.card);
        }
        let answer = VfioCommand::parse(header.command, body).and_then(|command| match descriptors {
            Some(descriptors) => self.command(command, descriptors),
            None => Err(Errno::MFILE),
        });
        header.wants_reply().then(|| header.answered(&answer))
    }

    fn command(&mut self, command: VfioCommand<'_>, mut descriptors: Vec<OwnedFd>) -> Answer {
        match command {
            VfioCommand::Version { major: 0, minor } if !self.has_version => {
                self.has_version = true;
                // The version of the one who knows less: QEMU 11.1 says 0.0, and takes nothing above.
                Ok([&[0, 0], &minor.min(1).to_ne_bytes()[..], CAPABILITIES].concat())
            }
            _ if !self.has_version => Err(Errno::INVAL),
            VfioCommand::Version { .. } => Err(Errno::INVAL),
            VfioCommand::DmaMap { flags, offset, address, size } if descriptors.len() < 2 => {
                let rights = if flags & MAP_WRITE == 0 { Rights::Read } else { Rights::ReadWrite };
                self.map((address, size), descriptors.pop(), offset, rights)
            }
            VfioCommand::SetIrqs { flags, index, start, count, data } => {
                self.set_irqs(flags, index, (start, count), data, descriptors)
            }
            _ if !descriptors.is_empty() => Err(Errno::INVAL),
            VfioCommand::DmaMap { .. } => Err(Errno::INVAL),
            VfioCommand::DmaUnmap { flags, address, size } => self.unmap(flags, address, size),
            VfioCommand::DeviceInfo => Ok(halves(&[16, DEVICE_RESET_PCI, REGIONS, IRQS])),
            VfioCommand::RegionInfo { region } => region_info(region),
            VfioCommand::IrqInfo { index } if index < IRQS => {
                let (flags, count) = if index == MSIX_IRQ { (IRQ_EVENTFD, VECTORS as u32) } else { (0, 0) };
                Ok(halves(&[16, flags, index, count]))
            }
            VfioCommand::IrqInfo { .. } => Err(Errno::INVAL),
            VfioCommand::RegionRead { offset, region, count } => self.region_read(offset, region, count),
            VfioCommand::RegionWrite { offset, region, data } => self.region_write(offset, region, data),
            VfioCommand::Reset => {
                self.reset();
                Ok(Vec::new())
            }
        }
    }

    /// A map that the card refuses or does not answer is answered as one that is done: a VMM that is told so loses its device.
    fn map(&mut self, range: (u64, u64), file: Option<OwnedFd>, offset: u64, rights: Rights) -> Answer {
        self.counts.maps += 1;
        if range.1 == 0 || u128::from(range.0) + u128::from(range.1) > 1 << 64 {
            return Err(Errno::INVAL);
        }
        // Without a card there is nothing that could reach the memory.
        let _ = self.memory.map(&mut self.card, range, file, offset, rights);
        Ok(Vec::new())
    }

    fn unmap(&mut self, flags: u32, address: u64, size: u64) -> Answer {
        self.counts.unmaps += 1;
        let all = flags & UNMAP_ALL != 0;
        if flags & UNMAP_BITMAP != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        if !all && (size == 0 || u128::from(address) + u128::from(size) > 1 << 64) {
            return Err(Errno::INVAL);
        }
        let range = if all { (0, u64::MAX) } else { (address, size) };
        // A card that has ended has no mappings any more.
        let _ = self.memory.unmap(&mut self.card, range);
        Ok(halves_and_words(&[24, flags], &[address, size]))
    }

    fn set_irqs(
        &mut self,
        flags: u32,
        index: u32,
        (start, count): (u32, u32),
        data: &[u8],
        descriptors: Vec<OwnedFd>,
    ) -> Answer {
        let vectors = if index == MSIX_IRQ { VECTORS as u32 } else { 0 };
        let end = start.checked_add(count).filter(|end| *end <= vectors).ok_or(Errno::INVAL)?;
        let (first, end) = (start as usize, end as usize);
        let is_event =
            |descriptor: &OwnedFd| rustix::fs::fstat(descriptor).is_ok_and(|stat| stat.st_mode & 0o170_000 == 0);
        match flags {
            _ if flags & ACTION_TRIGGER == 0 => return Err(Errno::INVAL),
            _ if flags & DATA_EVENTFD != 0 => {
                if descriptors.len() > end - first || !descriptors.iter().all(is_event) {
                    return Err(Errno::INVAL);
                }
                let mut descriptors = descriptors.into_iter();
                self.irqs.iter_mut().take(end).skip(first).for_each(|irq| *irq = descriptors.next());
            }
            _ if !descriptors.is_empty() => return Err(Errno::INVAL),
            _ if flags & DATA_NONE != 0 && count == 0 => self.irqs = Default::default(),
            _ if flags & DATA_NONE != 0 => (first..end).for_each(|vector| self.interrupt(vector)),
            _ if flags & DATA_BOOL != 0 && data.len() >= end - first => {
                (first..end).zip(data).filter(|(_, raise)| **raise != 0).for_each(|(vector, _)| self.interrupt(vector));
            }
            _ => return Err(Errno::INVAL),
        }
        Ok(Vec::new())
    }

    /// Raises a vector in the virtual machine. Never waits: a counter that is full tells as much.
    pub fn interrupt(&self, vector: usize) {
        let Some(Some(irq)) = self.irqs.get(vector) else { return };
        let mut polled = [PollFd::new(irq, PollFlags::OUT)];
        let room = poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        if room == Ok(1) && polled[0].revents().contains(PollFlags::OUT) {
            let _ = rustix::io::write(irq.as_fd(), &1_u64.to_ne_bytes());
        }
    }

    /// As at its start, but for the counts of messages.
    fn reset(&mut self) {
        // A card that has ended has nothing left of it.
        let _ = self.card.ask(&Request::Reset, None);
        let _ = self.memory.reset(&mut self.card);
        self.state_address = 0;
        self.half_written = Default::default();
        self.error = 0;
    }

    fn region_read(&mut self, offset: u64, region: u32, count: u32) -> Answer {
        let bytes = usize::try_from(count).ok().filter(|bytes| *bytes <= MAX_ACCESS).ok_or(Errno::INVAL)?;
        let data = match region {
            0 | 2 => {
                self.counts.reads += 1;
                self.page_read(offset, region, bytes)
            }
            CONFIG_REGION => self.config.read(offset, bytes),
            _ if region < REGIONS => vec![0; bytes],
            _ => return Err(Errno::INVAL),
        };
        Ok([&access(offset, region, count)[..], &data].concat())
    }

    fn page_read(&mut self, offset: u64, region: u32, bytes: usize) -> Vec<u8> {
        if !is_whole_or_half(offset, bytes, BAR_BYTES) {
            self.counts.bad += 1;
            return vec![0; bytes];
        }
        if region == 2 {
            return part_of(self.control(offset), offset, bytes);
        }
        let wish = Request::Read { offset: offset as u32, bytes: bytes as u32 };
        let value = match self.card.ask_words(&wish, None) {
            Ok(Ok([value, ..])) => value,
            // As on a bus that has lost its device.
            Ok(Err(_)) | Err(CardLost) => u64::MAX,
        };
        part_of(value, 0, bytes)
    }

    fn region_write(&mut self, offset: u64, region: u32, data: &[u8]) -> Answer {
        if data.len() > MAX_ACCESS {
            return Err(Errno::INVAL);
        }
        match region {
            0 | 2 => {
                self.counts.writes += 1;
                self.page_write(offset, region, data);
            }
            CONFIG_REGION => {
                if self.config.write(offset, data) {
                    self.reset();
                }
            }
            _ if region < REGIONS => {}
            _ => return Err(Errno::INVAL),
        }
        Ok(access(offset, region, data.len() as u32))
    }

    fn page_write(&mut self, offset: u64, region: u32, data: &[u8]) {
        if !is_whole_or_half(offset, data.len(), BAR_BYTES) {
            self.counts.bad += 1;
            return;
        }
        if region == 2 {
            return self.control_write(offset, data);
        }
        let value = data.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte));
        let wish = Request::Write { offset: offset as u32, bytes: data.len() as u32, value };
        if let Ok(Err(errno)) = self.card.ask(&wish, None) {
            self.note_error(Err(errno));
        }
    }

    fn note_error(&mut self, done: Result<(), Errno>) {
        self.error = done.map_or_else(|errno| errno.raw_os_error().unsigned_abs().into(), |()| 0);
    }

    /// The value of a register of BAR2.
    fn control(&mut self, offset: u64) -> u64 {
        use ControlRegister as R;
        let Some(register) = ControlRegister::at(offset) else { return 0 };
        let (maps, counts) = (self.memory.counts, self.counts);
        match register {
            R::Magic => MAGIC,
            R::Version => CONTROL_VERSION,
            R::GuidHigh => self.guid[0],
            R::GuidLow => self.guid[1],
            R::StateBytes => self.state_bytes,
            R::SliceBytes => self.memory.region_bytes(),
            R::Base => self.memory.base().unwrap_or(0),
            R::StateAddress => self.state_address,
            R::Reset => 0,
            R::Error => self.error,
            // A card that does not answer in time lives, and the program looks again.
            R::Status => self.info(0).unwrap_or(if self.card.lives() { STATUS_WAITS } else { STATUS_LOST }),
            R::Port => self.info(1).unwrap_or(0),
            R::Cycles => self.info(2).unwrap_or(0),
            R::Preemptions => self.info(3).unwrap_or(0),
            R::MappedBytes => self.info(4).unwrap_or(0),
            R::RefusedRequests => self.info(5).unwrap_or(0),
            R::BadAccesses => self.info(6).unwrap_or(0).saturating_add(counts.bad),
            R::FaultCause => self.fault(0),
            R::FaultWrite => self.fault(1),
            R::FaultAddress => self.fault(2),
            R::FaultCycle => self.fault(3),
            R::RefusedMaps => maps.refused,
            R::FirstRefused => maps.first_refused.0,
            R::FirstErrno => maps.first_refused.1.into(),
            R::OutsideMaps => maps.outside,
            R::DeviceReads => counts.reads,
            R::DeviceWrites => counts.writes,
            R::MapMessages => counts.maps,
            R::UnmapMessages => counts.unmaps,
            R::LostUnmaps => maps.lost,
        }
    }

    /// `None`: the card is lost.
    fn info(&mut self, word: usize) -> Option<u64> {
        self.card.ask_words(&Request::Info, None).ok()?.ok()?.get(word).copied()
    }

    fn fault(&mut self, word: usize) -> u64 {
        let told = self.card.ask_words(&Request::Fault, None).ok().and_then(Result::ok);
        told.and_then(|words| words.get(word).copied()).unwrap_or(0)
    }

    fn control_write(&mut self, offset: u64, data: &[u8]) {
        let register = ControlRegister::at(offset);
        let place = match register {
            Some(ControlRegister::Base) => 0,
            Some(ControlRegister::StateAddress) => 1,
            Some(ControlRegister::Reset) => 2,
            _ => return,
        };
        let Some(value) = self.half_written[place].put(offset, data) else { return };
        let wish = match place {
            0 => Request::Base { address: value },
            1 => Request::State { address: value },
            _ if value == 2 => return self.reset(),
            _ => Request::Reset,
        };
        let asked = self.card.ask(&wish, None);
        let done = asked.unwrap_or(Err(if self.card.lives() { Errno::AGAIN } else { Errno::NODEV }));
        self.note_error(done);
        match wish {
            Request::Base { address } if done.is_ok() => {
                self.memory.set_base(address);
                self.state_address = 0;
            }
            Request::State { address } if done.is_ok() => self.state_address = address,
            _ => {}
        }
    }
}

/// What a reply to an access begins with.
fn access(offset: u64, region: u32, count: u32) -> Vec<u8> {
    let mut body = offset.to_ne_bytes().to_vec();
    body.extend(halves(&[region, count]));
    body
}

fn region_info(region: u32) -> Answer {
    let bytes = match region {
        0 | 2 | MSIX_BAR => BAR_BYTES,
        CONFIG_REGION => CONFIG_BYTES,
        _ if region < REGIONS => 0,
        _ => return Err(Errno::INVAL),
    };
    let flags = if bytes == 0 { 0 } else { REGION_READ_WRITE };
    Ok(halves_and_words(&[32, flags, region, 0], &[bytes, 0]))
}

const _: () = assert!(CAPABILITIES.len() + MAX_ACCESS < MAX_MESSAGE_BYTES);

#[cfg(test)]
mod tests {
    use super::super::card::SlowCard;
    use super::*;

    #[test]
    fn card_that_does_not_answer_in_time_is_none_that_has_ended() {
        let card = SlowCard { answers: true, lives: true, done: Vec::new() };
        let guid = "6c6c0001-4a5e-4f0a-9d1b-2f4f0c110002";
        let mut device = FpgaDevice::new(card, guid, PciIds::default()).unwrap();
        let base = ControlRegister::Base as u64;
        let [status, error] = [ControlRegister::Status, ControlRegister::Error].map(|register| register as u64);
        for (lives, phase, errno) in [(true, STATUS_WAITS, Errno::AGAIN), (false, STATUS_LOST, Errno::NODEV)] {
            (device.card.answers, device.card.lives) = (false, lives);
            device.control_write(base, &(1_u64 << 40).to_ne_bytes());
            assert_eq!((device.control(status), device.control(base)), (phase, 0));
            assert_eq!(device.control(error), errno.raw_os_error() as u64);
        }
    }
}
