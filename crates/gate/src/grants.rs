//! What the node and one API server share about the devices that a session uses: who may give them work now.
//!
//! One page per session, written by that session's API server and the node, never by a guest. FairGV's board
//! is one page for all; here a broken API server reaches nobody's grant but its own.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

/// Devices that one session can use.
pub const DEVICE_SEATS: usize = 16;
/// Longest name of a device, in bytes.
pub const NAME: usize = 64;

/// What [`DeviceSeat::grant`] says.
pub mod grant {
    /// Nobody may give the device work. The node's answer to a seat that wants.
    pub const CLOSED: u32 = 0;
    /// Until [`DeviceSeat::budget`] is used up, or there is nothing more to do.
    pub const SLICE: u32 = 1;
    /// As long as nobody else wants the device; there is work under way.
    pub const ALONE: u32 = 2;
    /// As `ALONE`, and nothing is under way: the node may close it at once.
    pub const IDLE: u32 = 3;
    /// The slice is used up and the node decides whether another follows at once. Until then nobody may give the
    /// device work.
    pub const ENDED: u32 = 4;
    /// Nobody schedules this device.
    pub const FREE: u32 = 5;
}

/// How a holder behaves, set by the node with the first grant.
pub mod manner {
    /// Measures what its calls cost and gives the device back when it is used up or not needed.
    pub const MEASURED: u32 = 0;
    /// A slice is a span of time, whatever is queued on the device at its end, and however little is done in it:
    /// what schedulers do that do not look into the device. For comparison only.
    pub const BLIND: u32 = 1;
}

/// One device of a session.
#[repr(C, align(64))]
#[derive(Default)]
pub struct DeviceSeat {
    /// The API server has written the name; never taken back.
    pub taken: AtomicU32,
    /// See [`grant`].
    pub grant: AtomicU32,
    /// Threads of the API server that wait for the grant.
    pub waiting: AtomicU32,
    /// See [`manner`].
    pub manner: AtomicU32,
    /// Nanoseconds that a `SLICE` lasts.
    pub budget: AtomicU64,
    /// Nanoseconds that a holder without work keeps a slice, because more work usually follows.
    pub linger: AtomicU64,
    /// Nanoseconds for which the threads of a program that calls often stay awake while it has the device; 0: they
    /// sleep when they think best.
    pub awake: AtomicU64,
    /// Nanoseconds that the device was occupied, ever.
    pub used: AtomicU64,
    /// Calls that gave the device work, ever.
    pub calls: AtomicU64,
    /// Nanoseconds that calls waited for the grant, ever.
    pub waited: AtomicU64,
    name: [AtomicU64; NAME / 8],
}

#[repr(C)]
struct Page {
    seats: [DeviceSeat; DEVICE_SEATS],
}

const BYTES: usize = size_of::<Page>().next_multiple_of(4096);

impl DeviceSeat {
    /// Takes the seat for a device. Names are cut off at [`NAME`] bytes.
    pub fn take(&self, name: &str) {
        let bytes = &name.as_bytes()[..name.floor_char_boundary(NAME)];
        for (word, chunk) in self.name.iter().zip(bytes.chunks(8)) {
            let mut eight = [0; 8];
            eight[..chunk.len()].copy_from_slice(chunk);
            word.store(u64::from_le_bytes(eight), Ordering::Relaxed);
        }
        self.taken.store(1, Ordering::Release);
    }

