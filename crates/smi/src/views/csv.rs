//! `--query-...` with `--format=csv`: chosen properties, a line for each device or process.

use crate::{
    device::{Device, process_name},
    fields,
    library::{Answer, Code, Number},
    log::used_memory,
    types::Process,
};

/// How the lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Format {
    pub no_header: bool,
    pub no_units: bool,
}

impl Format {
    /// Of the words of `--format`; `None`: one of them is not known. Without `csv` nothing else is possible either.
    pub fn parse(text: &str) -> Option<Format> {
        let mut format = Format::default();
        for word in text.split(',') {
            match word.trim() {
                "csv" => {}
                "noheader" => format.no_header = true,
                "nounits" => format.no_units = true,
                _ => return None,
            }
        }
        Some(format)
    }
}

/// The subject of the lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    Devices,
    Processes,
    SupportedClocks,
}

/// Title and unit of a column.
type Column = (&'static str, &'static str);

/// The columns of names that are separated by commas, or the name that is not known.
pub fn columns(subject: Subject, names: &str) -> Result<Vec<Column>, String> {
    let find = |name: &str| match subject {
        Subject::Devices => fields::find(name).map(|field| (field.name, field.unit)),
        Subject::Processes => {
            PROCESSES.iter().find(|(title, alias, _)| *title == name || *alias == name).map(|found| (found.0, found.2))
        }
        Subject::SupportedClocks => {
            CLOCKS.iter().find(|(title, alias, _)| *title == name || *alias == name).map(|found| (found.0, found.2))
        }
    };
    names.split(',').map(str::trim).map(|name| find(name).ok_or_else(|| name.to_owned())).collect()
}

/// Title, alias and unit.
pub const PROCESSES: [(&str, &str, &str); 8] = [
    ("timestamp", "timestamp", ""),
    ("gpu_name", "gpu_name", ""),
    ("gpu_bus_id", "gpu_bus_id", ""),
    ("gpu_serial", "gpu_serial", ""),
    ("gpu_uuid", "gpu_uuid", ""),
    ("pid", "pid", ""),
    ("process_name", "name", ""),
    ("used_gpu_memory", "used_memory", "MiB"),
];

pub const CLOCKS: [(&str, &str, &str); 7] = [
    ("timestamp", "timestamp", ""),
    ("gpu_name", "gpu_name", ""),
    ("gpu_bus_id", "gpu_bus_id", ""),
    ("gpu_serial", "gpu_serial", ""),
    ("gpu_uuid", "gpu_uuid", ""),
    ("memory", "mem", "MHz"),
    ("graphics", "gr", "MHz"),
];

pub fn header(columns: &[Column], format: Format) -> String {
    if format.no_header {
        return String::new();
    }
    let titled = |(title, unit): &Column| match *unit {
        "" => (*title).to_owned(),
        unit => format!("{title} [{unit}]"),
    };
    let titles: Vec<String> = columns.iter().map(titled).collect();
    titles.join(", ") + "\n"
}

/// In brackets, unlike in lists.
fn written(answer: Answer<String>, unit: &str, format: Format) -> String {
    match answer {
        Ok(value) if unit.is_empty() || format.no_units => value,
        Ok(value) => format!("{value} {unit}"),
        Err(code) => format!("[{}]", crate::views::text::missing(code)),
    }
}

/// One line for each of the subject.
pub fn lines(subject: Subject, columns: &[Column], devices: &[Device], format: Format) -> String {
    let mut text = String::new();
    let mut line = |value: &dyn Fn(&str) -> Answer<String>| {
        let values: Vec<String> = columns.iter().map(|(name, unit)| written(value(name), unit, format)).collect();
        text.push_str(&values.join(", "));
        text.push('\n');
    };
    for device in devices {
        match subject {
            Subject::Devices => line(&|name| of_device(device, name)),
            Subject::Processes => {
                let processes =
                    device.list::<Process>("nvmlDeviceGetComputeRunningProcesses_v3", &[]).unwrap_or_default();
                processes.iter().for_each(|process| line(&|name| of_process(device, process, name)));
            }
            Subject::SupportedClocks => {
                for memory in device.list::<u32>("nvmlDeviceGetSupportedMemoryClocks", &[]).unwrap_or_default() {
                    let graphics = device.list::<u32>("nvmlDeviceGetSupportedGraphicsClocks", &[memory as Number]);
                    graphics.unwrap_or_default().into_iter().for_each(|graphics| {
                        line(&|name| match name {
                            "memory" => Ok(memory.to_string()),
                            "graphics" => Ok(graphics.to_string()),
                            name => of_device(device, name),
                        });
                    });
                }
            }
        }
    }
    text
}

fn of_device(device: &Device, name: &str) -> Answer<String> {
    fields::find(name).map_or(Err(Code::NOT_FOUND), |field| (field.value)(device))
}

fn of_process(device: &Device, process: &Process, name: &str) -> Answer<String> {
    match name {
        "pid" => Ok(process.pid.to_string()),
        "process_name" => process_name(device.library, process.pid),
        "used_gpu_memory" => used_memory(process).map(|bytes| (bytes >> 20).to_string()),
        name => of_device(device, name),
    }
}
