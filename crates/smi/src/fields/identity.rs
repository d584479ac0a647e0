//! Identity of a device, and how it is connected.

use super::{Field, field, first, hex, number, on, second, untold, yes};
use crate::{
    device::{self, Device},
    library::{Answer, Code, Number, text_of, zeroed},
    log::{self, state},
    text::compute_mode,
    types::{PlatformInfo, version},
};

pub const IDENTITY: &[Field] = &[
    field("timestamp", "", "", |_| Ok(crate::csv::timestamp()), "Time of the query."),
    field("driver_version", "", "", |d| device::driver_version(d.library), "Version of the driver."),
    field(
        "vgpu_driver_capability.heterogenous_multivGPU",
        "",
        "",
        untold,
        "Several kinds of vGPU at a time, by the driver.",
    ),
    field("count", "", "", |d| number(d.library.get::<u32>("nvmlDeviceGetCount_v2", &[])), "Number of devices."),
    field("name", "gpu_name", "", |d| d.text("nvmlDeviceGetName"), "Name of the product."),
    field("serial", "gpu_serial", "", |d| d.text("nvmlDeviceGetSerial"), "Serial number of the board."),
    field("uuid", "gpu_uuid", "", |d| d.text("nvmlDeviceGetUUID"), "Identifier that no other device has."),
    field("pci.bus_id", "gpu_bus_id", "", |d| d.bus_id(), "Place on the bus: domain:bus:device.function."),
    field("pci.domain", "", "", |d| hex(d.pci().map(|pci| pci.domain), 4), "Domain of the bus."),
    field("pci.bus", "", "", |d| hex(d.pci().map(|pci| pci.bus), 2), "Number of the bus."),
    field("pci.device", "", "", |d| hex(d.pci().map(|pci| pci.device), 2), "Number on the bus."),
    field("pci.baseClass", "", "", |d| hex(d.pci_ext().map(|pci| pci.base_class), 1), "Base class code."),
    field("pci.subClass", "", "", |d| hex(d.pci_ext().map(|pci| pci.sub_class), 1), "Sub class code."),
    field("pci.device_id", "", "", |d| hex(d.pci().map(|pci| pci.device_id), 8), "Device and vendor id."),
    field("pci.sub_device_id", "", "", |d| hex(d.pci().map(|pci| pci.subsystem_id), 8), "Subsystem id."),
    field("vgpu_device_capability.fractional_multiVgpu", "", "", untold, "vGPUs of a part each."),
    field(
        "vgpu_device_capability.heterogeneous_timeSlice_profile",
        "",
        "",
        untold,
        "Several kinds of time-sliced vGPUs.",
    ),
    field(
        "vgpu_device_capability.heterogeneous_timeSlice_sizes",
        "",
        "",
        untold,
        "Several sizes of time-sliced vGPUs.",
    ),
    field("vgpu_device_capability.homogeneous_placements", "", "", untold, "Placements of equal vGPUs."),
    field("vgpu_device_capability.mig_timeSlicing", "", "", untold, "Time-sliced vGPUs on MIG instances."),
    field("vgpu_device_capability.mig_timeSlicing_mode", "", "", untold, "Whether those are turned on."),
    field("display_mode", "", "", |_| Ok("[Requested functionality has been deprecated]".into()), "Deprecated."),
    field("display_attached", "", "", |d| yes(d.number("nvmlDeviceGetDisplayMode")), "A display is connected."),
    field("display_active", "", "", |d| on(d.number("nvmlDeviceGetDisplayActive")), "A display is initialized."),
    field("persistence_mode", "", "", |d| on(d.number("nvmlDeviceGetPersistenceMode")), "The driver stays loaded."),
    field("addressing_mode", "", "", |d| log::addressing_mode(d).map(str::to_owned), "Addressing of system memory."),
    field(
        "accounting.mode",
        "",
        "",
        |d| on(d.number("nvmlDeviceGetAccountingMode")),
        "Accounts of processes are kept.",
    ),
    field(
        "accounting.buffer_size",
        "",
        "",
        |d| number(d.number("nvmlDeviceGetAccountingBufferSize")),
        "Most accounts kept.",
    ),
    field("driver_model.current", "", "", untold, "Driver model of Windows, now."),
    field("driver_model.pending", "", "", untold, "Driver model of Windows, after the next start."),
    field("vbios_version", "", "", |d| d.text("nvmlDeviceGetVbiosVersion"), "Version of the BIOS."),
    field(
        "inforom.img",
        "inforom.image",
        "",
        |d| d.text("nvmlDeviceGetInforomImageVersion"),
        "Version of the infoROM.",
    ),
    field("inforom.oem", "", "", |d| d.text_of("nvmlDeviceGetInforomVersion", 0), "Version of its OEM object."),
    field("inforom.ecc", "", "", |d| d.text_of("nvmlDeviceGetInforomVersion", 1), "Version of its ECC object."),
    field(
        "inforom.pwr",
        "inforom.power",
        "",
        |d| d.text_of("nvmlDeviceGetInforomVersion", 2),
        "Version of its power object.",
    ),
    field("inforom.checksum_validation", "", "", checksum, "Checksum of the infoROM."),
    field("gom.current", "gpu_operation_mode.current", "", |d| operation(first(d, GOM)), "Operation mode now."),
    field(
        "gom.pending",
        "gpu_operation_mode.pending",
        "",
        |d| operation(second(d, GOM)),
        "Operation mode after a restart.",
    ),
    field("hostname", "", "", untold, "Host name that is associated with the device."),
    field(
        "compute_mode",
        "",
        "",
        |d| compute_mode(d.number("nvmlDeviceGetComputeMode")).map(str::to_owned),
        "Compute mode.",
    ),
    field("compute_cap", "", "", capability, "Compute capability: major.minor."),
    field("index", "", "", |d| Ok(d.index.to_string()), "Number of the device, from 0."),
    field("c2c.mode", "", "", |d| on(d.number("nvmlDeviceGetC2cModeInfoV")), "Chip-to-chip mode."),
    field("mig.mode.current", "", "", |d| on(first(d, MIG)), "MIG mode now."),
    field("mig.mode.pending", "", "", |d| on(second(d, MIG)), "MIG mode after a reset."),
    field("gsp.mode.current", "", "", |d| on(first(d, GSP)), "GSP firmware is used."),
    field("gsp.mode.default", "", "", |d| on(second(d, GSP)), "GSP firmware is used by default."),
    field("gpu_recovery_action", "", "", |d| log::recovery(d).map(str::to_owned), "What would bring the device back."),
    field("platform.chassis_serial_number", "", "", |d| platform(d, |info| text_of(&info.chassis_serial)), "Chassis."),
    field("platform.slot_number", "", "", |d| platform(d, |info| info.slot.to_string()), "Slot in the chassis."),
    field("platform.tray_index", "", "", |d| platform(d, |info| info.tray.to_string()), "Tray in the chassis."),
    field("platform.host_id", "", "", |d| platform(d, |info| info.host.to_string()), "Node in the slot."),
    field("platform.peer_type", "", "", |d| platform(d, peer), "Connection of the links."),
    field(
        "platform.module_id",
        "",
        "",
        |d| platform(d, |info| info.module.to_string()),
        "Number of the module in the node.",
    ),
    field("platform.gpu_fabric_guid", "", "", |d| platform(d, guid), "Identifier in the fabric."),
];

