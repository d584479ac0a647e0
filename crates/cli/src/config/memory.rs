//! Devices whose memory is shared out.

use super::amount::Amount;
use super::error::ConfigError;
use std::path::Path;

/// How many times its memory a device may have given away at most.
const MOST: f64 = 64.0;

/// In thousandths.
pub fn thousandths(oversubscribe: Option<f64>) -> u32 {
    (oversubscribe.unwrap_or(1.0).clamp(1.0, MOST) * 1000.0) as u32
}

/// By the names of devices: `memory` and `oversubscribe`.
pub fn check_memory<'a>(
    path: &Path,
    mut devices: impl Iterator<Item = (&'a String, Option<Amount>, Option<f64>)>,
) -> Result<(), ConfigError> {
    let wrong = |(_, memory, oversubscribe): &(&String, Option<Amount>, Option<f64>)| {
        oversubscribe.is_some_and(|times| memory.is_none() || !(1.0..=MOST).contains(&times))
    };
    match devices.find(wrong) {
        Some((device, ..)) => Err(ConfigError::Oversubscribe { path: path.into(), device: device.clone() }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oversubscription_is_in_range_and_of_memory_that_is_told() {
        assert_eq!([None, Some(1.5), Some(2.0)].map(thousandths), [1000, 1500, 2000]);
        let device = "card".to_owned();
        let check = |memory, times| check_memory(Path::new("/node.toml"), [(&device, memory, times)].into_iter());
        assert!(check(Some(Amount(1)), Some(64.0)).is_ok() && check(Some(Amount(1)), None).is_ok());
        for (memory, times) in
            [(None, 2.0), (Some(Amount(1)), 0.9), (Some(Amount(1)), 65.0), (Some(Amount(1)), f64::NAN)]
        {
            assert!(check(memory, Some(times)).unwrap_err().to_string().contains("`card`: `oversubscribe`"));
        }
    }
}
