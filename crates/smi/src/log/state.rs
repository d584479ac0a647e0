//! How a device is: load, clocks, temperatures, power.

use crate::device::{Device, GRAPHICS, MEMORY, SM, VIDEO, field};
use crate::library::{Answer, Code, Number, zeroed};
use crate::types::CaptureStats;
use crate::views::text::{active, enabled, performance_state, plain, unit, watts};
use crate::views::tree::{Node, group, nothing, value};

/// Bits of `nvmlDeviceGetCurrentClocksEventReasons`.
pub mod reason {
    pub const IDLE: u64 = 0x1;
    pub const APPLICATIONS: u64 = 0x2;
    pub const SW_POWER_CAP: u64 = 0x4;
    pub const HW_SLOWDOWN: u64 = 0x8;
    pub const SYNC_BOOST: u64 = 0x10;
    pub const SW_THERMAL: u64 = 0x20;
    pub const HW_THERMAL: u64 = 0x40;
    pub const HW_BRAKE: u64 = 0x80;
    pub const DISPLAY: u64 = 0x100;
}

pub fn reasons(device: &Device) -> Answer<u64> {
    let reasons = device.get("nvmlDeviceGetCurrentClocksEventReasons");
    reasons.or_else(|_| device.get("nvmlDeviceGetCurrentClocksThrottleReasons"))
}

pub fn performance(device: &Device) -> Vec<Node> {
    let mask = reasons(device);
    let has = |bit: u64| active(mask.map(|mask| mask & bit != 0));
    // In nanoseconds.
    let counter = |number: u32| unit(device.field(number, 0).map(|time| time / 1000), "us");
    vec![
        value(
            "Performance State",
            "performance_state",
            plain(device.number("nvmlDeviceGetPerformanceState").map(performance_state)),
        ),
        group(
            "Clocks Event Reasons",
            "clocks_event_reasons",
            vec![
                value("Idle", "clocks_event_reason_gpu_idle", has(reason::IDLE)),
                value(
                    "Applications Clocks Setting",
                    "clocks_event_reason_applications_clocks_setting",
                    has(reason::APPLICATIONS),
                ),
                value("SW Power Cap", "clocks_event_reason_sw_power_cap", has(reason::SW_POWER_CAP)),
                value("HW Slowdown", "clocks_event_reason_hw_slowdown", has(reason::HW_SLOWDOWN)),
                value("    HW Thermal Slowdown", "clocks_event_reason_hw_thermal_slowdown", has(reason::HW_THERMAL)),
                value(
                    "    HW Power Brake Slowdown",
                    "clocks_event_reason_hw_power_brake_slowdown",
                    has(reason::HW_BRAKE),
                ),
                value("Sync Boost", "clocks_event_reason_sync_boost", has(reason::SYNC_BOOST)),
                value("SW Thermal Slowdown", "clocks_event_reason_sw_thermal_slowdown", has(reason::SW_THERMAL)),
                value("Display Clock Setting", "clocks_event_reason_display_clocks_setting", has(reason::DISPLAY)),
            ],
        ),
        group(
            "Clocks Event Reasons Counters",
            "clocks_event_reasons_counters",
            vec![
                value(
                    "SW Power Capping",
                    "clocks_event_reasons_counters_sw_power_cap",
                    counter(field::PERF_POLICY_POWER),
                ),
                value("Sync Boost", "clocks_event_reasons_counters_sync_boost", counter(field::PERF_POLICY_SYNC_BOOST)),
                value(
                    "SW Thermal Slowdown",
                    "clocks_event_reasons_counters_sw_therm_slowdown",
                    counter(field::SW_THERMAL),
                ),
                value(
                    "HW Thermal Slowdown",
                    "clocks_event_reasons_counters_hw_therm_slowdown",
                    counter(field::HW_THERMAL),
                ),
                value("HW Power Braking", "clocks_event_reasons_counters_hw_power_brake", counter(field::HW_BRAKE)),
            ],
        ),
        value("Sparse Operation Mode", "sparse_operation_mode", "N/A"),
    ]
}

