//! The summary that the program prints without arguments, and the list of `-L`.

use crate::clock;
use crate::device::{self, Device, process_name};
use crate::library::{Answer, Code, Library, Number};
use crate::log::{instance, used_memory};
use crate::types::{Memory, Process};
use crate::views::text::{compute_mode, cut_begin, cut_end, performance_state, plain};

const RULE: &str = "+-----------------------------------------------------------------------------------------+\n";
const COLUMNS: &str = "+-----------------------------------------+------------------------+----------------------+\n";
/// Characters of the longest name of a device and of a process that fit.
const DEVICE_NAME: usize = 27;
const PROCESS_NAME: usize = 36;
/// More than any device has: a library that says otherwise is not believed.
const MOST_PARTS: u32 = 64;

pub fn summary(library: &Library, devices: &[Device]) -> String {
    let mut text = format!("{}       \n{RULE}", clock::date(clock::now().0));
    let driver = plain(device::driver_version(library));
    let cuda = plain(device::cuda_version(library));
    text.push_str(&format!("| NVIDIA-SMI {driver:<23}Driver Version: {driver:<15}CUDA Version: {cuda:<9}|\n{COLUMNS}"));
    text.push_str("| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |\n");
    text.push_str("| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |\n");
    text.push_str("|                                         |                        |               MIG M. |\n");
    text.push_str("|=========================================+========================+======================|\n");
    for device in devices {
        rows(device, &mut text);
        text.push_str(COLUMNS);
    }
    text.push_str(&format!("\n{RULE}"));
    text.push_str("| Processes:                                                                              |\n");
    text.push_str("|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |\n");
    text.push_str("|        ID   ID                                                               Usage      |\n");
    text.push_str("|=========================================================================================|\n");
    let mut found = false;
    for device in devices {
        for (process, kind) in device.processes().unwrap_or_default() {
            found = true;
            text.push_str(&process_row(device, &process, kind));
        }
    }
    if !found {
        text.push_str("|  No running processes found                                                             |\n");
    }
    text.push_str(RULE);
    text
}

/// A missing feature is `N/A`, a failure is `ERR!`.
fn cell<T: ToString>(answer: Answer<T>) -> String {
    match answer {
        Ok(value) => value.to_string(),
        Err(code) if code.is_missing() => "N/A".to_owned(),
        Err(_) => "ERR!".to_owned(),
    }
}

fn on(answer: Answer<u32>) -> String {
    cell(answer.map(|state| if state == 0 { "Off" } else { "On" }))
}

/// Errors that were not corrected, or that errors are not counted.
fn errors(device: &Device) -> String {
    match device.pair("nvmlDeviceGetEccMode") {
        Ok((0, _)) => "Off".to_owned(),
        _ => cell(device.get_of::<u64>("nvmlDeviceGetTotalEccErrors", &[1 as Number, 0])),
    }
}

/// Used and total, in bytes.
fn memory(device: &Device) -> Answer<(u64, u64)> {
    let newer = device.memory().map(|memory| (memory.used, memory.total));
    newer.or_else(|_| device.get::<Memory>("nvmlDeviceGetMemoryInfo").map(|memory| (memory.used, memory.total)))
}

