//! How answers are written.

use crate::library::{Answer, Code};
use crate::types::PlatformInfo;
use std::fmt::Display;

/// In lists and tables: a feature that is not there is `N/A`.
pub fn plain<T: Display>(answer: Answer<T>) -> String {
    match answer {
        Ok(value) => value.to_string(),
        Err(code) => missing(code),
    }
}

pub fn missing(code: Code) -> String {
    if code.is_missing() { "N/A".to_owned() } else { code.to_string() }
}

/// With a unit behind.
pub fn unit<T: Display>(answer: Answer<T>, unit: &str) -> String {
    plain(answer.map(|value| format!("{value} {unit}")))
}

pub fn mib(answer: Answer<u64>) -> String {
    unit(answer.map(|bytes| bytes >> 20), "MiB")
}

/// A part of a MiB counts as a whole one, as in the vendor's lists of memory in use and free.
pub fn mib_begun(answer: Answer<u64>) -> String {
    unit(answer.map(|bytes| bytes.div_ceil(1 << 20)), "MiB")
}

/// Of milliwatts.
pub fn watts(answer: Answer<i64>) -> String {
    plain(answer.map(|milliwatts| format!("{}.{:02} W", milliwatts / 1000, milliwatts % 1000 / 10)))
}

/// Of `nvmlEnableState_t`.
pub fn enabled(answer: Answer<u32>) -> String {
    plain(answer.map(|state| if state == 0 { "Disabled" } else { "Enabled" }))
}

pub fn yes(answer: Answer<u32>) -> String {
    plain(answer.map(|state| if state == 0 { "No" } else { "Yes" }))
}

pub fn active(answer: Answer<bool>) -> String {
    plain(answer.map(|active| if active { "Active" } else { "Not Active" }))
}

/// Of `nvmlComputeMode_t`.
pub fn compute_mode(answer: Answer<u32>) -> Answer<&'static str> {
    answer.map(|mode| match mode {
        0 => "Default",
        1 => "Exclusive_Thread",
        2 => "Prohibited",
        3 => "Exclusive_Process",
        _ => "Unknown",
    })
}

/// Of `nvmlBrandType_t`.
pub fn brand(brand: u32) -> &'static str {
    match brand {
        1 => "Quadro",
        2 => "Tesla",
        3 => "NVS",
        4 => "Grid",
        5 => "GeForce",
        6 => "Titan",
        7 => "NVIDIA Virtual Applications",
        8 => "NVIDIA Virtual PC",
        9 => "NVIDIA Virtual Compute Server",
        10 => "NVIDIA RTX Virtual Workstation",
        11 => "NVIDIA Cloud Gaming",
        12 => "Quadro RTX",
        13 => "NVIDIA RTX",
        14 => "NVIDIA",
        15 => "GeForce RTX",
        16 => "Titan RTX",
        _ => "Unknown",
    }
}

/// Of `nvmlDeviceArchitecture_t`.
pub fn architecture(number: u32) -> &'static str {
    match number {
        2 => "Kepler",
        3 => "Maxwell",
        4 => "Pascal",
        5 => "Volta",
        6 => "Turing",
        7 => "Ampere",
        8 => "Ada Lovelace",
        9 => "Hopper",
        10 => "Blackwell",
        _ => "Unknown",
    }
}

/// Of `nvmlPstates_t`.
pub fn performance_state(state: u32) -> String {
    if state < 16 { format!("P{state}") } else { "Unknown".to_owned() }
}

/// At most `room` characters, the end of it replaced by dots.
pub fn cut_end(text: &str, room: usize) -> String {
    if text.chars().count() <= room {
        return text.to_owned();
    }
    text.chars().take(room - 3).chain("...".chars()).collect()
}

/// At most `room` characters, the beginning of it replaced by dots.
pub fn cut_begin(text: &str, room: usize) -> String {
    let length = text.chars().count();
    if length <= room {
        return text.to_owned();
    }
    "...".chars().chain(text.chars().skip(length - (room - 3))).collect()
}

pub fn peer(info: &PlatformInfo) -> String {
    if info.peer == 0 { "Direct Connected" } else { "Switch Connected" }.to_owned()
}

pub fn fabric_guid(info: &PlatformInfo) -> String {
    let digits: Vec<String> = info.guid[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("0x{}", digits.concat())
}
