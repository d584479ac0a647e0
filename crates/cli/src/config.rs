//! The node's configuration file, and amounts as people write them.

use aviary_node::{Limits, Rules, Scheduler, Settings, Share, Tenant};
use serde::{Deserialize, Deserializer, de};
use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub enum ConfigError {
    /// cannot read {0}: {1}
    Unreadable(PathBuf, io::Error),
    /// {0}: {1}
    Malformed(PathBuf, Box<toml::de::Error>),
    /// {0}: user {1} belongs to tenant `{2}` and to tenant `{3}`
    TwoTenants(PathBuf, u32, String, String),
}

/// `aviary serve --config FILE`. Everything is optional; options of the command line come first.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileConfig {
    pub listen: Option<String>,
    /// Octal, as a string.
    pub mode: Option<String>,
    pub spares: Option<usize>,
    pub sessions_per_user: Option<usize>,
    pub log_level: Option<String>,
    #[serde(default)]
    pub api_dirs: Vec<PathBuf>,
    /// Of each session of a user that belongs to no tenant.
    #[serde(default)]
    limits: BTreeMap<String, Amount>,
    #[serde(default)]
    tenants: BTreeMap<String, TenantConfig>,
    /// How devices are scheduled, by their names; a name may end with `*`.
    #[serde(default)]
    devices: BTreeMap<String, DeviceConfig>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TenantConfig {
    users: Vec<u32>,
    #[serde(default = "one")]
    weight: u32,
    #[serde(default)]
    priority: i32,
    #[serde(default)]
    limits: BTreeMap<String, Amount>,
}

fn one() -> u32 {
    1
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DeviceConfig {
    scheduler: Option<Scheduler>,
    slice: Option<Span>,
    linger: Option<Span>,
}

/// `"6ms"`, `"200us"` or `"1.5s"`.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(try_from = "String")]
struct Span(Duration);

impl TryFrom<String> for Span {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        parse_span(&text).map(Self)
    }
}

/// A time with its unit.
pub fn parse_span(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is no time such as \"6ms\", \"200us\" or \"1.5s\"");
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        _ => return Err(wrong()),
    };
    let number: f64 = digits.parse().map_err(|_| wrong())?;
    Duration::try_from_secs_f64(number * unit).map_err(|_| wrong())
}

/// `17` or `"2G"`.
#[derive(Debug, Clone, Copy)]
struct Amount(u64);

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
            Form::Text(text) => parse_amount(&text)
                .map(Self)
                .ok_or_else(|| de::Error::custom(format!("`{text}` is no amount such as 17 or \"2G\""))),
        }
    }
}

impl FileConfig {
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = fs::read_to_string(path).map_err(|error| ConfigError::Unreadable(path.into(), error))?;
        let config: Self =
            toml::from_str(&text).map_err(|error| ConfigError::Malformed(path.into(), Box::new(error)))?;
        config.check_users(path)?;
        Ok(config)
    }

    fn check_users(&self, path: &Path) -> Result<(), ConfigError> {
        let mut owners: BTreeMap<u32, &String> = BTreeMap::new();
        for (name, tenant) in &self.tenants {
            for user in &tenant.users {
                if let Some(other) = owners.insert(*user, name) {
                    return Err(ConfigError::TwoTenants(path.into(), *user, other.clone(), name.clone()));
                }
            }
        }
        Ok(())
    }

    /// Longer names first, so that a name goes before a pattern that it fits.
    pub fn devices(&self) -> Rules {
        let settings = |device: &DeviceConfig| {
            let usual = Settings::default();
            Settings {
                scheduler: device.scheduler.unwrap_or(usual.scheduler),
                slice: device.slice.map_or(usual.slice, |span| span.0),
                linger: device.linger.map_or(usual.linger, |span| span.0),
            }
        };
        let mut rules: Vec<_> = self.devices.iter().map(|(name, device)| (name.clone(), settings(device))).collect();
        rules.sort_by_key(|(name, _)| std::cmp::Reverse((!name.ends_with('*'), name.len())));
        Rules(rules)
    }

    pub fn limits(&self) -> Limits {
        amounts(&self.limits)
    }

    pub fn tenants(&self) -> Vec<Tenant> {
        let tenant = |(name, tenant): (&String, &TenantConfig)| Tenant {
            name: name.clone(),
            users: tenant.users.clone(),
            limits: amounts(&tenant.limits),
            share: Share { weight: tenant.weight, priority: tenant.priority },
        };
        self.tenants.iter().map(tenant).collect()
    }
}

fn amounts(limits: &BTreeMap<String, Amount>) -> Limits {
    limits.iter().map(|(name, amount)| (name.clone(), amount.0)).collect()
}

/// `RESOURCE=AMOUNT` of the command line.
pub fn parse_limit(text: &str) -> Result<(String, u64), String> {
    let wrong = || format!("`{text}`: expected RESOURCE=AMOUNT, such as device_memory=2G");
    let (name, amount) = text.split_once('=').filter(|(name, _)| !name.is_empty()).ok_or_else(wrong)?;
    parse_amount(amount).map(|amount| (name.to_owned(), amount)).ok_or_else(wrong)
}

/// A number with an optional K, M, G or T (powers of 1024).
fn parse_amount(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let shift = match &text[digits.len()..] {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// Permissions in octal.
pub fn parse_mode(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o777 => Ok(mode),
        _ => Err(format!("`{text}`: expected three octal digits, such as 660")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aviary_node::PrivateDir;

    fn read(text: &str) -> Result<FileConfig, ConfigError> {
        let directory = PrivateDir::create().unwrap();
        let path = directory.path().join("node.toml");
        fs::write(&path, text).unwrap();
        FileConfig::read(&path)
    }

    #[test]
    fn limits() {
        assert_eq!(parse_limit("memory=2G"), Ok(("memory".into(), 2 << 30)));
        assert_eq!(parse_limit("calls=17"), Ok(("calls".into(), 17)));
        for wrong in ["memory", "=1", "memory=", "memory=G", "memory=1X", "memory=99999999999999T"] {
            assert!(parse_limit(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn modes() {
        assert_eq!(parse_mode("660"), Ok(0o660));
        assert!(parse_mode("999").is_err() && parse_mode("7777").is_err());
    }

    #[test]
    fn a_whole_file() {
        let text = "spares = 3\n[limits]\nmemory = \"2K\"\n[tenants.alice]\nusers = [7]\nlimits = { memory = 5 }\n";
        let config = read(text).unwrap();
        assert_eq!(config.spares, Some(3));
        assert_eq!(config.limits()["memory"], 2048);
        assert_eq!(config.tenants()[0].limits["memory"], 5);
    }

    #[test]
    fn mistakes_are_shown_where_they_are() {
        let error = read("spares = 3\nspare = 4\n").unwrap_err().to_string();
        assert!(error.contains("line 2") && error.contains("spare"), "{error}");
        let error = read("[limits]\nmemory = \"2X\"\n").unwrap_err().to_string();
        assert!(error.contains("line 2"), "{error}");
        let error = read("[tenants.a]\nusers = [7]\n[tenants.b]\nusers = [7]\n").unwrap_err().to_string();
        assert!(error.contains("`a`") && error.contains("`b`"), "{error}");
    }
}
