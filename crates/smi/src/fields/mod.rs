//! The properties of a device that `--query-gpu` can name.

mod identity;
mod memory;
mod power;
mod state;

use crate::{
    device::Device,
    library::{Answer, Code, Number},
    log,
};

pub struct Field {
    pub name: &'static str,
    /// Another name for it; empty: none.
    pub alias: &'static str,
    /// Behind its title and its values; empty: none.
    pub unit: &'static str,
    pub value: fn(&Device) -> Answer<String>,
    /// One sentence for `--help-query-gpu`.
    pub help: &'static str,
}

const fn field(
    name: &'static str,
    alias: &'static str,
    unit: &'static str,
    value: fn(&Device) -> Answer<String>,
    help: &'static str,
) -> Field {
    Field { name, alias, unit, value, help }
}

pub fn find(name: &str) -> Option<&'static Field> {
    all().find(|field| field.name == name || (!name.is_empty() && field.alias == name))
}

pub fn all() -> impl Iterator<Item = &'static Field> {
    PARTS.iter().flat_map(|part| part.iter())
}

const PARTS: [&[Field]; 10] = [
    identity::IDENTITY,
    identity::BUS,
    state::STATE,
    memory::MEMORY,
    &memory::CORRECTED[0],
    &memory::CORRECTED[1],
    &memory::UNCORRECTED[0],
    &memory::UNCORRECTED[1],
    memory::SRAM,
    power::POWER,
];

// ---- Kinds of values ------------------------------------------------------------------------------

fn on(answer: Answer<u32>) -> Answer<String> {
    answer.map(|state| if state == 0 { "Disabled" } else { "Enabled" }.to_owned())
}

fn yes(answer: Answer<u32>) -> Answer<String> {
    answer.map(|state| if state == 0 { "No" } else { "Yes" }.to_owned())
}

fn number<T: ToString>(answer: Answer<T>) -> Answer<String> {
    answer.map(|value| value.to_string())
}

fn hex(answer: Answer<u32>, digits: usize) -> Answer<String> {
    answer.map(|value| format!("0x{value:0digits$X}"))
}

fn mib(answer: Answer<u64>) -> Answer<String> {
    answer.map(|bytes| (bytes >> 20).to_string())
}

/// A part of a MiB counts as a whole one.
fn mib_begun(answer: Answer<u64>) -> Answer<String> {
    answer.map(|bytes| bytes.div_ceil(1 << 20).to_string())
}

fn watts(answer: Answer<i64>) -> Answer<String> {
    answer.map(|milliwatts| format!("{}.{:02}", milliwatts / 1000, milliwatts % 1000 / 10))
}

fn milliwatts(device: &Device, name: &str) -> Answer<String> {
    watts(device.number(name).map(i64::from))
}

fn first(device: &Device, name: &str) -> Answer<u32> {
    device.pair(name).map(|pair| pair.0)
}

fn second(device: &Device, name: &str) -> Answer<u32> {
    device.pair(name).map(|pair| pair.1)
}

/// A property that no function of NVML tells.
fn untold(_: &Device) -> Answer<String> {
    Err(Code::NOT_SUPPORTED)
}

fn active(device: &Device, bit: u64) -> Answer<String> {
    log::state::reasons(device).map(|mask| if mask & bit == 0 { "Not Active" } else { "Active" }.to_owned())
}

fn microseconds(device: &Device, number: u32) -> Answer<String> {
    device.field(number, 0).map(|time| (time / 1000).to_string())
}

fn clock_of(device: &Device, name: &str, kind: u32) -> Answer<String> {
    number(device.get_of::<u32>(name, &[kind as Number]))
}
