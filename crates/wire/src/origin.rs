//! The name of the socket by which a virtual machine's device attaches: for whom in the VM it does so.

use std::fmt::Write;

const PREFIX: &[u8] = b"aviary-vm/";
/// A name of a unix socket has at most 107 bytes.
const MAX_PROGRAM: usize = 36;

/// A process in a virtual machine, as its driver described it. Nobody outside vouches for it: it is for people, and
/// tells processes of the same VM apart.
///
/// ```
/// use aviary_wire::Origin;
///
/// let origin = Origin { pid: 7, started: 100, program: "train".to_owned() };
/// assert_eq!(Origin::from_name(&origin.to_name(1234, 0)), Some(origin));
/// assert_eq!(Origin::from_name(b"another socket"), None);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Origin {
    pub pid: u32,
    /// When it started, in any unit; 0 if that is not known.
    pub started: u64,
    pub program: String,
}

impl Origin {
    /// An abstract name; `serial` tells this device's sockets apart, `device` is its process id.
    pub fn to_name(&self, device: u32, serial: u64) -> Vec<u8> {
        let mut text = String::from_utf8_lossy(PREFIX).into_owned();
        let _ = write!(text, "{device}.{serial}/{}.{:x}/", self.pid, self.started);
        let mut end = self.program.len().min(MAX_PROGRAM);
        while !self.program.is_char_boundary(end) {
            end -= 1;
        }
        text.push_str(&self.program[..end]);
        text.into_bytes()
    }

    /// `None`: the name says something else.
    pub fn from_name(name: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(name.strip_prefix(PREFIX)?).ok()?;
        let mut fields = text.splitn(3, '/').skip(1);
        let (pid, started) = fields.next()?.split_once('.')?;
        let (pid, started) = (pid.parse().ok()?, u64::from_str_radix(started, 16).ok()?);
        Some(Origin { pid, started, program: fields.next()?.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive() {
        let origin = Origin { pid: u32::MAX, started: u64::MAX, program: "a/b c".into() };
        let name = origin.to_name(u32::MAX, u64::MAX);
        assert!(name.len() < 107);
        assert_eq!(Origin::from_name(&name), Some(origin));
        let long = Origin { pid: u32::MAX, started: u64::MAX, program: "ä".repeat(64) }.to_name(u32::MAX, u64::MAX);
        assert!(long.len() <= 107, "{}", long.len());
        assert_eq!(Origin::from_name(&long).map(|origin| origin.program), Some("ä".repeat(18)));
        for wrong in [
            &b""[..],
            b"aviary-vm/",
            b"aviary-vm/1.1/x/y",
            b"aviary-vm/1.1/7.1",
            b"aviary-vm/1.1/7/x",
            b"other/1.1/7.1/x",
        ] {
            assert_eq!(Origin::from_name(wrong), None);
        }
    }
}
