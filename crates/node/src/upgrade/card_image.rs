//! FPGA cards and the accelerators of VMs as the program that takes a node's place reads them.

use super::account_image::AccountsImage;
use crate::attach::guest::Guest;
use crate::cards::{CardMove, CardSettings, Whose};
use crate::vms::FpgaDeviceSettings;
use aviary_control::{ClientFigures, PortFigures};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, os::fd::RawFd, time::SystemTime};

/// All of cards that the configuration does not say.
#[derive(Debug, Serialize, Deserialize)]
pub struct CardsImage {
    pub list: Vec<CardImage>,
    pub last: u64,
    pub sessions: Vec<CardSessionImage>,
    pub accounts: BTreeMap<String, AccountsImage>,
    pub devices: Vec<FpgaDeviceImage>,
    pub last_device: u64,
}

/// A listening socket and its lock.
pub type ListenerImage = [RawFd; 2];

#[derive(Debug, Serialize, Deserialize)]
pub struct CardImage {
    pub place: u64,
    pub settings: CardSettings,
    pub listener: ListenerImage,
    pub state: CardStateImage,
}

#[derive(Debug, Serialize, Deserialize)]
pub enum CardStateImage {
    Due,
    Starting(CardProcessImage),
    Serving(CardProcessImage, Vec<PortFigures>),
    Failed,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct CardProcessImage {
    pub pid: u32,
    pub exit: RawFd,
    pub control: RawFd,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct CardSessionImage {
    pub number: u64,
    pub card: u64,
    pub guest: Guest,
    pub whose: Whose,
    pub tenant: String,
    pub since: SystemTime,
    pub slot: u32,
    pub figures: Option<ClientFigures>,
    pub moving: Option<CardMove>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct FpgaDeviceImage {
    pub place: u64,
    pub settings: FpgaDeviceSettings,
    pub listener: Option<ListenerImage>,
    /// Process, its descriptor, session.
    pub served: Option<(u32, RawFd, u64)>,
}
