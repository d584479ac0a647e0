//! A node as the program that takes its place reads it: one JSON text, and descriptors by their numbers.
//!
//! Only the same process can have written it: it lies in a memfd that nobody else has. It is checked for its version and for
//! missing descriptors, not for malice.

use super::account_image::AccountsImage;
use super::card_image::CardsImage;
use crate::attach::guest::Guest;
use crate::relocation::request::SessionMoves;
use crate::servers::cgroups::GroupsImage;
use crate::tenants::vendor_set::VendorSet;
use aviary_control::{DeviceContext, FunctionRule, ServerUser};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    os::fd::RawFd,
    path::PathBuf,
    time::SystemTime,
};

/// Of the structures below and of what their fields mean.
pub const VERSION: u32 = 7;

/// All of a node that cannot be had from its configuration.
#[derive(Debug, Serialize, Deserialize)]
pub struct Image {
    /// How often the program was replaced, with this time.
    pub upgrades: u64,
    pub socket: PathBuf,
    pub listener: RawFd,
    /// The lock that makes this node the only one on its socket.
    pub lock: RawFd,
    pub admin: RawFd,
    pub users: Option<UsersImage>,
    pub accounts: BTreeMap<String, AccountsImage>,
    pub servers: Vec<ServerImage>,
    pub sessions: Vec<SessionImage>,
    pub parks: Vec<ParkImage>,
    pub cards: CardsImage,
    /// `None`: API servers are in the node's own control group.
    pub groups: Option<GroupsImage>,
    /// Grants with sockets that listen, by their names.
    pub grants: BTreeMap<String, RawFd>,
    /// To which API server further connections of a guest go.
    pub by_guest: Vec<(Guest, u64)>,
    pub last_server: u64,
    pub last_session: u64,
    pub last_move: u64,
    /// What contexts were measured to take of devices; `None`: by a program that did not.
    #[serde(default)]
    pub contexts: Option<Vec<DeviceContext>>,
}

/// Users of API servers.
#[derive(Debug, Serialize, Deserialize)]
pub struct UsersImage {
    /// First and last of the ids; `None`: all API servers are the node's user.
    pub range: Option<[u32; 2]>,
    /// The locks of the ids that the node has claimed; `None`: it cannot claim any.
    pub claims: Option<Vec<RawFd>>,
    /// The next id of the range.
    pub next: u32,
    pub by_tenant: BTreeMap<String, ServerUser>,
    /// Claimed ids that nobody has.
    #[serde(default)]
    pub free: Vec<u32>,
    pub helpers: BTreeMap<String, u32>,
    pub homes: FolderImage,
    pub shared_memory: Option<FolderImage>,
    /// New homes are limited in size; the tenants whose home is mounted.
    #[serde(default)]
    pub limits_homes: bool,
    #[serde(default)]
    pub mounted: BTreeSet<String>,
}

