use super::*;
use std::path::Path;
use std::process::Command;

const LIBRARY: &str = r#"
const int number = 42;
int zeros[3];
const char text[6] = "hello";
static const char hidden[] = "hidden";
const char *const words[3] = {"one", hidden, 0};
int *const inside = &zeros[2];
static int secret;
int *const outside = &secret;
int *const *const behind = &outside;
int call(void) { return 1; }
int (*const function)(void) = call;
struct entry { char kind; const char *name; long size; } entries[2] = {{'a', "alpha", 1}, {'b', "beta", 2}};
"#;

fn ty(kind: TypeKind) -> Type {
    Type { kind, spelling: String::new(), handle: None }
}

fn int(bytes: usize) -> Type {
    ty(TypeKind::Int { bytes, signed: true })
}

fn pointer(to: Type) -> Type {
    ty(TypeKind::Pointer { to: Box::new(to), constant: true })
}

fn array(of: Type) -> Type {
    // As of a declaration without a length.
    ty(TypeKind::Array { of: Box::new(of), count: 0 })
}

fn entry() -> Type {
    let field = |name: &str, offset, ty| crate::model::Field { name: name.into(), offset, ty };
    let fields = vec![field("kind", 0, int(1)), field("name", 8, pointer(int(1))), field("size", 16, int(8))];
    ty(TypeKind::Struct(crate::model::Struct { name: "entry".into(), size: 24, align: 8, union: false, fields }))
}

fn run(command: &mut Command) -> String {
    let done = command.output().unwrap();
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

/// The content of each variable in a library that this machine's compiler makes, with these options.
fn read_all(options: &[&str]) -> BTreeMap<String, Found> {
    read_in(tempfile::tempdir().unwrap().path(), options)
}

fn read_in(folder: &Path, options: &[&str]) -> BTreeMap<String, Found> {
    let (source, library) = (folder.join("x.c"), folder.join("libx.so"));
    std::fs::write(&source, LIBRARY).unwrap();
    run(Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).args(options));
    let declared = [
        ("number", int(4)),
        ("zeros", array(int(4))),
        ("text", array(int(1))),
        ("words", array(pointer(int(1)))),
        ("inside", pointer(int(4))),
        ("outside", pointer(int(4))),
        ("behind", pointer(pointer(int(4)))),
        ("function", ty(TypeKind::Incomplete)),
        ("entries", array(entry())),
        ("absent", int(4)),
    ];
    let variables: Vec<HeaderVariable> = declared
        .into_iter()
        .map(|(name, ty)| HeaderVariable { name: name.into(), file: "x.h".into(), ty, constant: true })
        .collect();
    let variables: Vec<&HeaderVariable> = variables.iter().collect();
    let mut found = read(Some(&std::fs::read(&library).unwrap()), &variables);
    drop_dangling(&mut found);
    variables.iter().map(|v| v.name.clone()).zip(found).collect()
}

fn text(content: &str) -> VariablePiece {
    VariablePiece::Text(format!("{content}\0").into_bytes())
}

fn check(found: &BTreeMap<String, Found>) {
    let pieces = |name: &str| found[name].as_ref().unwrap().pieces.clone();
    assert_eq!(pieces("number"), [VariablePiece::Bytes(42u32.to_le_bytes().to_vec())]);
    assert_eq!(pieces("zeros"), [VariablePiece::Bytes(vec![0; 12])]);
    assert_eq!(pieces("text"), [VariablePiece::Bytes(b"hello\0".to_vec())]);
    assert_eq!(pieces("words"), [text("one"), text("hidden"), VariablePiece::Bytes(vec![0; 8])]);
    assert_eq!(pieces("inside"), [VariablePiece::Inside("zeros".into(), 8)]);
    let kind = |kind: u8| VariablePiece::Bytes(vec![kind, 0, 0, 0, 0, 0, 0, 0]);
    let size = |size: u64| VariablePiece::Bytes(size.to_le_bytes().to_vec());
    let [first, second] = [size(1), size(2)];
    let VariablePiece::Bytes(mut between) = first else { unreachable!() };
    let VariablePiece::Bytes(begin) = kind(b'b') else { unreachable!() };
    between.extend(begin);
    assert_eq!(pieces("entries"), [kind(b'a'), text("alpha"), VariablePiece::Bytes(between), text("beta"), second]);
}

#[test]
fn variables_have_the_content_of_the_library() {
    check(&read_all(&[]));
}

