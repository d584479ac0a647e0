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
        "Memory that the driver reserves for itself.",
    ),
    field("memory.used", "", "MiB", |d| mib_begun(d.memory().map(|memory| memory.used)), "Memory in use."),
    field("memory.free", "", "MiB", |d| mib_begun(d.memory().map(|memory| memory.free)), "Free memory."),
    field(
        "protected_memory.total",
        "",
        "MiB",
        |d| mib(protected(d).map(|memory| memory.total)),
        "Protected memory in total.",
    ),
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
        "Free protected memory.",
    ),
    field(
        "dramEncryption.mode.current",
        "",
        "",
        |d| memory::encryption_modes(d).and_then(|m| on(Ok(m.0))),
        "Encryption of device memory: present mode.",
    ),
    field(
        "dramEncryption.mode.pending",
        "",
        "",
        |d| memory::encryption_modes(d).and_then(|m| on(Ok(m.1))),
        "Encryption of device memory: mode after the next reset.",
    ),
    field(
        "retired_pages.single_bit_ecc.count",
        "retired_pages.sbe",
        "",
        |d| retired(d, 0),
        "Memory pages retired because of single-bit errors.",
    ),
    field(
        "retired_pages.double_bit.count",
        "retired_pages.dbe",
        "",
        |d| retired(d, 1),
        "Memory pages retired because of double-bit errors.",
    ),
    field(
        "retired_pages.pending",
        "",
        "",
        |d| yes(d.number("nvmlDeviceGetRetiredPagesPendingStatus")),
        "Whether memory pages will be retired at the next reset.",
    ),
    field(
        "remapped_rows.correctable",
        "remapped_rows.sbe",
        "",
        |d| remapped(d, 0),
        "Memory rows remapped because of correctable errors.",
    ),
    field(
        "remapped_rows.correctable_inactive",
        "",
        "",
        |d| shown(d.field(number::REMAPPED_COR_INACTIVE, 0)),
        "Inactive remappings because of correctable errors.",
    ),
    field(
        "remapped_rows.uncorrectable",
        "remapped_rows.dbe",
        "",
        |d| remapped(d, 1),
        "Memory rows remapped because of uncorrectable errors.",
    ),
    field(
        "remapped_rows.uncorrectable_inactive",
        "",
        "",
        |d| shown(d.field(number::REMAPPED_UNC_INACTIVE, 0)),
        "Inactive remappings because of uncorrectable errors.",
    ),
    field(
        "remapped_rows.pending",
        "",
        "",
        |d| yes(memory::remapped(d).map(|rows| rows[2])),
        "Whether memory rows will be remapped at the next reset.",
    ),
    field(
        "remapped_rows.failure",
        "",
        "",
        |d| yes(memory::remapped(d).map(|rows| rows[3])),
        "Whether remapping of a memory row has failed.",
    ),
    field(
        "remapped_rows.histogram.max",
        "",
        "",
        |d| shown(memory::histogram(d).map(|banks| banks.max)),
        "Memory banks with all spare rows free.",
    ),
    field(
        "remapped_rows.histogram.high",
        "",
        "",
        |d| shown(memory::histogram(d).map(|banks| banks.high)),
        "Memory banks with most spare rows free.",
    ),
    field(
        "remapped_rows.histogram.partial",
        "",
        "",
        |d| shown(memory::histogram(d).map(|b| b.partial)),
        "Memory banks with some spare rows free.",
    ),
    field(
        "remapped_rows.histogram.low",
        "",
        "",
        |d| shown(memory::histogram(d).map(|banks| banks.low)),
        "Memory banks with few spare rows free.",
    ),
    field(
        "remapped_rows.histogram.none",
        "",
        "",
        |d| shown(memory::histogram(d).map(|banks| banks.none)),
        "Memory banks without free spare rows.",
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
                concat!("ECC errors in this part of the device (", $kind, ", ", $counter, ")."),
            ),)*
            field(
                concat!("ecc.errors.", $kind, ".", $counter, ".total"),
                "",
                "",
                |d| total($number, $aggregate, d),
                concat!("ECC errors of the whole device (", $kind, ", ", $counter, ")."),
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
    field(
        "ecc.errors.uncorrected.volatile.sram.parity",
        "",
        "",
        |d| sram(d, |e| e.volatile_parity),
        "Uncorrected SRAM errors since the last driver load, found by parity.",
    ),
    field(
        "ecc.errors.uncorrected.volatile.sram.secded",
        "",
        "",
        |d| sram(d, |e| e.volatile_secded),
        "Uncorrected SRAM errors since the last driver load, found by SEC-DED.",
    ),
    field(
        "ecc.errors.uncorrected.aggregate.sram.parity",
        "",
        "",
        |d| sram(d, |e| e.aggregate_parity),
        "Uncorrected SRAM errors over the device's life, found by parity.",
    ),
    field(
        "ecc.errors.uncorrected.aggregate.sram.secded",
        "",
        "",
        |d| sram(d, |e| e.aggregate_secded),
        "Uncorrected SRAM errors over the device's life, found by SEC-DED.",
    ),
    field(
        "ecc.errors.uncorrected.aggregate.sram.thresholdExceeded",
        "",
        "",
        threshold,
        "Whether uncorrected SRAM errors exceed the threshold.",
    ),
    field(
        "ecc.errors.uncorrected.aggregate.sram.l2",
        "",
        "",
        |d| sram(d, |e| e.l2),
        "Uncorrected SRAM errors in the L2 cache.",
    ),
    field(
        "ecc.errors.uncorrected.aggregate.sram.sm",
        "",
        "",
        |d| sram(d, |e| e.sm),
        "Uncorrected SRAM errors in multiprocessors.",
    ),
    field(
        "ecc.errors.uncorrected.aggregate.sram.mcu",
        "",
        "",
        |d| sram(d, |e| e.microcontroller),
        "Uncorrected SRAM errors in microcontrollers.",
    ),
    field(
        "ecc.errors.uncorrected.aggregate.sram.pcie",
        "",
        "",
        |d| sram(d, |e| e.pcie),
        "Uncorrected SRAM errors in the PCIe unit.",
    ),
    field(
        "ecc.errors.uncorrected.aggregate.sram.other",
        "",
        "",
        |d| sram(d, |e| e.other),
        "Uncorrected SRAM errors elsewhere.",
    ),
    field("ecc.mode.current", "", "", |d| on(first(d, "nvmlDeviceGetEccMode")), "Present ECC mode."),
    field("ecc.mode.pending", "", "", |d| on(second(d, "nvmlDeviceGetEccMode")), "ECC mode after the next restart."),
];

fn sram(device: &Device, part: fn(&SramErrors) -> u64) -> Answer<String> {
    memory::sram_errors(device).map(|errors| part(&errors).to_string())
}

fn threshold(device: &Device) -> Answer<String> {
    yes(memory::sram_errors(device).map(|errors| errors.threshold_exceeded))
}
