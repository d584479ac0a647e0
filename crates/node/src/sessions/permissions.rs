//! Permissions of a session: fixed when it begins, enforced by its API server until it ends.

use crate::tenants::tenant::Tenant;
use aviary_control::FunctionRule;
use aviary_gate::fits;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Permissions {
    pub threads: Option<usize>,
    /// `None`: all.
    pub apis: Option<Vec<String>>,
    pub functions: FunctionRule,
    /// `None`: all.
    pub only_devices: Option<Vec<String>>,
}

impl Permissions {
    pub fn of(tenant: &Tenant) -> Self {
        Self {
            threads: tenant.threads,
            apis: tenant.apis.clone(),
            functions: tenant.functions.clone(),
            only_devices: tenant.only_devices.clone(),
        }
    }

    /// By which keys of the configuration a session of this API may do more than a new one, which has `now`.
    pub fn beyond(&self, now: &Permissions, api: &str) -> Vec<&'static str> {
        let threads = now.threads.is_some_and(|most| self.threads.is_none_or(|had| had > most));
        // Before the session has started its API is not known, and the rule of its beginning is not applied yet.
        let apis = !api.is_empty() && now.apis.as_ref().is_some_and(|apis| !apis.iter().any(|name| name == api));
        let functions = exceeds(&self.functions, &now.functions);
        let had = self.only_devices.as_deref();
        let only_devices = now.only_devices.as_ref().is_some_and(|names| {
            // A pattern fits another one that has nothing but what fits it, too.
            let covered = |had: &String| names.iter().any(|name| fits(name, had));
            had.is_none_or(|had| !had.iter().all(covered))
        });
        let keys = [("threads", threads), ("apis", apis), ("functions", functions), ("only_devices", only_devices)];
        keys.into_iter().filter_map(|(key, beyond)| beyond.then_some(key)).collect()
    }
}

fn permits(rule: &FunctionRule, function: &String) -> bool {
    !rule.deny.contains(function) && rule.allow.as_ref().is_none_or(|allowed| allowed.contains(function))
}

/// True if there is a function that `had` permits and `now` does not.
fn exceeds(had: &FunctionRule, now: &FunctionRule) -> bool {
    if now.deny.iter().any(|function| permits(had, function)) {
        return true;
    }
    // A pattern fits another one that has nothing but what fits it, too.
    if !had.privileged.iter().all(|had| now.privileged.iter().any(|name| fits(name, had))) {
        return true;
    }
    match (&had.allow, &now.allow) {
        (_, None) => false,
        // There are always more functions than a list names.
        (None, Some(_)) => true,
        (Some(allowed), Some(_)) => allowed.iter().any(|function| permits(had, function) && !permits(now, function)),
    }
}

#[cfg(test)]
mod tests {
    use crate::sessions::permissions::*;

    fn names(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    fn devices(text: &str) -> Permissions {
        Permissions { only_devices: Some(names(text)), ..Permissions::default() }
    }

    fn functions(allow: Option<&str>, deny: &str) -> Permissions {
        let functions = FunctionRule { allow: allow.map(names), deny: names(deny), privileged: Vec::new() };
        Permissions { functions, ..Permissions::default() }
    }

    fn threads(most: usize) -> Permissions {
        Permissions { threads: Some(most), ..Permissions::default() }
    }

    #[test]
    fn only_what_was_taken_away_counts() {
        let all = Permissions::default();
        let apis = Permissions { apis: Some(names("fake other")), ..Permissions::default() };
        let cases: [(&Permissions, &Permissions, &[&str]); 18] = [
            (&all, &all, &[]),
            (&all, &threads(2), &["threads"]),
            (&threads(3), &threads(2), &["threads"]),
            (&threads(2), &threads(3), &[]),
            (&threads(2), &all, &[]),
            (&all, &apis, &[]),
            (&all, &Permissions { apis: Some(names("other")), ..devices("card") }, &["apis", "only_devices"]),
            (&devices("card"), &all, &[]),
            (&devices("card1 chip"), &devices("c*"), &[]),
            (&devices("card*"), &devices("card chip"), &["only_devices"]),
            (&devices("ca*"), &devices("c*"), &[]),
            (&devices("c*"), &devices("ca*"), &["only_devices"]),
            (&all, &functions(None, "f"), &["functions"]),
            (&functions(None, "f"), &functions(None, "f"), &[]),
            (&functions(None, "f"), &functions(Some("g h"), "f"), &["functions"]),
            (&functions(Some("g h"), "h"), &functions(Some("g"), "f"), &[]),
            (&functions(Some("g h"), "f"), &functions(Some("g"), "f"), &["functions"]),
            (&functions(Some("g"), "f"), &functions(None, "f g"), &["functions"]),
        ];
        for (had, now, expected) in cases {
            assert_eq!(had.beyond(now, "fake"), expected, "{had:?} {now:?}");
        }
        assert_eq!(all.beyond(&apis, "third"), ["apis"]);
        assert_eq!(all.beyond(&apis, ""), [""; 0], "not started");
    }
}
