//! The state file that a program leaves to the one that takes its place, and the descriptors that it names.

use super::image::{Image, VERSION};
use aviary_control::DeviceContext;
use aviary_control::inherited::adopt;
use rustix::fs::{MemfdFlags, memfd_create};
use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
    os::fd::{AsRawFd, OwnedFd, RawFd},
};

/// Descriptors of the program before, which are this one's now.
#[derive(Debug)]
pub struct Inherited(BTreeMap<RawFd, OwnedFd>);

impl Inherited {
    /// Each can be taken once.
    pub fn take(&mut self, number: RawFd) -> io::Result<OwnedFd> {
        self.0.remove(&number).ok_or_else(|| io::Error::other(format!("descriptor {number} was not inherited")))
    }
}

/// A node whose program was replaced.
#[derive(Debug)]
pub struct Handover {
    pub(crate) image: Image,
    pub(crate) inherited: Inherited,
}

impl Handover {
    /// Out of the file that `number` names. It must come before anything that starts processes: these would inherit
    /// the descriptors, too.
    pub fn take(number: RawFd) -> io::Result<Self> {
        let mut file = File::from(adopt(number)?);
        let mut text = Vec::new();
        file.seek(SeekFrom::Start(0))?;
        file.read_to_end(&mut text)?;
        let strange = |error: serde_json::Error| io::Error::new(io::ErrorKind::InvalidData, error);
        let (version, numbers, image): (u32, Vec<RawFd>, serde_json::Value) =
            serde_json::from_slice(&text).map_err(strange)?;
        let adopted: io::Result<BTreeMap<RawFd, OwnedFd>> =
            numbers.into_iter().map(|number| Ok((number, adopt(number)?))).collect();
        let inherited = Inherited(adopted?);
        if version != VERSION {
            return Err(io::Error::other(format!("the state has version {version}, this program needs {VERSION}")));
        }
        Ok(Self { image: serde_json::from_value(image).map_err(strange)?, inherited })
    }

    /// What contexts were measured to take of devices; `None`: by a program that did not.
    pub fn contexts(&self) -> Option<Vec<DeviceContext>> {
        self.image.contexts.clone()
    }
}

/// The file, which survives `exec` as long as nobody drops it.
pub fn leave(image: &Image, numbers: &[RawFd]) -> io::Result<OwnedFd> {
    // Without CLOEXEC.
    let file = memfd_create("aviary-upgrade", MemfdFlags::empty())?;
    let mut file = File::from(file);
    file.write_all(&serde_json::to_vec(&(VERSION, numbers, image))?)?;
    Ok(file.into())
}

/// How the program that takes over is told of the file.
pub fn number_of(file: &OwnedFd) -> String {
    file.as_raw_fd().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::IntoRawFd;

    fn image() -> Image {
        Image {
            upgrades: 3,
            socket: "/run/a".into(),
            listener: 0,
            lock: 0,
            admin: 0,
            users: None,
            accounts: BTreeMap::new(),
            servers: Vec::new(),
            sessions: Vec::new(),
            parks: Vec::new(),
            cards: crate::upgrade::card_image::CardsImage {
                list: Vec::new(),
                last: 0,
                sessions: Vec::new(),
                accounts: BTreeMap::new(),
                devices: Vec::new(),
                last_device: 0,
            },
            groups: None,
            grants: BTreeMap::new(),
            by_guest: Vec::new(),
            last_server: 4,
            last_session: 5,
            last_move: 6,
            contexts: Some(vec![DeviceContext { name: "card".into(), bytes: 7 }]),
        }
    }

    #[test]
    fn state_and_descriptors_arrive_once() {
        let (read, _write) = io::pipe().unwrap();
        let number = rustix::io::dup(&read).unwrap().into_raw_fd();
        let file = leave(&image(), &[number]).unwrap().into_raw_fd();
        let mut handover = Handover::take(file).unwrap();
        assert_eq!((handover.image.upgrades, handover.image.last_session), (3, 5));
        assert_eq!(handover.contexts(), image().contexts);
        assert!(handover.inherited.take(number).is_ok() && handover.inherited.take(number).is_err());
        assert!(Handover::take(file).is_err(), "its file is closed");
    }

    #[test]
    fn state_of_another_version_and_descriptors_that_are_not_there_are_refused() {
        let text = |version: u32, numbers: &str| {
            let mut file = File::from(memfd_create("test", MemfdFlags::empty()).unwrap());
            write!(file, "[{version}, {numbers}, {{}}]").unwrap();
            OwnedFd::from(file).into_raw_fd()
        };
        for (version, numbers, why) in
            [(VERSION + 1, "[]", "version"), (VERSION, "[1]", "Bad file"), (VERSION, "[]", "missing")]
        {
            let error = Handover::take(text(version, numbers)).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