pub fn utilization(device: &Device) -> Node {
    let rates = device.utilization();
    let engine = |name: &str| unit(device.pair(name).map(|(percent, _)| percent), "%");
    group(
        "Utilization",
        "utilization",
        vec![
            value("GPU", "gpu_util", unit(rates.map(|rates| rates.gpu), "%")),
            value("Memory", "memory_util", unit(rates.map(|rates| rates.memory), "%")),
            value("Encoder", "encoder_util", engine("nvmlDeviceGetEncoderUtilization")),
            value("Decoder", "decoder_util", engine("nvmlDeviceGetDecoderUtilization")),
            value("JPEG", "jpeg_util", engine("nvmlDeviceGetJpgUtilization")),
            value("OFA", "ofa_util", engine("nvmlDeviceGetOfaUtilization")),
        ],
    )
}

pub fn encoder(device: &Device) -> Node {
    let stats = encoder_stats(device);
    sessions("Encoder Stats", "encoder_stats", stats)
}

/// Sessions, frames per second, latency in microseconds.
pub fn encoder_stats(device: &Device) -> Answer<[u32; 3]> {
    device.library.four("nvmlDeviceGetEncoderStats", &[device.handle.0 as Number]).map(|[a, b, c, _]| [a, b, c])
}

pub fn capture(device: &Device) -> Node {
    let stats: Answer<CaptureStats> = device.get("nvmlDeviceGetFBCStats");
    sessions("FBC Stats", "fbc_stats", stats.map(|stats| [stats.sessions, stats.fps, stats.latency]))
}

fn sessions(label: &'static str, tag: &'static str, stats: Answer<[u32; 3]>) -> Node {
    let part = |index: usize| plain(stats.map(|stats| stats[index]));
    group(
        label,
        tag,
        vec![
            value("Active Sessions", "session_count", part(0)),
            value("Average FPS", "average_fps", part(1)),
            value("Average Latency", "average_latency", part(2)),
        ],
    )
}

pub fn temperature(device: &Device) -> Vec<Node> {
    let degrees = |answer: Answer<i64>| unit(answer, "C");
    let threshold = |kind: u32| device.threshold(kind).map(i64::from);
    let limit = |number: u32| degrees(device.field(number, 0));
    let margin = device.margin();
    let mut members = vec![value("GPU Current Temp", "gpu_temp", degrees(device.temperature().map(i64::from)))];
    members.push(value("GPU T.Limit Temp", "gpu_temp_tlimit", degrees(margin.map(i64::from))));
    // A device has limits either as temperatures or as distances from one.
    if device.field(field::SHUTDOWN_TLIMIT, 0).is_ok() {
        members.extend([
            value("GPU Shutdown T.Limit Temp", "gpu_temp_max_tlimit_threshold", limit(field::SHUTDOWN_TLIMIT)),
            value("GPU Slowdown T.Limit Temp", "gpu_temp_slow_tlimit_threshold", limit(field::SLOWDOWN_TLIMIT)),
            value("GPU Max Operating T.Limit Temp", "gpu_temp_max_gpu_tlimit_threshold", limit(field::GPU_MAX_TLIMIT)),
        ]);
    } else {
        members.extend([
            value("GPU Shutdown Temp", "gpu_temp_max_threshold", degrees(threshold(0))),
            value("GPU Slowdown Temp", "gpu_temp_slow_threshold", degrees(threshold(1))),
            value("GPU Max Operating Temp", "gpu_temp_max_gpu_threshold", degrees(threshold(3))),
        ]);
    }
    members.push(value("GPU Target Temperature", "gpu_target_temperature", degrees(threshold(5))));
    members.push(value("Memory Current Temp", "memory_temp", degrees(memory_temperature(device))));
    members.push(match device.field(field::MEMORY_MAX_TLIMIT, 0) {
        Ok(distance) => {
            value("Memory Max Operating T.Limit Temp", "gpu_temp_max_mem_tlimit_threshold", degrees(Ok(distance)))
        }
        Err(_) => value("Memory Max Operating Temp", "gpu_temp_max_mem_threshold", degrees(threshold(2))),
    });
    vec![
        group("Temperature", "temperature", members),
        group(
            "Supported GPU_TARGET_TEMP",
            "supported_gpu_target_temp",
            vec![
                value("Min", "gpu_target_temp_min", degrees(threshold(4))),
                value("Max", "gpu_target_temp_max", degrees(threshold(6))),
            ],
        ),
    ]
}

