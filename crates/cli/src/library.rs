//! Facts that a shared library says of itself: its soname, and the functions that it exports.

use aviary_lapis::init::Library;
use object::{
    Endianness,
    elf::{self, FileHeader64},
    read::elf::{Dyn, FileHeader, Sym},
};
use std::path::{Path, PathBuf};
use std::{fs, io};

#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub enum LibraryError {
    /// cannot read the library {0}: {1}
    Unreadable(PathBuf, io::Error),
    /// {0} is not a shared library (64-bit ELF): {1}
    NoLibrary(PathBuf, object::Error),
}

pub fn read(path: &Path) -> Result<Library, LibraryError> {
    let data = fs::read(path).map_err(|error| LibraryError::Unreadable(path.into(), error))?;
    let (soname, exported) = facts(&data).map_err(|error| LibraryError::NoLibrary(path.into(), error))?;
    let file = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    Ok(Library { file, soname, exported })
}

fn facts(data: &[u8]) -> object::Result<(Option<String>, Vec<String>)> {
    let header = FileHeader64::<Endianness>::parse(data)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, data)?;
    let mut soname = None;
    if let Some((entries, names)) = sections.dynamic(endian, data)? {
        let strings = sections.strings(endian, data, names)?;
        for entry in entries.iter().filter(|entry| entry.d_tag(endian) == elf::DT_SONAME) {
            soname = Some(String::from_utf8_lossy(entry.string(endian, strings)?).into_owned());
        }
    }
    let symbols = sections.symbols(endian, data, elf::SHT_DYNSYM)?;
    let mut exported = Vec::new();
    for symbol in symbols.iter() {
        let is_code = [elf::STT_FUNC, elf::STT_GNU_IFUNC].contains(&symbol.st_type());
        if is_code && symbol.st_bind() != elf::STB_LOCAL && !symbol.is_undefined(endian) {
            exported.push(String::from_utf8_lossy(symbol.name(endian, symbols.strings())?).into_owned());
        }
    }
    exported.sort();
    exported.dedup();
    Ok((soname, exported))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c_library_says_its_name_and_its_functions() {
        let path = crate::dropin::find_library("libc.so.6").expect("the C library");
        let library = read(&path).expect("a library");
        assert_eq!(library.soname.as_deref(), Some("libc.so.6"));
        assert!(library.exported.iter().any(|name| name == "qsort"));
        assert!(read(Path::new("/etc/hostname")).is_err());
    }
}
