//! What is asked for and answered at the admin socket, and kept in a grant's file.

use super::error::GrantError;
use crate::tenants::tenant::{DeviceLimitChange, Limits, OTHERS, Tenant};
use aviary_control::FunctionRule;
use aviary_gate::{DEVICE_LIMITS, DEVICE_NAME_BYTES, DeviceLimit};
use aviary_transport::RemoteAddress;
use aviary_wire::tenant::is_reserved;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Component, Path, PathBuf},
    time::{Duration, SystemTime},
};

/// The socket in a grant's folder.
pub const SOCKET_NAME: &str = "node.sock";

const MAX_NAME: usize = 100;
/// All of a device's time.
pub(crate) const WHOLE_SHARE: u32 = 100;
/// Each of them is in every line of the tenant's metrics.
const MAX_LABELS: usize = 8;
const MAX_LABEL_NAME: usize = 64;
const MAX_LABEL_VALUE: usize = 128;
/// Labels that metrics have already.
const METRICS_LABELS: [&str; 8] = ["tenant", "resource", "device", "session", "api", "state", "place", "le"];
/// Hexadecimal digits of a SHA-256.
const KEY_DIGITS: usize = 64;

/// How a grant's guests are known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GrantEntrance {
    /// All that connect to the socket in this folder, which the node makes.
    Socket(PathBuf),
    /// Those of other machines that show the certificate with this SHA-256.
    Key(String),
}

/// Another node, to which the grant's guests are carried.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Via {
    /// `HOST:PORT`, as `aviary run --server` takes it.
    pub node: String,
    /// SHA-256 of the node's certificate.
    pub pin: String,
    /// SHA-256 of the certificate that is shown there, with which a grant of that node knows these guests; this node writes it.
    #[serde(default)]
    pub key: String,
}

/// What a grant's tenant may have, and who its guests are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grant {
    /// Of the tenant.
    pub name: String,
    pub entrance: GrantEntrance,
    #[serde(default)]
    pub limits: Limits,
    #[serde(default)]
    pub device_limits: Vec<DeviceLimitChange>,
    #[serde(default)]
    pub sessions: Option<usize>,
    #[serde(default)]
    pub threads: Option<usize>,
    /// Per cent of the time of each device that it may use: 1 to 100. It is the tenant's weight.
    #[serde(default)]
    pub share: Option<u32>,
    #[serde(default)]
    pub priority: i32,
    /// Thousandths of a device's time.
    #[serde(default)]
    pub cap: Option<u32>,
    #[serde(default)]
    pub apis: Option<Vec<String>>,
    #[serde(default)]
    pub functions: FunctionRule,
    #[serde(default)]
    pub only_devices: Option<Vec<String>>,
    /// Seconds since 1970 on the node's clock, from which on it is not in force; the node writes it.
    #[serde(default)]
    pub expires: Option<u64>,
    /// For `aviary metrics`, by name.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// `None`: its guests use this node.
    #[serde(default)]
    pub via: Option<Via>,
}

/// Make a grant, or change the one of this name. Asked again, it changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantRequest {
    pub grant: Grant,
    /// Seconds from now after which it ends by itself; `None`: it does not.
    pub lifetime: Option<u64>,
    /// Also if devices have less than all grants together.
    pub overcommit: bool,
}

/// For tests: where the node is ended, as by SIGKILL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GrantStep {
    /// The socket is there, the file is not.
    SocketMade,
    /// The file is there under another name.
    FileWritten,
    /// The file is there, and the grant not in force yet.
    FileNamed,
    /// It is in force, and nobody was told.
    InForce,
    /// The file is gone, its sessions go on.
    FileRemoved,
    /// Its sessions were ended, and nobody was told.
    Ended,
}

impl GrantStep {
    pub const ALL: [Self; 6] =
        [Self::SocketMade, Self::FileWritten, Self::FileNamed, Self::InForce, Self::FileRemoved, Self::Ended];
}

/// What was given back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FreedAmount {
    pub resource: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    pub amount: u64,
}

/// How far a revocation is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevokeReport {
    pub name: String,
    /// False: there was no such grant.
    pub known: bool,
    /// Nothing of it is left, and the name may be used again. Until then the answer is to ask again.
    pub done: bool,
    /// Sessions that were ended.
    pub sessions: usize,
    pub freed: Vec<FreedAmount>,
}

