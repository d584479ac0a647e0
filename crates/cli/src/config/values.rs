//! Texts of the configuration file and of options that mean one thing.

/// True if a text can be the name of a tenant, a VM or a card: it becomes a part of file names.
pub fn is_plain(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_.".contains(letter))
}

/// Permissions in octal.
pub fn parse_mode(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o777 => Ok(mode),
        _ => Err(format!("`{text}`: expected three octal digits, such as 660")),
    }
}
