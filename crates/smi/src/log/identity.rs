//! Identity of a device: names, firmware, modes.

use crate::device::{Device, field};
use crate::library::{Answer, Code, Number, text_of, zeroed};
use crate::types::{PlatformInfo, Versioned64, version};
use crate::views::text::{architecture, brand, enabled, fabric_guid, peer, plain, yes};
use crate::views::tree::{Node, group, nothing, value};

pub fn product(device: &Device) -> Vec<Node> {
    vec![
        value("Product Name", "product_name", plain(device.text("nvmlDeviceGetName"))),
        value("Product Brand", "product_brand", plain(device.number("nvmlDeviceGetBrand").map(brand))),
        value(
            "Product Architecture",
            "product_architecture",
            plain(device.number("nvmlDeviceGetArchitecture").map(architecture)),
        ),
        value("Display Mode", "display_mode", "Requested functionality has been deprecated"),
        value("Display Attached", "display_attached", yes(device.number("nvmlDeviceGetDisplayMode"))),
        value("Display Active", "display_active", enabled(device.number("nvmlDeviceGetDisplayActive"))),
        value("Persistence Mode", "persistence_mode", enabled(device.number("nvmlDeviceGetPersistenceMode"))),
        value("Addressing Mode", "addressing_mode", plain(addressing_mode(device))),
    ]
}

pub fn addressing_mode(device: &Device) -> Answer<&'static str> {
    device.versioned("nvmlDeviceGetAddressingMode").map(|mode| match mode {
        0 => "None",
        1 => "HMM",
        2 => "ATS",
        _ => "Unknown",
    })
}

pub fn partition(device: &Device) -> Vec<Node> {
    let mode = device.pair("nvmlDeviceGetMigMode");
    vec![
        group(
            "MIG Mode",
            "mig_mode",
            vec![
                value("Current", "current_mig", enabled(mode.map(|mode| mode.0))),
                value("Pending", "pending_mig", enabled(mode.map(|mode| mode.1))),
            ],
        ),
        nothing("", "mig_devices", "None"),
    ]
}

pub fn driver_model() -> Node {
    group(
        "Driver Model",
        "driver_model",
        vec![value("Current", "current_dm", "N/A"), value("Pending", "pending_dm", "N/A")],
    )
}

pub fn numbers(device: &Device) -> Vec<Node> {
    vec![
        value("Serial Number", "serial", plain(device.text("nvmlDeviceGetSerial"))),
        value("GPU UUID", "uuid", plain(device.text("nvmlDeviceGetUUID"))),
        value("GPU PDI", "pdi", plain(identifier(device))),
        value("Minor Number", "minor_number", plain(device.number("nvmlDeviceGetMinorNumber"))),
        value("VBIOS Version", "vbios_version", plain(device.text("nvmlDeviceGetVbiosVersion"))),
        value("MultiGPU Board", "multigpu_board", yes(device.number("nvmlDeviceGetMultiGpuBoard"))),
        value("Board ID", "board_id", plain(device.number("nvmlDeviceGetBoardId").map(|id| format!("0x{id:x}")))),
        value("Board Part Number", "board_part_number", plain(device.text("nvmlDeviceGetBoardPartNumber"))),
        // NVML has no function for the next two.
        value("GPU Part Number", "gpu_part_number", "N/A"),
        value("FRU Part Number", "gpu_fru_part_number", "N/A"),
    ]
}

pub fn identifier(device: &Device) -> Answer<String> {
    let mut start: Versioned64 = zeroed();
    start.version = version::<Versioned64>(1);
    device.fill("nvmlDeviceGetPdi", start).map(|answer| format!("0x{:016x}", answer.value))
}

pub fn platform(device: &Device) -> Node {
    let mut start: PlatformInfo = zeroed();
    start.version = version::<PlatformInfo>(2);
    let info = device.fill("nvmlDeviceGetPlatformInfo", start);
    let part = |part: fn(&PlatformInfo) -> String| plain(info.as_ref().map(part).map_err(|code| *code));
    // Without a place in a fabric the rest says nothing.
    let placed =
        info.map(|info| if info.guid == [0; 16] { Err(Code::NOT_SUPPORTED) } else { Ok(info) }).and_then(|info| info);
    let placed = |part: fn(&PlatformInfo) -> String| plain(placed.as_ref().map(part).map_err(|code| *code));
    group(
        "Platform Info",
        "platformInfo",
        vec![
            value("Chassis Serial Number", "chassis_serial_number", placed(|info| text_of(&info.chassis_serial))),
            value("Slot Number", "slot_number", placed(|info| info.slot.to_string())),
            value("Tray Index", "tray_index", placed(|info| info.tray.to_string())),
            value("Host ID", "host_id", placed(|info| info.host.to_string())),
            value("Peer Type", "peer_type", placed(peer)),
            value("Module Id", "module_id", part(|info| info.module.to_string())),
            value("GPU Fabric GUID", "gpu_fabric_guid", placed(fabric_guid)),
        ],
    )
}

