//! What no sandbox may show: the node's keys, secrets, sockets and configuration, and folders that hold such files of others.
//!
//! A folder is shown with all that is below it, and on a node that is not root API servers are the owner of the node's files.

use std::fs::{self, FileType};
use std::io::Read;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// Entries of a folder, with those of the folders in it, that are looked at; a folder of libraries has fewer. The rest of a
/// larger one is not searched for keys of others; the node's own files are found in any folder.
const MAX_ENTRIES: usize = 20_000;
/// Bytes at the beginning of a PEM file in which its kind is named.
const PEM_HEAD: u64 = 4096;

/// The file in `shown` (a file or a folder with all below it) that is among `hidden`, the node's own; `None`: it has none.
#[must_use]
pub fn own_file_in<'a>(shown: &Path, hidden: &'a [PathBuf]) -> Option<&'a Path> {
    let real = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let shown = real(shown);
    // A file that does not exist yet is in its folder.
    let place = |path: &Path| match (fs::canonicalize(path), path.parent(), path.file_name()) {
        (Err(_), Some(folder), Some(name)) => real(folder).join(name),
        (found, ..) => found.unwrap_or_else(|_| path.to_owned()),
    };
    hidden.iter().map(PathBuf::as_path).find(|path| place(path).starts_with(&shown))
}

/// A private key or a socket, of whomever, in `folder` or below it.
#[must_use]
pub fn secret_in(folder: &Path) -> Option<PathBuf> {
    let mut folders = vec![folder.to_owned()];
    let mut left = MAX_ENTRIES;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            left = left.checked_sub(1)?;
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() {
                folders.push(entry.path());
            } else if is_secret(&entry.path(), kind) {
                return Some(entry.path());
            }
        }
    }
    None
}

fn is_secret(path: &Path, kind: FileType) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let ends = |ending: &str| name.ends_with(ending);
    if kind.is_socket() {
        return true;
    }
    if ends(".key") || ends(".p12") || ends(".pfx") || (name.starts_with("id_") && !ends(".pub") && is_pem(path)) {
        return true;
    }
    ends(".pem") && is_pem(path)
}

/// True for a file with a private key in text.
fn is_pem(path: &Path) -> bool {
    let mut head = Vec::new();
    // Unreadable for the node: unreadable for its API servers.
    let read = fs::File::open(path).and_then(|file| file.take(PEM_HEAD).read_to_end(&mut head));
    read.is_ok() && head.windows(12).any(|window| window == b"PRIVATE KEY-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_files_are_found_in_any_folder_above_them() {
        let folder = std::env::temp_dir().join(format!("aviary-shown-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(folder.join("lib/below")).unwrap();
        fs::write(folder.join("lib/below/node.toml"), "").unwrap();
        let hidden = [folder.join("lib/below/node.toml"), folder.join("run/node.sock")];
        let found = |shown: &str| own_file_in(&folder.join(shown), &hidden).map(Path::to_owned);
        assert_eq!(found("lib"), Some(hidden[0].clone()));
        assert_eq!(found("lib/below/node.toml"), Some(hidden[0].clone()));
        assert_eq!((found("lib/belo"), found("li")), (None, None));
        assert_eq!(found("run"), Some(hidden[1].clone()), "a socket that will be made");
        std::os::unix::fs::symlink(folder.join("lib"), folder.join("link")).unwrap();
        assert_eq!(found("link"), Some(hidden[0].clone()));
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn keys_and_sockets_are_found_and_public_files_are_not() {
        let folder = std::env::temp_dir().join(format!("aviary-secrets-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(folder.join("deep/er")).unwrap();
        fs::write(folder.join("libx.so"), "").unwrap();
        fs::write(folder.join("ca.pem"), "-----BEGIN CERTIFICATE-----\n").unwrap();
        fs::write(folder.join("id_rsa.pub"), "ssh-rsa").unwrap();
        fs::write(folder.join("id_table.bin"), "numbers").unwrap();
        assert_eq!(secret_in(&folder), None);
        let secret = |name: &str, text: &str| {
            let path = folder.join("deep/er").join(name);
            fs::write(&path, text).unwrap();
            assert_eq!(secret_in(&folder), Some(path.clone()), "{name}");
            fs::remove_file(path).unwrap();
        };
        secret("node.key", "");
        secret("node.pem", "x\n-----BEGIN EC PRIVATE KEY-----\n");
        secret("id_ed25519", "-----BEGIN OPENSSH PRIVATE KEY-----\n");
        let socket = std::os::unix::net::UnixListener::bind(folder.join("deep/s")).unwrap();
        assert_eq!(secret_in(&folder), Some(folder.join("deep/s")));
        drop(socket);
        fs::remove_dir_all(&folder).unwrap();
    }
}
