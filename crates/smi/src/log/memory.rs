//! Memory of a device and its errors.

use crate::device::{Device, field};
use crate::library::{Answer, Number, zeroed};
use crate::types::{Bar1Memory, Memory, RemapHistogram, SramErrors, Versioned32, VersionedPair, version};
use crate::views::text::{enabled, mib, mib_begun, plain, unit, yes};
use crate::views::tree::{Node, group, value};

pub fn memory(device: &Device) -> Vec<Node> {
    let memory = device.memory();
    let aperture: Answer<Bar1Memory> = device.get("nvmlDeviceGetBAR1MemoryInfo");
    let protected: Answer<Memory> = device.get("nvmlDeviceGetConfComputeProtectedMemoryUsage");
    vec![
        group(
            "FB Memory Usage",
            "fb_memory_usage",
            vec![
                value("Total", "total", mib(memory.map(|memory| memory.total))),
                value("Reserved", "reserved", mib(memory.map(|memory| memory.reserved))),
                value("Used", "used", mib_begun(memory.map(|memory| memory.used))),
                value("Free", "free", mib_begun(memory.map(|memory| memory.free))),
            ],
        ),
        group(
            "BAR1 Memory Usage",
            "bar1_memory_usage",
            vec![
                value("Total", "total", mib(aperture.map(|memory| memory.total))),
                value("Used", "used", mib(aperture.map(|memory| memory.used))),
                value("Free", "free", mib_begun(aperture.map(|memory| memory.free))),
            ],
        ),
        group(
            "Conf Compute Protected Memory Usage",
            "cc_protected_memory_usage",
            vec![
                value("Total", "total", mib(protected.map(|memory| memory.total))),
                value("Used", "used", mib(protected.map(|memory| memory.used))),
                value("Free", "free", mib(protected.map(|memory| memory.free))),
            ],
        ),
    ]
}

/// Now and after a restart.
pub fn encryption_modes(device: &Device) -> Answer<(u32, u32)> {
    let start = Versioned32 { version: version::<Versioned32>(1), value: 0 };
    let (mut current, mut pending) = (start, start);
    let arguments = [device.handle.0 as Number, &raw mut current as Number, &raw mut pending as Number];
    device.library.run("nvmlDeviceGetDramEncryptionMode", &arguments).map(|()| (current.value, pending.value))
}

pub fn encryption(device: &Device) -> Node {
    let modes = encryption_modes(device);
    group(
        "DRAM Encryption Mode",
        "dram_encryption_mode",
        vec![
            value("Current", "current_dram_encryption", enabled(modes.map(|modes| modes.0))),
            value("Pending", "pending_dram_encryption", enabled(modes.map(|modes| modes.1))),
        ],
    )
}

pub fn sram_errors(device: &Device) -> Answer<SramErrors> {
    let mut start: SramErrors = zeroed();
    start.version = version::<SramErrors>(1);
    device.fill("nvmlDeviceGetSramEccErrorStatus", start)
}

/// Kinds: 0 corrected, 1 not. Counters: 0 volatile, 1 aggregate. Places: `nvmlMemoryLocation_t`.
pub fn errors(device: &Device, kind: Number, counter: Number, place: Number) -> Answer<u64> {
    device.get_of("nvmlDeviceGetMemoryErrorCounter", &[kind, counter, place])
}

const DRAM: Number = 2;

fn sram_sources(sram: &Answer<SramErrors>) -> Node {
    let number = |part: fn(&SramErrors) -> u64| plain(sram.as_ref().map(part).map_err(|code| *code));
    group(
        "Aggregate Uncorrectable SRAM Sources",
        "aggregate_uncorrectable_sram_sources",
        vec![
            value("SRAM L2", "sram_l2", number(|errors| errors.l2)),
            value("SRAM SM", "sram_sm", number(|errors| errors.sm)),
            value("SRAM Microcontroller", "sram_microcontroller", number(|errors| errors.microcontroller)),
            value("SRAM PCIE", "sram_pcie", number(|errors| errors.pcie)),
            value("SRAM Other", "sram_other", number(|errors| errors.other)),
        ],
    )
}

/// Since the device was made.
fn aggregate_errors(device: &Device, sram: &Answer<SramErrors>) -> Node {
    let number = |part: fn(&SramErrors) -> u64| plain(sram.as_ref().map(part).map_err(|code| *code));
    let threshold = sram.as_ref().map(|errors| errors.threshold_exceeded).map_err(|code| *code);
    let dram = |kind: Number, counter: Number| plain(errors(device, kind, counter, DRAM));
    group(
        "Aggregate",
        "aggregate",
        vec![
            value("SRAM Correctable", "sram_correctable", number(|errors| errors.aggregate_correctable)),
            value("SRAM Uncorrectable Parity", "sram_uncorrectable_parity", number(|errors| errors.aggregate_parity)),
            value("SRAM Uncorrectable SEC-DED", "sram_uncorrectable_secded", number(|errors| errors.aggregate_secded)),
            value("DRAM Correctable", "dram_correctable", dram(0, 1)),
            value("DRAM Uncorrectable", "dram_uncorrectable", dram(1, 1)),
            value("SRAM Threshold Exceeded", "sram_threshold_exceeded", yes(threshold)),
        ],
    )
}