    /// The device's name, without anything that a terminal would interpret; `None`: the seat is not taken.
    pub fn name(&self) -> Option<String> {
        if self.taken.load(Ordering::Acquire) == 0 {
            return None;
        }
        let bytes: Vec<u8> = self.name.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).collect();
        let text = String::from_utf8_lossy(&bytes);
        Some(text.chars().take_while(|c| *c != '\0').filter(|c| !c.is_control()).collect())
    }

    /// Changes the grant if it is still `from`, and wakes who waits for it. False if it was something else.
    pub fn change(&self, from: u32, to: u32) -> bool {
        let changed = self.grant.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if changed && matches!(from, grant::CLOSED | grant::ENDED) {
            self.wake();
        }
        changed
    }

    /// Sleeps while the grant is `is`, at most so long. May return early.
    pub fn sleep(&self, is: u32, at_most: Duration) {
        let timeout =
            libc::timespec { tv_sec: at_most.as_secs() as libc::time_t, tv_nsec: at_most.subsec_nanos().into() };
        // SAFETY: the word is live and aligned, as a reference to an atomic; the kernel only reads it. Without the
        // private flag it also matches a waker in another process. `timeout` outlives the call. A peer that
        // writes the word only makes this return early or late by `at_most`; callers look again.
        unsafe { libc::syscall(libc::SYS_futex, self.grant.as_ptr(), libc::FUTEX_WAIT, is, &raw const timeout) };
    }

    /// Wakes all who sleep.
    pub fn wake(&self) {
        // SAFETY: as in `sleep`; FUTEX_WAKE does not access the word.
        unsafe { libc::syscall(libc::SYS_futex, self.grant.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
    }
}

/// A mapping of the page.
pub struct GrantPage {
    address: *mut Page,
}

// SAFETY: the page consists of atomics only and stays mapped while the value lives.
unsafe impl Send for GrantPage {}
// SAFETY: as above.
unsafe impl Sync for GrantPage {}

impl GrantPage {
    /// A new page, sealed against truncation.
    pub fn create() -> rustix::io::Result<OwnedFd> {
        let fd = rustix::fs::memfd_create("aviary-grants", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&fd, BYTES as u64)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(fd)
    }

    /// Maps a page that somebody else made. Fails unless it is sealed at its full size: otherwise its maker could
    /// truncate it and kill the reader with SIGBUS.
    pub fn open(fd: BorrowedFd<'_>) -> rustix::io::Result<GrantPage> {
        let sealed = rustix::fs::fcntl_get_seals(fd)?.contains(SealFlags::SHRINK);
        if !sealed || rustix::fs::fstat(fd)?.st_size < BYTES as i64 {
            return Err(rustix::io::Errno::INVAL);
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address the kernel chooses replaces nothing.
        let address = unsafe { rustix::mm::mmap(std::ptr::null_mut(), BYTES, access, MapFlags::SHARED, fd, 0)? };
        Ok(GrantPage { address: address.cast() })
    }

    pub fn seats(&self) -> &[DeviceSeat; DEVICE_SEATS] {
        // SAFETY: mapped with at least `size_of::<Page>()` bytes until drop, page-aligned; every bit pattern is a
        // valid atomic, so a peer that writes nonsense shows nonsense and nothing worse.
        unsafe { &(*self.address).seats }
    }
}

impl Drop for GrantPage {
    fn drop(&mut self) {
        // SAFETY: our own mapping; `seats` ties every borrow of it to `self`.
        let _ = unsafe { rustix::mm::munmap(self.address.cast(), BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn both_sides_see_one_seat() {
        let fd = GrantPage::create().unwrap();
        let (node, server) = (GrantPage::open(fd.as_fd()).unwrap(), GrantPage::open(fd.as_fd()).unwrap());
        assert_eq!(node.seats()[3].name(), None);
        server.seats()[3].take("a device\u{7} of ours");
        assert_eq!(node.seats()[3].name().unwrap(), "a device of ours");
        let name = "ä".repeat(40);
        server.seats()[4].take(&name);
        assert_eq!(node.seats()[4].name().unwrap(), "ä".repeat(32));
    }

    #[test]
    fn a_sleeper_is_woken_by_the_grant() {
        let fd = GrantPage::create().unwrap();
        let (node, server) = (GrantPage::open(fd.as_fd()).unwrap(), GrantPage::open(fd.as_fd()).unwrap());
        let sleeper = std::thread::spawn(move || {
            let seat = &server.seats()[0];
            while seat.grant.load(Ordering::SeqCst) == grant::CLOSED {
                seat.sleep(grant::CLOSED, Duration::from_secs(30));
            }
            seat.grant.load(Ordering::SeqCst)
        });
        std::thread::sleep(Duration::from_millis(20));
        assert!(node.seats()[0].change(grant::CLOSED, grant::SLICE));
        assert_eq!(sleeper.join().unwrap(), grant::SLICE);
        assert!(!node.seats()[0].change(grant::CLOSED, grant::SLICE));
    }

    #[test]
    fn an_unsealed_page_is_not_mapped() {
        let fd = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&fd, BYTES as u64).unwrap();
        assert!(GrantPage::open(fd.as_fd()).is_err());
    }
}