impl RevokeReport {
    pub(crate) fn of_none(name: &str) -> Self {
        Self { name: name.to_owned(), known: false, done: true, sessions: 0, freed: Vec::new() }
    }
}

/// 64 digits in lower case, out of what tools print.
///
/// # Errors
/// It is no SHA-256.
pub fn check_key(text: &str) -> Result<String, String> {
    let digits = text.strip_prefix("sha256:").unwrap_or(text).replace(':', "").to_ascii_lowercase();
    match digits.len() == KEY_DIGITS && digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        true => Ok(digits),
        false => Err(format!("`{text}`: expected the SHA-256 of a certificate, {KEY_DIGITS} hexadecimal digits")),
    }
}

fn is_label(name: &str, value: &str) -> bool {
    let letters = name.bytes().all(|letter| letter.is_ascii_alphanumeric() || letter == b'_');
    let begins = name.bytes().next().is_some_and(|first| !first.is_ascii_digit()) && !name.starts_with("__");
    let fits = name.len() <= MAX_LABEL_NAME && value.len() <= MAX_LABEL_VALUE;
    letters && begins && fits && !METRICS_LABELS.contains(&name) && !value.chars().any(char::is_control)
}

/// It becomes a part of a file's name.
pub(crate) fn check_grant_name(name: &str) -> Result<(), GrantError> {
    let plain = |letter: u8| letter.is_ascii_alphanumeric() || b"-_.".contains(&letter);
    let long = name.is_empty() || name.len() > MAX_NAME;
    match long || name.starts_with('.') || !name.bytes().all(plain) || is_reserved(name) {
        true => Err(GrantError::Name(name.chars().take(MAX_NAME).collect())),
        false if name == OTHERS => Err(GrantError::Taken(name.to_owned(), "that of users whom nobody knows")),
        false => Ok(()),
    }
}

impl GrantRequest {
    /// The grant as it is kept. `now`: on the wall clock.
    ///
    /// # Errors
    /// Something in it cannot be.
    pub(crate) fn checked(&self, now: SystemTime) -> Result<Grant, GrantError> {
        let mut grant = self.grant.clone();
        grant.expires = None;
        if let Some(lifetime) = self.lifetime {
            let end = now.checked_add(Duration::from_secs(lifetime)).and_then(seconds);
            grant.expires = Some(end.ok_or_else(|| grant.wrong("it would never expire: leave --expires out"))?);
        }
        if let Some(via) = &mut grant.via {
            via.key = String::new();
        }
        grant.check(None)?;
        Ok(grant)
    }
}

fn seconds(time: SystemTime) -> Option<u64> {
    Some(time.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs())
}

impl Grant {
    pub fn new(name: &str, entrance: GrantEntrance) -> Self {
        Self {
            name: name.to_owned(),
            entrance,
            limits: Limits::new(),
            device_limits: Vec::new(),
            sessions: None,
            threads: None,
            share: None,
            priority: 0,
            cap: None,
            apis: None,
            functions: FunctionRule::default(),
            only_devices: None,
            expires: None,
            labels: BTreeMap::new(),
            via: None,
        }
    }

    fn wrong(&self, why: impl Into<String>) -> GrantError {
        GrantError::Value(self.name.clone(), why.into())
    }

