//! The bus of a device.

use crate::device::{Device, field};
use crate::library::{Answer, Number, zeroed};
use crate::types::Bridge;
use crate::views::text::{plain, unit};
use crate::views::tree::{Node, group, value};

pub fn bus(device: &Device) -> Node {
    let pci = device.pci();
    let extended = device.pci_ext();
    let mut members = Vec::new();
    // Text has a prefix that XML has not.
    let mut hex = |label: &'static str, tag: &'static str, answer: Answer<u32>, digits: usize| {
        members.push(value(label, "", plain(answer.map(|number| format!("0x{number:0digits$X}")))));
        members.push(value("", tag, plain(answer.map(|number| format!("{number:0digits$X}")))));
    };
    hex("Bus", "pci_bus", pci.map(|pci| pci.bus), 2);
    hex("Device", "pci_device", pci.map(|pci| pci.device), 2);
    hex("Domain", "pci_domain", pci.map(|pci| pci.domain), 4);
    hex("Base Classcode", "pci_base_class", extended.map(|pci| pci.base_class), 1);
    hex("Sub Classcode", "pci_sub_class", extended.map(|pci| pci.sub_class), 1);
    hex("Device Id", "pci_device_id", pci.map(|pci| pci.device_id), 8);
    members.push(value("Bus Id", "pci_bus_id", plain(device.bus_id())));
    let subsystem = pci.map(|pci| pci.subsystem_id);
    members.extend([
        value("Sub System Id", "", plain(subsystem.map(|number| format!("0x{number:08X}")))),
        value("", "pci_sub_system_id", plain(subsystem.map(|number| format!("{number:08X}")))),
        link(device),
        bridge(device),
        value("Replays Since Reset", "replay_counter", plain(device.number("nvmlDeviceGetPcieReplayCounter"))),
        value(
            "Replay Number Rollovers",
            "replay_rollover_counter",
            plain(device.field(field::PCIE_REPLAY_ROLLOVER, 0)),
        ),
        value("Tx Throughput", "tx_util", unit(throughput(device, 0), "KB/s")),
        value("Rx Throughput", "rx_util", unit(throughput(device, 1), "KB/s")),
        value("Atomic Caps Outbound", "atomic_caps_outbound", plain(atomics(device, field::ATOMICS_OUTBOUND))),
        value("Atomic Caps Inbound", "atomic_caps_inbound", plain(atomics(device, field::ATOMICS_INBOUND))),
    ]);
    group("PCI", "pci", members)
}

fn link(device: &Device) -> Node {
    let width = |name: &str| plain(device.number(name).map(|lanes| format!("{lanes}x")));
    group(
        "GPU Link Info",
        "pci_gpu_link_info",
        vec![
            group(
                "PCIe Generation",
                "pcie_gen",
                vec![
                    value("Max", "max_link_gen", plain(device.number("nvmlDeviceGetMaxPcieLinkGeneration"))),
                    value("Current", "current_link_gen", plain(device.number("nvmlDeviceGetCurrPcieLinkGeneration"))),
                    value(
                        "Device Current",
                        "device_current_link_gen",
                        plain(device.number("nvmlDeviceGetCurrPcieLinkGeneration")),
                    ),
                    value(
                        "Device Max",
                        "max_device_link_gen",
                        plain(device.number("nvmlDeviceGetGpuMaxPcieLinkGeneration")),
                    ),
                    // NVML has no function for it.
                    value("Host Max", "max_host_link_gen", "N/A"),
                ],
            ),
            group(
                "Link Width",
                "link_widths",
                vec![
                    value("Max", "max_link_width", width("nvmlDeviceGetMaxPcieLinkWidth")),
                    value("Current", "current_link_width", width("nvmlDeviceGetCurrPcieLinkWidth")),
                ],
            ),
        ],
    )
}

fn bridge(device: &Device) -> Node {
    let bridge: Answer<Bridge> = device.fill("nvmlDeviceGetBridgeChipInfo", zeroed());
    let kind = |bridge: Bridge| if bridge.first_kind == 0 { "PLX" } else { "BRO4" };
    let firmware = |bridge: Bridge| match bridge.first_firmware {
        0 => "N/A".to_owned(),
        version => version.to_string(),
    };
    group(
        "Bridge Chip",
        "pci_bridge_chip",
        vec![
            value("Type", "bridge_chip_type", plain(bridge.map(kind))),
            value("Firmware", "bridge_chip_fw", plain(bridge.map(firmware))),
        ],
    )
}

/// 0: transmitted, 1: received.
pub fn throughput(device: &Device, counter: Number) -> Answer<u32> {
    device.get_of("nvmlDeviceGetPcieThroughput", &[counter])
}

/// Sizes of atomic operations, as the library's mask names them.
pub fn atomics(device: &Device, number: u32) -> Answer<String> {
    const NAMES: [&str; 13] = [
        "FETCHADD_32",
        "FETCHADD_64",
        "SWAP_32",
        "SWAP_64",
        "CAS_32",
        "CAS_64",
        "CAS_128",
        "UNSIGNED_MINMAX_32",
        "UNSIGNED_MINMAX_64",
        "SIGNED_MINMAX_32",
        "SIGNED_MINMAX_64",
        "FADD_32",
        "FADD_64",
    ];
    let mask = device.field(number, 0)?;
    let set = |bit: usize| mask & 1 << bit != 0;
    let names: Vec<&str> = NAMES.iter().enumerate().filter(|(bit, _)| set(*bit)).map(|(_, name)| *name).collect();
    Ok(if names.is_empty() { "N/A".to_owned() } else { names.join(" ") })
}
