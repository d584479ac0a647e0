//! A file system image as the kernel unpacks it at boot: a cpio archive in its `newc` form.

use std::{
    collections::BTreeMap,
    io::{self, Write},
};

const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const LINK: u32 = 0o120_000;
const CHARACTER: u32 = 0o020_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CpioNode {
    Directory,
    File { data: Vec<u8>, mode: u32 },
    Link(String),
    Character { major: u32, minor: u32 },
}

/// Files by their absolute paths; a later one replaces an earlier one.
#[derive(Debug, Default)]
pub struct Archive(BTreeMap<String, CpioNode>);

/// Folders that are links in a file system with a merged /usr, which the image has.
const MERGED: [&str; 4] = ["/bin", "/sbin", "/lib", "/lib64"];

impl Archive {
    /// With the links of a merged /usr.
    pub fn of_root() -> Self {
        let mut archive = Self::default();
        for place in MERGED {
            archive.0.insert(place.to_owned(), CpioNode::Link(format!("usr{place}")));
            archive.add(&format!("/usr{place}"), CpioNode::Directory);
        }
        archive
    }

    /// Adds the folders above it, too. `path` is absolute.
    pub fn add(&mut self, path: &str, node: CpioNode) {
        let path = canonical(path);
        let mut above = path.as_str();
        while let Some((parent, _)) = above.rsplit_once('/')
            && !parent.is_empty()
        {
            self.0.entry(parent.to_owned()).or_insert(CpioNode::Directory);
            above = parent;
        }
        self.0.insert(path, node);
    }

    pub fn file(&mut self, path: &str, data: impl Into<Vec<u8>>, mode: u32) {
        self.add(path, CpioNode::File { data: data.into(), mode });
    }

    pub fn contains(&self, path: &str) -> bool {
        self.0.contains_key(&canonical(path))
    }

    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Everything belongs to root, and all times are zero: equal contents give equal archives.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        // Sorted, so that a folder comes before what is in it.
        for (inode, (path, node)) in (1_u32..).zip(&self.0) {
            let (mode, data, device) = match node {
                CpioNode::Directory => (DIRECTORY | 0o755, &[][..], (0, 0)),
                CpioNode::File { data, mode } => (REGULAR | mode & 0o7777, &data[..], (0, 0)),
                CpioNode::Link(target) => (LINK | 0o777, target.as_bytes(), (0, 0)),
                CpioNode::Character { major, minor } => (CHARACTER | 0o600, &[][..], (*major, *minor)),
            };
            entry(out, inode, path.trim_start_matches('/'), mode, data, device)?;
        }
        entry(out, 0, "TRAILER!!!", 0, &[], (0, 0))
    }
}

fn canonical(path: &str) -> String {
    let merged = MERGED.iter().any(|place| path.strip_prefix(place).is_some_and(|rest| rest.starts_with('/')));
    if merged { format!("/usr{path}") } else { path.to_owned() }
}

fn entry(
    out: &mut impl Write,
    inode: u32,
    name: &str,
    mode: u32,
    data: &[u8],
    (major, minor): (u32, u32),
) -> io::Result<()> {
    let size = u32::try_from(data.len())
        .map_err(|_| io::Error::other(format!("{name} is larger than 4 GiB, the limit for a file in an image")))?;
    let name_size = name.len() as u32 + 1;
    // inode, mode, uid, gid, links, time, size, device of the file (2), device that it is (2), size of the name, check
    let fields = [inode, mode, 0, 0, 1, 0, size, 0, 0, major, minor, name_size, 0];
    let mut header = String::from("070701");
    for field in fields {
        header.push_str(&format!("{field:08x}"));
    }
    out.write_all(header.as_bytes())?;
    out.write_all(name.as_bytes())?;
    // Header and name together, and the data, end on multiples of four.
    out.write_all(&[0; 4][..1 + padding(header.len() + name.len() + 1)])?;
    out.write_all(data)?;
    out.write_all(&[0; 4][..padding(data.len())])
}

fn padding(length: usize) -> usize {
    length.wrapping_neg() % 4
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn bytes_of_one_file() {
        let mut archive = Archive::default();
        archive.file("/ab", "hello", 0o644);
        let mut out = Vec::new();
        archive.write(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let head = "07070100000001000081a40000000000000000000000010000000000000005";
        assert!(text.starts_with(head), "{text}");
        // The header has 110 bytes: name and its zero end at 113, and the data begin at 116.
        assert_eq!(&text.as_bytes()[110..124], b"ab\0\0\0\0hello\0\0\0");
        assert_eq!(text.len() % 4, 0);
        assert!(text.contains("TRAILER!!!"));
    }

    #[test]
    fn folders_come_first_and_merged_ones_are_links() {
        let mut archive = Archive::of_root();
        archive.file("/lib64/ld.so", "", 0o755);
        archive.file("/etc/a/b", "", 0o644);
        assert!(archive.contains("/usr/lib64/ld.so") && archive.contains("/lib64/ld.so"));
        let paths: Vec<_> = archive.paths().collect();
        let place = |path| paths.iter().position(|p| *p == path).unwrap();
        assert!(place("/etc") < place("/etc/a") && place("/etc/a") < place("/etc/a/b"));
        assert!(paths.contains(&"/lib64"));
    }

    /// Where there is another reader of the format.
    #[test]
    fn another_program_reads_it() {
        let mut archive = Archive::of_root();
        archive.file("/etc/name", "value\n", 0o644);
        archive.add("/etc/other", CpioNode::Link("name".into()));
        let mut bytes = Vec::new();
        archive.write(&mut bytes).unwrap();
        let listing = Command::new("cpio").arg("-t").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let Ok(mut child) = listing else { return };
        child.stdin.take().unwrap().write_all(&bytes).unwrap();
        let output = child.wait_with_output().unwrap();
        let listed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && listed.lines().any(|line| line == "etc/other"), "{listed}");
    }
}
