//! By which grant a guest has come.

/// Of a guest of a grant; told to nobody.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GrantEntry {
    pub name: String,
    /// Of the grant; a later grant of the same name has another one.
    pub place: u64,
    /// `key:SHA256` of a guest of another machine, as its gateway has reported it.
    pub key: Option<String>,
}
