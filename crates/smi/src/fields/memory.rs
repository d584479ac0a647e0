//! Memory and its errors.

use super::{Field, field, first, mib, mib_begun, number as shown, on, second, yes};
use crate::{
    device::{Device, field as number},
    library::{Answer, Number},
    log::memory,
    types::{Memory, SramErrors},
};

pub const MEMORY: &[Field] = &[
    field("memory.total", "", "MiB", |d| mib(d.memory().map(|memory| memory.total)), "Device memory."),
    field(
        "memory.reserved",
        "",
        "MiB",
        |d| mib(d.memory().map(|memory| memory.reserved)),
        "Memory that the driver keeps.",
    ),
    field("memory.used", "", "MiB", |d| mib_begun(d.memory().map(|memory| memory.used)), "Memory in use."),
    field("memory.free", "", "MiB", |d| mib_begun(d.memory().map(|memory| memory.free)), "Memory that is free."),
    field("protected_memory.total", "", "MiB", |d| mib(protected(d).map(|memory| memory.total)), "Protected memory."),
    field(
        "protected_memory.used",
        "",
        "MiB",
        |d| mib(protected(d).map(|memory| memory.used)),
        "Protected memory in use.",
    ),
    field(
        "protected_memory.free",
        "",
        "MiB",
        |d| mib(protected(d).map(|memory| memory.free)),
        "Protected memory that is free.",
    ),
    field(
        "dramEncryption.mode.current",
        "",
        "",
        |d| memory::encryption_modes(d).and_then(|m| on(Ok(m.0))),
        "Encryption now.",
    ),
    field(
        "dramEncryption.mode.pending",
        "",
        "",
        |d| memory::encryption_modes(d).and_then(|m| on(Ok(m.1))),
        "And next.",
    ),
    field(
        "retired_pages.single_bit_ecc.count",
        "retired_pages.sbe",
        "",
        |d| retired(d, 0),
        "Pages with single bit errors.",
    ),
    field(
        "retired_pages.double_bit.count",
        "retired_pages.dbe",
        "",
        |d| retired(d, 1),
        "Pages with double bit errors.",
    ),
    field(
        "retired_pages.pending",
        "",
        "",
        |d| yes(d.number("nvmlDeviceGetRetiredPagesPendingStatus")),
        "Pages to be retired.",
    ),
    field("remapped_rows.correctable", "remapped_rows.sbe", "", |d| remapped(d, 0), "Rows with corrected errors."),
    field(
        "remapped_rows.correctable_inactive",
        "",
        "",
        |d| shown(d.field(number::REMAPPED_COR_INACTIVE, 0)),
        "Inactive ones.",
    ),
    field("remapped_rows.uncorrectable", "remapped_rows.dbe", "", |d| remapped(d, 1), "Rows with other errors."),
    field(
        "remapped_rows.uncorrectable_inactive",
        "",
        "",
        |d| shown(d.field(number::REMAPPED_UNC_INACTIVE, 0)),
        "Inactive ones.",
    ),
    field("remapped_rows.pending", "", "", |d| yes(memory::remapped(d).map(|rows| rows[2])), "Rows to be remapped."),
    field("remapped_rows.failure", "", "", |d| yes(memory::remapped(d).map(|rows| rows[3])), "A row was not remapped."),
    field(
        "remapped_rows.histogram.max",
        "",
        "",
        |d| shown(memory::histogram(d).map(|banks| banks.max)),
        "Untouched banks.",
    ),
    field(
        "remapped_rows.histogram.high",
        "",
        "",
        |d| shown(memory::histogram(d).map(|banks| banks.high)),
        "Banks little used.",
    ),
    field(
        "remapped_rows.histogram.partial",
        "",
        "",
        |d| shown(memory::histogram(d).map(|b| b.partial)),
        "Banks half used.",
    ),
    field(
        "remapped_rows.histogram.low",
        "",
        "",
        |d| shown(memory::histogram(d).map(|banks| banks.low)),
        "Banks nearly used up.",
    ),
    field(
        "remapped_rows.histogram.none",
        "",
        "",
        |d| shown(memory::histogram(d).map(|banks| banks.none)),
        "Banks used up.",
    ),
];

fn protected(device: &Device) -> Answer<Memory> {
    device.get("nvmlDeviceGetConfComputeProtectedMemoryUsage")
}