const GOM: &str = "nvmlDeviceGetGpuOperationMode";
const MIG: &str = "nvmlDeviceGetMigMode";
const GSP: &str = "nvmlDeviceGetGspFirmwareMode";

fn operation(mode: Answer<u32>) -> Answer<String> {
    mode.map(|mode| {
        ["All On", "Compute", "Low Double Precision"].get(mode as usize).copied().unwrap_or("Unknown").to_owned()
    })
}

fn checksum(device: &Device) -> Answer<String> {
    const CORRUPTED: Code = Code(14);
    match device.library.run("nvmlDeviceValidateInforom", &[device.handle.0 as Number]) {
        Ok(()) => Ok("valid".to_owned()),
        Err(CORRUPTED) => Ok("invalid".to_owned()),
        Err(code) => Err(code),
    }
}

fn capability(device: &Device) -> Answer<String> {
    device.pair("nvmlDeviceGetCudaComputeCapability").map(|(major, minor)| format!("{major}.{minor}"))
}

fn platform(device: &Device, part: fn(&PlatformInfo) -> String) -> Answer<String> {
    let mut start: PlatformInfo = zeroed();
    start.version = version::<PlatformInfo>(2);
    device.fill("nvmlDeviceGetPlatformInfo", start).map(|info| part(&info))
}

