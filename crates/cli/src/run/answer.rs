//! What `aviary run` gets from the process that serves its program.

use crate::run::launch::Variables;
use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::PathBuf,
};

/// First byte of an answer.
pub const READY: u8 = 1;
/// The text of an error follows.
pub const FAILED: u8 = 0;

/// What the program gets.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Answer {
    pub variables: Variables,
    /// The path of a socket that only this program uses, if there is one.
    pub entry: Option<PathBuf>,
}

impl Answer {
    /// Records that end with NUL: the entry, which may be empty, then `NAME=VALUE` for each variable.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![READY];
        let entry = self.entry.as_deref().map_or(OsStr::new(""), |path| path.as_os_str());
        bytes.extend_from_slice(entry.as_bytes());
        bytes.push(0);
        for (name, value) in &self.variables {
            bytes.extend_from_slice(name.as_bytes());
            bytes.push(b'=');
            bytes.extend_from_slice(value.as_bytes());
            bytes.push(0);
        }
        bytes
    }

    /// None: the other process has ended in the middle.
    pub fn decode(bytes: &[u8]) -> Option<Answer> {
        let mut records = bytes.strip_suffix(&[0])?.split(|byte| *byte == 0);
        let text = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
        let entry = records.next().filter(|path| !path.is_empty()).map(|path| PathBuf::from(text(path)));
        let variables = records.map(|record| {
            let at = record.iter().position(|byte| *byte == b'=')?;
            Some((text(&record[..at]), text(&record[at + 1..])))
        });
        Some(Answer { variables: variables.collect::<Option<_>>()?, entry })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_arrive_as_they_were_or_not_at_all() {
        let variables = [("A", "b=c"), ("LD_LIBRARY_PATH", ""), ("B", "\n")];
        let variables = variables.map(|(name, value)| (OsString::from(name), OsString::from(value))).into();
        for answer in [Answer::default(), Answer { variables, entry: Some("/run/n.sock".into()) }] {
            let bytes = answer.encode();
            assert_eq!(Answer::decode(&bytes[1..]).as_ref(), Some(&answer));
        }
        assert_eq!(Answer::decode(b""), None);
        assert_eq!(Answer::decode(b"/run/n.sock\0A=1"), None);
        assert_eq!(Answer::decode(b"\0A\0"), None);
    }
}
