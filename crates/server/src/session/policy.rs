//! Which functions a tenant may call, and which devices it may use.

use aviary_gate::{DEVICE_NAME_BYTES, fits};

use crate::api::{ApiDescriptor, FunctionInfo};
use aviary_control::{Assignment, DeviceContext};

/// The tenant of a session and its limits, for the gate and the log.
#[derive(Debug, Default)]
pub struct Policy {
    pub tenant: String,
    /// Process id of the guest.
    pub guest: u32,
    /// The node serves the guest's program only.
    pub private_node: bool,
    /// By the function's number. Most tenants may call everything.
    denied: Option<Box<[bool]>>,
    /// `None`: all.
    only_devices: Option<Vec<String>>,
    /// Functions that change a device for all its users, which the tenant may call; a name may end with `*`.
    privileged: Vec<String>,
    /// What contexts are charged with.
    contexts: Vec<DeviceContext>,
}

impl Policy {
    pub fn new(api: &ApiDescriptor, config: &Assignment) -> Policy {
        let (tenant, guest) = (config.tenant.clone(), config.guest);
        let rule = &config.functions;
        let listed = |list: &[String], name: &str| list.iter().any(|listed| listed == name);
        let denies =
            |name: &str| listed(&rule.deny, name) || rule.allow.as_ref().is_some_and(|allowed| !listed(allowed, name));
        let denied: Box<[bool]> = api.functions.iter().map(|function| refused(function, denies)).collect();
        let only_devices = only_some(config.only_devices.clone());
        let private_node = config.private;
        let (privileged, denied) = (rule.privileged.clone(), denied.contains(&true).then_some(denied));
        let contexts = config.contexts.clone();
        Policy { tenant, guest, private_node, denied, only_devices, privileged, contexts }
    }

    /// Bytes that a context on the device is charged with.
    pub fn context_bytes(&self, device: &str) -> u64 {
        self.contexts.iter().find(|context| fits(&context.name, device)).map_or(0, |context| context.bytes)
    }

    /// Without an entry in the tenant's list no function is allowed.
    pub fn has_privilege(&self, function: &str) -> bool {
        self.privileged.iter().any(|pattern| fits(pattern, function))
    }

    pub fn denies(&self, function: u32) -> bool {
        self.denied.as_ref().is_some_and(|denied| denied.get(function as usize).is_some_and(|denied| *denied))
    }

    /// There may be devices that are not the tenant's.
    #[inline]
    pub fn has_only_some_devices(&self) -> bool {
        self.only_devices.is_some()
    }

    /// Of a long name the beginning counts, as in limits of devices.
    pub fn may_use(&self, device: &str) -> bool {
        let name = &device[..device.floor_char_boundary(DEVICE_NAME_BYTES)];
        self.only_devices.as_ref().is_none_or(|only| only.iter().any(|pattern| fits(pattern, name)))
    }
}

/// A function that the guest calls for others is refused where each of them is.
fn refused(function: &FunctionInfo, denies: impl Fn(&str) -> bool) -> bool {
    match function.on_behalf_of {
        [] => denies(function.name),
        others => others.iter().all(|name| denies(name)),
    }
}

/// A list of all devices is none.
fn only_some(devices: Option<Vec<String>>) -> Option<Vec<String>> {
    devices.filter(|names| !names.iter().any(|name| name == "*"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(only_devices: Option<&[&str]>) -> Policy {
        let only_devices = only_devices.map(|names| names.iter().map(|name| (*name).to_owned()).collect());
        Policy { only_devices: only_some(only_devices), ..Policy::default() }
    }

    #[test]
    fn rules_are_about_the_functions_that_the_application_calls() {
        let function = |name, on_behalf_of| FunctionInfo {
            name,
            on_behalf_of,
            handler: crate::handler(|_| Ok(())),
            replayable: false,
            waits: false,
            late: false,
            blocker: None,
        };
        let (own, one, two) = (function("a", &[]), function("a_part", &["a"]), function("part", &["a", "b"]));
        for (denied, expected) in [
            (&["a"][..], [true, true, false]),
            (&["b"], [false; 3]),
            (&["a", "b"], [true; 3]),
            (&["a_part", "part"], [false; 3]),
        ] {
            assert_eq!([&own, &one, &two].map(|f| refused(f, |name| denied.contains(&name))), expected, "{denied:?}");
        }
    }

    #[test]
    fn contexts_are_charged_by_the_first_name_that_fits() {
        let context = |name: &str, bytes| DeviceContext { name: name.into(), bytes };
        let contexts = vec![context("card #2", 0), context("card*", 7), context("card", 9)];
        let policy = Policy { contexts, ..Policy::default() };
        assert_eq!(["card", "card #2", "card #3", "other"].map(|device| policy.context_bytes(device)), [7, 0, 7, 0]);
    }

    #[test]
    fn privileges_are_those_that_are_listed() {
        let listed = |names: &[&str]| Policy {
            privileged: names.iter().map(|name| (*name).to_owned()).collect(),
            ..Policy::default()
        };
        assert!(!Policy::default().has_privilege("set_clock"));
        assert!(
            listed(&["set_clock"]).has_privilege("set_clock") && !listed(&["set_clock"]).has_privilege("set_clocks")
        );
        assert!(listed(&["other", "set_*"]).has_privilege("set_clock") && !listed(&["set_*"]).has_privilege("reset"));
    }

    #[test]
    fn devices_of_the_list_are_the_tenants() {
        let listed = with(Some(&["card", "chip*"]));
        for (device, expected) in [("card", true), ("card #2", false), ("chip #2", true), ("", false), ("other", false)]
        {
            assert_eq!(listed.may_use(device), expected, "{device:?}");
        }
        assert!(listed.has_only_some_devices() && !with(Some(&["card", "*"])).has_only_some_devices());
        assert!(!with(None).has_only_some_devices() && with(None).may_use("other"));
        assert!(!with(Some(&[])).may_use("card"));
        let long = "x".repeat(DEVICE_NAME_BYTES);
        assert!(with(Some(&[&long])).may_use(&format!("{long}y")));
    }
}
