//! The log of all that is known about devices (`-q`), as text and as XML (`-x`).

mod bus;
mod identity;
pub mod memory;
mod processes;
pub mod state;

pub use bus::throughput;
pub use identity::{addressing_mode, recovery};
pub use processes::{instance, used_memory};

use crate::clock;
use crate::device::{self, Device};
use crate::library::{Answer, Library};
use crate::views::text::{compute_mode, enabled, missing, plain, unit};
use crate::views::tree::{Node, escaped, group, value};

/// Parts of the log that can be asked for by name (`-d`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Section {
    Memory,
    Utilization,
    Ecc,
    Temperature,
    Power,
    Clock,
    Compute,
    Pids,
    Performance,
    SupportedClocks,
    PageRetirement,
    Accounting,
    EncoderStats,
    SupportedTargetTemperature,
    Voltage,
    FbcStats,
    RowRemapper,
    GspFirmwareVersion,
    PowerSmoothing,
    PowerProfiles,
}

/// In the order in which help lists them.
pub const SECTIONS: [(&str, Section); 20] = [
    ("MEMORY", Section::Memory),
    ("UTILIZATION", Section::Utilization),
    ("ECC", Section::Ecc),
    ("TEMPERATURE", Section::Temperature),
    ("POWER", Section::Power),
    ("CLOCK", Section::Clock),
    ("COMPUTE", Section::Compute),
    ("PIDS", Section::Pids),
    ("PERFORMANCE", Section::Performance),
    ("SUPPORTED_CLOCKS", Section::SupportedClocks),
    ("PAGE_RETIREMENT", Section::PageRetirement),
    ("ACCOUNTING", Section::Accounting),
    ("ENCODER_STATS", Section::EncoderStats),
    ("SUPPORTED_GPU_TARGET_TEMP", Section::SupportedTargetTemperature),
    ("VOLTAGE", Section::Voltage),
    ("FBC_STATS", Section::FbcStats),
    ("ROW_REMAPPER", Section::RowRemapper),
    ("GSP_FIRMWARE_VERSION", Section::GspFirmwareVersion),
    ("POWER_SMOOTHING", Section::PowerSmoothing),
    ("POWER_PROFILES", Section::PowerProfiles),
];

/// All that is known of a device.
fn everything(device: &Device) -> Vec<Node> {
    let mut nodes = identity::product(device);
    nodes.extend(identity::partition(device));
    nodes.extend(accounting(device));
    nodes.push(identity::driver_model());
    nodes.extend(identity::numbers(device));
    nodes.push(identity::platform(device));
    nodes.extend(identity::inforom(device));
    nodes.extend(identity::modes(device));
    nodes.push(bus::bus(device));
    nodes.push(value("Fan Speed", "fan_speed", unit(device.number("nvmlDeviceGetFanSpeed"), "%")));
    nodes.extend(state::performance(device));
    nodes.extend(memory::memory(device));
    nodes.push(compute(device));
    nodes.push(state::utilization(device));
    nodes.extend([state::encoder(device), state::capture(device), memory::encryption(device)]);
    nodes.extend(memory::ecc(device));
    nodes.extend([memory::retired_pages(device), memory::remapped_rows(device)]);
    let mut temperature = state::temperature(device);
    let supported = temperature.pop().map(Node::only_xml);
    nodes.extend(temperature.into_iter().chain(supported));
    nodes.extend(state::power(device));
    nodes.extend(state::clocks(device));
    nodes.push(state::fabric(device));
    nodes.push(state::supported_clocks(device).only_xml());
    nodes.push(processes::processes(device));
    nodes.push(processes::accounted(device).only_xml());
    nodes.push(group("Capabilities", "capabilities", vec![value("EGM", "egm", plain(egm(device)))]));
    nodes
}

fn egm(device: &Device) -> Answer<&'static str> {
    let mask = device.versioned("nvmlDeviceGetCapabilities");
    mask.map(|mask| if mask & 1 == 0 { "disabled" } else { "enabled" })
}

fn accounting(device: &Device) -> Vec<Node> {
    vec![
        value("Accounting Mode", "accounting_mode", enabled(device.number("nvmlDeviceGetAccountingMode"))),
        value(
            "Accounting Mode Buffer Size",
            "accounting_mode_buffer_size",
            plain(device.number("nvmlDeviceGetAccountingBufferSize")),
        ),
    ]
}

fn compute(device: &Device) -> Node {
    value("Compute Mode", "compute_mode", plain(compute_mode(device.number("nvmlDeviceGetComputeMode"))))
}

