//! The file of one program: a magic number, the name of the stop, sections, and a signature over all of it.
//!
//! A section has a kind, a version, a length and bytes. The first one is the [`ProgramImage`]; for each of its sessions, in
//! order, the gateway's part and the API server's state follow. Files may be cut, changed or put there by anybody who can write
//! to the folder: nothing of one is used before its signature was compared.

use super::image::ProgramImage;
use std::{
    fs::File,
    io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write},
    os::{fd::OwnedFd, unix::fs::FileExt},
};

const MAGIC: [u8; 8] = *b"AVKEPT\0\x01";
/// Bytes of a stop's name, of its key, and of a signature.
pub const NAME_BYTES: usize = 16;
pub const KEY_BYTES: usize = 32;
const SIGNATURE_BYTES: usize = blake3::OUT_LEN;
const PIECE_BYTES: usize = 256 << 10;
/// Longest text of a program, in bytes.
const MAX_PROGRAM_BYTES: u64 = 16 << 20;

/// One stop of a node: files of others do not count.
#[derive(Clone, PartialEq, Eq)]
pub struct Stop {
    pub name: [u8; NAME_BYTES],
    pub key: [u8; KEY_BYTES],
}

impl std::fmt::Debug for Stop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Stop")
    }
}

/// The contents of a section, with the version of their form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Contents {
    Program,
    Gateway,
    State,
}

impl Contents {
    /// Kind and version in the file.
    const fn words(self) -> [u32; 2] {
        match self {
            Self::Program => [1, 1],
            Self::Gateway => [2, 1],
            Self::State => [3, 1],
        }
    }
}

/// The reason why a file is not restored.
#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub enum KeptFileError {
    /// it cannot be read: {0}
    Io(#[from] io::Error),
    /// it is no file of a node's sessions
    Magic,
    /// it is not of the node's last stop: its sessions have gone on since, or were given up
    Stale,
    /// its signature is wrong: it was changed, cut off, or not written by this node
    Forged,
    /// it has section {0} in version {1}, expected section {2} in version {3}
    Section(u32, u32, u32, u32),
    /// its sections do not lie in it
    Cut,
    /// its list of sessions is malformed: {0}
    Program(serde_json::Error),
}

/// Writes a file.
pub struct KeptWriter {
    to: BufWriter<File>,
    hasher: blake3::Hasher,
}

impl KeptWriter {
    pub fn begin(file: File, stop: &Stop, program: &ProgramImage) -> io::Result<Self> {
        let mut writer = Self { to: BufWriter::new(file), hasher: blake3::Hasher::new_keyed(&stop.key) };
        writer.put(&MAGIC)?;
        writer.put(&stop.name)?;
        let text = serde_json::to_vec(program)?;
        writer.head(Contents::Program, text.len() as u64)?;
        writer.put(&text)?;
        Ok(writer)
    }

    /// The next session: what its gateway and its API server have written. Both files have a fixed length, or what they have
    /// grown to meanwhile is left out.
    pub fn session(&mut self, gateway: &OwnedFd, state: &OwnedFd) -> io::Result<()> {
        self.copy(Contents::Gateway, gateway)?;
        self.copy(Contents::State, state)
    }

    fn copy(&mut self, contents: Contents, from: &OwnedFd) -> io::Result<()> {
        let from = File::from(from.try_clone()?);
        let length = from.metadata()?.len();
        self.head(contents, length)?;
        let (mut piece, mut at) = (vec![0; PIECE_BYTES], 0);
        while at < length {
            let most = usize::try_from(length - at).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
            // The position of the descriptor is not this process's alone.
            from.read_exact_at(&mut piece[..most], at)?;
            self.put(&piece[..most])?;
            at += most as u64;
        }
        Ok(())
    }

    fn head(&mut self, contents: Contents, length: u64) -> io::Result<()> {
        contents.words().into_iter().try_for_each(|word| self.put(&word.to_le_bytes()))?;
        self.put(&length.to_le_bytes())
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hasher.update(bytes);
        self.to.write_all(bytes)
    }

    /// Signs the file and waits until it is on the disk.
    pub fn finish(mut self) -> io::Result<()> {
        let signature = self.hasher.finalize();
        self.to.write_all(signature.as_bytes())?;
        self.to.into_inner().map_err(|error| error.into_error())?.sync_all()
    }
}

/// A file whose signature is right.
#[derive(Debug)]
pub struct KeptFile {
    from: BufReader<File>,
    /// Where the signature begins.
    end: u64,
    pub program: ProgramImage,
}

impl KeptFile {
    /// # Errors
    /// It is not one of this stop, whole and unchanged. `None`: no stop left its key.
    pub fn open(file: File, stop: Option<&Stop>) -> Result<Self, KeptFileError> {
        let length = file.metadata()?.len();
        let mut from = BufReader::with_capacity(PIECE_BYTES, file);
        let (mut magic, mut name) = ([0; MAGIC.len()], [0; NAME_BYTES]);
        from.read_exact(&mut magic).and_then(|()| from.read_exact(&mut name)).map_err(|_| KeptFileError::Magic)?;
        if magic != MAGIC {
            return Err(KeptFileError::Magic);
        }
        let stop = stop.filter(|stop| stop.name == name).ok_or(KeptFileError::Stale)?;
        let end = length.checked_sub(SIGNATURE_BYTES as u64).ok_or(KeptFileError::Forged)?;
        from.seek(SeekFrom::Start(0))?;
        let mut hasher = blake3::Hasher::new_keyed(&stop.key);
        let (mut piece, mut left) = (vec![0; PIECE_BYTES], end);
        while left > 0 {
            let most = usize::try_from(left).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
            from.read_exact(&mut piece[..most])?;
            hasher.update(&piece[..most]);
            left -= most as u64;
        }
        let mut signature = [0; SIGNATURE_BYTES];
        from.read_exact(&mut signature)?;
        // Compared in constant time.
        if hasher.finalize() != blake3::Hash::from_bytes(signature) {
            return Err(KeptFileError::Forged);
        }
        from.seek(SeekFrom::Start((MAGIC.len() + NAME_BYTES) as u64))?;
        let mut file = Self { from, end, program: ProgramImage::default() };
        let length = file.section(Contents::Program)?;
        let mut text = Vec::new();
        file.from.by_ref().take(length.min(MAX_PROGRAM_BYTES)).read_to_end(&mut text)?;
        file.program = serde_json::from_slice(&text).map_err(KeptFileError::Program)?;
        Ok(file)
    }

