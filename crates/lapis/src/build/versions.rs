//! Symbol versions: the guest library has those of the vendor's library, so that programs that were linked to that find theirs.
//!
//! rustc writes a list of a library's symbols for the linker, which has no versions and cannot be combined with one that has.
//! So the linker is called through a script that puts the versions into that list.

use super::error::BuildError;
use super::folder::Folder;
use crate::generate::glue::VERSIONS_FOLDER;
use crate::model::Api;
use object::LittleEndian as Endian;
use object::elf::{FileHeader64, SHT_DYNSYM, STT_FUNC, STT_GNU_IFUNC};
use object::read::elf::{FileHeader, Sym};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The list in it: lines of a symbol, its version, and what it is, if it is no function.
const LIST: &str = "list";

/// The script that is called in place of the linker, which it calls for `@LINKER@`.
const LINK: &str = include_str!("link.sh");

/// A script that cargo calls as the linker, and the variable by which it is told so.
pub struct Linker {
    pub variable: String,
    pub script: PathBuf,
}

/// Writes the script to the folder that cargo compiles in. It calls `with`, by default `$CC` or `cc`.
pub fn linker(target: &Path, with: Option<&Path>) -> Result<Linker, BuildError> {
    use std::os::unix::fs::PermissionsExt;
    let linker = with.map_or_else(|| "\"${CC:-cc}\"".to_owned(), |with| quoted(&with.to_string_lossy()));
    let text = LINK.replace("@LINKER@", &linker);
    // rustc knows by this name how the linker wants its arguments. The path is the same for all APIs: cargo compiles again for
    // another one.
    let name = with.map_or_else(String::new, |with| with.to_string_lossy().replace('/', "-"));
    let folder = target.join(format!("linker{name}"));
    let script = folder.join("cc");
    let failed = |error| BuildError::Output(script.clone(), error);
    if std::fs::read(&script).ok().as_deref() != Some(text.as_bytes()) {
        // Another build may be using it.
        std::fs::create_dir_all(&folder).map_err(failed)?;
        let new = folder.join(format!("cc.{}", std::process::id()));
        std::fs::write(&new, text).map_err(failed)?;
        std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o755)).map_err(failed)?;
        std::fs::rename(&new, &script).map_err(failed)?;
    }
    let arch = std::env::consts::ARCH.to_uppercase();
    Ok(Linker { variable: format!("CARGO_TARGET_{arch}_UNKNOWN_LINUX_GNU_LINKER"), script })
}

/// A word of the shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Writes the list of the vendor library's versions, and of those of other releases, below a guest crate; an empty one if the
/// library has none or is not here.
pub fn write(api: &Api, guest: &Path, folder: &Folder) -> Result<(), BuildError> {
    let files = [&api.soname].into_iter().chain(&api.libraries);
    let mut known: Vec<Versioned> = Vec::new();
    for library in files.filter_map(|soname| std::fs::read(vendor_library(soname)?).ok()) {
        let new = versions(&library).into_iter().filter(|v| !known.iter().any(|other| other.symbol == v.symbol));
        let new: Vec<Versioned> = new.collect();
        known.extend(new);
    }
    let mut further = api.versions.clone();
    if api.any_version {
        known.iter().for_each(|own| further.extend(other_releases(&own.version)));
        further.sort_unstable();
        further.dedup();
    }
    let list = list(&known, &further);
    folder.write(&guest.join(VERSIONS_FOLDER).join(LIST), list.as_bytes())
}

/// The content of the list.
fn list(versions: &[Versioned], further: &[String]) -> String {
    let mut list = String::new();
    for Versioned { symbol, version, function } in versions {
        let _ = writeln!(list, "{symbol} {version}{}", if *function { "" } else { " data" });
    }
    for version in further.iter().filter(|_| !versions.is_empty()) {
        let _ = writeln!(list, "* {version}");
    }
    list
}

/// Versions of other releases of a library that is upwards compatible: the first number is the same, the second one any up to
/// 63 or to the library's own, the third one any up to 9.
fn other_releases(version: &str) -> Vec<String> {
    let numbers = version.trim_start_matches(|c: char| !c.is_ascii_digit());
    let (name, parts) = (&version[..version.len() - numbers.len()], numbers.split('.'));
    let parts: Option<Vec<u32>> = parts.map(|part| part.parse().ok()).collect();
    let Some([first, second, rest @ ..]) = parts.as_deref() else { return Vec::new() };
    let seconds = 0..=(*second).clamp(63, 999);
    match rest {
        [] => seconds.map(|second| format!("{name}{first}.{second}")).collect(),
        [third] => {
            let thirds = (*third).clamp(9, 99);
            seconds
                .flat_map(|second| (0..=thirds).map(move |third| format!("{name}{first}.{second}.{third}")))
                .collect()
        }
        _ => Vec::new(),
    }
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

/// A symbol that a library defines with a version: of several the one that new programs are linked to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Versioned {
    pub symbol: String,
    pub version: String,
    pub function: bool,
}

/// The symbols of a library that have a version.
pub fn versions(library: &[u8]) -> Vec<Versioned> {
    read(library).unwrap_or_default()
}

