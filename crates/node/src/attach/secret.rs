//! The secret of a node whose API servers are the node's own user: the kernel cannot tell their connections to the admin socket
//! from the operator's, so that each request says what only the operator can read.
//!
//! A file of mode 600 beside the node's socket, new at each start and removed with the socket. Sandboxes show neither the file
//! nor a folder that holds it (`aviary_sandbox::shown`). Without sandboxes an API server reads it like any other file of its
//! user; there is no border then.

use rustix::fs::OFlags;
use rustix::rand::{GetRandomFlags, getrandom};
use std::{
    fs::{self, File},
    io::{self, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

/// Random bytes of a secret.
const BYTES: usize = 32;
/// Its characters: two hexadecimal digits a byte.
const LENGTH: usize = 2 * BYTES;
/// What the line of a request that says the secret begins with.
const WORD: &str = "secret ";

/// The file of the node that listens on `socket`.
pub fn secret_path(socket: &Path) -> PathBuf {
    socket.with_extension("secret")
}

/// A running node's.
#[derive(Debug)]
pub struct Secret {
    text: String,
    path: PathBuf,
}

impl Secret {
    /// A new one, in the place of what a dead node has left there: called with the node's lock held.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn create(path: PathBuf) -> io::Result<Secret> {
        let mut bytes = [0u8; BYTES];
        if getrandom(&mut bytes[..], GetRandomFlags::empty())? != BYTES {
            return Err(io::Error::other("the kernel gave too few random bytes"));
        }
        let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // Never through a link, and never into a file of somebody else.
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(&path)?;
        file.write_all(text.as_bytes())?;
        Ok(Secret { text, path })
    }

    /// True for the first line of a request that says it. Compares all bytes, so that the time says nothing.
    pub fn is_said_by(&self, line: &str) -> bool {
        let said = line.trim_end().strip_prefix(WORD).unwrap_or_default().as_bytes();
        let differs = said.iter().zip(self.text.as_bytes()).fold(0, |sum, (one, other)| sum | (one ^ other));
        said.len() == LENGTH && differs == 0
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// True for a line that says a secret, right or wrong.
pub fn says_secret(line: &str) -> bool {
    line.starts_with(WORD)
}

/// The line with which a request to the node on `socket` begins; empty where the node asks for none.
///
/// # Errors
/// The file is there and cannot be read.
pub fn first_line(socket: &Path) -> io::Result<String> {
    let options = &mut File::options();
    let file = match options.read(true).custom_flags(OFlags::NOFOLLOW.bits().cast_signed()).open(secret_path(socket)) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(String::new()),
        Err(error) => return Err(error),
    };
    let mut text = String::new();
    file.take(LENGTH as u64).read_to_string(&mut text)?;
    Ok(format!("{WORD}{text}\n"))
}

#[cfg(test)]
mod tests {
    use crate::attach::private::PrivateDir;
    use crate::attach::secret::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn only_the_whole_secret_of_this_start_is_right() {
        let folder = PrivateDir::create().unwrap();
        let socket = folder.path().join("node.sock");
        assert_eq!(first_line(&socket).unwrap(), "", "a node that asks for none");
        let earlier = Secret::create(secret_path(&socket)).unwrap();
        let old = first_line(&socket).unwrap();
        assert!(earlier.is_said_by(&old) && says_secret(&old));
        let secret = Secret::create(secret_path(&socket)).unwrap();
        let line = first_line(&socket).unwrap();
        assert!(secret.is_said_by(&line) && !secret.is_said_by(&old));
        for wrong in ["", "secret ", "secret", &line[..line.len() - 3], &format!("{}0", line.trim_end())] {
            assert!(!secret.is_said_by(wrong), "{wrong:?}");
        }
        assert_eq!(fs::metadata(secret_path(&socket)).unwrap().permissions().mode() & 0o777, 0o600);
        drop(secret);
        assert!(!secret_path(&socket).exists());
    }

    #[test]
    fn a_link_in_its_place_is_replaced_and_not_followed() {
        let folder = PrivateDir::create().unwrap();
        let (socket, precious) = (folder.path().join("node.sock"), folder.path().join("precious"));
        fs::write(&precious, "precious").unwrap();
        std::os::unix::fs::symlink(&precious, secret_path(&socket)).unwrap();
        assert!(first_line(&socket).is_err());
        let _secret = Secret::create(secret_path(&socket)).unwrap();
        assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
    }
}