    /// `resources`: those that there are, where the node knows them.
    pub(crate) fn check(&self, resources: Option<&BTreeSet<String>>) -> Result<(), GrantError> {
        check_grant_name(&self.name)?;
        match &self.entrance {
            GrantEntrance::Socket(folder) => check_folder_name(folder).map_err(|why| self.wrong(why))?,
            GrantEntrance::Key(key) => match check_key(key) {
                Ok(same) if same == *key => {}
                Ok(_) => return Err(self.wrong("its key is not in lower case")),
                Err(why) => return Err(self.wrong(why)),
            },
        }
        if self.share.is_some_and(|share| share == 0 || share > WHOLE_SHARE) {
            return Err(self.wrong("its share is none of 1 to 100 (per cent)"));
        }
        if self.cap.is_some_and(|cap| cap == 0 || cap > 1000) {
            return Err(self.wrong("its cap is none of 0.1% to 100%"));
        }
        if self.device_limits.len() > DEVICE_LIMITS {
            return Err(self.wrong(format!("it has more than {DEVICE_LIMITS} limits of devices")));
        }
        let devices = self.device_limits.iter().map(|limit| &limit.device).chain(self.only_devices.iter().flatten());
        for device in devices {
            if device.is_empty() || device.trim_end_matches('*').len() > DEVICE_NAME_BYTES {
                return Err(self.wrong(format!("`{device}` is no name of a device")));
            }
        }
        let lists = [("APIs", &self.apis), ("devices", &self.only_devices)];
        if let Some((what, _)) = lists.iter().find(|(_, list)| list.as_ref().is_some_and(Vec::is_empty)) {
            return Err(self.wrong(format!("its list of {what} is empty, which would allow none")));
        }
        self.check_way_out()?;
        if self.labels.len() > MAX_LABELS {
            return Err(self.wrong(format!("it has more than {MAX_LABELS} labels")));
        }
        if let Some((name, value)) = self.labels.iter().find(|(name, value)| !is_label(name, value)) {
            return Err(self.wrong(format!(
                "`{name}={value}` is no label: expected a name of letters, digits and _ that metrics do not have, and a value of at \
                 most {MAX_LABEL_VALUE} bytes"
            )));
        }
        let mut named = self.limits.keys().chain(self.device_limits.iter().map(|limit| &limit.resource));
        if let Some(resource) = named.find(|name| resources.is_some_and(|known| !known.contains(*name))) {
            let known = resources.into_iter().flatten().map(String::as_str).collect::<Vec<_>>().join(", ");
            return Err(self.wrong(format!("no API of this node has a resource `{resource}`; there are {known}")));
        }
        Ok(())
    }

    fn check_way_out(&self) -> Result<(), GrantError> {
        let Some(via) = &self.via else { return Ok(()) };
        if !matches!(self.entrance, GrantEntrance::Socket(_)) {
            return Err(self.wrong("guests are carried to another node from a socket only"));
        }
        if via.node.parse::<RemoteAddress>().is_err() {
            return Err(self.wrong(format!("`{}` is no address of a node: expected HOST:PORT", via.node)));
        }
        if check_key(&via.pin).as_ref() != Ok(&via.pin) {
            return Err(self.wrong("its pin is not the SHA-256 of a certificate in lower case"));
        }
        let plain = Self {
            via: self.via.clone(),
            sessions: self.sessions,
            expires: self.expires,
            labels: self.labels.clone(),
            ..Self::new(&self.name, self.entrance.clone())
        };
        if plain != *self {
            return Err(self
                .wrong("what its guests may have says the grant of the node to which they are carried, not this one"));
        }
        Ok(())
    }

    /// The tenant that it makes.
    pub(crate) fn tenant(&self) -> Tenant {
        let mut tenant = Tenant {
            limits: self.limits.clone(),
            sessions: self.sessions,
            threads: self.threads,
            apis: self.apis.clone(),
            functions: self.functions.clone(),
            only_devices: self.only_devices.clone(),
            weight: self.share.unwrap_or(1),
            priority: self.priority,
            cap: self.cap.filter(|cap| *cap < 1000),
            ..Tenant::new(&self.name)
        };
        for DeviceLimitChange { device, resource, limit } in self.device_limits.iter().cloned() {
            tenant.limit_on(DeviceLimit { device, resource, limit: limit.unwrap_or(u64::MAX) });
        }
        tenant
    }

    pub(crate) fn expiry(&self) -> Option<SystemTime> {
        SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(self.expires?))
    }

    pub(crate) fn is_over(&self, now: SystemTime) -> bool {
        self.expiry().is_some_and(|end| end <= now)
    }

    pub(crate) fn socket(&self) -> Option<PathBuf> {
        if let GrantEntrance::Socket(folder) = &self.entrance { Some(folder.join(SOCKET_NAME)) } else { None }
    }
}

/// Its own words would decide otherwise where it is.
fn check_folder_name(folder: &Path) -> Result<(), String> {
    let plain = folder.is_absolute() && folder.components().all(|part| !matches!(part, Component::ParentDir));
    match plain && folder.file_name().is_some() {
        true => Ok(()),
        false => Err(format!("the folder of its socket, {}, is no absolute path without `..`", folder.display())),
    }
}
