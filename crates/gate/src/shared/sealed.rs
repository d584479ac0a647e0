//! A page that several processes map, sealed at its size.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::os::fd::{BorrowedFd, OwnedFd};

use aviary_ring::is_ordinary_memory;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

/// Types that such a page can have.
///
/// # Safety
///
/// Nothing but atomics, for which every bit pattern is valid: others change the words at any time, and a new page is
/// all zeros.
pub unsafe trait Atomics {}

/// A mapping of the page.
pub struct SealedPage<T> {
    address: *mut T,
    content: PhantomData<T>,
}

// SAFETY: the page consists of atomics only, as `Atomics` says, and stays mapped while the value lives.
unsafe impl<T: Atomics> Send for SealedPage<T> {}
// SAFETY: as above.
unsafe impl<T: Atomics> Sync for SealedPage<T> {}

impl<T> SealedPage<T> {
    const BYTES: usize = size_of::<T>().next_multiple_of(4096);
}

impl<T: Atomics> SealedPage<T> {
    /// A new page, sealed against truncation.
    pub fn create(name: &str) -> rustix::io::Result<OwnedFd> {
        let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&fd, Self::BYTES as u64)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(fd)
    }

    /// Maps a page. Fails unless it is sealed at its full size and of ordinary memory: otherwise its maker could truncate
    /// it, or take huge pages out of it that the system has no others of, and kill the reader with SIGBUS.
    pub fn open(fd: BorrowedFd<'_>) -> rustix::io::Result<Self> {
        Self::map(fd, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// The same for who only loads: a store would end the process.
    pub fn open_to_read(fd: BorrowedFd<'_>) -> rustix::io::Result<Self> {
        Self::map(fd, ProtFlags::READ)
    }

    fn map(fd: BorrowedFd<'_>, access: ProtFlags) -> rustix::io::Result<Self> {
        let sealed = rustix::fs::fcntl_get_seals(fd)?.contains(SealFlags::SHRINK);
        if !sealed || !is_ordinary_memory(fd).unwrap_or(false) || rustix::fs::fstat(fd)?.st_size < Self::BYTES as i64 {
            return Err(rustix::io::Errno::INVAL);
        }
        // SAFETY: a new mapping at an address the kernel chooses replaces nothing.
        let address = unsafe { rustix::mm::mmap(std::ptr::null_mut(), Self::BYTES, access, MapFlags::SHARED, fd, 0)? };
        Ok(Self { address: address.cast(), content: PhantomData })
    }
}

impl<T: Atomics> Deref for SealedPage<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: mapped with at least the type's size until drop (the file is sealed against shrinking),
        // page-aligned, and every bit pattern is a valid atomic. Others change the words at any time, which atomics
        // allow: a peer that writes nonsense shows nonsense and nothing worse.
        unsafe { &*self.address }
    }
}

impl<T> fmt::Debug for SealedPage<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SealedPage({:p})", self.address)
    }
}

impl<T> Drop for SealedPage<T> {
    fn drop(&mut self) {
        // SAFETY: our own mapping; `deref` ties every borrow of it to `self`.
        let _ = unsafe { rustix::mm::munmap(self.address.cast(), Self::BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[repr(C)]
    struct Words([AtomicU64; 700]);
    // SAFETY: atomics only.
    unsafe impl Atomics for Words {}

    #[test]
    fn all_mappings_show_the_same_words() {
        let fd = SealedPage::<Words>::create("test").unwrap();
        let page = SealedPage::<Words>::open(fd.as_fd()).unwrap();
        let reader = SealedPage::<Words>::open_to_read(fd.as_fd()).unwrap();
        page.0[699].store(7, Ordering::Relaxed);
        assert_eq!(reader.0[699].load(Ordering::Relaxed), 7);
    }

    #[test]
    fn a_new_page_is_sealed_against_every_change_of_its_size() {
        let fd = SealedPage::<Words>::create("test").unwrap();
        let seals = rustix::fs::fcntl_get_seals(&fd).unwrap();
        assert_eq!(seals, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL);
        assert!(rustix::fs::ftruncate(&fd, 4096).is_err() && rustix::fs::ftruncate(&fd, 1 << 20).is_err());
    }

    #[test]
    fn huge_pages_are_not_mapped() {
        // Making the file takes none; a system without support for them has none to refuse.
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
        let Ok(huge) = rustix::fs::memfd_create("test", flags) else { return };
        rustix::fs::ftruncate(&huge, 2 << 20).unwrap();
        rustix::fs::fcntl_add_seals(&huge, SealFlags::SHRINK | SealFlags::GROW).unwrap();
        assert!(!is_ordinary_memory(huge.as_fd()).unwrap());
        assert!(SealedPage::<Words>::open(huge.as_fd()).is_err());
        assert!(SealedPage::<Words>::open_to_read(huge.as_fd()).is_err());
    }

    #[test]
    fn unsealed_file_is_not_mapped() {
        let unsealed = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&unsealed, 8192).unwrap();
        assert!(SealedPage::<Words>::open(unsealed.as_fd()).is_err());
        rustix::fs::fcntl_add_seals(&unsealed, SealFlags::SHRINK).unwrap();
        assert!(SealedPage::<Words>::open_to_read(unsealed.as_fd()).is_ok());
        let short = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&short, 4096).unwrap();
        rustix::fs::fcntl_add_seals(&short, SealFlags::SHRINK).unwrap();
        assert!(SealedPage::<Words>::open(short.as_fd()).is_err());
    }
}
