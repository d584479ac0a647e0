//! Identity of a device, and how it is connected.

use super::{Field, field, first, hex, number, on, second, untold, yes};
use crate::device::{self, Device};
use crate::library::{Answer, Code, Number, text_of, zeroed};
use crate::log::{self, state};
use crate::types::{PlatformInfo, version};
use crate::views::text::{compute_mode, fabric_guid, peer};

pub const IDENTITY: &[Field] = &[
    field("timestamp", "", "", |_| Ok(crate::clock::timestamp()), "Time of the query."),
    field("driver_version", "", "", |d| device::driver_version(d.library), "Version of the driver."),
    field(
        "vgpu_driver_capability.heterogenous_multivGPU",
        "",
        "",
        untold,
        "Whether the driver supports several types of vGPU at a time.",
    ),
    field("count", "", "", |d| number(d.library.get::<u32>("nvmlDeviceGetCount_v2", &[])), "Number of devices."),
    field("name", "gpu_name", "", |d| d.text("nvmlDeviceGetName"), "Name of the product."),
    field("serial", "gpu_serial", "", |d| d.text("nvmlDeviceGetSerial"), "Serial number of the board."),
    field("uuid", "gpu_uuid", "", |d| d.text("nvmlDeviceGetUUID"), "Unique identifier of the device."),
    field("pci.bus_id", "gpu_bus_id", "", |d| d.bus_id(), "PCI address: domain:bus:device.function."),
    field("pci.domain", "", "", |d| hex(d.pci().map(|pci| pci.domain), 4), "PCI domain."),
    field("pci.bus", "", "", |d| hex(d.pci().map(|pci| pci.bus), 2), "PCI bus number."),
    field("pci.device", "", "", |d| hex(d.pci().map(|pci| pci.device), 2), "PCI device number."),
    field("pci.baseClass", "", "", |d| hex(d.pci_ext().map(|pci| pci.base_class), 1), "PCI base class code."),
    field("pci.subClass", "", "", |d| hex(d.pci_ext().map(|pci| pci.sub_class), 1), "PCI subclass code."),
    field("pci.device_id", "", "", |d| hex(d.pci().map(|pci| pci.device_id), 8), "PCI device and vendor id."),
    field("pci.sub_device_id", "", "", |d| hex(d.pci().map(|pci| pci.subsystem_id), 8), "PCI subsystem id."),
    field(
        "vgpu_device_capability.fractional_multiVgpu",
        "",
        "",
        untold,
        "Whether several fractional vGPUs are supported.",
    ),
    field(
        "vgpu_device_capability.heterogeneous_timeSlice_profile",
        "",
        "",
        untold,
        "Whether time-sliced vGPUs of several types are supported.",
    ),
    field(
        "vgpu_device_capability.heterogeneous_timeSlice_sizes",
        "",
        "",
        untold,
        "Whether time-sliced vGPUs of several sizes are supported.",
    ),
    field(
        "vgpu_device_capability.homogeneous_placements",
        "",
        "",
        untold,
        "Whether placements of equal vGPUs are supported.",
    ),
    field(
        "vgpu_device_capability.mig_timeSlicing",
        "",
        "",
        untold,
        "Whether time-sliced vGPUs on MIG instances are supported.",
    ),
    field(
        "vgpu_device_capability.mig_timeSlicing_mode",
        "",
        "",
        untold,
        "Whether time-sliced vGPUs on MIG instances are turned on.",
    ),
    field("display_mode", "", "", |_| Ok("[Requested functionality has been deprecated]".into()), "Deprecated."),
    field("display_attached", "", "", |d| yes(d.number("nvmlDeviceGetDisplayMode")), "Whether a display is connected."),
    field(
        "display_active",
        "",
        "",
        |d| on(d.number("nvmlDeviceGetDisplayActive")),
        "Whether a display is initialized.",
    ),
    field(
        "persistence_mode",
        "",
        "",
        |d| on(d.number("nvmlDeviceGetPersistenceMode")),
        "Whether the driver stays loaded without users.",
    ),
    field(
        "addressing_mode",
        "",
        "",
        |d| log::addressing_mode(d).map(str::to_owned),
        "How the device addresses system memory.",
    ),
    field(
        "accounting.mode",
        "",
        "",
        |d| on(d.number("nvmlDeviceGetAccountingMode")),
        "Whether accounts of processes are kept.",
    ),
    field(
        "accounting.buffer_size",
        "",
        "",
        |d| number(d.number("nvmlDeviceGetAccountingBufferSize")),
        "Largest number of process accounts that are kept.",
    ),
    field("driver_model.current", "", "", untold, "Present driver model (Windows only)."),
    field("driver_model.pending", "", "", untold, "Driver model after the next restart (Windows only)."),
    field("vbios_version", "", "", |d| d.text("nvmlDeviceGetVbiosVersion"), "Version of the BIOS."),
    field(
        "inforom.img",
        "inforom.image",
        "",
        |d| d.text("nvmlDeviceGetInforomImageVersion"),
        "Version of the infoROM.",
    ),
    field(
        "inforom.oem",
        "",
        "",
        |d| d.text_of("nvmlDeviceGetInforomVersion", 0),
        "Version of the infoROM's OEM object.",
    ),
    field(
        "inforom.ecc",
        "",
        "",
        |d| d.text_of("nvmlDeviceGetInforomVersion", 1),
        "Version of the infoROM's ECC object.",
    ),
    field(
        "inforom.pwr",
        "inforom.power",
        "",
        |d| d.text_of("nvmlDeviceGetInforomVersion", 2),
        "Version of the infoROM's power object.",
    ),
    field("inforom.checksum_validation", "", "", checksum, "Whether the infoROM's checksum is valid."),
    field("gom.current", "gpu_operation_mode.current", "", |d| operation(first(d, GOM)), "Present GPU operation mode."),
    field(
        "gom.pending",
        "gpu_operation_mode.pending",
        "",
        |d| operation(second(d, GOM)),
        "GPU operation mode after the next restart.",
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
    field("mig.mode.current", "", "", |d| on(first(d, MIG)), "Present MIG mode."),
    field("mig.mode.pending", "", "", |d| on(second(d, MIG)), "MIG mode after the next reset."),
    field("gsp.mode.current", "", "", |d| on(first(d, GSP)), "Whether GSP firmware is used."),
    field("gsp.mode.default", "", "", |d| on(second(d, GSP)), "Whether GSP firmware is used by default."),
    field(
        "gpu_recovery_action",
        "",
        "",
        |d| log::recovery(d).map(str::to_owned),
        "Action that would make the device usable again.",
    ),
    field(
        "platform.chassis_serial_number",
        "",
        "",
        |d| platform(d, |info| text_of(&info.chassis_serial)),
        "Serial number of the chassis.",
    ),
    field("platform.slot_number", "", "", |d| platform(d, |info| info.slot.to_string()), "Slot in the chassis."),
    field("platform.tray_index", "", "", |d| platform(d, |info| info.tray.to_string()), "Tray in the chassis."),
    field("platform.host_id", "", "", |d| platform(d, |info| info.host.to_string()), "Node in the slot."),
    field(
        "platform.peer_type",
        "",
        "",
        |d| platform(d, peer),
        "How the device's links are connected: directly or by a switch.",
    ),
    field(
        "platform.module_id",
        "",
        "",
        |d| platform(d, |info| info.module.to_string()),
        "Number of the module in the node.",
    ),
    field(
        "platform.gpu_fabric_guid",
        "",
        "",
        |d| platform(d, fabric_guid),
        "Identifier of the device in the NVLink fabric.",
    ),
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

pub const BUS: &[Field] = &[
    field(
        "pcie.link.gen.current",
        "",
        "",
        |d| number(d.number("nvmlDeviceGetCurrPcieLinkGeneration")),
        "Present PCIe generation of the link.",
    ),
    field(
        "pcie.link.gen.gpucurrent",
        "",
        "",
        |d| number(d.number("nvmlDeviceGetCurrPcieLinkGeneration")),
        "Present PCIe generation of the device.",
    ),
    field(
        "pcie.link.gen.max",
        "",
        "",
        |d| number(d.number("nvmlDeviceGetMaxPcieLinkGeneration")),
        "Highest PCIe generation of device and host together.",
    ),
    field(
        "pcie.link.gen.gpumax",
        "",
        "",
        |d| number(d.number("nvmlDeviceGetGpuMaxPcieLinkGeneration")),
        "Highest PCIe generation of the device.",
    ),
    field("pcie.link.gen.hostmax", "", "", untold, "Highest PCIe generation of the host."),
    field(
        "pcie.link.width.current",
        "",
        "",
        |d| number(d.number("nvmlDeviceGetCurrPcieLinkWidth")),
        "Present number of PCIe lanes.",
    ),
    field(
        "pcie.link.width.max",
        "",
        "",
        |d| number(d.number("nvmlDeviceGetMaxPcieLinkWidth")),
        "Largest number of PCIe lanes of device and host together.",
    ),
    field("fabric.state", "", "", |d| fabric(d, "state"), "State of the device's registration in the NVLink fabric."),
    field("fabric.status", "", "", |d| fabric(d, "status"), "Result of the registration."),
    field("fabric.cliqueId", "", "", |d| fabric(d, "cliqueId"), "Clique in the fabric."),
    field("fabric.clusterUuid", "", "", |d| fabric(d, "clusterUuid"), "Cluster in the fabric."),
    field("fabric.health.summary", "", "", |d| fabric(d, "summary"), "Summary of the fabric's health."),
    field("fabric.health.bandwidth", "", "", |d| fabric(d, "bandwidth"), "Bandwidth of the fabric."),
    field(
        "fabric.health.route_recovery_in_progress",
        "",
        "",
        |d| fabric(d, "route_recovery_in_progress"),
        "Whether routes are being recovered.",
    ),
    field("fabric.health.route_unhealthy", "", "", |d| fabric(d, "route_unhealthy"), "Whether routes are unhealthy."),
    field(
        "fabric.health.access_timeout_recovery",
        "",
        "",
        |d| fabric(d, "access_timeout_recovery"),
        "Whether a recovery after an access timeout is in progress.",
    ),
    field(
        "fabric.health.incorrect_configuration",
        "",
        "",
        |d| fabric(d, "incorrect_configuration"),
        "Configuration errors of the fabric.",
    ),
    field(
        "fabric.health.partition_assigned",
        "",
        "",
        |d| fabric(d, "partition_assigned"),
        "Whether the device is assigned to a partition.",
    ),
];

fn fabric(device: &Device, tag: &str) -> Answer<String> {
    state::fabric(device).find(tag).map(str::to_owned).ok_or(Code::NOT_FOUND)
}
