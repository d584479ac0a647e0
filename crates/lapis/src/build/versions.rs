//! Symbol versions: the guest library has those of the vendor's library, so that programs that were linked to that find theirs.
//!
//! rustc writes a list of a library's symbols for the linker, which has no versions and cannot be combined with one that has.
//! So the linker is called through a script that puts the versions into that list.

use super::error::BuildError;
use super::folder::Folder;
use crate::generate::glue::VERSIONS_FOLDER;
use object::LittleEndian as Endian;
use object::elf::{FileHeader64, SHT_DYNSYM};
use object::read::elf::{FileHeader, Sym};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The list in it: lines of a symbol and its version.
const LIST: &str = "list";

/// The linker's script, in place of `cc`.
const LINK: &str = r#"#!/bin/sh
# Links as cc does. A library whose arguments name a folder aviary-versions gets the symbol versions that the list there says;
# its other symbols get the first of them.
list= map=
for argument; do
    case $argument in
    -L*/aviary-versions) list=${argument#-L}/list ;;
    -Wl,--version-script=*) map=${argument#-Wl,--version-script=} ;;
    esac
done
if [ -s "$list" ] && [ -f "$map" ]; then
    awk 'NR == FNR { version[$1] = $2; if (!($2 in known)) { known[$2]; order[++count] = $2 }; next }
        /;$/ && !/[*}]/ { gsub(/[ \t;"]/, ""); v = ($0 in version) ? version[$0] : order[1]; names[v] = names[v] " " $0 ";" }
        END { for (i = 1; i <= count; i++) {
            print order[i] " {"
            if (names[order[i]] != "") print " global:" names[order[i]]
            if (i == 1) print " local: *;"
            print "};"
        } }' "$list" "$map" >"$map.versions" && mv "$map.versions" "$map" || exit 1
fi
exec "${CC:-cc}" "$@"
"#;

/// Writes the script to the folder that cargo compiles in, and answers the variable that makes cargo use it.
pub fn linker(target: &Path) -> Result<(String, PathBuf), BuildError> {
    use std::os::unix::fs::PermissionsExt;
    // rustc knows by this name how the linker wants its arguments.
    let folder = target.join("linker");
    let script = folder.join("cc");
    let failed = |error| BuildError::Output(script.clone(), error);
    if std::fs::read(&script).ok().as_deref() != Some(LINK.as_bytes()) {
        // Another build may be using it.
        std::fs::create_dir_all(&folder).map_err(failed)?;
        let new = folder.join(format!("cc.{}", std::process::id()));
        std::fs::write(&new, LINK).map_err(failed)?;
        std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o755)).map_err(failed)?;
        std::fs::rename(&new, &script).map_err(failed)?;
    }
    let arch = std::env::consts::ARCH.to_uppercase();
    Ok((format!("CARGO_TARGET_{arch}_UNKNOWN_LINUX_GNU_LINKER"), script))
}

/// Writes the list of the vendor library's versions below a guest crate; an empty one if it has none or is not here.
pub fn write(soname: &str, guest: &Path, folder: &Folder) -> Result<(), BuildError> {
    let found = vendor_library(soname).and_then(|path| std::fs::read(path).ok());
    let mut list = String::new();
    for (symbol, version) in found.map(|library| versions(&library)).unwrap_or_default() {
        let _ = writeln!(list, "{symbol} {version}");
    }
    folder.write(&guest.join(VERSIONS_FOLDER).join(LIST), list.as_bytes())
}

/// The library of that name, as the dynamic linker would find it.
pub(crate) fn vendor_library(soname: &str) -> Option<PathBuf> {
    let path = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
    let here = path.split(':').filter(|folder| !folder.is_empty()).map(|folder| Path::new(folder).join(soname));
    if let Some(found) = here.into_iter().find(|path| path.is_file()) {
        return Some(found);
    }
    let cache = ["ldconfig", "/sbin/ldconfig"].iter().find_map(|tool| Command::new(tool).arg("-p").output().ok())?;
    let text = String::from_utf8_lossy(&cache.stdout).into_owned();
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(soname))?;
    line.split_once("=> ").map(|(_, path)| PathBuf::from(path.trim()))
}

