//! Processes that use a device.

use crate::device::{Device, process_name};
use crate::library::{Answer, Number};
use crate::types::{AccountingStats, Process};
use crate::views::text::{mib, missing, plain};
use crate::views::tree::{Node, group, narrow, nothing, value};

/// Stands for no part of a device, and for memory that is not known.
const NO_INSTANCE: u32 = u32::MAX;
const UNKNOWN_MEMORY: u64 = u64::MAX;
/// More than any device keeps.
const MOST_ACCOUNTS: u32 = 1 << 16;

pub fn instance(number: u32) -> String {
    if number == NO_INSTANCE { "N/A".to_owned() } else { number.to_string() }
}

pub fn used_memory(process: &Process) -> Answer<u64> {
    if process.memory == UNKNOWN_MEMORY { Err(crate::library::Code::NOT_SUPPORTED) } else { Ok(process.memory) }
}

pub fn processes(device: &Device) -> Node {
    let all = match device.processes() {
        Ok(all) if all.is_empty() => return nothing("Processes", "processes", ""),
        Ok(all) => all,
        Err(code) => return value("Processes", "processes", missing(code)),
    };
    let one = |(process, kind): &(Process, char)| {
        let kind = match kind {
            'M' => "C+G".to_owned(),
            kind => kind.to_string(),
        };
        let name = plain(process_name(device.library, process.pid));
        let members = vec![
            value("", "gpu_instance_id", instance(process.gpu_instance)),
            value("", "compute_instance_id", instance(process.compute_instance)),
            value("", "pid", process.pid.to_string()),
            value("", "type", kind.clone()),
            value("", "process_name", name.clone()),
            value("", "used_memory", mib(used_memory(process))),
        ];
        [
            narrow("GPU instance ID", instance(process.gpu_instance)),
            narrow("Compute instance ID", instance(process.compute_instance)),
            narrow("Process ID", process.pid.to_string()),
            narrow("    Type", kind),
            narrow("    Name", name),
            narrow("    Used GPU Memory", mib(used_memory(process))),
            group("", "process_info", members),
        ]
    };
    group("Processes", "processes", all.iter().flat_map(one).collect())
}

/// Processes of which the device kept an account.
pub fn accounted(device: &Device) -> Node {
    let room = device.number("nvmlDeviceGetAccountingBufferSize").unwrap_or(0).min(MOST_ACCOUNTS);
    let pids: Answer<Vec<u32>> =
        device.library.list_of("nvmlDeviceGetAccountingPids", &[device.handle.0 as Number], room);
    let pids = match pids {
        Ok(pids) if pids.is_empty() => return nothing("Accounted Processes", "accounted_processes", ""),
        Ok(pids) => pids,
        Err(code) => return value("Accounted Processes", "accounted_processes", missing(code)),
    };
    let one = |pid: &u32| {
        let stats: Answer<AccountingStats> = device.get_of("nvmlDeviceGetAccountingStats", &[*pid as Number]);
        let part = |text: fn(&AccountingStats) -> String| plain(stats.as_ref().map(text).map_err(|code| *code));
        [
            narrow("Process ID", pid.to_string()),
            narrow("    GPU Utilization", part(|stats| format!("{} %", stats.gpu_utilization))),
            narrow("    Memory Utilization", part(|stats| format!("{} %", stats.memory_utilization))),
            narrow("    Max memory usage", part(|stats| format!("{} MiB", stats.max_memory >> 20))),
            narrow("    Time", part(|stats| format!("{} ms", stats.time_ms))),
            narrow("    Is Running", part(|stats| stats.running.to_string())),
        ]
    };
    group("Accounted Processes", "accounted_processes", pids.iter().flat_map(one).collect())
}