#[test]
fn variables_have_the_content_of_a_library_with_packed_relocations() {
    check(&read_all(&["-Wl,-z,pack-relative-relocs"]));
}

#[test]
fn sizes_are_those_of_the_library() {
    let found = read_all(&[]);
    for (name, size) in [("text", 6), ("zeros", 12), ("entries", 48)] {
        let variable = found[name].as_ref().unwrap();
        let bytes =
            |piece: &VariablePiece| if let VariablePiece::Bytes(bytes) = piece { bytes.len() as u64 } else { 8 };
        assert_eq!(variable.pieces.iter().map(bytes).sum::<u64>(), size, "{name}");
        assert_eq!(size % variable.align, 0, "{name}");
    }
}

#[test]
fn addresses_of_what_is_not_exported_are_refused() {
    let found = read_all(&[]);
    assert_eq!(found["outside"], Err(Lack::Address));
    assert_eq!(found["behind"], Err(Lack::Address), "leads into one that is not there");
    assert_eq!(found["function"], Err(Lack::Address));
    assert_eq!(found["absent"], Err(Lack::NotThere));
}

#[test]
fn variables_lack_without_a_library() {
    let variable = HeaderVariable { name: "number".into(), file: "x.h".into(), ty: int(4), constant: true };
    assert_eq!(read(None, &[&variable]), [Err(Lack::NotThere)]);
    assert_eq!(read(Some(b"\x7fELF"), &[&variable]), [Err(Lack::File)]);
}

const PROGRAM: &str = r#"
#include <stdio.h>
extern const int number; extern int zeros[3]; extern const char text[6]; extern const char *const words[3]; extern int *const inside;
extern struct entry { char kind; const char *name; long size; } entries[2];
int main(void) {
    *inside = 7;
    entries[1].size = 9;
    printf("%d %d %d %s %s %s %d\n", number, zeros[0], zeros[2], text, words[0], words[1], words[2] == 0);
    printf("%c %s %ld %c %s %ld\n", entries[0].kind, entries[0].name, entries[0].size, entries[1].kind, entries[1].name, entries[1].size);
    return 0;
}
"#;

/// With addresses of variables in the library, and with copies of them in the program.
#[test]
fn program_sees_the_same_in_the_guest_library() {
    let folder = tempfile::tempdir().unwrap();
    let (folder, guest) = (folder.path(), folder.path().join("guest"));
    let found: Vec<ExportedVariable> = read_in(folder, &["-Wl,-soname,libx.so"]).into_values().flatten().collect();
    std::fs::create_dir(&guest).unwrap();
    std::fs::write(folder.join("guest.rs"), format!("#![allow(warnings)]\n{}", definitions(&found))).unwrap();
    run(Command::new("rustc")
        .args(["--edition=2024", "--crate-type=cdylib", "-Clink-arg=-Wl,-soname,libx.so", "-o"])
        .args([guest.join("libx.so"), folder.join("guest.rs")]));
    std::fs::write(folder.join("app.c"), PROGRAM).unwrap();
    for options in [["-fPIC", "-pie"], ["-fno-pic", "-no-pie"]] {
        let app = folder.join("app");
        run(Command::new("cc").args(options).arg("-o").args([&app, &folder.join("app.c"), &folder.join("libx.so")]));
        let native = run(Command::new(&app).env("LD_LIBRARY_PATH", folder));
        assert_eq!(native, "42 0 7 hello one hidden 1\na alpha 1 b beta 9\n");
        let remote = Command::new(&app).env("LD_LIBRARY_PATH", &guest).output().unwrap();
        assert_eq!(String::from_utf8(remote.stdout).unwrap(), native);
        assert_eq!(String::from_utf8(remote.stderr).unwrap(), "");
    }
}

#[test]
fn functions_are_those_that_programs_can_be_linked_to() {
    let folder = tempfile::tempdir().unwrap();
    let (source, library) = (folder.path().join("x.c"), folder.path().join("libx.so"));
    let code = "int call(void) { return 1; } int _own(void) { return 2; } static int inner(void) { return 3; }\n\
        int _Z4callv(void) { return inner(); } int number; int aviary_call(void) { return call(); } int last(void) { return 4; }";
    std::fs::write(&source, code).unwrap();
    run(Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]));
    let mut found = functions(&std::fs::read(&library).unwrap());
    found.sort_unstable();
    assert_eq!(found, ["call", "last"]);
    assert_eq!(functions(b"no library"), Vec::<String>::new());
}