fn retired(device: &Device, cause: Number) -> Answer<String> {
    shown(memory::retired(device, cause).map(|pages| pages.len()))
}

fn remapped(device: &Device, index: usize) -> Answer<String> {
    shown(memory::remapped(device).map(|rows| rows[index]))
}

/// Errors of the places that NVML numbers, of one kind and counter.
macro_rules! errors {
    ($kind:literal, $counter:literal, $number:literal, $aggregate:literal, $($place:literal: $at:literal),*) => {
        [
            $(field(
                concat!("ecc.errors.", $kind, ".", $counter, ".", $place),
                "",
                "",
                |d| ecc($number, $aggregate, $at, d),
                concat!("Errors (", $kind, ", ", $counter, ") of this part."),
            ),)*
            field(
                concat!("ecc.errors.", $kind, ".", $counter, ".total"),
                "",
                "",
                |d| total($number, $aggregate, d),
                concat!("Errors (", $kind, ", ", $counter, ") of the device."),
            ),
        ]
    };
    ($kind:literal, $counter:literal, $number:literal, $aggregate:literal) => {
        errors!(
            $kind, $counter, $number, $aggregate, "device_memory": 2, "dram": 2, "register_file": 3, "l1_cache": 0,
            "l2_cache": 1, "texture_memory": 4, "cbu": 6, "sram": 7
        )
    };
}

fn ecc(kind: Number, counter: Number, place: Number, device: &Device) -> Answer<String> {
    shown(memory::errors(device, kind, counter, place))
}

fn total(kind: Number, counter: Number, device: &Device) -> Answer<String> {
    shown(device.get_of::<u64>("nvmlDeviceGetTotalEccErrors", &[kind, counter]))
}

pub const CORRECTED: [[Field; 9]; 2] =
    [errors!("corrected", "volatile", 0, 0), errors!("corrected", "aggregate", 0, 1)];
pub const UNCORRECTED: [[Field; 9]; 2] =
    [errors!("uncorrected", "volatile", 1, 0), errors!("uncorrected", "aggregate", 1, 1)];

pub const SRAM: &[Field] = &[
    field("ecc.errors.uncorrected.volatile.sram.parity", "", "", |d| sram(d, |e| e.volatile_parity), "By parity."),
    field("ecc.errors.uncorrected.volatile.sram.secded", "", "", |d| sram(d, |e| e.volatile_secded), "By SEC-DED."),
    field("ecc.errors.uncorrected.aggregate.sram.parity", "", "", |d| sram(d, |e| e.aggregate_parity), "By parity."),
    field("ecc.errors.uncorrected.aggregate.sram.secded", "", "", |d| sram(d, |e| e.aggregate_secded), "By SEC-DED."),
    field("ecc.errors.uncorrected.aggregate.sram.thresholdExceeded", "", "", threshold, "Errors beyond the threshold."),
    field("ecc.errors.uncorrected.aggregate.sram.l2", "", "", |d| sram(d, |e| e.l2), "In the L2 cache."),
    field("ecc.errors.uncorrected.aggregate.sram.sm", "", "", |d| sram(d, |e| e.sm), "In multiprocessors."),
    field(
        "ecc.errors.uncorrected.aggregate.sram.mcu",
        "",
        "",
        |d| sram(d, |e| e.microcontroller),
        "In microcontrollers.",
    ),
    field("ecc.errors.uncorrected.aggregate.sram.pcie", "", "", |d| sram(d, |e| e.pcie), "In the bus unit."),
    field("ecc.errors.uncorrected.aggregate.sram.other", "", "", |d| sram(d, |e| e.other), "Elsewhere."),
    field("ecc.mode.current", "", "", |d| on(first(d, "nvmlDeviceGetEccMode")), "ECC now."),
    field("ecc.mode.pending", "", "", |d| on(second(d, "nvmlDeviceGetEccMode")), "ECC after a restart."),
];

fn sram(device: &Device, part: fn(&SramErrors) -> u64) -> Answer<String> {
    memory::sram_errors(device).map(|errors| part(&errors).to_string())
}

fn threshold(device: &Device) -> Answer<String> {
    yes(memory::sram_errors(device).map(|errors| errors.threshold_exceeded))
}