pub fn inforom(device: &Device) -> Vec<Node> {
    let object = |number: u32| plain(device.text_of("nvmlDeviceGetInforomVersion", number));
    let flush: Answer<(u64, u64)> = device.library.pair("nvmlDeviceGetLastBBXFlushTime", &[device.handle.0 as Number]);
    vec![
        group(
            "Inforom Version",
            "inforom_version",
            vec![
                value("Image Version", "img_version", plain(device.text("nvmlDeviceGetInforomImageVersion"))),
                value("OEM Object", "oem_object", object(0)),
                value("ECC Object", "ecc_object", object(1)),
                value("Power Management Object", "pwr_object", object(2)),
            ],
        ),
        group(
            "Inforom BBX Object Flush",
            "inforom_bbx_flush",
            vec![
                value("Latest Timestamp", "latest_timestamp", plain(flush.map(|(time, _)| crate::clock::date(time)))),
                value(
                    "Latest Duration",
                    "latest_duration",
                    plain(flush.map(|(_, microseconds)| format!("{microseconds} us"))),
                ),
            ],
        ),
    ]
}

pub fn modes(device: &Device) -> Vec<Node> {
    let operation = device.pair("nvmlDeviceGetGpuOperationMode");
    let name = |mode: u32| match mode {
        0 => "All On",
        1 => "Compute",
        2 => "Low Double Precision",
        _ => "Unknown",
    };
    vec![
        group(
            "GPU Operation Mode",
            "gpu_operation_mode",
            vec![
                value("Current", "current_gom", plain(operation.map(|mode| name(mode.0)))),
                value("Pending", "pending_gom", plain(operation.map(|mode| name(mode.1)))),
            ],
        ),
        value("GPU C2C Mode", "c2c_mode", enabled(device.number("nvmlDeviceGetC2cModeInfoV"))),
        group(
            "GPU Virtualization Mode",
            "gpu_virtualization_mode",
            vec![
                value("Virtualization Mode", "virtualization_mode", plain(virtualization(device))),
                value("Host VGPU Mode", "host_vgpu_mode", plain(host_mode(device))),
                value("vGPU Heterogeneous Mode", "vgpu_heterogeneous_mode", plain(heterogeneous(device))),
            ],
        ),
        value("GPU Recovery Action", "gpu_recovery_action", plain(recovery(device))),
        value("GSP Firmware Version", "gsp_firmware_version", plain(gsp_firmware(device))),
        group("IBMNPU", "ibmnpu", vec![value("Relaxed Ordering Mode", "relaxed_ordering_mode", "N/A")]),
    ]
}

pub fn virtualization(device: &Device) -> Answer<&'static str> {
    device.number("nvmlDeviceGetVirtualizationMode").map(|mode| match mode {
        0 => "None",
        1 => "Pass-Through",
        2 => "VGPU",
        3 => "Host VGPU",
        4 => "VSGA",
        _ => "Unknown",
    })
}

fn host_mode(device: &Device) -> Answer<&'static str> {
    device.number("nvmlDeviceGetHostVgpuMode").map(|mode| if mode == 0 { "Non SR-IOV" } else { "SR-IOV" })
}

fn heterogeneous(device: &Device) -> Answer<&'static str> {
    let mode = device.versioned("nvmlDeviceGetVgpuHeterogeneousMode");
    mode.map(|mode| if mode == 0 { "Disabled" } else { "Enabled" })
}

pub fn recovery(device: &Device) -> Answer<&'static str> {
    device.field(field::RECOVERY_ACTION, 0).map(|action| match action {
        0 => "None",
        1 => "Reset",
        2 => "Reboot",
        3 => "Drain P2P",
        4 => "Drain and Reset",
        _ => "Unknown",
    })
}

pub fn gsp_firmware(device: &Device) -> Answer<String> {
    device.text("nvmlDeviceGetGspFirmwareVersion")
}