/// A sensor that reads nothing is not there.
pub fn memory_temperature(device: &Device) -> Answer<i64> {
    device.field(field::MEMORY_TEMP, 0).and_then(|value| if value == 0 { Err(Code::NOT_SUPPORTED) } else { Ok(value) })
}

/// In milliwatts: the least and the most that can be set.
pub fn power_limits(device: &Device) -> Answer<(i64, i64)> {
    device.pair("nvmlDeviceGetPowerManagementLimitConstraints").map(|(least, most)| (i64::from(least), i64::from(most)))
}

/// Of all processors of a module together.
fn module_power(device: &Device) -> Node {
    let module = |number: u32| watts(device.field(number, field::MODULE));
    group(
        "Module Power Readings",
        "module_power_readings",
        vec![
            value("", "power_state", plain(state_of_module(device))),
            value("Average Power Draw", "average_power_draw", module(field::POWER_AVERAGE)),
            value("Instantaneous Power Draw", "instant_power_draw", module(field::POWER_INSTANT)),
            value("Current Power Limit", "current_power_limit", module(field::POWER_CURRENT_LIMIT)),
            value("Requested Power Limit", "requested_power_limit", module(field::POWER_REQUESTED_LIMIT)),
            value("Default Power Limit", "default_power_limit", module(field::POWER_DEFAULT_LIMIT)),
            value("Min Power Limit", "min_power_limit", module(field::POWER_MIN_LIMIT)),
            value("Max Power Limit", "max_power_limit", module(field::POWER_MAX_LIMIT)),
        ],
    )
}

/// Of the memory alone.
fn memory_power(device: &Device) -> Node {
    group(
        "GPU Memory Power Readings ",
        "gpu_memory_power_readings",
        vec![
            value("Average Power Draw", "average_power_draw", watts(device.field(field::POWER_AVERAGE, field::MEMORY))),
            value(
                "Instantaneous Power Draw",
                "instant_power_draw",
                watts(device.field(field::POWER_INSTANT, field::MEMORY)),
            ),
        ],
    )
}

pub fn power(device: &Device) -> Vec<Node> {
    let number = |name: &str| device.number(name).map(i64::from);
    let limits = power_limits(device);
    let state = device.number("nvmlDeviceGetPowerState").map(performance_state);
    vec![
        group(
            "GPU Power Readings",
            "gpu_power_readings",
            vec![
                value("", "power_state", plain(state)),
                value(
                    "Average Power Draw",
                    "average_power_draw",
                    watts(device.field(field::POWER_AVERAGE, field::GPU)),
                ),
                value(
                    "Instantaneous Power Draw",
                    "instant_power_draw",
                    watts(device.field(field::POWER_INSTANT, field::GPU)),
                ),
                value("Current Power Limit", "current_power_limit", watts(number("nvmlDeviceGetEnforcedPowerLimit"))),
                value(
                    "Requested Power Limit",
                    "requested_power_limit",
                    watts(number("nvmlDeviceGetPowerManagementLimit")),
                ),
                value(
                    "Default Power Limit",
                    "default_power_limit",
                    watts(number("nvmlDeviceGetPowerManagementDefaultLimit")),
                ),
                value("Min Power Limit", "min_power_limit", watts(limits.map(|limits| limits.0))),
                value("Max Power Limit", "max_power_limit", watts(limits.map(|limits| limits.1))),
            ],
        ),
        memory_power(device),
        module_power(device),
        value("Power Smoothing", "power_smoothing", "N/A"),
        group(
            "Workload Power Profiles",
            "power_profiles",
            vec![
                value("Requested Profiles", "power_profile_requested_profiles", "N/A"),
                value("Enforced Profiles", "power_profile_enforced_profiles", "N/A"),
            ],
        ),
    ]
}

fn state_of_module(device: &Device) -> Answer<String> {
    device.number("nvmlDeviceGetPowerState").map(performance_state)
}