/// The symbols that a library defines with a version, and that version: of several the one that new programs are linked to.
pub fn versions(library: &[u8]) -> Vec<(String, String)> {
    read(library).unwrap_or_default()
}

fn read(library: &[u8]) -> object::read::Result<Vec<(String, String)>> {
    let header = FileHeader64::<Endian>::parse(library)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, library)?;
    let symbols = sections.symbols(endian, library, SHT_DYNSYM)?;
    let Some(table) = sections.versions(endian, library)? else { return Ok(Vec::new()) };
    let plain = |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.".contains(&b));
    let mut found = Vec::new();
    for (index, symbol) in symbols.enumerate() {
        let versym = table.version_index(endian, index);
        if symbol.is_undefined(endian) || versym.is_hidden() {
            continue;
        }
        let Some(version) = table.version(versym.index())? else { continue };
        let (name, version) = (symbol.name(endian, symbols.strings())?, version.name());
        if let (Ok(name), Ok(version)) = (std::str::from_utf8(name), std::str::from_utf8(version))
            && plain(name)
            && plain(version)
            && name != version
        {
            found.push((name.to_owned(), version.to_owned()));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compile(folder: &Path, linker: &Path, arguments: &[String]) {
        let status = Command::new(linker).args(arguments).current_dir(folder).status().expect("a linker");
        assert!(status.success(), "{arguments:?}");
    }

    #[test]
    fn library_gets_the_versions_of_another() {
        let folder = std::env::temp_dir().join(format!("aviary-versions-test-{}", std::process::id()));
        std::fs::create_dir_all(folder.join(VERSIONS_FOLDER)).expect("a folder");
        std::fs::write(folder.join("f.c"), "int one(void) { return 1; } int two(void) { return 2; } int own(void) { return 3; } int rest(void) { return 4; }").expect("written");
        std::fs::write(folder.join("map"), "A_1.0 { global: one; local: *; }; A_1.1 { global: two; } A_1.0;")
            .expect("written");
        // As rustc writes it.
        std::fs::write(folder.join("exports"), "{\n  global:\n    one;\n    two;\n    own;\n\n  local:\n    *;\n};\n")
            .expect("written");
        let words = |line: &str| line.split_whitespace().map(String::from).collect::<Vec<_>>();
        compile(&folder, Path::new("cc"), &words("-shared -fPIC -o vendor.so f.c -Wl,--version-script=map"));
        let read = |name: &str| {
            let mut found = versions(&std::fs::read(folder.join(name)).expect(name));
            found.sort();
            found
        };
        let pair = |a: &str, b: &str| (a.to_string(), b.to_string());
        assert_eq!(read("vendor.so"), [pair("one", "A_1.0"), pair("two", "A_1.1")]);
        let list: String = read("vendor.so").iter().map(|(symbol, version)| format!("{symbol} {version}\n")).collect();
        std::fs::write(folder.join(VERSIONS_FOLDER).join(LIST), list).expect("written");
        let (variable, script) = linker(&folder).expect("the script");
        assert!(variable.starts_with("CARGO_TARGET_"));
        let link = format!("-shared -fPIC -o guest.so f.c -Wl,--version-script=exports -L./{VERSIONS_FOLDER}");
        compile(&folder, &script, &words(&link));
        assert_eq!(read("guest.so"), [pair("one", "A_1.0"), pair("own", "A_1.0"), pair("two", "A_1.1")]);
        // Without a list, or with an empty one, the script changes nothing.
        std::fs::write(folder.join(VERSIONS_FOLDER).join(LIST), "").expect("written");
        std::fs::write(folder.join("exports"), "{ global: one; local: *; };").expect("written");
        compile(&folder, &script, &words(&link));
        assert_eq!(read("guest.so"), []);
        let _ = std::fs::remove_dir_all(&folder);
    }
}