fn read(library: &[u8]) -> object::read::Result<Vec<Versioned>> {
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
            let function = matches!(symbol.st_type(), STT_FUNC | STT_GNU_IFUNC);
            found.push(Versioned { symbol: name.to_owned(), version: version.to_owned(), function });
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

    const FUNCTIONS: &str = "int one(void) { return 1; } int two(void) { return 2; } int own(void) { return 3; } int rest(void) { return 4; }";
    /// As rustc writes it.
    const EXPORTS: &str = "{\n  global:\n    one;\n    two;\n    own;\n\n  local:\n    *;\n};\n";

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(String::from).collect()
    }

    fn function(symbol: &str, version: &str) -> Versioned {
        Versioned { symbol: symbol.into(), version: version.into(), function: true }
    }

    fn sorted(library: &Path) -> Vec<Versioned> {
        let mut found = versions(&std::fs::read(library).expect("a library"));
        found.sort();
        found
    }

    /// A folder with the vendor's library, which has two versions, and what a guest library is linked of.
    fn prepared(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("aviary-{name}-test-{}", std::process::id()));
        std::fs::create_dir_all(folder.join(VERSIONS_FOLDER)).expect("a folder");
        std::fs::write(folder.join("f.c"), FUNCTIONS).expect("written");
        std::fs::write(folder.join("map"), "A_1.0 { global: one; local: *; }; A_1.1 { global: two; } A_1.0;")
            .expect("written");
        std::fs::write(folder.join("exports"), EXPORTS).expect("written");
        let vendor = "-shared -fPIC -o libf.so -Wl,-soname,libf.so f.c -Wl,--version-script=map";
        compile(&folder, Path::new("cc"), &words(vendor));
        folder
    }

    fn guest(folder: &Path, library: &str) {
        let Linker { variable, script } = linker(folder, None).expect("the script");
        assert!(variable.starts_with("CARGO_TARGET_"));
        let link = format!(
            "-shared -fPIC -o {library} -Wl,-Bsymbolic -Wl,-soname,libf.so f.c -Wl,--version-script=exports -L./{VERSIONS_FOLDER}"
        );
        compile(folder, &script, &words(&link));
    }

    #[test]
    fn another_linker_is_called_by_a_script_of_its_own() {
        let folder = prepared("linker");
        let named = folder.join("it's mine");
        let script = linker(&folder, Some(&named)).expect("the script").script;
        assert_ne!(script, linker(&folder, None).expect("the script").script);
        std::fs::write(&named, "#!/bin/sh\necho \"$@\" > called\n").expect("written");
        std::fs::set_permissions(&named, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("executable");
        compile(&folder, &script, &words("-o x y.o"));
        assert_eq!(std::fs::read_to_string(folder.join("called")).expect("called"), "-o x y.o\n");
        std::fs::remove_dir_all(folder).expect("removed");
    }

    #[test]
    fn library_gets_the_versions_of_another() {
        let folder = prepared("versions");
        let vendors = sorted(&folder.join("libf.so"));
        assert_eq!(vendors, [function("one", "A_1.0"), function("two", "A_1.1")]);
        std::fs::write(folder.join(VERSIONS_FOLDER).join(LIST), list(&vendors, &[])).expect("written");
        guest(&folder, "guest.so");
        assert_eq!(
            sorted(&folder.join("guest.so")),
            [function("one", "A_1.0"), function("own", "A_1.0"), function("two", "A_1.1")]
        );
        // Without a list, or with an empty one, the script changes nothing.
        std::fs::write(folder.join(VERSIONS_FOLDER).join(LIST), list(&[], &["A_0.9".into()])).expect("written");
        std::fs::write(folder.join("exports"), "{ global: one; local: *; };").expect("written");
        guest(&folder, "guest.so");
        assert_eq!(sorted(&folder.join("guest.so")), []);
        let _ = std::fs::remove_dir_all(&folder);
    }

    #[test]
    fn other_releases_differ_in_their_later_numbers() {
        let releases = other_releases("VERS_1.32.0");
        assert_eq!(releases.len(), 640);
        for known in ["VERS_1.23.2", "VERS_1.32.0", "VERS_1.63.9"] {
            assert!(releases.iter().any(|release| release == known), "{known}");
        }
        assert_eq!(other_releases("A_2.70").len(), 71);
        for plain in ["A", "A_1", "A_1.x", "A_1.2.3.4", "A_99999999999.1", "1."] {
            assert!(other_releases(plain).is_empty(), "{plain}");
        }
    }

    /// A program that was linked to another release of the library finds its versions, and every symbol answers to them.
    #[test]
    fn library_answers_to_versions_of_other_releases() {
        let folder = prepared("releases");
        let further = ["A_0.9", "A_1.0", "A_2.0"].map(String::from);
        let text = list(&sorted(&folder.join("libf.so")), &further);
        std::fs::write(folder.join(VERSIONS_FOLDER).join(LIST), text).expect("written");
        std::fs::create_dir(folder.join("guest")).expect("a folder");
        guest(&folder, "guest/libf.so");
        // The symbols that new programs are linked to keep the vendor's versions.
        let expected = [function("one", "A_1.0"), function("own", "A_1.0"), function("two", "A_1.1")];
        assert_eq!(sorted(&folder.join("guest/libf.so")), expected);
        std::fs::write(folder.join("map"), "A_2.0 { global: one; two; local: *; };").expect("written");
        compile(
            &folder,
            Path::new("cc"),
            &words("-shared -fPIC -o libf.so -Wl,-soname,libf.so f.c -Wl,--version-script=map"),
        );
        let program = "int one(void), two(void); int main(void) { return 10 * one() + two(); }";
        std::fs::write(folder.join("p.c"), program).expect("written");
        compile(&folder, Path::new("cc"), &words("-o p p.c -L. -lf"));
        let run =
            Command::new(folder.join("p")).env("LD_LIBRARY_PATH", folder.join("guest")).output().expect("a program");
        assert_eq!((run.status.code(), String::from_utf8_lossy(&run.stderr).as_ref()), (Some(12), ""));
        let _ = std::fs::remove_dir_all(&folder);
    }
}
