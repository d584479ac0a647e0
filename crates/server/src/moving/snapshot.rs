//! The file in which a session's state passes from one process to another. Behind two words, the form and how many bytes of
//! contents it has beside the rest, come these, on pages of their own; then the link and what the session consists of.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::fs::SealFlags;

use super::link::{Link, LinkError};
use crate::tables::contents::{KeptContents, Mapped};

/// "AVMOVED" and the form's version.
const MAGIC: u64 = u64::from_le_bytes(*b"AVMOVED\x02");
/// The two words.
const HEAD_BYTES: u64 = 16;
/// Contents begin on a page of this size, and end at the begin of one.
const PAGE: u64 = 4096;
/// Longest link in bytes: messages that were taken from rings are the most of it.
const MAX_LINK_BYTES: u64 = 1 << 30;
/// Below 128 KiB, from which on the C library maps each allocation and, when one is given back, maps fewer later ones: the
/// addresses that a vendor's library finds free would depend on whether a process has been prepared for a move.
const BUFFER_BYTES: usize = 64 << 10;
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::WRITE).union(SealFlags::SEAL);

/// The reason why a file is not the state of a session.
#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub enum SnapshotError {
    /// the file with the session's state cannot be read: {0}
    Io(#[from] io::Error),
    /// the file with the session's state can still be changed by its writer
    NotSealed,
    /// the file is no state of a session of this version
    Magic,
    /// {0} bytes of contents do not lie in the file
    Contents(u64),
    /// a link of {0} bytes is longer than possible
    Long(u64),
    /// {0}
    Link(#[from] LinkError),
}

/// A file that is about to be written.
#[derive(Debug)]
pub struct Draft {
    file: File,
    contents: u64,
}

impl Draft {
    /// Of a file that the node has made, with room for so many bytes beside the rest; what was in it is gone.
    ///
    /// # Errors
    /// Those of the kernel: there is no room.
    pub fn within(file: OwnedFd, contents: u64) -> io::Result<Self> {
        rustix::fs::ftruncate(&file, 0)?;
        rustix::fs::ftruncate(&file, rest_at(contents).ok_or(io::ErrorKind::InvalidInput)?)?;
        Ok(Self { file: file.into(), contents })
    }

    pub fn into_file(self) -> OwnedFd {
        self.file.into()
    }

    /// The memory of its contents; `None`: it has none.
    ///
    /// # Errors
    /// Those of mmap(2).
    pub fn memory(&self) -> io::Result<Option<Mapped>> {
        (self.contents > 0).then(|| Mapped::new(&self.file, PAGE, self.contents, true)).transpose()
    }

    pub fn contents(&self) -> u64 {
        self.contents
    }

    /// Writes link and what follows, and seals the file: its memory must not be mapped any more when `rest` answers. That
    /// answers an error of its own kind.
    pub fn write<E: From<io::Error>>(
        self,
        link: &Link,
        rest: impl FnOnce(&mut dyn Write) -> Result<(), E>,
    ) -> Result<(OwnedFd, u64), E> {
        let Self { mut file, contents } = self;
        file.write_all(&MAGIC.to_le_bytes())?;
        file.write_all(&contents.to_le_bytes())?;
        file.seek(SeekFrom::Start(rest_at(contents).unwrap_or(HEAD_BYTES)))?;
        let mut to = BufWriter::with_capacity(BUFFER_BYTES, file);
        let link = link.to_bytes();
        to.write_all(&(link.len() as u64).to_le_bytes())?;
        to.write_all(&link)?;
        rest(&mut to)?;
        let mut file = to.into_inner().map_err(|error| error.into_error())?;
        let bytes = file.stream_position()?;
        rustix::fs::fcntl_add_seals(&file, SEALS).map_err(io::Error::from)?;
        Ok((file.into(), bytes))
    }
}

/// Where the link begins behind so many bytes of contents.
fn rest_at(contents: u64) -> Option<u64> {
    match contents {
        0 => Some(HEAD_BYTES),
        bytes => bytes.checked_next_multiple_of(PAGE)?.checked_add(PAGE).filter(|at| i64::try_from(*at).is_ok()),
    }
}

/// A file's contents; `None`: it has none.
///
/// # Errors
/// The file is none that [`read`] takes.
pub fn contents(file: &OwnedFd) -> Result<Option<KeptContents>, SnapshotError> {
    let (copy, bytes, _) = head(file)?;
    Ok((bytes > 0).then(|| KeptContents { file: copy.into(), offset: PAGE, bytes }))
}

/// The file, how many bytes of contents it has, and where the rest begins. Its writer has given up every way to change it.
fn head(file: &OwnedFd) -> Result<(File, u64, u64), SnapshotError> {
    let seals = rustix::fs::fcntl_get_seals(file.as_fd()).map_err(|_| SnapshotError::NotSealed)?;
    if !seals.contains(SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE) {
        return Err(SnapshotError::NotSealed);
    }
    let file = File::from(file.try_clone()?);
    let mut words = [[0; 8]; 2];
    for (at, word) in (0..).step_by(8).zip(&mut words) {
        // Its position is the one of every copy of the descriptor, by which somebody may read.
        file.read_exact_at(word, at)?;
    }
    let [magic, contents] = words.map(u64::from_le_bytes);
    if magic != MAGIC {
        return Err(SnapshotError::Magic);
    }
    let at = rest_at(contents).filter(|at| file.metadata().is_ok_and(|found| *at <= found.len()));
    Ok((file, contents, at.ok_or(SnapshotError::Contents(contents))?))
}

/// Reads the link; what the session consists of follows in the second result.
pub fn read(file: &OwnedFd) -> Result<(Link, impl Read + use<>), SnapshotError> {
    let (mut file, _, rest) = head(file)?;
    file.seek(SeekFrom::Start(rest))?;
    let mut from = BufReader::with_capacity(BUFFER_BYTES, file);
    let mut word = [0; 8];
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
    use aviary_control::state_file;

    #[test]
    fn state_is_read_as_it_was_written_and_more_than_once() {
        let link = Link { hello: vec![1, 2, 3], tickets_done: 7, ..Link::default() };
        for contents in [0, 1, PAGE, 3 * PAGE + 5] {
            let mut used = File::from(state_file().unwrap());
            used.write_all(&[1; 10_000]).unwrap();
            used.rewind().unwrap();
            let draft = Draft::within(used.into(), contents).unwrap();
            assert_eq!((draft.memory().unwrap().is_some(), draft.contents()), (contents > 0, contents));
            let (file, bytes) = draft.write(&link, |to| to.write_all(b"contents")).unwrap();
            assert_eq!(rustix::fs::fstat(&file).unwrap().st_size as u64, bytes);
            assert_eq!(super::contents(&file).unwrap().map(|kept| kept.bytes), (contents > 0).then_some(contents));
            is_read_twice(&file, &link);
        }
    }

    fn is_read_twice(file: &OwnedFd, link: &Link) {
        for _ in 0..2 {
            let (read, mut contents) = read(file).unwrap();
            assert!(super::contents(file).is_ok(), "a look at its contents leaves the reader where it is");
            assert_eq!(read, *link);
            let mut text = String::new();
            contents.read_to_string(&mut text).unwrap();
            assert_eq!(text, "contents");
        }
    }

    #[test]
    fn files_that_their_writer_can_change_are_refused() {
        let file = state_file().unwrap();
        assert!(matches!(read(&file).err(), Some(SnapshotError::NotSealed)));
        assert!(matches!(read(&File::open("/dev/null").unwrap().into()).err(), Some(SnapshotError::NotSealed)));
    }

    #[test]
    fn cut_and_foreign_files_are_refused() {
        let sealed = |bytes: &[u8]| {
            let file = state_file().unwrap();
            File::from(file.try_clone().unwrap()).write_all(bytes).unwrap();
            rustix::fs::fcntl_add_seals(&file, SEALS).unwrap();
            file
        };
        let head = MAGIC.to_le_bytes();
        for bytes in [
            &[][..],
            b"another file, of no kind",
            &head,
            &[head, [0xff; 8]].concat(),
            &[head, [9; 8]].concat(),
            &[head, [0; 8], [0xff; 8]].concat(),
            &[head, [0; 8], [9; 8]].concat(),
            &[head, [1, 0, 0, 0, 0, 0, 0, 0]].concat(),
        ] {
            assert!(read(&sealed(bytes)).is_err(), "{bytes:?}");
        }
    }
}