pub fn peer(info: &PlatformInfo) -> String {
    if info.peer == 0 { "Direct Connected" } else { "Switch Connected" }.to_owned()
}

pub fn guid(info: &PlatformInfo) -> String {
    let digits: Vec<String> = info.guid[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("0x{}", digits.concat())
}

pub const BUS: &[Field] = &[
    field(
        "pcie.link.gen.current",
        "",
        "",
        |d| number(d.number("nvmlDeviceGetCurrPcieLinkGeneration")),
        "Generation now.",
    ),
    field(
        "pcie.link.gen.gpucurrent",
        "",
        "",
        |d| number(d.number("nvmlDeviceGetCurrPcieLinkGeneration")),
        "The device's now.",
    ),
    field(
        "pcie.link.gen.max",
        "",
        "",
        |d| number(d.number("nvmlDeviceGetMaxPcieLinkGeneration")),
        "Most of this pair.",
    ),
    field(
        "pcie.link.gen.gpumax",
        "",
        "",
        |d| number(d.number("nvmlDeviceGetGpuMaxPcieLinkGeneration")),
        "Most of the device.",
    ),
    field("pcie.link.gen.hostmax", "", "", untold, "Most of the host."),
    field("pcie.link.width.current", "", "", |d| number(d.number("nvmlDeviceGetCurrPcieLinkWidth")), "Lanes now."),
    field(
        "pcie.link.width.max",
        "",
        "",
        |d| number(d.number("nvmlDeviceGetMaxPcieLinkWidth")),
        "Most lanes of this pair.",
    ),
    field("fabric.state", "", "", |d| fabric(d, "state"), "Registration in the fabric."),
    field("fabric.status", "", "", |d| fabric(d, "status"), "Its result."),
    field("fabric.cliqueId", "", "", |d| fabric(d, "cliqueId"), "Clique in the fabric."),
    field("fabric.clusterUuid", "", "", |d| fabric(d, "clusterUuid"), "Cluster in the fabric."),
    field("fabric.health.summary", "", "", |d| fabric(d, "summary"), "Health of the fabric."),
    field("fabric.health.bandwidth", "", "", |d| fabric(d, "bandwidth"), "Bandwidth of the fabric."),
    field(
        "fabric.health.route_recovery_in_progress",
        "",
        "",
        |d| fabric(d, "route_recovery_in_progress"),
        "Routes recover.",
    ),
    field("fabric.health.route_unhealthy", "", "", |d| fabric(d, "route_unhealthy"), "Routes fail."),
    field(
        "fabric.health.access_timeout_recovery",
        "",
        "",
        |d| fabric(d, "access_timeout_recovery"),
        "Accesses recover.",
    ),
    field(
        "fabric.health.incorrect_configuration",
        "",
        "",
        |d| fabric(d, "incorrect_configuration"),
        "Mistakes of set-up.",
    ),
    field(
        "fabric.health.partition_assigned",
        "",
        "",
        |d| fabric(d, "partition_assigned"),
        "The device has a partition.",
    ),
];

fn fabric(device: &Device, tag: &str) -> Answer<String> {
    state::fabric(device).find(tag).map(str::to_owned).ok_or(Code::NOT_FOUND)
}
