//! Options that change a device.

use crate::device::Device;
use crate::library::{Code, Number};
use crate::views::text::missing;

/// The function behind an option, its arguments after the device, and what it changes, for people.
type Change = (&'static str, Vec<Number>, &'static str);

/// `None`: the value is none that the option has.
fn change(option: &str, value: &str) -> Option<Change> {
    let upper = value.to_uppercase();
    let switch = || match upper.as_str() {
        "0" | "DISABLED" => Some(0),
        "1" | "ENABLED" => Some(1),
        _ => None,
    };
    let pair = || {
        let (first, second) = value.split_once(',').unwrap_or((value, value));
        Some(vec![first.trim().parse().ok()?, second.trim().parse().ok()?])
    };
    Some(match option {
        "--persistence-mode" => ("nvmlDeviceSetPersistenceMode", vec![switch()?], "persistence mode"),
        "--ecc-config" => ("nvmlDeviceSetEccMode", vec![switch()?], "ECC mode"),
        "--reset-ecc-errors" => {
            let counter = match upper.as_str() {
                "0" | "VOLATILE" => 0,
                "1" | "AGGREGATE" => 1,
                _ => return None,
            };
            ("nvmlDeviceClearEccErrorCounts", vec![counter], "ECC errors")
        }
        "--compute-mode" => {
            let mode = match upper.as_str() {
                "0" | "DEFAULT" => 0,
                "1" | "EXCLUSIVE_THREAD" => 1,
                "2" | "PROHIBITED" => 2,
                "3" | "EXCLUSIVE_PROCESS" => 3,
                _ => return None,
            };
            ("nvmlDeviceSetComputeMode", vec![mode], "compute mode")
        }
        "--power-limit" => {
            let watts: f64 = value.parse().ok().filter(|watts| (0.0..1e6).contains(watts))?;
            ("nvmlDeviceSetPowerManagementLimit", vec![(watts * 1000.0) as Number], "power management limit")
        }
        "--lock-gpu-clocks" => ("nvmlDeviceSetGpuLockedClocks", pair()?, "GPU clocks"),
        "--reset-gpu-clocks" => ("nvmlDeviceResetGpuLockedClocks", Vec::new(), "GPU clocks"),
        "--lock-memory-clocks" => ("nvmlDeviceSetMemoryLockedClocks", pair()?, "memory clocks"),
        "--reset-memory-clocks" => ("nvmlDeviceResetMemoryLockedClocks", Vec::new(), "memory clocks"),
        "--applications-clocks" => ("nvmlDeviceSetApplicationsClocks", pair()?, "applications clocks"),
        "--reset-applications-clocks" => ("nvmlDeviceResetApplicationsClocks", Vec::new(), "applications clocks"),
        "--accounting-mode" => ("nvmlDeviceSetAccountingMode", vec![switch()?], "accounting mode"),
        "--clear-accounted-apps" => ("nvmlDeviceClearAccountingPids", Vec::new(), "accounted processes"),
        "--gom" => {
            let mode = match upper.as_str() {
                "0" | "ALL_ON" => 0,
                "1" | "COMPUTE" => 1,
                "2" | "LOW_DP" => 2,
                _ => return None,
            };
            ("nvmlDeviceSetGpuOperationMode", vec![mode], "GPU operation mode")
        }
        "--multi-instance-gpu" => ("nvmlDeviceSetMigMode", vec![switch()?], "MIG mode"),
        "--gpu-target-temp" => ("nvmlDeviceSetTemperatureThreshold", vec![value.parse().ok()?], "target temperature"),
        _ => return None,
    })
}

/// A report of the changes, and the exit status.
pub fn apply(devices: &[Device], option: &str, value: &str) -> (String, u8) {
    let Some((function, arguments, what)) = change(option, value) else {
        return (format!("ERROR: {value} is no value for option {option}.\n\n"), 2);
    };
    let mut text = String::new();
    for device in devices {
        let bus = device.bus_id().unwrap_or_else(missing);
        match run(device, function, &arguments) {
            Ok(()) => text.push_str(&format!("Set {what} for GPU {bus}.\n")),
            Err(Code::NOT_SUPPORTED) => {
                text.push_str(&format!(
                    "Unable to set {what} for GPU {bus}: Not Supported\nTreating as warning and moving on.\n"
                ));
            }
            Err(code) => {
                text.push_str(&format!(
                    "Unable to set {what} for GPU {bus}: {code}\nTerminating early due to previous errors.\n"
                ));
                return (text, exit_status(code));
            }
        }
    }
    text.push_str("All done.\n");
    (text, 0)
}

fn run(device: &Device, function: &str, arguments: &[Number]) -> Result<(), Code> {
    let mut all = vec![device.handle.0 as Number];
    // Two functions take a pointer to something.
    let mut result = 0u32;
    let mut temperature = arguments.first().copied().unwrap_or(0) as i32;
    match function {
        "nvmlDeviceSetMigMode" => all.extend([arguments[0], &raw mut result as Number]),
        "nvmlDeviceSetTemperatureThreshold" => {
            const TARGET: Number = 5;
            all.extend([TARGET, &raw mut temperature as Number]);
        }
        _ => all.extend(arguments),
    }
    device.library.run(function, &all)
}

/// The exit status for a result of NVML.
pub fn exit_status(code: Code) -> u8 {
    match code {
        Code::INVALID_ARGUMENT => 2,
        Code::NOT_SUPPORTED => 3,
        Code::NO_PERMISSION => 4,
        Code::NOT_FOUND => 6,
        Code::DRIVER_NOT_LOADED => 9,
        Code::FUNCTION_NOT_FOUND => 13,
        Code::GPU_IS_LOST => 15,
        _ => 255,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_words_or_numbers() {
        assert_eq!(change("--persistence-mode", "enabled").unwrap().1, [1]);
        assert_eq!(change("--compute-mode", "EXCLUSIVE_PROCESS").unwrap().1, [3]);
        assert_eq!(change("--power-limit", "250.5").unwrap().1, [250_500]);
        assert_eq!(change("--lock-gpu-clocks", "1500").unwrap().1, [1500, 1500]);
        assert_eq!(change("--lock-gpu-clocks", "300, 1500").unwrap().1, [300, 1500]);
        assert!(change("--persistence-mode", "2").is_none() && change("--power-limit", "-1").is_none());
    }
}
