//! Mistakes in the node's configuration file, as `aviary serve` and `aviary reload` report them.

use crate::apis::PolicyChoice;
use std::{io, path::PathBuf};

/// `path` is the configuration file.
#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub enum ConfigError {
    /// cannot read {path}: {error}
    Unreadable { path: PathBuf, error: io::Error },
    /// {path}: {error}
    Malformed { path: PathBuf, error: Box<toml::de::Error> },
    /// {path}: {identity} belongs to tenant `{one}` and to tenant `{other}`: remove it from one of them
    TwoTenants { path: PathBuf, identity: String, one: String, other: String },
    /// {path}: `{name}` is not a name for a tenant or VM: expected letters, digits, `-`, `_` and `.`
    BadName { path: PathBuf, name: String },
    /// {path}: `{name}` is reserved for a local user without a tenant: no tenant, certificate or VM can have this name; to limit that user, make a tenant of another name with the user's id in `users`
    ReservedName { path: PathBuf, name: String },
    /// {path}: {error}
    Vm { path: PathBuf, error: VmError },
    /// {path}: card {error}
    Card { path: PathBuf, error: CardError },
    /// {path}: vendor set `{vendor}`: {error}
    Vendor { path: PathBuf, vendor: String, error: VendorError },
    /// {path}: tenant `{tenant}`: there is no vendor set `{vendor}` ([vendors.{vendor}]); there is {there}
    NoVendor { path: PathBuf, tenant: String, vendor: String, there: String },
    /// {path}: device `{device}`: `oversubscribe` is a number from 1 to 64, such as 2.0, and needs `memory`: how much of the device's memory sessions share
    Oversubscribe { path: PathBuf, device: String },
    /// {path}: tenant `{tenant}`: weight = 0: expected at least 1
    NoWeight { path: PathBuf, tenant: String },
    /// {path}: tenant `{tenant}` has more than 64 limits on devices, its own and the node's together
    ManyDeviceLimits { path: PathBuf, tenant: String },
    /// {path}: tenant `{tenant}`: devices: `{device}` is longer than a device's name, which has at most 64 bytes
    LongDeviceName { path: PathBuf, tenant: String, device: String },
    /// {path}: `only_devices` of {owner}: {reason}
    OnlyDevices { path: PathBuf, owner: String, reason: String },
    /// tenant `{tenant}`: no API that is built here has a function `{function}`: correct the name
    NoFunction { tenant: String, function: String },
    /// device `{device}`: the policy {file} is refused: {error}
    Policy { device: String, file: PathBuf, error: Box<aviary_policy::PolicyError> },
    /// device `{device}`: {choice}
    NoPolicy { device: String, choice: PolicyChoice },
    /// device `{device}`: a `policy` needs `scheduler = "ebpf"`
    NeedlessPolicy { device: String },
}

/// A mistake in a vendor set; the message follows its name.
#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub enum VendorError {
    /// it changes nothing: give `libraries` or `environment`, or take it away
    Empty,
    /// `libraries`: `{api}` is not the name of an API, such as `opencl`
    NoApi { api: String },
    /// `libraries.{api}`: `{file}`: expected an absolute path of the vendor's library
    RelativeLibrary { api: String, file: PathBuf },
    /// `libraries.{api}`: {file}: {error}
    MissingLibrary { api: String, file: PathBuf, error: io::Error },
    /// `libraries.{api}`: {file} is no file: expected the vendor's library
    NoFile { api: String, file: PathBuf },
    /// `libraries.{api}`: {file}: expected a name in UTF-8
    NotText { api: String, file: PathBuf },
    /// `environment`: `{name}`: {reason}
    Variable { name: String, reason: &'static str },
    /// `environment`: {name}: `{path}`: expected an absolute path
    RelativePlace { name: String, path: PathBuf },
    /// `environment`: {name}: {path}: {error}
    MissingPlace { name: String, path: PathBuf, error: io::Error },
    /// `read`: `{path}`: expected an absolute path
    RelativeFolder { path: PathBuf },
    /// {path}: {error}
    MissingFolder { path: PathBuf, error: io::Error },
}

/// A mistake in a card's settings; the message follows the word "card".
#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub enum CardError {
    /// `{card}`: socket: expected an absolute path
    RelativeSocket { card: String },
    /// `{card}`: mode: {reason}
    Mode { card: String, reason: String },
    /// `{card}` has the same socket as `{other}`: give it another one
    TwoOwners { card: String, other: String },
}

/// A mistake in a VM's settings.
#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub enum VmError {
    /// VM `{vm}` has no `socket` and no `fpga`: expected an absolute path, or an accelerator of a card
    NoSocket { vm: String },
    /// {whose}: socket: expected an absolute path
    RelativeSocket { whose: String },
    /// VM `{vm}`: mode: {reason}
    Mode { vm: String, reason: String },
    /// {one} and {other} have the same socket: give each its own
    TwoOwners { one: String, other: String },
    /// VM `{vm}`: fpga `{device}`: expected letters, digits, `-`, `_` and `.` as a name
    DeviceName { vm: String, device: String },
    /// VM `{vm}`: fpga `{device}`: there is no card `{card}`: name one of [fpga]
    NoCard { vm: String, device: String, card: String },
    /// VM `{vm}`: fpga `{device}`: type = `{kind}`: expected a GUID of 32 hexadecimal digits
    NoGuid { vm: String, device: String, kind: String },
}
