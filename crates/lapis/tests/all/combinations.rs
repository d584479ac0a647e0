//! Descriptors in every position: what `check` accepts can be built, and the table of what it accepts is reviewed.

use aviary_lapis::{Options, build, generate, load, lower};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

/// Types of values, by the name that they have in the table.
const TYPES: [(&str, &str); 7] = [
    ("number", "uint32_t"),
    ("bytes", "void *"),
    ("text", "char *"),
    ("handle", "t_object"),
    ("handles", "t_object *"),
    ("texts", "char **"),
    ("function", "t_function"),
];

/// Where a value stands: name, prototype, description. `T` is the type, `F` the function, `D` the descriptors. `n` is
/// 4-byte number that sizes can use.
const POSITIONS: [(&str, &str, &str); 11] = [
    ("argument", "int F(T x, size_t n);", "F(T x, size_t n) { argument(x) { D } }"),
    ("result", "T F(size_t n);", "F(size_t n) { return_value { D } }"),
    ("in element", "int F(T *x, size_t n);", "F(T *x, size_t n) { argument(x) { in; buffer(1); element { D } } }"),
    ("out element", "int F(T *x, size_t n);", "F(T *x, size_t n) { argument(x) { out; buffer(1); element { D } } }"),
    (
        "in-out element",
        "int F(T *x, size_t n);",
        "F(T *x, size_t n) { argument(x) { in; out; buffer(1); element { D } } }",
    ),
    (
        "in member",
        "typedef struct { T m; size_t n; } F_s; int F(F_s *x);",
        "F(F_s *x) { argument(x) { in; element { field(m) { D } } } }",
    ),
    (
        "out member",
        "typedef struct { T m; size_t n; } F_s; int F(F_s *x);",
        "F(F_s *x) { argument(x) { out; element { field(m) { D } } } }",
    ),
    (
        "in-out member",
        "typedef struct { T m; size_t n; } F_s; int F(F_s *x);",
        "F(F_s *x) { argument(x) { in; out; element { field(m) { D } } } }",
    ),
    (
        "value member",
        "typedef struct { T m; size_t n; } F_s; F_s F(F_s x);",
        "F(F_s x) { argument(x) { field(m) { D } } return_value { field(m) { D } } }",
    ),
    (
        "callback parameter",
        "typedef void (*F_f)(T x, size_t n, void *context); int F(F_f f, void *context);",
        "F(F_f f, void *context) { argument(f) { callback(x, n, context) { argument(x) { D } argument(context) { userdata; } } } argument(context) { userdata; } }",
    ),
    (
        "callback result",
        "typedef T (*F_f)(size_t n, void *context); int F(F_f f, void *context);",
        "F(F_f f, void *context) { argument(f) { callback(n, context) { argument(context) { userdata; } return_value { D } } } argument(context) { userdata; } }",
    ),
];

const DESCRIPTORS: [&str; 35] = [
    "",
    "in;",
    "out;",
    "in; buffer(4);",
    "out; buffer(4);",
    "in; out; buffer(4);",
    "buffer(4);",
    "out; buffer(4); returned(2);",
    "in; buffer(n);",
    "out; buffer(n);",
    "in; out; buffer(n);",
    "in; buffer(2); element { in; string; }",
    "out; buffer(2); element { string; }",
    "in; out; buffer(2); element { string; }",
    "out; buffer(n); element { allocate; }",
    "in; null_terminated;",
    "out; null_terminated;",
    "in; out; null_terminated;",
    "no_copy; buffer(4);",
    "string;",
    "in; string;",
    "out; string;",
    "opaque;",
    "null;",
    "token;",
    "allocate;",
    "deallocate;",
    "retain;",
    "mapped(16);",
    "unmap;",
    "zerocopy; buffer(4);",
    "userdata;",
    "callback() { }",
    "function_pointer(\"f0\");",
    "table(operations);",
];

struct Case {
    label: String,
    prototype: String,
    description: String,
}

fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for (position, prototype, description) in POSITIONS {
        for (name, ty) in TYPES {
            for descriptors in DESCRIPTORS {
                let function = format!("f{}", all.len());
                let fill = |text: &str| text.replace('F', &function).replace('T', ty);
                all.push(Case {
                    label: format!("{position}: {name}: {descriptors}"),
                    prototype: fill(prototype),
                    description: fill(description).replace('D', descriptors),
                });
            }
        }
    }
    all
}

struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const HEADER: &str = "#include <stddef.h>\n#include <stdint.h>\ntypedef struct t_object_s *t_object;\ntypedef void (*t_function)(void);\nstruct t_operations { int (*f)(int); };\n";
const SPECIFICATION: &str = "#include \"all.h\"\napi(\"combinations\", \"1\", \"libcombinations.so.1\");\ntable(struct t_operations) operations;\n";

/// A specification of these cases, one line each, behind the lines of `SPECIFICATION`.
fn specification(folder: &Path, cases: &[&Case]) -> PathBuf {
    let (mut header, mut text) = (HEADER.to_string(), SPECIFICATION.to_string());
    for case in cases {
        writeln!(header, "{}", case.prototype).expect("text");
        writeln!(text, "{}", case.description).expect("text");
    }
    fs::create_dir_all(folder).expect("a folder");
    fs::write(folder.join("all.h"), header).expect("written");
    let path = folder.join("combinations.lapis");
    fs::write(&path, text).expect("written");
    path
}

fn accepted(folder: &Path, cases: &[Case]) -> Vec<usize> {
    let all: Vec<&Case> = cases.iter().collect();
    let path = specification(folder, &all);
    let diagnostics = load(&path, &Options::default()).expect_err("many of them are mistakes");
    let first = SPECIFICATION.lines().count();
    let mut wrong = BTreeSet::new();
    for diagnostic in &diagnostics.list {
        let span = diagnostic.span.unwrap_or_else(|| panic!("a mistake without a place: {}", diagnostic.message));
        let text = &diagnostics.sources.file(span.file).expect("a file").text;
        let line = text[..span.start as usize].matches('\n').count();
        let error = diagnostic.severity == aviary_lapis::Severity::Error;
        error.then(|| wrong.insert(line - first));
    }
    (0..cases.len()).filter(|n| !wrong.contains(n)).collect()
}

#[test]
fn accepted_combinations_can_be_built() {
    let folder = Folder(std::env::temp_dir().join(format!("aviary-lapis-combinations-{}", std::process::id())));
    let cases = cases();
    let good = accepted(&folder.0, &cases);
    // Fewer lines for people: the positions in which a type takes descriptors.
    let mut table = String::new();
    for &n in &good {
        writeln!(table, "{}", cases[n].label).expect("text");
    }
    let chosen: Vec<&Case> = good.iter().map(|n| &cases[*n]).collect();
    let path = specification(&folder.0, &chosen);
    let loaded = load(&path, &Options::default()).unwrap_or_else(|d| panic!("{d}"));
    let program = lower::lower(&loaded.model);
    let sources = generate::generate(&loaded.model, &program, 1);
    syn::parse_file(&sources.guest).expect("the guest library is Rust");
    syn::parse_file(&sources.server).expect("the server module is Rust");
    // Only the compiler checks the code around the two sources, and their types.
    build::build(&path, &folder.0.join("out"), &Options::default(), None).unwrap_or_else(|e| panic!("{e}"));
    insta::assert_snapshot!(table);
}