pub fn clocks(device: &Device) -> Vec<Node> {
    let mhz = |answer: Answer<u32>| unit(answer, "MHz");
    let set = |name: &str, kind: u32| mhz(device.get_of(name, &[kind as Number]));
    let settings = |name: &'static str| {
        vec![value("Graphics", "graphics_clock", set(name, GRAPHICS)), value("Memory", "mem_clock", set(name, MEMORY))]
    };
    let boost: Answer<(u32, u32)> = device.pair("nvmlDeviceGetAutoBoostedClocksEnabled");
    vec![
        group(
            "Clocks",
            "clocks",
            vec![
                value("Graphics", "graphics_clock", mhz(device.clock(GRAPHICS))),
                value("SM", "sm_clock", mhz(device.clock(SM))),
                value("Memory", "mem_clock", mhz(device.clock(MEMORY))),
                value("Video", "video_clock", mhz(device.clock(VIDEO))),
            ],
        ),
        group("Applications Clocks", "applications_clocks", settings("nvmlDeviceGetApplicationsClock")),
        group(
            "Default Applications Clocks",
            "default_applications_clocks",
            settings("nvmlDeviceGetDefaultApplicationsClock"),
        ),
        group("Deferred Clocks", "deferred_clocks", vec![value("Memory", "mem_clock", "N/A")]),
        group(
            "Max Clocks",
            "max_clocks",
            vec![
                value("Graphics", "graphics_clock", mhz(device.max_clock(GRAPHICS))),
                value("SM", "sm_clock", mhz(device.max_clock(SM))),
                value("Memory", "mem_clock", mhz(device.max_clock(MEMORY))),
                value("Video", "video_clock", mhz(device.max_clock(VIDEO))),
            ],
        ),
        group(
            "Max Customer Boost Clocks",
            "max_customer_boost_clocks",
            vec![value("Graphics", "graphics_clock", set("nvmlDeviceGetMaxCustomerBoostClock", GRAPHICS))],
        ),
        group(
            "Clock Policy",
            "clock_policy",
            vec![
                value("Auto Boost", "auto_boost", enabled(boost.map(|boost| boost.0))),
                value("Auto Boost Default", "auto_boost_default", enabled(boost.map(|boost| boost.1))),
            ],
        ),
    ]
}

/// Memory clocks, and the graphics clocks that each goes with.
pub fn supported_clocks(device: &Device) -> Node {
    let Ok(memory) = device.list::<u32>("nvmlDeviceGetSupportedMemoryClocks", &[]) else {
        return value("Supported Clocks", "supported_clocks", "N/A");
    };
    if memory.is_empty() {
        return nothing("Supported Clocks", "supported_clocks", "");
    }
    let one = |clock: u32| {
        let graphics =
            device.list::<u32>("nvmlDeviceGetSupportedGraphicsClocks", &[clock as Number]).unwrap_or_default();
        let mut lines = vec![value("Memory", "", format!("{clock} MHz"))];
        lines.extend(graphics.iter().map(|mhz| value("    Graphics", "", format!("{mhz} MHz"))));
        let mut members = vec![value("", "value", format!("{clock} MHz"))];
        members.extend(graphics.iter().map(|mhz| value("", "supported_graphics_clock", format!("{mhz} MHz"))));
        lines.push(group("", "supported_mem_clock", members));
        lines
    };
    group("Supported Clocks", "supported_clocks", memory.into_iter().flat_map(one).collect())
}

