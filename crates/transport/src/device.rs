//! `/dev/aviary`: a guest's connection to the node from inside a VM. The interface is that of
//! `guest-driver/linux/aviary.h`.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use aviary_ring::Doorbell;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Getter, NoArg, Setter, ioctl, opcode};

use crate::descriptors::{KeptFile, out_of_the_way};

/// Version of the interface that this crate speaks.
const INTERFACE: u32 = 1;
const GROUP: u8 = 0xA7;
/// Unit in bytes in which arena memory is allocated and released.
pub(crate) const CHUNK_BYTES: u64 = 256 << 10;

#[repr(C)]
struct Info {
    interface: u32,
    reserved: u32,
    largest_arena: u64,
}

#[repr(C)]
struct Wait {
    offset: u64,
    timeout: i64,
    expected: u32,
    reserved: u32,
}

#[repr(C)]
struct Wake {
    offset: u64,
    flags: u32,
    reserved: u32,
}

const WAKE_LOCAL: u32 = 1;

#[repr(C)]
struct PinRequest {
    address: u64,
    length: u64,
    offset: u64,
    flags: u32,
    reserved: u32,
}

const PIN_WRITE: u32 = 1;

#[repr(C)]
struct Range {
    offset: u64,
    length: u64,
}

/// Memory of the application that the host will map, in whole pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pin {
    pub address: usize,
    pub length: u64,
    /// Offset in the arena in bytes; the range must be free.
    pub offset: u64,
    /// True if the host may write the memory.
    pub write: bool,
}

/// One open `/dev/aviary`: a session. Another file under its number refuses these requests, but not another session of the
/// same process: a program that closes all its numbers and attaches again must not use the first session any more.
pub struct Device {
    file: KeptFile,
    largest_arena: u64,
    /// Address of the arena in this process.
    base: OnceLock<usize>,
}

impl Device {
    pub fn open(path: &Path) -> Result<Self, Errno> {
        let file = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        // SAFETY: the driver fills a structure of this size and layout, for which any bit pattern
        // is valid. Another driver refuses the request number.
        let info: Info = unsafe { ioctl(&file, Getter::<{ opcode::read::<Info>(GROUP, 0) }, Info>::new()) }?;
        if info.interface != INTERFACE {
            return Err(Errno::PROTONOSUPPORT);
        }
        let file = out_of_the_way(file);
        Ok(Device { file: KeptFile::new(file), largest_arena: info.largest_arena, base: OnceLock::new() })
    }

    /// The descriptor; `None`: it is closed, or its number refers to another file.
    pub fn kept(&self) -> Option<BorrowedFd<'_>> {
        self.file.get()
    }

    /// Largest arena in bytes that the device accepts.
    pub fn largest_arena(&self) -> u64 {
        self.largest_arena
    }

    pub(crate) fn set_base(&self, base: usize) {
        let _ = self.base.set(base);
    }

    fn offset_of(&self, word: &AtomicU32) -> u64 {
        (word.as_ptr().addr() - self.base.get().copied().unwrap_or_default()) as u64
    }

    /// Maps the application's memory at the arena's `offset` on the host until it is unpinned.
    ///
    /// # Safety
    /// The pages stay mapped until they are unpinned, and with `write` the host may change them.
    pub unsafe fn pin(&self, pin: Pin) -> Result<(), Errno> {
        let request = PinRequest {
            address: pin.address as u64,
            length: pin.length,
            offset: pin.offset,
            flags: if pin.write { PIN_WRITE } else { 0 },
            reserved: 0,
        };
        // SAFETY: the driver reads a structure of this size and layout, and checks all of it.
        unsafe { ioctl(self, Setter::<{ opcode::write::<PinRequest>(GROUP, 3) }, PinRequest>::new(request)) }
    }

    pub fn unpin(&self, offset: u64, length: u64) -> Result<(), Errno> {
        // SAFETY: the driver reads a structure of this size and layout, and checks all of it.
        unsafe { ioctl(self, Setter::<{ opcode::write::<Range>(GROUP, 4) }, Range>::new(Range { offset, length })) }
    }

    /// Returns the whole chunks of the range to the system.
    pub(crate) fn release(&self, offset: u64, length: u64) -> Result<(), Errno> {
        // SAFETY: the driver reads a structure of this size and layout, and checks all of it.
        unsafe { ioctl(self, Setter::<{ opcode::write::<Range>(GROUP, 5) }, Range>::new(Range { offset, length })) }
    }

    fn wake(&self, word: &AtomicU32, flags: u32) {
        let request = Wake { offset: self.offset_of(word), flags, reserved: 0 };
        // SAFETY: the driver reads a structure of this size and layout, and checks all of it. It
        // fails only if the session is over, whose server sleeps no more.
        let _ = unsafe { ioctl(self, Setter::<{ opcode::write::<Wake>(GROUP, 2) }, Wake>::new(request)) };
    }
}

/// Ends the session of an open `/dev/aviary`, as the end of the process would.
pub(crate) fn end_session(file: BorrowedFd) {
    // SAFETY: the request has no argument; another kind of file refuses it.
    let _ = unsafe { ioctl(file, NoArg::<{ opcode::none(GROUP, 7) }>::new()) };
}

impl Doorbell for Device {
    fn wait(&self, word: &AtomicU32, expected: u32, timeout: Option<Duration>) {
        let timeout = timeout.map_or(-1, |t| i64::try_from(t.as_nanos()).unwrap_or(i64::MAX));
        let request = Wait { offset: self.offset_of(word), timeout, expected, reserved: 0 };
        // SAFETY: the driver reads a structure of this size and layout, and checks all of it. The
        // result does not matter: the caller checks the word again.
        let ended = unsafe { ioctl(self, Setter::<{ opcode::write::<Wait>(GROUP, 1) }, Wait>::new(request)) };
        if ended == Err(Errno::PIPE) {
            // The session is over, which the caller learns from its probe; until then it must not
            // wait in a busy loop.
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn wake_peer(&self, word: &AtomicU32) {
        self.wake(word, 0);
    }

    fn wake_own(&self, word: &AtomicU32) {
        self.wake(word, WAKE_LOCAL);
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.number()
    }
}
