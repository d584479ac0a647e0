//! Amounts and limits as people write them.

use aviary_node::{DeviceLimit, Limits, Tenants, precedence};
use serde::{Deserialize, Deserializer, de};
use std::collections::BTreeMap;

/// `17` or `"2G"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Amount(pub u64);

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Number(u64),
            Text(String),
        }
        match Form::deserialize(deserializer)? {
            Form::Number(number) => Ok(Self(number)),
            Form::Text(text) => parse_amount(&text).map(Self).ok_or_else(|| {
                de::Error::custom(format!("`{text}` is not an amount: expected for instance 17, \"2G\" or \"2GiB\""))
            }),
        }
    }
}

pub fn limits(amounts: &BTreeMap<String, Amount>) -> Limits {
    amounts.iter().map(|(name, amount)| (name.clone(), amount.0)).collect()
}

/// The subject of a limit: `RESOURCE`, or `RESOURCE@DEVICE` on each device of that name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitPlace {
    pub resource: String,
    pub device: Option<String>,
}

/// Names of devices may have an `@` in them, those of resources have none.
pub fn parse_limit_place(text: &str) -> Result<LimitPlace, String> {
    let (resource, device) = text.split_once('@').map_or((text, None), |(resource, device)| (resource, Some(device)));
    if resource.is_empty() || device == Some("") {
        return Err(format!("`{text}`: expected RESOURCE or RESOURCE@DEVICE, such as \"device_memory@NVIDIA H100*\""));
    }
    Ok(LimitPlace { resource: resource.to_owned(), device: device.map(str::to_owned) })
}

/// `RESOURCE=AMOUNT` or `RESOURCE@DEVICE=AMOUNT`. Names of devices may have a `=` in them, amounts have none.
pub fn parse_limit(text: &str) -> Result<(LimitPlace, u64), String> {
    let parsed =
        text.rsplit_once('=').and_then(|(place, amount)| Some((parse_limit_place(place).ok()?, parse_amount(amount)?)));
    parsed.ok_or_else(|| {
        format!(
            "`{text}`: expected RESOURCE=AMOUNT or RESOURCE@DEVICE=AMOUNT, such as \"device_memory@NVIDIA H100*=20G\""
        )
    })
}

/// Limits of the command line go before those of a file.
pub fn add_limits(tenants: &mut Tenants, limits: &[(LimitPlace, u64)]) {
    for (LimitPlace { resource, device }, limit) in limits.iter().cloned() {
        let Some(device) = device else {
            tenants.limits.insert(resource, limit);
            continue;
        };
        tenants.device_limits.retain(|other| (&other.device, &other.resource) != (&device, &resource));
        tenants.device_limits.push(DeviceLimit { device, resource, limit });
    }
    tenants.device_limits.sort_by_key(|limit| precedence(&limit.device));
}

/// A number with an optional K, M, G or T (powers of 1024), also written KiB and so on.
pub fn parse_amount(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = &text[digits.len()..];
    let shift = match unit.strip_suffix("iB").filter(|short| !short.is_empty()).unwrap_or(unit) {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read() {
        let all = |resource: &str| LimitPlace { resource: resource.into(), device: None };
        assert_eq!(parse_limit("memory=2G"), Ok((all("memory"), 2 << 30)));
        assert_eq!(parse_limit("memory=2GiB"), Ok((all("memory"), 2 << 30)));
        assert_eq!(parse_limit("calls=17"), Ok((all("calls"), 17)));
        for wrong in ["memory", "=1", "memory=", "memory=G", "memory=1X", "memory=1iB", "memory=99999999999999T"] {
            assert!(parse_limit(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn limits_of_devices_are_read() {
        let place = |resource: &str, device: Option<&str>| LimitPlace {
            resource: resource.into(),
            device: device.map(str::to_owned),
        };
        assert_eq!(parse_limit("memory=2K"), Ok((place("memory", None), 2048)));
        let name = "CPU @ 2.20GHz=x";
        assert_eq!(parse_limit(&format!("memory@{name}=2K")), Ok((place("memory", Some(name)), 2048)));
        assert_eq!(parse_limit_place(&format!("memory@{name}")), Ok(place("memory", Some(name))));
        for wrong in ["", "memory", "memory@=1", "@card=1", "memory@card", "memory@card=x"] {
            assert!(parse_limit(wrong).is_err(), "{wrong}");
        }
        let mut tenants = Tenants::default();
        for text in ["memory@*=1", "memory=5", "memory@card=2", "memory@*=3"] {
            add_limits(&mut tenants, &[parse_limit(text).unwrap()]);
        }
        assert_eq!(tenants.limits["memory"], 5);
        assert_eq!(tenants.device_limits.iter().map(|limit| limit.limit).collect::<Vec<_>>(), [2, 3]);
        assert!(parse_limit_place("memory@").is_err() && parse_limit_place("@card").is_err());
    }
}