pub fn ecc(device: &Device) -> Vec<Node> {
    let mode = device.pair("nvmlDeviceGetEccMode");
    let sram = sram_errors(device);
    let number = |part: fn(&SramErrors) -> u64| plain(sram.as_ref().map(part).map_err(|code| *code));
    let dram = |kind: Number, counter: Number| plain(errors(device, kind, counter, DRAM));
    let mut start: VersionedPair = zeroed();
    start.version = version::<VersionedPair>(1);
    let repair = device.fill("nvmlDeviceGetRepairStatus", start);
    let unrepairable = device.versioned("nvmlDeviceGetUnrepairableMemoryFlag_v1");
    vec![
        group(
            "ECC Mode",
            "ecc_mode",
            vec![
                value("Current", "current_ecc", enabled(mode.map(|mode| mode.0))),
                value("Pending", "pending_ecc", enabled(mode.map(|mode| mode.1))),
            ],
        ),
        group(
            "ECC Errors",
            "ecc_errors",
            vec![
                group(
                    "Volatile",
                    "volatile",
                    vec![
                        value("SRAM Correctable", "sram_correctable", number(|errors| errors.volatile_correctable)),
                        value(
                            "SRAM Uncorrectable Parity",
                            "sram_uncorrectable_parity",
                            number(|errors| errors.volatile_parity),
                        ),
                        value(
                            "SRAM Uncorrectable SEC-DED",
                            "sram_uncorrectable_secded",
                            number(|errors| errors.volatile_secded),
                        ),
                        value("DRAM Correctable", "dram_correctable", dram(0, 0)),
                        value("DRAM Uncorrectable", "dram_uncorrectable", dram(1, 0)),
                    ],
                ),
                aggregate_errors(device, &sram),
                sram_sources(&sram),
                value("Channel Repair Pending", "channel_repair_pending", yes(repair.map(|repair| repair.first))),
                value("TPC Repair Pending", "tpc_repair_pending", yes(repair.map(|repair| repair.second))),
                value("Unrepairable Memory", "unrepairable_memory", yes(unrepairable)),
            ],
        ),
    ]
}

/// Causes: 0 several single bit errors, 1 a double bit error.
pub fn retired(device: &Device, cause: Number) -> Answer<Vec<u64>> {
    device.list("nvmlDeviceGetRetiredPages", &[cause])
}

pub fn retired_pages(device: &Device) -> Node {
    let count = |cause: Number| plain(retired(device, cause).map(|pages| pages.len()));
    let pending = yes(device.number("nvmlDeviceGetRetiredPagesPendingStatus"));
    let one = |tag: &'static str, cause: Number| {
        let list = match retired(device, cause) {
            Ok(pages) => group(
                "",
                "retired_pagelist",
                pages.iter().map(|page| value("", "retired_page_address", format!("0x{page:016x}"))).collect(),
            ),
            Err(_) => value("", "retired_pagelist", "N/A"),
        };
        group("", tag, vec![value("", "retired_count", count(cause)), list])
    };
    group(
        "Retired Pages",
        "retired_pages",
        vec![
            value("Single Bit ECC", "", count(0)),
            value("Double Bit ECC", "", count(1)),
            value("Pending Page Blacklist", "", pending.clone()),
            one("multiple_single_bit_retirement", 0),
            one("double_bit_retirement", 1),
            value("", "pending_blacklist", pending.clone()),
            value("", "pending_retirement", pending),
        ],
    )
}

/// Corrected, not corrected, pending, failed.
pub fn remapped(device: &Device) -> Answer<[u32; 4]> {
    device.library.four("nvmlDeviceGetRemappedRows", &[device.handle.0 as Number])
}

pub fn histogram(device: &Device) -> Answer<RemapHistogram> {
    device.get("nvmlDeviceGetRowRemapperHistogram")
}

pub fn remapped_rows(device: &Device) -> Node {
    let Ok([corrected, uncorrected, pending, failed]) = remapped(device) else {
        return value("Remapped Rows", "remapped_rows", "N/A");
    };
    let banks = histogram(device);
    let inactive = |number: u32| plain(device.field(number, 0));
    let bank = |part: fn(&RemapHistogram) -> u32| unit(banks.as_ref().map(part).map_err(|code| *code), "bank(s)");
    group(
        "Remapped Rows",
        "remapped_rows",
        vec![
            value("Correctable Error", "remapped_row_corr", corrected.to_string()),
            value("Inactive Correctable Error", "remapped_row_corr_inactive", inactive(field::REMAPPED_COR_INACTIVE)),
            value("Uncorrectable Error", "remapped_row_unc", uncorrected.to_string()),
            value("Inactive Uncorrectable Error", "remapped_row_unc_inactive", inactive(field::REMAPPED_UNC_INACTIVE)),
            value("Pending", "remapped_row_pending", yes(Ok(pending))),
            value("Remapping Failure Occurred", "remapped_row_failure", yes(Ok(failed))),
            group(
                "Bank Remap Availability Histogram",
                "row_remapper_histogram",
                vec![
                    value("Max", "row_remapper_histogram_max", bank(|banks| banks.max)),
                    value("High", "row_remapper_histogram_high", bank(|banks| banks.high)),
                    value("Partial", "row_remapper_histogram_partial", bank(|banks| banks.partial)),
                    value("Low", "row_remapper_histogram_low", bank(|banks| banks.low)),
                    value("None", "row_remapper_histogram_none", bank(|banks| banks.none)),
                ],
            ),
        ],
    )
}