/// Statistics over the samples that the device kept of a load or clock.
pub fn samples(device: &Device, label: &'static str, kind: u32, unit_name: &'static str) -> Node {
    let samples = device.samples(kind);
    let statistics = samples.and_then(|samples| {
        // Values are 32-bit numbers.
        let values: Vec<u64> = samples.iter().map(|sample| sample.value & 0xffff_ffff).collect();
        let (Some(first), Some(last)) = (samples.first(), samples.last()) else { return Err(Code::NOT_FOUND) };
        Ok(Statistics {
            seconds: last.timestamp_us.saturating_sub(first.timestamp_us) as f64 / 1e6,
            count: values.len(),
            most: values.iter().copied().max().unwrap_or(0),
            least: values.iter().copied().min().unwrap_or(0),
            average: values.iter().sum::<u64>() / values.len().max(1) as u64,
        })
    });
    let shown = |part: fn(&Statistics) -> u64| match &statistics {
        // Of power in milliwatts.
        Ok(found) if kind == 0 => watts(Ok(part(found).cast_signed())),
        Ok(found) => format!("{} {unit_name}", part(found)),
        Err(code) => crate::views::text::missing(*code),
    };
    let duration = statistics.as_ref().map(|found| format!("{:.2} sec", found.seconds)).map_err(|code| *code);
    group(
        label,
        "",
        vec![
            value("Duration", "", plain(duration)),
            value("Number of Samples", "", plain(statistics.as_ref().map(|found| found.count).map_err(|code| *code))),
            value("Max", "", shown(|found| found.most)),
            value("Min", "", shown(|found| found.least)),
            value("Avg", "", shown(|found| found.average)),
        ],
    )
}

/// Statistics over samples.
struct Statistics {
    seconds: f64,
    count: usize,
    most: u64,
    least: u64,
    average: u64,
}

pub fn fabric(device: &Device) -> Node {
    let mut start: crate::types::FabricInfo = zeroed();
    start.version = crate::types::version::<crate::types::FabricInfo>(3);
    let info = device.fill("nvmlDeviceGetGpuFabricInfoV", start).ok().filter(|info| info.state != 0);
    let part = |text: fn(&crate::types::FabricInfo) -> String| info.as_ref().map_or_else(|| "N/A".to_owned(), text);
    let state = |info: &crate::types::FabricInfo| match info.state {
        1 => "Not Started".to_owned(),
        2 => "In Progress".to_owned(),
        _ => "Completed".to_owned(),
    };
    let status = |info: &crate::types::FabricInfo| match info.status {
        0 => "Success".to_owned(),
        code => Code(code).to_string(),
    };
    let named = |shift: u32, names: &[&str]| {
        let bits = info.as_ref().map(|info| info.health_mask >> shift & 0xf);
        let width = if names.len() > 2 { 0xf } else { 3 };
        let name = bits.and_then(|bits| names.get(((bits & width) as usize).checked_sub(1)?));
        (*name.unwrap_or(&"N/A")).to_owned()
    };
    let summary = info.as_ref().and_then(|info| {
        ["Healthy", "Unhealthy", "Limited Capacity"].get(usize::from(info.health_summary).checked_sub(1)?)
    });
    group(
        "Fabric",
        "fabric",
        vec![
            value("State", "state", part(state)),
            value("Status", "status", part(status)),
            value("CliqueId", "cliqueId", part(|info| info.clique.to_string())),
            value("ClusterUUID", "clusterUuid", part(|info| uuid(&info.cluster))),
            group(
                "Health",
                "health",
                vec![
                    value("Summary", "summary", *summary.unwrap_or(&"N/A")),
                    value("Bandwidth", "bandwidth", named(0, &["Degraded", "Full"])),
                    value("Route Recovery in progress", "route_recovery_in_progress", named(2, &["True", "False"])),
                    value("Route Unhealthy", "route_unhealthy", named(4, &["True", "False"])),
                    value("Access Timeout Recovery", "access_timeout_recovery", named(6, &["True", "False"])),
                    value("Incorrect Configuration", "incorrect_configuration", named(8, &MISTAKES)),
                    value("Partition Assigned", "partition_assigned", named(12, &["True", "False"])),
                ],
            ),
        ],
    )
}

/// Mistakes of set-up that a fabric reports.
const MISTAKES: [&str; 7] = [
    "None",
    "Incorrect SysGuid",
    "Incorrect Chassis Serial Number",
    "No Partition",
    "Insufficient Nvlinks",
    "Incompatible GPU Firmware",
    "Invalid Location",
];

fn uuid(bytes: &[u8; 16]) -> String {
    let digits =
        |range: std::ops::Range<usize>| bytes[range].iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    [0..4, 4..6, 6..8, 8..10, 10..16].map(digits).join("-")
}
