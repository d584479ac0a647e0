//! Power and clocks.

use super::{Field, clock_of, field, milliwatts, number, on, untold, watts};
use crate::{
    device::{Device, GRAPHICS, MEMORY, SM, VIDEO, field as numbers},
    library::Answer,
    log::state,
};

pub const POWER: &[Field] = &[
    field(
        "power.management",
        "",
        "",
        |d| on(d.number("nvmlDeviceGetPowerManagementMode")),
        "Whether power is managed.",
    ),
    field("power.draw", "", "W", |d| milliwatts(d, "nvmlDeviceGetPowerUsage"), "Power draw of the board."),
    field(
        "power.draw.average",
        "gpu.power.draw.average",
        "W",
        |d| of(d, numbers::POWER_AVERAGE, 0),
        "Power draw, averaged over one second.",
    ),
    field(
        "power.draw.instant",
        "gpu.power.draw.instant",
        "W",
        |d| of(d, numbers::POWER_INSTANT, 0),
        "Power draw at this moment.",
    ),
    field(
        "power.limit",
        "gpu.power.requested_limit",
        "W",
        |d| milliwatts(d, "nvmlDeviceGetPowerManagementLimit"),
        "Power limit that was set.",
    ),
    field(
        "enforced.power.limit",
        "gpu.power.current_limit",
        "W",
        |d| milliwatts(d, "nvmlDeviceGetEnforcedPowerLimit"),
        "Power limit in effect.",
    ),
    field(
        "power.default_limit",
        "gpu.power.default_limit",
        "W",
        |d| milliwatts(d, "nvmlDeviceGetPowerManagementDefaultLimit"),
        "Power limit after a restart.",
    ),
    field(
        "power.min_limit",
        "gpu.power.min_limit",
        "W",
        |d| watts(state::power_limits(d).map(|l| l.0)),
        "Smallest power limit that can be set.",
    ),
    field(
        "power.max_limit",
        "gpu.power.max_limit",
        "W",
        |d| watts(state::power_limits(d).map(|l| l.1)),
        "Largest power limit that can be set.",
    ),
    field(
        "module.power.draw.average",
        "",
        "W",
        |d| of(d, numbers::POWER_AVERAGE, 1),
        "Power draw of the module, averaged over one second.",
    ),
    field(
        "module.power.draw.instant",
        "",
        "W",
        |d| of(d, numbers::POWER_INSTANT, 1),
        "Power draw of the module at this moment.",
    ),
    field(
        "module.power.limit",
        "module.power.requested_limit",
        "W",
        |d| of(d, numbers::POWER_REQUESTED_LIMIT, 1),
        "Power limit that was set for the module.",
    ),
    field(
        "module.enforced.power.limit",
        "module.power.current_limit",
        "W",
        |d| of(d, numbers::POWER_CURRENT_LIMIT, 1),
        "Power limit of the module in effect.",
    ),
    field(
        "module.power.default_limit",
        "",
        "W",
        |d| of(d, numbers::POWER_DEFAULT_LIMIT, 1),
        "Power limit of the module after a restart.",
    ),
    field(
        "module.power.min_limit",
        "",
        "W",
        |d| of(d, numbers::POWER_MIN_LIMIT, 1),
        "Smallest power limit of the module that can be set.",
    ),
    field(
        "module.power.max_limit",
        "",
        "W",
        |d| of(d, numbers::POWER_MAX_LIMIT, 1),
        "Largest power limit of the module that can be set.",
    ),
    field("power_smoothing.secondary_power_floor", "", "W", untold, "Power smoothing: not reported."),
    field("power_smoothing.primary_power_floor", "", "W", untold, "Power smoothing: not reported."),
    field("power_smoothing.min_primary_floor_activation_offset", "", "W", untold, "Power smoothing: not reported."),
    field("power_smoothing.min_primary_floor_activation_point", "", "W", untold, "Power smoothing: not reported."),
    field("power_smoothing.window_multiplier", "", "ms", untold, "Power smoothing: not reported."),
    field("power_smoothing.delayed_power_smoothing_supported", "", "", untold, "Power smoothing: not reported."),
    field("power_smoothing.curr_profile.secondary_power_floor", "", "W", untold, "Power smoothing: not reported."),
    field(
        "power_smoothing.curr_profile.primary_floor_act_window_multiplier",
        "",
        "",
        untold,
        "Power smoothing: not reported.",
    ),
    field(
        "power_smoothing.curr_profile.primary_floor_tar_window_multiplier",
        "",
        "",
        untold,
        "Power smoothing: not reported.",
    ),
    field("power_smoothing.curr_profile.primary_floor_act_offset", "", "W", untold, "Power smoothing: not reported."),
    field("power_smoothing.admin_override.secondary_power_floor", "", "W", untold, "Power smoothing: not reported."),
    field(
        "power_smoothing.admin_override.primary_floor_act_window_multiplier",
        "",
        "",
        untold,
        "Power smoothing: not reported.",
    ),
    field(
        "power_smoothing.admin_override.primary_floor_tar_window_multiplier",
        "",
        "",
        untold,
        "Power smoothing: not reported.",
    ),
    field("power_smoothing.admin_override.primary_floor_act_offset", "", "W", untold, "Power smoothing: not reported."),
    field("clocks.current.graphics", "clocks.gr", "MHz", |d| number(d.clock(GRAPHICS)), "Present graphics clock."),
    field("clocks.current.sm", "clocks.sm", "MHz", |d| number(d.clock(SM)), "Present multiprocessor clock."),
    field("clocks.current.memory", "clocks.mem", "MHz", |d| number(d.clock(MEMORY)), "Present memory clock."),
    field("clocks.current.video", "clocks.video", "MHz", |d| number(d.clock(VIDEO)), "Present video clock."),
    field(
        "clocks.applications.graphics",
        "clocks.applications.gr",
        "MHz",
        |d| set(d, GRAPHICS),
        "Graphics clock that was set for applications.",
    ),
    field(
        "clocks.applications.memory",
        "clocks.applications.mem",
        "MHz",
        |d| set(d, MEMORY),
        "Memory clock that was set for applications.",
    ),
    field(
        "clocks.default_applications.graphics",
        "clocks.default_applications.gr",
        "MHz",
        |d| default(d, GRAPHICS),
        "Default graphics clock for applications.",
    ),
    field(
        "clocks.default_applications.memory",
        "clocks.default_applications.mem",
        "MHz",
        |d| default(d, MEMORY),
        "Default memory clock for applications.",
    ),
    field("clocks.max.graphics", "clocks.max.gr", "MHz", |d| number(d.max_clock(GRAPHICS)), "Highest graphics clock."),
    field("clocks.max.sm", "", "MHz", |d| number(d.max_clock(SM)), "Highest multiprocessor clock."),
    field("clocks.max.memory", "clocks.max.mem", "MHz", |d| number(d.max_clock(MEMORY)), "Highest memory clock."),
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
