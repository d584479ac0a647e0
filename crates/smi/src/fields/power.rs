//! Power and clocks.

use super::{Field, clock_of, field, milliwatts, number, on, untold, watts};
use crate::{
    device::{Device, GRAPHICS, MEMORY, SM, VIDEO, field as numbers},
    library::Answer,
    log::state,
};

pub const POWER: &[Field] = &[
    field("power.management", "", "", |d| on(d.number("nvmlDeviceGetPowerManagementMode")), "Power is managed."),
    field("power.draw", "", "W", |d| milliwatts(d, "nvmlDeviceGetPowerUsage"), "Power of the board."),
    field(
        "power.draw.average",
        "gpu.power.draw.average",
        "W",
        |d| of(d, numbers::POWER_AVERAGE, 0),
        "Average of a second.",
    ),
    field(
        "power.draw.instant",
        "gpu.power.draw.instant",
        "W",
        |d| of(d, numbers::POWER_INSTANT, 0),
        "Power at this moment.",
    ),
    field(
        "power.limit",
        "gpu.power.requested_limit",
        "W",
        |d| milliwatts(d, "nvmlDeviceGetPowerManagementLimit"),
        "Limit set.",
    ),
    field(
        "enforced.power.limit",
        "gpu.power.current_limit",
        "W",
        |d| milliwatts(d, "nvmlDeviceGetEnforcedPowerLimit"),
        "Limit that holds.",
    ),
    field(
        "power.default_limit",
        "gpu.power.default_limit",
        "W",
        |d| milliwatts(d, "nvmlDeviceGetPowerManagementDefaultLimit"),
        "Limit after a start.",
    ),
    field(
        "power.min_limit",
        "gpu.power.min_limit",
        "W",
        |d| watts(state::power_limits(d).map(|l| l.0)),
        "Least limit.",
    ),
    field(
        "power.max_limit",
        "gpu.power.max_limit",
        "W",
        |d| watts(state::power_limits(d).map(|l| l.1)),
        "Greatest limit.",
    ),
    field("module.power.draw.average", "", "W", |d| of(d, numbers::POWER_AVERAGE, 1), "Average of the module."),
    field("module.power.draw.instant", "", "W", |d| of(d, numbers::POWER_INSTANT, 1), "Power of the module."),
    field(
        "module.power.limit",
        "module.power.requested_limit",
        "W",
        |d| of(d, numbers::POWER_REQUESTED_LIMIT, 1),
        "Limit set of the module.",
    ),
    field(
        "module.enforced.power.limit",
        "module.power.current_limit",
        "W",
        |d| of(d, numbers::POWER_CURRENT_LIMIT, 1),
        "Limit that holds of the module.",
    ),
    field(
        "module.power.default_limit",
        "",
        "W",
        |d| of(d, numbers::POWER_DEFAULT_LIMIT, 1),
        "Its limit after a start.",
    ),
    field("module.power.min_limit", "", "W", |d| of(d, numbers::POWER_MIN_LIMIT, 1), "Its least limit."),
    field("module.power.max_limit", "", "W", |d| of(d, numbers::POWER_MAX_LIMIT, 1), "Its greatest limit."),
    field("power_smoothing.secondary_power_floor", "", "W", untold, "Of power smoothing."),
    field("power_smoothing.primary_power_floor", "", "W", untold, "Of power smoothing."),
    field("power_smoothing.min_primary_floor_activation_offset", "", "W", untold, "Of power smoothing."),
    field("power_smoothing.min_primary_floor_activation_point", "", "W", untold, "Of power smoothing."),
    field("power_smoothing.window_multiplier", "", "ms", untold, "Of power smoothing."),
    field("power_smoothing.delayed_power_smoothing_supported", "", "", untold, "Of power smoothing."),
    field("power_smoothing.curr_profile.secondary_power_floor", "", "W", untold, "Of power smoothing."),
    field("power_smoothing.curr_profile.primary_floor_act_window_multiplier", "", "", untold, "Of power smoothing."),
    field("power_smoothing.curr_profile.primary_floor_tar_window_multiplier", "", "", untold, "Of power smoothing."),
    field("power_smoothing.curr_profile.primary_floor_act_offset", "", "W", untold, "Of power smoothing."),
    field("power_smoothing.admin_override.secondary_power_floor", "", "W", untold, "Of power smoothing."),
    field("power_smoothing.admin_override.primary_floor_act_window_multiplier", "", "", untold, "Of power smoothing."),
    field("power_smoothing.admin_override.primary_floor_tar_window_multiplier", "", "", untold, "Of power smoothing."),
    field("power_smoothing.admin_override.primary_floor_act_offset", "", "W", untold, "Of power smoothing."),
    field("clocks.current.graphics", "clocks.gr", "MHz", |d| number(d.clock(GRAPHICS)), "Graphics clock now."),
    field("clocks.current.sm", "clocks.sm", "MHz", |d| number(d.clock(SM)), "Multiprocessor clock now."),
    field("clocks.current.memory", "clocks.mem", "MHz", |d| number(d.clock(MEMORY)), "Memory clock now."),
    field("clocks.current.video", "clocks.video", "MHz", |d| number(d.clock(VIDEO)), "Video clock now."),
    field("clocks.applications.graphics", "clocks.applications.gr", "MHz", |d| set(d, GRAPHICS), "Graphics clock set."),
    field("clocks.applications.memory", "clocks.applications.mem", "MHz", |d| set(d, MEMORY), "Memory clock set."),
    field(
        "clocks.default_applications.graphics",
        "clocks.default_applications.gr",
        "MHz",
        |d| default(d, GRAPHICS),
        "Graphics clock by default.",
    ),
    field(
        "clocks.default_applications.memory",
        "clocks.default_applications.mem",
        "MHz",
        |d| default(d, MEMORY),
        "Memory clock by default.",
    ),
    field("clocks.max.graphics", "clocks.max.gr", "MHz", |d| number(d.max_clock(GRAPHICS)), "Greatest graphics clock."),
    field("clocks.max.sm", "", "MHz", |d| number(d.max_clock(SM)), "Greatest multiprocessor clock."),
    field("clocks.max.memory", "clocks.max.mem", "MHz", |d| number(d.max_clock(MEMORY)), "Greatest memory clock."),
];

fn of(device: &Device, number: u32, scope: u32) -> Answer<String> {
    watts(device.field(number, scope))
}

fn set(device: &Device, kind: u32) -> Answer<String> {
    clock_of(device, "nvmlDeviceGetApplicationsClock", kind)
}

fn default(device: &Device, kind: u32) -> Answer<String> {
    clock_of(device, "nvmlDeviceGetDefaultApplicationsClock", kind)
}
