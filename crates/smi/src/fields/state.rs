//! Load, temperatures, and what holds clocks back.

use super::{Field, active, field, first, microseconds, number as shown};
use crate::{
    device::{Device, field as number},
    library::Answer,
    log::{state, state::reason},
    text,
};

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
        "Mask of known reasons.",
    ),
    field(
        "clocks_event_reasons.active",
        "clocks_throttle_reasons.active",
        "",
        |d| mask(state::reasons(d)),
        "Mask of reasons.",
    ),
    field(
        "clocks_event_reasons.gpu_idle",
        "clocks_throttle_reasons.gpu_idle",
        "",
        |d| active(d, reason::IDLE),
        "Nothing runs.",
    ),
    field(
        "clocks_event_reasons.applications_clocks_setting",
        "clocks_throttle_reasons.applications_clocks_setting",
        "",
        |d| active(d, reason::APPLICATIONS),
        "Clocks are set by a user.",
    ),
    field(
        "clocks_event_reasons.sw_power_cap",
        "clocks_throttle_reasons.sw_power_cap",
        "",
        |d| active(d, reason::SW_POWER_CAP),
        "The power limit holds clocks back.",
    ),
    field(
        "clocks_event_reasons.hw_slowdown",
        "clocks_throttle_reasons.hw_slowdown",
        "",
        |d| active(d, reason::HW_SLOWDOWN),
        "The hardware holds clocks back.",
    ),
    field(
        "clocks_event_reasons.hw_thermal_slowdown",
        "clocks_throttle_reasons.hw_thermal_slowdown",
        "",
        |d| active(d, reason::HW_THERMAL),
        "The hardware is too warm.",
    ),
    field(
        "clocks_event_reasons.hw_power_brake_slowdown",
        "clocks_throttle_reasons.hw_power_brake_slowdown",
        "",
        |d| active(d, reason::HW_BRAKE),
        "The power supply asks for less.",
    ),
    field(
        "clocks_event_reasons.sw_thermal_slowdown",
        "clocks_throttle_reasons.sw_thermal_slowdown",
        "",
        |d| active(d, reason::SW_THERMAL),
        "The driver keeps the device cool.",
    ),
    field(
        "clocks_event_reasons.sync_boost",
        "clocks_throttle_reasons.sync_boost",
        "",
        |d| active(d, reason::SYNC_BOOST),
        "Clocks follow another device's.",
    ),
    field(
        "clocks_event_reasons_counters.sw_power_cap",
        "",
        "us",
        |d| microseconds(d, number::PERF_POLICY_POWER),
        "Time under the power limit.",
    ),
    field(
        "clocks_event_reasons_counters.sync_boost",
        "",
        "us",
        |d| microseconds(d, number::PERF_POLICY_SYNC_BOOST),
        "Time behind another device's clocks.",
    ),
    field(
        "clocks_event_reasons_counters.sw_thermal_slowdown",
        "",
        "us",
        |d| microseconds(d, number::SW_THERMAL),
        "Time in which the driver cooled.",
    ),
    field(
        "clocks_event_reasons_counters.hw_thermal_slowdown",
        "",
        "us",
        |d| microseconds(d, number::HW_THERMAL),
        "Time in which the hardware was too warm.",
    ),
    field(
        "clocks_event_reasons_counters.hw_power_brake_slowdown",
        "",
        "us",
        |d| microseconds(d, number::HW_BRAKE),
        "Time in which the power supply asked for less.",
    ),
    field("utilization.gpu", "", "%", |d| shown(d.utilization().map(|rates| rates.gpu)), "Time in which kernels ran."),
    field(
        "utilization.memory",
        "",
        "%",
        |d| shown(d.utilization().map(|rates| rates.memory)),
        "Time of memory traffic.",
    ),
    field("utilization.encoder", "", "%", |d| shown(first(d, "nvmlDeviceGetEncoderUtilization")), "Time of encoding."),
    field("utilization.decoder", "", "%", |d| shown(first(d, "nvmlDeviceGetDecoderUtilization")), "Time of decoding."),
    field("utilization.jpeg", "", "%", |d| shown(first(d, "nvmlDeviceGetJpgUtilization")), "Time of JPEG decoding."),
    field("utilization.ofa", "", "%", |d| shown(first(d, "nvmlDeviceGetOfaUtilization")), "Time of optical flow."),
    field(
        "encoder.stats.sessionCount",
        "",
        "",
        |d| shown(state::encoder_stats(d).map(|stats| stats[0])),
        "Encoder sessions.",
    ),
    field(
        "encoder.stats.averageFps",
        "",
        "",
        |d| shown(state::encoder_stats(d).map(|stats| stats[1])),
        "Their frames a second.",
    ),
    field(
        "encoder.stats.averageLatency",
        "",
        "",
        |d| shown(state::encoder_stats(d).map(|stats| stats[2])),
        "Their latency.",
    ),
    field("temperature.gpu", "", "", |d| shown(d.temperature()), "Core temperature in degrees C."),
    field("temperature.gpu.tlimit", "", "", |d| shown(d.margin()), "Degrees C below the limit."),
    field("temperature.memory", "", "", |d| shown(state::memory_temperature(d)), "Memory temperature in degrees C."),
];

fn mask(answer: Answer<u64>) -> Answer<String> {
    answer.map(|mask| format!("0x{mask:016X}"))
}

fn supported(device: &Device) -> Answer<String> {
    mask(device.get("nvmlDeviceGetSupportedClocksEventReasons"))
}
