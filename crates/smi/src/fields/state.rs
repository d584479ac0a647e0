//! Load, temperatures, and what holds clocks back.

use super::{Field, active, field, first, microseconds, number as shown};
use crate::device::{Device, field as number};
use crate::library::Answer;
use crate::log::state;
use crate::log::state::reason;
use crate::views::text;

pub const STATE: &[Field] = &[
    field("fan.speed", "", "%", |d| shown(d.number("nvmlDeviceGetFanSpeed")), "Intended speed of the fan."),
    field(
        "pstate",
        "",
        "",
        |d| d.number("nvmlDeviceGetPerformanceState").map(text::performance_state),
        "Performance state.",
    ),
    field(
        "clocks_event_reasons.supported",
        "clocks_throttle_reasons.supported",
        "",
        supported,
        "Bit mask of the reasons that this device can report.",
    ),
    field(
        "clocks_event_reasons.active",
        "clocks_throttle_reasons.active",
        "",
        |d| mask(state::reasons(d)),
        "Bit mask of the reasons that limit clocks now.",
    ),
    field(
        "clocks_event_reasons.gpu_idle",
        "clocks_throttle_reasons.gpu_idle",
        "",
        |d| active(d, reason::IDLE),
        "Clocks are low because nothing runs.",
    ),
    field(
        "clocks_event_reasons.applications_clocks_setting",
        "clocks_throttle_reasons.applications_clocks_setting",
        "",
        |d| active(d, reason::APPLICATIONS),
        "Clocks are limited by the applications clocks setting.",
    ),
    field(
        "clocks_event_reasons.sw_power_cap",
        "clocks_throttle_reasons.sw_power_cap",
        "",
        |d| active(d, reason::SW_POWER_CAP),
        "Clocks are limited by the power limit.",
    ),
    field(
        "clocks_event_reasons.hw_slowdown",
        "clocks_throttle_reasons.hw_slowdown",
        "",
        |d| active(d, reason::HW_SLOWDOWN),
        "Clocks are limited by the hardware.",
    ),
    field(
        "clocks_event_reasons.hw_thermal_slowdown",
        "clocks_throttle_reasons.hw_thermal_slowdown",
        "",
        |d| active(d, reason::HW_THERMAL),
        "Clocks are limited because the hardware is too hot.",
    ),
    field(
        "clocks_event_reasons.hw_power_brake_slowdown",
        "clocks_throttle_reasons.hw_power_brake_slowdown",
        "",
        |d| active(d, reason::HW_BRAKE),
        "Clocks are limited by the power supply's brake signal.",
    ),
    field(
        "clocks_event_reasons.sw_thermal_slowdown",
        "clocks_throttle_reasons.sw_thermal_slowdown",
        "",
        |d| active(d, reason::SW_THERMAL),
        "Clocks are limited by the driver to cool the device.",
    ),
    field(
        "clocks_event_reasons.sync_boost",
        "clocks_throttle_reasons.sync_boost",
        "",
        |d| active(d, reason::SYNC_BOOST),
        "Clocks are limited to those of another device (sync boost).",
    ),
    field(
        "clocks_event_reasons_counters.sw_power_cap",
        "",
        "us",
        |d| microseconds(d, number::PERF_POLICY_POWER),
        "Time in which the power limit limited clocks.",
    ),
    field(
        "clocks_event_reasons_counters.sync_boost",
        "",
        "us",
        |d| microseconds(d, number::PERF_POLICY_SYNC_BOOST),
        "Time in which sync boost limited clocks.",
    ),
    field(
        "clocks_event_reasons_counters.sw_thermal_slowdown",
        "",
        "us",
        |d| microseconds(d, number::SW_THERMAL),
        "Time in which the driver limited clocks to cool the device.",
    ),
    field(
        "clocks_event_reasons_counters.hw_thermal_slowdown",
        "",
        "us",
        |d| microseconds(d, number::HW_THERMAL),
        "Time in which the hardware limited clocks because it was too hot.",
    ),
    field(
        "clocks_event_reasons_counters.hw_power_brake_slowdown",
        "",
        "us",
        |d| microseconds(d, number::HW_BRAKE),
        "Time in which the power supply's brake signal limited clocks.",
    ),
    field(
        "utilization.gpu",
        "",
        "%",
        |d| shown(d.utilization().map(|rates| rates.gpu)),
        "Share of time in which kernels ran.",
    ),
    field(
        "utilization.memory",
        "",
        "%",
        |d| shown(d.utilization().map(|rates| rates.memory)),
        "Share of time in which device memory was read or written.",
    ),
    field(
        "utilization.encoder",
        "",
        "%",
        |d| shown(first(d, "nvmlDeviceGetEncoderUtilization")),
        "Share of time in which the video encoder was busy.",
    ),
    field(
        "utilization.decoder",
        "",
        "%",
        |d| shown(first(d, "nvmlDeviceGetDecoderUtilization")),
        "Share of time in which the video decoder was busy.",
    ),
    field(
        "utilization.jpeg",
        "",
        "%",
        |d| shown(first(d, "nvmlDeviceGetJpgUtilization")),
        "Share of time in which the JPEG decoder was busy.",
    ),
    field(
        "utilization.ofa",
        "",
        "%",
        |d| shown(first(d, "nvmlDeviceGetOfaUtilization")),
        "Share of time in which the optical flow accelerator was busy.",
    ),
    field(
        "encoder.stats.sessionCount",
        "",
        "",
        |d| shown(state::encoder_stats(d).map(|stats| stats[0])),
        "Number of encoder sessions.",
    ),
    field(
        "encoder.stats.averageFps",
        "",
        "",
        |d| shown(state::encoder_stats(d).map(|stats| stats[1])),
        "Average frames per second of encoder sessions.",
    ),
    field(
        "encoder.stats.averageLatency",
        "",
        "",
        |d| shown(state::encoder_stats(d).map(|stats| stats[2])),
        "Average latency of encoder sessions.",
    ),
    field("temperature.gpu", "", "", |d| shown(d.temperature()), "Core temperature in degrees C."),
    field(
        "temperature.gpu.tlimit",
        "",
        "",
        |d| shown(d.margin()),
        "Degrees C between the core temperature and its limit.",
    ),
    field("temperature.memory", "", "", |d| shown(state::memory_temperature(d)), "Memory temperature in degrees C."),
];

fn mask(answer: Answer<u64>) -> Answer<String> {
    answer.map(|mask| format!("0x{mask:016X}"))
}

fn supported(device: &Device) -> Answer<String> {
    mask(device.get("nvmlDeviceGetSupportedClocksEventReasons"))
}