    /// Copies the next session's parts: what its gateway has written, and its API server's state.
    pub fn next_session(&mut self, gateway: &OwnedFd, state: &OwnedFd) -> Result<(), KeptFileError> {
        self.copy(Contents::Gateway, gateway)?;
        self.copy(Contents::State, state)
    }

    fn copy(&mut self, contents: Contents, to: &OwnedFd) -> Result<(), KeptFileError> {
        let length = self.section(contents)?;
        let mut to = File::from(to.try_clone()?);
        io::copy(&mut self.from.by_ref().take(length), &mut to)?;
        Ok(to.seek(SeekFrom::Start(0)).map(drop)?)
    }

    /// The length of the section that begins here.
    fn section(&mut self, expected: Contents) -> Result<u64, KeptFileError> {
        let (mut word, mut length) = ([0; 4], [0; 8]);
        let mut next = || self.from.read_exact(&mut word).map(|()| u32::from_le_bytes(word));
        let (found, [kind, version]) = ([next()?, next()?], expected.words());
        if found != [kind, version] {
            return Err(KeptFileError::Section(found[0], found[1], kind, version));
        }
        self.from.read_exact(&mut length)?;
        let length = u64::from_le_bytes(length);
        let end = self.from.stream_position()?.checked_add(length);
        if end.is_some_and(|end| end <= self.end) { Ok(length) } else { Err(KeptFileError::Cut) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aviary_control::state_file;

    fn stop(byte: u8) -> Stop {
        Stop { name: [byte; NAME_BYTES], key: [byte; KEY_BYTES] }
    }

    fn filled(bytes: &[u8]) -> OwnedFd {
        let file = state_file().unwrap();
        File::from(file.try_clone().unwrap()).write_all(bytes).unwrap();
        file
    }

    fn read(file: &OwnedFd) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut file = File::from(file.try_clone().unwrap());
        file.seek(SeekFrom::Start(0)).unwrap();
        file.read_to_end(&mut bytes).unwrap();
        bytes
    }

    fn program() -> ProgramImage {
        let held = vec![("memory".into(), None, 5), ("memory".into(), Some("card".into()), 5)];
        ProgramImage { tenant: "alice".into(), held, ..ProgramImage::default() }
    }

    /// Two sessions, one without any contents.
    fn written() -> Vec<u8> {
        let file = state_file().unwrap();
        let mut writer = KeptWriter::begin(File::from(file.try_clone().unwrap()), &stop(1), &program()).unwrap();
        let long: Vec<u8> = (0..PIECE_BYTES + 77).map(|at| at as u8).collect();
        writer.session(&filled(&long), &filled(b"state")).unwrap();
        writer.session(&filled(b""), &filled(b"")).unwrap();
        writer.finish().unwrap();
        read(&file)
    }

    fn open(bytes: &[u8], stop: Option<&Stop>) -> Result<KeptFile, KeptFileError> {
        let file = filled(bytes);
        let mut file = File::from(file);
        file.seek(SeekFrom::Start(0)).unwrap();
        KeptFile::open(file, stop)
    }

    #[test]
    fn file_is_read_as_it_was_written() {
        let mut file = open(&written(), Some(&stop(1))).unwrap();
        assert_eq!(file.program, program());
        let (gateway, state) = (state_file().unwrap(), state_file().unwrap());
        file.next_session(&gateway, &state).unwrap();
        assert_eq!((read(&gateway).len(), read(&state)), (PIECE_BYTES + 77, b"state".to_vec()));
        let (gateway, state) = (state_file().unwrap(), state_file().unwrap());
        file.next_session(&gateway, &state).unwrap();
        assert_eq!((read(&gateway), read(&state)), (Vec::new(), Vec::new()));
        assert!(file.next_session(&gateway, &state).is_err(), "there are two");
    }

    #[test]
    fn files_of_other_stops_are_stale_and_others_are_none() {
        let bytes = written();
        for other in [Some(stop(2)), None] {
            assert!(matches!(open(&bytes, other.as_ref()), Err(KeptFileError::Stale)));
        }
        let same_name = Stop { key: [2; KEY_BYTES], ..stop(1) };
        assert!(matches!(open(&bytes, Some(&same_name)), Err(KeptFileError::Forged)));
        for other in [&b""[..], b"AVKEPT", b"something else, which is long enough"] {
            assert!(matches!(open(other, Some(&stop(1))), Err(KeptFileError::Magic)));
        }
    }

    #[test]
    fn every_change_and_every_cut_is_refused() {
        let bytes = written();
        let refused = |bytes: &[u8]| open(bytes, Some(&stop(1))).is_err();
        // All of the beginning and of the end, and some of the long part between them.
        let places = (0..400).chain((400..bytes.len() - 200).step_by(9973)).chain(bytes.len() - 200..bytes.len());
        for at in places {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert!(refused(&changed), "changed at {at}");
            assert!(refused(&bytes[..at]), "cut at {at}");
        }
        assert!(refused(&[&bytes[..], b"x"].concat()));
    }
}
