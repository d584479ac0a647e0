//! The devices on which memory lies, as a specification says.

use std::ffi::{CStr, c_char, c_uint};

/// The name of the device with this number among those that a place stands for: NUL-terminated, and valid until the
/// thread's next call; NULL: there are no more.
pub type ResidencyDevices = unsafe extern "C" fn(u64, c_uint) -> *const c_char;

/// Devices of one place.
pub const MAX_RESIDENCY_DEVICES: usize = 64;

/// The devices that a place stands for, `""` if one has no name; 0 stands for none.
pub fn devices_of(place: u64, names: ResidencyDevices) -> Vec<String> {
    let mut devices: Vec<String> = Vec::new();
    for number in 0..if place == 0 { 0 } else { MAX_RESIDENCY_DEVICES as c_uint } {
        // SAFETY: the specification's own function, given a place that its own expression answered.
        let name = unsafe { names(place, number) };
        if name.is_null() {
            break;
        }
        // SAFETY: not NULL, so it ends with a NUL and is still there, as `ResidencyDevices` says.
        devices.push(as_shown(&unsafe { CStr::from_ptr(name) }.to_string_lossy()));
    }
    devices
}

/// A device's name as people are shown it, so that what fits a name they wrote is what they see.
pub fn as_shown(name: &str) -> String {
    name.chars().filter(|letter| !letter.is_control()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" fn names(place: u64, number: c_uint) -> *const c_char {
        let all = [c"one", c"t\x07wo", c""];
        all.get(number as usize).filter(|_| place == 7).map_or(std::ptr::null(), |name| name.as_ptr())
    }

    unsafe extern "C" fn endless(_: u64, _: c_uint) -> *const c_char {
        c"one".as_ptr()
    }

    #[test]
    fn devices_are_named() {
        assert_eq!(devices_of(7, names), ["one", "two", ""]);
        assert!(devices_of(8, names).is_empty() && devices_of(0, endless).is_empty());
        assert_eq!(devices_of(1, endless).len(), MAX_RESIDENCY_DEVICES);
    }
}
