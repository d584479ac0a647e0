//! `pmon`: a line for each process and interval.

use crate::device::{Device, process_name};
use crate::log::used_memory;
use crate::types::{Process, ProcessSample};
use crate::views::dmon::Stamps;
use crate::views::text::plain;

/// Characters of the longest name that fits, and samples that are read at a time.
const NAME: usize = 15;
const MOST_SAMPLES: u32 = 1024;

/// Groups of columns: load, memory.
pub fn is_selection(letters: &str) -> bool {
    !letters.is_empty() && letters.chars().all(|letter| "um".contains(letter))
}

pub fn titles(letters: &str, stamps: Stamps) -> String {
    let (mut first, mut second) = stamps.titles();
    first.push_str(&format!("{:>12}{:>7}", "pid", "type"));
    second.push_str(&format!("{:>12}{:>7}", "#", "C/G"));
    let mut add = |title: &str, unit: &str| {
        first.push_str(&format!("{title:>7}"));
        second.push_str(&format!("{unit:>7}"));
    };
    if letters.contains('u') {
        ["sm", "mem", "enc", "dec", "jpg", "ofa"].iter().for_each(|title| add(title, "%"));
    }
    if letters.contains('m') {
        ["fb", "ccpm"].iter().for_each(|title| add(title, "MB"));
    }
    format!("{first}    command \n{second}    name \n")
}

pub fn lines(device: &Device, letters: &str, stamps: Stamps) -> String {
    let processes = device.processes().unwrap_or_default();
    if processes.is_empty() {
        return line(device, letters, stamps, None);
    }
    processes.iter().map(|process| line(device, letters, stamps, Some(process))).collect()
}

fn line(device: &Device, letters: &str, stamps: Stamps, process: Option<&(Process, char)>) -> String {
    let mut text = stamps.line(device.index);
    let dash = || "-".to_owned();
    let pid = process.map_or_else(dash, |(process, _)| process.pid.to_string());
    let kind = process.map_or_else(dash, |(_, kind)| if *kind == 'M' { "C+G".to_owned() } else { kind.to_string() });
    text.push_str(&format!("{pid:>11}{kind:>6}"));
    let mut add = |value: String| text.push_str(&format!("{value:>7}"));
    if letters.contains('u') {
        let sample = process.and_then(|(process, _)| sample(device, process.pid));
        let part = |part: fn(&ProcessSample) -> u32| match sample.as_ref().map(part) {
            Some(percent) if percent <= 100 => percent.to_string(),
            _ => "-".to_owned(),
        };
        add(part(|sample| sample.sm));
        add(part(|sample| sample.memory));
        // An engine that a process does not use is not one of its.
        let engine = |percent: String| if percent == "0" { dash() } else { percent };
        add(engine(part(|sample| sample.encoder)));
        add(engine(part(|sample| sample.decoder)));
        add(dash());
        add(dash());
    }
    if letters.contains('m') {
        add(process.map_or_else(dash, |(process, _)| {
            used_memory(process).map_or_else(|_| dash(), |bytes| (bytes >> 20).to_string())
        }));
        add(process.map_or_else(dash, |_| "0".to_owned()));
    }
    let name = process.map_or_else(dash, |(process, _)| plain(process_name(device.library, process.pid)));
    // The program alone, without its folder.
    let name: String = name.rsplit('/').next().unwrap_or_default().chars().take(NAME).collect();
    text.push_str(&format!("    {name:<NAME$}\n"));
    text
}

/// The newest of a process.
fn sample(device: &Device, pid: u32) -> Option<ProcessSample> {
    let samples = device.library.list_within::<ProcessSample>(
        "nvmlDeviceGetProcessUtilization",
        &[device.handle.0 as usize],
        MOST_SAMPLES,
        &[0],
    );
    samples.ok()?.into_iter().filter(|sample| sample.pid == pid).max_by_key(|sample| sample.timestamp_us)
}
