//! The machine's user database.

use std::io;

/// Bytes of an entry at first, and at most.
const LEAST_ENTRY: usize = 1 << 10;
const MOST_ENTRY: usize = 1 << 20;

/// True if the user database (files, or what nsswitch.conf names) has an entry for this id. It may ask a server of the network
/// and wait for it: nothing that serves others calls this.
///
/// # Errors
/// The database cannot be read.
pub fn has_user_entry(uid: u32) -> io::Result<bool> {
    let mut buffer = vec![0; LEAST_ENTRY];
    loop {
        let mut found = std::ptr::null_mut();
        // SAFETY: all zeros is a valid `passwd`; it is only written.
        let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
        // SAFETY: a place for the entry, a buffer of the length that is passed, and a place for the result, all of them alive
        // during the call. Nothing of the entry is read.
        let error = unsafe { libc::getpwuid_r(uid, &mut entry, buffer.as_mut_ptr(), buffer.len(), &mut found) };
        match error {
            0 => return Ok(!found.is_null()),
            // Some sources say so where there is no entry.
            libc::ENOENT | libc::ESRCH => return Ok(false),
            libc::EINTR => {}
            libc::ERANGE if buffer.len() < MOST_ENTRY => buffer.resize(buffer.len() * 2, 0),
            other => return Err(io::Error::from_raw_os_error(other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_has_an_entry_and_subordinate_ids_have_none() {
        assert!(has_user_entry(0).unwrap());
        assert!(!has_user_entry(3_999_999_999).unwrap());
    }
}
