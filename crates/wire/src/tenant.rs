//! Names of tenants that nobody may choose.

/// A user of the node's machine that belongs to no tenant is the tenant `uid-NUMBER`.
pub const LOCAL_USER: &str = "uid-";

/// True if a name can only be that of a local user without a tenant. The kernel says who that is, so no certificate,
/// token, configuration or VM may choose such a name: it would share account, user id and files with that user.
pub fn is_reserved(name: &str) -> bool {
    name.starts_with(LOCAL_USER)
}

/// A guest of another machine whose certificate a grant names is `key:SHA256` to the node, not a tenant's name.
pub const GRANT_KEY: &str = "key:";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_local_users_are_reserved() {
        for (name, reserved) in
            [("uid-0", true), ("uid-1001", true), ("uid-x", true), ("uid-", true), ("uid", false), ("my-uid-0", false)]
        {
            assert_eq!(is_reserved(name), reserved, "{name}");
        }
    }
}
