//! The file in which a session's state passes from one process to another: the link, then the contents.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};

use super::link::{Link, LinkError};

/// "AVMOVED" and the form's version.
const MAGIC: u64 = u64::from_le_bytes(*b"AVMOVED\x01");
/// Longest link in bytes: messages that were taken from rings are the most of it.
const MAX_LINK_BYTES: u64 = 1 << 30;
/// Below 128 KiB, from which on the C library maps each allocation and, when one is given back, maps fewer later ones: the
/// addresses that a vendor's library finds free would depend on whether a process has been prepared for a move.
const BUFFER_BYTES: usize = 64 << 10;
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::WRITE).union(SealFlags::SEAL);

/// The reason why a file is not the state of a session.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// the file with the session's state cannot be read: {0}
    #[error("the file with the session's state cannot be read: {0}")]
    Io(#[from] io::Error),
    /// the file with the session's state can still be changed by its writer
    #[error("the file with the session's state can still be changed by its writer")]
    NotSealed,
    /// the file is no state of a session of this version
    #[error("the file is no state of a session of this version")]
    Magic,
    /// a link of {0} bytes is longer than possible
    #[error("a link of {0} bytes is longer than possible")]
    Long(u64),
    /// {0}
    #[error(transparent)]
    Link(#[from] LinkError),
}

/// Writes link and contents into a new file and seals it. `contents` answers an error of its own kind.
pub fn write<E: From<io::Error>>(
    link: &Link,
    contents: impl FnOnce(&mut dyn Write) -> Result<(), E>,
) -> Result<(OwnedFd, u64), E> {
    let failed = |errno: rustix::io::Errno| io::Error::from(errno);
    let file = rustix::fs::memfd_create("aviary-moved", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
    let mut to = BufWriter::with_capacity(BUFFER_BYTES, File::from(file.map_err(failed)?));
    let link = link.to_bytes();
    to.write_all(&MAGIC.to_le_bytes())?;
    to.write_all(&(link.len() as u64).to_le_bytes())?;
    to.write_all(&link)?;
    contents(&mut to)?;
    let mut file = to.into_inner().map_err(|error| error.into_error())?;
    let bytes = file.stream_position()?;
    rustix::fs::fcntl_add_seals(&file, SEALS).map_err(failed)?;
    Ok((file.into(), bytes))
}

/// Reads the link; the contents follow in the second result. The writer has given up every way to change the file.
pub fn read(file: &OwnedFd) -> Result<(Link, impl Read + use<>), SnapshotError> {
    let seals = rustix::fs::fcntl_get_seals(file.as_fd()).map_err(|_| SnapshotError::NotSealed)?;
    if !seals.contains(SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE) {
        return Err(SnapshotError::NotSealed);
    }
    let mut file = File::from(file.try_clone()?);
    // Its position is the one of every copy of the descriptor.
    file.seek(SeekFrom::Start(0))?;
    let mut from = BufReader::with_capacity(BUFFER_BYTES, file);
    let mut word = [0; 8];
    from.read_exact(&mut word)?;
    if u64::from_le_bytes(word) != MAGIC {
        return Err(SnapshotError::Magic);
    }
    from.read_exact(&mut word)?;
    let length = u64::from_le_bytes(word);
    if length > MAX_LINK_BYTES {
        return Err(SnapshotError::Long(length));
    }
    let mut link = Vec::new();
    // Memory grows with what is there, not with what the length says.
    if (&mut from).take(length).read_to_end(&mut link)? as u64 != length {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    Ok((Link::from_bytes(&link)?, from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_is_read_as_it_was_written_and_more_than_once() {
        let link = Link { hello: vec![1, 2, 3], tickets_done: 7, ..Link::default() };
        let (file, bytes) = write(&link, |to| to.write_all(b"contents")).unwrap();
        assert_eq!(rustix::fs::fstat(&file).unwrap().st_size as u64, bytes);
        for _ in 0..2 {
            let (read, mut contents) = read(&file).unwrap();
            assert_eq!(read, link);
            let mut text = String::new();
            contents.read_to_string(&mut text).unwrap();
            assert_eq!(text, "contents");
        }
    }

    #[test]
    fn files_that_their_writer_can_change_are_refused() {
        let file = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        assert!(matches!(read(&file).err(), Some(SnapshotError::NotSealed)));
        assert!(matches!(read(&File::open("/dev/null").unwrap().into()).err(), Some(SnapshotError::NotSealed)));
    }

    #[test]
    fn cut_and_foreign_files_are_refused() {
        let sealed = |bytes: &[u8]| {
            let file = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
            File::from(file.try_clone().unwrap()).write_all(bytes).unwrap();
            rustix::fs::fcntl_add_seals(&file, SEALS).unwrap();
            file
        };
        let head = MAGIC.to_le_bytes();
        for bytes in
            [&[][..], b"another file, of no kind", &head, &[head, [0xff; 8]].concat(), &[head, [9; 8]].concat()]
        {
            assert!(read(&sealed(bytes)).is_err(), "{bytes:?}");
        }
    }
}
