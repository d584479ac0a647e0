//! The folder with a file for each grant: what the node promised before, whatever has ended it.
//!
//! A file is written under another name, flushed and renamed, and the folder is flushed: after that, and not before, the grant is
//! made. The folder belongs to the node's user alone. A file in it that another user may have written, that does not say what its
//! name says, or that is not understood makes no grant; it is left where it is, and the log names it.

use super::{
    error::GrantError,
    request::{Grant, GrantEntrance, GrantStep, check_grant_name},
};
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::process::{Signal, getpid, kill_process};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeSet,
    fs::{self, DirBuilder, File},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

/// Where the node of root that listens on the usual socket has its grants.
pub const USUAL_GRANTS: &str = "/var/lib/aviary/grants";
/// The file in the folder with the keys of all grants, for gateways.
pub const KEYS: &str = "keys";

const LOCK: &str = "lock";
const SUFFIX: &str = ".json";
/// Of the folder with the key of a grant's way out.
const KEY_SUFFIX: &str = ".via";
/// Of a file that is not finished; no grant's name begins so.
const UNFINISHED: &str = ".new-";
const MAX_FILE_BYTES: u64 = 64 << 10;
/// Of the files, so that a later version knows what it reads.
const FILE_VERSION: u32 = 1;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct GrantFile {
    version: u32,
    grant: Grant,
}

/// With the key of a grant's way out.
pub(crate) fn key_folder(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}{KEY_SUFFIX}"))
}

/// Serves one node at a time: it is locked.
#[derive(Debug)]
pub(crate) struct GrantStore {
    folder: PathBuf,
    /// Held while the node has the folder; `None`: it is not there yet.
    lock: Option<File>,
    keys: BTreeSet<String>,
    test_end_at: Option<GrantStep>,
}

impl GrantStore {
    pub fn new(folder: PathBuf, test_end_at: Option<GrantStep>) -> Self {
        Self { folder, lock: None, keys: BTreeSet::new(), test_end_at }
    }

    /// For tests.
    pub fn pass(&self, step: GrantStep) {
        if self.test_end_at == Some(step) {
            let _ = kill_process(getpid(), Signal::KILL);
        }
    }

    fn wrong(&self, why: impl Into<String>) -> GrantError {
        GrantError::Folder(self.folder.clone(), why.into())
    }

