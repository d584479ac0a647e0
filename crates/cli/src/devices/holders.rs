//! Which processes have memory of devices, as vendors' libraries say: for a node that does not believe its API servers.
//!
//! Asked in processes of their own, as devices are.

use super::{Heard, LISTS_NONE, ListDevicesCommand, PATIENCE, ask_api, hear, last_line, print_one};
use crate::apis::{self, Api};
use aviary_node::{Holder, HolderLister};
use aviary_server::process::{self, HolderFacts};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

#[derive(Debug, Serialize, Deserialize)]
struct HolderLine {
    device: String,
    process: u64,
    bytes: u64,
}

pub fn list_one(command: &ListDevicesCommand) -> anyhow::Result<ExitCode> {
    let line = |HolderFacts { device, process, bytes }| HolderLine { device, process, bytes };
    print_one(|| {
        let told = process::holders(&command.module, command.vendor.as_deref()).map_err(anyhow::Error::msg)?;
        let told = told.map(|holders| holders.into_iter().map(line).collect::<Vec<_>>());
        Ok(told.map(|lines| serde_json::to_string(&lines)).transpose()?)
    })
}

/// Asks the APIs of these folders that tell: after the first time only those.
pub fn lister(search: Vec<PathBuf>) -> HolderLister {
    let telling: Mutex<Option<Vec<Api>>> = Mutex::new(None);
    HolderLister::new(move || {
        let mut telling = telling.lock().unwrap_or_else(PoisonError::into_inner);
        let asked = telling
            .take()
            .unwrap_or_else(|| apis::all(&search).map(|all| all.into_values().collect()).unwrap_or_default());
        let (mut holders, mut tell) = (Vec::new(), Vec::new());
        for api in asked {
            let Some(told) = ask(&api) else { continue };
            let known = told.into_iter().filter_map(|HolderLine { device, process, bytes }| {
                Some(Holder { device, process: u32::try_from(process).ok()?, bytes })
            });
            holders.extend(known);
            tell.push(api);
        }
        *telling = Some(tell);
        holders
    })
}

/// `None`: the API's specification tells nobody.
fn ask(api: &Api) -> Option<Vec<HolderLine>> {
    let child = ask_api(api, "list-holders", None).ok()?;
    let Heard { text, status, .. } = hear(child, Instant::now() + PATIENCE);
    if status.is_ok_and(|status| status.code() == Some(LISTS_NONE.into())) {
        return None;
    }
    Some(text.and_then(|text| last_line(&text)).unwrap_or_default())
}
