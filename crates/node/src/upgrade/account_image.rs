//! Accounts of tenants as the program that takes a node's place reads them.

use serde::{Deserialize, Serialize};
use std::os::fd::RawFd;

/// A tenant's accounts.
#[derive(Debug, Serialize, Deserialize)]
pub enum AccountsImage {
    /// Its page, and the slots that API servers have.
    InUse {
        page: RawFd,
        taken: Vec<u32>,
    },
    Idle(Vec<BalanceImage>),
}

#[derive(Debug, Serialize, Deserialize)]
pub struct BalanceImage {
    pub name: String,
    pub device: Option<String>,
    /// `None`: no API server has said yet.
    pub instantaneous: Option<bool>,
    pub limit: Option<u64>,
    pub used: u64,
    pub peak: u64,
    pub refused: u64,
    pub held: u64,
}