    /// Makes the folder if it is not there, and locks it.
    pub fn open(&mut self) -> Result<(), GrantError> {
        if self.lock.is_some() {
            return Ok(());
        }
        let failed = |error: io::Error| GrantError::Folder(self.folder.clone(), error.to_string());
        if let (false, Some(parent)) = (self.folder.exists(), self.folder.parent()) {
            DirBuilder::new().mode(0o755).recursive(true).create(parent).map_err(failed)?;
            DirBuilder::new().mode(0o700).create(&self.folder).map_err(failed)?;
        }
        let found = fs::symlink_metadata(&self.folder).map_err(failed)?;
        if !found.is_dir() {
            return Err(self.wrong("it is no folder"));
        }
        check_owner(&found).map_err(|why| self.wrong(why))?;
        let options = &mut File::options();
        options
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
        let lock = options.open(self.folder.join(LOCK)).map_err(failed)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(self.wrong("another node has it")),
            other => other.map_err(|errno| failed(errno.into()))?,
        }
        self.lock = Some(lock);
        Ok(())
    }

    /// All grants in the folder; and what is wrong there. A folder that is not there has none, and is not made.
    pub fn load(&mut self) -> (Vec<Grant>, Vec<String>) {
        if matches!(fs::symlink_metadata(&self.folder), Err(error) if error.kind() == io::ErrorKind::NotFound) {
            return (Vec::new(), Vec::new());
        }
        let listed =
            self.open().and_then(|()| fs::read_dir(&self.folder).map_err(|error| self.wrong(error.to_string())));
        let entries = match listed {
            Ok(entries) => entries,
            Err(error) => return (Vec::new(), vec![error.to_string()]),
        };
        let (mut grants, mut notes) = (Vec::new(), Vec::new());
        let mut names: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
        names.sort();
        for name in names {
            let path = self.folder.join(&name);
            let text = name.to_string_lossy();
            if text == LOCK || text == KEYS {
                continue;
            }
            if text.starts_with(UNFINISHED) {
                let _ = fs::remove_file(&path);
                continue;
            }
            // A grant without its file has no use for it, and a new one makes another.
            if let Some(grant) = text.strip_suffix(KEY_SUFFIX)
                && path.is_dir()
            {
                if !self.folder.join(format!("{grant}{SUFFIX}")).exists() {
                    remove_key(&path);
                }
                continue;
            }
            match read(&path, &text) {
                Ok(grant) => grants.push(grant),
                Err(why) => notes.push(format!("{} makes no grant: {why}", path.display())),
            }
        }
        self.keys = grants.iter().filter_map(key_of).collect();
        notes.extend(self.write_keys().err().map(|error| error.to_string()));
        (grants, notes)
    }

    /// What is left of an earlier grant of this name goes.
    pub fn clear_key(&self, name: &str) {
        remove_key(&key_folder(&self.folder, name));
    }

    /// From here on the grant is made.
    pub fn write(&mut self, grant: &Grant) -> Result<(), GrantError> {
        self.open()?;
        let file = GrantFile { version: FILE_VERSION, grant: grant.clone() };
        let text = serde_json::to_vec_pretty(&file).map_err(|error| self.wrong(error.to_string()))?;
        if text.len() as u64 > MAX_FILE_BYTES {
            return Err(GrantError::Value(grant.name.clone(), format!("it has more than {MAX_FILE_BYTES} bytes")));
        }
        self.replace(&format!("{}{SUFFIX}", grant.name), &text, true)?;
        if let Some(key) = key_of(grant) {
            self.keys.insert(key);
            self.write_keys()?;
        }
        Ok(())
    }

    /// What the file of this name says, which may be of a grant that is not in force. One that is not understood stays where it is.
    pub fn named(&mut self, name: &str) -> Result<Option<Grant>, GrantError> {
        if check_grant_name(name).is_err() || !self.folder.exists() {
            return Ok(None);
        }
        self.open()?;
        let file = format!("{name}{SUFFIX}");
        Ok(read(&self.folder.join(&file), &file).ok())
    }

    /// From here on there is no such grant. `flush`: also if the machine fails at once.
    pub fn remove(&mut self, grant: &Grant, flush: bool) -> Result<(), GrantError> {
        self.open()?;
        let path = self.folder.join(format!("{}{SUFFIX}", grant.name));
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(GrantError::Write(path, error)),
            _ => {}
        }
        remove_key(&key_folder(&self.folder, &grant.name));
        if flush {
            self.flush()?;
        }
        if key_of(grant).is_some_and(|key| self.keys.remove(&key)) {
            self.write_keys()?;
        }
        Ok(())
    }

    /// Gateways read it at each connection; the node says whose a key is.
    fn write_keys(&self) -> Result<(), GrantError> {
        if self.keys.is_empty() && !self.folder.join(KEYS).exists() {
            return Ok(());
        }
        let text: String = self.keys.iter().map(|key| format!("{key}\n")).collect();
        self.replace(KEYS, text.as_bytes(), false)
    }

    fn replace(&self, name: &str, text: &[u8], is_grant: bool) -> Result<(), GrantError> {
        let (path, unfinished) = (self.folder.join(name), self.folder.join(format!("{UNFINISHED}{name}")));
        let failed = |error| GrantError::Write(path.clone(), error);
        let _ = fs::remove_file(&unfinished);
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(&unfinished).map_err(failed)?;
        file.write_all(text).and_then(|()| file.sync_all()).map_err(failed)?;
        if is_grant {
            self.pass(GrantStep::FileWritten);
        }
        fs::rename(&unfinished, &path).map_err(failed)?;
        self.flush()
    }

    fn flush(&self) -> Result<(), GrantError> {
        let folder = File::open(&self.folder).and_then(|folder| folder.sync_all());
        folder.map_err(|error| GrantError::Write(self.folder.clone(), error))
    }
}

/// A file of another kind in it stays, and so does the folder.
fn remove_key(folder: &Path) {
    for file in ["tenant.key", "tenant.pem"] {
        let _ = fs::remove_file(folder.join(file));
    }
    let _ = fs::remove_dir(folder);
}

fn key_of(grant: &Grant) -> Option<String> {
    if let GrantEntrance::Key(key) = &grant.entrance { Some(key.clone()) } else { None }
}

/// Nobody else can have written it.
fn check_owner(found: &fs::Metadata) -> Result<(), String> {
    let own = rustix::process::geteuid().as_raw();
    match found.mode() & 0o777 {
        _ if found.uid() != own => Err(format!("it belongs to user {}, this is user {own}", found.uid())),
        mode if mode & 0o022 != 0 => Err(format!("others can write to it (permissions {mode:o})")),
        _ => Ok(()),
    }
}

fn read(path: &Path, name: &str) -> Result<Grant, String> {
    let named = name.strip_suffix(SUFFIX).ok_or_else(|| format!("its name does not end with {SUFFIX}"))?;
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(path).map_err(|error| error.to_string())?;
    let found = file.metadata().map_err(|error| error.to_string())?;
    if !found.is_file() {
        return Err("it is no file".into());
    }
    check_owner(&found)?;
    let mut text = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut text).map_err(|error| error.to_string())?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(format!("it has more than {MAX_FILE_BYTES} bytes"));
    }
    let GrantFile { version, grant } = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
    if version != FILE_VERSION {
        return Err(format!("its version is {version}, this program reads {FILE_VERSION}"));
    }
    grant.check(None).map_err(|error| error.to_string())?;
    match grant.name == named {
        true => Ok(grant),
        false => Err(format!("it is of grant `{}`", grant.name)),
    }
}
