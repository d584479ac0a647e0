//! Processes that carry guests of grants with a way out to another node: one for each guest process, which has the grant's key. They
//! read what guests and that node send; nobody here does.

mod carry;

use crate::attach::guest::Guest;
use crate::helpers::HelperProcess;
use aviary_control::Foreign;
use std::{collections::BTreeMap, ffi::OsString, path::PathBuf};

/// Relays of one grant that does not say how many sessions it may have.
const USUAL_RELAYS: usize = 256;

/// The command line of a relay. Its standard input is a socket on which it gets connections of its guest.
#[derive(Debug, Clone)]
pub struct RelayCommand {
    pub program: PathBuf,
    pub arguments: Vec<OsString>,
}

impl RelayCommand {
    /// This executable, as `aviary grant-relay`.
    pub fn own() -> Self {
        Self { program: "/proc/self/exe".into(), arguments: vec!["grant-relay".into()] }
    }
}

#[derive(Debug)]
struct RelayProcess {
    process: HelperProcess,
    channel: Foreign,
    /// Of the grant.
    place: u64,
    tenant: String,
    guest: Guest,
}

#[derive(Debug, Default)]
pub(crate) struct Relays {
    list: BTreeMap<u64, RelayProcess>,
    last: u64,
}

impl Relays {
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub fn of_tenant(&self, tenant: &str) -> usize {
        self.list.values().filter(|relay| relay.tenant == tenant).count()
    }

    /// The one that has this guest process already.
    fn of_guest(&self, place: u64, guest: &Guest) -> Option<&RelayProcess> {
        self.list.values().find(|relay| guest.is_named() && relay.place == place && relay.guest == *guest)
    }
}
