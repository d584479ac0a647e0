//! Files that hold shared memory.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

/// True if a file lies in ordinary memory, false if it lies in huge pages.
///
/// Huge pages are scarce. A peer that may write the file can also punch a huge page out of it, and
/// no seal forbids only that. If the system has no free huge page then, the next access kills this
/// process with SIGBUS.
pub fn is_ordinary_memory(file: BorrowedFd<'_>) -> io::Result<bool> {
    let mut found = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: an open descriptor and room for the answer, which the kernel fills in if it returns
    // 0.
    let found = match unsafe { libc::fstatfs(file.as_raw_fd(), found.as_mut_ptr()) } {
        // SAFETY: `fstatfs` returned 0, so the kernel has filled in the answer.
        0 => unsafe { found.assume_init() },
        _ => return Err(io::Error::last_os_error()),
    };
    // The width of the types differs between architectures.
    Ok(i128::from(found.f_type) == i128::from(libc::TMPFS_MAGIC))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::c_uint;
    use std::os::fd::{AsFd, FromRawFd, OwnedFd};

    fn memory(flags: c_uint) -> Option<OwnedFd> {
        // SAFETY: a NUL-terminated name; the descriptor is new and has no other owner.
        let fd = unsafe { libc::memfd_create(c"test".as_ptr(), flags) };
        // SAFETY: `fd` is an open descriptor without another owner.
        (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
    }

    // Miri has no memfd_create.
    #[cfg_attr(miri, ignore)]
    #[test]
    fn huge_pages_and_other_files_are_told_apart() {
        assert!(is_ordinary_memory(memory(0).unwrap().as_fd()).unwrap());
        let null = std::fs::File::open("/dev/zero").unwrap();
        assert!(!is_ordinary_memory(std::fs::File::open("/proc/self/stat").unwrap().as_fd()).unwrap());
        // A device's file may lie in tmpfs.
        assert!(is_ordinary_memory(null.as_fd()).is_ok());
        // A system without huge pages has none to refuse.
        if let Some(huge) = memory(libc::MFD_HUGETLB) {
            assert!(!is_ordinary_memory(huge.as_fd()).unwrap());
        }
    }
}