fn rows(device: &Device, text: &mut String) {
    let name = cut_end(&plain(device.text("nvmlDeviceGetName")), DEVICE_NAME);
    let persistence = on(device.number("nvmlDeviceGetPersistenceMode"));
    let (bus, display) = (cell(device.bus_id()), on(device.number("nvmlDeviceGetDisplayActive")));
    let (index, errors) = (device.index, errors(device));
    text.push_str(&format!(
        "| {index:>3}  {name:<27}    {persistence:<3} |   {bus:>16} {display:>3} | {errors:>20} |\n"
    ));
    let fan = cell(device.number("nvmlDeviceGetFanSpeed").map(|percent| format!("{percent}%")));
    let temperature = cell(device.temperature().map(|degrees| format!("{degrees}C")));
    let state = cell(device.number("nvmlDeviceGetPerformanceState").map(performance_state));
    let watts = |name: &str| cell(device.number(name).map(|milliwatts| format!("{}W", milliwatts / 1000)));
    let (draw, cap) = (watts("nvmlDeviceGetPowerUsage"), watts("nvmlDeviceGetEnforcedPowerLimit"));
    let memory = memory(device);
    let mib = |part: fn((u64, u64)) -> u64| cell(memory.map(|memory| format!("{}MiB", part(memory).div_ceil(1 << 20))));
    let (used, total) = (mib(|memory| memory.0), mib(|memory| memory.1));
    let load = cell(device.utilization().map(|rates| format!("{}%", rates.gpu)));
    let mode = cell(compute_mode(device.number("nvmlDeviceGetComputeMode")).map(short_mode));
    text.push_str(&format!(
        "|{fan:>4} {temperature:>5}  {state:>4} {draw:>15} / {cap:>5} |{used:>11} / {total:>9} | {load:>7} {mode:>12} |\n"
    ));
    let partition = match device.pair("nvmlDeviceGetMigMode") {
        Ok((current, pending)) if current == pending => if current == 0 { "Disabled" } else { "Enabled" }.to_owned(),
        Ok((current, _)) => if current == 0 { "Disabled*" } else { "Enabled*" }.to_owned(),
        Err(code) => cell::<String>(Err(code)),
    };
    text.push_str(&format!("|{:41}|{:24}| {partition:>20} |\n", "", ""));
}

fn short_mode(mode: &str) -> &str {
    match mode {
        "Exclusive_Process" => "E. Process",
        "Exclusive_Thread" => "E. Thread",
        mode => mode,
    }
}

fn process_row(device: &Device, process: &Process, kind: char) -> String {
    let kind = if kind == 'M' { "C+G".to_owned() } else { kind.to_string() };
    let name = cut_begin(&plain(process_name(device.library, process.pid)), PROCESS_NAME);
    let memory = cell(used_memory(process).map(|bytes| format!("{}MiB", bytes >> 20)));
    let (gpu, compute) = (instance(process.gpu_instance), instance(process.compute_instance));
    let (index, pid) = (device.index, process.pid);
    format!("|{index:>5}{gpu:>6}{compute:>5}{pid:>16}{kind:>7}   {name:<36}{memory:>10} |\n")
}

/// A line for each device, and one for each of its parts.
pub fn list(devices: &[Device]) -> String {
    let mut text = String::new();
    for device in devices {
        let (name, uuid) = (plain(device.text("nvmlDeviceGetName")), plain(device.text("nvmlDeviceGetUUID")));
        text.push_str(&format!("GPU {}: {name} (UUID: {uuid})\n", device.index));
        let most = device.number("nvmlDeviceGetMaxMigDeviceCount").unwrap_or(0).min(MOST_PARTS);
        for number in 0..most {
            let Ok(handle) = device.get_of("nvmlDeviceGetMigDeviceHandleByIndex", &[number as Number]) else {
                continue;
            };
            let part = Device { library: device.library, handle, index: number };
            let name = plain(part.text("nvmlDeviceGetName"));
            // The name is the device's with the kind of part behind it.
            let kind = name.rsplit_once(" MIG ").map_or(name.as_str(), |(_, kind)| kind);
            let uuid = plain(part.text("nvmlDeviceGetUUID"));
            text.push_str(&format!("  {:<15} Device {number:>2}: (UUID: {uuid})\n", format!("MIG {kind}")));
        }
    }
    text
}

/// The versions of `--version`.
pub fn versions(library: &Library) -> String {
    let driver = plain(device::driver_version(library));
    let nvml = plain(library.text("nvmlSystemGetNVMLVersion", &[]).map(short_version));
    let cuda = plain(device::cuda_version(library));
    format!(
        "NVIDIA-SMI version  : {driver}\nNVML version        : {nvml}\nDRIVER version      : {driver}\nCUDA Version        : {cuda}\n"
    )
}

/// As `580.159` of `13.580.159.04`.
fn short_version(version: String) -> String {
    let parts: Vec<&str> = version.split('.').collect();
    match parts.as_slice() {
        [_, major, minor, ..] => format!("{major}.{minor}"),
        _ => version,
    }
}

/// The error for a device that cannot be asked.
pub fn failure(code: Code) -> String {
    match code {
        Code::NOT_FOUND | Code::INVALID_ARGUMENT => "No devices were found\n".to_owned(),
        code => format!("Unable to determine the device handle: {code}\n"),
    }
}
