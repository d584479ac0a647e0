//! What a context takes of devices for itself, as vendors' libraries show: a node charges contexts with it.
//!
//! Measured in processes of their own, as devices are listed.

use super::{Heard, ListDevicesCommand, MEMORY, PATIENCE, ask_api, hear, last_line, print_one};
use crate::apis::Api;
use aviary_node::DeviceContext;
use aviary_server::process::{self, HolderFacts};
use serde::{Deserialize, Serialize};
use std::process::ExitCode;
use std::time::Instant;

#[derive(Debug, Serialize, Deserialize)]
struct ContextLine {
    device: String,
    bytes: u64,
}

pub fn list_one(command: &ListDevicesCommand) -> anyhow::Result<ExitCode> {
    let line = |HolderFacts { device, bytes, .. }| ContextLine { device, bytes };
    print_one(|| {
        let told = process::contexts(&command.module, command.vendor.as_deref()).map_err(anyhow::Error::msg)?;
        let told = told.map(|contexts| contexts.into_iter().map(line).collect::<Vec<_>>());
        Ok(told.map(|lines| serde_json::to_string(&lines)).transpose()?)
    })
}

/// Asks those of the APIs that count memory of devices.
pub fn measured(apis: &[Api]) -> Vec<DeviceContext> {
    let counting = apis.iter().filter(|api| api.device_resources.iter().any(|resource| resource == MEMORY));
    let asked: Vec<_> = counting.filter_map(|api| Some((api, ask_api(api, "list-contexts", None).ok()?))).collect();
    let deadline = Instant::now() + PATIENCE;
    asked.into_iter().flat_map(|(api, child)| measured_by(api, hear(child, deadline))).collect()
}

fn measured_by(api: &Api, heard: Heard) -> Vec<DeviceContext> {
    let Heard { text, status, .. } = heard;
    let hangs = text.is_none();
    let Some(lines) = text.and_then(|text| last_line::<ContextLine>(&text)) else {
        // An API that does not tell, or whose module cannot be used here, ends by itself.
        if !hangs && status.is_ok_and(|status| status.code().is_some()) {
            return Vec::new();
        }
        eprintln!(
            "aviary: warning: what contexts of {} take of devices cannot be measured: they are charged with nothing, unless \
             `context` of [devices.\"NAME\"] says how much",
            api.name
        );
        return Vec::new();
    };
    lines.into_iter().map(|ContextLine { device, bytes }| DeviceContext { name: device, bytes }).collect()
}
