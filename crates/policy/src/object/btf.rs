//! The type and line information that clang leaves in an object: used only for messages and for the
//! width of a function's result. It is not trusted; unreadable information counts as absent.

const MAGIC: u16 = 0xeb9f;

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

/// The part of a section given by a pair of words in its header, relative to the header's end.
fn part(bytes: &[u8], words: usize) -> Option<&[u8]> {
    if u16::from_le_bytes(bytes.get(..2)?.try_into().ok()?) != MAGIC {
        return None;
    }
    let start = (u32_at(bytes, 4)? as usize).checked_add(u32_at(bytes, words)? as usize)?;
    bytes.get(start..start.checked_add(u32_at(bytes, words + 4)? as usize)?)
}

pub struct Btf<'a> {
    types: &'a [u8],
    strings: &'a [u8],
}

/// A line of the source; valid for the instructions from an offset in a section on.
pub struct Line {
    pub section: String,
    pub offset: u32,
    pub file: String,
    pub number: u32,
    pub text: String,
}

impl<'a> Btf<'a> {
    pub fn read(section: &'a [u8]) -> Option<Self> {
        Some(Self { types: part(section, 8)?, strings: part(section, 16)? })
    }

    fn string(&self, at: u32) -> Option<String> {
        let rest = self.strings.get(at as usize..)?;
        let end = rest.iter().position(|byte| *byte == 0)?;
        Some(String::from_utf8_lossy(&rest[..end]).into_owned())
    }

    /// Offset of each type; ids count from 1.
    fn types(&self) -> Vec<usize> {
        let (mut starts, mut at) = (Vec::new(), 0);
        while let Some(info) = u32_at(self.types, at + 4) {
            starts.push(at);
            let count = (info & 0xffff) as usize;
            at += 12
                + match info >> 24 & 31 {
                    1 | 14 | 17 => 4,
                    3 => 12,
                    4 | 5 | 15 | 19 => 12 * count,
                    6 | 13 => 8 * count,
                    _ => 0,
                };
        }
        starts
    }

    /// True if a function returns an `int`: 32 bits with a sign.
    pub fn returns_int(&self, function: &str) -> bool {
        self.find_return(function).unwrap_or(false)
    }

    fn find_return(&self, function: &str) -> Option<bool> {
        let starts = self.types();
        let start = |id: u32| starts.get((id as usize).checked_sub(1)?).copied();
        let kind = |at: usize| Some(u32_at(self.types, at + 4)? >> 24 & 31);
        let of = |at: usize| u32_at(self.types, at + 8);
        let found = starts.iter().copied().find(|at| {
            let name = u32_at(self.types, *at).and_then(|name| self.string(name));
            kind(*at) == Some(12) && name.as_deref() == Some(function)
        })?;
        let mut at = start(of(start(of(found)?)?)?)?;
        // Typedefs and qualifiers; real sources have no longer chain.
        for _ in 0..16 {
            match kind(at)? {
                8..=11 => at = start(of(at)?)?,
                1 => return Some(of(at)? == 4 && u32_at(self.types, at + 12)? >> 24 & 1 == 1),
                _ => return None,
            }
        }
        None
    }

    /// The lines of the section .BTF.ext.
    pub fn lines(&self, extension: &[u8]) -> Vec<Line> {
        let mut lines = Vec::new();
        if let Some(info) = part(extension, 16) {
            // Stops where the information ends or is malformed.
            let _ = self.read_lines(info, &mut lines);
        }
        lines
    }

    fn read_lines(&self, info: &[u8], lines: &mut Vec<Line>) -> Option<()> {
        let size = u32_at(info, 0)? as usize;
        let mut at = 4usize;
        if size < 16 {
            return None;
        }
        loop {
            let section = self.string(u32_at(info, at)?)?;
            let count = u32_at(info, at + 4)?;
            at += 8;
            for _ in 0..count {
                lines.push(Line {
                    section: section.clone(),
                    offset: u32_at(info, at)?,
                    file: self.string(u32_at(info, at + 4)?)?,
                    text: self.string(u32_at(info, at + 8)?)?,
                    number: u32_at(info, at + 12)? >> 10,
                });
                at = at.checked_add(size)?;
            }
        }
    }
}
