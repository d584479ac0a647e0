//! Requests of `ioctl`: what a device node is asked for.

use std::fmt;
use std::str::FromStr;

/// The byte of a request that says which driver it is meant for.
const TYPE_MASK: u32 = 0xff00;

/// Requests of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Requests {
    /// All whose type byte is this one: a driver that uses the kernel's scheme for numbers.
    Type(u8),
    /// From the first number to the last one, both included: a driver with numbers of its own.
    Numbers { first: u32, last: u32 },
}

impl Requests {
    pub fn contains(self, request: u32) -> bool {
        match self {
            Requests::Type(byte) => request & TYPE_MASK == u32::from(byte) << 8,
            Requests::Numbers { first, last } => (first..=last).contains(&request),
        }
    }
}

/// `{0}` does not name ioctl requests: expected the letter of a type (F), a number (0x30000001) or a range of numbers (1-80)
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, displaydoc::Display)]
pub struct WrongRequests(String);

impl FromStr for Requests {
    type Err = WrongRequests;

    fn from_str(text: &str) -> Result<Self, WrongRequests> {
        let wrong = || WrongRequests(text.to_owned());
        if let [byte] = text.as_bytes()
            && byte.is_ascii_graphic()
            && !byte.is_ascii_digit()
        {
            return Ok(Requests::Type(*byte));
        }
        let number = |text: &str| match text.strip_prefix("0x") {
            Some(digits) => u32::from_str_radix(digits, 16).map_err(|_| wrong()),
            None => text.parse().map_err(|_| wrong()),
        };
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let (first, last) = (number(first)?, number(last)?);
        if first <= last { Ok(Requests::Numbers { first, last }) } else { Err(wrong()) }
    }
}

impl fmt::Display for Requests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Requests::Type(byte) => write!(f, "{}", char::from(*byte)),
            Requests::Numbers { first, last } if first == last => write!(f, "{first:#x}"),
            Requests::Numbers { first, last } => write!(f, "{first:#x}-{last:#x}"),
        }
    }
}

/// Requests that the C library and the runtime make: of a terminal's state, and of descriptors' flags.
pub const USUAL: &[Requests] = &[
    number(libc::TCGETS),
    number(libc::FIONREAD),
    number(libc::FIONBIO),
    number(libc::FIOCLEX),
    number(libc::FIONCLEX),
];

const fn number(request: libc::c_ulong) -> Requests {
    Requests::Numbers { first: request as u32, last: request as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_and_printed() {
        for (text, first, outside) in
            [("F", 0xc020_462a, 0xc020_472a), ("0x30000001", 0x3000_0001, 0x3000_0002), ("0x1-0x50", 0x50, 0x51)]
        {
            let requests: Requests = text.parse().unwrap();
            assert_eq!(requests.to_string(), text);
            assert!(requests.contains(first) && !requests.contains(outside), "{text}");
        }
        assert_eq!("80".parse(), Ok(Requests::Numbers { first: 80, last: 80 }));
        for wrong in ["", "FF", "5-1", "0x", "-1", "1-", "4294967296", " "] {
            assert!(wrong.parse::<Requests>().is_err(), "{wrong}");
        }
    }
}
