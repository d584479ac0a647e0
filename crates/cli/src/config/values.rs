//! Texts of the configuration file and of options that mean one thing.

use std::time::Duration;

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

/// A part such as "30%", in thousandths; at least one.
pub fn parse_cap(text: &str) -> Result<u32, String> {
    let number = text.strip_suffix('%').and_then(|number| number.parse::<f64>().ok());
    match number.map(|number| number * 10.0) {
        Some(thousandths) if (1.0..=1000.0).contains(&thousandths) => Ok(thousandths as u32),
        _ => Err(format!("`{text}` is not a share of a device's time: expected \"0.1%\" to \"100%\", such as \"30%\"")),
    }
}

/// A time with its unit.
pub fn parse_span(text: &str) -> Result<Duration, String> {
    let wrong =
        || format!("`{text}` is not a time: expected a number with a unit, such as \"6ms\", \"200us\" or \"1.5s\"");
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(wrong()),
    };
    let number: f64 = digits.parse().map_err(|_| wrong())?;
    Duration::try_from_secs_f64(number * unit).map_err(|_| wrong())
}