/// A private folder and its lock.
#[derive(Debug, Serialize, Deserialize)]
pub struct FolderImage {
    pub path: PathBuf,
    pub lock: RawFd,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct ServerImage {
    pub number: u64,
    pub process: ProcessImage,
    /// Where it writes lines for the log; the line that is begun; its sessions.
    pub log: RawFd,
    pub begun: Vec<u8>,
    pub spoke_for: Vec<u64>,
    pub guest: Option<Guest>,
    pub tenant: Option<String>,
    pub slot: u32,
    pub guest_exit: Option<RawFd>,
    pub state: StateImage,
    /// `None`: it has the node's own libraries.
    pub vendor: Option<VendorSet>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct ProcessImage {
    pub pid: u32,
    pub control: RawFd,
    pub exit: RawFd,
    /// Of the process 1 of its PID namespace: its id, where it tells the API server's status, and the API server itself.
    pub init: Option<(u32, RawFd, RawFd)>,
}

/// State of an API server. Its time begins anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum StateImage {
    Serving,
    Idle,
    GuestEnded,
    HungUp,
    Killed,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct SessionImage {
    pub number: u64,
    pub server: u64,
    pub guest: Guest,
    /// False: the kernel says nothing of its user (`--plain-loopback`).
    pub of_user: bool,
    /// It has attached at the socket of the grant that is its tenant.
    pub of_grant: bool,
    pub tenant: String,
    pub threads: Option<usize>,
    pub apis: Option<Vec<String>>,
    pub functions: FunctionRule,
    pub only_devices: Option<Vec<String>>,
    pub since: SystemTime,
    pub api: String,
    pub spec_hash: u64,
    pub stats: RawFd,
    /// Grant page and bell, where devices may be scheduled.
    pub devices: Option<[RawFd; 2]>,
    pub moves: SessionMoves,
    #[serde(default)]
    pub swaps: bool,
}

/// The parked sessions of one program. Their time begins anew.
#[derive(Debug, Serialize, Deserialize)]
pub struct ParkImage {
    /// The API server that watches for their calls.
    pub server: u64,
    /// Resource, device and amount.
    pub held: Vec<(String, Option<String>, u64)>,
    pub sessions: Vec<KeptImage>,
}

/// The part of the image that is kept of one parked session.
#[derive(Debug, Serialize, Deserialize)]
pub struct KeptImage {
    pub number: u64,
    pub bytes: u64,
    /// The state, and the socket in which the session's descriptors are.
    pub file: RawFd,
    pub rest: RawFd,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A change of the structures needs another version, and another text here.
    #[test]
    fn text_of_this_version_is_read() {
        let text = r#"{"upgrades":1,"socket":"/run/a","listener":5,"lock":6,"admin":7,"users":null,
            "accounts":{"a":{"InUse":{"page":8,"taken":[0,3]}},"b":{"Idle":[{"name":"memory","device":null,
            "instantaneous":false,"limit":null,"used":1,"peak":2,"refused":0,"held":1}]}},
            "servers":[{"number":4,"process":{"pid":77,"control":9,"exit":10,"init":[76,11,12]},"log":13,"begun":[65],
            "spoke_for":[2],"guest":{"uid":0,"pid":9,"started":8,"in_vm":null},"tenant":"a","slot":3,"guest_exit":14,
            "state":"Serving","vendor":{"name":"a","environment":{"A":"1"},"read":["/a"],"identities":{"/a":{"device":1,
            "inode":2,"written":[3,4],"length":5}}}}],
            "sessions":[],"parks":[{"server":4,"held":[["memory",null,5],["memory","card",5]],
            "sessions":[{"number":2,"bytes":100,"file":20,"rest":21}]}],
            "cards":{"list":[{"place":1,"settings":{"name":"card0","image":"all","socket":"/run/c","mode":384},"listener":[22,23],
            "state":{"Serving":[{"pid":78,"exit":24,"control":25},[{"port":"ll0","tenants":[]}]]}}],"last":1,
            "sessions":[{"number":3,"card":1,"guest":{"uid":0,"pid":9,"started":8,"in_vm":null},"whose":{"Vm":"vm1"},"tenant":"a",
            "since":{"secs_since_epoch":1,"nanos_since_epoch":0},"slot":0,"figures":null,"moving":null}],
            "accounts":{},"devices":[{"place":1,"settings":{"vm":"vm1","name":"x","tenant":"a","card":"card0","guid":"6c",
            "socket":"/run/x","mode":384},"listener":[26,27],"served":[79,28,3]}],"last_device":1},
            "groups":{"folder":"/g","tenants":{"a":"/g/aviary-7/tenant-0"},"servers":{"4":["/g/aviary-7/server-4"]}},
            "grants":{"pod":30},"by_guest":[[{"uid":0,"pid":9,"started":8,"in_vm":null},4]],"last_server":4,"last_session":2,
            "last_move":0}"#;
        let image: Image = serde_json::from_str(text).unwrap();
        assert_eq!((VERSION, image.servers[0].state, image.servers[0].slot), (7, StateImage::Serving, 3));
        assert_eq!(image.grants["pod"], 30);
        assert!(image.groups.is_some());
        assert_eq!((image.parks[0].sessions[0].file, image.parks[0].sessions[0].rest), (20, 21));
    }
}