fn of_section(device: &Device, section: Section) -> Vec<Node> {
    match section {
        Section::Memory => memory::memory(device),
        Section::Utilization => vec![
            state::utilization(device),
            state::samples(device, "GPU Utilization Samples", 1, "%"),
            state::samples(device, "Memory Utilization Samples", 2, "%"),
            state::samples(device, "ENC Utilization Samples", 3, "%"),
            state::samples(device, "DEC Utilization Samples", 4, "%"),
            state::samples(device, "JPG Utilization Samples", 8, "%"),
            state::samples(device, "OFA Utilization Samples", 9, "%"),
        ],
        Section::Ecc => memory::ecc(device),
        Section::Temperature => state::temperature(device).into_iter().take(1).collect(),
        Section::Power => {
            let mut nodes = state::power(device);
            nodes.truncate(1);
            nodes.push(state::samples(device, "Power Samples", 0, "W"));
            nodes.extend(state::power(device).into_iter().skip(1).take(2));
            nodes
        }
        Section::Clock => {
            let mut nodes = state::clocks(device);
            let policy = nodes.pop();
            nodes.push(state::samples(device, "SM Clock Samples", 5, "MHz"));
            nodes.push(state::samples(device, "Memory Clock Samples", 6, "MHz"));
            nodes.extend(policy);
            nodes
        }
        Section::Compute => vec![compute(device)],
        Section::Pids => vec![processes::processes(device)],
        Section::Performance => state::performance(device),
        Section::SupportedClocks => vec![state::supported_clocks(device)],
        Section::PageRetirement => vec![memory::retired_pages(device)],
        Section::Accounting => {
            let mut nodes = accounting(device);
            nodes.push(processes::accounted(device));
            nodes
        }
        Section::EncoderStats => vec![state::encoder(device)],
        Section::SupportedTargetTemperature => state::temperature(device).split_off(1),
        // NVML has no function for it.
        Section::Voltage => Vec::new(),
        Section::FbcStats => vec![state::capture(device)],
        Section::RowRemapper => vec![memory::remapped_rows(device)],
        Section::GspFirmwareVersion => {
            vec![value("GSP Firmware Version", "gsp_firmware_version", plain(identity::gsp_firmware(device)))]
        }
        Section::PowerSmoothing => state::power(device).into_iter().skip(3).take(1).collect(),
        Section::PowerProfiles => state::power(device).into_iter().skip(4).collect(),
    }
}

fn nodes(device: &Device, sections: &[Section]) -> Vec<Node> {
    if sections.is_empty() {
        return everything(device);
    }
    let asked = SECTIONS.iter().filter(|(_, section)| sections.contains(section));
    asked.flat_map(|(_, section)| of_section(device, *section)).collect()
}

/// The log as text. `all`: how many devices there are.
pub fn text(library: &Library, devices: &[Device], all: usize, sections: &[Section]) -> String {
    let mut text = "\n==============NVSMI LOG==============\n\n".to_owned();
    let header = [
        value("Timestamp", "", clock::date(clock::now().0)),
        value("Driver Version", "", plain(device::driver_version(library))),
        value("CUDA Version", "", plain(device::cuda_version(library))),
    ];
    header.iter().for_each(|node| node.write_text(0, &mut text));
    text.push('\n');
    value("Attached GPUs", "", all.to_string()).write_text(0, &mut text);
    for device in devices {
        text.push_str(&format!("GPU {}\n", device.bus_id().unwrap_or_else(missing)));
        nodes(device, sections).iter().for_each(|node| node.write_text(1, &mut text));
        text.push('\n');
    }
    text
}

/// The log as XML.
pub fn xml(library: &Library, devices: &[Device], all: usize, sections: &[Section]) -> String {
    let mut text =
        "<?xml version=\"1.0\" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM \"nvsmi_device_v13.dtd\">\n<nvidia_smi_log>\n"
            .to_owned();
    let header = [
        value("", "timestamp", clock::date(clock::now().0)),
        value("", "driver_version", plain(device::driver_version(library))),
        value("", "cuda_version", plain(device::cuda_version(library))),
        value("", "attached_gpus", all.to_string()),
    ];
    header.iter().for_each(|node| node.write_xml(1, &mut text));
    for device in devices {
        text.push_str(&format!("\t<gpu id=\"{}\">\n", escaped(&device.bus_id().unwrap_or_else(missing))));
        nodes(device, sections).iter().for_each(|node| node.write_xml(2, &mut text));
        text.push_str("\t</gpu>\n\n");
    }
    text.push_str("</nvidia_smi_log>\n");
    text
}
